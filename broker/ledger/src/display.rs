//! Stored text on a terminal.
//!
//! A record may hold whatever a sandbox could say. JSON escapes the C0 controls, but not DEL, the C1 controls (one of which,
//! U+009B, begins a terminal command), nor the characters that reorder or hide text. [`inert`] escapes them all as JSON
//! does, so that what is shown is one line, cannot move the cursor, and is still the same JSON.

use std::borrow::Cow;
use std::fmt::Write as _;

/// `text` with every character escaped that could act on a terminal or mislead an eye.
#[must_use]
pub fn inert(text: &str) -> Cow<'_, str> {
    if !text.chars().any(acts) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len().saturating_add(16));
    for c in text.chars() {
        if acts(c) {
            let mut units = [0_u16; 2];
            for unit in c.encode_utf16(&mut units) {
                // Writing to a String cannot fail.
                let _infallible = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Controls, line and paragraph separators, and the characters that are invisible or change the direction of text
/// (Unicode's `Bidi_Control` and `Default_Ignorable_Code_Point`, private use and noncharacters).
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{e000}'..='\u{f8ff}' | '\u{fdd0}'..='\u{fdef}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{fffe}'..='\u{ffff}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{10ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_acts_is_escaped_and_what_reads_is_left() {
        let rows = [
            ("plain bücher 日本", "plain bücher 日本"),
            ("a\r\nb", "a\\u000d\\u000ab"),
            ("\u{1b}[2J", "\\u001b[2J"),
            ("\u{9b}31m", "\\u009b31m"),
            ("\u{7f}", "\\u007f"),
            ("\u{202e}txt", "\\u202etxt"),
            ("\u{2066}a\u{2069}", "\\u2066a\\u2069"),
            ("\0", "\\u0000"),
            ("a\u{200b}b\u{feff}", "a\\u200bb\\ufeff"),
            ("\u{e0041}", "\\udb40\\udc41"),
        ];
        for (text, expected) in rows {
            assert_eq!(inert(text), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn shown_json_is_the_same_json_on_one_line(text in any::<String>()) {
            let stored = serde_json::to_string(&text).unwrap();
            let shown = inert(&stored);
            let still_acts = shown.chars().any(acts);
            prop_assert!(!still_acts);
            prop_assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        }
    }
}

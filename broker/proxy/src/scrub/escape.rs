//! The ways in which one character is written as several: percent, JSON, JavaScript and HTML escapes.
//!
//! ```text
//!   %41  %2541          RFC 3986, section 2.1, once or twice
//!   \u0041  \x41  \/    RFC 8259, section 7, and JavaScript; with any run of backslashes, as in JSON inside JSON
//!   &#65;  &#x41;  &amp;  HTML, "character references"
//! ```
//!
//! Only ASCII matters: no secret that can be injected has anything else.

/// The most bytes that one escape takes.
pub(super) const MAX_ESCAPE_BYTES: usize = 24;
/// The bytes that an escape begins with.
pub(super) const STARTS: [u8; 3] = [b'%', b'\\', b'&'];

/// The most backslashes in front of one escaped character: JSON inside JSON inside JSON.
const MAX_BACKSLASHES: usize = 8;
/// The most digits of a numeric character reference, leading zeros included.
const MAX_DIGITS: usize = 8;

/// The characters that have a name in HTML, by its first letter.
const fn names(initial: u8) -> &'static [(&'static [u8], u8)] {
    match initial {
        b'A' => &[(b"AMP", b'&')],
        b'G' => &[(b"GT", b'>')],
        b'H' => &[(b"Hat", b'^')],
        b'L' => &[(b"LT", b'<')],
        b'Q' => &[(b"QUOT", b'"')],
        b'a' => &[(b"amp", b'&'), (b"apos", b'\''), (b"ast", b'*')],
        b'b' => &[(b"bsol", b'\\')],
        b'c' => &[(b"colon", b':'), (b"comma", b','), (b"commat", b'@')],
        b'd' => &[(b"dollar", b'$')],
        b'e' => &[(b"equals", b'='), (b"excl", b'!')],
        b'g' => &[(b"grave", b'`'), (b"gt", b'>')],
        b'l' => &[(b"lowbar", b'_'), (b"lpar", b'('), (b"lsqb", b'['), (b"lt", b'<')],
        b'n' => &[(b"num", b'#')],
        b'p' => &[(b"percnt", b'%'), (b"period", b'.'), (b"plus", b'+')],
        b'q' => &[(b"quest", b'?'), (b"quot", b'"')],
        b'r' => &[(b"rpar", b')'), (b"rsqb", b']')],
        b's' => &[(b"semi", b';'), (b"sol", b'/')],
        b'v' => &[(b"verbar", b'|')],
        _ => &[],
    }
}

/// What stands at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    /// No escape.
    No,
    /// The bytes end before it can be said.
    Unfinished,
    /// This character, written in so many bytes.
    Of(u8, usize),
}

/// The first letters of the names of these characters.
pub(super) fn initials_of(wanted: impl Fn(u8) -> bool) -> impl Iterator<Item = u8> {
    (b'A'..=b'z').filter(move |initial| names(*initial).iter().any(|(_, value)| wanted(*value)))
}

/// Reads the escape that begins here, if one does.
pub(super) fn read(bytes: &[u8]) -> Escape {
    match bytes.first() {
        Some(b'%') => percent(bytes),
        Some(b'\\') => backslash(bytes),
        Some(b'&') => reference(bytes),
        Some(_) => Escape::No,
        None => Escape::Unfinished,
    }
}

/// `%41`, and `%2541`, `%252541` for what was encoded again.
fn percent(bytes: &[u8]) -> Escape {
    let mut at: usize = 1;
    while bytes.get(at..at.saturating_add(2)) == Some(b"25") && at < MAX_BACKSLASHES {
        at = at.saturating_add(2);
    }
    match hexadecimal(bytes, at, 2) {
        // `%25` and nothing that continues it is a percent sign.
        Escape::No if at > 1 => Escape::Of(b'%', 3),
        other => other,
    }
}

fn backslash(bytes: &[u8]) -> Escape {
    let run = bytes.iter().take_while(|b| **b == b'\\').count();
    if run > MAX_BACKSLASHES {
        return Escape::No;
    }
    let after = run.saturating_add(1);
    match bytes.get(run) {
        None => Escape::Unfinished,
        Some(b'u') => unicode(bytes, after),
        Some(b'x') => hexadecimal(bytes, after, 2),
        Some(b'n') => Escape::Of(b'\n', after),
        Some(b'r') => Escape::Of(b'\r', after),
        Some(b't') => Escape::Of(b'\t', after),
        Some(other) => Escape::Of(*other, after),
    }
}

/// The four digits of `\\u`, of which the first two are zero in ASCII.
fn unicode(bytes: &[u8], from: usize) -> Escape {
    let digits = bytes.get(from..).unwrap_or_default();
    match digits {
        [] | [b'0'] => Escape::Unfinished,
        [b'0', b'0', ..] => hexadecimal(bytes, from.saturating_add(2), 2),
        _ => Escape::No,
    }
}

fn reference(bytes: &[u8]) -> Escape {
    match bytes.get(1) {
        None => Escape::Unfinished,
        Some(b'#') => match bytes.get(2) {
            None => Escape::Unfinished,
            Some(b'x' | b'X') => number(bytes, 3, 16),
            Some(_) => number(bytes, 2, 10),
        },
        Some(_) => named(bytes),
    }
}

fn number(bytes: &[u8], from: usize, radix: u32) -> Escape {
    let mut value: u32 = 0;
    let mut at = from;
    loop {
        let Some(byte) = bytes.get(at) else {
            return Escape::Unfinished;
        };
        match char::from(*byte).to_digit(radix) {
            Some(digit) if at.saturating_sub(from) < MAX_DIGITS => {
                value = value.saturating_mul(radix).saturating_add(digit);
                at = at.saturating_add(1);
            }
            Some(_) => return Escape::No,
            None => break,
        }
    }
    // Browsers read it without the semicolon too.
    let end = if bytes.get(at) == Some(&b';') {
        at.saturating_add(1)
    } else {
        at
    };
    match u8::try_from(value) {
        Ok(value) if at > from && value.is_ascii() => Escape::Of(value, end),
        _ => Escape::No,
    }
}

fn named(bytes: &[u8]) -> Escape {
    let rest = bytes.get(1..).unwrap_or_default();
    let initial = rest.first().copied().unwrap_or(0);
    for (name, value) in names(initial) {
        let shared = name.iter().zip(rest).take_while(|(a, b)| a == b).count();
        if shared == name.len() {
            match rest.get(shared) {
                Some(b';') => return Escape::Of(*value, name.len().saturating_add(2)),
                Some(_) => {}
                None => return Escape::Unfinished,
            }
        } else if shared == rest.len() {
            return Escape::Unfinished;
        }
    }
    Escape::No
}

fn hexadecimal(bytes: &[u8], from: usize, digits: usize) -> Escape {
    let mut value: u32 = 0;
    for at in from..from.saturating_add(digits) {
        let Some(byte) = bytes.get(at) else {
            return Escape::Unfinished;
        };
        let Some(digit) = char::from(*byte).to_digit(16) else {
            return Escape::No;
        };
        value = value.saturating_mul(16).saturating_add(digit);
    }
    match u8::try_from(value) {
        Ok(value) if value.is_ascii() => Escape::Of(value, from.saturating_add(digits)),
        _ => Escape::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_way_to_write_a_character() {
        let rows: [(&[u8], Escape); 33] = [
            (b"%41x", Escape::Of(b'A', 3)),
            (b"%2fx", Escape::Of(b'/', 3)),
            (b"%2Fx", Escape::Of(b'/', 3)),
            (b"%2541", Escape::Of(b'A', 5)),
            (b"%252541", Escape::Of(b'A', 7)),
            (b"%25zz", Escape::Of(b'%', 3)),
            (b"%25", Escape::Unfinished),
            (b"%", Escape::Unfinished),
            (b"%4", Escape::Unfinished),
            (b"%zz", Escape::No),
            (b"%c3", Escape::No),
            (b"\\u0041", Escape::Of(b'A', 6)),
            (b"\\u004", Escape::Unfinished),
            (b"\\u0", Escape::Unfinished),
            (b"\\u2028", Escape::No),
            (b"\\u2", Escape::No),
            (b"\\x41", Escape::Of(b'A', 4)),
            (b"\\/", Escape::Of(b'/', 2)),
            (b"\\\\/", Escape::Of(b'/', 3)),
            (b"\\\\u0041", Escape::Of(b'A', 7)),
            (b"\\n", Escape::Of(b'\n', 2)),
            (b"\\", Escape::Unfinished),
            (b"&#65;", Escape::Of(b'A', 5)),
            (b"&#065;", Escape::Of(b'A', 6)),
            (b"&#65 ", Escape::Of(b'A', 4)),
            (b"&#x41;", Escape::Of(b'A', 6)),
            (b"&#X41;", Escape::Of(b'A', 6)),
            (b"&#x", Escape::Unfinished),
            (b"&#;", Escape::No),
            (b"&amp;", Escape::Of(b'&', 5)),
            (b"&am", Escape::Unfinished),
            (b"&amx", Escape::No),
            (b"abc", Escape::No),
        ];
        for (bytes, expected) in rows {
            assert_eq!(read(bytes), expected, "{}", bytes.escape_ascii());
            if let Escape::Of(_, length) = expected {
                assert!(length <= MAX_ESCAPE_BYTES);
            }
        }
    }
}

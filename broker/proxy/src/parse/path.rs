//! One spelling of a path (P7): what policy reads is, byte for byte, what the origin gets.
//!
//! The canonical form of RFC 3986, section 6.2.2: unreserved characters are decoded, every other escape is kept with
//! upper-case digits, and what no URL may contain raw is escaped. Whatever would *change* under some origin's own
//! normalisation is refused instead: dot segments in any spelling (also before a `;`, which some origins cut), empty
//! segments, slashes and backslashes that are escaped, control characters, invalid UTF-8, and escapes of escapes that
//! would become any of these when they are decoded once more.

use std::fmt::Write as _;

use crate::limits::Limits;
use crate::parse::refusal::Refusal;

/// A path in canonical form, and its segments decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanonicalPath {
    /// Percent-encoded, beginning with `/`.
    pub path: String,
    /// Percent-decoded. The root has none; a trailing slash is an empty last segment.
    pub segments: Vec<String>,
}

/// Whether a segment may hold one escaped slash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EscapedSlash {
    /// Never.
    Refused,
    /// In `@scope%2fname`, which is how every npm client names a scoped package. Only for a host with npm's grammar.
    InNpmScope,
}

/// Canonicalises the path of a request target (without its query).
///
/// # Errors
/// [`Refusal::Path`] when there is more than one way to read it, [`Refusal::HeaderLimit`] when it is too long.
pub fn canonical(raw: &str, slash: EscapedSlash, limits: &Limits) -> Result<CanonicalPath, Refusal> {
    if raw.len() > limits.path_bytes {
        return Err(Refusal::HeaderLimit);
    }
    let rest = raw.strip_prefix('/').ok_or(Refusal::Path)?;
    let mut path = String::with_capacity(raw.len());
    let mut segments = Vec::with_capacity(8);
    if rest.is_empty() {
        path.push('/');
        return Ok(CanonicalPath { path, segments });
    }
    let mut pieces = rest.split('/').peekable();
    while let Some(piece) = pieces.next() {
        if segments.len() == limits.path_segments {
            return Err(Refusal::HeaderLimit);
        }
        path.push('/');
        if piece.is_empty() {
            if pieces.peek().is_some() {
                return Err(Refusal::Path);
            }
            segments.push(String::new());
            break;
        }
        let decoded = append_segment(piece, &mut path)?;
        check_segment(&decoded, slash)?;
        segments.push(decoded);
    }
    Ok(CanonicalPath { path, segments })
}

/// Appends one segment's canonical spelling to `path` and returns it decoded.
fn append_segment(piece: &str, path: &mut String) -> Result<String, Refusal> {
    // Most segments are nothing but unreserved characters, which are their own spelling.
    if piece.bytes().all(is_unreserved) {
        path.push_str(piece);
        return Ok(piece.to_owned());
    }
    let mut decoded = Vec::with_capacity(piece.len());
    let mut bytes = piece.bytes();
    while let Some(byte) = bytes.next() {
        let (value, escaped) = if byte == b'%' {
            let high = bytes.next().and_then(hex_digit).ok_or(Refusal::Path)?;
            let low = bytes.next().and_then(hex_digit).ok_or(Refusal::Path)?;
            (high << 4 | low, true)
        } else {
            (byte, false)
        };
        decoded.push(value);
        if is_unreserved(value) || (!escaped && is_path_character(value)) {
            path.push(char::from(value));
        } else if !escaped && !(0x21..=0x7e).contains(&value)
            || matches!((value, escaped), (b'\\' | b'#', false))
        {
            return Err(Refusal::Path);
        } else {
            // Writing to a String cannot fail.
            let _ = write!(path, "%{value:02X}");
        }
    }
    String::from_utf8(decoded).map_err(|_invalid| Refusal::Path)
}

/// Refuses a decoded segment that some origin would read as another path, at once or after decoding it again.
fn check_segment(decoded: &str, slash: EscapedSlash) -> Result<(), Refusal> {
    let scoped = slash == EscapedSlash::InNpmScope && is_npm_scope(decoded);
    if decoded
        .chars()
        .any(|c| c.is_control() || c == '\\' || (c == '/' && !scoped))
    {
        return Err(Refusal::Path);
    }
    if is_dots(decoded.split(';').next().unwrap_or_default()) {
        return Err(Refusal::Path);
    }
    if decoded.contains('%') {
        return check_decoded_again(decoded);
    }
    Ok(())
}

/// `%252e%252e%252f` and its kin, however deep: nothing may *become* a separator, a dot segment or a control byte.
fn check_decoded_again(decoded: &str) -> Result<(), Refusal> {
    let mut current = decoded.as_bytes().to_vec();
    loop {
        let next: Vec<u8> = percent_encoding::percent_decode(&current).collect();
        if next == current {
            return Ok(());
        }
        let separates = next.iter().any(|b| matches!(b, b'/' | b'\\' | 0..=0x1f | 0x7f));
        let cut = next.split(|b| *b == b';').next().unwrap_or_default();
        if separates || (!cut.is_empty() && cut.iter().all(|b| *b == b'.')) {
            return Err(Refusal::Path);
        }
        current = next;
    }
}

/// Any run of dots: `.` and `..` (RFC 3986, section 3.3), and the longer runs that some systems fold.
fn is_dots(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b == b'.')
}

fn is_npm_scope(decoded: &str) -> bool {
    let word = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    decoded
        .strip_prefix('@')
        .and_then(|rest| rest.split_once('/'))
        .is_some_and(|(scope, name)| word(scope) && word(name))
}

const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// `pchar` (RFC 3986, section 3.3) less unreserved and escapes.
const fn is_path_character(byte: u8) -> bool {
    matches!(
        byte,
        b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@'
    )
}

const fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(raw: &str, expected: Option<(&str, &[&str])>) {
        let got = canonical(raw, EscapedSlash::Refused, &Limits::default());
        match (got, expected) {
            (Ok(got), Some((path, segments))) => {
                assert_eq!(got.path, path, "{raw}");
                assert_eq!(got.segments, segments, "{raw}");
            }
            (Err(refusal), None) => assert_eq!(refusal, Refusal::Path, "{raw}"),
            (got, expected) => panic!("{raw}: {got:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn a_path_has_one_spelling() {
        check("/", Some(("/", &[])));
        check("/repos/a/b", Some(("/repos/a/b", &["repos", "a", "b"])));
        check("/a/", Some(("/a/", &["a", ""])));
        check("/%61%2D%7e", Some(("/a-~", &["a-~"])));
        check("/a%3ab", Some(("/a%3Ab", &["a:b"])));
        check("/caf%c3%a9", Some(("/caf%C3%A9", &["café"])));
        check("/a|b[c]{d}", Some(("/a%7Cb%5Bc%5D%7Bd%7D", &["a|b[c]{d}"])));
        check("/a;v=1/b", Some(("/a;v=1/b", &["a;v=1", "b"])));
        check("/..a/b..", Some(("/..a/b..", &["..a", "b.."])));
        check("/100%25", Some(("/100%25", &["100%"])));
        check("/@babel/core", Some(("/@babel/core", &["@babel", "core"])));
        check("/A", Some(("/A", &["A"])));
    }

    #[test]
    fn refuses_what_two_parsers_could_read_differently() {
        for raw in [
            "",
            "a",
            "*",
            "//",
            "//a",
            "/a//b",
            "/a//",
            "/.",
            "/..",
            "/a/../b",
            "/a/./b",
            "/a/..",
            "/%2e",
            "/%2E%2e/a",
            "/.%2e/a",
            "/..;/admin",
            "/ok/..;x=1/admin",
            "/.;/a",
            "/%2e%2e;/a",
            "/..%3b/a",
            "/...",
            "/a%2fb",
            "/a%2Fb",
            "/a%5cb",
            "/a\\b",
            "/a%00",
            "/a%0d%0ab",
            "/a%7f",
            "/a%c2%85",
            "/a#b",
            "/a b",
            "/a\tb",
            "/a\u{e9}",
            "/%c0%ae",
            "/%c0%af",
            "/%e0%80%af",
            "/%ff",
            "/%",
            "/%2",
            "/%zz",
            "/%u002e",
            "/%252e%252e/a",
            "/%252e",
            "/a%252fb",
            "/a%255cb",
            "/a%2500",
            "/%25252e%25252e",
            "/a%25252fb",
            "/%252e%252e%253b",
            "/@scope%2fname",
        ] {
            check(raw, None);
        }
    }

    #[test]
    fn an_npm_scope_may_be_joined_by_an_escaped_slash() {
        let npm = |raw| canonical(raw, EscapedSlash::InNpmScope, &Limits::default());
        let scoped = npm("/@babel%2fcore").unwrap();
        assert_eq!(scoped.path, "/@babel%2Fcore");
        assert_eq!(scoped.segments, ["@babel/core"]);
        for raw in [
            "/a%2fb",
            "/@a%2f..",
            "/@..%2fb",
            "/@a%2fb%2fc",
            "/@%2fb",
            "/@a%2f",
            "/@a%252fb",
            "/@a%5cb",
        ] {
            assert_eq!(npm(raw), Err(Refusal::Path), "{raw}");
        }
    }

    #[test]
    fn limits_are_exact() {
        let limits = Limits::default();
        let at = format!("/{}", "a".repeat(limits.path_bytes - 1));
        assert!(canonical(&at, EscapedSlash::Refused, &limits).is_ok());
        assert_eq!(
            canonical(&format!("{at}a"), EscapedSlash::Refused, &limits),
            Err(Refusal::HeaderLimit)
        );
        let at = "/a".repeat(limits.path_segments);
        assert!(canonical(&at, EscapedSlash::Refused, &limits).is_ok());
        assert_eq!(
            canonical(&format!("{at}/a"), EscapedSlash::Refused, &limits),
            Err(Refusal::HeaderLimit)
        );
    }

    proptest! {
        #[test]
        fn the_canonical_form_is_canonical(raw in "/([!-~]|%[0-9a-fA-F]{2}){0,24}") {
            if let Ok(first) = canonical(&raw, EscapedSlash::Refused, &Limits::default()) {
                let second = canonical(&first.path, EscapedSlash::Refused, &Limits::default());
                prop_assert_eq!(second, Ok(first));
            }
        }

        #[test]
        fn no_segment_can_be_taken_for_another_path(raw in "/([./;%25a-f\\\\]){0,24}") {
            if let Ok(path) = canonical(&raw, EscapedSlash::Refused, &Limits::default()) {
                for segment in path.segments {
                    let mut decoded = segment.clone();
                    for _ in 0..4 {
                        prop_assert!(!decoded.contains('/') && decoded != ".." && decoded != ".");
                        decoded = percent_encoding::percent_decode_str(&decoded).decode_utf8_lossy().into_owned();
                    }
                }
            }
        }

        #[test]
        fn never_panics(raw in any::<String>()) {
            drop(canonical(&raw, EscapedSlash::InNpmScope, &Limits::default()));
        }
    }
}

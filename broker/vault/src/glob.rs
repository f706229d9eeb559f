//! Path patterns: `/repos/**`, `/v1/*/read`, `/files/*.txt`.
//!
//! A pattern is matched segment by segment against a canonical path. `*` stands for any run of characters inside one
//! segment; `**`, alone in a segment, for any number of segments, at the end of a pattern for one or more (so
//! `/repos/**` is what lies below `/repos`, not `/repos` itself).
//!
//! A path that some server could read as another path never matches: one with dot segments under any encoding, and
//! `*` does not match an encoded slash. (RFC 3986, sections 3.3 and 6.2.2.)

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use thiserror::Error;

/// The longest pattern, in bytes.
pub const MAX_PATTERN_BYTES: usize = 1024;
/// The most segments that a pattern or a path may have to match.
pub const MAX_SEGMENTS: usize = 256;

/// Why a text is no pattern.
#[derive(Debug, Error, PartialEq, Eq, Clone, Copy)]
pub enum PathGlobError {
    /// It does not begin with `/`.
    #[error("a path pattern begins with /")]
    Relative,
    /// It has a query, fragment, control character, space, backslash or non-ASCII character.
    #[error("a path pattern has only path characters; write others percent-encoded")]
    Character,
    /// `**` together with something else in a segment.
    #[error("** stands alone in its segment")]
    DoubleStar,
    /// `.` or `..`.
    #[error("a path pattern has no dot segments")]
    DotSegment,
    /// Longer than [`MAX_PATTERN_BYTES`], or more segments than [`MAX_SEGMENTS`].
    #[error("a path pattern is at most {MAX_PATTERN_BYTES} bytes and {MAX_SEGMENTS} segments long")]
    TooLong,
}

/// A parsed pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathGlob {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// `**`.
    Any,
    /// The literal pieces between the `*`s, percent-decoded: one piece when there is no `*`.
    Pieces(Vec<Vec<u8>>),
}

impl FromStr for PathGlob {
    type Err = PathGlobError;

    fn from_str(text: &str) -> Result<Self, PathGlobError> {
        if text.len() > MAX_PATTERN_BYTES {
            return Err(PathGlobError::TooLong);
        }
        let rest = text.strip_prefix('/').ok_or(PathGlobError::Relative)?;
        if !text
            .bytes()
            .all(|b| b.is_ascii_graphic() && !matches!(b, b'?' | b'#' | b'\\'))
        {
            return Err(PathGlobError::Character);
        }
        let segments = rest
            .split('/')
            .map(parse_segment)
            .collect::<Result<Vec<_>, _>>()?;
        if segments.len() > MAX_SEGMENTS {
            return Err(PathGlobError::TooLong);
        }
        Ok(Self {
            text: text.to_owned(),
            segments,
        })
    }
}

fn parse_segment(segment: &str) -> Result<Segment, PathGlobError> {
    if segment == "**" {
        return Ok(Segment::Any);
    }
    if segment.contains("**") {
        return Err(PathGlobError::DoubleStar);
    }
    if is_deceptive(&decode(segment)) {
        return Err(PathGlobError::DotSegment);
    }
    Ok(Segment::Pieces(segment.split('*').map(decode).collect()))
}

fn decode(segment: &str) -> Vec<u8> {
    percent_decode_str(segment).collect()
}

impl PathGlob {
    /// Whether a canonical path (percent-encoded, beginning with `/`, without query) lies within this pattern.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        let Some(rest) = path.strip_prefix('/') else {
            return false;
        };
        let segments: Vec<Vec<u8>> = rest.split('/').map(decode).collect();
        segments.len() <= MAX_SEGMENTS
            && !segments.iter().any(|segment| is_deceptive(segment))
            && matches_all(&self.segments, &segments)
    }
}

/// Whether some server could take this segment for one that leads elsewhere: a dot segment, alone, beside an encoded
/// slash or before path parameters (`..;x`), or anything still encoded that would become one.
fn is_deceptive(segment: &[u8]) -> bool {
    let dots = segment.split(|b| matches!(b, b'/' | b'\\')).any(|part| {
        let name = part.split(|b| *b == b';').next().unwrap_or(part);
        matches!(name, b"." | b"..")
    });
    let encoded_again = segment.windows(3).any(|w| {
        let mut code = [0_u8; 3];
        code.copy_from_slice(w);
        matches!(
            &code.map(|b| b.to_ascii_lowercase()),
            b"%2e" | b"%2f" | b"%5c" | b"%25"
        )
    });
    dots || encoded_again || segment.contains(&0)
}

/// Wildcard matching with one remembered `**`: linear in pattern times path, no recursion.
fn matches_all(pattern: &[Segment], path: &[Vec<u8>]) -> bool {
    let (mut p, mut s) = (0, 0);
    let mut resume: Option<(usize, usize)> = None;
    loop {
        match (pattern.get(p), path.get(s)) {
            (None, None) => return true,
            (Some(Segment::Any), _) => {
                let least = usize::from(p.saturating_add(1) == pattern.len());
                p = p.saturating_add(1);
                s = s.saturating_add(least);
                if s > path.len() {
                    return false;
                }
                resume = Some((p, s));
                continue;
            }
            (Some(Segment::Pieces(pieces)), Some(segment)) if matches_segment(pieces, segment) => {
                p = p.saturating_add(1);
                s = s.saturating_add(1);
                continue;
            }
            _ => {}
        }
        match resume {
            Some((after, from)) if from < path.len() => {
                let next = from.saturating_add(1);
                resume = Some((after, next));
                p = after;
                s = next;
            }
            _ => return false,
        }
    }
}

fn matches_segment(pieces: &[Vec<u8>], segment: &[u8]) -> bool {
    let [first, middle @ .., last] = pieces else {
        // No `*`: the one piece is the whole segment.
        return pieces.first().is_some_and(|only| only == segment);
    };
    let Some(inner) = segment.strip_prefix(first.as_slice()) else {
        return false;
    };
    let Some(mut inner) = inner.strip_suffix(last.as_slice()) else {
        return false;
    };
    if segment.contains(&b'/') || segment.contains(&b'\\') {
        return false;
    }
    for piece in middle.iter().filter(|piece| !piece.is_empty()) {
        let Some(at) = inner.windows(piece.len()).position(|window| window == piece) else {
            return false;
        };
        inner = inner.get(at.saturating_add(piece.len())..).unwrap_or_default();
    }
    true
}

impl fmt::Display for PathGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(pattern: &str, path: &str, expected: bool) {
        let glob: PathGlob = pattern.parse().unwrap();
        assert_eq!(glob.matches(path), expected, "{pattern} against {path}");
    }

    #[test]
    fn matches_segment_by_segment() {
        let rows = [
            ("/repos/**", "/repos/a/b", true),
            ("/repos/**", "/repos/a", true),
            ("/repos/**", "/repos/", true),
            ("/repos/**", "/repos", false),
            ("/repos/**", "/reposx/a", false),
            ("/repos/**", "/", false),
            ("/**", "/", true),
            ("/**", "/a/b/c", true),
            ("/", "/", true),
            ("/", "/a", false),
            ("/v1/*", "/v1/models", true),
            ("/v1/*", "/v1/models/x", false),
            ("/v1/*/read", "/v1/x/read", true),
            ("/v1/*/read", "/v1/x/y/read", false),
            ("/**/info/refs", "/a/b.git/info/refs", true),
            ("/**/info/refs", "/info/refs", true),
            ("/**/info/refs", "/a/info/refs/x", false),
            ("/a/**/b/**", "/a/x/b/y/b/z", true),
            ("/a/**/b/**", "/a/x/b", false),
            ("/f/*.txt", "/f/a.txt", true),
            ("/f/*.txt", "/f/a.txt.exe", false),
            ("/f/a*b*c", "/f/aXbYc", true),
            ("/f/a*b*c", "/f/aXcYb", false),
            ("/f/a*a", "/f/a", false),
            ("/a%20b", "/a%20b", true),
            ("/@scope%2fname", "/@scope%2Fname", true),
            ("/repos", "/REPOS", false),
        ];
        for (pattern, path, expected) in rows {
            check(pattern, path, expected);
        }
    }

    /// A server that decodes once more, or drops path parameters, must not end up outside the pattern.
    #[test]
    fn a_path_that_could_be_read_as_another_matches_nothing() {
        for path in [
            "/repos/../user",
            "/repos/%2e%2e/user",
            "/repos/.%2E/user",
            "/repos/..;/user",
            "/repos/..%3bx/user",
            "/repos/a%2f..%2fb",
            "/repos/..%5cuser",
            "/repos/%252e%252e/user",
            "/repos/%25252e/user",
            "/repos/a%00b",
            "/repos/.",
            "repos/a",
            "",
        ] {
            check("/repos/**", path, false);
            check("/**", path, false);
        }
        check("/repos/*/issues", "/repos/a%2fb/issues", false);
        check("/repos/*/issues", "/repos/a%5Cb/issues", false);
        check("/repos/**", "/repos/a%2fb", true);
    }

    #[test]
    fn refuses_patterns_that_do_not_mean_what_they_say() {
        let rows = [
            ("", PathGlobError::Relative),
            ("repos/**", PathGlobError::Relative),
            ("/a/b**", PathGlobError::DoubleStar),
            ("/a/../b", PathGlobError::DotSegment),
            ("/a?b", PathGlobError::Character),
            ("/a b", PathGlobError::Character),
            ("/ü", PathGlobError::Character),
        ];
        for (text, error) in rows {
            assert_eq!(text.parse::<PathGlob>(), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_recursive_definition(pattern in "(/(\\*\\*|\\*|a|b|a\\*)){1,5}", path in "/(a|b|ab)(/(a|b|ab|)){0,5}") {
            fn naive(p: &[Segment], s: &[Vec<u8>]) -> bool {
                match p.split_first() {
                    None => s.is_empty(),
                    Some((Segment::Any, [])) => !s.is_empty(),
                    Some((Segment::Any, rest)) => (0..=s.len()).any(|skip| naive(rest, &s[skip..])),
                    Some((Segment::Pieces(pieces), rest)) => s
                        .split_first()
                        .is_some_and(|(first, tail)| matches_segment(pieces, first) && naive(rest, tail)),
                }
            }
            let glob: PathGlob = pattern.parse().unwrap();
            let segments: Vec<Vec<u8>> = path.trim_start_matches('/').split('/').map(decode).collect();
            prop_assert_eq!(glob.matches(&path), naive(&glob.segments, &segments));
        }
    }
}

//! Chunked framing (RFC 9112, section 7.1) in its plainest form: a size in hexadecimal, no extension, CRLF.
//!
//! ```text
//! 1*15HEXDIG CRLF  so many bytes  CRLF          the size without leading zeros
//! "0" CRLF  *( trailer CRLF )  CRLF
//! ```

use crate::limits::Limits;
use crate::parse::head::field;
use crate::parse::refusal::Refusal;

/// Digits of the longest acceptable size; 16^15 fits every signed 64-bit parser.
const MAX_SIZE_DIGITS: usize = 15;

/// Where in a chunked body the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunked {
    /// At a size line.
    Size,
    /// In a chunk's data, so many bytes before its end.
    Data(u64),
    /// At the CRLF after a chunk's data.
    DataEnd,
    /// In the trailer section, of which so many bytes have passed.
    Trailers(usize),
    /// Behind the body.
    Done,
}

impl Chunked {
    /// How many of the first bytes of `bytes` are valid here, and where that leads. Zero means that more is needed.
    ///
    /// # Errors
    /// The rule that they break.
    pub fn advance(self, bytes: &[u8], limits: &Limits) -> Result<(usize, Self), Refusal> {
        match self {
            Self::Size => size(bytes),
            Self::Data(left) => {
                let take = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let left = left.saturating_sub(u64::try_from(take).unwrap_or(u64::MAX));
                Ok((
                    take,
                    if left == 0 {
                        Self::DataEnd
                    } else {
                        Self::Data(left)
                    },
                ))
            }
            Self::DataEnd => match bytes {
                [] | [b'\r'] => Ok((0, self)),
                [b'\r', b'\n', ..] => Ok((2, Self::Size)),
                _ => Err(Refusal::Chunk),
            },
            Self::Trailers(passed) => trailer(bytes, passed, limits),
            Self::Done => Ok((0, self)),
        }
    }
}

fn size(bytes: &[u8]) -> Result<(usize, Chunked), Refusal> {
    let digits = bytes.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    if digits > MAX_SIZE_DIGITS {
        return Err(Refusal::Chunk);
    }
    let (number, rest) = bytes.split_at_checked(digits).unwrap_or_default();
    match rest {
        [] | [b'\r'] if digits > 0 || bytes.is_empty() => Ok((0, Chunked::Size)),
        [b'\r', b'\n', ..] if number == b"0" => Ok((3, Chunked::Trailers(0))),
        [b'\r', b'\n', ..] if digits > 0 && !number.starts_with(b"0") => {
            let value = number
                .iter()
                .filter_map(|digit| char::from(*digit).to_digit(16))
                .fold(0_u64, |sum, digit| sum << 4 | u64::from(digit));
            Ok((digits.saturating_add(2), Chunked::Data(value)))
        }
        _ => Err(Refusal::Chunk),
    }
}

fn trailer(bytes: &[u8], passed: usize, limits: &Limits) -> Result<(usize, Chunked), Refusal> {
    let Some(end) = memchr::memchr2(b'\r', b'\n', bytes) else {
        let too_long = passed.saturating_add(bytes.len()) > limits.trailer_bytes;
        return if too_long {
            Err(Refusal::Trailer)
        } else {
            Ok((0, Chunked::Trailers(passed)))
        };
    };
    let (line, rest) = bytes.split_at_checked(end).unwrap_or_default();
    match rest {
        [b'\r'] => return Ok((0, Chunked::Trailers(passed))),
        [b'\r', b'\n', ..] => {}
        _ => return Err(Refusal::LineEnding),
    }
    let used = end.saturating_add(2);
    if line.is_empty() {
        return Ok((used, Chunked::Done));
    }
    let passed = passed.saturating_add(used);
    if passed > limits.trailer_bytes {
        return Err(Refusal::Trailer);
    }
    let (name, _value) = field(line)?;
    if is_forbidden_trailer(name) {
        return Err(Refusal::Trailer);
    }
    Ok((used, Chunked::Trailers(passed)))
}

/// What RFC 9110, section 6.5.1, keeps out of trailers, and what would act like it: framing, routing, authentication,
/// modifiers, and what describes the content.
pub(crate) fn is_forbidden_trailer(name: &[u8]) -> bool {
    const EXACT: [&str; 27] = [
        "age",
        "authorization",
        "cache-control",
        "connection",
        "cookie",
        "date",
        "expect",
        "expires",
        "forwarded",
        "host",
        "keep-alive",
        "location",
        "max-forwards",
        "method",
        "pragma",
        "proxy-connection",
        "range",
        "referer",
        "retry-after",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "transfer_encoding",
        "upgrade",
        "vary",
        "warning",
    ];
    const PREFIX: [&str; 8] = [
        "content-",
        "content_",
        "if-",
        "proxy-",
        "x-forwarded",
        "x-http-method",
        "x-method",
        "www-authenticate",
    ];
    let starts = |prefix: &&str| {
        name.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    EXACT
        .iter()
        .any(|exact| name.eq_ignore_ascii_case(exact.as_bytes()))
        || PREFIX.iter().any(starts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds `bytes` in pieces of `step`; how many were accepted, or the refusal.
    fn run(bytes: &[u8], step: usize) -> Result<(usize, Chunked), Refusal> {
        let (mut state, mut at, mut seen) = (Chunked::Size, 0, 0);
        loop {
            let (used, next) = state.advance(&bytes[at..seen], &Limits::default())?;
            at += used;
            if next == Chunked::Done || (used == 0 && next == state && seen == bytes.len()) {
                return Ok((at, next));
            }
            if used == 0 && next == state {
                seen = (seen + step).min(bytes.len());
            }
            state = next;
        }
    }

    #[test]
    fn accepts_the_plain_form_however_it_is_split() {
        for text in [
            "0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "a\r\n0123456789\r\n1\r\nx\r\n0\r\nx-checksum: abc\r\n\r\n",
            "A\r\n0123456789\r\n0\r\ngrpc-status: 0\r\nx: y\r\n\r\n",
        ] {
            for step in 1..=text.len() {
                let with_next = format!("{text}GET / HTTP/1.1\r\n");
                assert_eq!(
                    run(with_next.as_bytes(), step),
                    Ok((text.len(), Chunked::Done)),
                    "{text:?} by {step}"
                );
            }
        }
    }

    #[test]
    fn refuses_every_other_form() {
        let rows = [
            ("5;ext=1\r\nhello\r\n0\r\n\r\n", Refusal::Chunk),
            ("5 \r\nhello\r\n0\r\n\r\n", Refusal::Chunk),
            (" 5\r\nhello\r\n0\r\n\r\n", Refusal::Chunk),
            ("0x5\r\nhello\r\n0\r\n\r\n", Refusal::Chunk),
            ("+5\r\nhello\r\n0\r\n\r\n", Refusal::Chunk),
            ("-5\r\nhello\r\n0\r\n\r\n", Refusal::Chunk),
            ("05\r\nhello\r\n0\r\n\r\n", Refusal::Chunk),
            ("\r\nhello\r\n0\r\n\r\n", Refusal::Chunk),
            ("5\nhello\r\n0\r\n\r\n", Refusal::Chunk),
            ("5\rhello\r\n0\r\n\r\n", Refusal::Chunk),
            ("5\r\nhello\n0\r\n\r\n", Refusal::Chunk),
            ("5\r\nhelloX\r\n0\r\n\r\n", Refusal::Chunk),
            ("5\r\nhello0\r\n\r\n", Refusal::Chunk),
            ("00\r\n\r\n", Refusal::Chunk),
            ("ffffffffffffffff\r\nx", Refusal::Chunk),
            ("10000000000000005\r\nhello", Refusal::Chunk),
            ("0\r\n\n", Refusal::LineEnding),
            ("0\r\nx: y\n\r\n", Refusal::LineEnding),
            ("0\r\nx: y\rz\r\n\r\n", Refusal::LineEnding),
            ("0\r\n x: y\r\n\r\n", Refusal::Fold),
            ("0\r\nx : y\r\n\r\n", Refusal::SpaceBeforeColon),
            ("0\r\nx: \0\r\n\r\n", Refusal::Ctl),
            ("0\r\nContent-Length: 5\r\n\r\n", Refusal::Trailer),
            ("0\r\nhost: a.test\r\n\r\n", Refusal::Trailer),
            ("0\r\nAuthorization: x\r\n\r\n", Refusal::Trailer),
            ("0\r\nTransfer-Encoding: chunked\r\n\r\n", Refusal::Trailer),
            ("0\r\nX-HTTP-Method-Override: PUT\r\n\r\n", Refusal::Trailer),
        ];
        for (text, refusal) in rows {
            for step in [1, 2, text.len()] {
                assert_eq!(
                    run(text.as_bytes(), step).err(),
                    Some(refusal),
                    "{text:?} by {step}"
                );
            }
        }
    }

    #[test]
    fn a_trailer_section_has_a_limit() {
        let limit = Limits::default().trailer_bytes;
        let at = format!("0\r\nx: {}\r\n\r\n", "y".repeat(limit - 5));
        assert!(run(at.as_bytes(), 4096).is_ok());
        let over = format!("0\r\nx: {}\r\n\r\n", "y".repeat(limit - 4));
        assert_eq!(run(over.as_bytes(), 4096).err(), Some(Refusal::Trailer));
    }

    proptest! {
        #[test]
        fn the_answer_does_not_depend_on_how_it_is_split(text in "[0-9a-f\r\nx:; ]{0,40}", step in 1_usize..8) {
            let whole = run(text.as_bytes(), text.len().max(1));
            let split = run(text.as_bytes(), step);
            prop_assert_eq!(whole.is_err(), split.is_err());
            if whole.is_ok() {
                prop_assert_eq!(whole, split);
            }
        }
    }
}

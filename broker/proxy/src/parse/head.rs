//! The head of an HTTP/1 request, read more strictly than RFC 9112 asks for.
//!
//! ```text
//! METHOD SP target SP HTTP/1.(0|1) CRLF
//! *( token ":" OWS printable-ascii OWS CRLF )
//! CRLF
//! ```
//!
//! Nothing is normalised: a head passes as it stands, or it is refused. What comes out is only how the message is
//! framed and whether it wants to become a WebSocket.

use crate::limits::Limits;
use crate::parse::refusal::Refusal;

/// How the body that follows a head is framed (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body, or `Content-Length: 0`.
    None,
    /// So many bytes.
    Length(u64),
    /// Chunks.
    Chunked,
}

/// What the framing layer must know of a valid head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// How the body is framed.
    pub framing: Framing,
    /// Whether it asks for a WebSocket: what follows is not HTTP if that is granted.
    pub websocket: bool,
}

/// Digits of the longest acceptable length: 10^18 fits every signed 64-bit parser.
const MAX_LENGTH_DIGITS: usize = 18;
/// The longest method, in bytes.
const MAX_METHOD_BYTES: usize = 32;

#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says of one field whether it was there"
)]
struct Seen {
    length: Option<u64>,
    chunked: bool,
    host: bool,
    connection_upgrade: bool,
    upgrade: bool,
    expect: bool,
}

/// Reads a whole head, `bytes` ending with the empty line.
///
/// # Errors
/// The first rule that it breaks.
pub fn read(bytes: &[u8], limits: &Limits) -> Result<Head, Refusal> {
    if bytes.len() > limits.head_bytes {
        return Err(Refusal::HeaderLimit);
    }
    let mut lines = Lines(bytes);
    let (method, http11) = request_line(lines.next().ok_or(Refusal::LineEnding)??, limits)?;
    let mut seen = Seen::default();
    let mut fields = 0_usize;
    for line in lines {
        let line = line?;
        if line.is_empty() {
            return conclude(&seen, method, http11, limits);
        }
        fields = fields.saturating_add(1);
        if fields > limits.header_fields {
            return Err(Refusal::HeaderLimit);
        }
        let (name, value) = field(line)?;
        seen.note(name, value, http11)?;
    }
    Err(Refusal::LineEnding)
}

/// Lines that end with CRLF, without it. A LF without CR, or a CR without LF, is an error.
pub(crate) struct Lines<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = Result<&'a [u8], Refusal>;

    fn next(&mut self) -> Option<Self::Item> {
        let end = memchr::memchr2(b'\r', b'\n', self.0)?;
        let (line, rest) = self.0.split_at_checked(end)?;
        let Some(rest) = rest.strip_prefix(b"\r\n") else {
            self.0 = &[];
            return Some(Err(Refusal::LineEnding));
        };
        self.0 = rest;
        Some(Ok(line))
    }
}

fn request_line<'a>(line: &'a [u8], limits: &Limits) -> Result<(&'a [u8], bool), Refusal> {
    if line.len() > limits.request_line_bytes {
        return Err(Refusal::HeaderLimit);
    }
    let mut words = line.split(|b| *b == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(if line.contains(&0) {
            Refusal::Ctl
        } else {
            Refusal::Target
        });
    };
    if line.starts_with(b"PRI * ") || line.starts_with(b"PROXY ") {
        return Err(Refusal::NotHttp);
    }
    check_method(method)?;
    if let Some(bad) = target.iter().find(|b| !(0x21..=0x7e).contains(*b)) {
        return Err(if bad.is_ascii_control() {
            Refusal::Ctl
        } else {
            Refusal::Target
        });
    }
    let absolute = target.starts_with(b"http://") || target.starts_with(b"https://");
    if !(target.starts_with(b"/") || absolute) || target.contains(&b'#') {
        return Err(Refusal::Target);
    }
    match version {
        b"HTTP/1.1" => Ok((method, true)),
        b"HTTP/1.0" => Ok((method, false)),
        _ => Err(Refusal::Version),
    }
}

/// A method is an upper-case word. `CONNECT` would make a tunnel; `TRACE` and `TRACK` echo what was injected.
pub(crate) fn check_method(method: &[u8]) -> Result<(), Refusal> {
    let shape = method.first().is_some_and(u8::is_ascii_uppercase)
        && method.len() <= MAX_METHOD_BYTES
        && method.iter().all(|b| b.is_ascii_uppercase() || *b == b'-');
    if !shape || matches!(method, b"CONNECT" | b"TRACE" | b"TRACK" | b"DEBUG" | b"PRI") {
        return Err(Refusal::Method);
    }
    Ok(())
}

/// Splits a header or trailer line. The value comes with its white space.
pub(crate) fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Err(Refusal::Fold);
    }
    let colon = memchr::memchr(b':', line).ok_or(Refusal::HeaderName)?;
    let (name, rest) = line.split_at_checked(colon).ok_or(Refusal::HeaderName)?;
    let value = rest.strip_prefix(b":").unwrap_or_default();
    if matches!(name.last(), Some(b' ' | b'\t')) {
        return Err(Refusal::SpaceBeforeColon);
    }
    if name.is_empty() || !name.iter().all(|b| is_token(*b)) {
        let control = name.iter().any(u8::is_ascii_control);
        return Err(if control {
            Refusal::Ctl
        } else {
            Refusal::HeaderName
        });
    }
    if let Some(bad) = value.iter().find(|b| !matches!(b, b'\t' | 0x20..=0x7e)) {
        return Err(if bad.is_ascii_control() {
            Refusal::Ctl
        } else {
            Refusal::HeaderValue
        });
    }
    Ok((name, value))
}

impl Seen {
    fn note(&mut self, name: &[u8], value: &[u8], http11: bool) -> Result<(), Refusal> {
        // Only a handful of names matter here, and their lengths tell most others apart.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                let twice = std::mem::replace(&mut self.host, true);
                if twice || value.trim_ascii().is_empty() {
                    return Err(Refusal::Host);
                }
            }
            6 if name.eq_ignore_ascii_case(b"expect") => {
                let met = value.trim_ascii().eq_ignore_ascii_case(b"100-continue");
                if !met || !http11 || std::mem::replace(&mut self.expect, true) {
                    return Err(Refusal::Expect);
                }
            }
            7 if name.eq_ignore_ascii_case(b"upgrade") => {
                let websocket = value.trim_ascii().eq_ignore_ascii_case(b"websocket");
                if !websocket || std::mem::replace(&mut self.upgrade, true) {
                    return Err(Refusal::Upgrade);
                }
            }
            10 if name.eq_ignore_ascii_case(b"connection") => {
                self.connection_upgrade |= value
                    .split(|b| *b == b',')
                    .any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade"));
            }
            14 if is_spelt(name, b"content-length") => {
                if self.chunked {
                    return Err(Refusal::ClTe);
                }
                if self.length.is_some() || name.contains(&b'_') {
                    return Err(Refusal::Cl);
                }
                self.length = Some(length(value)?);
            }
            14 if name.eq_ignore_ascii_case(b"http2-settings") => return Err(Refusal::Upgrade),
            17 if is_spelt(name, b"transfer-encoding") => {
                if self.length.is_some() {
                    return Err(Refusal::ClTe);
                }
                if self.chunked || !http11 || name.contains(&b'_') || one_space(value) != b"chunked" {
                    return Err(Refusal::Te);
                }
                self.chunked = true;
            }
            _ => {}
        }
        Ok(())
    }
}

fn conclude(seen: &Seen, method: &[u8], http11: bool, limits: &Limits) -> Result<Head, Refusal> {
    if !seen.host {
        return Err(Refusal::Host);
    }
    let framing = match (seen.chunked, seen.length) {
        (true, _) => Framing::Chunked,
        (false, None | Some(0)) => Framing::None,
        (false, Some(bytes)) => Framing::Length(bytes),
    };
    if framing != Framing::None && !limits.may_have_body(method) {
        return Err(Refusal::Body);
    }
    if seen.upgrade {
        let possible = http11 && seen.connection_upgrade && method == b"GET" && framing == Framing::None;
        if !possible {
            return Err(Refusal::Upgrade);
        }
    }
    Ok(Head {
        framing,
        websocket: seen.upgrade,
    })
}

/// Some origins read an underscore as a hyphen.
fn is_spelt(name: &[u8], expected: &[u8]) -> bool {
    name.len() == expected.len()
        && name
            .iter()
            .zip(expected)
            .all(|(got, want)| got.eq_ignore_ascii_case(want) || (*got == b'_' && *want == b'-'))
}

/// A framing value stands alone: one space before it at most, and nothing after.
fn one_space(value: &[u8]) -> &[u8] {
    value.strip_prefix(b" ").unwrap_or(value)
}

fn length(value: &[u8]) -> Result<u64, Refusal> {
    let digits = one_space(value);
    let plain = !digits.is_empty()
        && digits.len() <= MAX_LENGTH_DIGITS
        && digits.iter().all(u8::is_ascii_digit)
        && (digits == b"0" || !digits.starts_with(b"0"));
    if !plain {
        return Err(Refusal::Cl);
    }
    Ok(digits.iter().fold(0_u64, |sum, digit| {
        sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    }))
}

/// `tchar` (RFC 9110, section 5.6.2).
pub(crate) const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

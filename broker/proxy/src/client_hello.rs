//! Reads a ClientHello strictly, before rustls sees it.
//!
//! rustls takes a host name that is an address literal for no name at all, and does not say whether Encrypted
//! ClientHello was offered. Both matter here, so the hello is reassembled and its extensions are read once, by rules
//! that leave no choice; rustls then reads the same bytes, and what it found must agree.
//!
//! ```text
//!  record (RFC 8446, section 5.1)     u8 type = 22, u8 3, u8 any, u16 length, fragment
//!  handshake (section 4)              u8 type = 1, u24 length, body; over as many records as the client likes
//!  ClientHello (section 4.1.2)        u16 version, random[32], u8+session id, u16+cipher suites,
//!                                     u8+compression methods, u16+extensions
//!  extension (section 4.2)            u16 type, u16+data
//!  server_name (RFC 6066, section 3)  u16+list of { u8 type = 0, u16+name }
//! ```

use thiserror::Error;
use wallgate_types::authority::{AuthorityError, Name};

use crate::edge_limits::{MAX_CLIENT_HELLO_BYTES, MAX_CLIENT_HELLO_WIRE_BYTES};

const RECORD_HANDSHAKE: u8 = 22;
const RECORD_HEADER_BYTES: usize = 5;
const MAX_RECORD_BYTES: usize = 1 << 14;
const HANDSHAKE_CLIENT_HELLO: u8 = 1;
const HANDSHAKE_HEADER_BYTES: usize = 4;
const EXTENSION_SERVER_NAME: u16 = 0;
const EXTENSION_SUPPORTED_VERSIONS: u16 = 43;
const EXTENSION_ECH: u16 = 0xfe0d;
const NAME_TYPE_HOST: u8 = 0;
const TLS12: u16 = 0x0303;
const TLS13: u16 = 0x0304;

/// Why bytes are no ClientHello that we go on with.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HelloError {
    /// Not a handshake record, not a ClientHello, or one that contradicts itself.
    #[error("the ClientHello is malformed")]
    Malformed,
    /// Larger than [`MAX_CLIENT_HELLO_BYTES`], or in more records than fit [`MAX_CLIENT_HELLO_WIRE_BYTES`].
    #[error("the ClientHello is too long")]
    TooLong,
    /// The same extension twice (RFC 8446, section 4.2, forbids it).
    #[error("an extension appears twice")]
    DuplicateExtension,
    /// Neither TLS 1.2 nor TLS 1.3.
    #[error("neither TLS 1.2 nor TLS 1.3 is offered")]
    Version,
    /// The server name is none: empty, twice, with a trailing dot, an address, or not a name at all.
    #[error("the server name is unusable: {0}")]
    ServerName(BadName),
}

/// What is wrong with a server name.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BadName {
    /// An empty list, or a name of another type than `host_name`.
    #[error("there is none in the list")]
    Empty,
    /// More than one.
    #[error("there is more than one")]
    Several,
    /// RFC 6066 wants the name without its trailing dot.
    #[error("it has a trailing dot")]
    TrailingDot,
    /// RFC 6066 forbids IPv4 and IPv6 literals.
    #[error("it is an address")]
    Address,
    /// The one parser of names refuses it.
    #[error("{0}")]
    Name(AuthorityError),
}

/// What a ClientHello says, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The server's canonical name, if one is given.
    pub server_name: Option<Name>,
    /// Whether Encrypted ClientHello was offered, in earnest or as GREASE: from here the two look alike.
    pub ech_offered: bool,
}

/// How far a prefix of a connection gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It could still become a ClientHello, but not with fewer than this many bytes more.
    ///
    /// Whoever waits for them before reading again does not read a hello anew for each byte that dribbles in.
    NeedMore {
        /// At least 1.
        at_least: usize,
    },
    /// It holds a whole one.
    Complete(ClientHello),
}

/// Reads the first bytes of a connection that began like TLS.
///
/// # Errors
/// [`HelloError`], as soon as it is certain that no further byte can help.
pub fn read(wire: &[u8]) -> Result<Progress, HelloError> {
    match reassemble(wire)? {
        Reassembled::Message(message) => parse(&message).map(Progress::Complete),
        Reassembled::Partial { at_least } => {
            if wire.len().saturating_add(at_least) > MAX_CLIENT_HELLO_WIRE_BYTES {
                return Err(HelloError::TooLong);
            }
            Ok(Progress::NeedMore { at_least })
        }
    }
}

enum Reassembled {
    Message(Vec<u8>),
    Partial { at_least: usize },
}

/// The body of the first handshake message, once all of it is there.
fn reassemble(mut wire: &[u8]) -> Result<Reassembled, HelloError> {
    let mut message = Vec::new();
    loop {
        let Some((header, rest)) = wire.split_first_chunk::<RECORD_HEADER_BYTES>() else {
            check_header_prefix(wire)?;
            let header = RECORD_HEADER_BYTES.saturating_sub(wire.len());
            let at_least = header.saturating_add(missing(&message)?);
            return Ok(Reassembled::Partial { at_least });
        };
        let [kind, major, _, high, low] = *header;
        let length = usize::from(u16::from_be_bytes([high, low]));
        // A handshake record is never empty (RFC 8446, section 5.1).
        if kind != RECORD_HANDSHAKE || major != 3 || length == 0 || length > MAX_RECORD_BYTES {
            return Err(HelloError::Malformed);
        }
        let (fragment, after) = rest.split_at_checked(length).unwrap_or((rest, &[]));
        message.extend_from_slice(fragment);
        let missing = missing(&message)?;
        let to_come = length.saturating_sub(fragment.len());
        // A client says nothing more in plaintext before it hears from us, so the last record ends with the message.
        if message.len() >= HANDSHAKE_HEADER_BYTES && to_come > missing {
            return Err(HelloError::Malformed);
        }
        if missing == 0 {
            let body = message.get(HANDSHAKE_HEADER_BYTES..).unwrap_or_default();
            return Ok(Reassembled::Message(body.to_vec()));
        }
        if fragment.len() < length {
            return Ok(Reassembled::Partial { at_least: missing });
        }
        wire = after;
    }
}

fn check_header_prefix(prefix: &[u8]) -> Result<(), HelloError> {
    let plausible = match prefix {
        [] => true,
        [kind] => *kind == RECORD_HANDSHAKE,
        [kind, major, ..] => *kind == RECORD_HANDSHAKE && *major == 3,
    };
    if plausible {
        Ok(())
    } else {
        Err(HelloError::Malformed)
    }
}

/// How many bytes of the message are still to come, as far as is known; 0 when it is whole.
fn missing(message: &[u8]) -> Result<usize, HelloError> {
    match message {
        [kind, ..] if *kind != HANDSHAKE_CLIENT_HELLO => Err(HelloError::Malformed),
        [_, high, middle, low, body @ ..] => {
            let length = u32::from_be_bytes([0, *high, *middle, *low]);
            let length = usize::try_from(length).or(Err(HelloError::TooLong))?;
            if length > MAX_CLIENT_HELLO_BYTES {
                return Err(HelloError::TooLong);
            }
            length.checked_sub(body.len()).ok_or(HelloError::Malformed)
        }
        _ => Ok(HANDSHAKE_HEADER_BYTES.saturating_sub(message.len())),
    }
}

fn parse(mut body: &[u8]) -> Result<ClientHello, HelloError> {
    let legacy_version = take_u16(&mut body)?;
    take(&mut body, 32)?;
    let session_id = take_prefixed_u8(&mut body)?;
    let suites = take_prefixed_u16(&mut body)?;
    let compressions = take_prefixed_u8(&mut body)?;
    if session_id.len() > 32 || suites.is_empty() || suites.len() % 2 != 0 || compressions.is_empty() {
        return Err(HelloError::Malformed);
    }
    let mut hello = ClientHello {
        server_name: None,
        ech_offered: false,
    };
    let mut versions = None;
    if !body.is_empty() {
        let mut extensions = take_prefixed_u16(&mut body)?;
        if !body.is_empty() {
            return Err(HelloError::Malformed);
        }
        let mut seen = std::collections::HashSet::new();
        while !extensions.is_empty() {
            let kind = take_u16(&mut extensions)?;
            let data = take_prefixed_u16(&mut extensions)?;
            if !seen.insert(kind) {
                return Err(HelloError::DuplicateExtension);
            }
            match kind {
                EXTENSION_SERVER_NAME => hello.server_name = Some(server_name(data)?),
                EXTENSION_SUPPORTED_VERSIONS => versions = Some(data),
                EXTENSION_ECH => hello.ech_offered = true,
                _ => {}
            }
        }
    }
    if !offers_modern(legacy_version, versions)? {
        return Err(HelloError::Version);
    }
    Ok(hello)
}

/// RFC 8446, section 4.2.1: with `supported_versions`, the legacy version says nothing.
fn offers_modern(legacy_version: u16, versions: Option<&[u8]>) -> Result<bool, HelloError> {
    let Some(mut data) = versions else {
        return Ok(legacy_version >= TLS12);
    };
    let list = take_prefixed_u8(&mut data)?;
    let (pairs, odd) = list.as_chunks::<2>();
    if !data.is_empty() || !odd.is_empty() {
        return Err(HelloError::Malformed);
    }
    Ok(pairs
        .iter()
        .map(|pair| u16::from_be_bytes(*pair))
        .any(|version| version == TLS12 || version == TLS13))
}

fn server_name(mut data: &[u8]) -> Result<Name, HelloError> {
    let mut list = take_prefixed_u16(&mut data)?;
    if !data.is_empty() {
        return Err(HelloError::Malformed);
    }
    if list.is_empty() {
        return Err(HelloError::ServerName(BadName::Empty));
    }
    let kind = take(&mut list, 1)?;
    let bytes = take_prefixed_u16(&mut list)?;
    if !list.is_empty() {
        return Err(HelloError::ServerName(BadName::Several));
    }
    if kind != [NAME_TYPE_HOST] || bytes.is_empty() {
        return Err(HelloError::ServerName(BadName::Empty));
    }
    check_name(bytes).map_err(HelloError::ServerName)
}

fn check_name(bytes: &[u8]) -> Result<Name, BadName> {
    let text = std::str::from_utf8(bytes).or(Err(BadName::Name(AuthorityError::Character)))?;
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text);
    if inner.parse::<std::net::IpAddr>().is_ok() {
        return Err(BadName::Address);
    }
    if text.ends_with('.') {
        return Err(BadName::TrailingDot);
    }
    Name::parse(text).map_err(BadName::Name)
}

fn take<'a>(input: &mut &'a [u8], length: usize) -> Result<&'a [u8], HelloError> {
    let (head, rest) = input.split_at_checked(length).ok_or(HelloError::Malformed)?;
    *input = rest;
    Ok(head)
}

fn take_u16(input: &mut &[u8]) -> Result<u16, HelloError> {
    let (bytes, rest) = input.split_first_chunk::<2>().ok_or(HelloError::Malformed)?;
    *input = rest;
    Ok(u16::from_be_bytes(*bytes))
}

fn take_prefixed_u8<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], HelloError> {
    let (length, rest) = input.split_first().ok_or(HelloError::Malformed)?;
    *input = rest;
    take(input, usize::from(*length))
}

fn take_prefixed_u16<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], HelloError> {
    let length = take_u16(input)?;
    take(input, usize::from(length))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefixed_u16(bytes: &[u8]) -> Vec<u8> {
        let mut out = u16::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
        out.extend(bytes);
        out
    }

    fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
        let mut out = kind.to_be_bytes().to_vec();
        out.extend(prefixed_u16(data));
        out
    }

    /// A `server_name` extension with these names of type `host_name`.
    pub(crate) fn sni(names: &[&[u8]]) -> Vec<u8> {
        let list: Vec<u8> = names
            .iter()
            .flat_map(|name| [vec![NAME_TYPE_HOST], prefixed_u16(name)].concat())
            .collect();
        extension(EXTENSION_SERVER_NAME, &prefixed_u16(&list))
    }

    /// A whole ClientHello in records of at most `record` bytes.
    pub(crate) fn hello(extensions: &[Vec<u8>], record: usize) -> Vec<u8> {
        let mut body = TLS12.to_be_bytes().to_vec();
        body.extend([9; 32]);
        body.push(0);
        body.extend(prefixed_u16(&[0x13, 0x01]));
        body.extend([1, 0]);
        body.extend(prefixed_u16(&extensions.concat()));
        let mut message = vec![HANDSHAKE_CLIENT_HELLO];
        message.extend(&u32::try_from(body.len()).unwrap().to_be_bytes()[1..]);
        message.extend(body);
        let records = message.chunks(record).flat_map(|chunk| {
            let mut out = vec![RECORD_HANDSHAKE, 3, 1];
            out.extend(prefixed_u16(chunk));
            out
        });
        records.collect()
    }

    #[track_caller]
    fn check(extensions: &[Vec<u8>], expected: Result<Option<&str>, HelloError>) {
        let got = read(&hello(extensions, 1 << 14)).map(|progress| match progress {
            Progress::NeedMore { .. } => panic!("a whole hello is not enough"),
            Progress::Complete(hello) => hello.server_name.map(|name| name.to_string()),
        });
        assert_eq!(
            got.as_ref().map(Option::as_deref),
            expected.as_ref().map(|name| *name)
        );
    }

    #[test]
    fn a_server_name_is_one_canonical_name_or_the_hello_is_refused() {
        let bad = |name| Err(HelloError::ServerName(name));
        check(&[], Ok(None));
        check(&[sni(&[b"a.test"])], Ok(Some("a.test")));
        check(&[sni(&[b"A.Test"])], Ok(Some("a.test")));
        check(&[sni(&[])], bad(BadName::Empty));
        check(&[sni(&[b""])], bad(BadName::Empty));
        check(&[sni(&[b"a.test", b"b.test"])], bad(BadName::Several));
        check(
            &[sni(&[b"a.test"]), sni(&[b"b.test"])],
            Err(HelloError::DuplicateExtension),
        );
        check(&[sni(&[b"a.test."])], bad(BadName::TrailingDot));
        check(&[sni(&[b"127.0.0.1"])], bad(BadName::Address));
        check(&[sni(&[b"::1"])], bad(BadName::Address));
        check(&[sni(&[b"[::1]"])], bad(BadName::Address));
        for (name, error) in [
            (&b"127.1"[..], AuthorityError::NumericName),
            (b"a.test\0.b.test", AuthorityError::Character),
            (b"a_b.test", AuthorityError::Character),
            (b"a.test:443", AuthorityError::Character),
            (b"\xff\xfe", AuthorityError::Character),
            (b"a..test", AuthorityError::Label),
            (&[b'a'; 300], AuthorityError::TooLong),
        ] {
            check(&[sni(&[name])], bad(BadName::Name(error)));
        }
        let other_type = extension(EXTENSION_SERVER_NAME, &prefixed_u16(&[7, 0, 1, b'a']));
        check(&[other_type], bad(BadName::Empty));
        check(
            &[extension(EXTENSION_SERVER_NAME, &[])],
            Err(HelloError::Malformed),
        );
    }

    #[test]
    fn only_tls_1_2_and_1_3_are_spoken() {
        check(&[extension(EXTENSION_SUPPORTED_VERSIONS, &[2, 3, 4])], Ok(None));
        check(
            &[extension(EXTENSION_SUPPORTED_VERSIONS, &[4, 0x7a, 0x7a, 3, 3])],
            Ok(None),
        );
        check(
            &[extension(EXTENSION_SUPPORTED_VERSIONS, &[4, 3, 1, 3, 2])],
            Err(HelloError::Version),
        );
        check(
            &[extension(EXTENSION_SUPPORTED_VERSIONS, &[3, 3, 4, 3])],
            Err(HelloError::Malformed),
        );
    }

    #[test]
    fn ech_is_noticed_and_its_outer_name_counts() {
        let wire = hello(
            &[sni(&[b"outer.test"]), extension(EXTENSION_ECH, &[0; 200])],
            1 << 14,
        );
        let Ok(Progress::Complete(hello)) = read(&wire) else {
            panic!("a hello with ECH is a hello");
        };
        assert!(hello.ech_offered);
        assert_eq!(hello.server_name, Name::parse("outer.test").ok());
    }

    #[test]
    fn is_reassembled_however_it_is_split() {
        let extensions = [sni(&[b"a.test"]), extension(0x4444, &[0; 1500])];
        for record in [1, 2, 3, 5, 100, 1000, 1 << 14] {
            let wire = hello(&extensions, record);
            for end in 0..wire.len() {
                let Ok(Progress::NeedMore { at_least }) = read(&wire[..end]) else {
                    panic!("{end} bytes in records of {record}");
                };
                assert!(
                    (1..=wire.len() - end).contains(&at_least),
                    "{end} bytes in records of {record}"
                );
            }
            assert!(
                matches!(read(&wire), Ok(Progress::Complete(_))),
                "records of {record}"
            );
        }
    }

    #[test]
    fn a_hello_that_is_too_long_is_refused_as_soon_as_it_says_so() {
        assert_eq!(read(&[22, 3, 1, 0, 4, 1, 1, 0, 1]), Err(HelloError::TooLong));
        assert!(read(&[22, 3, 1, 0, 4, 1, 1, 0, 0]).is_ok());
        let extensions = [extension(0x4444, &vec![0; 60_000])];
        let wire = hello(&extensions, 1);
        assert_eq!(
            read(&wire[..MAX_CLIENT_HELLO_WIRE_BYTES]),
            Err(HelloError::TooLong)
        );
    }

    #[test]
    fn what_is_no_hello_is_refused_at_its_first_wrong_byte() {
        for wire in [
            &b"\x15"[..],
            b"\x16\x02",
            b"\x16\x03\x01\x00\x00",
            b"\x16\x03\x01\x40\x01",
            b"\x16\x03\x01\x00\x01\x02",
            b"\x16\x03\x01\x00\x05\x01\x00\x00\x00\x00",
            b"\x16\x03\x01\x00\x05\x01\x00\x00\x00",
        ] {
            assert_eq!(read(wire), Err(HelloError::Malformed), "{wire:?}");
        }
        let mut trailing = hello(&[], 1 << 14);
        trailing.extend([23, 3, 3, 0, 1, 0]);
        assert!(
            matches!(read(&trailing), Ok(Progress::Complete(_))),
            "later records are not ours to read"
        );
    }

    proptest! {
        #[test]
        fn never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(read(&bytes));
            drop(parse(&bytes));
            if let Some(head) = bytes.first_chunk_mut::<6>() {
                head.copy_from_slice(&[22, 3, 1, 1, 0, 1]);
            }
            drop(read(&bytes));
        }
    }
}

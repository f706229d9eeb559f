//! Whom a request is for: the one strict parser of names (P3).
//!
//! DNS name, SNI, `Host`, `:authority`, certificate name, policy input and dialled name all become a [`Host`] here, or
//! the request is refused. There is exactly one spelling of each host, so equality is equality of meaning.
//!
//! - A name is LDH labels (RFC 5890, section 2.3.1) of 1 to 63 bytes, 253 bytes in all, lower-cased, without its one
//!   trailing dot. A label that begins with `xn--` must be a valid A-label that IDNA 2008 maps to itself (RFC 5891).
//! - A name whose last label is a number (`127.1`, `0x7f.1`, `2130706433`) is refused, since some resolver would read
//!   it as an address (WHATWG URL, "ends in a number"). Only a dotted quad is an IPv4 literal.
//! - An IPv6 literal stands in brackets and has no zone.
//! - Anything else, userinfo, percent signs, underscores, control bytes and all of Unicode included, is refused.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Serialize, Serializer};
use thiserror::Error;

/// The longest name, in bytes, without a trailing dot (RFC 1035, section 2.3.4, less the root and length bytes).
pub const MAX_NAME_BYTES: usize = 253;
/// The longest label, in bytes.
pub const MAX_LABEL_BYTES: usize = 63;

/// Why a text names no host or authority.
#[derive(Debug, Error, PartialEq, Eq, Clone, Copy)]
pub enum AuthorityError {
    /// Nothing there.
    #[error("the name is empty")]
    Empty,
    /// Longer than [`MAX_NAME_BYTES`].
    #[error("the name is longer than {MAX_NAME_BYTES} bytes")]
    TooLong,
    /// An empty label, or one longer than [`MAX_LABEL_BYTES`].
    #[error("a label is empty or longer than {MAX_LABEL_BYTES} bytes")]
    Label,
    /// A byte that is not a letter, digit, hyphen or dot, or a hyphen at a label's end.
    #[error("the name has a character that no host name has")]
    Character,
    /// `xn--` and something that is not an A-label, or a reserved `??--` label.
    #[error("the name has a label that is not valid IDNA")]
    Idna,
    /// The last label is a number, but the whole is no dotted quad.
    #[error("the name could be read as an address")]
    NumericName,
    /// Brackets around something that is no IPv6 address, or a zone.
    #[error("the bracketed literal is not an IPv6 address")]
    Ipv6,
    /// Not a number from 1 to 65535 in its shortest form.
    #[error("the port is not a number from 1 to 65535")]
    Port,
}

/// A host in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A DNS name.
    Name(Name),
    /// An IPv4 literal.
    V4(Ipv4Addr),
    /// An IPv6 literal.
    V6(Ipv6Addr),
}

/// A canonical DNS name: made only by this module's parser.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<str>);

impl Name {
    /// Parses a name as it stands in SNI, a DNS question or a certificate. Address literals are refused.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn parse(text: &str) -> Result<Self, AuthorityError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(AuthorityError::Empty);
        }
        if text.len() > MAX_NAME_BYTES {
            return Err(AuthorityError::TooLong);
        }
        let canonical = text.to_ascii_lowercase();
        canonical.split('.').try_for_each(check_label)?;
        if canonical.rsplit('.').next().is_some_and(is_number) {
            return Err(AuthorityError::NumericName);
        }
        Ok(Self(canonical.into_boxed_str()))
    }

    /// The name, lower case, without trailing dot.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_label(label: &str) -> Result<(), AuthorityError> {
    if label.is_empty() || label.len() > MAX_LABEL_BYTES {
        return Err(AuthorityError::Label);
    }
    if !label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        || label.starts_with('-')
        || label.ends_with('-')
    {
        return Err(AuthorityError::Character);
    }
    if label.as_bytes().get(2..4) == Some(b"--") {
        check_a_label(label)?;
    }
    Ok(())
}

/// RFC 5891, section 5.4: an A-label must decode, be valid, and encode back to itself.
fn check_a_label(label: &str) -> Result<(), AuthorityError> {
    if !label.starts_with("xn--") {
        return Err(AuthorityError::Idna);
    }
    let (unicode, valid) = idna::domain_to_unicode(label);
    if valid.is_err() || unicode.is_ascii() {
        return Err(AuthorityError::Idna);
    }
    match idna::domain_to_ascii_strict(&unicode) {
        Ok(encoded) if encoded == label => Ok(()),
        Ok(_) | Err(_) => Err(AuthorityError::Idna),
    }
}

/// Whether some resolver could read this label as a number (decimal, octal or hexadecimal).
fn is_number(label: &str) -> bool {
    let hexadecimal = label
        .strip_prefix("0x")
        .map(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    hexadecimal.unwrap_or_else(|| label.bytes().all(|b| b.is_ascii_digit()))
}

impl Host {
    /// Parses a host as it stands in a URL or `Host` header, without a port: a name, a dotted quad, or an IPv6 literal
    /// in brackets.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn parse(text: &str) -> Result<Self, AuthorityError> {
        if let Some(rest) = text.strip_prefix('[') {
            let literal = rest.strip_suffix(']').ok_or(AuthorityError::Ipv6)?;
            return literal.parse().map(Self::V6).or(Err(AuthorityError::Ipv6));
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::V4(address));
        }
        Name::parse(text).map(Self::Name)
    }

    /// Parses what an operator wrote, who may write Unicode: it is mapped by UTS #46 first, then parsed strictly.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn parse_unicode(text: &str) -> Result<Self, AuthorityError> {
        if text.is_ascii() {
            return Self::parse(text);
        }
        let ascii = idna::domain_to_ascii_strict(text).or(Err(AuthorityError::Idna))?;
        Self::parse(&ascii)
    }

    /// The literal address, if it is one.
    #[must_use]
    pub const fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Name(_) => None,
            Self::V4(address) => Some(IpAddr::V4(*address)),
            Self::V6(address) => Some(IpAddr::V6(*address)),
        }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::V4(v4),
            IpAddr::V6(v6) => Self::V6(v6),
        }
    }
}

impl From<Name> for Host {
    fn from(name: Name) -> Self {
        Self::Name(name)
    }
}

impl FromStr for Host {
    type Err = AuthorityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::V4(address) => address.fmt(f),
            Self::V6(address) => write!(f, "[{address}]"),
        }
    }
}

impl Serialize for Host {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A host and a port, in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Authority {
    host: Host,
    port: u16,
}

impl Authority {
    /// This host at this port.
    ///
    /// # Errors
    /// [`AuthorityError::Port`] for port 0.
    pub fn new(host: Host, port: u16) -> Result<Self, AuthorityError> {
        if port == 0 {
            return Err(AuthorityError::Port);
        }
        Ok(Self { host, port })
    }

    /// Parses `host` or `host:port`; without a port it is `default_port`.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn parse(text: &str, default_port: u16) -> Result<Self, AuthorityError> {
        let (host, port) = split_port(text);
        let port = port.map_or(Ok(default_port), parse_port)?;
        Self::new(Host::parse(host)?, port)
    }

    /// The host.
    #[must_use]
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// The port, never 0.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// How a client writes it when `default_port` goes without saying: `example.test`, `example.test:8443`.
    #[must_use]
    pub fn shortest(&self, default_port: u16) -> String {
        if self.port == default_port {
            self.host.to_string()
        } else {
            self.to_string()
        }
    }
}

/// Splits at the colon that begins a port: none inside an IPv6 literal's brackets.
fn split_port(text: &str) -> (&str, Option<&str>) {
    let after_literal = text.rfind(']').map_or(0, |end| end.saturating_add(1));
    let Some((_, tail)) = text.split_at_checked(after_literal) else {
        return (text, None);
    };
    match tail.find(':') {
        Some(colon) => {
            let (host, rest) = text.split_at(after_literal.saturating_add(colon));
            (host, rest.strip_prefix(':'))
        }
        None => (text, None),
    }
}

/// Digits only, no sign, no leading zero, 1 to 65535.
fn parse_port(text: &str) -> Result<u16, AuthorityError> {
    if text.starts_with('0') || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(AuthorityError::Port);
    }
    text.parse().or(Err(AuthorityError::Port))
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Serialize for Authority {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::AuthorityError as E;
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(input: &str, expected: Result<&str, E>) {
        let got = Authority::parse(input, 443).map(|authority| authority.to_string());
        assert_eq!(got.as_deref().map_err(|error| *error), expected, "{input:?}");
    }

    #[test]
    fn a_name_has_one_spelling() {
        check("example.test", Ok("example.test:443"));
        check("EXAMPLE.Test.", Ok("example.test:443"));
        check("example.test:8443", Ok("example.test:8443"));
        check("xn--bcher-kva.test", Ok("xn--bcher-kva.test:443"));
        check("XN--BCHER-KVA.test", Ok("xn--bcher-kva.test:443"));
        check("192.0.2.1", Ok("192.0.2.1:443"));
        check("[2001:DB8::1]:80", Ok("[2001:db8::1]:80"));
        check("1.example.test", Ok("1.example.test:443"));
    }

    #[test]
    fn refuses_what_two_parsers_could_read_differently() {
        let long = format!("{}.test", "a".repeat(64));
        let rows = [
            ("", E::Empty),
            (".", E::Empty),
            ("example.test..", E::Label),
            ("a..test", E::Label),
            (long.as_str(), E::Label),
            ("evil.test\0.allowed.test", E::Character),
            ("allowed.test%00", E::Character),
            ("allowed%2etest", E::Character),
            ("user@allowed.test", E::Character),
            ("allowed.test#@evil.test", E::Character),
            ("under_score.test", E::Character),
            ("-a.test", E::Character),
            ("a-.test", E::Character),
            ("a\u{3002}b.test", E::Character),
            ("al\u{ad}lowed.test", E::Character),
            ("bücher.test", E::Character),
            ("a b.test", E::Character),
            ("a.test\n", E::Character),
            ("[allowed.test]", E::Ipv6),
            ("[::1", E::Port),
            ("[fe80::1%eth0]", E::Ipv6),
            ("127.1", E::NumericName),
            ("2130706433", E::NumericName),
            ("0177.0.0.1", E::NumericName),
            ("0x7f.1", E::NumericName),
            ("127.0.0.0x1", E::NumericName),
            ("127.0.0.1.", E::NumericName),
            ("1.2.3.4.5", E::NumericName),
            ("a.0x", E::NumericName),
            ("xn--.test", E::Character),
            ("xn--a.test", E::Idna),
            ("ab--c.test", E::Idna),
            ("a.test:0", E::Port),
            ("a.test:", E::Port),
            ("a.test:+80", E::Port),
            ("a.test:080", E::Port),
            ("a.test:65536", E::Port),
            ("a.test:80:80", E::Port),
        ];
        for (input, error) in rows {
            check(input, Err(error));
        }
        check(
            &format!("{}.test", ["a".repeat(60).as_str(); 4].join(".")),
            Ok(&format!("{}.test:443", ["a".repeat(60).as_str(); 4].join("."))),
        );
        check(&["a".repeat(63).as_str(); 4].join("."), Err(E::TooLong));
    }

    #[test]
    fn an_operator_may_write_unicode() {
        assert_eq!(
            Host::parse_unicode("Bücher.test").map(|h| h.to_string()),
            Ok("xn--bcher-kva.test".into())
        );
        assert_eq!(Host::parse_unicode("a\u{0}ü.test"), Err(E::Idna));
    }

    proptest! {
        #[test]
        fn what_is_accepted_is_canonical_and_parses_to_itself(text in "[ -~]{0,40}") {
            if let Ok(authority) = Authority::parse(&text, 443) {
                let canonical = authority.to_string();
                prop_assert_eq!(Authority::parse(&canonical, 1).ok(), Some(authority));
            }
        }

        #[test]
        fn never_panics(text in any::<String>()) {
            drop(Authority::parse(&text, 443));
            drop(Host::parse_unicode(&text));
        }

        #[test]
        fn case_and_one_trailing_dot_do_not_matter(name in "[a-z]{1,8}(\\.[a-z][a-z0-9]{0,8}){0,3}") {
            let plain = Name::parse(&name);
            let shouted = format!("{}.", name.to_ascii_uppercase());
            prop_assert_eq!(Name::parse(&shouted), plain);
        }
    }
}

//! What a request would do, named by the grammar of the service that it is for (P8).
//!
//! A grammar is a table: (method, path, query keys, content type, small body) → a named operation with its package and
//! version. What no row matches is [`Operation::unknown`], and unknown counts as a write. The tables say what is *known*,
//! so a method, path, query key or media type that nobody thought of is never a read.
//!
//! Some traps that the tables are built around: npm sends its audit as a POST on every install, and git fetches by POST;
//! `GET /pkg?write=true` announces a write; an upload to PyPI is a POST to any path, told by its media type; a matrix
//! parameter or an encoded slash makes two servers see two paths; and a path or query that embeds an address makes a mirror
//! fetch it.

mod body;
pub mod canonical;
mod cargo;
mod git;
mod names;
mod npm;
mod pypi;
mod table;

pub(crate) use body::wanted as wanted_body;
pub(crate) use names::normalise_pypi;

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use thiserror::Error;
use wallgate_types::operation::{Action, Operation};
use wallgate_types::request::RequestFacts;

use table::Row;

/// The longest path that a grammar looks at, in bytes.
const MAX_PATH_BYTES: usize = 2048;
/// The most query parameters that a grammar looks at.
const MAX_QUERY_PAIRS: usize = 16;

/// Which grammar a service speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// An npm registry.
    Npm,
    /// A Python package index (PEP 503, PEP 691) with its files.
    Pypi,
    /// A Cargo registry: sparse index, downloads and web API.
    Cargo,
    /// Git over smart HTTP.
    Git,
    /// No grammar: every operation is unknown, and policy goes by host, method and path.
    None,
}

/// A profile that there is no grammar for.
#[derive(Debug, Error, PartialEq, Eq, Clone)]
#[error("`{0}` is no profile: npm, pypi, cargo, git or none")]
pub struct UnknownProfile(String);

impl Profile {
    /// The name in configuration, and policy's `operation.ecosystem`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Npm => "npm",
            Self::Pypi => "pypi",
            Self::Cargo => "cargo",
            Self::Git => "git",
            Self::None => "none",
        }
    }

    /// What a request is called that would make the service fetch an address of the caller's choice.
    const fn fetch_url(self) -> &'static str {
        match self {
            Self::Npm => "npm.fetch_url",
            Self::Pypi => "pypi.fetch_url",
            Self::Cargo => "cargo.fetch_url",
            Self::Git => "git.fetch_url",
            Self::None => "unknown",
        }
    }
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "npm" => Ok(Self::Npm),
            "pypi" => Ok(Self::Pypi),
            "cargo" => Ok(Self::Cargo),
            "git" => Ok(Self::Git),
            "none" => Ok(Self::None),
            other => Err(UnknownProfile(other.to_owned())),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The parts of a request that a grammar looks at.
#[derive(Clone, Copy, Debug)]
pub struct RequestShape<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// The canonical path, percent-encoded.
    pub path: &'a str,
    /// Its segments, percent-decoded; a trailing slash may or may not be an empty last one.
    pub segments: &'a [String],
    /// The query's keys and values, percent-decoded.
    pub query: &'a [(String, String)],
    /// `Content-Type`, as sent.
    pub content_type: Option<&'a str>,
    /// The body, when it was read. It may be gzip.
    pub body: Option<&'a [u8]>,
}

impl<'a> RequestShape<'a> {
    /// The shape of a parsed request, without its body.
    #[must_use]
    pub fn of(facts: &'a RequestFacts) -> Self {
        Self {
            method: &facts.method,
            path: &facts.path,
            segments: &facts.segments,
            query: &facts.query,
            content_type: facts.body.media_type.as_deref(),
            body: None,
        }
    }

    /// The same request as a service sees it that lives below `prefix` (`/repository/npm`); nothing when it is not below.
    #[must_use]
    pub fn below(&self, prefix: &str) -> Option<Self> {
        let prefix = prefix.trim_end_matches('/');
        let path = self.path.strip_prefix(prefix)?;
        if !path.starts_with('/') {
            return None;
        }
        let depth = prefix.split('/').skip(1).count();
        Some(Self {
            path,
            segments: self.segments.get(depth..)?,
            ..*self
        })
    }

    /// The media type without parameters, lower case.
    fn media_type(&self) -> Option<String> {
        let media_type = self.content_type?.split(';').next()?.trim();
        Some(media_type.to_ascii_lowercase())
    }
}

/// Names what a request would do. It never fails: what the profile's grammar does not know is unknown.
#[must_use]
pub fn classify(profile: Profile, shape: &RequestShape<'_>) -> Operation {
    let unknown = Operation::unknown(profile.as_str());
    if profile == Profile::None {
        return unknown;
    }
    if embeds_an_address(shape) {
        return Operation {
            action: Action::FetchUrl,
            name: profile.fetch_url(),
            ..unknown
        };
    }
    let Some(plain) = Plain::of(profile, shape) else {
        return unknown;
    };
    let operation = match profile {
        Profile::Npm => npm::classify(&plain),
        Profile::Pypi => pypi::classify(&plain),
        // A registry's index may also be a git repository.
        Profile::Cargo => cargo::classify(&plain).or_else(|| git::classify(&plain)),
        Profile::Git => git::classify(&plain),
        Profile::None => None,
    };
    operation.unwrap_or(unknown)
}

/// A request whose path can only be read in one way.
#[derive(Debug)]
struct Plain<'a> {
    method: &'a str,
    segments: Vec<String>,
    trailing_slash: bool,
    query: &'a [(String, String)],
    media_type: Option<String>,
    body: Option<&'a [u8]>,
}

impl<'a> Plain<'a> {
    fn of(profile: Profile, shape: &RequestShape<'a>) -> Option<Self> {
        let rest = shape.path.strip_prefix('/')?;
        if shape.path.len() > MAX_PATH_BYTES
            || shape.query.len() > MAX_QUERY_PAIRS
            || has_duplicates(shape.query)
            || !has_plain_bytes(rest)
        {
            return None;
        }
        let has_body = shape.body.is_some_and(|body| !body.is_empty());
        if has_body && matches!(shape.method, "GET" | "HEAD") {
            return None;
        }
        let (rest, trailing_slash) = match rest.strip_suffix('/') {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let mut segments = Vec::new();
        if !rest.is_empty() || trailing_slash {
            for raw in rest.split('/') {
                segments.push(decode(profile, raw)?);
            }
        }
        // What policy is shown must be what is classified.
        let told = shape
            .segments
            .strip_suffix(&[String::new()])
            .unwrap_or(shape.segments);
        if told != segments.as_slice() {
            return None;
        }
        Some(Self {
            method: shape.method,
            segments,
            trailing_slash,
            query: shape.query,
            media_type: shape.media_type(),
            body: shape.body,
        })
    }
}

fn has_duplicates(query: &[(String, String)]) -> bool {
    query
        .iter()
        .enumerate()
        .any(|(index, (key, _))| query.iter().take(index).any(|(earlier, _)| earlier == key))
}

/// RFC 3986 unreserved characters, the few others that package paths have, and well-formed escapes of what must be
/// escaped. A `;`, a backslash, a control byte, an escaped letter or dot is something that two servers may read differently.
fn has_plain_bytes(path: &str) -> bool {
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        let plain = match byte {
            b'%' => {
                let digits = [bytes.next(), bytes.next()].map(|b| b.and_then(|b| char::from(b).to_digit(16)));
                match digits {
                    [Some(high), Some(low)] => !is_plain(high * 16 + low),
                    _ => false,
                }
            }
            _ => is_plain(u32::from(byte)) || matches!(byte, b'/' | b'@' | b':' | b'+' | b'!' | b'='),
        };
        if !plain {
            return false;
        }
    }
    true
}

/// Unreserved (RFC 3986, section 2.3): these are the same escaped or not, so they are never escaped.
fn is_plain(code: u32) -> bool {
    u8::try_from(code)
        .is_ok_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~'))
}

/// One segment, decoded; none when it is empty, a dot segment, or has something in it that no name has.
fn decode(profile: Profile, raw: &str) -> Option<String> {
    let segment = percent_decode_str(raw).decode_utf8().ok()?;
    let forbidden = |c: char| c.is_control() || matches!(c, '\\' | '%' | ';' | '?' | '#' | ' ');
    if segment.is_empty() || segment == "." || segment == ".." || segment.contains(forbidden) {
        return None;
    }
    // An npm client escapes the slash of a scoped name, and nobody else's client escapes one.
    let scoped = profile == Profile::Npm && segment.starts_with('@') && segment.matches('/').count() == 1;
    if segment.contains('/') && !scoped {
        return None;
    }
    Some(segment.into_owned())
}

/// Schemes that a proxying mirror could be told to fetch by.
const SCHEMES: [&str; 8] = [
    "http:", "https:", "ftp:", "ftps:", "git:", "ssh:", "file:", "gopher:",
];

fn embeds_an_address(shape: &RequestShape<'_>) -> bool {
    let decoded = percent_decode_str(shape.path)
        .decode_utf8_lossy()
        .to_ascii_lowercase();
    let in_path = decoded.contains("://")
        || decoded
            .split('/')
            .any(|segment| SCHEMES.iter().any(|scheme| segment.starts_with(scheme)));
    in_path
        || shape.query.iter().any(|(key, value)| {
            [key, value].into_iter().any(|text| {
                let text = text.trim_start().to_ascii_lowercase();
                text.contains("://")
                    || text.starts_with("//")
                    || SCHEMES.iter().any(|scheme| text.starts_with(scheme))
            })
        })
}

/// The first row that matches.
fn find(ecosystem: &'static str, rows: &[Row], plain: &Plain<'_>, segments: &[String]) -> Option<Operation> {
    rows.iter()
        .find_map(|row| row.operation(ecosystem, plain, segments))
}

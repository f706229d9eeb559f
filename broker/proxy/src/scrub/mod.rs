//! The response without any injected value (P6).
//!
//! ```text
//!   upstream ─▶ status, fields ── masked ─────────────────────────────▶ sandbox
//!            ─▶ body ─▶ decode (gzip, deflate, br, zstd) ─▶ mask ─────▶ identity
//!            ─▶ trailers ── masked ───────────────────────────────────▶
//! ```
//!
//! What is looked for: each secret in its raw, base64 (every alignment, both alphabets, folded lines), hexadecimal,
//! UTF-16 and UTF-32 form, each character of it plain or escaped (percent, JSON, HTML; see [`escape`]), in whatever
//! pieces it comes. A mask has the length of what it covers, so Content-Length, ranges of a file format and gRPC frames
//! stay right.
//!
//! Decisions:
//! - Refused, since it cannot be looked into or shows a part at a time: an unknown or stacked content coding, messages
//!   that are compressed one by one (gRPC, Connect), a partial response (206), an upgrade (101). The request stage
//!   takes out beforehand what would ask for them.
//! - Not only what was injected into this request is looked for, but every value that is bound to the same host and
//!   known here, since what one request brings a later one may fetch.
//! - A secret is found only whole. A service that cuts, reverses or encrypts it on demand is for policy to keep away.
//!
//! Speed: bytes without a secret are searched with vector instructions and passed on without a copy.

mod body;
mod decode;
mod escape;
mod forms;
mod headers;
mod matcher;
mod stream;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, HeaderName, HeaderValue,
    IF_RANGE, RANGE,
};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::ext::ReasonPhrase;
use thiserror::Error;
use wallgate_types::secret::Secret;
use wallgate_vault::material::Material;

use crate::parse::ResponseBody;
use body::ScrubbedBody;
use decode::{Coding, Decoder};
use headers::scrub_fields;
use matcher::Patterns;

/// Sets of secrets whose patterns are kept.
const MAX_CACHED: usize = 256;

/// Why a response cannot be scrubbed, and is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ScrubError {
    /// Nobody here can undo its content coding.
    #[error("the response has an unknown or stacked content coding")]
    Coding,
    /// It shows a part, and another part of the secret may be in another.
    #[error("the response is a part of something")]
    Partial,
    /// What follows is not HTTP.
    #[error("the response changes the protocol")]
    Upgrade,
}

impl ScrubError {
    /// The stable reason code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Coding | Self::Partial | Self::Upgrade => "scrub_unavailable",
        }
    }
}

/// What to look for in one response. Cheap to clone.
#[derive(Clone)]
pub struct Scrubber {
    patterns: Arc<Patterns>,
}

impl Scrubber {
    /// A scrubber for these secrets. `None` when it cannot be built, and nothing may be sent then.
    #[must_use]
    pub fn for_secrets<'a>(secrets: impl IntoIterator<Item = &'a Secret<Vec<u8>>>) -> Option<Self> {
        Patterns::new(secrets.into_iter()).map(|patterns| Self { patterns })
    }

    /// Masks a whole text. Returns it with the number of places.
    #[must_use]
    pub fn scrub_whole(&self, text: &[u8]) -> (Vec<u8>, u64) {
        self.scrub_pieces(&[text])
    }

    /// Masks a text that comes in pieces.
    #[must_use]
    pub fn scrub_pieces(&self, pieces: &[&[u8]]) -> (Vec<u8>, u64) {
        let mut stream = stream::Stream::new(Arc::clone(&self.patterns));
        let mut masked = Vec::new();
        for piece in pieces {
            masked.extend_from_slice(&stream.push(Bytes::copy_from_slice(piece)));
        }
        masked.extend_from_slice(&stream.finish());
        (masked, stream.found())
    }

    /// A scrubber for a stream of buffers that are passed on without a copy where they hold no secret.
    #[must_use]
    pub fn stream(&self) -> ScrubStream {
        ScrubStream(stream::Stream::new(Arc::clone(&self.patterns)))
    }

    /// The response as the sandbox gets it. Counts what was masked into `scrubbed`, now and while the body streams.
    ///
    /// # Errors
    /// [`ScrubError`] when it cannot be looked into. Nothing of it may be passed on then.
    pub fn response(
        &self,
        response: Response<ResponseBody>,
        method: &Method,
        scrubbed: &Arc<AtomicU64>,
    ) -> Result<Response<ResponseBody>, ScrubError> {
        let (mut head, body) = response.into_parts();
        match head.status {
            StatusCode::SWITCHING_PROTOCOLS => return Err(ScrubError::Upgrade),
            StatusCode::PARTIAL_CONTENT => return Err(ScrubError::Partial),
            _ => {}
        }
        let coding = Coding::of(&head.headers).or(Err(ScrubError::Coding))?;
        if is_coded_inside(&head.headers) {
            return Err(ScrubError::Coding);
        }
        // The standard phrase says the same, and nothing of upstream's.
        head.extensions.remove::<ReasonPhrase>();
        let found = scrub_fields(&mut head.headers, &self.patterns);
        scrubbed.fetch_add(found, Ordering::Relaxed);
        head.headers.remove(ACCEPT_RANGES);
        let bodiless = *method == Method::HEAD
            || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if coding.is_some() {
            become_identity(&mut head.headers);
        }
        if bodiless {
            return Ok(Response::from_parts(head, body));
        }
        let body = ScrubbedBody::new(
            body,
            coding.map(Decoder::new),
            Arc::clone(&self.patterns),
            Arc::clone(scrubbed),
        );
        Ok(Response::from_parts(head, body.boxed_unsync()))
    }

    /// Masks the fields of an informational response. Returns how many places there were.
    pub fn informational(&self, fields: &mut HeaderMap) -> u64 {
        scrub_fields(fields, &self.patterns)
    }
}

impl std::fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scrubber").finish_non_exhaustive()
    }
}

/// A text in buffers.
pub struct ScrubStream(stream::Stream);

impl ScrubStream {
    /// Takes a buffer and returns what is decided.
    pub fn push(&mut self, piece: Bytes) -> Bytes {
        self.0.push(piece)
    }

    /// Nothing follows.
    pub fn finish(&mut self) -> Bytes {
        self.0.finish()
    }
}

impl std::fmt::Debug for ScrubStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScrubStream").finish_non_exhaustive()
    }
}

/// Fields that speak of the coded bytes (RFC 9110, sections 8.6 and 8.8.3; RFC 9530).
fn become_identity(fields: &mut HeaderMap) {
    const OF_THE_CODED: [HeaderName; 2] = [CONTENT_ENCODING, CONTENT_LENGTH];
    for name in OF_THE_CODED {
        fields.remove(name);
    }
    for name in ["content-md5", "content-digest", "repr-digest", "digest"] {
        fields.remove(name);
    }
    let weak = fields.get(ETAG).and_then(|tag| {
        let text = tag.as_bytes();
        text.starts_with(b"\"")
            .then(|| HeaderValue::from_bytes(&[b"W/", text].concat()).ok())
            .flatten()
    });
    if let Some(weak) = weak {
        fields.insert(ETAG, weak);
    }
}

/// Codings of the messages inside a body, which only their protocols undo: gRPC's and Connect's, and deltas (RFC 3229).
const INSIDE: [&str; 3] = ["grpc-encoding", "connect-content-encoding", "im"];
/// What asks for them.
const ASKS_FOR_INSIDE: [&str; 3] = ["grpc-accept-encoding", "connect-accept-encoding", "a-im"];

fn is_coded_inside(fields: &HeaderMap) -> bool {
    INSIDE
        .iter()
        .flat_map(|name| fields.get_all(*name))
        .any(|value| !value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity"))
}

/// Takes out of a request what would make its response impossible to look into: parts, and codings that nobody here
/// can undo. Returns the names of what was removed.
pub(crate) fn prepare_request(fields: &mut HeaderMap) -> Vec<&'static str> {
    let mut removed = Vec::new();
    for name in [RANGE.as_str(), IF_RANGE.as_str()]
        .into_iter()
        .chain(ASKS_FOR_INSIDE)
    {
        if fields.remove(name).is_some() {
            removed.push(name);
        }
    }
    let offered: Vec<String> = fields
        .get_all(ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|item| item.trim().to_ascii_lowercase())
        .filter(|item| {
            let name = item.split(';').next().unwrap_or_default().trim();
            // `*` is not among them: it would let upstream choose one that nobody here knows.
            decode::ACCEPTED.contains(&name)
        })
        .collect();
    // Without the field any coding would do (RFC 9110, section 12.5.3), so it is always sent.
    let value = if offered.is_empty() {
        "identity".to_owned()
    } else {
        offered.join(", ")
    };
    match HeaderValue::try_from(value) {
        Ok(value) => fields.insert(ACCEPT_ENCODING, value),
        Err(_) => fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity")),
    };
    removed
}

/// Scrubbers, made once for each set of values and kept while they are in use.
#[derive(Debug, Default)]
pub struct ScrubberCache {
    made: Mutex<HashMap<Box<[u64]>, Scrubber>>,
}

impl ScrubberCache {
    /// Nothing made yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The scrubber for these values. `None` when it cannot be built, and nothing may be sent then.
    #[must_use]
    pub fn scrubber(&self, materials: &[Arc<Material>]) -> Option<Scrubber> {
        let mut key: Vec<u64> = materials.iter().map(|material| material.id()).collect();
        key.sort_unstable();
        key.dedup();
        let key = key.into_boxed_slice();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scrubber) = made.get(&key) {
            return Some(scrubber.clone());
        }
        let scrubber = Scrubber::for_secrets(materials.iter().flat_map(|material| material.needles()))?;
        if made.len() >= MAX_CACHED {
            made.clear();
        }
        made.insert(key, scrubber.clone());
        Some(scrubber)
    }
}

#[cfg(test)]
mod tests;

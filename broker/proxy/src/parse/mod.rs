//! One canonical request, or a refusal (P3, P7, DESIGN §7).
//!
//! Two places look at a request before policy does. [`guard`] reads an HTTP/1 connection's bytes in front of hyper and
//! lets through nothing that two parsers could read differently (RFC 9112). [`canonical`] then makes one [`Parsed`] of
//! what hyper read, of either version: one method, one authority, one spelling of the path. What is sent upstream is
//! serialised from that value.

pub(crate) mod body;
pub(crate) mod canonical;
pub mod chunked;
pub(crate) mod guard;
pub mod head;
pub mod path;
pub mod refusal;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http_body_util::combinators::UnsyncBoxBody;
use thiserror::Error;
use wallgate_types::request::{RequestFacts, Subject};

/// A request's body, streamed. It ends with an error when it was cut, so that nothing half-sent looks whole.
pub type RequestBody = UnsyncBoxBody<Bytes, BodyError>;

/// A response's body, streamed.
pub type ResponseBody = UnsyncBoxBody<Bytes, BodyError>;

/// Why a body ended before its end.
#[derive(Debug, Error)]
pub enum BodyError {
    /// The sandbox went away or broke the protocol.
    #[error("the client's body broke off")]
    Client(#[source] hyper::Error),
    /// Upstream went away or broke the protocol.
    #[error("the upstream's body broke off")]
    Upstream(#[source] hyper::Error),
    /// The request's body is larger than its limit.
    #[error("the request's body is larger than {limit} bytes")]
    RequestLimit {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The response's body is larger than its limit.
    #[error("the response's body is larger than {limit} bytes")]
    ResponseLimit {
        /// The limit, in bytes.
        limit: u64,
    },
    /// The scrubber could not run.
    #[error("the response could not be scrubbed: {0}")]
    Scrub(&'static str),
    /// A trailer that may not stand there.
    #[error("the body ends with a trailer that is not allowed")]
    Trailer,
}

impl BodyError {
    /// The stable reason code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Client(_) => "client_body",
            Self::Upstream(_) => "upstream_body",
            Self::RequestLimit { .. } => "request_too_large",
            Self::ResponseLimit { .. } => "response_too_large",
            Self::Scrub(_) => "scrub",
            Self::Trailer => "trailer",
        }
    }
}

/// A request in canonical form: what policy judges, and what is sent.
pub struct Parsed {
    pub(crate) facts: RequestFacts,
    pub(crate) head: Parts,
    pub(crate) body: RequestBody,
    pub(crate) progress: Arc<body::Progress>,
    pub(crate) wishes: Wishes,
}

/// What the client asked of the connection rather than of the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    /// It sends its body only when it is told to (RFC 9110, section 10.1.1).
    pub(crate) expects_continue: bool,
    /// It can read trailers, which a gRPC origin wants to know.
    pub(crate) trailers: bool,
    /// It wants a WebSocket.
    pub(crate) websocket: bool,
}

impl Subject for Parsed {
    fn facts(&self) -> &RequestFacts {
        &self.facts
    }
}

impl fmt::Debug for Parsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parsed")
            .field("id", &self.facts.id)
            .finish_non_exhaustive()
    }
}

//! All that policy may see of a request.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::address::{AddressClass, OriginalDst};
use crate::authority::{Authority, Host};
use crate::operation::Operation;
use crate::sandbox::SandboxFacts;

/// A request's random name: 128 bits, shown as 32 hexadecimal digits. It carries no order and no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u128);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for RequestId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What is being spoken. Policy's `request.protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// One HTTP request and its response.
    Http,
    /// A WebSocket, asked for by an HTTP upgrade.
    Websocket,
    /// A gRPC call.
    Grpc,
    /// A name lookup.
    Dns,
    /// A connection of opaque bytes.
    Tcp,
}

impl Protocol {
    /// The name that policy sees.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Websocket => "websocket",
            Self::Grpc => "grpc",
            Self::Dns => "dns",
            Self::Tcp => "tcp",
        }
    }
}

/// How the sandbox spoke: over TLS or in the clear. The upstream side is dialled the same way, never downgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// In the clear.
    Http,
    /// Over TLS.
    Https,
    /// Not HTTP at all: a name lookup.
    Dns,
}

impl Scheme {
    /// The name that policy sees.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Dns => "dns",
        }
    }
}

/// A request's body as far as policy asked to see it; a streamed body has only a type and perhaps a size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BodyFacts {
    /// Bytes, when the request said or the body was read.
    pub size: Option<u64>,
    /// The media type without parameters, lower case.
    pub media_type: Option<String>,
    /// The parsed body, when it is JSON and a route asked for it.
    pub json: Option<serde_json::Value>,
    /// The body as text, when it is UTF-8 and a route asked for it.
    pub text: Option<String>,
}

/// Where a request would go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DestinationFacts {
    /// The operator's name for the service at this host, from a `[[service]]` entry.
    pub service: Option<String>,
    /// The class of the addresses, once they are resolved (second pass).
    pub class: Option<AddressClass>,
    /// The addresses, once they are resolved (second pass).
    pub addresses: Vec<IpAddr>,
}

/// All that policy may see of a request, in canonical form. What is sent upstream is made from the same value (P7).
#[derive(Clone, Debug)]
pub struct RequestFacts {
    /// Its random name.
    pub id: RequestId,
    /// Who asks.
    pub sandbox: Arc<SandboxFacts>,
    /// What is spoken.
    pub protocol: Protocol,
    /// `GET`, `POST` …; the record type (`A`, `AAAA` …) of a name lookup.
    pub method: String,
    /// In the clear or over TLS.
    pub scheme: Scheme,
    /// Whom it is for.
    pub authority: Authority,
    /// The canonical path, percent-encoded, always beginning with `/` (empty for a name lookup).
    pub path: String,
    /// The path's segments, percent-decoded.
    pub segments: Vec<String>,
    /// The query as sent (without `?`), if any.
    pub raw_query: Option<String>,
    /// The query's keys and values, percent-decoded, in order.
    pub query: Vec<(String, String)>,
    /// Header names (lower case) and values, in order, without those that carry credentials.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: BodyFacts,
    /// Where it would go.
    pub destination: DestinationFacts,
    /// What it would do.
    pub operation: Operation,
    /// The address that the sandbox dialled: noted, never trusted.
    pub original_dst: Option<OriginalDst>,
    /// The name in the TLS handshake, when there was one.
    pub sni: Option<Host>,
}

/// What a decision can be about.
pub trait Subject {
    /// What policy may see of it.
    fn facts(&self) -> &RequestFacts;
}

impl Subject for RequestFacts {
    fn facts(&self) -> &RequestFacts {
        self
    }
}

//! What is refused before policy is asked, by name.

use http::StatusCode;
use thiserror::Error;

/// Why a request never got as far as policy. Each has a stable code and one status.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// Both `Content-Length` and `Transfer-Encoding` (RFC 9112, section 6.3).
    #[error("a request has either a Content-Length or a Transfer-Encoding")]
    ClTe,
    /// A `Transfer-Encoding` that is not exactly one `chunked` on HTTP/1.1.
    #[error("the only Transfer-Encoding is one chunked, on HTTP/1.1")]
    Te,
    /// A `Content-Length` that is not one run of digits, or is not what was sent.
    #[error("a Content-Length is one plain number")]
    Cl,
    /// A line that does not end with CRLF, or a CR elsewhere.
    #[error("lines end with CRLF")]
    LineEnding,
    /// A header line that continues another (RFC 9112, section 5.2).
    #[error("header lines are not folded")]
    Fold,
    /// A NUL or another control byte.
    #[error("there is a control byte in the head")]
    Ctl,
    /// White space between a header's name and its colon (RFC 9112, section 5.1).
    #[error("there is white space before a header's colon")]
    SpaceBeforeColon,
    /// A header name that is not a token.
    #[error("a header's name is not a token")]
    HeaderName,
    /// A header value with bytes outside visible ASCII, space and tab.
    #[error("a header's value is not printable ASCII")]
    HeaderValue,
    /// No `Host`, more than one, or one that names no host.
    #[error("there is not exactly one usable Host")]
    Host,
    /// A method that is not a plain upper-case word, or that would make a tunnel or an echo.
    #[error("the method is not one that is let through")]
    Method,
    /// A header or query key that asks the origin to treat the method as another.
    #[error("the method may not be overridden")]
    MethodOverride,
    /// A request target that is neither a path nor an absolute URL.
    #[error("the request target is not a path")]
    Target,
    /// A version other than HTTP/1.0 and HTTP/1.1.
    #[error("the version is not HTTP/1.0 or HTTP/1.1")]
    Version,
    /// A head that is too long or has too many fields.
    #[error("the head is larger than its limit")]
    HeaderLimit,
    /// An upgrade to anything but a WebSocket.
    #[error("only an upgrade to a WebSocket is possible")]
    Upgrade,
    /// A trailer that is malformed, too long, or means something to framing, routing or authentication.
    #[error("a trailer is not allowed")]
    Trailer,
    /// Chunked framing that is not the plainest (RFC 9112, section 7.1).
    #[error("a chunk is malformed")]
    Chunk,
    /// A path that two parsers could read differently.
    #[error("the path has more than one reading")]
    Path,
    /// A query with bytes that no URL has, or with too many keys.
    #[error("the query is malformed")]
    Query,
    /// A body where the method has none.
    #[error("this method has no body")]
    Body,
    /// An `Expect` other than `100-continue`.
    #[error("the only expectation that can be met is 100-continue")]
    Expect,
    /// The request is for another host than the connection (RFC 9110, section 15.5.20).
    #[error("this connection is for another host")]
    Misdirected,
    /// An h2 field that has no place there (RFC 9113, section 8.2).
    #[error("a header has no place in HTTP/2")]
    H2Field,
    /// Bytes that are not HTTP at all.
    #[error("this is not HTTP")]
    NotHttp,
    /// A head or body that came too slowly.
    #[error("the request took too long to arrive")]
    Slow,
}

impl Refusal {
    /// The stable reason code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::ClTe => "cl_te",
            Self::Te => "te",
            Self::Cl => "cl",
            Self::LineEnding => "line_ending",
            Self::Fold => "fold",
            Self::Ctl => "ctl",
            Self::SpaceBeforeColon => "space_before_colon",
            Self::HeaderName => "header_name",
            Self::HeaderValue => "header_value",
            Self::Host => "host",
            Self::Method => "method",
            Self::MethodOverride => "method_override",
            Self::Target => "target",
            Self::Version => "version",
            Self::HeaderLimit => "header_limit",
            Self::Upgrade => "upgrade",
            Self::Trailer => "trailer",
            Self::Chunk => "chunk",
            Self::Path => "path",
            Self::Query => "query",
            Self::Body => "body",
            Self::Expect => "expect",
            Self::Misdirected => "misdirected",
            Self::H2Field => "h2_field",
            Self::NotHttp => "not_http",
            Self::Slow => "slow",
        }
    }

    /// What the sandbox gets.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Expect => StatusCode::EXPECTATION_FAILED,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::HeaderLimit => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::ClTe
            | Self::Te
            | Self::Cl
            | Self::LineEnding
            | Self::Fold
            | Self::Ctl
            | Self::SpaceBeforeColon
            | Self::HeaderName
            | Self::HeaderValue
            | Self::Host
            | Self::Method
            | Self::MethodOverride
            | Self::Target
            | Self::Version
            | Self::Upgrade
            | Self::Trailer
            | Self::Chunk
            | Self::Path
            | Self::Query
            | Self::Body
            | Self::H2Field
            | Self::NotHttp => StatusCode::BAD_REQUEST,
        }
    }
}

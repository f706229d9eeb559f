//! One request, of either version, in canonical form.
//!
//! An HTTP/1 head has passed [`super::guard`] by now, and an h2 one the checks of h2 itself (RFC 9113, section 8.2). What
//! remains means the same in both: whom it is for, which path, which method, and which headers may go on at all.

use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::ext::Protocol as ExtendedConnect;
use wallgate_policy::{Profile, ServiceMap};
use wallgate_types::address::OriginalDst;
use wallgate_types::authority::{Authority, Host};
use wallgate_types::operation::Operation;
use wallgate_types::request::{BodyFacts, DestinationFacts, Protocol, RequestFacts, RequestId, Scheme};
use wallgate_types::sandbox::SandboxFacts;

use crate::limits::Limits;
use crate::parse::body::{Inbound, Progress};
use crate::parse::head::check_method;
use crate::parse::path::{self, EscapedSlash};
use crate::parse::refusal::Refusal;
use crate::parse::{Parsed, Wishes};

/// What a connection says about every request on it.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) sandbox: Arc<SandboxFacts>,
    pub(crate) scheme: Scheme,
    pub(crate) original_dst: OriginalDst,
    pub(crate) sni: Option<Host>,
    /// Every authority on this connection is this host, or misdirected.
    pub(crate) required: Option<Host>,
}

/// Headers that speak of one connection only (RFC 9110, section 7.6.1), and those that would say who came before us.
const DROPPED: [HeaderName; 13] = [
    header::CONNECTION,
    header::EXPECT,
    header::FORWARDED,
    header::HOST,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::VIA,
    header::CONTENT_LENGTH,
    HeaderName::from_static("keep-alive"),
];

/// The same, by names that `http` has no constant for.
const DROPPED_NAMES: [&str; 3] = ["proxy-connection", "http2-settings", "x-real-ip"];

/// Headers that ask an origin to treat the method or the path as another.
const OVERRIDES: [&str; 6] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-method",
    "x-original-url",
    "x-rewrite-url",
];

/// Headers whose values are credentials: policy does not see them.
const CREDENTIALS: [&str; 8] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "x-api-key",
    "api-key",
    "private-token",
    "x-auth-token",
    "x-amz-security-token",
];

/// Makes one canonical request of what hyper read.
///
/// # Errors
/// Why it is refused. Nothing of it goes anywhere.
pub(crate) fn parse(
    request: http::Request<Incoming>,
    id: RequestId,
    origin: &Origin,
    services: &ServiceMap,
    limits: &Limits,
) -> Result<Parsed, Refusal> {
    let (mut head, incoming) = request.into_parts();
    let h2 = head.version == Version::HTTP_2;
    check_method(head.method.as_str().as_bytes())?;
    if head.extensions.get::<ExtendedConnect>().is_some() {
        return Err(Refusal::Method);
    }
    if h2 {
        check_h2_fields(&head.headers)?;
    }
    let authority = authority(&head, origin, h2)?;
    check_headers(&head.headers, limits)?;
    let has_body = !incoming.is_end_stream();
    if has_body && !limits.may_have_body(head.method.as_str().as_bytes()) {
        return Err(Refusal::Body);
    }
    let service = services.get(authority.host());
    let slash = match service {
        Some(service) if service.profile == Profile::Npm => EscapedSlash::InNpmScope,
        Some(_) | None => EscapedSlash::Refused,
    };
    let path = path::canonical(head.uri.path(), slash, limits)?;
    let raw_query = head.uri.query().map(str::to_owned);
    let query = raw_query
        .as_deref()
        .map_or_else(|| Ok(Vec::new()), |raw| query(raw, limits))?;
    head.uri = origin_form(&path.path, raw_query.as_deref())?;

    let wishes = wishes(&head.headers)?;
    let media_type = media_type(&head.headers);
    let protocol = match media_type.as_deref() {
        Some(grpc) if grpc.starts_with("application/grpc") => Protocol::Grpc,
        Some(_) | None if wishes.websocket => Protocol::Websocket,
        Some(_) | None => Protocol::Http,
    };
    strip(&mut head.headers);
    let size = incoming.size_hint().exact();
    let progress = Arc::new(Progress::new(limits.body_bytes));
    let facts = RequestFacts {
        id,
        sandbox: Arc::clone(&origin.sandbox),
        protocol,
        method: head.method.as_str().to_owned(),
        scheme: origin.scheme,
        authority,
        path: path.path,
        segments: path.segments,
        raw_query,
        query,
        headers: visible(&head.headers)?,
        body: BodyFacts {
            size,
            media_type,
            json: None,
            text: None,
        },
        destination: DestinationFacts {
            service: service.map(|service| service.name.clone()),
            class: None,
            addresses: Vec::new(),
        },
        operation: Operation::unknown("none"),
        original_dst: Some(origin.original_dst),
        sni: origin.sni.clone(),
    };
    Ok(Parsed {
        facts,
        head,
        body: Inbound::boxed(incoming, &progress),
        progress,
        wishes,
    })
}

/// Whom the request is for: one value, however often it is said (P3).
fn authority(head: &Parts, origin: &Origin, h2: bool) -> Result<Authority, Refusal> {
    let default_port = match origin.scheme {
        Scheme::Https => 443,
        Scheme::Http | Scheme::Dns => 80,
    };
    let parse = |text: &str| Authority::parse(text, default_port).map_err(|_reason| Refusal::Host);
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (None, _) => None,
        (Some(host), None) => Some(parse(host.to_str().map_err(|_not_ascii| Refusal::Host)?)?),
        (Some(_), Some(_)) => return Err(Refusal::Host),
    };
    let in_uri = head
        .uri
        .authority()
        .map(|authority| parse(authority.as_str()))
        .transpose()?;
    if head
        .uri
        .scheme_str()
        .is_some_and(|scheme| scheme != origin.scheme.as_str())
    {
        return Err(Refusal::Target);
    }
    let authority = match (in_uri, host) {
        (Some(in_uri), Some(host)) if in_uri == host => in_uri,
        (Some(_), Some(_)) => return Err(if h2 { Refusal::Misdirected } else { Refusal::Host }),
        (Some(in_uri), None) if h2 => in_uri,
        (None, Some(host)) if !h2 => host,
        (_, None) | (None, Some(_)) => return Err(Refusal::Host),
    };
    let named = origin
        .required
        .as_ref()
        .is_none_or(|required| required == authority.host());
    if !named || authority.port() != origin.original_dst.0.port() {
        return Err(Refusal::Misdirected);
    }
    Ok(authority)
}

/// RFC 9113, section 8.2.2: what has no place in HTTP/2, and would mean something after a translation to HTTP/1.
fn check_h2_fields(headers: &HeaderMap) -> Result<(), Refusal> {
    let misplaced = [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE]
        .iter()
        .any(|name| headers.contains_key(name))
        || ["proxy-connection", "keep-alive", "http2-settings"]
            .iter()
            .any(|name| headers.contains_key(*name))
        || headers.get_all(header::TE).iter().any(|te| te != "trailers");
    if misplaced {
        return Err(Refusal::H2Field);
    }
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(()),
        (Some(length), None) if is_plain_number(length.as_bytes()) => Ok(()),
        (Some(_), _) => Err(Refusal::Cl),
    }
}

fn is_plain_number(digits: &[u8]) -> bool {
    !digits.is_empty()
        && digits.len() <= 18
        && digits.iter().all(u8::is_ascii_digit)
        && (digits == b"0" || !digits.starts_with(b"0"))
}

fn check_headers(headers: &HeaderMap, limits: &Limits) -> Result<(), Refusal> {
    if headers.len() > limits.header_fields {
        return Err(Refusal::HeaderLimit);
    }
    for (name, value) in headers {
        if !value.as_bytes().iter().all(|b| matches!(b, b'\t' | 0x20..=0x7e)) {
            return Err(Refusal::HeaderValue);
        }
        let name = name.as_str();
        if name.starts_with("x-") && OVERRIDES.contains(&name) {
            return Err(Refusal::MethodOverride);
        }
        // An origin behind CGI reads an underscore as a hyphen, and so would see a header that we did not judge.
        if name.contains('_') && shadows(name) {
            return Err(Refusal::HeaderName);
        }
    }
    Ok(())
}

fn shadows(name: &str) -> bool {
    let plain = name.replace('_', "-");
    let plain = plain.as_str();
    OVERRIDES.contains(&plain)
        || CREDENTIALS.contains(&plain)
        || DROPPED_NAMES.contains(&plain)
        || DROPPED.iter().any(|dropped| dropped == plain)
        || plain.starts_with("x-forwarded")
}

/// The query's keys and values, decoded as forms are. The query itself goes on as it was sent.
fn query(raw: &str, limits: &Limits) -> Result<Vec<(String, String)>, Refusal> {
    if !raw.bytes().all(|b| (0x21..=0x7e).contains(&b) && b != b'#') {
        return Err(Refusal::Query);
    }
    let mut pairs = Vec::new();
    for piece in raw.split('&').filter(|piece| !piece.is_empty()) {
        if pairs.len() == limits.query_keys {
            return Err(Refusal::Query);
        }
        let (key, value) = piece.split_once('=').unwrap_or((piece, ""));
        let key = form_decoded(key);
        if key.eq_ignore_ascii_case("_method") || key.eq_ignore_ascii_case("x-http-method-override") {
            return Err(Refusal::MethodOverride);
        }
        pairs.push((key, form_decoded(value)));
    }
    Ok(pairs)
}

fn form_decoded(text: &str) -> String {
    if !text.bytes().any(|b| matches!(b, b'%' | b'+')) {
        return text.to_owned();
    }
    let spaced = text.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced)
        .decode_utf8_lossy()
        .into_owned()
}

fn origin_form(path: &str, query: Option<&str>) -> Result<Uri, Refusal> {
    let text = match query {
        None => path.to_owned(),
        Some(query) => format!("{path}?{query}"),
    };
    PathAndQuery::try_from(text)
        .map(Uri::from)
        .map_err(|_invalid| Refusal::Target)
}

fn wishes(headers: &HeaderMap) -> Result<Wishes, Refusal> {
    let mut expectations = headers.get_all(header::EXPECT).iter();
    let expects_continue = match (expectations.next(), expectations.next()) {
        (None, _) => false,
        (Some(expect), None) if expect.as_bytes().eq_ignore_ascii_case(b"100-continue") => true,
        (Some(_), _) => return Err(Refusal::Expect),
    };
    let websocket = headers
        .get(header::UPGRADE)
        .is_some_and(|upgrade| upgrade.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let trailers = headers.get_all(header::TE).iter().any(|te| {
        te.to_str().is_ok_and(|te| {
            te.split(',')
                .any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
        })
    });
    Ok(Wishes {
        expects_continue,
        trailers,
        websocket,
    })
}

fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(
        value
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase(),
    )
}

/// Removes what ends at this hop: before policy looks and before anything is injected, so that a `Connection` header
/// can neither hide a header from policy nor strip an injected one (RFC 9110, section 7.6.1).
pub(crate) fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|token| HeaderName::try_from(token.trim()).ok())
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in &DROPPED {
        headers.remove(name);
    }
    for name in DROPPED_NAMES {
        headers.remove(name);
    }
    let forwarded: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("x-forwarded"))
        .cloned()
        .collect();
    for name in forwarded {
        headers.remove(name);
    }
}

/// The headers that policy may see.
fn visible(headers: &HeaderMap) -> Result<Vec<(String, String)>, Refusal> {
    headers
        .iter()
        .filter(|(name, _)| !CREDENTIALS.contains(&name.as_str()))
        .map(|(name, value)| {
            let value = HeaderValue::to_str(value).map_err(|_not_ascii| Refusal::HeaderValue)?;
            Ok((name.as_str().to_owned(), value.to_owned()))
        })
        .collect()
}

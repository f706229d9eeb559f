//! A no that comes with a way on (P9): `application/problem+json` (RFC 9457), or its gRPC form. Never 407.

use http::header::{self, HeaderValue};
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde::Serialize;
use wallgate_ledger::LeafIndex;
use wallgate_types::request::{Protocol, RequestId};
use wallgate_types::ruling::{Ruling, Verdict};

use crate::error::Failure;
use crate::parse::{ResponseBody, body};

/// Where an agent finds out more, and says what it needs.
pub(crate) const INTERNAL: &str = "http://wallgate.internal";

/// gRPC's `PERMISSION_DENIED` and `UNAVAILABLE`.
const GRPC_PERMISSION_DENIED: &str = "7";
const GRPC_UNAVAILABLE: &str = "14";

#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    title: &'a str,
    status: u16,
    rule: &'a str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ticket: Option<String>,
    request_id: RequestId,
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger_index: Option<LeafIndex>,
    links: Links,
}

#[derive(Serialize)]
struct Links {
    why: String,
    ask: String,
    report: String,
    quit: String,
}

impl Links {
    fn of(request: RequestId) -> Self {
        Self {
            why: format!("{INTERNAL}/why/{request}"),
            ask: format!("{INTERNAL}/ask"),
            report: format!("{INTERNAL}/report"),
            quit: format!("{INTERNAL}/quit"),
        }
    }
}

/// What shapes the answer to a request that is not let through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) id: RequestId,
    pub(crate) protocol: Protocol,
    pub(crate) head_only: bool,
}

impl Asked {
    pub(crate) fn new(id: RequestId, protocol: Protocol, method: &Method) -> Self {
        Self {
            id,
            protocol,
            head_only: *method == Method::HEAD,
        }
    }
}

/// Policy said no, or not yet.
pub(crate) fn deny(asked: Asked, ruling: &Ruling, index: LeafIndex) -> Response<ResponseBody> {
    let ask = ruling.verdict == Verdict::Ask;
    let problem = Problem {
        kind: if ask {
            "urn:wallgate:ask"
        } else {
            "urn:wallgate:denied"
        },
        title: if ask {
            "This needs a person's approval."
        } else {
            "This is not allowed."
        },
        status: StatusCode::FORBIDDEN.as_u16(),
        rule: &ruling.rule,
        reason: &ruling.reason,
        code: None,
        ticket: ask.then(|| asked.id.to_string()),
        request_id: asked.id,
        ledger_index: Some(index),
        links: Links::of(asked.id),
    };
    if asked.protocol == Protocol::Grpc {
        return grpc(GRPC_PERMISSION_DENIED, &problem);
    }
    respond(asked, StatusCode::FORBIDDEN, &problem)
}

/// The broker could not, or would not, for a reason that has a code.
pub(crate) fn fail(asked: Asked, failure: &Failure, index: Option<LeafIndex>) -> Response<ResponseBody> {
    let status = failure.status();
    let title = failure.title();
    let rule = format!("wallgate.{}", failure.code());
    let problem = Problem {
        kind: "urn:wallgate:error",
        title: &title,
        status: status.as_u16(),
        rule: &rule,
        reason: &title,
        code: Some(failure.code()),
        ticket: None,
        request_id: asked.id,
        ledger_index: index,
        links: Links::of(asked.id),
    };
    if asked.protocol == Protocol::Grpc {
        let denied = status == StatusCode::FORBIDDEN;
        return grpc(
            if denied {
                GRPC_PERMISSION_DENIED
            } else {
                GRPC_UNAVAILABLE
            },
            &problem,
        );
    }
    respond(asked, status, &problem)
}

fn respond(asked: Asked, status: StatusCode, problem: &Problem<'_>) -> Response<ResponseBody> {
    // A struct of strings and numbers always has a JSON form.
    let mut json = serde_json::to_vec(problem).unwrap_or_default();
    json.push(b'\n');
    let length = json.len();
    let body = if asked.head_only {
        body::empty()
    } else {
        full(json)
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    response
}

/// A response of trailers only (gRPC over HTTP/2, "Responses").
fn grpc(code: &'static str, problem: &Problem<'_>) -> Response<ResponseBody> {
    let mut response = Response::new(body::empty());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static(code));
    let text = format!("{}: {} ({})", problem.rule, problem.reason, problem.links.why);
    // `Percent-Encoded` in the gRPC specification: everything but printable ASCII, and the percent sign itself.
    let text = percent_encoding::utf8_percent_encode(&text, &GRPC_MESSAGE).to_string();
    if let Ok(message) = HeaderValue::try_from(text) {
        headers.insert("grpc-message", message);
    }
    response
}

const GRPC_MESSAGE: percent_encoding::AsciiSet = percent_encoding::CONTROLS.add(b'%');

/// A body that is there as a whole.
pub(crate) fn full(bytes: Vec<u8>) -> ResponseBody {
    ResponseBody::new(Full::from(bytes).map_err(|never: std::convert::Infallible| match never {}))
}

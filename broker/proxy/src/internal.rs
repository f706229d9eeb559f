//! `http://wallgate.internal/`: the way out, for the agent (P9, DESIGN §12).
//!
//! | request | answer |
//! |---|---|
//! | `GET /` | who am I, and what is here |
//! | `GET /why/{request_id}` | why that request of *this* sandbox was denied |
//! | `POST /ask` `{"host", "method", "path", "reason"}` | asks a person for access |
//! | `POST /report` `{"reason"}` | says that something is wrong |
//! | `POST /quit` `{"reason"}` | says that the task cannot be done within the rules |
//!
//! The broker answers by itself: nothing of this goes anywhere. Asks, reports and quits are control records; visits are
//! counted. Everything is bounded and rate-limited, and no identifier here tells anything of another sandbox (R04).

use std::sync::Arc;

use http::header::{self, HeaderValue};
use http::{Method, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use wallgate_ledger::ControlEvent;
use wallgate_types::authority::{Authority, Host};
use wallgate_types::request::{RequestFacts, RequestId};

use crate::deny::{INTERNAL, full};
use crate::parse::{Parsed, ResponseBody, body};
use crate::shared::{Sandbox, Shared};

/// The name that is answered here.
pub(crate) const NAME: &str = "wallgate.internal";

/// The longest reason, in bytes.
const REASON_BYTES: usize = 4096;
/// The longest path in an ask, in bytes.
const PATH_BYTES: usize = 2048;

/// What an agent says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saying {
    reason: String,
    #[serde(default)]
    host: Option<String>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    request_id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Ask,
    Report,
    Quit,
}

impl Event {
    const fn kind(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Report => "report",
            Self::Quit => "quit",
        }
    }

    const fn thanks(self) -> &'static str {
        match self {
            Self::Ask => "Recorded. A person will see it; until it is granted, the answer stays no.",
            Self::Report => "Recorded. A person will see it.",
            Self::Quit => {
                "Recorded: this task cannot be done within the rules. You may stop here; nobody will hold it against you."
            }
        }
    }
}

/// An answer, for programs and for people.
struct Said {
    status: StatusCode,
    json: Value,
    text: String,
}

impl Said {
    fn new(status: StatusCode, json: Value, text: impl Into<String>) -> Self {
        Self {
            status,
            json,
            text: text.into(),
        }
    }

    fn error(status: StatusCode, code: &str, text: &str) -> Self {
        Self::new(
            status,
            json!({ "code": code, "title": text, "status": status.as_u16() }),
            text,
        )
    }
}

/// Whether a host is answered here.
pub(crate) fn is_internal(host: &Host) -> bool {
    matches!(host, Host::Name(name) if name.as_str() == NAME)
}

/// Whether a request is answered here.
pub(crate) fn is_meant(parsed: &Parsed) -> bool {
    is_internal(parsed.facts.authority.host())
}

/// Answers.
pub(crate) async fn answer(
    parsed: Parsed,
    sandbox: &Arc<Sandbox>,
    shared: &Shared,
) -> Response<ResponseBody> {
    let head_only = parsed.head.method == Method::HEAD;
    let people = wants_text(&parsed);
    let said = respond(parsed, sandbox, shared).await;
    let (kind, bytes) = if people {
        (
            "text/plain; charset=utf-8",
            format!("{}\n", said.text).into_bytes(),
        )
    } else {
        ("application/json", format!("{:#}\n", said.json).into_bytes())
    };
    let length = bytes.len();
    let mut response = Response::new(if head_only { body::empty() } else { full(bytes) });
    *response.status_mut() = said.status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    response
}

fn wants_text(parsed: &Parsed) -> bool {
    let accept = parsed
        .head
        .headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.starts_with("text/") && !accept.contains("json"))
}

async fn respond(parsed: Parsed, sandbox: &Arc<Sandbox>, shared: &Shared) -> Said {
    let now = shared.clock.monotonic();
    if !sandbox.memory.may_visit(now) {
        let event = sandbox
            .refusals
            .note("limit_hit", "internal_rate", now, || Value::Null);
        shared.note(event).await;
        return Said::error(
            StatusCode::TOO_MANY_REQUESTS,
            "internal_rate",
            "Too many requests; wait a minute.",
        );
    }
    let event = sandbox.refusals.note("internal", "visit", now, || {
        Value::String(parsed.facts.path.clone())
    });
    shared.note(event).await;
    let segments: Vec<&str> = parsed.facts.segments.iter().map(String::as_str).collect();
    let post = parsed.head.method == Method::POST;
    let get = matches!(parsed.head.method, Method::GET | Method::HEAD);
    match segments.as_slice() {
        [] if get => who(sandbox),
        ["why", id] if get => why(id, sandbox),
        ["ask"] if post => hear(Event::Ask, parsed, sandbox, shared).await,
        ["report"] if post => hear(Event::Report, parsed, sandbox, shared).await,
        ["quit"] if post => hear(Event::Quit, parsed, sandbox, shared).await,
        [] | ["why", _] | ["ask" | "report" | "quit"] => Said::error(
            StatusCode::METHOD_NOT_ALLOWED,
            "method",
            "Not with this method; see GET /.",
        ),
        _ => Said::error(
            StatusCode::NOT_FOUND,
            "not_found",
            "There is nothing here; see GET /.",
        ),
    }
}

fn who(sandbox: &Sandbox) -> Said {
    let facts = &sandbox.facts;
    let json = json!({
        "sandbox": { "id": facts.id, "labels": facts.labels, "source": facts.source, "taints": sandbox.memory.taints() },
        "rules": "Every request that leaves this sandbox is judged by a policy and recorded. What no rule allows is denied. \
                  Credentials are added outside; you need none.",
        "links": {
            "why": format!("{INTERNAL}/why/{{request_id}}"),
            "ask": format!("{INTERNAL}/ask"),
            "report": format!("{INTERNAL}/report"),
            "quit": format!("{INTERNAL}/quit"),
        },
        "ask": { "method": "POST", "json": { "host": "…", "method": "GET", "path": "/…", "reason": "what you need it for" } },
        "report": { "method": "POST", "json": { "reason": "what is wrong" } },
        "quit": { "method": "POST", "json": { "reason": "why this task cannot be done within the rules" } },
    });
    let text = format!(
        "You are sandbox {}. Every request that leaves is judged by a policy and recorded; what no rule allows is denied.\n\
         Why was that denied?   GET  {INTERNAL}/why/REQUEST_ID\n\
         Ask for access:        POST {INTERNAL}/ask     {{\"host\":\"…\",\"method\":\"GET\",\"path\":\"/…\",\"reason\":\"…\"}}\n\
         Something is wrong:    POST {INTERNAL}/report  {{\"reason\":\"…\"}}\n\
         This cannot be done:   POST {INTERNAL}/quit    {{\"reason\":\"…\"}}",
        facts.id
    );
    Said::new(StatusCode::OK, json, text)
}

fn why(id: &str, sandbox: &Sandbox) -> Said {
    let unknown = || {
        Said::error(
            StatusCode::NOT_FOUND,
            "unknown_request",
            "No recent denial of this sandbox has that request id.",
        )
    };
    let plain = id.len() == 32 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let Some(id) = plain.then(|| u128::from_str_radix(id, 16).ok()).flatten() else {
        return unknown();
    };
    let Some(decision) = sandbox.decisions.find(RequestId(id)) else {
        return unknown();
    };
    let text = format!(
        "{} {}{} got {} by {}: {}",
        decision.method,
        decision.host,
        decision.path,
        decision.verdict.as_str(),
        decision.rule,
        decision.reason
    );
    let json = json!({
        "request_id": decision.id,
        "verdict": decision.verdict,
        "rule": decision.rule,
        "reason": decision.reason,
        "method": decision.method,
        "host": decision.host,
        "path": decision.path,
        "ledger_index": decision.index,
        "links": { "ask": format!("{INTERNAL}/ask"), "quit": format!("{INTERNAL}/quit") },
    });
    Said::new(StatusCode::OK, json, text)
}

async fn hear(event: Event, parsed: Parsed, sandbox: &Sandbox, shared: &Shared) -> Said {
    let limit = u64::try_from(shared.limits.internal_body_bytes).unwrap_or(u64::MAX);
    let Parsed {
        facts,
        body: streamed,
        ..
    } = parsed;
    let read = timeout(shared.limits.inspect, body::collect(streamed, limit)).await;
    let Ok(Ok((bytes, _whole))) = read else {
        return Said::error(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body",
            "The body is too large, or did not arrive.",
        );
    };
    let Ok(saying) = serde_json::from_slice::<Saying>(&bytes) else {
        return Said::error(
            StatusCode::BAD_REQUEST,
            "json",
            "Send JSON with a \"reason\"; see GET /.",
        );
    };
    let detail = match checked(event, &saying, &facts) {
        Ok(detail) => detail,
        Err(text) => return Said::error(StatusCode::BAD_REQUEST, "field", text),
    };
    let now = shared.clock.monotonic();
    if !sandbox.memory.may_ask(now) {
        let limit_hit = sandbox
            .refusals
            .note("limit_hit", "ask_rate", now, || Value::Null);
        shared.note(limit_hit).await;
        return Said::error(
            StatusCode::TOO_MANY_REQUESTS,
            "ask_rate",
            "Too many of these in an hour; they are all recorded.",
        );
    }
    let record = ControlEvent {
        kind: event.kind(),
        sandbox: Some(sandbox.facts.id.clone()),
        detail,
    };
    match timeout(shared.limits.record, shared.ledger.control(record)).await {
        Ok(Ok(index)) => Said::new(
            StatusCode::ACCEPTED,
            json!({ "recorded": event.kind(), "ticket": facts.id, "ledger_index": index, "message": event.thanks() }),
            format!("{} (ticket {})", event.thanks(), facts.id),
        ),
        Ok(Err(_)) | Err(_) => Said::error(
            StatusCode::SERVICE_UNAVAILABLE,
            "ledger",
            "It could not be recorded; try again later.",
        ),
    }
}

/// What is recorded of a saying: canonical where it names something, as it was said where it explains.
fn checked(event: Event, saying: &Saying, facts: &RequestFacts) -> Result<Value, &'static str> {
    if saying.reason.trim().is_empty() || saying.reason.len() > REASON_BYTES {
        return Err("A reason has 1 to 4096 bytes.");
    }
    let mut detail = serde_json::Map::new();
    detail.insert("ticket".to_owned(), Value::String(facts.id.to_string()));
    detail.insert("reason".to_owned(), Value::String(saying.reason.clone()));
    if event == Event::Ask && saying.host.is_none() {
        return Err("An ask names a host.");
    }
    if let Some(host) = &saying.host {
        // A homoglyph has no place here: what is shown to a person is what would be allowed (E07).
        let authority = Authority::parse(host, 443).map_err(|_reason| "The host is not a host name.")?;
        detail.insert("host".to_owned(), Value::String(authority.to_string()));
    }
    if let Some(method) = &saying.method {
        crate::parse::head::check_method(method.as_bytes())
            .map_err(|_reason| "The method is not a method.")?;
        detail.insert("method".to_owned(), Value::String(method.clone()));
    }
    if let Some(path) = &saying.path {
        let visible = path.starts_with('/')
            && path.len() <= PATH_BYTES
            && path.bytes().all(|b| (0x21..=0x7e).contains(&b));
        if !visible {
            return Err("The path is not a path.");
        }
        detail.insert("path".to_owned(), Value::String(path.clone()));
    }
    if let Some(id) = &saying.request_id {
        if id.len() != 32 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err("The request_id is not one.");
        }
        detail.insert("request_id".to_owned(), Value::String(id.clone()));
    }
    Ok(Value::Object(detail))
}

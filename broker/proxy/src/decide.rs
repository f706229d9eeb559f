//! What the request would do, and whether it may (P4). Only the policy crate can say yes.

use std::io::Read as _;

use bytes::Bytes;
use http::HeaderMap;
use http::header;
use http_body::Body as _;
use tokio::time::timeout;
use wallgate_policy::{
    Decided, Denied, Policy, Profile, RequestShape, ServiceMap, Situation, classify, refusal,
};

use crate::error::Failure;
use crate::limits::Limits;
use crate::parse::{BodyError, Parsed, body};

/// A request that is refused before, or instead of, asking policy for its verdict.
pub(crate) struct Refused {
    pub(crate) denied: Denied<Parsed>,
    /// What the sandbox is told instead of a plain denial.
    pub(crate) failure: Option<Failure>,
}

impl Refused {
    fn because(parsed: Parsed, failure: Failure) -> Self {
        let rule = format!("wallgate.{}", failure.code());
        let denied = Denied::refused(parsed, &rule, &failure.title());
        Self {
            denied,
            failure: Some(failure),
        }
    }
}

/// Names the operation, and reads the body if policy wants to see it: within its bound or not at all (H15).
pub(crate) async fn inspect(
    mut parsed: Parsed,
    policy: &Policy,
    services: &ServiceMap,
    situation: &Situation,
    limits: &Limits,
) -> Result<Parsed, Refused> {
    let profile = services
        .get(parsed.facts.authority.host())
        .map_or(Profile::None, |service| service.profile);
    parsed.facts.operation = classify(profile, &RequestShape::of(&parsed.facts));
    let want = match policy.wants_body(&parsed.facts, situation) {
        Ok(None) => return Ok(parsed),
        Ok(Some(want)) => want,
        Err(error) => {
            let refusal = error.refusal();
            let denied = Denied::refused(parsed, refusal.rule, refusal.reason);
            return Err(Refused {
                denied,
                failure: None,
            });
        }
    };
    if parsed.body.is_end_stream() {
        return Ok(parsed);
    }
    let limit = want.max_bytes.min(limits.inspect_bytes);
    let streamed = std::mem::replace(&mut parsed.body, body::empty());
    let (bytes, whole) = match timeout(limits.inspect, body::collect(streamed, limit)).await {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => return Err(Refused::because(parsed, Failure::Body(error))),
        Err(_elapsed) => {
            return Err(Refused::because(
                parsed,
                Failure::Refused(crate::parse::refusal::Refusal::Slow),
            ));
        }
    };
    let plain = match decoded(&parsed.head.headers, &bytes, limit) {
        Ok(plain) => plain,
        Err(failure) => return Err(Refused::because(parsed, failure)),
    };
    parsed.body = whole;
    show(&mut parsed, &plain);
    let shape = RequestShape {
        body: Some(&plain),
        ..RequestShape::of(&parsed.facts)
    };
    parsed.facts.operation = classify(profile, &shape);
    Ok(parsed)
}

/// Lets policy see a body that has been read.
fn show(parsed: &mut Parsed, plain: &Bytes) {
    let facts = &mut parsed.facts.body;
    facts.size = u64::try_from(plain.len()).ok();
    let is_json = facts
        .media_type
        .as_deref()
        .is_some_and(|media| media == "application/json" || media.ends_with("+json"));
    if is_json {
        facts.json = serde_json::from_slice(plain).ok();
    }
    facts.text = std::str::from_utf8(plain).ok().map(str::to_owned);
}

/// A body without its content coding, within `limit` (H16). Codings that are unknown or stacked are refused.
fn decoded(headers: &HeaderMap, bytes: &Bytes, limit: u64) -> Result<Bytes, Failure> {
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    let coding = match (codings.next(), codings.next()) {
        (None, _) => return Ok(bytes.clone()),
        (Some(coding), None) => coding.to_str().map_err(|_not_ascii| Failure::Encoding)?,
        (Some(_), Some(_)) => return Err(Failure::Encoding),
    };
    let reader: Box<dyn std::io::Read + '_> = match coding.trim().to_ascii_lowercase().as_str() {
        "identity" => return Ok(bytes.clone()),
        "gzip" | "x-gzip" => Box::new(flate2::read::GzDecoder::new(bytes.as_ref())),
        "deflate" => Box::new(flate2::read::ZlibDecoder::new(bytes.as_ref())),
        _ => return Err(Failure::Encoding),
    };
    let mut plain = Vec::new();
    reader
        .take(limit.saturating_add(1))
        .read_to_end(&mut plain)
        .map_err(|_corrupt| Failure::Encoding)?;
    if u64::try_from(plain.len()).unwrap_or(u64::MAX) > limit {
        return Err(Failure::Body(BodyError::RequestLimit { limit }));
    }
    Ok(Bytes::from(plain))
}

/// Asks policy.
pub(crate) fn decide(
    parsed: Parsed,
    policy: &Policy,
    services: &ServiceMap,
    situation: &Situation,
) -> Decided<Parsed> {
    let service = services.get(parsed.facts.authority.host());
    if service.is_some_and(|service| !service.admits(&parsed.facts.operation)) {
        let unlisted = refusal::NAME_NOT_LISTED;
        return Decided::Denied(Denied::refused(parsed, unlisted.rule, unlisted.reason));
    }
    policy.decide(parsed, situation)
}

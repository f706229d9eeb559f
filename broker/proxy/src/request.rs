//! The life of a request: parsed, decided, recorded, armed, sent, scrubbed, and its outcome.
//!
//! Read [`stages`] top to bottom; each line's value is what the next line takes, and there is no way round one of them.

use std::sync::Arc;

use http::{Request, Response, header};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tokio::time::timeout;
use wallgate_ledger::{LeafIndex, Recorded};
use wallgate_policy::{Decided, Denied, Policy, Situation};
use wallgate_types::record::Recordable;
use wallgate_types::request::{Protocol, Subject as _};
use wallgate_types::ruling::{Ruling, Verdict};

use crate::arm::arm;
use crate::connection::Connection;
use crate::decide::{Refused, decide, inspect};
use crate::deny::{self, Asked};
use crate::error::Failure;
use crate::internal;
use crate::outcome::{Outcome, deliver};
use crate::parse::canonical::parse;
use crate::parse::refusal::Refusal;
use crate::parse::{Parsed, ResponseBody};
use crate::relay::relay;
use crate::send::{Sent, send};
use crate::shared::{Remembered, Shared};

/// Answers one request. Never fails: what goes wrong becomes a response.
pub(crate) async fn request(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    mut incoming: Request<Incoming>,
) -> Response<ResponseBody> {
    let sandbox = &connection.sandbox;
    let id = Shared::request_id();
    let early = Asked::new(id, Protocol::Http, incoming.method());
    let claimed = claimed_authority(&incoming);
    let client = incoming.extensions_mut().remove::<OnUpgrade>();
    let parsed = match parse(incoming, id, &connection.origin, &shared.services, &shared.limits) {
        Ok(parsed) => parsed,
        Err(refusal) => return refuse(refusal, claimed, early, connection, shared).await,
    };
    if internal::is_meant(&parsed) {
        return internal::answer(parsed, sandbox, shared).await;
    }
    let asked = Asked::new(id, parsed.facts.protocol, &parsed.head.method);
    let policy = shared.policy();
    let situation = sandbox
        .memory
        .situation(parsed.facts.authority.host(), &*shared.clock);
    let mut outcome = Outcome::open(
        &shared.ledger,
        &shared.clock,
        &sandbox.memory,
        &sandbox.facts,
        id,
        &parsed.progress,
    );
    connection.watch(&parsed.progress);
    match stages(parsed, &policy, &situation, connection, shared, &mut outcome).await {
        Ok(passed) => finish(passed, client, outcome, connection, shared),
        Err(stop) => stop.answer(asked, outcome, connection, shared),
    }
}

/// A response that may go to the sandbox.
struct Scrubbed {
    response: Response<ResponseBody>,
    limit: u64,
    upgrade: Option<OnUpgrade>,
}

/// From a canonical request to a response without secrets. The order is held by the types.
async fn stages(
    parsed: Parsed,
    policy: &Policy,
    situation: &Situation,
    connection: &Connection,
    shared: &Shared,
    outcome: &mut Outcome,
) -> Result<Scrubbed, Stop> {
    let sandbox = &connection.sandbox;
    let wishes = parsed.wishes;
    let parsed = match inspect(parsed, policy, &shared.services, situation, &shared.limits).await {
        Ok(parsed) => parsed,
        Err(Refused { denied, failure }) => return Err(denied_as(denied, failure, shared).await),
    };
    let allowed = match decide(parsed, policy, &shared.services, situation) {
        Decided::Allowed(allowed) => allowed,
        Decided::Denied(denied) => return Err(denied_as(denied, None, shared).await),
    };
    let recorded = record(allowed, shared).await?;
    let index = recorded.index();
    let failed = |failure| Stop::Failed { failure, index };
    let ruling = recorded.value().ruling();
    let limit = ruling
        .limits
        .response_bytes
        .unwrap_or(shared.limits.body_bytes)
        .min(shared.limits.body_bytes);
    if !sandbox.memory.taint(&ruling.add_taints) {
        return Err(failed(Failure::Taints));
    }
    let armed = timeout(
        shared.limits.arm,
        arm(recorded, &shared.armoury, shared.clock.now()),
    )
    .await
    .map_err(|_elapsed| failed(Failure::ArmTimeout))?
    .map_err(|mut error| {
        outcome.uses = std::mem::take(&mut error.uses);
        failed(Failure::Arm(Box::new(error)))
    })?;
    outcome.uses = armed.uses().to_vec();
    let Sent {
        response,
        method,
        upgrade,
        scrub,
    } = send(armed, wishes, shared, sandbox, outcome)
        .await
        .map_err(failed)?;
    if response.status() == http::StatusCode::NOT_FOUND {
        sandbox.memory.not_found(shared.clock.monotonic());
    }
    let response = response.map(ResponseBody::new);
    let response = match scrub {
        None => response,
        Some(scrub) => scrub
            .response(response, &method, &outcome.scrubbed)
            .map_err(|_unable| failed(Failure::Scrub))?,
    };
    Ok(Scrubbed {
        response,
        limit,
        upgrade,
    })
}

/// Why there is no response from the origin.
enum Stop {
    /// It was not allowed, and that is recorded.
    Denied {
        denied: Box<Remembered>,
        ruling: Box<Ruling>,
        failure: Option<Failure>,
    },
    /// It was allowed, and something failed.
    Failed { failure: Failure, index: LeafIndex },
    /// The decision is not in the ledger, so nothing was sent.
    Unrecorded(Failure),
}

impl Stop {
    fn answer(
        self,
        asked: Asked,
        outcome: Outcome,
        connection: &Connection,
        shared: &Shared,
    ) -> Response<ResponseBody> {
        let sandbox = &connection.sandbox;
        match self {
            Self::Denied {
                denied,
                ruling,
                failure,
            } => {
                sandbox.memory.denied(shared.clock.monotonic());
                let index = denied.index;
                sandbox.decisions.remember(*denied);
                let response = match failure {
                    None => deny::deny(asked, &ruling, index),
                    Some(failure) => deny::fail(asked, &failure, Some(index)),
                };
                outcome.denied(response.status());
                response
            }
            Self::Failed { failure, index } => {
                tracing::info!(request = %asked.id, code = failure.code(), "a request failed");
                let response = deny::fail(asked, &failure, Some(index));
                outcome.failed(response.status(), failure.code());
                response
            }
            Self::Unrecorded(failure) => {
                tracing::error!(request = %asked.id, code = failure.code(), "a decision could not be recorded");
                outcome.void();
                deny::fail(asked, &failure, None)
            }
        }
    }
}

/// Makes a decision durable (P5). An error means that nothing may be sent.
async fn record<T: Recordable>(decision: T, shared: &Shared) -> Result<Recorded<T>, Stop> {
    timeout(shared.limits.record, shared.ledger.record(decision))
        .await
        .map_err(|_elapsed| Stop::Unrecorded(Failure::LedgerTimeout))?
        .map_err(|error| Stop::Unrecorded(Failure::Ledger(error)))
}

/// Records a denial.
async fn denied_as(denied: Denied<Parsed>, failure: Option<Failure>, shared: &Shared) -> Stop {
    let recorded = match record(denied, shared).await {
        Ok(recorded) => recorded,
        Err(stop) => return stop,
    };
    let index = recorded.index();
    let (parsed, ruling) = recorded.into_value().into_parts();
    let facts = parsed.facts();
    let denied = Remembered {
        id: facts.id,
        verdict: ruling.verdict,
        rule: ruling.rule.clone(),
        reason: ruling.reason.clone(),
        method: facts.method.clone(),
        host: facts.authority.to_string(),
        path: facts.path.clone(),
        index,
    };
    debug_assert_ne!(ruling.verdict, Verdict::Allow, "a denial never says allow");
    Stop::Denied {
        denied: Box::new(denied),
        ruling: Box::new(ruling),
        failure,
    }
}

/// Passes the response on; its outcome is known when its body, or the WebSocket behind it, has ended.
fn finish(
    passed: Scrubbed,
    client: Option<OnUpgrade>,
    outcome: Outcome,
    connection: &Arc<Connection>,
    shared: &Arc<Shared>,
) -> Response<ResponseBody> {
    let Scrubbed {
        response,
        limit,
        upgrade,
    } = passed;
    match (upgrade, client) {
        (None, _) => deliver(response, outcome, limit),
        (Some(upstream), Some(client)) => {
            relay(response, client, upstream, outcome, connection, shared, limit)
        }
        (Some(_), None) => {
            outcome.failed(http::StatusCode::BAD_GATEWAY, "upgrade");
            let mut refused = Response::new(crate::parse::body::empty());
            *refused.status_mut() = http::StatusCode::BAD_GATEWAY;
            refused
        }
    }
}

/// A request that is not one: answered, counted, and the end of an HTTP/1 connection.
async fn refuse(
    refusal: Refusal,
    claimed: Option<String>,
    asked: Asked,
    connection: &Connection,
    shared: &Shared,
) -> Response<ResponseBody> {
    connection.note_refusal(refusal, claimed, shared).await;
    let mut response = deny::fail(asked, &Failure::Refused(refusal), None);
    response
        .headers_mut()
        .insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    response
}

/// What the request says that it is for, if that is readable: for the record of a refusal only.
fn claimed_authority(request: &Request<Incoming>) -> Option<String> {
    let text = match request.uri().authority() {
        Some(authority) => authority.as_str(),
        None => request.headers().get(header::HOST)?.to_str().ok()?,
    };
    Some(text.chars().take(300).collect())
}

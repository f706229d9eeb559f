//! Names, decided: what the resolver for sandboxes and the minting of leaves ask (P4).
//!
//! A lookup is decided like a request, with protocol `dns`. A leaf is minted only for a name whose lookup policy would
//! allow, so that a flood of random server names costs one evaluation each and nothing else (Z06).

use std::sync::Arc;

use serde_json::json;
use wallgate_ledger::ControlEvent;
use wallgate_policy::Decided;
use wallgate_types::authority::{Authority, Host};
use wallgate_types::operation::{Action, Operation};
use wallgate_types::record::{OutcomeRecord, OutcomeResult};
use wallgate_types::request::{BodyFacts, DestinationFacts, Protocol, RequestFacts, Scheme};
use wallgate_types::ruling::{Ruling, Verdict};
use wallgate_types::sandbox::SandboxFacts;

use crate::dns::{DnsReport, NameGate, Unrecorded};
use crate::internal::is_internal;
use crate::shared::Shared;
use crate::terminate::MintPolicy;
use crate::usage::Memory;

/// Decides the names of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct NameDecider {
    shared: Arc<Shared>,
    memory: Arc<Memory>,
    sandbox: Arc<SandboxFacts>,
}

/// A lookup that was decided.
#[derive(Debug)]
pub(crate) enum NameDecision {
    /// By policy.
    Asked(Box<Decided<RequestFacts>>),
    /// Not by policy: `wallgate.internal` is where a sandbox is told what policy says.
    Internal(Box<Ruling>),
}

impl NameDecider {
    /// For one sandbox.
    pub(crate) const fn new(shared: Arc<Shared>, memory: Arc<Memory>, sandbox: Arc<SandboxFacts>) -> Self {
        Self {
            shared,
            memory,
            sandbox,
        }
    }

    fn allows(&self, host: &Host) -> bool {
        let Ok(authority) = Authority::new(host.clone(), 53) else {
            return false;
        };
        let facts = RequestFacts {
            id: Shared::request_id(),
            sandbox: Arc::clone(&self.sandbox),
            protocol: Protocol::Dns,
            method: "A".to_owned(),
            scheme: Scheme::Dns,
            authority,
            path: String::new(),
            segments: Vec::new(),
            raw_query: None,
            query: Vec::new(),
            headers: Vec::new(),
            body: BodyFacts::default(),
            destination: DestinationFacts {
                service: self.shared.services.get(host).map(|service| service.name.clone()),
                class: None,
                addresses: Vec::new(),
            },
            operation: Operation {
                ecosystem: "dns",
                action: Action::Read,
                name: "dns.lookup",
                package: None,
                version: None,
            },
            original_dst: None,
            sni: None,
        };
        let situation = self.memory.situation(host, &*self.shared.clock);
        self.shared.policy().decide(facts, &situation).is_allowed()
    }
}

impl MintPolicy for NameDecider {
    fn may_mint(&self, host: &Host) -> bool {
        // A literal has no lookup. Its leaves are few, and what is asked of it is judged as every request is.
        is_internal(host) || host.address().is_some() || self.allows(host)
    }
}

/// A lookup ends with its answer, which nobody else gives: a decision that is recorded is its own outcome. Without this
/// record a restart would take it for one that a crash cut short.
fn outcome_of(decided: &Decided<RequestFacts>) -> OutcomeRecord {
    let facts = decided.subject();
    OutcomeRecord {
        request_id: facts.id,
        sandbox: facts.sandbox.id.clone(),
        result: if decided.is_allowed() {
            OutcomeResult::Completed
        } else {
            OutcomeResult::Denied
        },
        error: None,
        status: None,
        dialled: None,
        request_bytes: 0,
        response_bytes: 0,
        duration_us: 0,
        credentials: Vec::new(),
        scrubbed: 0,
    }
}

impl NameGate for NameDecider {
    type Decision = NameDecision;

    fn decide(&self, mut facts: RequestFacts) -> NameDecision {
        let host = facts.authority.host();
        if is_internal(host) {
            let mut ruling = Ruling::refusal(
                "wallgate.internal",
                "This is where a sandbox asks about its rules.",
            );
            ruling.verdict = Verdict::Allow;
            return NameDecision::Internal(Box::new(ruling));
        }
        facts.destination.service = self.shared.services.get(host).map(|service| service.name.clone());
        let situation = self.memory.situation(host, &*self.shared.clock);
        let decided = self.shared.policy().decide(facts, &situation);
        if !decided.is_allowed() {
            self.memory.denied(self.shared.clock.monotonic());
        }
        NameDecision::Asked(Box::new(decided))
    }

    fn ruling<'d>(&self, decision: &'d NameDecision) -> &'d Ruling {
        match decision {
            NameDecision::Asked(decided) => decided.ruling(),
            NameDecision::Internal(ruling) => ruling,
        }
    }

    async fn record(&self, decision: NameDecision) -> Result<(), Unrecorded> {
        let ledger = &self.shared.ledger;
        let recorded = match decision {
            NameDecision::Internal(_) => return Ok(()),
            NameDecision::Asked(decided) => {
                let outcome = outcome_of(&decided);
                let recorded = match *decided {
                    Decided::Allowed(allowed) => ledger.record(allowed).await.map(drop),
                    Decided::Denied(denied) => ledger.record(denied).await.map(drop),
                };
                recorded.map(|()| ledger.outcome(outcome))
            }
        };
        recorded.map_err(|_unrecorded| Unrecorded)
    }

    async fn report(&self, report: DnsReport) {
        let repeats: Vec<_> = report
            .repeats
            .iter()
            .map(|one| {
                json!({ "name": one.name.as_str(), "type": one.record_type, "verdict": one.verdict, "rule": one.rule,
                        "count": one.count })
            })
            .collect();
        let unasked: serde_json::Map<_, _> = report
            .unasked
            .iter()
            .map(|(reason, count)| ((*reason).to_owned(), json!(count)))
            .collect();
        let event = ControlEvent {
            kind: if report.is_finding() {
                "dns_finding"
            } else {
                "dns_report"
            },
            sandbox: Some(self.sandbox.id.clone()),
            detail: json!({ "from_ms": report.from.0, "until_ms": report.until.0, "repeats": repeats, "unasked": unasked }),
        };
        self.shared.note(Some(event)).await;
    }
}

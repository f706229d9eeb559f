//! The resolver that a sandbox sees: it never asks anybody (DESIGN §5).
//!
//! Whatever address a query was sent to, it ends here. A name that policy allows is answered with the sandbox's own
//! synthetic addresses; every other one with REFUSED and an extended error that says why. No byte that a sandbox puts
//! into a name reaches any server, and nothing in a message of the sandbox's changes what an address stands for: a
//! forged answer, which is a message with QR set, is dropped unread.
//!
//! ```text
//!  datagram or frame ─▶ rate ─▶ message::read ─▶ local? ─▶ budget of names ─▶ decide ─▶ record ─▶ answer
//! ```
//!
//! Each lookup is decided by policy (protocol `dns`). The first of each name, type and verdict is recorded before its
//! answer leaves; repeats are counted and reported every [`DNS_REPORT_INTERVAL`], and after [`DNS_NAME_WINDOW`] the next
//! one is recorded anew. Counts since the last report are lost when the broker dies.
//!
//! Two kinds of question are answered without policy, since they tell and reach nothing: `wallgate.internal`, which is
//! the broker itself, and PTR, which knows the sandbox's own synthetic addresses only. They are counted.

mod message;
mod tally;
mod tcp;
mod udp;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use wallgate_types::authority::{Authority, Host, Name};
use wallgate_types::clock::{Clock, Timestamp};
use wallgate_types::operation::{Action, Operation};
use wallgate_types::request::{BodyFacts, DestinationFacts, Protocol, RequestFacts, RequestId, Scheme};
use wallgate_types::ruling::{Ruling, Verdict};
use wallgate_types::sandbox::SandboxFacts;

use self::message::{Data, ExtendedError, Query, Rcode, Reading, RecordType, Transport};
use self::tally::{Key, Tally};
use crate::edge_limits::{DNS_NAME_WINDOW, DNS_REPORT_INTERVAL, MAX_DNS_CONNECTIONS, SYNTHETIC_TTL_SECS};
use crate::names::NameTable;

/// The name under which a sandbox finds the broker itself.
pub const INTERNAL_NAME: &str = "wallgate.internal";
const DNS_PORT: u16 = 53;

/// A decision could not be made durable, so nothing is answered.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the lookup could not be recorded")]
pub struct Unrecorded;

/// What decides about lookups and keeps them.
pub trait NameGate: Send + Sync + 'static {
    /// A decided lookup.
    type Decision: Send;

    /// Asks policy. Never fails: what cannot be decided is denied.
    fn decide(&self, facts: RequestFacts) -> Self::Decision;

    /// What policy said.
    fn ruling<'d>(&self, decision: &'d Self::Decision) -> &'d Ruling;

    /// Makes the decision durable before it returns.
    fn record(&self, decision: Self::Decision) -> impl Future<Output = Result<(), Unrecorded>> + Send;

    /// Keeps what was only counted.
    fn report(&self, report: DnsReport) -> impl Future<Output = ()> + Send;
}

/// How often a recorded lookup was repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRepeats {
    /// The name.
    pub name: Name,
    /// `A`, `AAAA` …
    pub record_type: String,
    /// What policy said each time.
    pub verdict: Verdict,
    /// The rule that said so.
    pub rule: String,
    /// How often, beyond what was recorded one by one.
    pub count: u64,
}

/// What happened since the last report and was not recorded one by one. The counts are exact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsReport {
    /// Since when.
    pub from: Timestamp,
    /// Until when.
    pub until: Timestamp,
    /// Repeated lookups.
    pub repeats: Vec<NameRepeats>,
    /// Messages that policy was not asked about, by reason: see [`DnsReport::REASONS`].
    pub unasked: Vec<(&'static str, u64)>,
}

impl DnsReport {
    /// Every reason that [`DnsReport::unasked`] can hold, and whether it is a finding: a sign of tunnelling or flooding.
    pub const REASONS: [(&'static str, bool); 20] = [
        ("unanswerable", false),
        ("short", false),
        ("response", true),
        ("oversize", true),
        ("opcode", false),
        ("truncated", false),
        ("counts", false),
        ("question", false),
        ("additional", false),
        ("trailing_bytes", false),
        ("edns_version", false),
        ("class", false),
        ("type", false),
        ("bad_name", false),
        ("local", false),
        ("rate", true),
        ("distinct_names", true),
        ("names_full", true),
        ("unrecorded", false),
        ("overloaded", true),
    ];

    /// Whether some of it is a finding.
    #[must_use]
    pub fn is_finding(&self) -> bool {
        let findings = |reason| Self::REASONS.contains(&(reason, true));
        self.unasked.iter().any(|(reason, _)| findings(*reason))
    }

    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.repeats.is_empty() && self.unasked.is_empty()
    }
}

/// Why a socket cannot be served.
#[derive(Debug, Error)]
pub enum DnsError {
    /// The socket could not be set up.
    #[error("cannot set up the DNS socket")]
    Setup(#[source] std::io::Error),
    /// The socket broke.
    #[error("cannot receive on the DNS socket")]
    Receive(#[source] std::io::Error),
}

/// One sandbox's resolver.
pub struct DnsServer<G> {
    sandbox: Arc<SandboxFacts>,
    names: Arc<NameTable>,
    clock: Arc<dyn Clock>,
    gate: G,
    tally: Tally,
    connections: Arc<Semaphore>,
}

impl<G> std::fmt::Debug for DnsServer<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DnsServer")
            .field("sandbox", &self.sandbox.id)
            .finish_non_exhaustive()
    }
}

impl<G: NameGate> DnsServer<G> {
    /// A resolver for this sandbox, over its table of names.
    #[must_use]
    pub fn new(sandbox: Arc<SandboxFacts>, names: Arc<NameTable>, clock: Arc<dyn Clock>, gate: G) -> Self {
        Self {
            sandbox,
            names,
            tally: Tally::new(&*clock),
            clock,
            gate,
            connections: Arc::new(Semaphore::new(MAX_DNS_CONNECTIONS)),
        }
    }

    /// Reports what was counted every [`DNS_REPORT_INTERVAL`], and once more when it is stopped: the owner awaits it
    /// after everything that answers has ended.
    pub async fn report_until(&self, stop: CancellationToken) {
        while tokio::time::timeout(DNS_REPORT_INTERVAL, stop.cancelled())
            .await
            .is_err()
        {
            self.report().await;
        }
        self.report().await;
    }

    /// Reports what was counted since the last report, if anything was.
    ///
    /// Not cancel-safe: a cancelled report is lost.
    pub async fn report(&self) {
        let report = self.tally.take(&*self.clock);
        if !report.is_empty() {
            self.gate.report(report).await;
        }
    }

    /// The answer to one message, if it gets one.
    async fn answer(&self, message: &[u8], transport: Transport) -> Option<Vec<u8>> {
        if !self.tally.take_token(&*self.clock) {
            self.tally.count("rate");
            return None;
        }
        match message::read(message) {
            Reading::Query(query) => Some(self.answer_query(&query, transport).await),
            Reading::Refused { reason, answer } => {
                self.tally.count(reason);
                Some(answer)
            }
            Reading::Dropped { reason } => {
                self.tally.count(reason);
                None
            }
        }
    }

    async fn answer_query(&self, query: &Query<'_>, transport: Transport) -> Vec<u8> {
        let prohibited = |reason, text: &str| {
            self.tally.count(reason);
            query.refusal(ExtendedError::new(ExtendedError::PROHIBITED, text))
        };
        let name = match &query.name {
            Ok(name) => name,
            Err(error) => return prohibited("bad_name", &error.to_string()),
        };
        if query.record_type == RecordType::Ptr {
            self.tally.count("local");
            return self.pointer(query, name, transport);
        }
        if name.as_str() == INTERNAL_NAME {
            self.tally.count("local");
            return self.synthetic(query, name, transport);
        }
        if !self.tally.admit_name(name, &*self.clock) {
            return prohibited("distinct_names", "too many different names in too short a time");
        }
        let decision = self.gate.decide(self.facts(name, query.record_type));
        let ruling = self.gate.ruling(&decision);
        let verdict = ruling.verdict;
        let explanation = format!("{}: {} (http://{INTERNAL_NAME}/)", ruling.rule, ruling.reason);
        let key = Key {
            name: name.clone(),
            record_type: query.record_type,
            verdict,
            rule: ruling.rule.clone(),
        };
        if !self.tally.repeat(&key) {
            if self.gate.record(decision).await.is_err() {
                self.tally.count("unrecorded");
                let error = ExtendedError::new(ExtendedError::OTHER, "the lookup could not be recorded");
                return query.answer(Rcode::ServFail, &[], Some(error), transport);
            }
            self.tally.recorded(key, &*self.clock);
        }
        match verdict {
            Verdict::Allow => self.synthetic(query, name, transport),
            Verdict::Deny | Verdict::Ask => {
                query.refusal(ExtendedError::new(ExtendedError::BLOCKED, &explanation))
            }
        }
    }

    /// The addresses that stand for an allowed name; NODATA for every other type, HTTPS and SVCB included, so that no
    /// client learns of ECH keys or of HTTP/3.
    fn synthetic(&self, query: &Query<'_>, name: &Name, transport: Transport) -> Vec<u8> {
        let data = match query.record_type {
            RecordType::A => self.names.assign(name).map(|both| Some(Data::V4(both.v4))),
            RecordType::Aaaa => self.names.assign(name).map(|both| Some(Data::V6(both.v6))),
            RecordType::Ptr | RecordType::Other(_) => Ok(None),
        };
        match data {
            Ok(data) => {
                let data: Vec<_> = data.into_iter().map(|data| (data, SYNTHETIC_TTL_SECS)).collect();
                query.answer(Rcode::NoError, &data, None, transport)
            }
            Err(full) => {
                self.tally.count("names_full");
                let error = ExtendedError::new(ExtendedError::OTHER, &full.to_string());
                query.answer(Rcode::ServFail, &[], Some(error), transport)
            }
        }
    }

    fn pointer(&self, query: &Query<'_>, name: &Name, transport: Transport) -> Vec<u8> {
        let pointed = reverse(name).and_then(|address| self.names.lookup(address));
        match pointed {
            Some(name) => query.answer(
                Rcode::NoError,
                &[(Data::Pointer(name), SYNTHETIC_TTL_SECS)],
                None,
                transport,
            ),
            None => query.answer(Rcode::NxDomain, &[], None, transport),
        }
    }

    fn facts(&self, name: &Name, record_type: RecordType) -> RequestFacts {
        let host = Host::Name(name.clone());
        #[expect(
            clippy::expect_used,
            reason = "port 53 is not 0, which is all that can be refused"
        )]
        let authority = Authority::new(host, DNS_PORT).expect("53 is a port");
        RequestFacts {
            id: RequestId(rand::random()),
            sandbox: Arc::clone(&self.sandbox),
            protocol: Protocol::Dns,
            method: record_type.name(),
            scheme: Scheme::Dns,
            authority,
            path: String::new(),
            segments: Vec::new(),
            raw_query: None,
            query: Vec::new(),
            headers: Vec::new(),
            body: BodyFacts::default(),
            destination: DestinationFacts::default(),
            operation: Operation {
                ecosystem: "none",
                action: Action::Read,
                name: "dns.lookup",
                package: None,
                version: None,
            },
            original_dst: None,
            sni: None,
        }
    }
}

/// The address in a name under `in-addr.arpa` (RFC 1035, section 3.5) or `ip6.arpa` (RFC 3596, section 2.5).
fn reverse(name: &Name) -> Option<IpAddr> {
    if let Some(labels) = name.as_str().strip_suffix(".in-addr.arpa") {
        let mut octets = [0_u8; 4];
        let mut labels = labels.split('.');
        for octet in octets.iter_mut().rev() {
            *octet = labels.next()?.parse().ok()?;
        }
        return labels.next().is_none().then(|| Ipv4Addr::from(octets).into());
    }
    let mut labels = name.as_str().strip_suffix(".ip6.arpa")?.split('.');
    let mut address = 0_u128;
    for shift in (0..128).step_by(4) {
        let label = labels.next()?;
        if label.len() != 1 {
            return None;
        }
        address |= u128::from(u8::from_str_radix(label, 16).ok()?) << shift;
    }
    labels.next().is_none().then(|| Ipv6Addr::from(address).into())
}

/// Reads one message as a sandbox's resolver would: for fuzzing.
#[doc(hidden)]
#[must_use]
pub fn fuzz_read(message: &[u8]) -> Option<Vec<u8>> {
    match message::read(message) {
        Reading::Query(query) => {
            let data = [(Data::V6(Ipv6Addr::LOCALHOST), 1)];
            let error = ExtendedError::new(ExtendedError::BLOCKED, "x");
            Some(query.answer(Rcode::NoError, &data, Some(error), Transport::Udp))
        }
        Reading::Refused { answer, .. } => Some(answer),
        Reading::Dropped { .. } => None,
    }
}

const _: () = assert!(DNS_NAME_WINDOW.as_secs() >= DNS_REPORT_INTERVAL.as_secs());

#[cfg(test)]
mod tests;

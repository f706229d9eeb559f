//! The proof that policy was asked (P4).
//!
//! [`Allowed`] has private fields, no `Clone` and no public maker: the only way to one is [`crate::Policy::decide`].
//! The stages behind it take nothing else, so a request that was not decided does not compile.

use std::fmt::Write as _;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use wallgate_types::record::{DecisionRecord, MAX_RECORDED_PATH_BYTES, Recordable};
use wallgate_types::request::{RequestFacts, Subject};
use wallgate_types::ruling::Ruling;

use crate::bundle::BundleDigest;

/// A subject that was decided, one way or the other.
#[must_use = "a decision is recorded, whichever way it went"]
#[derive(Debug)]
pub enum Decided<T> {
    /// It may go on to the ledger.
    Allowed(Allowed<T>),
    /// It goes to the ledger, and then back with a denial.
    Denied(Denied<T>),
}

/// A subject that policy allowed.
#[must_use = "an allowed request is recorded before anything else happens to it"]
#[derive(Debug)]
pub struct Allowed<T> {
    subject: T,
    ruling: Ruling,
    bundle: Arc<BundleDigest>,
}

/// A subject that policy denied, or that was refused without asking it.
#[must_use = "a denial is recorded and answered"]
#[derive(Debug)]
pub struct Denied<T> {
    subject: T,
    ruling: Ruling,
    /// None when the request was refused without asking a bundle.
    bundle: Option<Arc<BundleDigest>>,
}

impl<T> Decided<T> {
    /// What was decided about.
    pub const fn subject(&self) -> &T {
        match self {
            Self::Allowed(allowed) => &allowed.subject,
            Self::Denied(denied) => &denied.subject,
        }
    }

    /// What policy said.
    pub const fn ruling(&self) -> &Ruling {
        match self {
            Self::Allowed(allowed) => &allowed.ruling,
            Self::Denied(denied) => &denied.ruling,
        }
    }

    /// Whether it may go on.
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }
}

impl<T> Allowed<T> {
    pub(crate) const fn new(subject: T, ruling: Ruling, bundle: Arc<BundleDigest>) -> Self {
        Self {
            subject,
            ruling,
            bundle,
        }
    }

    /// What was allowed.
    pub const fn subject(&self) -> &T {
        &self.subject
    }

    /// What policy said.
    pub const fn ruling(&self) -> &Ruling {
        &self.ruling
    }

    /// The subject and the ruling, apart: the proof is spent.
    pub fn into_parts(self) -> (T, Ruling) {
        (self.subject, self.ruling)
    }
}

impl<T> Denied<T> {
    pub(crate) const fn new(subject: T, ruling: Ruling, bundle: Arc<BundleDigest>) -> Self {
        Self {
            subject,
            ruling,
            bundle: Some(bundle),
        }
    }

    /// Refuses without asking policy: what was sent is malformed, or something that a decision needs is not there.
    /// `rule` begins with `wallgate.`. A refusal needs no proof, so anybody may make one.
    pub fn refused(subject: T, rule: &str, reason: &str) -> Self {
        Self {
            subject,
            ruling: Ruling::refusal(rule, reason),
            bundle: None,
        }
    }

    /// What was denied.
    pub const fn subject(&self) -> &T {
        &self.subject
    }

    /// What policy said.
    pub const fn ruling(&self) -> &Ruling {
        &self.ruling
    }

    /// The subject and the ruling, apart.
    pub fn into_parts(self) -> (T, Ruling) {
        (self.subject, self.ruling)
    }
}

impl<T: Subject> Recordable for Allowed<T> {
    fn decision_record(&self) -> DecisionRecord {
        record_of(self.subject.facts(), &self.ruling, Some(&self.bundle))
    }
}

impl<T: Subject> Recordable for Denied<T> {
    fn decision_record(&self) -> DecisionRecord {
        record_of(self.subject.facts(), &self.ruling, self.bundle.as_deref())
    }
}

fn record_of(facts: &RequestFacts, ruling: &Ruling, bundle: Option<&BundleDigest>) -> DecisionRecord {
    DecisionRecord {
        request_id: facts.id,
        sandbox: facts.sandbox.id.clone(),
        source: facts.sandbox.source,
        protocol: facts.protocol.as_str(),
        method: facts.method.clone(),
        scheme: facts.scheme.as_str(),
        host: facts.authority.host().to_string(),
        port: facts.authority.port(),
        path: recorded_path(&facts.path),
        query_sha256: facts
            .raw_query
            .as_deref()
            .map(|query| hex::encode(Sha256::digest(query))),
        sni: facts.sni.as_ref().map(ToString::to_string),
        original_dst: facts.original_dst.map(|dst| dst.0.to_string()),
        operation: facts.operation.name,
        action: facts.operation.action.as_str(),
        package: facts.operation.package.clone(),
        version: facts.operation.version.clone(),
        service: facts.destination.service.clone(),
        verdict: ruling.verdict,
        rule: ruling.rule.clone(),
        reason: ruling.reason.clone(),
        credentials: ruling.credentials.clone(),
        bundle: bundle.map(ToString::to_string).unwrap_or_default(),
    }
}

fn recorded_path(path: &str) -> String {
    if path.len() <= MAX_RECORDED_PATH_BYTES {
        return path.to_owned();
    }
    let cut = path.floor_char_boundary(MAX_RECORDED_PATH_BYTES);
    let mut shortened = path.get(..cut).unwrap_or_default().to_owned();
    // Writing to a String cannot fail.
    let _ = write!(shortened, "…sha256:{}", hex::encode(Sha256::digest(path)));
    shortened
}

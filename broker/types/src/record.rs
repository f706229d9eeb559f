//! What the ledger keeps of a decision, and of what became of it.
//!
//! These are facts about a request, not the stored record: the ledger adds its own envelope (sequence, time, epoch).
//! Queries and bodies appear by size or digest only; a secret's value, never.

use serde::Serialize;

use crate::request::RequestId;
use crate::ruling::Verdict;
use crate::sandbox::{IdentitySource, SandboxId};

/// A decision, before anything is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DecisionRecord {
    /// The request's random name, which the outcome repeats.
    pub request_id: RequestId,
    /// Who asked.
    pub sandbox: SandboxId,
    /// How it was recognised.
    pub source: IdentitySource,
    /// `http`, `websocket`, `grpc`, `dns` or `tcp`.
    pub protocol: &'static str,
    /// The method, or the record type of a name lookup.
    pub method: String,
    /// `https`, `http` or `dns`.
    pub scheme: &'static str,
    /// The canonical host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The canonical path, without query; at most [`MAX_RECORDED_PATH_BYTES`], else cut there and followed by the
    /// digest of the whole.
    pub path: String,
    /// SHA-256 of the query as sent, in hexadecimal, when there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_sha256: Option<String>,
    /// The name in the TLS handshake, when there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sni: Option<String>,
    /// The address that the sandbox dialled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_dst: Option<String>,
    /// The operation's name, such as `npm.tarball`.
    pub operation: &'static str,
    /// The operation's action, such as `read`.
    pub action: &'static str,
    /// The package that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// The version that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The operator's name for the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Allow, deny or ask.
    pub verdict: Verdict,
    /// The rule that said so.
    pub rule: String,
    /// Why.
    pub reason: String,
    /// Names of the credentials that the ruling asks for.
    pub credentials: Vec<String>,
    /// The digest of the bundle that decided, in hexadecimal; empty when none was asked.
    pub bundle: String,
}

/// The longest path that a record spells out, in bytes.
pub const MAX_RECORDED_PATH_BYTES: usize = 2048;

/// What a record can be made of, and the only thing that the ledger takes before egress.
pub trait Recordable {
    /// The facts to keep.
    fn decision_record(&self) -> DecisionRecord;
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OutcomeRecord {
    /// The decision's request.
    pub request_id: RequestId,
    /// Who asked.
    pub sandbox: SandboxId,
    /// `completed`, `denied`, `failed`, `aborted` or, after a crash, `unknown_crash`.
    pub result: OutcomeResult,
    /// The reason code of a failure, such as `upstream_certificate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The status that the sandbox got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The address that was dialled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialled: Option<String>,
    /// Body bytes sent upstream.
    pub request_bytes: u64,
    /// Body bytes sent to the sandbox.
    pub response_bytes: u64,
    /// From the decision to the end, in microseconds.
    pub duration_us: u64,
    /// Each credential that was injected: name and version, or why it was withheld.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<CredentialUse>,
    /// How many times an injected secret was removed from the response.
    #[serde(skip_serializing_if = "is_zero")]
    pub scrubbed: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes the field by reference"
)]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// How a request ended, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeResult {
    /// The response reached the sandbox whole.
    Completed,
    /// Nothing was sent; the sandbox got a denial.
    Denied,
    /// Something upstream or inside failed; the sandbox got an error or a cut response.
    Failed,
    /// The sandbox went away.
    Aborted,
    /// The broker died between the decision and its outcome.
    UnknownCrash,
}

/// What became of one credential that a ruling asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CredentialUse {
    /// The credential's name.
    pub name: String,
    /// The version that was injected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Why it was not injected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
}

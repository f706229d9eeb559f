//! The configuration file as it is written: names, types and nothing else.
//!
//! Unknown keys are errors. What is checked by more than its type keeps its place in the file ([`Spanned`]), so that
//! [`super::Config`] can name the line.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use wallgate_vault::config::RawCredential;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawConfig {
    pub(super) state_dir: Option<PathBuf>,
    pub(super) policy: RawPolicy,
    pub(super) service: Vec<RawService>,
    pub(super) upstream: Vec<RawUpstream>,
    pub(super) credential: Vec<Spanned<RawCredential>>,
    pub(super) run: RawRun,
    pub(super) limits: RawLimits,
    pub(super) vault: RawVaults,
    pub(super) log: RawLog,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawPolicy {
    pub(super) bundle: Option<PathBuf>,
    pub(super) data: Vec<Spanned<PathBuf>>,
    pub(super) eval_timeout_ms: Option<Spanned<u64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawService {
    pub(super) name: Spanned<String>,
    pub(super) hosts: Vec<Spanned<String>>,
    pub(super) profile: Spanned<String>,
    pub(super) names: Option<Spanned<PathBuf>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawUpstream {
    pub(super) host: Spanned<String>,
    pub(super) address: Spanned<String>,
    pub(super) ca: Option<Spanned<PathBuf>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRun {
    pub(super) bind: Vec<Spanned<PathBuf>>,
    pub(super) ro_bind: Vec<Spanned<PathBuf>>,
    pub(super) env: BTreeMap<String, Spanned<String>>,
    pub(super) pass_env: Vec<Spanned<String>>,
    pub(super) grace_ms: Option<Spanned<u64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLimits {
    pub(super) connections_per_sandbox: Option<Spanned<u64>>,
    pub(super) body_bytes: Option<Spanned<u64>>,
    pub(super) inspect_bytes: Option<Spanned<u64>>,
    pub(super) drain_ms: Option<Spanned<u64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawVaults {
    pub(super) hashicorp: Option<RawHashicorp>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHashicorp {
    pub(super) address: Spanned<String>,
    pub(super) token: Spanned<String>,
    pub(super) namespace: Option<String>,
    pub(super) ca: Option<Spanned<PathBuf>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLog {
    pub(super) level: Option<Spanned<String>>,
    pub(super) file: Option<PathBuf>,
}

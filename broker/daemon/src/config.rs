//! The configuration: read, then validated as a whole, before anything is opened or bound.
//!
//! Relative paths are relative to the file that they stand in. Every key has a default except those inside an entry of
//! a list. `docs` of each field of [`Config`] says which.

mod raw;
mod read;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use wallgate_types::authority::Host;
use wallgate_vault::config::Credential;
use wallgate_vault::reference::SecretRef;

pub use read::read;
pub(crate) use read::variable_name;

/// Where the configuration is looked for when `--config` is not given.
pub const DEFAULT_CONFIG: &str = "/etc/wallgate/wallgate.toml";
/// Where state is kept when neither the configuration nor `--state` says otherwise.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/wallgate";
/// The bundle, relative to the configuration, when it names none.
pub const DEFAULT_BUNDLE: &str = "policies";
/// How long one policy evaluation may take unless the configuration says otherwise.
pub const DEFAULT_EVAL_TIMEOUT: Duration = Duration::from_millis(20);
/// How long a command may take to end after a signal, before it is killed.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(5);
/// How long the broker may take to finish what is under way once its sandboxes are gone.
pub const DEFAULT_DRAIN: Duration = Duration::from_secs(5);
/// The largest configuration file, in bytes.
pub const MAX_CONFIG_BYTES: u64 = 1024 * 1024;
/// The most entries of each list.
pub const MAX_ENTRIES: usize = 10_000;

/// Why a configuration is refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is longer than [`MAX_CONFIG_BYTES`] or not UTF-8.
    #[error("the configuration {} is not text of at most {MAX_CONFIG_BYTES} bytes", .0.display())]
    NotText(PathBuf),
    /// Something in it is wrong.
    #[error("{}:{line}: {key}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key, dotted.
        key: String,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
}

/// A validated configuration.
#[derive(Debug)]
pub struct Config {
    /// The file that it was read from, absolute.
    pub path: PathBuf,
    /// `state_dir`. Default: [`DEFAULT_STATE_DIR`].
    pub state_dir: PathBuf,
    /// `[policy]`.
    pub policy: PolicyConfig,
    /// `[[service]]`. Default: none.
    pub services: Vec<ServiceConfig>,
    /// `[[upstream]]`. Default: none.
    pub upstreams: Vec<UpstreamConfig>,
    /// `[[credential]]`. Default: none.
    pub credentials: Vec<CredentialConfig>,
    /// `[run]`.
    pub run: RunConfig,
    /// `[limits]`.
    pub limits: LimitsConfig,
    /// `[vault.hashicorp]`. Default: none; then no credential may have a `vault:` source.
    pub hashicorp: Option<HashicorpConfig>,
    /// `[log]`.
    pub log: LogConfig,
}

/// `[policy]`.
#[derive(Debug)]
pub struct PolicyConfig {
    /// `bundle`: a directory. Default: [`DEFAULT_BUNDLE`] beside the configuration.
    pub bundle: PathBuf,
    /// `data`: JSON files laid over the bundle's `data.json`. Default: none.
    pub data: Vec<PathBuf>,
    /// `eval_timeout_ms`: 1 to 10000. Default: [`DEFAULT_EVAL_TIMEOUT`].
    pub eval_timeout: Duration,
}

/// One `[[service]]`: what a host is.
#[derive(Debug)]
pub struct ServiceConfig {
    /// `name`, as policy and the ledger call it.
    pub name: String,
    /// `hosts`, at least one.
    pub hosts: Vec<Host>,
    /// `profile`: the grammar of its operations.
    pub profile: String,
    /// `names`: a lockfile or list; only what it names exists.
    pub names: Option<PathBuf>,
}

/// One `[[upstream]]`: where a name is really dialled.
#[derive(Debug)]
pub struct UpstreamConfig {
    /// `host`: a name, or a name with the one port that this is for.
    pub host: Host,
    /// The port in `host`, when it has one.
    pub port: Option<u16>,
    /// `address`: an address and port; any class of address may stand here.
    pub address: SocketAddr,
    /// `ca`: a PEM file of further roots for this name only.
    pub ca: Option<PathBuf>,
}

/// One `[[credential]]`: what it may be used for, and where its value is.
#[derive(Debug)]
pub struct CredentialConfig {
    /// `name`, `shape` and `bind`.
    pub credential: Credential,
    /// `source`.
    pub source: SecretRef,
}

/// `[run]`.
#[derive(Debug)]
pub struct RunConfig {
    /// `bind`: paths that the command may change, at the same place inside. Default: none.
    pub bind: Vec<PathBuf>,
    /// `ro_bind`: paths that it may read. Default: none.
    pub ro_bind: Vec<PathBuf>,
    /// `env`: variables to set. Default: none.
    pub env: BTreeMap<String, String>,
    /// `pass_env`: variables to take from wallgate's own environment. Default: none.
    pub pass_env: Vec<String>,
    /// `grace_ms`: 0 to 600000. Default: [`DEFAULT_GRACE`].
    pub grace: Duration,
}

/// `[limits]`. `None` leaves the broker's own documented limit (`wallgate_proxy::limits`).
#[derive(Debug)]
pub struct LimitsConfig {
    /// `connections_per_sandbox`: at least 1.
    pub connections_per_sandbox: Option<usize>,
    /// `body_bytes`: the largest request or response body, whatever a rule says.
    pub body_bytes: Option<u64>,
    /// `inspect_bytes`: the most of a body that policy is shown; a longer one is denied where policy needs it.
    pub inspect_bytes: Option<u64>,
    /// `drain_ms`: 0 to 600000. Default: [`DEFAULT_DRAIN`].
    pub drain: Duration,
}

/// `[vault.hashicorp]`: HashiCorp Vault or `OpenBao`.
#[derive(Debug)]
pub struct HashicorpConfig {
    /// `address`: `https://HOST[:PORT]`, or `http://` for a loopback address.
    pub address: String,
    /// `token`: an `env:` or `file:` source.
    pub token: SecretRef,
    /// `namespace`. Default: none.
    pub namespace: Option<String>,
    /// `ca`: a PEM file of further roots.
    pub ca: Option<PathBuf>,
}

/// `[log]`.
#[derive(Debug)]
pub struct LogConfig {
    /// `level`: `error`, `warn`, `info`, `debug` or `trace`. Default: `warn`.
    pub level: String,
    /// `file`. Default: standard error.
    pub file: Option<PathBuf>,
}

impl Config {
    /// The directory that relative paths start from.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Every source that is configured, the vault's own token included.
    pub fn sources(&self) -> impl Iterator<Item = &SecretRef> {
        self.credentials
            .iter()
            .map(|credential| &credential.source)
            .chain(self.hashicorp.iter().map(|vault| &vault.token))
    }

    /// Files that hold secrets, which a sandbox never sees.
    pub fn secret_files(&self) -> impl Iterator<Item = PathBuf> {
        let files = self.sources().filter(|source| source.scheme() == "file");
        files.map(|source| self.directory().join(source.locator()))
    }

    /// Names of environment variables that hold secrets.
    pub fn secret_variables(&self) -> impl Iterator<Item = &str> {
        let variables = self.sources().filter(|source| source.scheme() == "env");
        variables.map(SecretRef::locator)
    }
}

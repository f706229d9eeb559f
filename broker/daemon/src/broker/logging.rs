//! The broker's log: what an operator needs, never a secret, a query string or a body.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;

use tracing_subscriber::EnvFilter;

use crate::config::LogConfig;
use crate::exit::{Exit, Failure};

/// Starts logging, of wallgate's own crates only: libraries may know more than may be said.
pub(super) fn start(config: &LogConfig) -> Result<(), Failure> {
    let level = &config.level;
    let filter = EnvFilter::new(format!(
        "off,wallgate_daemon={level},wallgate_proxy={level},wallgate_ledger={level},wallgate_policy={level},wallgate_vault={level},wallgate_vault_local={level},wallgate_vault_hashicorp={level}"
    ));
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    let started = match &config.file {
        None => builder.with_ansi(false).with_writer(std::io::stderr).try_init(),
        Some(path) => {
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(path)
                .map_err(|error| {
                    Failure::new(
                        Exit::Usage,
                        format!("cannot write the log {}: {error}", path.display()),
                    )
                })?;
            builder.json().with_writer(std::sync::Mutex::new(file)).try_init()
        }
    };
    started.map_err(Failure::internal)
}

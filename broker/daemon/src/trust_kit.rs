//! `wallgate trust-kit`: what clients need in order to trust the broker.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use wallgate_proxy::tls::ca::Root;
use wallgate_types::clock::{Clock, SystemClock};

use crate::config::{self, DEFAULT_CONFIG};
use crate::exit::{Exit, Failure};
use crate::sandbox::environment::trust_variables;
use crate::sandbox::etc;
use crate::state::{StateDir, StatePaths};

/// Write what clients need in order to trust the broker.
///
/// DIR gets `ca.pem` (our root), `ca-bundle.pem` (this host's bundle and our root), and the variables that point
/// clients at them, as `env.sh` to source and `env.json` to read. A sandbox of `wallgate run` has all of it already;
/// this is for sandboxes that are attached otherwise. No key is written. Makes the root when there is none yet.
///
/// Java has its own store: `keytool -importcert -noprompt -alias wallgate -file ca.pem -cacerts` puts the root there.
#[derive(Debug, Args)]
pub(crate) struct TrustKitArguments {
    /// Where to write it; made when missing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Where the files will stand for the clients; DIR unless given.
    #[arg(long, value_name = "DIR")]
    inside: Option<PathBuf>,
    /// The configuration whose `state_dir` holds the root.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// The state directory, instead of the configuration's.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

/// Writes it.
pub(crate) fn run(arguments: &TrustKitArguments) -> Result<ExitCode, Failure> {
    let state = if let Some(state) = &arguments.state {
        state.clone()
    } else {
        let config = config::read(&arguments.config).map_err(|error| Failure::new(Exit::Usage, error))?;
        config.state_dir
    };
    let root = root_certificate(&state)?;
    let out = std::path::absolute(&arguments.out).map_err(|error| Failure::new(Exit::Usage, error))?;
    let inside = arguments.inside.as_deref().unwrap_or(&out);
    let bundle = etc::bundle(&root).map_err(|error| Failure::new(Exit::Unavailable, error))?;
    let place = |name: &str| inside.join(name).to_string_lossy().into_owned();
    let variables = trust_variables(&place("ca-bundle.pem"), &place("ca.pem"));
    fs::create_dir_all(&out).map_err(|error| unwritable(&out, &error))?;
    let json = serde_json::to_string_pretty(&variables).map_err(Failure::internal)?;
    let files = [
        ("ca.pem", root),
        ("ca-bundle.pem", bundle),
        ("env.sh", shell(&variables)),
        ("env.json", json + "\n"),
    ];
    for (name, content) in files {
        let path = out.join(name);
        fs::write(&path, content).map_err(|error| unwritable(&path, &error))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the root; makes it, under the directory's lock, only when there is none.
fn root_certificate(state: &Path) -> Result<String, Failure> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let directory = StatePaths::new(state).authority();
    let _lock = if directory.join("root.pem").exists() {
        None
    } else {
        Some(StateDir::open(state)?)
    };
    Root::load_or_create(&directory, &clock)
        .map(|root| root.certificate_pem().to_owned())
        .map_err(|error| {
            Failure::new(
                Exit::State,
                format!("the root certificate in {}: {error}", directory.display()),
            )
        })
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(Exit::Usage, format!("cannot write {}: {error}", path.display()))
}

/// `export` lines for a POSIX shell.
fn shell(variables: &BTreeMap<String, String>) -> String {
    let line =
        |(name, value): (&String, &String)| format!("export {name}='{}'\n", value.replace('\'', r"'\''"));
    variables.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_a_quote_stays_one_word() {
        let variables = BTreeMap::from([("SSL_CERT_FILE".to_owned(), "/it's/ca".to_owned())]);
        assert_eq!(shell(&variables), "export SSL_CERT_FILE='/it'\\''s/ca'\n");
    }
}

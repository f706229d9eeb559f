//! Everything that can be wrong before anything is started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use caps::{CapSet, Capability};
use wallgate_types::sandbox::{IdentitySource, SandboxFacts, SandboxId};
use zeroize::Zeroizing;

use crate::cli::RunArguments;
use crate::config::{self, Config};
use crate::exit::{Exit, Failure};
use crate::sandbox::bubblewrap;
use crate::sandbox::view::{View, Wishes, view};
use crate::state::StateDir;

/// Where operators keep configuration; hidden from sandboxes whatever they bind.
const CONFIG_DIRECTORY: &str = "/etc/wallgate";

/// What the privileged process needs, with what it is needed for.
const CAPABILITIES: &[Capability] = &[
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_SETUID,
    Capability::CAP_SETGID,
];

/// A secret of the environment: its variable and its value.
pub(super) type EnvironmentSecrets = BTreeMap<String, Zeroizing<Vec<u8>>>;

/// A run that is ready to start.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) config: Config,
    pub(super) state: StateDir,
    pub(super) facts: SandboxFacts,
    pub(super) view: View,
    pub(super) bubblewrap: PathBuf,
    pub(super) secrets: EnvironmentSecrets,
    pub(super) environment: BTreeMap<String, OsString>,
    pub(super) command: Vec<OsString>,
    pub(super) quiet: bool,
}

/// Reads, checks and locks.
pub(super) fn prepare(arguments: RunArguments) -> Result<Prepared, Failure> {
    let config = config::read(&arguments.config).map_err(|error| Failure::new(Exit::Usage, error))?;
    let environment = command_environment(&config, &arguments.env)?;
    require_rights()?;
    let bubblewrap = bubblewrap::find().ok_or_else(|| {
        let problem = "bubblewrap is missing: install it (Debian package `bubblewrap`); `wallgate doctor` shows the rest";
        Failure::new(Exit::Unavailable, problem)
    })?;
    let secrets = environment_secrets(&config)?;
    let state_dir = match &arguments.state {
        Some(path) => std::path::absolute(path).map_err(|error| Failure::new(Exit::Usage, error))?,
        None => config.state_dir.clone(),
    };
    let state = StateDir::open(&state_dir)?;
    let directory = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let absolute = |paths: &[PathBuf]| paths.iter().map(|path| directory.join(path)).collect::<Vec<_>>();
    let wishes = Wishes {
        command: arguments.command.clone(),
        bind: [config.run.bind.clone(), absolute(&arguments.bind)].concat(),
        ro_bind: [config.run.ro_bind.clone(), absolute(&arguments.ro_bind)].concat(),
        masked: masked(&config, &state, &arguments.config),
        directory,
    };
    let view = view(&wishes).map_err(|error| Failure::new(Exit::Usage, error))?;
    let facts = SandboxFacts {
        id: match arguments.sandbox {
            Some(id) => id,
            None => random_id()?,
        },
        labels: arguments.labels.into_iter().collect(),
        source: IdentitySource::Tap,
    };
    Ok(Prepared {
        config,
        state,
        facts,
        view,
        bubblewrap,
        secrets,
        environment,
        command: arguments.command,
        quiet: arguments.quiet,
    })
}

fn require_rights() -> Result<(), Failure> {
    let effective = caps::read(None, CapSet::Effective).unwrap_or_default();
    let missing: Vec<_> = CAPABILITIES
        .iter()
        .filter(|capability| !effective.contains(capability))
        .map(ToString::to_string)
        .collect();
    if rustix::process::geteuid().is_root() && missing.is_empty() {
        return Ok(());
    }
    let problem = if rustix::process::geteuid().is_root() {
        format!(
            "this root lacks {}, without which no wall can be built",
            missing.join(", ")
        )
    } else {
        "building the wall needs root: run it with sudo, or as a service".to_owned()
    };
    Err(Failure::new(Exit::Unavailable, problem))
}

/// The values of the `env:` sources: taken here, passed over the channel, in nobody's argument list or environment.
fn environment_secrets(config: &Config) -> Result<EnvironmentSecrets, Failure> {
    let take = |name: &str| match std::env::var_os(name) {
        Some(value) => Ok((name.to_owned(), Zeroizing::new(value.into_vec()))),
        None => Err(Failure::new(
            Exit::Secret,
            format!("the variable {name}, which a credential's source names, is not set"),
        )),
    };
    config.secret_variables().map(take).collect()
}

/// `[run]`'s variables, then the command line's, which win.
fn command_environment(config: &Config, options: &[String]) -> Result<BTreeMap<String, OsString>, Failure> {
    let mut environment = BTreeMap::new();
    let mut take = |name: &str| {
        if let Some(value) = std::env::var_os(name) {
            environment.insert(name.to_owned(), value);
        }
    };
    config.run.pass_env.iter().for_each(|name| take(name));
    for (name, value) in &config.run.env {
        environment.insert(name.clone(), value.into());
    }
    for option in options {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (option.as_str(), std::env::var_os(option)),
        };
        if !config::variable_name(name) {
            let problem = format!("--env {option:?}: a variable is written K or K=V");
            return Err(Failure::new(Exit::Usage, problem));
        }
        if let Some(value) = value {
            environment.insert(name.to_owned(), value);
        }
    }
    let secret = config
        .secret_variables()
        .find(|name| environment.contains_key(*name));
    match secret {
        Some(name) => Err(Failure::new(
            Exit::Usage,
            format!("the variable {name} is a credential's source; it cannot go into the sandbox as well"),
        )),
        None => Ok(environment),
    }
}

fn masked(config: &Config, state: &StateDir, as_written: &Path) -> Vec<PathBuf> {
    let mut masked = vec![
        PathBuf::from(CONFIG_DIRECTORY),
        state.paths().root().to_owned(),
        config.path.clone(),
        config.policy.bundle.clone(),
    ];
    masked.extend(std::path::absolute(as_written));
    masked.extend(config.secret_files());
    masked.extend(config.log.file.clone());
    masked
}

/// `run-` and eight hexadecimal digits.
fn random_id() -> Result<SandboxId, Failure> {
    let number: u32 = rand::random();
    format!("run-{number:08x}").parse().map_err(Failure::internal)
}

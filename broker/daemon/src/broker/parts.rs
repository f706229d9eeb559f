//! Opening what the configuration names, and putting it together.
//!
//! The order is from what an operator gets wrong most often to what changes the disk: policy, services, secrets, roots
//! of trust, and only then the certificate authority and the ledger. After that the process shuts itself in.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::task::JoinHandle;
use wallgate_ledger::{
    ControlEvent, Filter, Kind, LeafIndex, Ledger, LedgerOptions, OpenError, Reader, display,
};
use wallgate_policy::service::{NameList, Service, ServiceMap};
use wallgate_policy::{Policy, PolicyLimits, Profile};
use wallgate_proxy::arm::Armoury;
use wallgate_proxy::attach::{self, Attached, Broker};
use wallgate_proxy::limits::Limits;
use wallgate_proxy::own_client::OwnClient;
use wallgate_proxy::resolve::{Exception, Exceptions, Resolver, SystemLookup};
use wallgate_proxy::shared::Shared;
use wallgate_proxy::tls::ca::Root;
use wallgate_proxy::tls::upstream::{OwnCa, UpstreamTls, UpstreamTrust};
use wallgate_types::authority::Authority;
use wallgate_types::clock::{Clock, SystemClock};
use wallgate_types::sandbox::SandboxId;
use wallgate_vault::placeholder::Placeholders;
use wallgate_vault::reference::Backends;
use wallgate_vault::store::{CredentialStore, StoreOptions};
use wallgate_vault_hashicorp::{HashicorpBackend, RawHashicorp};
use wallgate_vault_local::{EnvBackend, FileBackend};
use zeroize::Zeroizing;

use super::confine::{self, Files};
use super::logging;
use crate::channel::{Attach, CounterRow, Summary};
use crate::config::{self, Config, HashicorpConfig, ServiceConfig, UpstreamConfig};
use crate::exit::{Exit, Failure};
use crate::state::StatePaths;

/// The largest lockfile or certificate file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
/// The most secrets of the environment, in bytes.
const MAX_SECRETS_BYTES: u64 = 4 * 1024 * 1024;
/// How many records are counted at a time for a summary.
const SUMMARY_PAGE: usize = 1024;

/// The open parts, and the sandboxes that they serve.
#[derive(Debug)]
pub(super) struct Parts {
    broker: Broker,
    ledger: Ledger,
    ledger_directory: PathBuf,
    sandboxes: BTreeMap<SandboxId, Served>,
    /// Fetches credentials again before they end.
    refresher: JoinHandle<()>,
}

/// A sandbox's sockets, as the supervisor sends them.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) tcp: TcpListener,
    pub(super) dns_tcp: TcpListener,
    pub(super) dns_udp: UdpSocket,
}

#[derive(Debug)]
struct Served {
    attached: Attached,
    since: LeafIndex,
}

/// Opens everything, then shuts the process in.
pub(super) async fn open(config: &Path, state_dir: &Path, secrets: OwnedFd) -> Result<Parts, Failure> {
    let usage = |error: &dyn std::fmt::Display| Failure::new(Exit::Usage, error);
    let config = config::read(config).map_err(|error| usage(&error))?;
    logging::start(&config.log)?;
    let state = StatePaths::new(state_dir);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());

    let policy = load_policy(&config)?;
    let services = services(&config.services)?;
    let store = credentials(&config, environment(secrets)?, &clock).await?;
    let exceptions = exceptions(&config.upstreams)?;
    let own_roots = own_roots(&config.upstreams)?;
    let trust = UpstreamTrust::load(&own_roots, Arc::clone(&clock)).map_err(|error| usage(&error))?;
    let lookup = SystemLookup::from_host().map_err(|error| Failure::new(Exit::Unavailable, error))?;
    let resolver = Resolver::new(Arc::new(lookup), Arc::new(exceptions), Arc::clone(&clock));
    let root = Root::load_or_create(&state.authority(), &clock).map_err(|error| {
        Failure::new(
            Exit::State,
            format!("the root certificate in {}: {error}", state.authority().display()),
        )
    })?;
    let ledger = open_ledger(&config, &state, &policy, &clock).await?;
    confine::enclose(&files(&config, &state)).map_err(Failure::internal)?;

    let store = Arc::new(store);
    let kept_fresh = Arc::clone(&store);
    let refresher = tokio::spawn(async move { match kept_fresh.run_refresher().await {} });
    let armoury = Armoury::new(store, Arc::new(Placeholders::new()));
    let shared = Shared::new(policy, services, ledger.clone(), armoury, limits(&config), clock);
    Ok(Parts {
        broker: Broker::new(Arc::new(shared), root, resolver, trust),
        ledger,
        ledger_directory: state.ledger(),
        sandboxes: BTreeMap::new(),
        refresher,
    })
}

impl Parts {
    /// What sandboxes must trust, in PEM.
    pub(super) fn root_certificate(&self) -> String {
        self.broker.root_pem().to_owned()
    }

    /// Records the proof that the wall holds, then serves the sandbox. Returns where the proof stands.
    pub(super) async fn attach(&mut self, attach: Attach, sockets: Sockets) -> Result<u64, Failure> {
        let id = attach.sandbox.id.clone();
        if self.sandboxes.contains_key(&id) {
            return Err(Failure::new(
                Exit::Usage,
                format!("there is a sandbox {id} already"),
            ));
        }
        let event = ControlEvent {
            kind: "attach",
            sandbox: Some(id.clone()),
            detail: json!({
                "labels": attach.sandbox.labels,
                "source": attach.sandbox.source,
                "mark": attach.mark,
                "addresses": [attach.v4.to_string(), attach.v6.to_string()],
                "gateways": [attach.gateway_v4.to_string(), attach.gateway_v6.to_string()],
                "proof": attach.proof,
            }),
        };
        let unrecorded =
            |error| Failure::new(Exit::State, format!("the sandbox cannot be recorded: {error}"));
        let since = self.ledger.control(event).await.map_err(unrecorded)?;
        let sockets = attach::Sockets {
            tcp: vec![sockets.tcp, sockets.dns_tcp],
            dns: vec![sockets.dns_udp],
            mark: Some(attach.mark),
        };
        let attached = self
            .broker
            .attach(attach.sandbox, sockets)
            .await
            .map_err(|error| Failure::internal(format!("the sandbox cannot be served: {error}")))?;
        self.sandboxes.insert(id, Served { attached, since });
        Ok(since.0)
    }

    /// Ends a sandbox's connections, records what the wall counted, and says what it did.
    pub(super) async fn detach(&mut self, id: &SandboxId, counters: Vec<CounterRow>) -> Summary {
        let Some(Served { attached, since }) = self.sandboxes.remove(id) else {
            return Summary::default();
        };
        if let Err(error) = attached.detach().await {
            tracing::error!(sandbox = %id, code = error.code(), "the sandbox's end could not be recorded");
        }
        let event = ControlEvent {
            kind: "detach",
            sandbox: Some(id.clone()),
            detail: json!({ "frames": counters }),
        };
        if let Err(error) = self.ledger.control(event).await {
            tracing::error!(sandbox = %id, code = error.code(), "the wall's counters could not be recorded");
        }
        let (directory, id) = (self.ledger_directory.clone(), id.clone());
        let counted = tokio::task::spawn_blocking(move || summarise(&directory, &id, since)).await;
        match counted {
            Ok(Ok(summary)) => summary,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the ledger cannot be read for a summary");
                Summary::default()
            }
            Err(_) => Summary::default(),
        }
    }

    /// Ends what is still served and closes the ledger. Returns what kept it from being closed as it should.
    pub(super) async fn close(mut self) -> Option<String> {
        while let Some((_, Served { attached, .. })) = self.sandboxes.pop_first() {
            if let Err(error) = attached.detach().await {
                tracing::error!(code = error.code(), "a sandbox's end could not be recorded");
            }
        }
        self.refresher.abort();
        // It ends by being stopped, and has nothing else to say.
        let _stopped = self.refresher.await;
        let ledger = self.ledger;
        match tokio::task::spawn_blocking(move || ledger.close()).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }
}

fn load_policy(config: &Config) -> Result<Policy, Failure> {
    let limits = policy_limits(config);
    Policy::load_with_data(&config.policy.bundle, &config.policy.data, &limits)
        .map_err(|error| Failure::new(Exit::Usage, told_whole(&error)))
}

/// The limits that the configuration sets on policy.
pub(crate) fn policy_limits(config: &Config) -> PolicyLimits {
    PolicyLimits {
        eval_timeout: config.policy.eval_timeout,
        ..PolicyLimits::default()
    }
}

/// An error and its causes in one line, for the operator.
pub(crate) fn told_whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, Failure> {
    let refused = |error: &dyn std::fmt::Display| {
        Failure::new(Exit::Usage, format!("cannot read {}: {error}", path.display()))
    };
    let length = fs::metadata(path).map_err(|error| refused(&error))?.len();
    if length > MAX_FILE_BYTES {
        return Err(refused(&"it is too large"));
    }
    fs::read(path).map_err(|error| refused(&error))
}

fn services(configured: &[ServiceConfig]) -> Result<ServiceMap, Failure> {
    let refused = |error: &dyn std::fmt::Display| Failure::new(Exit::Usage, error);
    let mut map = ServiceMap::default();
    for service in configured {
        let profile: Profile = service.profile.parse().map_err(|error| refused(&error))?;
        let names = match &service.names {
            None => None,
            Some(path) => Some(names(profile, path)?),
        };
        let known = Arc::new(Service {
            name: service.name.clone(),
            profile,
            names,
        });
        for host in &service.hosts {
            map.insert(host.clone(), Arc::clone(&known))
                .map_err(|error| refused(&error))?;
        }
    }
    Ok(map)
}

fn names(profile: Profile, path: &Path) -> Result<NameList, Failure> {
    let refused =
        |error: &dyn std::fmt::Display| Failure::new(Exit::Usage, format!("{}: {error}", path.display()));
    let text = String::from_utf8(read_bounded(path)?).map_err(|error| refused(&error))?;
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    NameList::from_lockfile(profile, &file_name, &text).map_err(|error| refused(&error))
}

type Environment = BTreeMap<String, Zeroizing<Vec<u8>>>;

/// Reads the memory file that the supervisor sent: `NAME=base64` lines.
fn environment(secrets: OwnedFd) -> Result<Environment, Failure> {
    let refused = || Failure::internal("the secrets of the environment did not arrive whole");
    let mut text = Zeroizing::new(String::new());
    File::from(secrets)
        .take(MAX_SECRETS_BYTES)
        .read_to_string(&mut text)
        .map_err(|_not_text| refused())?;
    let line = |line: &str| {
        let (name, value) = line.split_once('=')?;
        let value = base64::engine::general_purpose::STANDARD.decode(value).ok()?;
        Some((name.to_owned(), Zeroizing::new(value)))
    };
    text.lines().map(|text| line(text).ok_or_else(refused)).collect()
}

/// Every credential, fetched once, so that what cannot be read is known before anything is bound.
async fn credentials(
    config: &Config,
    environment: Environment,
    clock: &Arc<dyn Clock>,
) -> Result<CredentialStore, Failure> {
    let refused = |error: &dyn std::fmt::Display| Failure::new(Exit::Secret, error);
    let environment = Arc::new(environment);
    let local = || {
        let environment = Arc::clone(&environment);
        Backends::new()
            .with(Arc::new(EnvBackend::new(move |name| {
                environment.get(name).cloned()
            })))
            .with(Arc::new(FileBackend::new(config.directory())))
    };
    let mut backends = local();
    if let Some(vault) = &config.hashicorp {
        backends = backends.with(Arc::new(hashicorp(vault, &local(), clock)?));
    }
    let mut opened = Vec::with_capacity(config.credentials.len());
    for entry in &config.credentials {
        let source = backends.open(&entry.source).map_err(|error| refused(&error))?;
        opened.push((entry.credential.clone(), source));
    }
    let store = CredentialStore::new(opened, StoreOptions::default(), clock)
        .map_err(|error| Failure::new(Exit::Usage, error))?;
    match store.check_all().await.first() {
        None => Ok(store),
        Some(error) => Err(refused(&told_whole(error))),
    }
}

/// The secret store, asked through the broker's own guarded client.
fn hashicorp(
    vault: &HashicorpConfig,
    local: &Backends,
    clock: &Arc<dyn Clock>,
) -> Result<HashicorpBackend, Failure> {
    let usage =
        |error: &dyn std::fmt::Display| Failure::new(Exit::Usage, format!("vault.hashicorp: {error}"));
    let own = vault
        .ca
        .as_ref()
        .map(|path| vault_root(vault, path))
        .transpose()?;
    let trust = UpstreamTrust::load(own.as_slice(), Arc::clone(clock)).map_err(|error| usage(&error))?;
    let tls = UpstreamTls::new(&trust).map_err(|error| usage(&error))?;
    let login = RawHashicorp {
        address: vault.address.clone(),
        namespace: vault.namespace.clone(),
        token: Some(vault.token.to_string()),
        approle: None,
    };
    let checked = login.validate(local).map_err(|error| usage(&error))?;
    Ok(HashicorpBackend::new(
        checked,
        Arc::new(OwnClient::new(tls)),
        Arc::clone(clock),
    ))
}

/// The one authority that may speak for the secret store.
fn vault_root(vault: &HashicorpConfig, path: &Path) -> Result<OwnCa, Failure> {
    let host = vault
        .address
        .split_once("://")
        .map_or(vault.address.as_str(), |(_, rest)| rest);
    let authority = Authority::parse(host, 443)
        .map_err(|error| Failure::new(Exit::Usage, format!("vault.hashicorp.address: {error}")))?;
    Ok(OwnCa {
        host: authority.host().clone(),
        port: Some(authority.port()),
        pem: read_bounded(path)?,
        origin: path.display().to_string(),
    })
}

fn exceptions(upstreams: &[UpstreamConfig]) -> Result<Exceptions, Failure> {
    let entry = |upstream: &UpstreamConfig| Exception {
        host: upstream.host.clone(),
        port: upstream.port,
        address: upstream.address,
    };
    // The wall's listeners live in its own namespace; in the host's there is none of ours.
    Exceptions::new(upstreams.iter().map(entry).collect(), Vec::new())
        .map_err(|error| Failure::new(Exit::Usage, error))
}

fn own_roots(upstreams: &[UpstreamConfig]) -> Result<Vec<OwnCa>, Failure> {
    let with_root = upstreams
        .iter()
        .filter_map(|upstream| Some((upstream, upstream.ca.as_ref()?)));
    with_root
        .map(|(upstream, path)| {
            Ok(OwnCa {
                host: upstream.host.clone(),
                port: upstream.port,
                pem: read_bounded(path)?,
                origin: path.display().to_string(),
            })
        })
        .collect()
}

async fn open_ledger(
    config: &Config,
    state: &StatePaths,
    policy: &Policy,
    clock: &Arc<dyn Clock>,
) -> Result<Ledger, Failure> {
    let options = LedgerOptions {
        start: json!({
            "version": env!("CARGO_PKG_VERSION"),
            "config_sha256": hex::encode(Sha256::digest(read_bounded(&config.path)?)),
            "bundle": policy.digest().to_string(),
            "bundle_revision": policy.revision(),
        }),
        ..LedgerOptions::default()
    };
    let (directory, clock) = (state.ledger(), Arc::clone(clock));
    let opened = tokio::task::spawn_blocking(move || Ledger::open(&directory, options, clock)).await;
    opened
        .map_err(Failure::internal)?
        .map_err(|error: OpenError| Failure::new(Exit::State, told_whole(&error)))
}

fn limits(config: &Config) -> Limits {
    let mut limits = Limits {
        drain: config.limits.drain,
        ..Limits::default()
    };
    if let Some(count) = config.limits.connections_per_sandbox {
        limits.connections_per_sandbox = count;
    }
    if let Some(bytes) = config.limits.body_bytes {
        limits.body_bytes = bytes;
    }
    if let Some(bytes) = config.limits.inspect_bytes {
        limits.inspect_bytes = bytes;
    }
    limits
}

/// What is opened again later: the ledger and the authority to write, secrets to read when they are replaced.
fn files(config: &Config, state: &StatePaths) -> Files {
    let parent = |path: PathBuf| path.parent().map(Path::to_owned);
    Files {
        read: config.secret_files().filter_map(parent).collect(),
        write: vec![state.ledger(), state.authority()],
    }
}

/// Counts a sandbox's decisions since it was attached, and finds its last word.
fn summarise(
    directory: &Path,
    id: &SandboxId,
    since: LeafIndex,
) -> Result<Summary, wallgate_ledger::ReadError> {
    let reader = Reader::open(directory)?;
    let mut summary = Summary::default();
    let mut from = since;
    let mine = Filter {
        sandbox: Some(id.to_string()),
        limit: Some(SUMMARY_PAGE),
        ..Filter::default()
    };
    loop {
        let hits = reader.since(from, &mine)?;
        let Some(last) = hits.last() else {
            return Ok(summary);
        };
        from = LeafIndex(last.record.index.0.saturating_add(1));
        for hit in &hits {
            count(&mut summary, &hit.record.json);
        }
    }
}

fn count(summary: &mut Summary, record: &str) {
    let Ok(record) = serde_json::from_str::<serde_json::Value>(record) else {
        return;
    };
    let body = |key: &str| {
        record
            .pointer(&format!("/body/{key}"))
            .and_then(serde_json::Value::as_str)
    };
    let kind = record.get("kind").and_then(serde_json::Value::as_str);
    if kind == Some(Kind::Decision.as_str()) {
        if body("verdict") == Some("allow") {
            summary.allowed = summary.allowed.saturating_add(1);
        } else {
            summary.denied = summary.denied.saturating_add(1);
        }
    } else if body("event") == Some("quit") {
        summary.quit = body("detail/reason").map(|reason| display::inert(reason).into_owned());
    }
}

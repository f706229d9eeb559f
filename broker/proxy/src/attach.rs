//! A sandbox comes and goes: what the daemon calls.

use std::fmt;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;

use serde_json::json;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wallgate_ledger::{ControlEvent, LedgerError};
use wallgate_types::sandbox::{SandboxFacts, SandboxId};

use crate::accept::serve;
use crate::names::NameTable;
use crate::resolve::Resolver;
use crate::shared::{Sandbox, SandboxParts, Shared};
use crate::tls::ca::{CaError, Root};
use crate::tls::mint::Minter;
use crate::tls::upstream::{TrustError, UpstreamTls, UpstreamTrust};

/// The broker: what all sandboxes go through and none of them owns.
pub struct Broker {
    shared: Arc<Shared>,
    root: Root,
    resolver: Resolver,
    trust: UpstreamTrust,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").finish_non_exhaustive()
    }
}

/// What the wall hands over for one sandbox: sockets made in its namespace.
#[derive(Debug)]
pub struct Sockets {
    /// Accepts every TCP connection of this sandbox, whatever its destination.
    pub tcp: Vec<TcpListener>,
    /// Receives every DNS message of this sandbox.
    pub dns: Vec<UdpSocket>,
    /// The mark that the filter puts on this sandbox's connections; `None` only where there is no filter.
    pub mark: Option<u32>,
}

/// Why a sandbox could not be attached.
#[derive(Debug, Error)]
pub enum AttachError {
    /// Its certificate authority could not be made.
    #[error("no certificate authority for the sandbox")]
    Ca(#[from] CaError),
    /// Its upstream TLS could not be set up.
    #[error("no upstream TLS for the sandbox")]
    Trust(#[from] TrustError),
    /// A socket that was handed over is unusable.
    #[error("an unusable socket")]
    Socket(#[source] io::Error),
    /// The attachment could not be recorded.
    #[error("the attachment could not be recorded")]
    Ledger(#[from] LedgerError),
}

/// A sandbox that is being served. Dropping it severs everything at once; [`Attached::detach`] is the orderly way.
#[derive(Debug)]
pub struct Attached {
    sandbox: Arc<Sandbox>,
    shared: Arc<Shared>,
    stop: CancellationToken,
    serving: JoinSet<()>,
}

impl Broker {
    /// The broker's parts, together.
    #[must_use]
    pub const fn new(shared: Arc<Shared>, root: Root, resolver: Resolver, trust: UpstreamTrust) -> Self {
        Self {
            shared,
            root,
            resolver,
            trust,
        }
    }

    /// What clients in every sandbox must trust.
    #[must_use]
    pub fn root_pem(&self) -> &str {
        self.root.certificate_pem()
    }

    /// Serves a sandbox from now on. Returns once that is recorded; before that, nothing is accepted.
    ///
    /// # Errors
    /// [`AttachError`]; the sockets are closed then.
    pub async fn attach(&self, facts: SandboxFacts, sockets: Sockets) -> Result<Attached, AttachError> {
        let facts = Arc::new(facts);
        let clock = Arc::clone(&self.shared.clock);
        let ca = self.root.intermediate(&facts.id)?;
        let authority = ca.spki_sha256().to_owned();
        let parts = SandboxParts {
            facts: Arc::clone(&facts),
            mark: sockets.mark,
            names: Arc::new(NameTable::new(rand::random(), Arc::clone(&clock))),
            minter: Minter::new(ca, clock)?,
            upstream_tls: UpstreamTls::new(&self.trust)?,
            resolver: self.resolver.for_sandbox(),
        };
        let sandbox = Arc::new(Sandbox::new(parts, &self.shared));
        let tcp = sockets
            .tcp
            .into_iter()
            .map(listener)
            .collect::<io::Result<Vec<_>>>()
            .map_err(AttachError::Socket)?;
        let event = ControlEvent {
            kind: "broker_attach",
            sandbox: Some(facts.id.clone()),
            detail: json!({ "labels": facts.labels, "source": facts.source, "mark": sockets.mark, "ca_spki_sha256": authority }),
        };
        self.shared.ledger.control(event).await?;
        let stop = CancellationToken::new();
        let mut serving = JoinSet::new();
        for listener in tcp {
            let (sandbox, shared, stop) = (Arc::clone(&sandbox), Arc::clone(&self.shared), stop.clone());
            serving.spawn(async move {
                if let Err(error) = serve(listener, sandbox, shared, stop).await {
                    tracing::error!(%error, "a sandbox's listener failed; nothing more is accepted on it");
                }
            });
        }
        for socket in sockets.dns {
            let (sandbox, stop) = (Arc::clone(&sandbox), stop.clone());
            serving.spawn(async move {
                if let Err(error) = sandbox.dns.serve_udp(socket, stop).await {
                    tracing::error!(%error, "a sandbox's DNS socket failed; no name is answered on it");
                }
            });
        }
        let (reporting, report_stop) = (Arc::clone(&sandbox), stop.clone());
        serving.spawn(async move { reporting.dns.report_until(report_stop).await });
        Ok(Attached {
            sandbox,
            shared: Arc::clone(&self.shared),
            stop,
            serving,
        })
    }
}

fn listener(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

impl Attached {
    /// Whose it is.
    #[must_use]
    pub fn id(&self) -> &SandboxId {
        &self.sandbox.facts.id
    }

    /// Severs every connection of this sandbox at once and lets no new one in (P11). The ledger says so.
    ///
    /// # Errors
    /// [`LedgerError`] when it could not be recorded; the sandbox is cut off all the same.
    pub async fn quarantine(&self) -> Result<(), LedgerError> {
        self.sandbox.quarantine();
        self.control("quarantine").await
    }

    /// Lets a quarantined sandbox connect again.
    ///
    /// # Errors
    /// [`LedgerError`] when it could not be recorded; the sandbox stays cut off then.
    pub async fn release(&self) -> Result<(), LedgerError> {
        self.control("release").await?;
        self.sandbox.release();
        Ok(())
    }

    async fn control(&self, kind: &'static str) -> Result<(), LedgerError> {
        let event = ControlEvent {
            kind,
            sandbox: Some(self.id().clone()),
            detail: json!({}),
        };
        self.shared.ledger.control(event).await.map(drop)
    }

    /// Stops accepting, lets what is under way finish for a bounded time, and awaits every task.
    ///
    /// # Errors
    /// [`LedgerError`] when the end could not be recorded.
    pub async fn detach(mut self) -> Result<(), LedgerError> {
        self.stop.cancel();
        while let Some(ended) = self.serving.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a task of a sandbox ended badly");
            }
        }
        self.sandbox.quarantine();
        self.control("broker_detach").await
    }
}

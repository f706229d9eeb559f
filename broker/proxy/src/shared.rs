//! What outlives a request: the broker's parts, and one [`Sandbox`] each.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wallgate_ledger::{ControlEvent, LeafIndex, Ledger};
use wallgate_policy::{Policy, ServiceMap};
use wallgate_types::clock::Clock;
use wallgate_types::request::RequestId;
use wallgate_types::ruling::Verdict;
use wallgate_types::sandbox::SandboxFacts;

use crate::arm::Armoury;
use crate::dns::DnsServer;
use crate::limits::Limits;
use crate::lookup::NameDecider;
use crate::names::NameTable;
use crate::pool::Pool;
use crate::refusals::Refusals;
use crate::resolve::Resolver;
use crate::terminate::SandboxTls;
use crate::tls::mint::Minter;
use crate::tls::upstream::UpstreamTls;
use crate::usage::Memory;

/// Everything that a request needs and no sandbox owns.
#[derive(Debug)]
pub struct Shared {
    policy: RwLock<Arc<Policy>>,
    pub(crate) services: ServiceMap,
    pub(crate) ledger: Ledger,
    pub(crate) armoury: Armoury,
    pub(crate) limits: Arc<Limits>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Shared {
    /// The broker's parts, together.
    #[must_use]
    pub fn new(
        policy: Policy,
        services: ServiceMap,
        ledger: Ledger,
        armoury: Armoury,
        limits: Limits,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            policy: RwLock::new(Arc::new(policy)),
            services,
            ledger,
            armoury,
            limits: Arc::new(limits),
            clock,
        }
    }

    /// The policy in force. A request asks once and keeps what it got, so it is judged by one bundle only (E04).
    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another policy in force, from the next request on.
    pub fn replace_policy(&self, policy: Policy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
    }

    /// A name for a request: the one place where the data path takes randomness for its records.
    pub(crate) fn request_id() -> RequestId {
        RequestId(rand::random())
    }

    /// Records something that is no decision. That it failed is the ledger's to tell; nothing leaves because of it.
    pub(crate) async fn note(&self, event: Option<ControlEvent>) {
        if let Some(event) = event
            && let Err(error) = self.ledger.control(event).await
        {
            tracing::error!(code = error.code(), "a refusal could not be recorded");
        }
    }
}

/// One sandbox as the broker knows it. Nothing in it is shared with another sandbox.
pub struct Sandbox {
    pub(crate) facts: Arc<SandboxFacts>,
    /// What the filter marks this sandbox's connections with. `None` where no filter stands in front (explicit proxy).
    pub(crate) mark: Option<u32>,
    pub(crate) names: Arc<NameTable>,
    pub(crate) tls: SandboxTls,
    pub(crate) dns: Arc<DnsServer<NameDecider>>,
    pub(crate) upstream_tls: UpstreamTls,
    pub(crate) resolver: Resolver,
    pub(crate) memory: Arc<Memory>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) refusals: Refusals,
    pub(crate) decisions: Decisions,
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) tasks: TaskTracker,
    wire: Mutex<Wire>,
}

/// What one sandbox is made of.
pub(crate) struct SandboxParts {
    pub(crate) facts: Arc<SandboxFacts>,
    pub(crate) mark: Option<u32>,
    pub(crate) names: Arc<NameTable>,
    pub(crate) minter: Minter,
    pub(crate) upstream_tls: UpstreamTls,
    pub(crate) resolver: Resolver,
}

/// Whether a sandbox may speak at all.
#[derive(Debug)]
struct Wire {
    cut: CancellationToken,
    quarantined: bool,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("id", &self.facts.id)
            .finish_non_exhaustive()
    }
}

impl Sandbox {
    /// A sandbox that has just been attached.
    pub(crate) fn new(parts: SandboxParts, shared: &Arc<Shared>) -> Self {
        let SandboxParts {
            facts,
            mark,
            names,
            minter,
            upstream_tls,
            resolver,
        } = parts;
        let limits = &shared.limits;
        let memory = Arc::new(Memory::new(limits));
        let decider = NameDecider::new(Arc::clone(shared), Arc::clone(&memory), Arc::clone(&facts));
        Self {
            refusals: Refusals::new(facts.id.clone(), limits.refusal_window),
            decisions: Decisions {
                kept: Mutex::default(),
                limit: limits.remembered_decisions,
            },
            pool: Arc::new(Pool::new(limits, Arc::clone(&shared.clock))),
            connections: Arc::new(Semaphore::new(limits.connections_per_sandbox)),
            tasks: TaskTracker::new(),
            wire: Mutex::new(Wire {
                cut: CancellationToken::new(),
                quarantined: false,
            }),
            tls: SandboxTls::new(minter, Arc::new(decider.clone())),
            dns: Arc::new(DnsServer::new(
                Arc::clone(&facts),
                Arc::clone(&names),
                Arc::clone(&shared.clock),
                decider,
            )),
            memory,
            facts,
            mark,
            names,
            upstream_tls,
            resolver,
        }
    }

    fn wire(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What ends everything of this sandbox that is under way now. `None` while it is quarantined.
    pub(crate) fn lifeline(&self) -> Option<CancellationToken> {
        let wire = self.wire();
        (!wire.quarantined).then(|| wire.cut.clone())
    }

    /// Severs every connection of this sandbox, up and down, and accepts no more (P11).
    pub fn quarantine(&self) {
        let mut wire = self.wire();
        wire.quarantined = true;
        wire.cut.cancel();
        drop(wire);
        self.pool.clear();
    }

    /// Lets new connections in again. Those that were severed stay so.
    pub fn release(&self) {
        *self.wire() = Wire {
            cut: CancellationToken::new(),
            quarantined: false,
        };
    }

    /// Runs something that ends, at the latest, with this sandbox's lifeline.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(cut) = self.lifeline() {
            self.tasks.spawn(async move {
                tokio::select! {
                    () = task => {}
                    () = cut.cancelled() => {}
                }
            });
        }
    }

    /// The same, for hyper.
    pub(crate) fn executor(&self) -> Executor {
        Executor {
            tasks: self.tasks.clone(),
            cut: self.lifeline(),
        }
    }

    pub(crate) fn sample(pairs: &[(&str, Option<String>)]) -> Value {
        pairs
            .iter()
            .filter_map(|(key, value)| Some(((*key).to_owned(), Value::String(value.clone()?))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

/// Runs hyper's own tasks where somebody awaits them.
#[derive(Clone, Debug)]
pub(crate) struct Executor {
    tasks: TaskTracker,
    cut: Option<CancellationToken>,
}

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        // A quarantined sandbox has no lifeline, and its tasks are dropped unstarted.
        if let Some(cut) = self.cut.clone() {
            self.tasks.spawn(async move {
                tokio::select! {
                    _ = task => {}
                    () = cut.cancelled() => {}
                }
            });
        }
    }
}

/// A decision that its sandbox may ask about.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    pub(crate) id: RequestId,
    pub(crate) verdict: Verdict,
    pub(crate) rule: String,
    pub(crate) reason: String,
    pub(crate) method: String,
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) index: LeafIndex,
}

/// The last denials of one sandbox.
#[derive(Debug)]
pub(crate) struct Decisions {
    kept: Mutex<VecDeque<Remembered>>,
    limit: usize,
}

impl Decisions {
    pub(crate) fn remember(&self, decision: Remembered) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= self.limit {
            kept.pop_front();
        }
        kept.push_back(decision);
    }

    pub(crate) fn find(&self, id: RequestId) -> Option<Remembered> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().rev().find(|decision| decision.id == id).cloned()
    }
}

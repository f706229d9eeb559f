//! Values, kept no longer than they may be.
//!
//! A value is fetched when it is first needed, shared by everyone who needs it at that moment, and kept within its
//! lease. [`CredentialStore::run_refresher`] fetches it again before the lease ends, so that requests do not wait.
//! Whatever goes wrong (no store, no answer, garbage, a value that could not be scrubbed) is an error for the caller,
//! who refuses the request: there is no way on without a value (attack C15).
//!
//! The value before the last one is remembered for the scrubber: a response may still show it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use thiserror::Error;
use wallgate_types::authority::Host;
use wallgate_types::clock::{Clock, Timestamp};
use wallgate_types::request::RequestFacts;

use crate::binding::Withheld;
use crate::config::Credential;
use crate::flight::SingleFlight;
use crate::material::{Material, ValueError};
use crate::source::{SecretSource, SourceError};

/// How long values are kept and waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// How long a value without a lease is used.
    pub static_ttl: Duration,
    /// After which time a value without a lease is fetched again.
    pub static_refresh: Duration,
    /// The longest that any value is used, whatever its lease says.
    pub max_ttl: Duration,
    /// How long one fetch may take.
    pub fetch_timeout: Duration,
    /// How long a failure is the answer before the source is asked again.
    pub failure_backoff: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            static_ttl: Duration::from_mins(5),
            static_refresh: Duration::from_secs(30),
            max_ttl: Duration::from_hours(1),
            fetch_timeout: Duration::from_secs(3),
            failure_backoff: Duration::from_secs(1),
        }
    }
}

/// The shortest lease that is believed: shorter ones would make every request wait for the store.
const MIN_LEASE: Duration = Duration::from_secs(1);

/// Why there is no usable value. For the operator; a sandbox gets [`CredentialError::code`].
#[derive(Clone, Debug, Error)]
pub enum CredentialError {
    /// Nobody configured it.
    #[error("credential \"{name}\" is not configured")]
    Unknown {
        /// The name that a ruling used.
        name: String,
    },
    /// The source gave nothing.
    #[error("credential \"{name}\": {source}")]
    Source {
        /// The credential.
        name: Arc<str>,
        /// Why.
        #[source]
        source: Arc<SourceError>,
    },
    /// The source gave something that cannot be used.
    #[error("credential \"{name}\" from {from}: {source}")]
    Unusable {
        /// The credential.
        name: Arc<str>,
        /// Its reference.
        from: Arc<str>,
        /// Why.
        #[source]
        source: ValueError,
    },
    /// The source gave nothing in time.
    #[error("credential \"{name}\" from {from}: no answer within {} ms", .after.as_millis())]
    Timeout {
        /// The credential.
        name: Arc<str>,
        /// Its reference.
        from: Arc<str>,
        /// The limit.
        after: Duration,
    },
}

impl CredentialError {
    /// The stable word for the sandbox and the record.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "credential_unknown",
            Self::Source { .. } | Self::Unusable { .. } | Self::Timeout { .. } => "credential_unavailable",
        }
    }
}

/// Two credentials of one name.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("there are two credentials called \"{0}\"")]
pub struct DuplicateCredential(pub Arc<str>);

/// Every credential of an installation. The default has none.
#[derive(Default)]
pub struct CredentialStore {
    entries: HashMap<Arc<str>, Arc<Entry>>,
}

struct Entry {
    credential: Credential,
    source: Arc<dyn SecretSource>,
    from: Arc<str>,
    options: StoreOptions,
    clock: Arc<dyn Clock>,
    uses: AtomicU64,
    kept: Mutex<Kept>,
    flight: SingleFlight<Result<Arc<Material>, CredentialError>>,
}

#[derive(Default)]
struct Kept {
    current: Option<Held>,
    /// What the value was before, for the scrubber only.
    previous: Option<Arc<Material>>,
    failure: Option<(Duration, CredentialError)>,
}

/// A value and until when (monotonic) it is good.
struct Held {
    material: Arc<Material>,
    refresh_at: Duration,
    expires_at: Duration,
}

impl CredentialStore {
    /// A store that has fetched nothing yet.
    ///
    /// # Errors
    /// [`DuplicateCredential`].
    pub fn new(
        credentials: Vec<(Credential, Arc<dyn SecretSource>)>,
        options: StoreOptions,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, DuplicateCredential> {
        let mut entries = HashMap::with_capacity(credentials.len());
        for (credential, source) in credentials {
            let name = Arc::clone(&credential.name);
            let entry = Entry {
                from: source.describe().into(),
                credential,
                source,
                options,
                clock: Arc::clone(clock),
                uses: AtomicU64::new(0),
                kept: Mutex::default(),
                flight: SingleFlight::new(),
            };
            if entries.insert(Arc::clone(&name), Arc::new(entry)).is_some() {
                return Err(DuplicateCredential(name));
            }
        }
        Ok(Self { entries })
    }

    /// Fetches everything once, for the operator's eyes: what cannot be had is said before anything is served.
    pub async fn check_all(&self) -> Vec<CredentialError> {
        let mut names: Vec<_> = self.entries.keys().collect();
        names.sort_unstable();
        let results = join_all(names.into_iter().map(|name| self.get(name))).await;
        results.into_iter().filter_map(Result::err).collect()
    }

    /// The value of a credential. Cancel-safe.
    ///
    /// # Errors
    /// [`CredentialError`] when there is none that may be used now.
    pub async fn get(&self, name: &str) -> Result<Arc<Material>, CredentialError> {
        let entry = self.entry(name)?;
        match entry.cached() {
            Some(result) => result,
            None => entry.fetch().await,
        }
    }

    /// Fetches values again before they end, for as long as it is polled. It has one owner, who drops it to stop.
    pub async fn run_refresher(&self) -> std::convert::Infallible {
        join_all(self.entries.values().map(Entry::keep_fresh)).await;
        std::future::pending().await
    }

    /// The upstream did not accept this version: it is fetched again at the next use.
    pub fn invalidate(&self, name: &str, version: &str) {
        if let Some(entry) = self.entries.get(name) {
            let mut kept = entry.kept();
            let rejected = kept
                .current
                .take_if(|held| held.material.version() == version)
                .map(|held| held.material);
            if rejected.is_some() {
                kept.previous = rejected;
            }
        }
    }

    /// What is known of a credential without its value.
    #[must_use]
    pub fn credential(&self, name: &str) -> Option<&Credential> {
        self.entries.get(name).map(|entry| &entry.credential)
    }

    /// Whether the named credential may be put on this request.
    ///
    /// # Errors
    /// `None` when there is no such credential, else why it is withheld.
    pub fn permits(&self, name: &str, facts: &RequestFacts, now: Timestamp) -> Result<(), Option<Withheld>> {
        let entry = self.entries.get(name).ok_or(None)?;
        let used = entry.uses.load(Ordering::Relaxed);
        entry.credential.binding.permits(facts, now, used).map_err(Some)
    }

    /// Counts one use, unless that would be one too many.
    ///
    /// # Errors
    /// [`Withheld::Uses`].
    pub fn take_use(&self, name: &str) -> Result<(), Withheld> {
        let Some(entry) = self.entries.get(name) else {
            return Err(Withheld::Uses);
        };
        let most = entry.credential.binding.max_uses.unwrap_or(u64::MAX);
        entry
            .uses
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                (used < most).then(|| used.saturating_add(1))
            })
            .map(drop)
            .or(Err(Withheld::Uses))
    }

    /// Every credential that is bound to this host, at whatever port.
    pub fn bound_to(&self, host: &Host) -> impl Iterator<Item = &Credential> {
        self.entries
            .values()
            .map(|entry| &entry.credential)
            .filter(|credential| credential.binding.covers_host(host))
    }

    /// Every value bound to this host that a response could show: the current ones and those before them.
    #[must_use]
    pub fn remembered_for(&self, host: &Host) -> Vec<Arc<Material>> {
        let mut remembered = Vec::new();
        for entry in self.entries.values() {
            if entry.credential.binding.covers_host(host) {
                let kept = entry.kept();
                remembered.extend(kept.current.as_ref().map(|held| Arc::clone(&held.material)));
                remembered.extend(kept.previous.clone());
            }
        }
        remembered
    }

    fn entry(&self, name: &str) -> Result<&Arc<Entry>, CredentialError> {
        self.entries.get(name).ok_or_else(|| CredentialError::Unknown {
            name: name.chars().take(crate::config::MAX_CONFIG_TEXT_BYTES).collect(),
        })
    }
}

impl Entry {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kept value or the kept failure, if either is good.
    fn cached(&self) -> Option<Result<Arc<Material>, CredentialError>> {
        let now = self.clock.monotonic();
        let kept = self.kept();
        match (&kept.current, &kept.failure) {
            (Some(held), _) if now < held.expires_at => Some(Ok(Arc::clone(&held.material))),
            (_, Some((until, error))) if now < *until => Some(Err(error.clone())),
            _ => None,
        }
    }

    async fn fetch(self: &Arc<Self>) -> Result<Arc<Material>, CredentialError> {
        let entry = Arc::clone(self);
        self.flight.run(|| async move { entry.fetch_once().await }).await
    }

    async fn fetch_once(&self) -> Result<Arc<Material>, CredentialError> {
        // A lease runs from before the question, so that a slow answer does not lengthen it.
        let asked = self.clock.monotonic();
        let result = self.ask().await;
        let mut kept = self.kept();
        match result {
            Ok((material, lease)) => {
                let (lifetime, refresh_after) = self.lifetime(lease);
                kept.failure = None;
                // The same version keeps its material, and with it what the scrubber has prepared.
                let material = match kept.current.take() {
                    Some(held) if held.material.same_as(&material) => held.material,
                    Some(held) => {
                        kept.previous = Some(held.material);
                        material
                    }
                    None => material,
                };
                kept.current = Some(Held {
                    material: Arc::clone(&material),
                    refresh_at: asked.saturating_add(refresh_after),
                    expires_at: asked.saturating_add(lifetime),
                });
                Ok(material)
            }
            Err(error) => {
                let until = self
                    .clock
                    .monotonic()
                    .saturating_add(self.options.failure_backoff);
                kept.failure = Some((until, error.clone()));
                Err(error)
            }
        }
    }

    async fn ask(&self) -> Result<(Arc<Material>, Option<Duration>), CredentialError> {
        let name = &self.credential.name;
        let limit = self.options.fetch_timeout;
        let fetched = match tokio::time::timeout(limit, self.source.fetch()).await {
            Ok(Ok(fetched)) => fetched,
            Ok(Err(error)) => {
                return Err(CredentialError::Source {
                    name: Arc::clone(name),
                    source: Arc::new(error),
                });
            }
            Err(tokio::time::error::Elapsed { .. }) => {
                return Err(CredentialError::Timeout {
                    name: Arc::clone(name),
                    from: Arc::clone(&self.from),
                    after: limit,
                });
            }
        };
        let material = Material::new(
            Arc::clone(name),
            &self.credential.shape,
            &fetched.value,
            fetched.version,
        )
        .map_err(|source| CredentialError::Unusable {
            name: Arc::clone(name),
            from: Arc::clone(&self.from),
            source,
        })?;
        Ok((Arc::new(material), fetched.lease))
    }

    /// How long a value is used, and after which part of that it is fetched again.
    fn lifetime(&self, lease: Option<Duration>) -> (Duration, Duration) {
        match lease {
            None => (
                self.options.static_ttl,
                self.options.static_refresh.min(self.options.static_ttl),
            ),
            Some(lease) => {
                let lifetime = lease.clamp(MIN_LEASE, self.options.max_ttl.max(MIN_LEASE));
                (lifetime, lifetime.mul_f64(2.0 / 3.0))
            }
        }
    }

    async fn keep_fresh(self: &Arc<Self>) {
        loop {
            let due = self.kept().current.as_ref().map(|held| held.refresh_at);
            let now = self.clock.monotonic();
            let wait = match due {
                // Nothing is fetched that nobody asked for; look again in a moment.
                None => self.options.static_refresh,
                Some(due) if due > now => due.saturating_sub(now),
                Some(_) => {
                    if self.fetch().await.is_ok() {
                        continue;
                    }
                    self.options.failure_backoff
                }
            };
            tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
        }
    }
}

impl fmt::Debug for CredentialStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.entries.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::sync::Notify;
    use wallgate_types::clock::ManualClock;
    use wallgate_types::secret::Secret;

    use super::*;
    use crate::binding::tests::binding;
    use crate::material::Shape;
    use crate::source::{BoxFuture, Fetched};

    /// What a scripted source does when it is asked.
    #[derive(Debug)]
    enum Answer {
        Value(&'static str, &'static str, Option<Duration>),
        Fails,
        Hangs,
    }

    /// Answers as scripted; with nothing left, it fails.
    #[derive(Debug, Default)]
    struct Scripted {
        answers: Mutex<VecDeque<Answer>>,
        asked: AtomicU64,
        gate: Option<Notify>,
    }

    impl SecretSource for Scripted {
        fn describe(&self) -> String {
            "test:it".to_owned()
        }

        fn fetch(&self) -> BoxFuture<'_, Result<Fetched, SourceError>> {
            Box::pin(async {
                self.asked.fetch_add(1, Ordering::SeqCst);
                if let Some(gate) = &self.gate {
                    gate.notified().await;
                }
                let answer = self.answers.lock().unwrap().pop_front();
                match answer {
                    Some(Answer::Value(value, version, lease)) => Ok(Fetched {
                        value: Secret::new(value.as_bytes().to_vec()),
                        version: version.to_owned(),
                        lease,
                    }),
                    Some(Answer::Hangs) => std::future::pending().await,
                    Some(Answer::Fails) | None => Err(SourceError::Missing {
                        what: "it".to_owned(),
                    }),
                }
            })
        }
    }

    struct Fixture {
        store: CredentialStore,
        source: Arc<Scripted>,
        clock: Arc<ManualClock>,
    }

    fn fixture(answers: Vec<Answer>, gate: Option<Notify>) -> Fixture {
        let source = Arc::new(Scripted {
            answers: Mutex::new(answers.into()),
            gate,
            ..Scripted::default()
        });
        let clock = Arc::new(ManualClock::at(1_000));
        let credential = Credential {
            name: "c".into(),
            shape: Shape::Bearer,
            binding: Binding {
                max_uses: Some(2),
                ..binding(&["api.example.test"])
            },
        };
        let shared: Arc<dyn Clock> = clock.clone();
        let store = CredentialStore::new(
            vec![(credential, source.clone() as Arc<dyn SecretSource>)],
            StoreOptions::default(),
            &shared,
        )
        .unwrap();
        Fixture { store, source, clock }
    }

    use crate::binding::Binding;

    impl Fixture {
        async fn version(&self) -> Result<String, String> {
            let result = self.store.get("c").await;
            result
                .map(|material| material.version().to_owned())
                .map_err(|error| error.to_string())
        }

        fn asked(&self) -> u64 {
            self.source.asked.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn a_value_is_used_within_its_lease_and_never_after() {
        let lease = Some(Duration::from_mins(1));
        let f = fixture(
            vec![
                Answer::Value("secret-number-1", "1", lease),
                Answer::Value("secret-number-2", "2", lease),
            ],
            None,
        );
        assert_eq!(f.version().await, Ok("1".to_owned()));
        f.clock.advance(Duration::from_secs(59));
        assert_eq!(f.version().await, Ok("1".to_owned()));
        assert_eq!(f.asked(), 1);
        f.clock.advance(Duration::from_secs(1));
        assert_eq!(f.version().await, Ok("2".to_owned()));
        f.clock.advance(Duration::from_mins(1));
        assert_eq!(
            f.version().await,
            Err("credential \"c\": it does not exist".to_owned())
        );
        let host: Host = "api.example.test".parse().unwrap();
        let remembered: Vec<_> = f
            .store
            .remembered_for(&host)
            .iter()
            .map(|m| m.version().to_owned())
            .collect();
        assert_eq!(remembered, ["2", "1"]);
        assert!(f.store.remembered_for(&"other.test".parse().unwrap()).is_empty());
    }

    #[tokio::test]
    async fn a_failure_is_the_answer_for_a_moment_and_then_the_source_is_asked_again() {
        let f = fixture(
            vec![Answer::Fails, Answer::Value("secret-number-1", "1", None)],
            None,
        );
        assert!(f.version().await.is_err());
        assert!(f.version().await.is_err());
        assert_eq!(f.asked(), 1);
        f.clock.advance(Duration::from_secs(1));
        assert_eq!(f.version().await, Ok("1".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_hangs_is_given_up() {
        let f = fixture(vec![Answer::Hangs], None);
        let expected = "credential \"c\" from test:it: no answer within 3000 ms";
        assert_eq!(f.version().await, Err(expected.to_owned()));
    }

    #[tokio::test]
    async fn garbage_is_no_value_and_is_not_shown() {
        let f = fixture(vec![Answer::Value("two\nlines-of-it", "1", None)], None);
        let error = f.store.get("c").await.unwrap_err();
        assert_eq!(error.code(), "credential_unavailable");
        assert_eq!(
            error.to_string(),
            "credential \"c\" from test:it: the value has a line break, a control character or a non-ASCII character"
        );
        assert!(!format!("{error:?}").contains("two"));
        let unknown = f.store.get("nobody").await.unwrap_err();
        assert_eq!(unknown.code(), "credential_unknown");
    }

    #[tokio::test]
    async fn many_at_once_ask_once() {
        let f = fixture(
            vec![Answer::Value("secret-number-1", "1", None)],
            Some(Notify::new()),
        );
        let all = join_all((0..50).map(|_| f.version()));
        let open = async { f.source.gate.as_ref().unwrap().notify_one() };
        let (versions, ()) = tokio::join!(all, open);
        assert!(versions.iter().all(|version| version == &Ok("1".to_owned())));
        assert_eq!(f.asked(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_refresher_takes_up_a_rotated_value_and_survives_an_outage_within_the_lease() {
        let f = fixture(
            vec![
                Answer::Value("secret-number-1", "1", None),
                Answer::Fails,
                Answer::Value("secret-number-2", "2", None),
            ],
            None,
        );
        assert_eq!(f.version().await, Ok("1".to_owned()));
        f.clock.advance(Duration::from_secs(30));
        let refresher = f.store.run_refresher();
        tokio::pin!(refresher);
        let step = tokio::time::timeout(Duration::from_millis(500), &mut refresher).await;
        assert!(step.is_err());
        assert_eq!((f.asked(), f.version().await), (2, Ok("1".to_owned())));
        let step = tokio::time::timeout(Duration::from_secs(1), &mut refresher).await;
        assert!(step.is_err());
        assert_eq!((f.asked(), f.version().await), (3, Ok("2".to_owned())));
    }

    #[tokio::test]
    async fn a_rejected_version_is_fetched_again() {
        let f = fixture(
            vec![
                Answer::Value("secret-number-1", "1", None),
                Answer::Value("secret-number-2", "2", None),
            ],
            None,
        );
        assert_eq!(f.version().await, Ok("1".to_owned()));
        f.store.invalidate("c", "0");
        assert_eq!(f.version().await, Ok("1".to_owned()));
        f.store.invalidate("c", "1");
        assert_eq!(f.version().await, Ok("2".to_owned()));
    }

    #[tokio::test]
    async fn uses_are_counted_to_the_last() {
        let f = fixture(vec![], None);
        let facts = crate::binding::tests::facts("GET", "api.example.test", "/");
        assert_eq!(f.store.take_use("c"), Ok(()));
        assert_eq!(f.store.permits("c", &facts, Timestamp(0)), Ok(()));
        assert_eq!(f.store.take_use("c"), Ok(()));
        assert_eq!(
            f.store.permits("c", &facts, Timestamp(0)),
            Err(Some(Withheld::Uses))
        );
        assert_eq!(f.store.take_use("c"), Err(Withheld::Uses));
        assert_eq!(f.store.permits("d", &facts, Timestamp(0)), Err(None));
    }

    #[tokio::test]
    async fn start_up_names_every_credential_that_cannot_be_had() {
        let f = fixture(vec![Answer::Fails], None);
        let errors: Vec<_> = f
            .store
            .check_all()
            .await
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(errors, ["credential \"c\": it does not exist"]);
    }
}

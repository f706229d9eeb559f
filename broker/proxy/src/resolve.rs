//! From an authority to the addresses that may be dialled for it (P3).
//!
//! There is one path. A literal is its own answer; a name with an exception is where the operator said; every other
//! name is asked of the host's resolver. Then every address of the answer is classified, and a single one that is not
//! public refuses the whole name: an answer that mixes a public address with an internal one is an attack, not a
//! choice. What is left is a [`Checked`], which only this module makes, which cannot be copied, and without which
//! nothing dials. It is made anew for each dial, retries included, so there is no moment between check and use in which
//! an answer could change (DNS rebinding).
//!
//! An exception is exactly one name (and port) at exactly one address and port. It bypasses DNS and classification,
//! except that a cloud's metadata service is never reached, whatever anybody configured.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use hickory_resolver::net::NetError;
use thiserror::Error;
use tokio::sync::Semaphore;
use wallgate_types::address::AddressClass;
use wallgate_types::authority::{Authority, Host, Name};
use wallgate_types::clock::Clock;

use crate::edge_limits::{
    LOOKUP_TIMEOUT, MAX_ADDRESSES, MAX_LOOKUPS_IN_FLIGHT, MAX_NEGATIVE_TTL, MAX_POSITIVE_TTL, MAX_RESOLVED,
};
use crate::lru::Lru;

/// What a name stands for, according to a [`Lookup`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its addresses of both families, in the order in which they came.
    pub addresses: Vec<IpAddr>,
    /// How long the answer may be used.
    pub ttl: Duration,
}

/// Why a [`Lookup`] has no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LookupError {
    /// There is no such name, or it has no address.
    #[error("there is no such name, or it has no address")]
    NotFound,
    /// The servers did not answer, or answered with a failure. The text is for the operator.
    #[error("the resolver failed: {0}")]
    Failed(String),
}

/// A source of addresses for names. It checks nothing: that is done to whatever it says.
pub trait Lookup: Send + Sync + fmt::Debug {
    /// The addresses of `name`.
    fn lookup<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Answer, LookupError>>;
}

/// The resolver of this host's configuration cannot be used.
#[derive(Debug, Error)]
#[error("this host's resolver configuration is unusable: {0}")]
pub struct ResolverConfigError(String);

/// This host's own resolver configuration, its hosts file included.
pub struct SystemLookup(TokioResolver);

impl fmt::Debug for SystemLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SystemLookup")
    }
}

impl SystemLookup {
    /// Reads the host's configuration.
    ///
    /// # Errors
    /// [`ResolverConfigError`] when there is none, or it names no server.
    pub fn from_host() -> Result<Self, ResolverConfigError> {
        let unusable = |error: NetError| ResolverConfigError(error.to_string());
        let mut builder = TokioResolver::builder_tokio().map_err(unusable)?;
        let options = builder.options_mut();
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        // Answers are cached by `Resolver`, for each sandbox apart.
        options.cache_size = 0;
        options.timeout = LOOKUP_TIMEOUT / 2;
        builder.build().map(Self).map_err(unusable)
    }
}

impl Lookup for SystemLookup {
    fn lookup<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Answer, LookupError>> {
        Box::pin(async move {
            // The root's dot: no search list of the host's is tried.
            let found = self.0.lookup_ip(format!("{name}.")).await.map_err(|error| {
                if error.is_no_records_found() || error.is_nx_domain() {
                    LookupError::NotFound
                } else {
                    LookupError::Failed(error.to_string())
                }
            })?;
            let ttl = found.as_lookup().answers().iter().map(|record| record.ttl).min();
            Ok(Answer {
                addresses: found.iter().collect(),
                ttl: Duration::from_secs(ttl.unwrap_or_default().into()),
            })
        })
    }
}

/// Where the operator says that a name really is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// The host.
    pub host: Host,
    /// The port that a request is for; `None` for every port of the host.
    pub port: Option<u16>,
    /// Where it is dialled.
    pub address: SocketAddr,
}

/// Why an exception is refused, before anything runs.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ExceptionError {
    /// A metadata service, or an address that is none.
    #[error("{host} must not be at {address}: it is a {class} address")]
    Forbidden {
        /// The host.
        host: Host,
        /// Where it would be dialled.
        address: SocketAddr,
        /// What that is.
        class: AddressClass,
    },
    /// Port 0.
    #[error("{host} must not be at {address}: there is no port 0")]
    Port {
        /// The host.
        host: Host,
        /// Where it would be dialled.
        address: SocketAddr,
    },
    /// One of our own listeners.
    #[error("{host} must not be at {address}: that is wallgate itself")]
    Own {
        /// The host.
        host: Host,
        /// Where it would be dialled.
        address: SocketAddr,
    },
    /// The same host and port twice.
    #[error("{host} is given more than one address")]
    Duplicate {
        /// The host.
        host: Host,
    },
}

/// All exceptions, checked, and the addresses that are wallgate itself.
#[derive(Debug, Default)]
pub struct Exceptions {
    entries: Vec<Exception>,
    own: Vec<SocketAddr>,
}

impl Exceptions {
    /// Checks `entries`; `own` are wallgate's own listeners in the host's network.
    ///
    /// # Errors
    /// [`ExceptionError`].
    pub fn new(entries: Vec<Exception>, own: Vec<SocketAddr>) -> Result<Self, ExceptionError> {
        for (index, entry) in entries.iter().enumerate() {
            let (host, address) = (entry.host.clone(), entry.address);
            let class = AddressClass::of(address.ip());
            if never(class) {
                return Err(ExceptionError::Forbidden { host, address, class });
            }
            if address.port() == 0 || entry.port == Some(0) {
                return Err(ExceptionError::Port { host, address });
            }
            if is_own(&own, address) {
                return Err(ExceptionError::Own { host, address });
            }
            let earlier = entries.iter().take(index);
            if earlier
                .into_iter()
                .any(|other| other.host == host && other.port == entry.port)
            {
                return Err(ExceptionError::Duplicate { host });
            }
        }
        Ok(Self { entries, own })
    }

    /// The exception for this authority: one for its port goes before one for every port.
    fn find(&self, authority: &Authority) -> Option<&Exception> {
        let entry = |port| {
            self.entries
                .iter()
                .find(|entry| entry.port == port && entry.host == *authority.host())
        };
        entry(Some(authority.port())).or_else(|| entry(None))
    }
}

/// What is not reached even by exception: metadata services, and what is no unicast address.
fn never(class: AddressClass) -> bool {
    match class {
        AddressClass::Metadata
        | AddressClass::Multicast
        | AddressClass::Unspecified
        | AddressClass::Benchmarking => true,
        AddressClass::Public
        | AddressClass::Private
        | AddressClass::Loopback
        | AddressClass::LinkLocal
        | AddressClass::Documentation
        | AddressClass::Shared
        | AddressClass::UniqueLocal
        | AddressClass::Transition
        | AddressClass::Reserved => false,
    }
}

/// Whether wallgate itself would answer there. A listener on every address is met through loopback.
fn is_own(own: &[SocketAddr], address: SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    own.iter().any(|listener| {
        listener.port() == address.port()
            && (listener.ip().to_canonical() == ip || (listener.ip().is_unspecified() && ip.is_loopback()))
    })
}

/// Why an authority has no address that may be dialled.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ResolveError {
    /// There is no such name, or it has no address.
    #[error("there is no such name, or it has no address")]
    NotFound,
    /// The resolver failed. The text is for the operator.
    #[error("the resolver failed: {0}")]
    Failed(String),
    /// The resolver took longer than [`LOOKUP_TIMEOUT`].
    #[error("the resolver did not answer in time")]
    Timeout,
    /// This sandbox has [`MAX_LOOKUPS_IN_FLIGHT`] lookups under way.
    #[error("too many lookups are under way")]
    Overloaded,
    /// One of its addresses is not public.
    #[error("{address} is a {class} address")]
    Forbidden {
        /// The first such address.
        address: IpAddr,
        /// What it is.
        class: AddressClass,
    },
    /// One of its addresses is wallgate itself.
    #[error("{address} is wallgate itself")]
    Own {
        /// That address.
        address: SocketAddr,
    },
}

impl ResolveError {
    /// The stable reason code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotFound => "name_not_found",
            Self::Failed(_) => "resolve_failed",
            Self::Timeout => "resolve_timeout",
            Self::Overloaded => "resolve_overloaded",
            Self::Forbidden { .. } => "dest_forbidden",
            Self::Own { .. } => "dest_self",
        }
    }

    /// The class of the address that was refused, if that is why.
    #[must_use]
    pub const fn class(&self) -> Option<AddressClass> {
        match self {
            Self::Forbidden { class, .. } => Some(*class),
            Self::NotFound | Self::Failed(_) | Self::Timeout | Self::Overloaded | Self::Own { .. } => None,
        }
    }
}

impl From<LookupError> for ResolveError {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::NotFound => Self::NotFound,
            LookupError::Failed(text) => Self::Failed(text),
        }
    }
}

/// An authority with addresses that were all checked: what a dial takes, and nothing else.
///
/// It has private fields, no `Clone` and one maker, [`Resolver::resolve`].
#[must_use = "a checked authority is dialled"]
#[derive(Debug)]
pub struct Checked {
    authority: Authority,
    addresses: Vec<SocketAddr>,
    class: AddressClass,
    is_exception: bool,
}

impl Checked {
    /// Whom it is for: the name that the certificate must have.
    #[must_use]
    pub const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Where it may be dialled; at least one.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The class of the addresses: public, unless it is an exception.
    #[must_use]
    pub const fn class(&self) -> AddressClass {
        self.class
    }

    /// Whether the operator said where it is.
    #[must_use]
    pub const fn is_exception(&self) -> bool {
        self.is_exception
    }
}

struct Cached {
    answer: Result<Vec<IpAddr>, LookupError>,
    until: Duration,
}

/// One sandbox's way from authorities to addresses.
pub struct Resolver {
    lookup: Arc<dyn Lookup>,
    exceptions: Arc<Exceptions>,
    clock: Arc<dyn Clock>,
    cache: Mutex<Lru<Name, Cached>>,
    in_flight: Semaphore,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver")
            .field("lookup", &self.lookup)
            .field("exceptions", &self.exceptions)
            .finish_non_exhaustive()
    }
}

impl Resolver {
    /// A resolver with an empty cache.
    #[must_use]
    pub fn new(lookup: Arc<dyn Lookup>, exceptions: Arc<Exceptions>, clock: Arc<dyn Clock>) -> Self {
        Self {
            lookup,
            exceptions,
            clock,
            cache: Mutex::new(Lru::new(MAX_RESOLVED)),
            in_flight: Semaphore::new(MAX_LOOKUPS_IN_FLIGHT),
        }
    }

    /// The same for another sandbox, with a cache of its own: what one looked up, another cannot tell by the time that
    /// an answer takes.
    #[must_use]
    pub fn for_sandbox(&self) -> Self {
        Self::new(
            Arc::clone(&self.lookup),
            Arc::clone(&self.exceptions),
            Arc::clone(&self.clock),
        )
    }

    /// Where `authority` may be dialled.
    ///
    /// Cancel-safe: dropping it abandons the lookup.
    ///
    /// # Errors
    /// [`ResolveError`]; then nothing is dialled.
    pub async fn resolve(&self, authority: &Authority) -> Result<Checked, ResolveError> {
        if let Some(exception) = self.exceptions.find(authority) {
            return Ok(Checked {
                authority: authority.clone(),
                addresses: vec![exception.address],
                class: AddressClass::of(exception.address.ip()),
                is_exception: true,
            });
        }
        let addresses = match authority.host() {
            Host::V4(address) => vec![IpAddr::V4(*address)],
            Host::V6(address) => vec![IpAddr::V6(*address)],
            Host::Name(name) => self.addresses_of(name).await?,
        };
        self.check(authority, &addresses)
    }

    /// The one maker of [`Checked`] for what nobody vouched for.
    fn check(&self, authority: &Authority, addresses: &[IpAddr]) -> Result<Checked, ResolveError> {
        let mut checked: Vec<SocketAddr> = Vec::with_capacity(addresses.len());
        for address in addresses {
            let class = AddressClass::of(*address);
            if class != AddressClass::Public {
                return Err(ResolveError::Forbidden {
                    address: *address,
                    class,
                });
            }
            let address = SocketAddr::new(address.to_canonical(), authority.port());
            if is_own(&self.exceptions.own, address) {
                return Err(ResolveError::Own { address });
            }
            if !checked.contains(&address) && checked.len() < MAX_ADDRESSES {
                checked.push(address);
            }
        }
        if checked.is_empty() {
            return Err(ResolveError::NotFound);
        }
        Ok(Checked {
            authority: authority.clone(),
            addresses: checked,
            class: AddressClass::Public,
            is_exception: false,
        })
    }

    async fn addresses_of(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError> {
        if let Some(answer) = self.cached(name) {
            return Ok(answer?);
        }
        let _permit = self.in_flight.try_acquire().or(Err(ResolveError::Overloaded))?;
        let answer = tokio::time::timeout(LOOKUP_TIMEOUT, self.lookup.lookup(name))
            .await
            .or(Err(ResolveError::Timeout))?;
        self.remember(name, &answer);
        Ok(answer?.addresses)
    }

    fn cached(&self, name: &Name) -> Option<Result<Vec<IpAddr>, LookupError>> {
        let now = self.clock.monotonic();
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = cache.get(name)?;
        (now < cached.until).then(|| cached.answer.clone())
    }

    fn remember(&self, name: &Name, answer: &Result<Answer, LookupError>) {
        let (answer, ttl) = match answer {
            Ok(answer) => (Ok(answer.addresses.clone()), answer.ttl.min(MAX_POSITIVE_TTL)),
            Err(LookupError::NotFound) => (Err(LookupError::NotFound), MAX_NEGATIVE_TTL),
            // A failure is not remembered: the next request tries again.
            Err(LookupError::Failed(_)) => return,
        };
        let until = self.clock.monotonic().saturating_add(ttl);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        drop(cache.insert(name.clone(), Cached { answer, until }));
    }
}

#[cfg(test)]
mod tests;

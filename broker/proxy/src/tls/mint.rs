//! Leaves of one exact name, for one sandbox.
//!
//! A leaf names one DNS name or one address and is valid for less than a day. All leaves of a sandbox share one key, so
//! that minting is one signature; each is minted once, cached, and minted anew before it ends. What is kept with it is
//! the whole rustls configuration, since making that for each connection would lose session resumption.
//!
//! A sandbox chooses the names that it asks for. So the cache is bounded, minting is rate limited, and the caller asks
//! its `MintPolicy` before it comes here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rcgen::string::Ia5String;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SanType};
use rustls::ServerConfig;
use rustls::server::{ProducesTickets, ServerSessionMemoryCache, StoresServerSessions};
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use rustls_pki_types::CertificateDer;
use thiserror::Error;
use wallgate_types::authority::Host;
use wallgate_types::clock::{Clock, Timestamp};

use super::ca::{CaError, SandboxCa, backdated, date, named, random_serial};
use super::key::EcKey;
use super::{ALPN_H2, ALPN_HTTP1, provider};
use crate::edge_limits::{
    LEAF_LIFETIME, LEAF_RENEWAL, MAX_LEAVES, MAX_SERVER_SESSIONS, MINT_BURST, MINTS_PER_SECOND,
};
use crate::lru::Lru;
use crate::rate::Bucket;

/// The longest common name that a certificate may have (RFC 5280, appendix A.1, `ub-common-name`).
const MAX_COMMON_NAME_BYTES: usize = 64;

/// Why there is no leaf.
#[derive(Debug, Error)]
pub enum MintError {
    /// This sandbox had too many names minted in too short a time.
    #[error("too many new names in too short a time")]
    Limited,
    /// The sandbox's certificate authority has ended, or a certificate could not be made.
    #[error("cannot mint a leaf")]
    Ca(#[source] CaError),
}

impl MintError {
    /// The stable reason code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Limited => "mint_limited",
            Self::Ca(_) => "mint_failed",
        }
    }
}

/// What a minter has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MintCounters {
    /// Leaves minted.
    pub minted: u64,
    /// Handshakes that found theirs in the cache.
    pub cached: u64,
    /// Leaves that made room for others.
    pub evicted: u64,
    /// Handshakes refused for too many new names.
    pub limited: u64,
}

#[derive(Debug, Default)]
struct Counters {
    minted: AtomicU64,
    cached: AtomicU64,
    evicted: AtomicU64,
    limited: AtomicU64,
}

struct Leaf {
    config: Arc<ServerConfig>,
    renew_at: Timestamp,
}

struct State {
    leaves: Lru<Host, Leaf>,
    mints: Bucket,
}

/// One sandbox's side of TLS: its authority, its leaf key, its leaves, its tickets and its sessions.
pub struct Minter {
    ca: SandboxCa,
    leaf_key: EcKey,
    handshake_key: Arc<dyn SigningKey>,
    sessions: Arc<dyn StoresServerSessions>,
    tickets: Arc<dyn ProducesTickets>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    counters: Counters,
}

impl std::fmt::Debug for Minter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Minter")
            .field("ca", &self.ca)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl Minter {
    /// A minter for the sandbox of this authority.
    ///
    /// # Errors
    /// [`CaError`] when a key cannot be made.
    pub fn new(ca: SandboxCa, clock: Arc<dyn Clock>) -> Result<Self, CaError> {
        let leaf_key = EcKey::generate()?;
        let handshake_key = leaf_key.for_handshakes()?;
        let now = clock.monotonic();
        Ok(Self {
            ca,
            leaf_key,
            handshake_key,
            sessions: ServerSessionMemoryCache::new(MAX_SERVER_SESSIONS),
            tickets: rustls::crypto::aws_lc_rs::Ticketer::new().map_err(CaError::Tls)?,
            clock,
            state: Mutex::new(State {
                leaves: Lru::new(MAX_LEAVES),
                mints: Bucket::new(MINT_BURST, MINTS_PER_SECOND, now),
            }),
            counters: Counters::default(),
        })
    }

    /// The authority that signs these leaves.
    #[must_use]
    pub const fn ca(&self) -> &SandboxCa {
        &self.ca
    }

    /// What to shake hands with as `host`: minted now, or cached.
    ///
    /// The lock is held while a leaf is minted (one signature, about 15 µs), so that each is minted once.
    ///
    /// # Errors
    /// [`MintError`].
    pub fn server_config(&self, host: &Host) -> Result<Arc<ServerConfig>, MintError> {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leaf) = state.leaves.get(host)
            && now < leaf.renew_at
        {
            self.counters.cached.fetch_add(1, Ordering::Relaxed);
            return Ok(Arc::clone(&leaf.config));
        }
        if !state.mints.take(self.clock.monotonic()) {
            self.counters.limited.fetch_add(1, Ordering::Relaxed);
            return Err(MintError::Limited);
        }
        let leaf = self.mint(host, now).map_err(MintError::Ca)?;
        let config = Arc::clone(&leaf.config);
        let replaced = state.leaves.insert(host.clone(), leaf);
        drop(state);
        self.counters.minted.fetch_add(1, Ordering::Relaxed);
        if replaced.is_some_and(|(old, _)| old != *host) {
            self.counters.evicted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(config)
    }

    /// What it has done so far.
    #[must_use]
    pub fn counters(&self) -> MintCounters {
        MintCounters {
            minted: self.counters.minted.load(Ordering::Relaxed),
            cached: self.counters.cached.load(Ordering::Relaxed),
            evicted: self.counters.evicted.load(Ordering::Relaxed),
            limited: self.counters.limited.load(Ordering::Relaxed),
        }
    }

    fn mint(&self, host: &Host, now: Timestamp) -> Result<Leaf, CaError> {
        let not_after = now.plus(LEAF_LIFETIME).min(self.ca.not_after());
        if not_after <= now {
            return Err(CaError::Clock);
        }
        let chain = self.chain(host, now, not_after)?;
        let certified = CertifiedKey::new(chain, Arc::clone(&self.handshake_key));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(CaError::Tls)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![ALPN_H2.to_vec(), ALPN_HTTP1.to_vec()];
        config.session_storage = Arc::clone(&self.sessions);
        config.ticketer = Arc::clone(&self.tickets);
        Ok(Leaf {
            config: Arc::new(config),
            renew_at: renewal(now, not_after),
        })
    }

    /// The leaf and the intermediate: what a client needs besides the root.
    pub(super) fn chain(
        &self,
        host: &Host,
        now: Timestamp,
        not_after: Timestamp,
    ) -> Result<Vec<CertificateDer<'static>>, CaError> {
        let text = match host {
            Host::Name(name) => name.as_str().to_owned(),
            Host::V4(address) => address.to_string(),
            Host::V6(address) => address.to_string(),
        };
        let san = match host {
            Host::Name(name) => {
                SanType::DnsName(Ia5String::try_from(name.as_str()).map_err(CaError::Certificate)?)
            }
            Host::V4(address) => SanType::IpAddress((*address).into()),
            Host::V6(address) => SanType::IpAddress((*address).into()),
        };
        let mut params = CertificateParams::default();
        let common_name = if text.len() <= MAX_COMMON_NAME_BYTES {
            text.as_str()
        } else {
            "wallgate leaf"
        };
        params.distinguished_name = named(common_name);
        params.not_before = date(backdated(now))?;
        params.not_after = date(not_after)?;
        params.serial_number = Some(random_serial()?);
        params.subject_alt_names = vec![san];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params
            .signed_by(&self.leaf_key, self.ca.issuer())
            .map_err(CaError::Certificate)?;
        Ok(vec![certificate.der().clone(), self.ca.certificate().clone()])
    }
}

/// [`LEAF_RENEWAL`] before the end, or half-way when the authority itself ends sooner than that.
fn renewal(now: Timestamp, not_after: Timestamp) -> Timestamp {
    let left = Duration::from_millis(not_after.0.saturating_sub(now.0));
    now.plus(left.saturating_sub(LEAF_RENEWAL).max(left / 2))
}

//! Upstream connections of one sandbox, kept for its next request (R01: never another sandbox's).
//!
//! A pool belongs to one sandbox. Within it, a connection is used again only for the same authority, scheme and
//! credential version, and only while its address is among those that were checked for the request at hand.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use wallgate_types::authority::Authority;
use wallgate_types::clock::Clock;
use wallgate_types::request::Scheme;

use crate::limits::Limits;
use crate::parse::RequestBody;

/// What two requests must have in common to use one connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) authority: Authority,
    pub(crate) scheme: Scheme,
    pub(crate) credential: Option<String>,
}

struct Idle {
    sender: http1::SendRequest<RequestBody>,
    address: SocketAddr,
    since: Duration,
}

struct Shared2 {
    sender: http2::SendRequest<RequestBody>,
    address: SocketAddr,
    streams: Arc<AtomicUsize>,
    used: Duration,
}

#[derive(Default)]
struct Inner {
    idle: HashMap<Key, Vec<Idle>>,
    shared: HashMap<Key, Vec<Shared2>>,
    idle_count: usize,
}

/// One sandbox's upstream connections.
pub(crate) struct Pool {
    inner: Mutex<Inner>,
    clock: Arc<dyn Clock>,
    per_key: usize,
    in_all: usize,
    keep: Duration,
    streams: usize,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// A connection that may carry one request now.
pub(crate) enum Connection {
    /// To itself.
    Http1(http1::SendRequest<RequestBody>, SocketAddr),
    /// As one stream among others.
    Http2(http2::SendRequest<RequestBody>, SocketAddr, Stream),
}

/// A stream's place on its connection.
#[derive(Debug)]
pub(crate) struct Stream(Arc<AtomicUsize>);

impl Stream {
    fn on(streams: &Arc<AtomicUsize>) -> Self {
        streams.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(streams))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    pub(crate) fn new(limits: &Limits, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner: Mutex::default(),
            clock,
            per_key: limits.pool_idle_per_key,
            in_all: limits.pool_idle_per_sandbox,
            keep: limits.pool_idle,
            streams: limits.pool_h2_streams,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection for `key` to one of `addresses`, if there is one.
    pub(crate) fn take(&self, key: &Key, addresses: &[SocketAddr]) -> Option<Connection> {
        let now = self.clock.monotonic();
        let mut inner = self.lock();
        if let Some(shared) = inner.shared.get_mut(key) {
            shared.retain(|one| !one.sender.is_closed());
            let free = shared.iter_mut().find(|one| {
                addresses.contains(&one.address) && one.streams.load(Ordering::Relaxed) < self.streams
            });
            if let Some(one) = free {
                one.used = now;
                let stream = Stream::on(&one.streams);
                return Some(Connection::Http2(one.sender.clone(), one.address, stream));
            }
        }
        let idle = inner.idle.get_mut(key)?;
        let mut found = None;
        let mut dropped = 0_usize;
        while let Some(one) = idle.pop() {
            dropped = dropped.saturating_add(1);
            let usable = !one.sender.is_closed()
                && now.saturating_sub(one.since) < self.keep
                && addresses.contains(&one.address);
            if usable {
                found = Some(Connection::Http1(one.sender, one.address));
                break;
            }
        }
        inner.idle_count = inner.idle_count.saturating_sub(dropped);
        found
    }

    /// Takes back a connection whose exchange has ended on both sides.
    fn give_back(&self, key: &Key, sender: http1::SendRequest<RequestBody>, address: SocketAddr) {
        let since = self.clock.monotonic();
        let mut inner = self.lock();
        if sender.is_closed() || inner.idle_count >= self.in_all {
            return;
        }
        let idle = match inner.idle.get_mut(key) {
            Some(idle) => idle,
            None => inner.idle.entry(key.clone()).or_default(),
        };
        if idle.len() >= self.per_key {
            return;
        }
        idle.push(Idle {
            sender,
            address,
            since,
        });
        inner.idle_count = inner.idle_count.saturating_add(1);
    }

    /// Lets others use a new h2 connection too; the first stream is the caller's.
    pub(crate) fn share(
        &self,
        key: &Key,
        sender: &http2::SendRequest<RequestBody>,
        address: SocketAddr,
    ) -> Stream {
        let streams = Arc::new(AtomicUsize::new(0));
        let stream = Stream::on(&streams);
        let used = self.clock.monotonic();
        let one = Shared2 {
            sender: sender.clone(),
            address,
            streams,
            used,
        };
        self.lock().shared.entry(key.clone()).or_default().push(one);
        stream
    }

    /// Closes what has been idle for too long. Called now and then.
    pub(crate) fn sweep(&self) {
        let now = self.clock.monotonic();
        let mut inner = self.lock();
        inner.idle.retain(|_, idle| {
            idle.retain(|one| !one.sender.is_closed() && now.saturating_sub(one.since) < self.keep);
            !idle.is_empty()
        });
        inner.idle_count = inner.idle.values().map(Vec::len).sum();
        inner.shared.retain(|_, shared| {
            shared.retain(|one| {
                let idle =
                    one.streams.load(Ordering::Relaxed) == 0 && now.saturating_sub(one.used) >= self.keep;
                !one.sender.is_closed() && !idle
            });
            !shared.is_empty()
        });
    }

    /// Closes everything.
    pub(crate) fn clear(&self) {
        let mut inner = self.lock();
        *inner = Inner::default();
    }
}

/// A connection in use, which goes back to its pool if the exchange ends well.
pub(crate) struct Lease {
    pool: Arc<Pool>,
    key: Key,
    sender: http1::SendRequest<RequestBody>,
    address: SocketAddr,
}

impl Lease {
    pub(crate) const fn new(
        pool: Arc<Pool>,
        key: Key,
        sender: http1::SendRequest<RequestBody>,
        address: SocketAddr,
    ) -> Self {
        Self {
            pool,
            key,
            sender,
            address,
        }
    }

    /// The response has ended and the request had been sent whole.
    pub(crate) fn finish(self) {
        self.pool.give_back(&self.key, self.sender, self.address);
    }
}

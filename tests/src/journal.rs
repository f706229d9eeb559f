//! What a server received, kept for the test to ask.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};

/// How much of a body is kept as it came; the rest only counts and goes into the digest.
pub const KEPT_BODY_BYTES: usize = 256 * 1024;

/// One request, as the server saw it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Received {
    /// The connection that it came on, counted from 0.
    pub connection: u64,
    /// The name in the TLS handshake.
    pub sni: Option<String>,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub version: String,
    /// The method.
    pub method: String,
    /// `Host` or `:authority`.
    pub authority: String,
    /// The path, as it came.
    pub path: String,
    /// The query, as it came.
    pub query: Option<String>,
    /// Every header field, in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body's beginning.
    pub body: Vec<u8>,
    /// The body's length.
    pub body_bytes: u64,
    /// The body's SHA-256 in hexadecimal, once it has ended.
    pub body_sha256: Option<String>,
}

impl Received {
    /// The value of the first field of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(given, _)| given == name)
            .map(|(_, value)| value.as_str())
    }

    /// Everything that was received as one text, to search for what must not be in it.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{} {} {}", self.method, self.authority, self.path);
        if let Some(query) = &self.query {
            text.push('?');
            text.push_str(query);
        }
        for (name, value) in &self.headers {
            text.push('\n');
            text.push_str(name);
            text.push_str(": ");
            text.push_str(value);
        }
        text.push_str("\n\n");
        text.push_str(&String::from_utf8_lossy(&self.body));
        text
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {}{}",
            self.version, self.method, self.authority, self.path
        )?;
        if let Some(query) = &self.query {
            write!(f, "?{query}")?;
        }
        write!(f, " {:?} + {} bytes", self.headers, self.body_bytes)
    }
}

#[derive(Debug, Default)]
struct Kept {
    connections: u64,
    requests: BTreeMap<u64, Received>,
    raw: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

/// A server's journal. Clones are the same journal.
#[derive(Clone, Debug, Default)]
pub struct Journal(Arc<(Mutex<Kept>, Condvar)>);

impl Journal {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn connection(&self) -> u64 {
        let mut kept = self.kept();
        let number = kept.connections;
        kept.connections += 1;
        self.0.1.notify_all();
        number
    }

    pub(crate) fn request(&self, received: Received) -> u64 {
        let mut kept = self.kept();
        let key = kept.next;
        kept.next += 1;
        kept.requests.insert(key, received);
        self.0.1.notify_all();
        key
    }

    pub(crate) fn update(&self, key: u64, change: impl FnOnce(&mut Received)) {
        if let Some(received) = self.kept().requests.get_mut(&key) {
            change(received);
        }
        self.0.1.notify_all();
    }

    pub(crate) fn raw(&self, connection: u64, bytes: &[u8]) {
        self.kept()
            .raw
            .entry(connection)
            .or_default()
            .extend_from_slice(bytes);
        self.0.1.notify_all();
    }

    /// Every request so far, in the order in which they came.
    #[must_use]
    pub fn requests(&self) -> Vec<Received> {
        self.kept().requests.values().cloned().collect()
    }

    /// How many connections were made so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.kept().connections
    }

    /// The bytes of each connection so far, for servers that keep bytes.
    #[must_use]
    pub fn raw_bytes(&self) -> Vec<Vec<u8>> {
        self.kept().raw.values().cloned().collect()
    }

    /// Forgets what was received so far.
    pub fn clear(&self) {
        let mut kept = self.kept();
        kept.requests.clear();
        kept.raw.clear();
    }

    /// Waits until a request satisfies `wanted`, and returns it.
    ///
    /// # Errors
    ///
    /// When none does within `patience`.
    pub fn wait_for(&self, patience: Duration, wanted: impl Fn(&Received) -> bool) -> Result<Received> {
        let (kept, timeout) = self
            .0
            .1
            .wait_timeout_while(self.kept(), patience, |kept| !kept.requests.values().any(&wanted))
            .unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            bail!(
                "the awaited request did not come within {patience:?}; these did: {:#?}",
                kept.requests
            );
        }
        match kept.requests.values().find(|received| wanted(received)) {
            Some(received) => Ok(received.clone()),
            None => bail!("the awaited request is gone"),
        }
    }
}

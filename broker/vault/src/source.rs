//! What an adapter is: something that fetches one secret, and the client that it may fetch it with.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
pub use futures_util::future::BoxFuture;
use thiserror::Error;
use wallgate_types::secret::Secret;

/// The largest secret that any source may return, in bytes.
pub const MAX_SECRET_BYTES: usize = 64 * 1024;
/// The largest response that a secret store may give, in bytes.
pub const MAX_VAULT_RESPONSE_BYTES: usize = 1024 * 1024;

/// What a source returned.
#[derive(Debug)]
pub struct Fetched {
    /// The secret.
    pub value: Secret<Vec<u8>>,
    /// What the source calls this value, for the record: a version number, a file's change time. Never derived from
    /// the value.
    pub version: String,
    /// How long it may be used, when the source says so.
    pub lease: Option<Duration>,
}

/// One secret in some store.
///
/// `fetch` must be cancel-safe: the store drops it at its deadline.
pub trait SecretSource: Send + Sync + fmt::Debug {
    /// Which secret this is, for an operator: its reference.
    fn describe(&self) -> String;

    /// Fetches it now.
    fn fetch(&self) -> BoxFuture<'_, Result<Fetched, SourceError>>;
}

/// Why a source returned nothing. Each says where it looked; none says what it saw.
#[derive(Debug, Error)]
pub enum SourceError {
    /// There is no such secret, or no such key in it.
    #[error("{what} does not exist")]
    Missing {
        /// What was looked for.
        what: String,
    },
    /// The store refused.
    #[error("{what}: access denied by the secret store")]
    Denied {
        /// What was asked for.
        what: String,
    },
    /// The file could not be read.
    #[error("file {path}: {}", describe_io(.source))]
    Io {
        /// Which file.
        path: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The file is a directory, device, pipe or socket.
    #[error("file {path} is not a regular file")]
    NotAFile {
        /// Which.
        path: String,
    },
    /// More than the limit.
    #[error("{what} is larger than {limit} bytes")]
    TooLarge {
        /// What.
        what: String,
        /// The limit.
        limit: usize,
    },
    /// It is there, but it is not what was promised.
    #[error("{what}: {reason}")]
    Malformed {
        /// What.
        what: String,
        /// What is wrong with its form.
        reason: &'static str,
    },
    /// The store could not be reached.
    #[error("{what}: the secret store could not be reached")]
    Unreachable {
        /// What was asked for.
        what: String,
        /// Why.
        #[source]
        source: ClientError,
    },
    /// The store answered, but not now: sealed, standby, overloaded or broken.
    #[error("{what}: the secret store is {state} (status {status})")]
    NotReady {
        /// What was asked for.
        what: String,
        /// In which state it is.
        state: &'static str,
        /// The HTTP status that said so.
        status: u16,
    },
    /// The store sent us elsewhere. Nobody follows: a redirect would take the store's token along.
    #[error("{what}: the secret store redirects (status {status}), which is not followed")]
    Redirected {
        /// What was asked for.
        what: String,
        /// The HTTP status.
        status: u16,
    },
}

/// The operating system's reason in its own words, without the error number.
fn describe_io(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

/// The broker's own egress, as an adapter sees it.
///
/// An implementation resolves and checks addresses, verifies certificates, has a deadline, bounds the response by
/// [`MAX_VAULT_RESPONSE_BYTES`], never follows a redirect and logs no header.
pub trait GuardedClient: Send + Sync + fmt::Debug {
    /// Sends a request with an absolute URI and returns the whole response.
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'_, Result<http::Response<Bytes>, ClientError>>;
}

/// Why a request to a secret store got no response. Says nothing of the request.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The name did not resolve, or resolved to an address that may not be dialled.
    #[error("the name could not be resolved to a permitted address")]
    Resolve,
    /// No connection.
    #[error("no connection")]
    Connect(#[source] io::Error),
    /// No trustworthy TLS.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// It took too long.
    #[error("no answer in time")]
    Timeout,
    /// The response was larger than [`MAX_VAULT_RESPONSE_BYTES`].
    #[error("the response is too large")]
    TooLarge,
    /// The peer broke off or did not speak HTTP.
    #[error("the exchange broke off")]
    Broken(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

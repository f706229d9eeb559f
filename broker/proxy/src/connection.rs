//! The life of a connection: accepted, terminated, served, over.
//!
//! ```text
//!   Accepted ──▶ Terminated ──▶ one `request` after the other (HTTP/1), or side by side (HTTP/2)
//! ```

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::accept::Accepted;
use crate::client_stream::ClientStream;
use crate::parse::body::Progress;
use crate::parse::canonical::Origin;
use crate::parse::guard::{Flow, Guard, Serving};
use crate::parse::refusal::Refusal;
use crate::parse::{BodyError, ResponseBody};
use crate::request::request;
use crate::shared::{Sandbox, Shared};
use crate::terminate::{HttpProtocol, TerminateError, Terminated, terminate};

/// Where names are asked for over TCP (RFC 7766).
const DNS_PORT: u16 = 53;
/// Requests for another host than the connection's that one h2 connection may make before it is closed.
const MISDIRECTED_MAX: u32 = 8;
/// Requests of one connection that are watched before those that have ended are forgotten.
const WATCHED: usize = 256;

/// What the requests of one connection have in common.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) origin: Origin,
    pub(crate) flow: Arc<Flow>,
    /// Ends this connection only.
    pub(crate) close: CancellationToken,
    misdirected: AtomicU32,
    watched: Mutex<Vec<(Weak<Progress>, u64)>>,
    _place: OwnedSemaphorePermit,
}

/// Serves one connection from its first byte to its last.
///
/// Cancel-safe in the sense that dropping it closes the connection, and every request on it records its outcome.
pub(crate) async fn connection(accepted: Accepted, shared: Arc<Shared>, stop: CancellationToken) {
    let Accepted {
        sandbox,
        original_dst,
        guest,
        stream,
        lifeline,
        place,
    } = accepted;
    tracing::trace!(sandbox = %sandbox.facts.id, guest = %guest.0, to = %original_dst.0, "accepted");
    let life = async {
        if original_dst.0.port() == DNS_PORT {
            return sandbox.dns.serve_tcp(stream, stop).await;
        }
        let terminated = match terminate(stream, original_dst, &sandbox.tls, &sandbox.names).await {
            Ok(terminated) => terminated,
            Err(error) => return refuse(&error, &sandbox, &shared).await,
        };
        let (connection, stream, protocol) = Connection::of(terminated, &sandbox, place);
        match protocol {
            HttpProtocol::Http1 => serve_http1(&connection, stream, &shared, &stop).await,
            HttpProtocol::Http2 => serve_http2(&connection, stream, &shared, &stop).await,
        }
    };
    tokio::select! {
        () = life => {}
        () = lifeline.cancelled() => {}
    }
}

/// A connection that never got to its first request.
async fn refuse(error: &TerminateError, sandbox: &Sandbox, shared: &Shared) {
    let kind = match error {
        TerminateError::UnknownProtocol { .. } | TerminateError::H2c => "flow_deny",
        _ => "tls_deny",
    };
    let event = sandbox
        .refusals
        .note(kind, error.code(), shared.clock.monotonic(), || {
            let first_bytes = match error {
                TerminateError::UnknownProtocol { first_bytes_sha256 } => Some(first_bytes_sha256.clone()),
                _ => None,
            };
            Sandbox::sample(&[
                ("name", error.name().map(|name| name.to_string())),
                ("first_bytes_sha256", first_bytes),
            ])
        });
    shared.note(event).await;
}

async fn serve_http1<S>(
    connection: &Arc<Connection>,
    stream: ClientStream<S>,
    shared: &Arc<Shared>,
    stop: &CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let guard = Guard::new(stream, Arc::clone(&connection.flow), Arc::clone(&shared.limits));
    let service = service_fn(|incoming| answer(Arc::clone(connection), Arc::clone(shared), incoming));
    let serving = http1::Builder::new()
        .auto_date_header(false)
        .serve_connection(TokioIo::new(guard), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        // How a connection ends is told by its requests and by the guard.
        _ = &mut serving => {}
        () = connection.is_over(shared.limits.stream_stall) => {}
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            drop(serving.await);
        }
    }
    if let Some(refusal) = connection.flow.refusal() {
        connection.note_refusal(refusal, None, shared).await;
    }
}

async fn serve_http2<S>(
    connection: &Arc<Connection>,
    stream: ClientStream<S>,
    shared: &Arc<Shared>,
    stop: &CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = &shared.limits;
    let service = service_fn({
        let connection = Arc::clone(connection);
        let shared = Arc::clone(shared);
        move |incoming| answer(Arc::clone(&connection), Arc::clone(&shared), incoming)
    });
    let serving = http2::Builder::new(connection.sandbox.executor())
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(limits.h2_streams)
        .max_pending_accept_reset_streams(limits.h2_pending_resets)
        .max_local_error_reset_streams(limits.h2_local_resets)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(limits.h2_stream_window)
        .initial_connection_window_size(limits.h2_connection_window)
        .keep_alive_interval(limits.h2_ping)
        .keep_alive_timeout(limits.h2_ping)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        _ = &mut serving => {}
        () = connection.is_over(limits.stream_stall) => {}
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            drop(serving.await);
        }
    }
}

/// One request, as hyper wants it served.
async fn answer(
    connection: Arc<Connection>,
    shared: Arc<Shared>,
    incoming: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let serving = connection.flow.serving();
    let response = request(&shared, &connection, incoming).await;
    Ok(response.map(|body| Answer {
        body,
        _serving: serving,
    }))
}

/// A response's body; while it lasts, no other head is read from an HTTP/1 connection.
#[derive(Debug)]
pub(crate) struct Answer {
    body: ResponseBody,
    _serving: Serving,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Connection {
    fn of<S>(
        terminated: Terminated<S>,
        sandbox: &Arc<Sandbox>,
        place: OwnedSemaphorePermit,
    ) -> (Arc<Self>, ClientStream<S>, HttpProtocol) {
        let origin = Origin {
            sandbox: Arc::clone(&sandbox.facts),
            scheme: terminated.scheme,
            original_dst: terminated.original_dst,
            sni: terminated.sni().cloned(),
            required: terminated.required_host().cloned(),
        };
        let connection = Self {
            sandbox: Arc::clone(sandbox),
            origin,
            flow: Arc::new(Flow::default()),
            close: CancellationToken::new(),
            misdirected: AtomicU32::new(0),
            watched: Mutex::default(),
            _place: place,
        };
        (Arc::new(connection), terminated.stream, terminated.protocol)
    }

    /// Records a refusal before policy, or counts it.
    pub(crate) async fn note_refusal(&self, refusal: Refusal, authority: Option<String>, shared: &Shared) {
        if refusal == Refusal::Misdirected
            && self.misdirected.fetch_add(1, Ordering::Relaxed) >= MISDIRECTED_MAX
        {
            self.close.cancel();
        }
        let event =
            self.sandbox
                .refusals
                .note("http_reject", refusal.code(), shared.clock.monotonic(), || {
                    Sandbox::sample(&[
                        ("authority", authority),
                        ("sni", self.origin.sni.as_ref().map(ToString::to_string)),
                        ("required", self.origin.required.as_ref().map(ToString::to_string)),
                        ("original_dst", Some(self.origin.original_dst.0.to_string())),
                    ])
                });
        shared.note(event).await;
    }

    /// Watches a request: if nothing of it moves for too long, the connection is closed.
    pub(crate) fn watch(&self, progress: &Arc<Progress>) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.len() >= WATCHED {
            watched.retain(|(progress, _)| progress.strong_count() > 0);
        }
        watched.push((Arc::downgrade(progress), u64::MAX));
    }

    /// Returns when a request has stalled, or somebody closes this connection.
    async fn is_over(&self, stall: Duration) {
        let stalled = async {
            loop {
                tokio::time::sleep(stall).await;
                if self.has_stalled() {
                    return;
                }
            }
        };
        tokio::select! {
            () = stalled => {}
            () = self.close.cancelled() => {}
        }
    }

    fn has_stalled(&self) -> bool {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stalled = false;
        watched.retain_mut(|(progress, seen)| {
            let Some(progress) = progress.upgrade() else {
                return false;
            };
            let beats = progress.beats.load(Ordering::Relaxed);
            stalled |= beats == *seen;
            *seen = beats;
            true
        });
        stalled
    }
}

//! A request's body on its way through: counted, bounded, never collected unless policy asks.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::parse::chunked::is_forbidden_trailer;
use crate::parse::{BodyError, RequestBody};

/// How far a request has come: written by its bodies, read by its outcome and by whoever looks for stalls.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Request body bytes that were taken to be sent upstream.
    pub(crate) request_bytes: AtomicU64,
    /// Response body bytes that were handed to the sandbox's connection.
    pub(crate) response_bytes: AtomicU64,
    /// Moves whenever anything moves.
    pub(crate) beats: AtomicU64,
    /// The request's body has been read to its end.
    pub(crate) request_complete: AtomicBool,
    /// Why the request's body broke off, if it did: what the sandbox is told.
    pub(crate) broken: OnceLock<(StatusCode, &'static str)>,
    limit: AtomicU64,
}

impl Progress {
    pub(crate) const fn new(limit: u64) -> Self {
        Self {
            request_bytes: AtomicU64::new(0),
            response_bytes: AtomicU64::new(0),
            beats: AtomicU64::new(0),
            request_complete: AtomicBool::new(false),
            broken: OnceLock::new(),
            limit: AtomicU64::new(limit),
        }
    }

    /// Lowers the bound on the request's body to what the ruling says.
    pub(crate) fn limit_request(&self, limit: Option<u64>) {
        if let Some(limit) = limit {
            self.limit.fetch_min(limit, Ordering::Relaxed);
        }
    }

    /// The bound on the request's body.
    pub(crate) fn request_limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn is_request_complete(&self) -> bool {
        self.request_complete.load(Ordering::Acquire)
    }
}

/// What a client sends, as it comes.
#[derive(Debug)]
pub(crate) struct Inbound {
    incoming: Incoming,
    progress: Arc<Progress>,
}

impl Inbound {
    /// Boxes a client's body. One without any bytes costs nothing.
    pub(crate) fn boxed(incoming: Incoming, progress: &Arc<Progress>) -> RequestBody {
        if incoming.is_end_stream() {
            progress.request_complete.store(true, Ordering::Release);
            return empty();
        }
        UnsyncBody::new(Self {
            incoming,
            progress: Arc::clone(progress),
        })
    }
}

impl Inbound {
    fn broken(&self, status: StatusCode, error: BodyError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // Only the first reason counts.
        let _ = self.progress.broken.set((status, error.code()));
        Poll::Ready(Some(Err(error)))
    }
}

type UnsyncBody = RequestBody;

/// A body without bytes.
pub(crate) fn empty() -> RequestBody {
    UnsyncBody::new(http_body_util::Empty::new().map_err(|never: std::convert::Infallible| match never {}))
}

impl Body for Inbound {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.incoming).poll_frame(cx));
        this.progress.beat();
        let frame = match frame {
            None => {
                this.progress.request_complete.store(true, Ordering::Release);
                return Poll::Ready(None);
            }
            Some(Err(error)) => return this.broken(StatusCode::BAD_REQUEST, BodyError::Client(error)),
            Some(Ok(frame)) => frame,
        };
        if let Some(data) = frame.data_ref() {
            let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
            let before = this.progress.request_bytes.fetch_add(length, Ordering::Relaxed);
            let limit = this.progress.request_limit();
            if before.saturating_add(length) > limit {
                return this.broken(StatusCode::PAYLOAD_TOO_LARGE, BodyError::RequestLimit { limit });
            }
        }
        if frame
            .trailers_ref()
            .is_some_and(|trailers| !are_allowed(trailers))
        {
            return this.broken(StatusCode::BAD_REQUEST, BodyError::Trailer);
        }
        if this.incoming.is_end_stream() {
            this.progress.request_complete.store(true, Ordering::Release);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

fn are_allowed(trailers: &HeaderMap) -> bool {
    trailers.iter().all(|(name, value)| {
        !is_forbidden_trailer(name.as_str().as_bytes())
            && value.as_bytes().iter().all(|b| matches!(b, b'\t' | 0x20..=0x7e))
    })
}

/// Reads a whole body of at most `limit` bytes, because policy wants to see it, and puts it back.
///
/// # Errors
/// [`BodyError::RequestLimit`] when it is longer; whatever broke it otherwise.
pub(crate) async fn collect(mut body: RequestBody, limit: u64) -> Result<(Bytes, RequestBody), BodyError> {
    if body.size_hint().lower() > limit {
        return Err(BodyError::RequestLimit { limit });
    }
    let mut bytes = BytesMut::new();
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => {
                let length = u64::try_from(bytes.len().saturating_add(data.len())).unwrap_or(u64::MAX);
                if length > limit {
                    return Err(BodyError::RequestLimit { limit });
                }
                bytes.extend_from_slice(&data);
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    let bytes = bytes.freeze();
    let whole = Whole {
        bytes: Some(bytes.clone()).filter(|b| !b.is_empty()),
        trailers,
    };
    Ok((bytes, UnsyncBody::new(whole)))
}

/// A body that has been read.
struct Whole {
    bytes: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Body for Whole {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Some(bytes) = this.bytes.take() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.bytes.as_ref().map_or(0, Bytes::len);
        SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
    }
}

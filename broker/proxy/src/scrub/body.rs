//! A response's body, decoded and scrubbed as it streams.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

use super::Patterns;
use super::decode::Decoder;
use super::headers::scrub_fields;
use super::stream::Stream;
use crate::parse::{BodyError, ResponseBody};

/// How long undecided bytes wait for the next piece before a few of them are let go.
const RELEASE_AFTER: Duration = Duration::from_millis(10);

/// The body that the sandbox gets.
pub(super) struct ScrubbedBody {
    inner: ResponseBody,
    decoder: Option<Decoder>,
    /// Received, but not decoded yet.
    encoded: Bytes,
    stream: Stream,
    patterns: Arc<Patterns>,
    counter: Arc<AtomicU64>,
    counted: u64,
    timer: Option<Pin<Box<Sleep>>>,
    end: End,
}

/// How near the end is.
enum End {
    /// Upstream may send more.
    Open,
    /// Upstream is done; what is held goes out, then these.
    Draining(Option<HeaderMap>),
    /// Only these are left.
    Trailers(HeaderMap),
    Done,
}

impl ScrubbedBody {
    pub(super) fn new(
        inner: ResponseBody,
        decoder: Option<Decoder>,
        patterns: Arc<Patterns>,
        counter: Arc<AtomicU64>,
    ) -> Self {
        Self {
            inner,
            decoder,
            encoded: Bytes::new(),
            stream: Stream::new(Arc::clone(&patterns)),
            patterns,
            counter,
            counted: 0,
            timer: None,
            end: End::Open,
        }
    }

    /// Takes a piece as upstream sent it.
    fn take(&mut self, piece: Bytes) -> Result<Bytes, BodyError> {
        let plain = match &mut self.decoder {
            None => piece,
            Some(decoder) => {
                self.encoded = piece;
                decoder
                    .step(&mut self.encoded)
                    .map_err(|error| BodyError::Scrub(error.code()))?
            }
        };
        Ok(self.stream.push(plain))
    }

    /// The last of the data.
    fn drain(&mut self) -> Result<Bytes, BodyError> {
        let rest = match &mut self.decoder {
            None => Bytes::new(),
            Some(decoder) => decoder.finish().map_err(|error| BodyError::Scrub(error.code()))?,
        };
        let decided = self.stream.push(rest);
        let held = self.stream.finish();
        Ok(if decided.is_empty() {
            held
        } else {
            [decided, held].concat().into()
        })
    }

    fn count(&mut self, more: u64) {
        let found = self.stream.found();
        let new = found.saturating_sub(self.counted).saturating_add(more);
        self.counted = found;
        if new > 0 {
            self.counter.fetch_add(new, Ordering::Relaxed);
        }
    }

    /// Upstream has nothing for now: perhaps the peer waits for the few bytes that are held.
    fn poll_release(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        if !self.stream.may_release() {
            return Poll::Pending;
        }
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(RELEASE_AFTER)));
        match timer.as_mut().poll(context) {
            Poll::Ready(()) => {
                self.timer = None;
                Poll::Ready(self.stream.release())
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Body for ScrubbedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        loop {
            let data = match std::mem::replace(&mut this.end, End::Done) {
                End::Done => return Poll::Ready(None),
                End::Trailers(mut trailers) => {
                    let found = scrub_fields(&mut trailers, &this.patterns);
                    this.count(found);
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                End::Draining(trailers) => {
                    let rest = this.drain();
                    if rest.is_ok()
                        && let Some(trailers) = trailers
                    {
                        this.end = End::Trailers(trailers);
                    }
                    rest
                }
                End::Open if !this.encoded.is_empty() => {
                    this.end = End::Open;
                    let rest = std::mem::take(&mut this.encoded);
                    this.take(rest)
                }
                End::Open => {
                    this.end = End::Open;
                    match Pin::new(&mut this.inner).poll_frame(context) {
                        Poll::Pending => match this.poll_release(context) {
                            Poll::Ready(few) => Ok(few),
                            Poll::Pending => return Poll::Pending,
                        },
                        Poll::Ready(frame) => {
                            this.timer = None;
                            match frame.map(|frame| frame.map(Frame::into_data)) {
                                Some(Ok(Ok(piece))) => this.take(piece),
                                Some(Ok(Err(frame))) => {
                                    this.end = End::Draining(frame.into_trailers().ok());
                                    continue;
                                }
                                Some(Err(error)) => Err(error),
                                None => {
                                    this.end = End::Draining(None);
                                    continue;
                                }
                            }
                        }
                    }
                }
            };
            this.count(0);
            match data {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(error) => {
                    this.end = End::Done;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self.end {
            End::Done => true,
            End::Open => self.decoder.is_none() && self.stream.held() == 0 && self.inner.is_end_stream(),
            End::Draining(_) | End::Trailers(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.decoder.is_some() {
            return SizeHint::default();
        }
        let inner = self.inner.size_hint();
        let held = u64::try_from(self.stream.held()).unwrap_or(u64::MAX);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(held));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint
    }
}

impl fmt::Debug for ScrubbedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScrubbedBody").finish_non_exhaustive()
    }
}

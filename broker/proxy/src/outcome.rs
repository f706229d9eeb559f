//! What became of a request: exactly one record, also when everybody just went away.
//!
//! The [`Outcome`] is made with the decision and travels with the request. Whoever ends it says how; if nobody does,
//! because the client vanished, the task was cut or something panicked, dropping it says `aborted`.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use wallgate_ledger::Ledger;
use wallgate_types::clock::Clock;
use wallgate_types::record::{CredentialUse, OutcomeRecord, OutcomeResult};
use wallgate_types::request::RequestId;
use wallgate_types::sandbox::SandboxFacts;

use crate::parse::body::Progress;
use crate::parse::{BodyError, ResponseBody};
use crate::usage::Memory;

/// The end of a request that has been decided, until it is known.
#[derive(Debug)]
pub(crate) struct Outcome {
    ledger: Ledger,
    clock: Arc<dyn Clock>,
    memory: Arc<Memory>,
    sandbox: Arc<SandboxFacts>,
    request: RequestId,
    started: Duration,
    progress: Arc<Progress>,
    pub(crate) status: Option<StatusCode>,
    pub(crate) dialled: Option<SocketAddr>,
    pub(crate) uses: Vec<CredentialUse>,
    /// How many times an injected value was masked.
    pub(crate) scrubbed: Arc<AtomicU64>,
    end: Option<(OutcomeResult, Option<&'static str>)>,
    void: bool,
}

impl Outcome {
    pub(crate) fn open(
        ledger: &Ledger,
        clock: &Arc<dyn Clock>,
        memory: &Arc<Memory>,
        sandbox: &Arc<SandboxFacts>,
        request: RequestId,
        progress: &Arc<Progress>,
    ) -> Self {
        Self {
            ledger: ledger.clone(),
            started: clock.monotonic(),
            clock: Arc::clone(clock),
            memory: Arc::clone(memory),
            sandbox: Arc::clone(sandbox),
            request,
            progress: Arc::clone(progress),
            status: None,
            dialled: None,
            uses: Vec::new(),
            scrubbed: Arc::default(),
            end: None,
            void: false,
        }
    }

    /// Nothing was recorded, so there is nothing that could have an outcome.
    pub(crate) fn void(mut self) {
        self.void = true;
    }

    /// The sandbox got a denial.
    pub(crate) fn denied(mut self, status: StatusCode) {
        self.status = Some(status);
        self.end = Some((OutcomeResult::Denied, None));
    }

    /// Something failed; the sandbox got an error.
    pub(crate) fn failed(mut self, status: StatusCode, code: &'static str) {
        self.status = Some(status);
        self.end = Some((OutcomeResult::Failed, Some(code)));
    }

    /// How a relayed stream of bytes ended.
    pub(crate) fn relayed(mut self, error: Option<&'static str>) {
        let result = if error.is_some() {
            OutcomeResult::Failed
        } else {
            OutcomeResult::Completed
        };
        self.end = Some((result, error));
    }

    pub(crate) const fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    fn set(&mut self, result: OutcomeResult, error: Option<&'static str>) {
        self.end.get_or_insert((result, error));
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        if self.void {
            return;
        }
        let now = self.clock.monotonic();
        let request_bytes = self.progress.request_bytes.load(Ordering::Relaxed);
        self.memory.sent(now, request_bytes);
        let (result, error) = self.end.unwrap_or((OutcomeResult::Aborted, None));
        let duration = now.saturating_sub(self.started);
        self.ledger.outcome(OutcomeRecord {
            request_id: self.request,
            sandbox: self.sandbox.id.clone(),
            result,
            error: error.map(str::to_owned),
            status: self.status.map(|status| status.as_u16()),
            dialled: self.dialled.map(|address| address.to_string()),
            request_bytes,
            response_bytes: self.progress.response_bytes.load(Ordering::Relaxed),
            duration_us: u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            credentials: std::mem::take(&mut self.uses),
            scrubbed: self.scrubbed.load(Ordering::Relaxed),
        });
    }
}

/// Lets a response go to the sandbox, counted and bounded; the outcome is known when its body ends.
pub(crate) fn deliver<B>(response: Response<B>, outcome: Outcome, limit: u64) -> Response<ResponseBody>
where
    B: Body<Data = Bytes, Error = BodyError> + Send + Unpin + 'static,
{
    let (head, body) = response.into_parts();
    let mut outcome = outcome;
    outcome.status = Some(head.status);
    Response::from_parts(
        head,
        ResponseBody::new(Accounted {
            body,
            outcome,
            limit,
            sent: 0,
        }),
    )
}

/// A response's body with its request's outcome.
struct Accounted<B: Body> {
    body: B,
    outcome: Outcome,
    limit: u64,
    sent: u64,
}

impl<B> Body for Accounted<B>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        this.outcome.progress.beat();
        match frame {
            None => {
                this.outcome.set(OutcomeResult::Completed, None);
                Poll::Ready(None)
            }
            Some(Err(error)) => {
                this.outcome.set(OutcomeResult::Failed, Some(error.code()));
                Poll::Ready(Some(Err(error)))
            }
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
                    this.sent = this.sent.saturating_add(length);
                    if this.sent > this.limit {
                        let error = BodyError::ResponseLimit { limit: this.limit };
                        this.outcome.set(OutcomeResult::Failed, Some(error.code()));
                        return Poll::Ready(Some(Err(error)));
                    }
                    this.outcome
                        .progress
                        .response_bytes
                        .store(this.sent, Ordering::Relaxed);
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Body> Drop for Accounted<B> {
    fn drop(&mut self) {
        // hyper does not ask a body for its end when it knows the length, or when the method has no response body.
        if self.body.is_end_stream() || self.body.size_hint().exact() == Some(0) {
            self.outcome.set(OutcomeResult::Completed, None);
        }
    }
}

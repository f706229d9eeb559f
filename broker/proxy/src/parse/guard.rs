//! The one place where HTTP/1 bytes are judged (RFC 9112), in front of hyper.
//!
//! [`Guard`] stands between a client's connection and hyper. It follows the framing of every message and hands on only
//! bytes that it has validated: a head as a whole, a chunk line as a whole, a trailer line as a whole. hyper is more
//! lenient than we are, and therefore never sees what it would be lenient about.
//!
//! A head is handed on only when the response to the one before it has ended. So a pipelined request is not even read
//! before the one in front of it is answered, what follows a WebSocket request is held until it is known what it is,
//! and a refusal is answered in its turn: hyper sees an orderly end, finishes what it was writing, and closes; the
//! guard then writes the refusal itself.
//!
//! A client that closes its sending half may still read a response; one that resets the connection, or drops TLS
//! without saying so, takes its request with it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::limits::Limits;
use crate::parse::chunked::Chunked;
use crate::parse::head::{self, Framing};
use crate::parse::refusal::Refusal;

/// How much is read at once where bytes must be validated before they are handed on.
const READ_BYTES: usize = 8 * 1024;

/// What the guard and those who serve the connection tell each other.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    busy: AtomicBool,
    upgraded: AtomicBool,
    waker: AtomicWaker,
    refusal: OnceLock<Refusal>,
}

impl Flow {
    /// What was refused on this connection, if anything was.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.refusal.get().copied()
    }

    /// From here on the connection's bytes are not HTTP. Said before the response to an upgrade ends.
    pub(crate) fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Release);
    }

    /// Held while a request is served; when it is dropped, the next head may come.
    pub(crate) fn serving(self: &Arc<Self>) -> Serving {
        Serving(Arc::clone(self))
    }
}

/// A request that is being served.
#[derive(Debug)]
pub(crate) struct Serving(Arc<Flow>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
        self.0.waker.wake();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A head that has passed, and then a body that is framed like this, are on their way to hyper.
    Length(u64),
    Chunked(Chunked),
    /// The message has passed; its response is being made.
    Answering {
        websocket: bool,
    },
    /// The next head is awaited; its first so many bytes are known to hold no end.
    Head {
        scanned: usize,
    },
    /// Upgraded: bytes are bytes.
    Raw,
    /// Refused, or ended.
    Closed,
}

/// A client's connection, of which only valid HTTP/1 can be read.
#[derive(Debug)]
pub(crate) struct Guard<S> {
    io: S,
    flow: Arc<Flow>,
    limits: Arc<Limits>,
    state: State,
    buffer: BytesMut,
    /// How many of the buffer's first bytes are valid.
    valid: usize,
    eof: bool,
    read_deadline: Instant,
    write_deadline: Option<Instant>,
    read_timer: Pin<Box<Sleep>>,
    write_timer: Option<Pin<Box<Sleep>>>,
    answer: Option<BytesMut>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Guard<S> {
    pub(crate) fn new(io: S, flow: Arc<Flow>, limits: Arc<Limits>) -> Self {
        let read_deadline = Instant::now() + limits.idle;
        Self {
            io,
            flow,
            state: State::Head { scanned: 0 },
            buffer: BytesMut::new(),
            valid: 0,
            eof: false,
            read_deadline,
            write_deadline: None,
            read_timer: Box::pin(tokio::time::sleep_until(read_deadline)),
            write_timer: None,
            answer: None,
            limits,
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        // Only the first refusal counts; the connection ends with it.
        let _ = self.flow.refusal.set(refusal);
        self.answer = (refusal != Refusal::NotHttp).then(|| answer_to(refusal));
        self.state = State::Closed;
        self.buffer.clear();
        self.valid = 0;
    }

    /// A refusal in the middle of a body: the request is being served, and whoever serves it answers.
    fn break_off(&mut self, refusal: Refusal) -> io::Error {
        self.refuse(refusal);
        self.answer = None;
        io::Error::new(io::ErrorKind::InvalidData, refusal)
    }

    /// Validates what is buffered. `Ok(true)`: something can be handed on, or the state has changed.
    fn advance(&mut self) -> io::Result<bool> {
        match self.state {
            State::Length(left) => {
                let take = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
                self.valid = take;
                self.passed_length(left, take);
                Ok(take > 0 || left == 0)
            }
            State::Chunked(chunked) => self.advance_chunked(chunked),
            State::Head { scanned } => Ok(self.advance_head(scanned)),
            State::Raw => {
                self.valid = self.buffer.len();
                Ok(self.valid > 0)
            }
            State::Answering { .. } | State::Closed => Ok(false),
        }
    }

    fn passed_length(&mut self, left: u64, taken: usize) {
        let left = left.saturating_sub(u64::try_from(taken).unwrap_or(u64::MAX));
        self.state = if left == 0 {
            State::Answering { websocket: false }
        } else {
            State::Length(left)
        };
        if taken > 0 {
            self.read_deadline = Instant::now() + self.limits.client_stall;
        }
    }

    fn advance_chunked(&mut self, mut chunked: Chunked) -> io::Result<bool> {
        let before = self.valid;
        loop {
            let rest = self.buffer.get(self.valid..).unwrap_or_default();
            let (used, next) = match chunked.advance(rest, &self.limits) {
                Ok(step) => step,
                Err(refusal) => return Err(self.break_off(refusal)),
            };
            self.valid = self.valid.saturating_add(used);
            if next == Chunked::Done {
                self.state = State::Answering { websocket: false };
                return Ok(true);
            }
            if used == 0 && next == chunked {
                break;
            }
            chunked = next;
        }
        self.state = State::Chunked(chunked);
        if self.valid > before {
            self.read_deadline = Instant::now() + self.limits.client_stall;
        }
        Ok(self.valid > before)
    }

    fn advance_head(&mut self, scanned: usize) -> bool {
        if self
            .buffer
            .first()
            .is_some_and(|first| !first.is_ascii_uppercase())
        {
            self.refuse(not_a_head(&self.buffer));
            return true;
        }
        let mut scanned = scanned;
        while let Some(found) = memchr::memchr(b'\n', self.buffer.get(scanned..).unwrap_or_default()) {
            let at = scanned.saturating_add(found);
            let line = self.buffer.get(..at).unwrap_or_default();
            if !line.ends_with(b"\r") {
                self.refuse(Refusal::LineEnding);
                return true;
            }
            scanned = at.saturating_add(1);
            if line.ends_with(b"\r\n\r") {
                self.take_head(scanned);
                return true;
            }
        }
        if self.buffer.len() > self.limits.head_bytes
            || (scanned == 0 && self.buffer.len() > self.limits.request_line_bytes)
        {
            self.refuse(Refusal::HeaderLimit);
            return true;
        }
        self.state = State::Head { scanned };
        false
    }

    fn take_head(&mut self, end: usize) {
        let bytes = self.buffer.get(..end).unwrap_or_default();
        match head::read(bytes, &self.limits) {
            Ok(head) => {
                self.flow.busy.store(true, Ordering::Release);
                self.valid = end;
                self.state = match head.framing {
                    Framing::None => State::Answering {
                        websocket: head.websocket,
                    },
                    Framing::Length(bytes) => State::Length(bytes),
                    Framing::Chunked => State::Chunked(Chunked::Size),
                };
                self.read_deadline = Instant::now() + self.limits.client_stall;
            }
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// Hands on validated bytes.
    fn deliver(&mut self, into: &mut ReadBuf<'_>) -> bool {
        let take = self.valid.min(into.remaining());
        if take == 0 {
            return false;
        }
        into.put_slice(self.buffer.get(..take).unwrap_or_default());
        self.buffer.advance(take);
        self.valid = self.valid.saturating_sub(take);
        if self.buffer.is_empty() && self.buffer.capacity() > 4 * READ_BYTES {
            // An idle connection holds no large buffer.
            self.buffer = BytesMut::new();
        }
        true
    }

    /// Reads more into the buffer.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [0_u8; READ_BYTES];
        let mut space = ReadBuf::new(&mut space);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut space))?;
        self.buffer.extend_from_slice(space.filled());
        if space.filled().is_empty() {
            self.eof = true;
        }
        Poll::Ready(Ok(space.filled().len()))
    }

    /// While a response is made: notices a reset, keeps a little of what is pipelined, and waits.
    fn poll_answering(&mut self, cx: &mut Context<'_>, websocket: bool) -> Poll<io::Result<()>> {
        self.flow.waker.register(cx.waker());
        while self.flow.busy.load(Ordering::Acquire) {
            if self.eof || self.buffer.len() >= READ_BYTES {
                return Poll::Pending;
            }
            ready!(self.poll_fill(cx))?;
        }
        self.state = if websocket && self.flow.upgraded.load(Ordering::Acquire) {
            State::Raw
        } else {
            State::Head { scanned: 0 }
        };
        let wait = if self.buffer.is_empty() {
            self.limits.idle
        } else {
            self.limits.head
        };
        self.read_deadline = Instant::now() + wait;
        Poll::Ready(Ok(()))
    }
}

/// What something is that cannot begin a request.
fn not_a_head(buffer: &[u8]) -> Refusal {
    match buffer.first() {
        Some(b'\r' | b'\n') => Refusal::LineEnding,
        Some(first) if first.is_ascii_lowercase() => Refusal::Method,
        _ => Refusal::NotHttp,
    }
}

fn answer_to(refusal: Refusal) -> BytesMut {
    let status = refusal.status();
    let body = format!(
        "{{\"type\":\"about:blank\",\"title\":\"{refusal}\",\"status\":{},\"rule\":\"wallgate.{code}\",\"code\":\"{code}\"}}\n",
        status.as_u16(),
        code = refusal.code(),
    );
    let text = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\ncache-control: no-store\r\n\
         connection: close\r\n\r\n{body}",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default(),
        body.len(),
    );
    BytesMut::from(text.as_bytes())
}

/// Ready when `deadline` has passed. The timer is moved only when it fires, so that a deadline that keeps being
/// postponed costs nothing.
fn poll_deadline(timer: &mut Pin<Box<Sleep>>, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
    if timer.deadline() > deadline {
        timer.as_mut().reset(deadline);
    }
    loop {
        ready!(timer.as_mut().poll(cx));
        if Instant::now() >= deadline {
            return Poll::Ready(());
        }
        timer.as_mut().reset(deadline);
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Guard<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.deliver(into) || this.state == State::Closed || into.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            if let State::Answering { websocket } = this.state {
                ready!(this.poll_answering(cx, websocket))?;
                continue;
            }
            if this.advance()? {
                continue;
            }
            if this.eof {
                // In a head that is nothing; in a body hyper knows what it means.
                this.state = State::Closed;
                return Poll::Ready(Ok(()));
            }
            // Body bytes of a known number need no second buffer.
            let direct = match this.state {
                State::Raw => Some(u64::MAX),
                State::Length(left) => Some(left),
                State::Chunked(Chunked::Data(left)) if left >= 1024 => Some(left),
                State::Chunked(_) | State::Head { .. } | State::Answering { .. } | State::Closed => None,
            };
            let filled = match direct {
                Some(left) if this.buffer.is_empty() => this.poll_direct(cx, into, left),
                _ => this.poll_fill(cx),
            };
            match filled {
                Poll::Ready(Ok(bytes)) => {
                    if let State::Head { .. } = this.state
                        && this.buffer.len() == bytes
                        && bytes > 0
                    {
                        this.read_deadline = Instant::now() + this.limits.head;
                    }
                    if direct.is_some() && this.buffer.is_empty() {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    if this.state == State::Raw {
                        return Poll::Pending;
                    }
                    ready!(poll_deadline(&mut this.read_timer, this.read_deadline, cx));
                    return this.too_slow();
                }
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Guard<S> {
    /// Reads at most `left` bytes straight into the caller's buffer.
    fn poll_direct(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
        left: u64,
    ) -> Poll<io::Result<usize>> {
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(into.remaining());
        let mut limited = ReadBuf::new(into.initialize_unfilled_to(room));
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut limited))?;
        let read = limited.filled().len();
        into.advance(read);
        if read == 0 {
            self.eof = true;
            self.state = State::Closed;
            return Poll::Ready(Ok(0));
        }
        match self.state {
            State::Length(left) => self.passed_length(left, read),
            State::Chunked(Chunked::Data(left)) => {
                let left = left.saturating_sub(u64::try_from(read).unwrap_or(u64::MAX));
                self.state = State::Chunked(if left == 0 {
                    Chunked::DataEnd
                } else {
                    Chunked::Data(left)
                });
                self.read_deadline = Instant::now() + self.limits.client_stall;
            }
            State::Raw | State::Chunked(_) | State::Head { .. } | State::Answering { .. } | State::Closed => {
            }
        }
        Poll::Ready(Ok(read))
    }

    fn too_slow(&mut self) -> Poll<io::Result<()>> {
        match self.state {
            State::Head { .. } if self.buffer.is_empty() => {
                // Idle: nobody is owed an answer.
                self.state = State::Closed;
                Poll::Ready(Ok(()))
            }
            State::Head { .. } => {
                self.refuse(Refusal::Slow);
                Poll::Ready(Ok(()))
            }
            State::Length(_) | State::Chunked(_) | State::Answering { .. } | State::Raw | State::Closed => {
                Poll::Ready(Err(self.break_off(Refusal::Slow)))
            }
        }
    }

    /// Whether a write that could not be made has been waiting for too long.
    fn poll_write_stall(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let stall: Duration = self.limits.client_stall;
        let deadline = *self.write_deadline.get_or_insert_with(|| Instant::now() + stall);
        let timer = self
            .write_timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        match poll_deadline(timer, deadline, cx) {
            Poll::Ready(()) => Err(io::Error::from(io::ErrorKind::TimedOut)),
            Poll::Pending => Ok(()),
        }
    }

    fn wrote<T>(&mut self, result: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        match result {
            Poll::Ready(result) => {
                self.write_deadline = None;
                Poll::Ready(result)
            }
            Poll::Pending => match self.poll_write_stall(cx) {
                Ok(()) => Poll::Pending,
                Err(stalled) => Poll::Ready(Err(stalled)),
            },
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guard<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.wrote(result, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        this.wrote(result, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.io).poll_flush(cx);
        this.wrote(result, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while let Some(answer) = &mut this.answer {
            let result = Pin::new(&mut this.io).poll_write(cx, answer);
            let wrote = match result {
                Poll::Ready(wrote) => wrote?,
                Poll::Pending => return this.wrote(Poll::Pending, cx),
            };
            answer.advance(wrote);
            if answer.is_empty() || wrote == 0 {
                this.answer = None;
            }
        }
        let result = Pin::new(&mut this.io).poll_shutdown(cx);
        this.wrote(result, cx)
    }
}

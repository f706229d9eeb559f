//! Accepting, terminating TLS, speaking HTTP, and keeping what came.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::journal::{Journal, KEPT_BODY_BYTES, Received};

/// What a server answers with.
pub type Answer = Response<UnsyncBoxBody<Bytes, hyper::Error>>;

/// An answer on its way.
pub type Answering = Pin<Box<dyn Future<Output = Result<Answer>> + Send>>;

/// What arrived: the request, whose body is noted in the journal as it is read.
pub type Arrived = Request<Noted>;

/// What a server does with a request.
pub trait Service: Send + Sync + 'static {
    /// Answers one request. An error becomes a 500 that says why.
    fn answer(&self, request: Arrived) -> Answering;
}

/// An answer of this status and text.
#[must_use]
pub fn answer_text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(body_of(text));
    *answer.status_mut() = status;
    answer
}

/// A body that is there as a whole.
#[must_use]
pub fn body_of(bytes: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, hyper::Error> {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// Serves until the runtime is gone, which is when the room is.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    journal: Journal,
    service: impl Service,
) {
    let service = Arc::new(service);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            return;
        };
        let connection = Connection {
            number: journal.connection(),
            sni: None,
            journal: journal.clone(),
            service: Arc::clone(&service),
        };
        tokio::spawn(serve_connection(stream, tls.clone(), connection));
    }
}

async fn serve_connection<S: Service>(
    stream: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    mut connection: Connection<S>,
) {
    // A client that goes away, or that does not like the certificate, is the test's business: the journal shows it.
    let _without_delay = stream.set_nodelay(true);
    match tls {
        None => connection.serve_http1(stream).await,
        Some(config) => {
            let Ok(stream) = TlsAcceptor::from(config).accept(stream).await else {
                return;
            };
            let session = stream.get_ref().1;
            connection.sni = session.server_name().map(str::to_owned);
            if session.alpn_protocol() == Some(b"h2") {
                connection.serve_http2(stream).await;
            } else {
                connection.serve_http1(stream).await;
            }
        }
    }
}

struct Connection<S> {
    number: u64,
    sni: Option<String>,
    journal: Journal,
    service: Arc<S>,
}

impl<S: Service> Connection<S> {
    async fn serve_http1(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let this = Arc::new(self);
        let _ended = hyper::server::conn::http1::Builder::new()
            .serve_connection(
                TokioIo::new(stream),
                service_fn(move |request| Arc::clone(&this).answer(request)),
            )
            .with_upgrades()
            .await;
    }

    async fn serve_http2(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let this = Arc::new(self);
        let _ended = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(1 << 22)
            .serve_connection(
                TokioIo::new(stream),
                service_fn(move |request| Arc::clone(&this).answer(request)),
            )
            .await;
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Answer> {
        let key = self.journal.request(self.received(&request));
        let request = request.map(|body| Noted {
            body,
            key,
            journal: self.journal.clone(),
            hash: Sha256::new(),
        });
        let head_only = request.method() == Method::HEAD;
        let answer = self.service.answer(request).await.unwrap_or_else(|error| {
            answer_text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("the test's server failed: {error:#}\n"),
            )
        });
        Ok(if head_only { without_body(answer) } else { answer })
    }

    fn received(&self, request: &Request<Incoming>) -> Received {
        let host = request
            .headers()
            .get(hyper::header::HOST)
            .map(HeaderValue::as_bytes);
        let host = host.map(|value| String::from_utf8_lossy(value).into_owned());
        Received {
            connection: self.number,
            sni: self.sni.clone(),
            version: format!("{:?}", request.version()),
            method: request.method().to_string(),
            authority: request
                .uri()
                .authority()
                .map(ToString::to_string)
                .or(host)
                .unwrap_or_default(),
            path: request.uri().path().to_owned(),
            query: request.uri().query().map(str::to_owned),
            headers: request
                .headers()
                .iter()
                .map(|(name, value)| {
                    (
                        name.to_string(),
                        String::from_utf8_lossy(value.as_bytes()).into_owned(),
                    )
                })
                .collect(),
            ..Received::default()
        }
    }
}

/// The answer to HEAD: what GET would get, less the body. hyper leaves that to the service over HTTP/2.
fn without_body(mut answer: Answer) -> Answer {
    if let Some(length) = answer.body().size_hint().exact() {
        answer
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    *answer.body_mut() = body_of(Bytes::new());
    answer
}

/// A request's body, noted in the journal as it is read.
#[derive(Debug)]
pub struct Noted {
    body: Incoming,
    key: u64,
    journal: Journal,
    hash: Sha256,
}

impl Body for Noted {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.hash.update(data);
                    self.journal.update(self.key, |received| {
                        received.body_bytes += data.len() as u64;
                        let room = KEPT_BODY_BYTES
                            .saturating_sub(received.body.len())
                            .min(data.len());
                        received.body.extend(data.iter().take(room));
                    });
                }
            }
            Poll::Ready(None) => self.end(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        if self.body.is_end_stream() {
            self.end();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Noted {
    fn end(&self) {
        let digest = hex::encode(self.hash.clone().finalize());
        self.journal
            .update(self.key, |received| received.body_sha256 = Some(digest));
    }

    /// Reads it to its end and says how long it was, and its digest.
    ///
    /// # Errors
    ///
    /// When the client does not send it to its end.
    pub async fn drain(mut self) -> Result<(u64, String)> {
        let mut length = 0;
        while let Some(frame) = self.frame().await {
            length += frame?.data_ref().map_or(0, |data| data.len() as u64);
        }
        Ok((length, hex::encode(self.hash.finalize())))
    }
}

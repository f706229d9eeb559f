//! The request, upstream: resolved, every address checked, the checked one dialled, streamed both ways.
//!
//! The only way in is [`Armed`], so what is sent was allowed and recorded. It is serialised from the value that policy
//! saw: method, canonical path and query, headers, authority. Framing is made anew from the body. Redirects are the
//! client's business (S04).

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::{PathAndQuery, Uri};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::timeout;
use wallgate_policy::canonical_path;
use wallgate_types::request::{RequestFacts, Scheme};

use crate::arm::{Armed, ArmedParts};
use crate::dial::{UpstreamStream, dial};
use crate::error::Failure;
use crate::outcome::Outcome;
use crate::parse::body::{self, Progress};
use crate::parse::{BodyError, RequestBody, Wishes};
use crate::pool::{Connection, Key, Lease, Stream};
use crate::scrub::Scrubber;
use crate::shared::{Sandbox, Shared};
use crate::terminate::HttpProtocol;
use crate::tls::upstream::AlpnOffer;

/// A response head, and its body on its way.
pub(crate) struct Sent {
    pub(crate) response: Response<UpstreamBody>,
    pub(crate) method: Method,
    /// What must not be in it.
    pub(crate) scrub: Option<Scrubber>,
    /// The upstream's side of a WebSocket, when it agreed to one.
    pub(crate) upgrade: Option<OnUpgrade>,
}

/// Headers of a response that end here, or that would lead a client past the wall.
const RESPONSE_DROPPED: [&str; 11] = [
    "alt-svc",
    "alt-used",
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What a canonicalised read may still say for itself.
const CANONICAL_HEADERS: [&str; 4] = ["accept", "accept-encoding", "content-type", "content-encoding"];

/// Sends an armed request and returns the head of its response.
///
/// Not cancel-safe: dropping it breaks the exchange off.
pub(crate) async fn send(
    armed: Armed,
    wishes: Wishes,
    shared: &Shared,
    sandbox: &Sandbox,
    outcome: &mut Outcome,
) -> Result<Sent, Failure> {
    let pool_key = armed.pool_key().map(str::to_owned);
    let ArmedParts {
        head,
        body,
        facts,
        ruling,
        scrub,
        ..
    } = armed.into_parts();
    let progress = Arc::clone(outcome.progress());
    progress.limit_request(ruling.limits.request_bytes);
    let limit = progress.request_limit();
    if body
        .size_hint()
        .lower()
        .max(progress.request_bytes.load(Ordering::Relaxed))
        > limit
    {
        return Err(Failure::Body(BodyError::RequestLimit { limit }));
    }
    let mut head = upstream_head(head, &facts, wishes)?;
    if ruling.canonicalise {
        canonicalise(&mut head, &facts)?;
    }
    let checked = timeout(shared.limits.resolve, sandbox.resolver.resolve(&facts.authority))
        .await
        .map_err(|_elapsed| Failure::ResolveTimeout)??;
    let key = Key {
        authority: facts.authority.clone(),
        scheme: facts.scheme,
        credential: pool_key,
    };
    let method = head.method.clone();
    let again = (body.is_end_stream() && !wishes.websocket && matches!(method, Method::GET | Method::HEAD))
        .then(|| head.clone());

    let mut request = Request::from_parts(head, body);
    let mut again = again.map(|head| Request::from_parts(head, body::empty()));
    let mut pooled = if wishes.websocket {
        None
    } else {
        sandbox.pool.take(&key, checked.addresses())
    };
    loop {
        let is_pooled = pooled.is_some();
        let connection = match pooled.take() {
            Some(connection) => connection,
            None => connect(&checked, &key, wishes.websocket, shared, sandbox).await?,
        };
        outcome.dialled = Some(connection.address());
        match exchange(connection, request, &key, &facts, shared, sandbox, &progress).await {
            Ok(response) => return finish(response, method, scrub, wishes),
            // A connection that the origin closed while it lay in the pool: nothing of the request was read by anyone,
            // or it may be repeated (RFC 9110, section 9.2.2). Once.
            Err((_, Some(unsent))) if is_pooled => request = *unsent,
            Err((Failure::Upstream(error), None))
                if is_pooled
                    && (error.is_incomplete_message() || error.is_canceled() || error.is_closed()) =>
            {
                match again.take() {
                    Some(repeat) => request = repeat,
                    None => return Err(broken(error, &progress)),
                }
            }
            Err((Failure::Upstream(error), _)) => return Err(broken(error, &progress)),
            Err((failure, _)) => return Err(failure),
        }
    }
}

/// When the client's body broke off, that is what went wrong, not the upstream.
fn broken(error: hyper::Error, progress: &Progress) -> Failure {
    match progress.broken.get() {
        Some((status, code)) => Failure::BodyCut {
            status: *status,
            code,
        },
        None => Failure::Upstream(error),
    }
}

impl Connection {
    const fn address(&self) -> SocketAddr {
        match self {
            Self::Http1(_, address) | Self::Http2(_, address, _) => *address,
        }
    }
}

/// The head as it goes out, but for what the version decides.
fn upstream_head(mut head: Parts, facts: &RequestFacts, wishes: Wishes) -> Result<Parts, Failure> {
    head.extensions.clear();
    let mut text = facts.path.clone();
    if let Some(query) = &facts.raw_query {
        text.push('?');
        text.push_str(query);
    }
    head.uri = Uri::from(PathAndQuery::try_from(text).map_err(|_invalid| Failure::UpstreamAnswer)?);
    if wishes.websocket {
        head.headers
            .insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers
            .insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    Ok(head)
}

/// Rebuilds a mirror read from its operation, so that nothing but the package's name and version goes out (DESIGN §9).
fn canonicalise(head: &mut Parts, facts: &RequestFacts) -> Result<(), Failure> {
    let target = canonical_path(&facts.operation).ok_or(Failure::NotCanonical)?;
    head.uri = Uri::from(PathAndQuery::try_from(target).map_err(|_invalid| Failure::NotCanonical)?);
    // What policy saw is what the sandbox said; what it did not see is what was injected.
    for (name, _) in &facts.headers {
        if !CANONICAL_HEADERS.contains(&name.as_str())
            && let Ok(name) = HeaderName::try_from(name.as_str())
        {
            head.headers.remove(name);
        }
    }
    head.headers
        .insert(header::USER_AGENT, HeaderValue::from_static("wallgate"));
    Ok(())
}

/// Opens a connection to a checked address.
async fn connect(
    checked: &crate::resolve::Checked,
    key: &Key,
    websocket: bool,
    shared: &Shared,
    sandbox: &Sandbox,
) -> Result<Connection, Failure> {
    let offer = if websocket {
        AlpnOffer::Http1Only
    } else {
        AlpnOffer::Any
    };
    let stream = timeout(
        shared.limits.dial,
        dial(checked, key.scheme, offer, &sandbox.upstream_tls),
    )
    .await
    .map_err(|_elapsed| Failure::DialTimeout)??;
    let address = stream.peer();
    match stream.protocol() {
        HttpProtocol::Http1 => {
            let sender = handshake1(stream, shared, sandbox).await?;
            Ok(Connection::Http1(sender, address))
        }
        HttpProtocol::Http2 => {
            let sender = handshake2(stream, shared, sandbox).await?;
            let place = sandbox.pool.share(key, &sender, address);
            Ok(Connection::Http2(sender, address, place))
        }
    }
}

async fn handshake1(
    stream: UpstreamStream,
    shared: &Shared,
    sandbox: &Sandbox,
) -> Result<http1::SendRequest<RequestBody>, Failure> {
    let (sender, driver) = http1::Builder::new()
        .max_headers(shared.limits.header_fields)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(Failure::Upstream)?;
    sandbox.spawn(async move {
        // How a connection ends is seen by the exchange on it.
        drop(driver.with_upgrades().await);
    });
    Ok(sender)
}

async fn handshake2(
    stream: UpstreamStream,
    shared: &Shared,
    sandbox: &Sandbox,
) -> Result<http2::SendRequest<RequestBody>, Failure> {
    let (sender, driver) = http2::Builder::new(sandbox.executor())
        .timer(TokioTimer::new())
        .initial_stream_window_size(shared.limits.h2_stream_window)
        .initial_connection_window_size(shared.limits.h2_connection_window)
        .max_header_list_size(u32::try_from(shared.limits.head_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(shared.limits.h2_ping)
        .keep_alive_timeout(shared.limits.h2_ping)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(Failure::Upstream)?;
    sandbox.spawn(async move {
        drop(driver.await);
    });
    Ok(sender)
}

type Unsent = Option<Box<Request<RequestBody>>>;

/// One request and the head of its response, on one connection.
async fn exchange(
    connection: Connection,
    mut request: Request<RequestBody>,
    key: &Key,
    facts: &RequestFacts,
    shared: &Shared,
    sandbox: &Sandbox,
    progress: &Arc<Progress>,
) -> Result<Response<UpstreamBody>, (Failure, Unsent)> {
    let failed = |mut error: TrySendError<Request<RequestBody>>| {
        let unsent = error.take_message().map(Box::new);
        (Failure::Upstream(error.into_error()), unsent)
    };
    match connection {
        Connection::Http1(mut sender, address) => {
            let default_port = default_port(facts.scheme);
            let host = HeaderValue::try_from(facts.authority.shortest(default_port))
                .map_err(|_invalid| (Failure::UpstreamAnswer, None))?;
            request.headers_mut().insert(header::HOST, host);
            *request.version_mut() = Version::HTTP_11;
            if let Err(error) = sender.ready().await {
                return Err((Failure::Upstream(error), Some(Box::new(request))));
            }
            let response = watched(
                sender.try_send_request(request),
                shared.limits.response_head,
                progress,
            )
            .await
            .map_err(|_stalled| (Failure::UpstreamTimeout, None))?
            .map_err(failed)?;
            let lease = Lease::new(Arc::clone(&sandbox.pool), key.clone(), sender, address);
            Ok(response.map(|incoming| UpstreamBody::new(incoming, Held::Lease(lease), progress)))
        }
        Connection::Http2(mut sender, _, place) => {
            absolute(&mut request, facts).map_err(|failure| (failure, None))?;
            let response = watched(
                sender.try_send_request(request),
                shared.limits.response_head,
                progress,
            )
            .await
            .map_err(|_stalled| (Failure::UpstreamTimeout, None))?
            .map_err(failed)?;
            Ok(response.map(|incoming| UpstreamBody::new(incoming, Held::Stream(place), progress)))
        }
    }
}

const fn default_port(scheme: Scheme) -> u16 {
    match scheme {
        Scheme::Https => 443,
        Scheme::Http | Scheme::Dns => 80,
    }
}

/// An h2 request says its scheme and authority in its URI, and has no `Host`.
fn absolute(request: &mut Request<RequestBody>, facts: &RequestFacts) -> Result<(), Failure> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(match facts.scheme {
        Scheme::Https => http::uri::Scheme::HTTPS,
        Scheme::Http | Scheme::Dns => http::uri::Scheme::HTTP,
    });
    let authority = facts.authority.shortest(default_port(facts.scheme));
    parts.authority = Some(authority.parse().map_err(|_invalid| Failure::UpstreamAnswer)?);
    *request.uri_mut() = Uri::from_parts(parts).map_err(|_invalid| Failure::UpstreamAnswer)?;
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(header::HOST);
    if facts.protocol == wallgate_types::request::Protocol::Grpc {
        request
            .headers_mut()
            .insert(header::TE, HeaderValue::from_static("trailers"));
    }
    Ok(())
}

struct Stalled;

/// Waits for `future` for as long as the request's body keeps moving, and `patience` after that.
async fn watched<F: Future>(
    future: F,
    patience: Duration,
    progress: &Progress,
) -> Result<F::Output, Stalled> {
    let mut future = std::pin::pin!(future);
    let mut seen = progress.beats.load(Ordering::Relaxed);
    loop {
        if let Ok(output) = timeout(patience, &mut future).await {
            return Ok(output);
        }
        let now = progress.beats.load(Ordering::Relaxed);
        if now == seen {
            return Err(Stalled);
        }
        seen = now;
    }
}

fn finish(
    mut response: Response<UpstreamBody>,
    method: Method,
    scrub: Option<Scrubber>,
    wishes: Wishes,
) -> Result<Sent, Failure> {
    let status = response.status();
    let upgrade = if status == StatusCode::SWITCHING_PROTOCOLS {
        let websocket = response
            .headers()
            .get(header::UPGRADE)
            .is_some_and(|upgrade| upgrade.as_bytes().eq_ignore_ascii_case(b"websocket"));
        if !wishes.websocket || !websocket {
            return Err(Failure::UpstreamAnswer);
        }
        Some(
            response
                .extensions_mut()
                .remove::<OnUpgrade>()
                .ok_or(Failure::UpstreamAnswer)?,
        )
    } else {
        None
    };
    // A 407 would make a client look for a proxy to log in to; there is none.
    if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED || status.is_informational() && upgrade.is_none() {
        return Err(Failure::UpstreamAnswer);
    }
    response.extensions_mut().clear();
    strip(response.headers_mut());
    if upgrade.is_some() {
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        response
            .headers_mut()
            .insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    Ok(Sent {
        response,
        method,
        scrub,
        upgrade,
    })
}

fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|token| HeaderName::try_from(token.trim()).ok())
            .filter(|name| *name != header::CONTENT_LENGTH)
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in RESPONSE_DROPPED {
        headers.remove(name);
    }
}

/// What a response's body holds on to until it ends.
enum Held {
    Lease(Lease),
    Stream(Stream),
    Nothing,
}

/// What the origin sends, as it comes.
pub(crate) struct UpstreamBody {
    incoming: Incoming,
    held: Held,
    progress: Arc<Progress>,
}

impl std::fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamBody").finish_non_exhaustive()
    }
}

impl UpstreamBody {
    fn new(incoming: Incoming, held: Held, progress: &Arc<Progress>) -> Self {
        let mut body = Self {
            incoming,
            held,
            progress: Arc::clone(progress),
        };
        if body.incoming.is_end_stream() {
            body.ended();
        }
        body
    }

    /// The response is whole. Its connection serves again, unless the request is still being sent: what the origin
    /// makes of the rest nobody knows (H06).
    fn ended(&mut self) {
        match std::mem::replace(&mut self.held, Held::Nothing) {
            Held::Lease(lease) => {
                if self.progress.is_request_complete() {
                    lease.finish();
                }
            }
            Held::Stream(place) => drop(place),
            Held::Nothing => {}
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        match ready!(Pin::new(&mut this.incoming).poll_frame(cx)) {
            None => {
                this.ended();
                Poll::Ready(None)
            }
            Some(Ok(frame)) => {
                if this.incoming.is_end_stream() {
                    this.ended();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                this.held = Held::Nothing;
                Poll::Ready(Some(Err(BodyError::Upstream(error))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

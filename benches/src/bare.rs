//! The bare limit: hyper + rustls on both sides, a static leaf, a pooled upstream, and nothing else.
//!
//! It takes TLS connections directly, forwards each request to one origin, and does what any honest proxy must do. What
//! wallgate adds is measured against it.

use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::Bytes;
use clap::Args;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri, header};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use crate::pki;

/// How many idle upstream connections are kept: never the bottleneck.
const IDLE_CONNECTIONS: usize = 2048;

/// What `bare` is told.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
    /// Where every request goes.
    #[arg(long)]
    origin: SocketAddr,
    /// The leaf to show, PEM.
    #[arg(long)]
    leaf: PathBuf,
    /// Its key, PEM.
    #[arg(long)]
    key: PathBuf,
    /// Who may sign the origin's certificate, PEM.
    #[arg(long)]
    authority: PathBuf,
}

type Upstream = Client<HttpsConnector<HttpConnector<OneAddress>>, Incoming>;
type Body = BoxBody<Bytes, hyper::Error>;

/// Serves until it is ended.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let acceptor = TlsAcceptor::from(pki::server(&options.leaf, &options.key)?);
    let mut tcp = HttpConnector::new_with_resolver(OneAddress(options.origin));
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(pki::client(&options.authority, &[], true)?)
        .https_only()
        .enable_http1()
        .wrap_connector(tcp);
    let upstream: Upstream = Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .build(connector);
    let listener = TcpListener::bind(options.listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(serve(stream, acceptor.clone(), upstream.clone()));
    }
}

/// One client connection. Its failures are the client's to notice.
async fn serve(stream: TcpStream, acceptor: TlsAcceptor, upstream: Upstream) {
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request| forward(request, upstream.clone()));
    let served: Result<(), hyper::Error> = if is_h2 {
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await
    } else {
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await
    };
    drop(served);
}

async fn forward(
    request: Request<Incoming>,
    upstream: Upstream,
) -> Result<Response<Body>, hyper::http::Error> {
    let (mut head, body) = request.into_parts();
    let host = head.headers.remove(header::HOST);
    let host = host
        .as_ref()
        .and_then(|host| host.to_str().ok())
        .or_else(|| head.uri.host());
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = Uri::builder()
        .scheme("https")
        .authority(host.unwrap_or(pki::DOMAIN))
        .path_and_query(path)
        .build()?;
    head.version = hyper::Version::HTTP_11;
    match upstream.request(Request::from_parts(head, body)).await {
        Ok(response) => Ok(response.map(BodyExt::boxed)),
        Err(_) => Response::builder()
            .status(StatusCode::BAD_GATEWAY)
            .body(Empty::new().map_err(|never| match never {}).boxed()),
    }
}

/// Resolves every name to the one origin.
#[derive(Clone)]
struct OneAddress(SocketAddr);

impl Service<Name> for OneAddress {
    type Response = std::iter::Once<SocketAddr>;
    type Error = std::io::Error;
    type Future = Ready<std::io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Name) -> Self::Future {
        ready(Ok(std::iter::once(self.0)))
    }
}

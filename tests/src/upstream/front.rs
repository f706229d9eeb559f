//! TLS and a journal in front of a real server that speaks plain HTTP/1.1 on loopback.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use hyper::header::{CONNECTION, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::http::uri::PathAndQuery;
use hyper::{Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::serve::{Answer, Answering, Arrived, Service};

/// Passes each request on to one server, on a connection of its own.
#[derive(Clone, Copy, Debug)]
pub struct Front {
    backend: SocketAddr,
}

impl Front {
    /// In front of the server at this address.
    #[must_use]
    pub fn of(backend: SocketAddr) -> Self {
        Self { backend }
    }
}

impl Service for Front {
    fn answer(&self, request: Arrived) -> Answering {
        Box::pin(pass_on(request, self.backend))
    }
}

async fn pass_on(mut request: Arrived, backend: SocketAddr) -> Result<Answer> {
    let stream = TcpStream::connect(backend)
        .await
        .context("the server behind is not there")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .context("no connection")?;
    tokio::spawn(connection);

    // From here on it is HTTP/1.1, whatever it came as: the authority is in `Host`, the target is a path.
    if let Some(authority) = request.uri().authority().map(ToString::to_string) {
        request
            .headers_mut()
            .insert(HOST, HeaderValue::from_str(&authority)?);
    }
    let target = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    *request.uri_mut() = target.parse::<Uri>()?;
    *request.version_mut() = Version::HTTP_11;
    request
        .headers_mut()
        .insert("x-forwarded-proto", HeaderValue::from_static("https"));

    let mut answer = sender
        .send_request(request)
        .await
        .context("the server behind does not answer")?;
    answer.headers_mut().remove(CONNECTION);
    answer.headers_mut().remove(TRANSFER_ENCODING);
    Ok(answer.map(http_body_util::BodyExt::boxed_unsync))
}

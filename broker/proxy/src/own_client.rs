//! The broker's own requests, to the operator's secret stores: one guarded way out, and not a sandbox's.
//!
//! The address comes from the operator's configuration, so a private or loopback address is what is meant; a metadata
//! service never is. TLS verifies the configured name against the host's roots, or against the store's own CA alone.
//! Redirects are not followed, the answer is bounded, and the whole exchange has one deadline.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use wallgate_types::address::AddressClass;
use wallgate_types::authority::{Authority, Host};
use wallgate_vault::source::{BoxFuture, ClientError, GuardedClient, MAX_VAULT_RESPONSE_BYTES};

use crate::tls::upstream::{AlpnOffer, UpstreamTls, server_name};

/// How long one exchange may take, from the name to the answer's last byte.
const DEADLINE: Duration = Duration::from_secs(5);
const HTTPS_PORT: u16 = 443;
const HTTP_PORT: u16 = 80;

/// A client for the operator's own services.
#[derive(Debug)]
pub struct OwnClient {
    tls: UpstreamTls,
}

impl OwnClient {
    /// A client that verifies by `tls`.
    #[must_use]
    pub const fn new(tls: UpstreamTls) -> Self {
        Self { tls }
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        let is_tls = request.uri().scheme_str() == Some("https");
        let default_port = if is_tls { HTTPS_PORT } else { HTTP_PORT };
        let text = request
            .uri()
            .authority()
            .map(http::uri::Authority::as_str)
            .unwrap_or_default();
        let authority = Authority::parse(text, default_port).or(Err(ClientError::Resolve))?;
        let stream = connect(&authority).await?;
        let request = origin_form(request, &authority.shortest(default_port))?;
        if !is_tls {
            return speak(stream, request).await;
        }
        let name: ServerName<'static> = server_name(authority.host()).ok_or(ClientError::Resolve)?;
        let connector = TlsConnector::from(self.tls.config(&authority, AlpnOffer::Http1Only));
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|error| ClientError::Tls(error.to_string()))?;
        speak(stream, request).await
    }
}

impl GuardedClient for OwnClient {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, ClientError>> {
        Box::pin(async move {
            timeout(DEADLINE, self.exchange(request))
                .await
                .unwrap_or(Err(ClientError::Timeout))
        })
    }
}

/// Dials the first address that may be dialled and answers.
async fn connect(authority: &Authority) -> Result<TcpStream, ClientError> {
    let addresses: Vec<SocketAddr> = match authority.host() {
        Host::Name(name) => {
            let found = lookup_host((name.as_str(), authority.port()))
                .await
                .or(Err(ClientError::Resolve))?;
            found.collect()
        }
        Host::V4(address) => vec![SocketAddr::new(IpAddr::V4(*address), authority.port())],
        Host::V6(address) => vec![SocketAddr::new(IpAddr::V6(*address), authority.port())],
    };
    if addresses
        .iter()
        .any(|address| AddressClass::of(address.ip()) == AddressClass::Metadata)
    {
        return Err(ClientError::Resolve);
    }
    let mut last = None;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(ClientError::Connect)?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or(ClientError::Resolve, ClientError::Connect))
}

/// The request as HTTP/1 sends it to an origin (RFC 9112, section 3.2.1).
fn origin_form(request: Request<Bytes>, host: &str) -> Result<Request<Full<Bytes>>, ClientError> {
    let (mut head, body) = request.into_parts();
    let path = head
        .uri
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str);
    head.uri = path.parse::<Uri>().map_err(broken)?;
    head.headers.insert(header::HOST, host.parse().map_err(broken)?);
    Ok(Request::from_parts(head, Full::new(body)))
}

async fn speak<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let answer = async {
        let (head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
        match Limited::new(body, MAX_VAULT_RESPONSE_BYTES).collect().await {
            Ok(body) => Ok(Response::from_parts(head, body.to_bytes())),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(ClientError::TooLarge),
            Err(error) => Err(ClientError::Broken(Arc::from(error))),
        }
    };
    tokio::pin!(answer);
    // The connection is driven here and ends with the answer: no task is left behind.
    tokio::select! {
        answer = &mut answer => answer,
        ended = connection => match ended {
            Ok(()) => answer.await,
            Err(error) => Err(broken(error)),
        },
    }
}

fn broken(error: impl std::error::Error + Send + Sync + 'static) -> ClientError {
    ClientError::Broken(Arc::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use wallgate_types::clock::SystemClock;

    use crate::tls::upstream::UpstreamTrust;

    async fn ask(answer: Vec<u8>) -> Result<Response<Bytes>, ClientError> {
        let trust =
            UpstreamTrust::with_roots(rustls::RootCertStore::empty(), &[], Arc::new(SystemClock::new()));
        let client = OwnClient::new(UpstreamTls::new(&trust.unwrap()).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 1024];
            let read = stream.read(&mut request).await.unwrap();
            drop(stream.write_all(&answer).await);
            String::from_utf8_lossy(&request[..read]).into_owned()
        });
        let request = Request::get(format!("http://{address}/v1/kv?x=1"))
            .body(Bytes::new())
            .unwrap();
        let answer = client.send(request).await;
        let got = server.await.unwrap();
        assert!(got.starts_with("GET /v1/kv?x=1 HTTP/1.1\r\n"), "{got}");
        assert!(got.contains(&format!("host: {address}\r\n")), "{got}");
        answer
    }

    #[tokio::test]
    async fn a_redirect_is_an_answer_and_is_not_followed() {
        let answer =
            ask(b"HTTP/1.1 302 Found\r\nlocation: http://evil.test/\r\ncontent-length: 2\r\n\r\nno".to_vec());
        let answer = answer.await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), answer.body().as_ref()),
            (302, &b"no"[..])
        );
    }

    #[tokio::test]
    async fn an_answer_without_end_or_shape_is_an_error() {
        let size = MAX_VAULT_RESPONSE_BYTES + 1;
        let long = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n{}",
            "x".repeat(size)
        );
        assert!(matches!(ask(long.into_bytes()).await, Err(ClientError::TooLarge)));
        assert!(matches!(
            ask(b"nonsense\r\n\r\n".to_vec()).await,
            Err(ClientError::Broken(_))
        ));
        assert!(matches!(ask(Vec::new()).await, Err(ClientError::Broken(_))));
    }

    #[tokio::test]
    async fn a_metadata_service_is_never_asked() {
        let authority = Authority::parse("169.254.169.254", 80).unwrap();
        assert!(matches!(connect(&authority).await, Err(ClientError::Resolve)));
    }
}

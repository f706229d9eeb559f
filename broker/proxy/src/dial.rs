//! From a checked authority to a connection (DESIGN §2, stage 7).
//!
//! Only addresses in a [`Checked`] are dialled, and the certificate is verified for the authority in the same value: the
//! name that was judged, the addresses that were checked and the name that is verified cannot come apart. Every retry
//! begins with a new [`Checked`].
//!
//! Addresses are tried in an order that alternates families, each joined by the next after [`DIAL_STAGGER`] or at once
//! when one fails (RFC 8305, section 5). The scheme is the request's own: TLS is never left out, and never added.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use wallgate_types::request::Scheme;

use crate::edge_limits::{CONNECT_TIMEOUT, DIAL_STAGGER, MAX_DIALLED_ADDRESSES, UPSTREAM_TLS_TIMEOUT};
use crate::resolve::Checked;
use crate::terminate::HttpProtocol;
use crate::tls::ALPN_H2;
use crate::tls::upstream::{AlpnOffer, CertificateReason, UpstreamTls, server_name};

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum DialError {
    /// Nobody listens there.
    #[error("{address} refused the connection")]
    Refused {
        /// The last address that was tried.
        address: SocketAddr,
    },
    /// There is no way there, or it broke.
    #[error("{address} cannot be reached")]
    Unreachable {
        /// The last address that was tried.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No address answered within [`CONNECT_TIMEOUT`].
    #[error("no address answered in time")]
    ConnectTimeout,
    /// The certificate is not what it must be.
    #[error("the certificate of {address} is refused: {}", reason.as_str())]
    Certificate {
        /// Who presented it.
        address: SocketAddr,
        /// What is wrong with it.
        reason: CertificateReason,
        /// The library's words, for the operator.
        #[source]
        source: io::Error,
    },
    /// The handshake failed for another reason.
    #[error("no TLS with {address}")]
    Tls {
        /// With whom.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The handshake took longer than [`UPSTREAM_TLS_TIMEOUT`].
    #[error("the TLS handshake with {address} did not end in time")]
    TlsTimeout {
        /// With whom.
        address: SocketAddr,
    },
    /// The authority cannot be a certificate's name, or the scheme is none that is dialled.
    #[error("this authority or scheme cannot be dialled")]
    Undialable,
}

impl DialError {
    /// The stable reason code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "upstream_refused",
            Self::Unreachable { .. } => "upstream_unreachable",
            Self::ConnectTimeout => "upstream_connect_timeout",
            Self::Certificate { .. } => "upstream_certificate",
            Self::Tls { .. } => "upstream_tls",
            Self::TlsTimeout { .. } => "upstream_tls_timeout",
            Self::Undialable => "upstream_undialable",
        }
    }

    /// What is wrong with the certificate, if that is why.
    #[must_use]
    pub const fn certificate(&self) -> Option<CertificateReason> {
        match self {
            Self::Certificate { reason, .. } => Some(*reason),
            Self::Refused { .. }
            | Self::Unreachable { .. }
            | Self::ConnectTimeout
            | Self::Tls { .. }
            | Self::TlsTimeout { .. }
            | Self::Undialable => None,
        }
    }

    /// The address that it is about, if any answered.
    #[must_use]
    pub const fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Refused { address }
            | Self::Unreachable { address, .. }
            | Self::Certificate { address, .. }
            | Self::Tls { address, .. }
            | Self::TlsTimeout { address } => Some(*address),
            Self::ConnectTimeout | Self::Undialable => None,
        }
    }
}

/// A connection to upstream.
#[derive(Debug)]
pub struct UpstreamStream {
    transport: Transport,
    peer: SocketAddr,
    protocol: HttpProtocol,
}

#[derive(Debug)]
enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl UpstreamStream {
    /// The address that was dialled: one of the checked ones.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What upstream speaks: HTTP/2 only if it was offered and chosen.
    #[must_use]
    pub const fn protocol(&self) -> HttpProtocol {
        self.protocol
    }

    /// Whether the peer proved its name.
    #[must_use]
    pub const fn is_verified_tls(&self) -> bool {
        match self.transport {
            Transport::Plain(_) => false,
            Transport::Tls(_) => true,
        }
    }
}

/// Connects to `checked`, in TLS when `scheme` is https.
///
/// Cancel-safe: dropping it abandons all attempts.
///
/// # Errors
/// [`DialError`]; nothing of a request was sent.
pub async fn dial(
    checked: &Checked,
    scheme: Scheme,
    offer: AlpnOffer,
    tls: &UpstreamTls,
) -> Result<UpstreamStream, DialError> {
    match scheme {
        Scheme::Http => {
            let (stream, peer) = connect(checked.addresses()).await?;
            Ok(UpstreamStream {
                transport: Transport::Plain(stream),
                peer,
                protocol: HttpProtocol::Http1,
            })
        }
        Scheme::Https => {
            let name = server_name(checked.authority().host()).ok_or(DialError::Undialable)?;
            let connector = TlsConnector::from(tls.config(checked.authority(), offer));
            let (stream, address) = connect(checked.addresses()).await?;
            let stream = timeout(UPSTREAM_TLS_TIMEOUT, connector.connect(name, stream))
                .await
                .or(Err(DialError::TlsTimeout { address }))?
                .map_err(|source| tls_error(address, source))?;
            let protocol = match stream.get_ref().1.alpn_protocol() {
                Some(protocol) if protocol == ALPN_H2 => HttpProtocol::Http2,
                // rustls has made sure that it is one that was offered.
                Some(_) | None => HttpProtocol::Http1,
            };
            Ok(UpstreamStream {
                transport: Transport::Tls(Box::new(stream)),
                peer: address,
                protocol,
            })
        }
        Scheme::Dns => Err(DialError::Undialable),
    }
}

fn tls_error(address: SocketAddr, source: io::Error) -> DialError {
    let tls = source
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls.and_then(CertificateReason::of) {
        Some(reason) => DialError::Certificate {
            address,
            reason,
            source,
        },
        None => DialError::Tls { address, source },
    }
}

/// The first of these addresses that accepts.
async fn connect(addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), DialError> {
    timeout(CONNECT_TIMEOUT, race(&alternating(addresses)))
        .await
        .or(Err(DialError::ConnectTimeout))?
}

async fn race(addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), DialError> {
    let mut waiting = addresses.iter().copied();
    let mut attempts = FuturesUnordered::new();
    let mut last = DialError::Undialable;
    loop {
        match waiting.next() {
            Some(address) => attempts.push(attempt(address)),
            None if attempts.is_empty() => return Err(last),
            None => {}
        }
        // The next address joins after the stagger, or as soon as an attempt fails.
        let alone = if waiting.len() == 0 {
            CONNECT_TIMEOUT
        } else {
            DIAL_STAGGER
        };
        match timeout(alone, attempts.next()).await {
            Ok(Some(Ok(connected))) => return Ok(connected),
            Ok(Some(Err(error))) => last = error,
            Ok(None) | Err(_) => {}
        }
    }
}

async fn attempt(address: SocketAddr) -> Result<(TcpStream, SocketAddr), DialError> {
    let connected = async {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // Two peers without it lose 44 ms for each new connection (delayed acknowledgements).
        socket.set_nodelay(true)?;
        socket.set_keepalive(true)?;
        socket.connect(address).await
    };
    match connected.await {
        Ok(stream) => Ok((stream, address)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Err(DialError::Refused { address }),
        Err(source) => Err(DialError::Unreachable { address, source }),
    }
}

/// At most [`MAX_DIALLED_ADDRESSES`], alternating between the families, beginning with IPv6 (RFC 8305, section 4).
fn alternating(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut v6 = addresses.iter().copied().filter(SocketAddr::is_ipv6);
    let mut v4 = addresses.iter().copied().filter(SocketAddr::is_ipv4);
    let mut order = Vec::with_capacity(addresses.len());
    loop {
        let pair = (v6.next(), v4.next());
        if pair == (None, None) {
            break;
        }
        order.extend(pair.0);
        order.extend(pair.1);
    }
    order.truncate(MAX_DIALLED_ADDRESSES);
    order
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests;

//! From the first byte of a connection to a stream of HTTP whose name is known (DESIGN §2, stage 2).
//!
//! ```text
//!  first bytes ──┬─ 0x16 ─────────────▶ ClientHello ─▶ name ─▶ leaf ─▶ handshake ─▶ ALPN
//!                ├─ METHOD SP [/*h] ──▶ HTTP/1.1 in the clear
//!                ├─ PRI * HTTP/2.0 ───▶ refused: h2c
//!                └─ anything else ────▶ refused: unknown
//! ```
//!
//! Any port may carry TLS or HTTP: the bytes say which, and nothing else is relayed. The bytes that were looked at are
//! replayed to whoever reads next.
//!
//! **Which name.** A server name (SNI) is the name. If the sandbox dialled an address that stands for a name, the two
//! must be the same, or the handshake is refused with `unrecognized_name`. If it dialled any other address
//! (`--resolve`, a cached address), that address is ignored: our own resolver says where the name is, and policy judges
//! the name. Without a server name, the address says the name that it stands for; failing that, the literal address is
//! the name. Case is folded, since RFC 6066 compares names without regard to it; everything else that is not canonical
//! is refused.
//!
//! Encrypted ClientHello is never decrypted: the outer name is the name, is judged as such, and the client, which sees
//! no retry configuration, decides whether it goes on (RFC 9849, section 6.1.6). GREASE just works.

use std::future::Future;
use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::LazyConfigAcceptor;
use wallgate_types::address::OriginalDst;
use wallgate_types::authority::{Host, Name};
use wallgate_types::request::Scheme;

use crate::client_hello::{self, ClientHello, HelloError, Progress};
use crate::client_stream::{ClientStream, Replayed};
use crate::edge_limits::{FIRST_BYTE_TIMEOUT, HANDSHAKE_TIMEOUT, MAX_SNIFF_BYTES};
use crate::names::NameTable;
use crate::tls::mint::{MintError, Minter};
use crate::tls::{ALPN_H2, ALPN_HTTP1};

const TLS_HANDSHAKE: u8 = 22;
/// How an HTTP/2 connection begins (RFC 9113, section 3.4).
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The longest method that is taken for one.
const MAX_METHOD_BYTES: usize = 32;

/// Says for which names a leaf may be minted, so that a flood of random names costs nothing.
pub trait MintPolicy: Send + Sync + std::fmt::Debug {
    /// Whether a handshake as `host` may go on.
    fn may_mint(&self, host: &Host) -> bool;
}

/// What one sandbox's connections are terminated with.
#[derive(Debug)]
pub struct SandboxTls {
    minter: Minter,
    mint_policy: Arc<dyn MintPolicy>,
}

impl SandboxTls {
    /// Leaves by `minter`, for the names that `mint_policy` lets through.
    #[must_use]
    pub fn new(minter: Minter, mint_policy: Arc<dyn MintPolicy>) -> Self {
        Self { minter, mint_policy }
    }

    /// The minter, for its counters and its authority.
    #[must_use]
    pub const fn minter(&self) -> &Minter {
        &self.minter
    }
}

/// The version of HTTP that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HttpProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Where a connection's name comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// The TLS handshake.
    Sni(Host),
    /// The address that the sandbox dialled stands for it.
    Synthetic(Host),
    /// The sandbox dialled this address, and it stands for nothing.
    Literal(Host),
}

impl Named {
    /// The name, or the literal.
    #[must_use]
    pub const fn host(&self) -> &Host {
        match self {
            Self::Sni(host) | Self::Synthetic(host) | Self::Literal(host) => host,
        }
    }
}

/// A connection whose name is known and whose bytes are HTTP.
#[must_use = "a terminated connection is served or closed"]
#[derive(Debug)]
pub struct Terminated<S> {
    /// What the sandbox says next, decrypted.
    pub stream: ClientStream<S>,
    /// The address that the sandbox dialled.
    pub original_dst: OriginalDst,
    /// The connection's name.
    pub named: Named,
    /// In the clear or over TLS.
    pub scheme: Scheme,
    /// The version of HTTP.
    pub protocol: HttpProtocol,
    /// Whether Encrypted ClientHello was offered, in earnest or as GREASE.
    pub ech_offered: bool,
}

impl<S> Terminated<S> {
    /// The host that every request on this connection must be for, or be answered with 421.
    ///
    /// `None` only in the clear and towards an address that stands for no name: there the request's own authority is
    /// all there is, and the dialled address is ignored.
    #[must_use]
    pub const fn required_host(&self) -> Option<&Host> {
        match (&self.named, self.scheme) {
            (Named::Literal(_), Scheme::Http | Scheme::Dns) => None,
            (Named::Literal(host), Scheme::Https) | (Named::Sni(host) | Named::Synthetic(host), _) => {
                Some(host)
            }
        }
    }

    /// The name in the TLS handshake, if there was one.
    #[must_use]
    pub const fn sni(&self) -> Option<&Host> {
        match &self.named {
            Named::Sni(host) => Some(host),
            Named::Synthetic(_) | Named::Literal(_) => None,
        }
    }
}

/// Why a connection ends before its first request.
#[derive(Debug, Error)]
pub enum TerminateError {
    /// The sandbox sent nothing in time.
    #[error("no first byte in time")]
    FirstByteTimeout,
    /// The sandbox closed before it sent anything.
    #[error("closed before the first byte")]
    Closed,
    /// Neither TLS nor HTTP.
    #[error("the first bytes are neither TLS nor HTTP")]
    UnknownProtocol {
        /// SHA-256 of the first bytes, at most [`MAX_SNIFF_BYTES`], in hexadecimal.
        first_bytes_sha256: String,
    },
    /// HTTP/2 without TLS.
    #[error("HTTP/2 is spoken over TLS only")]
    H2c,
    /// The ClientHello was refused.
    #[error("the ClientHello is refused")]
    Hello(#[source] HelloError),
    /// The server name is not the name that the dialled address stands for.
    #[error("the server name {sni} is not {dialled}, which the dialled address stands for")]
    SniMismatch {
        /// The name in the handshake.
        sni: Name,
        /// The name of the address.
        dialled: Name,
    },
    /// rustls read another server name than we did.
    #[error("two readings of the server name differ")]
    SniReadings,
    /// No leaf is minted for this name.
    #[error("no certificate may be made for {0}")]
    NotMintable(Host),
    /// Minting failed or was limited.
    #[error("no certificate for {host}")]
    Mint {
        /// The name.
        host: Host,
        /// Why.
        #[source]
        source: MintError,
    },
    /// The sandbox wants neither HTTP/2 nor HTTP/1.1.
    #[error("no common application protocol")]
    Alpn,
    /// The sandbox does not trust our certificate: its trust store lacks the root, or the client pins another one.
    #[error("the client refused our certificate")]
    ClientRefused,
    /// The handshake failed.
    #[error("the TLS handshake failed")]
    Handshake(#[source] io::Error),
    /// The sandbox began and did not go on in time.
    #[error("the handshake or request line was not complete in time")]
    Timeout,
    /// The connection broke.
    #[error("the connection broke")]
    Io(#[source] io::Error),
}

impl TerminateError {
    /// The stable reason code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::Closed => "closed_early",
            Self::UnknownProtocol { .. } => "unknown_protocol",
            Self::H2c => "h2c",
            Self::Hello(HelloError::ServerName(_)) => "bad_sni",
            Self::Hello(HelloError::TooLong) => "hello_too_long",
            Self::Hello(HelloError::Version) => "tls_version",
            Self::Hello(HelloError::Malformed | HelloError::DuplicateExtension) => "hello_malformed",
            Self::SniMismatch { .. } | Self::SniReadings => "sni_mismatch",
            Self::NotMintable(_) => "name_not_allowed",
            Self::Mint { source, .. } => source.code(),
            Self::Alpn => "alpn",
            Self::ClientRefused => "client_refused_certificate",
            Self::Handshake(_) => "tls_handshake",
            Self::Timeout => "handshake_timeout",
            Self::Io(_) => "connection_broken",
        }
    }

    /// The name that it is about, when it got that far.
    #[must_use]
    pub fn name(&self) -> Option<Host> {
        match self {
            Self::SniMismatch { sni, .. } => Some(Host::Name(sni.clone())),
            Self::NotMintable(host) | Self::Mint { host, .. } => Some(host.clone()),
            Self::FirstByteTimeout
            | Self::Closed
            | Self::UnknownProtocol { .. }
            | Self::H2c
            | Self::Hello(_)
            | Self::SniReadings
            | Self::Alpn
            | Self::ClientRefused
            | Self::Handshake(_)
            | Self::Timeout
            | Self::Io(_) => None,
        }
    }
}

/// Takes a fresh connection to its first byte of HTTP.
///
/// Not cancel-safe: dropping it closes the connection, which is all that is left to do then.
///
/// # Errors
/// [`TerminateError`]; the connection is closed, after a TLS alert where one can be sent.
pub async fn terminate<S>(
    mut stream: S,
    original_dst: OriginalDst,
    tls: &SandboxTls,
    table: &NameTable,
) -> Result<Terminated<S>, TerminateError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut seen = Vec::with_capacity(2048);
    let first = timeout_at(
        Instant::now() + FIRST_BYTE_TIMEOUT,
        read_more(&mut stream, &mut seen),
    )
    .await;
    if !first.or(Err(TerminateError::FirstByteTimeout))?? {
        return Err(TerminateError::Closed);
    }
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    within(deadline, async {
        if seen.first() == Some(&TLS_HANDSHAKE) {
            return handshake(stream, seen, original_dst, tls, table).await;
        }
        sniff_request_line(&mut stream, &mut seen).await?;
        Ok(Terminated {
            stream: ClientStream::Plain(Replayed::new(seen, stream)),
            original_dst,
            named: name_of(None, original_dst, table),
            scheme: Scheme::Http,
            protocol: HttpProtocol::Http1,
            ech_offered: false,
        })
    })
    .await
}

async fn within<T>(
    deadline: Instant,
    work: impl Future<Output = Result<T, TerminateError>>,
) -> Result<T, TerminateError> {
    timeout_at(deadline, work)
        .await
        .or(Err(TerminateError::Timeout))?
}

/// Appends what comes next; false at the end of the stream.
async fn read_more<S: AsyncRead + Unpin>(stream: &mut S, seen: &mut Vec<u8>) -> Result<bool, TerminateError> {
    let mut chunk = [0_u8; 4096];
    let length = stream.read(&mut chunk).await.map_err(TerminateError::Io)?;
    seen.extend_from_slice(chunk.get(..length).unwrap_or_default());
    Ok(length > 0)
}

/// What the first bytes of a connection without TLS are.
#[derive(Debug, PartialEq, Eq)]
enum Sniffed {
    NeedMore,
    Http1,
    H2c,
    Unknown,
}

/// A method, a space, and the beginning of a target: `/`, `*`, `http` in either case, or anything after CONNECT.
fn sniff(bytes: &[u8]) -> Sniffed {
    let shared = bytes.len().min(H2_PREFACE.len());
    // A prefix of the preface is not HTTP/1 before it differs: `PRI` and ` * ` would pass for a method and a target.
    if bytes.get(..shared) == H2_PREFACE.get(..shared) {
        return if bytes.len() >= b"PRI * HTTP/2.0".len() {
            Sniffed::H2c
        } else if bytes.len() < MAX_SNIFF_BYTES {
            Sniffed::NeedMore
        } else {
            Sniffed::Unknown
        };
    }
    let Some(space) = bytes.iter().position(|byte| *byte == b' ') else {
        let could_be = bytes.len() <= MAX_METHOD_BYTES && bytes.iter().all(|byte| is_method_byte(*byte));
        return if could_be {
            Sniffed::NeedMore
        } else {
            Sniffed::Unknown
        };
    };
    let (method, target) = bytes.split_at(space);
    if method.is_empty()
        || method.len() > MAX_METHOD_BYTES
        || !method.iter().all(|byte| is_method_byte(*byte))
    {
        return Sniffed::Unknown;
    }
    match target.get(1) {
        None => Sniffed::NeedMore,
        Some(b'/' | b'*' | b'h' | b'H') => Sniffed::Http1,
        Some(byte) if method == b"CONNECT" && byte.is_ascii_graphic() => Sniffed::Http1,
        Some(_) => Sniffed::Unknown,
    }
}

/// The methods that are registered, or used by anyone, are upper case and hyphens.
const fn is_method_byte(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte == b'-'
}

async fn sniff_request_line<S>(stream: &mut S, seen: &mut Vec<u8>) -> Result<(), TerminateError>
where
    S: AsyncRead + Unpin,
{
    loop {
        let unknown = match sniff(seen) {
            Sniffed::Http1 => return Ok(()),
            Sniffed::H2c => return Err(TerminateError::H2c),
            Sniffed::Unknown => true,
            Sniffed::NeedMore => !read_more(stream, seen).await?,
        };
        if unknown {
            let shown = seen.get(..MAX_SNIFF_BYTES).unwrap_or(seen);
            return Err(TerminateError::UnknownProtocol {
                first_bytes_sha256: hex(&Sha256::digest(shown)),
            });
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

async fn handshake<S>(
    mut stream: S,
    mut seen: Vec<u8>,
    original_dst: OriginalDst,
    tls: &SandboxTls,
    table: &NameTable,
) -> Result<Terminated<S>, TerminateError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let hello = match read_hello(&mut stream, &mut seen).await {
        Ok(hello) => hello,
        Err(error) => return Err(refuse(stream, error).await),
    };
    let (named, config) = match choose(&hello, original_dst, tls, table) {
        Ok(chosen) => chosen,
        Err(error) => return Err(refuse(stream, error).await),
    };
    let replayed = Replayed::new(seen, stream);
    let start = LazyConfigAcceptor::new(Acceptor::default(), replayed)
        .await
        .map_err(handshake_error)?;
    let reading = start.client_hello().server_name().map(Name::parse);
    if reading.transpose().ok() != Some(hello.server_name) {
        return Err(TerminateError::SniReadings);
    }
    let stream = start.into_stream(config).await.map_err(handshake_error)?;
    let protocol = match stream.get_ref().1.alpn_protocol() {
        Some(protocol) if protocol == ALPN_H2 => HttpProtocol::Http2,
        Some(protocol) if protocol == ALPN_HTTP1 => HttpProtocol::Http1,
        None => HttpProtocol::Http1,
        Some(_) => return Err(TerminateError::Alpn),
    };
    Ok(Terminated {
        stream: ClientStream::Tls(Box::new(stream)),
        original_dst,
        named,
        scheme: Scheme::Https,
        protocol,
        ech_offered: hello.ech_offered,
    })
}

async fn read_hello<S>(stream: &mut S, seen: &mut Vec<u8>) -> Result<ClientHello, TerminateError>
where
    S: AsyncRead + Unpin,
{
    loop {
        match client_hello::read(seen).map_err(TerminateError::Hello)? {
            Progress::Complete(hello) => return Ok(hello),
            Progress::NeedMore { at_least } => {
                let enough = seen.len().saturating_add(at_least);
                while seen.len() < enough {
                    if !read_more(stream, seen).await? {
                        return Err(TerminateError::Hello(HelloError::Malformed));
                    }
                }
            }
        }
    }
}

fn choose(
    hello: &ClientHello,
    original_dst: OriginalDst,
    tls: &SandboxTls,
    table: &NameTable,
) -> Result<(Named, Arc<ServerConfig>), TerminateError> {
    if let Some(sni) = &hello.server_name
        && let Some(dialled) = table.lookup(original_dst.0.ip())
        && dialled != *sni
    {
        return Err(TerminateError::SniMismatch {
            sni: sni.clone(),
            dialled,
        });
    }
    let named = name_of(hello.server_name.as_ref(), original_dst, table);
    if !tls.mint_policy.may_mint(named.host()) {
        return Err(TerminateError::NotMintable(named.host().clone()));
    }
    let config = tls
        .minter
        .server_config(named.host())
        .map_err(|source| TerminateError::Mint {
            host: named.host().clone(),
            source,
        })?;
    Ok((named, config))
}

fn name_of(sni: Option<&Name>, original_dst: OriginalDst, table: &NameTable) -> Named {
    if let Some(name) = sni {
        return Named::Sni(Host::Name(name.clone()));
    }
    let address = original_dst.0.ip().to_canonical();
    match table.lookup(address) {
        Some(name) => Named::Synthetic(Host::Name(name)),
        None => Named::Literal(Host::from(address)),
    }
}

/// Sends the alert that fits, in the clear as before any key, and hands the error back.
async fn refuse<S: AsyncWrite + Unpin>(mut stream: S, error: TerminateError) -> TerminateError {
    const FATAL: u8 = 2;
    let description = match &error {
        TerminateError::SniMismatch { .. } | TerminateError::Hello(HelloError::ServerName(_)) => 112, // unrecognized_name
        TerminateError::NotMintable(_) => 49,             // access_denied
        TerminateError::Hello(HelloError::Version) => 70, // protocol_version
        TerminateError::Hello(_) => 50,                   // decode_error
        TerminateError::Mint { .. } => 80,                // internal_error
        TerminateError::FirstByteTimeout
        | TerminateError::Closed
        | TerminateError::UnknownProtocol { .. }
        | TerminateError::H2c
        | TerminateError::SniReadings
        | TerminateError::Alpn
        | TerminateError::ClientRefused
        | TerminateError::Handshake(_)
        | TerminateError::Timeout
        | TerminateError::Io(_) => return error,
    };
    // The sandbox may be gone already; the refusal stands either way.
    if stream
        .write_all(&[21, 3, 3, 0, 2, FATAL, description])
        .await
        .is_ok()
    {
        drop(stream.shutdown().await);
    }
    error
}

fn handshake_error(error: io::Error) -> TerminateError {
    use rustls::AlertDescription as Alert;
    let tls = error
        .get_ref()
        .and_then(|source| source.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::NoApplicationProtocol) => TerminateError::Alpn,
        Some(rustls::Error::AlertReceived(
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateUnknown
            | Alert::CertificateExpired
            | Alert::UnsupportedCertificate
            | Alert::AccessDenied,
        )) => TerminateError::ClientRefused,
        Some(_) => TerminateError::Handshake(error),
        None => TerminateError::Io(error),
    }
}

#[cfg(test)]
mod tests;

//! TLS towards upstream: whom to believe, and why not.
//!
//! A certificate is verified for the canonical name of the authority that was asked for, by webpki, against the host's
//! roots and the configured ones. An upstream with a `ca` of its own is verified against that alone: a public authority
//! that is tricked into issuing for an internal name gains nothing. Nothing that a sandbox does changes any of it.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::time_provider::TimeProvider;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, OtherError, RootCertStore,
    SignatureScheme,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use thiserror::Error;
use wallgate_types::authority::{Authority, Host};
use wallgate_types::clock::Clock;

use super::ocsp::says_revoked;
use super::{ALPN_H2, ALPN_HTTP1, provider};
use crate::edge_limits::MAX_UPSTREAM_SESSIONS;

/// The smallest RSA modulus that is not weak, in bits (CA/B Forum baseline requirements, section 6.1.5).
const MIN_RSA_BITS: usize = 2048;

/// Why an upstream's certificate was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CertificateReason {
    /// It has ended.
    Expired,
    /// It has not begun.
    NotYetValid,
    /// No trusted root vouches for it: self-signed, of an unknown root, or sent without its intermediates.
    UnknownIssuer,
    /// It is somebody else's.
    WrongName,
    /// Its issuer took it back.
    Revoked,
    /// A signature in the chain or in the handshake is wrong.
    BadSignature,
    /// A key or signature algorithm that is no longer safe: RSA under 2048 bits, SHA-1, MD5.
    Weak,
    /// It is not for servers, or it is an authority's own.
    Purpose,
    /// It cannot be read.
    Malformed,
    /// Anything else, such as a name that its issuer may not certify.
    Other,
}

impl CertificateReason {
    /// The stable name that records carry.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::UnknownIssuer => "unknown_issuer",
            Self::WrongName => "wrong_name",
            Self::Revoked => "revoked",
            Self::BadSignature => "bad_signature",
            Self::Weak => "weak",
            Self::Purpose => "purpose",
            Self::Malformed => "malformed",
            Self::Other => "other",
        }
    }

    /// The reason behind this error, if it is about a certificate.
    #[must_use]
    pub fn of(error: &TlsError) -> Option<Self> {
        match error {
            TlsError::InvalidCertificate(error) => Some(Self::of_certificate(error)),
            TlsError::NoCertificatesPresented => Some(Self::Malformed),
            _ => None,
        }
    }

    #[expect(
        deprecated,
        reason = "the library may still return the older form of the same error"
    )]
    fn of_certificate(error: &CertificateError) -> Self {
        match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
            CertificateError::UnknownIssuer => Self::UnknownIssuer,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::WrongName
            }
            CertificateError::Revoked => Self::Revoked,
            CertificateError::BadSignature => Self::BadSignature,
            CertificateError::UnsupportedSignatureAlgorithm
            | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => Self::Weak,
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                Self::Purpose
            }
            CertificateError::BadEncoding | CertificateError::UnhandledCriticalExtension => Self::Malformed,
            CertificateError::Other(OtherError(source)) if source.is::<WeakKey>() => Self::Weak,
            // The library's enum may grow.
            _ => Self::Other,
        }
    }
}

/// The key of a certificate is too small to be worth a signature.
#[derive(Debug, Error)]
#[error("a key in the chain is RSA with fewer than {MIN_RSA_BITS} bits")]
struct WeakKey;

/// An authority that is verified against roots of its own.
#[derive(Clone, Debug)]
pub struct OwnCa {
    /// The host.
    pub host: Host,
    /// The port; `None` for every port of the host.
    pub port: Option<u16>,
    /// One or more certificates, as PEM.
    pub pem: Vec<u8>,
    /// Where they came from, for the operator.
    pub origin: String,
}

/// Why there are no roots to verify with.
#[derive(Debug, Error)]
pub enum TrustError {
    /// A configured file holds no certificate, or one that is no authority's, or one with a weak key.
    #[error("{origin} holds no usable CA certificate")]
    NoCertificate {
        /// Where it came from.
        origin: String,
    },
    /// Two entries for the same authority.
    #[error("{origin}: the same host and port already has a CA")]
    Duplicate {
        /// Where the second came from.
        origin: String,
    },
    /// The library refused the roots.
    #[error("cannot verify with these roots")]
    Verifier(#[source] rustls::client::VerifierBuilderError),
    /// The library refused the configuration.
    #[error("cannot speak TLS")]
    Tls(#[source] TlsError),
}

struct OwnTrust {
    host: Host,
    port: Option<u16>,
    verifier: Arc<Verifier>,
}

/// Whom to believe: shared by all sandboxes, never changed by one.
pub struct UpstreamTrust {
    host_roots: usize,
    everyone: Arc<Verifier>,
    own: Vec<OwnTrust>,
    time: Arc<ClockTime>,
}

impl std::fmt::Debug for UpstreamTrust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamTrust")
            .field("host_roots", &self.host_roots)
            .field("own", &self.own.len())
            .finish_non_exhaustive()
    }
}

impl UpstreamTrust {
    /// The host's roots, and the configured ones for their authorities.
    ///
    /// A host without roots is no error here: every public certificate will be refused as `unknown_issuer`, and
    /// [`UpstreamTrust::host_roots`] says why.
    ///
    /// # Errors
    /// [`TrustError`] for a configured CA that is unusable.
    pub fn load(own: &[OwnCa], clock: Arc<dyn Clock>) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "a root certificate of this host cannot be read");
        }
        let (_, unusable) = roots.add_parsable_certificates(found.certs);
        if unusable > 0 {
            tracing::debug!(unusable, "some root certificates of this host are unusable");
        }
        Self::with_roots(roots, own, clock)
    }

    /// These roots, and the configured ones for their authorities.
    ///
    /// # Errors
    /// [`TrustError`] for a configured CA that is unusable.
    pub fn with_roots(
        roots: RootCertStore,
        own: &[OwnCa],
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TrustError> {
        let host_roots = roots.len();
        let everyone = Verifier::new(roots)?;
        let mut trusts: Vec<OwnTrust> = Vec::with_capacity(own.len());
        for entry in own {
            if trusts
                .iter()
                .any(|trust| trust.host == entry.host && trust.port == entry.port)
            {
                return Err(TrustError::Duplicate {
                    origin: entry.origin.clone(),
                });
            }
            trusts.push(OwnTrust {
                host: entry.host.clone(),
                port: entry.port,
                verifier: Verifier::new(roots_from_pem(&entry.pem, &entry.origin)?)?,
            });
        }
        Ok(Self {
            host_roots,
            everyone,
            own: trusts,
            time: Arc::new(ClockTime(clock)),
        })
    }

    /// How many roots this host has.
    #[must_use]
    pub const fn host_roots(&self) -> usize {
        self.host_roots
    }
}

/// Parses what an operator gave as a CA file.
fn roots_from_pem(pem: &[u8], origin: &str) -> Result<RootCertStore, TrustError> {
    let unusable = || TrustError::NoCertificate {
        origin: origin.to_owned(),
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.or(Err(unusable()))?;
        if is_weak(&certificate) {
            return Err(unusable());
        }
        roots.add(certificate).or(Err(unusable()))?;
    }
    if roots.is_empty() {
        return Err(unusable());
    }
    Ok(roots)
}

/// Which protocols are offered upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlpnOffer {
    /// HTTP/2 and HTTP/1.1, in this order.
    Any,
    /// HTTP/1.1 only: a WebSocket needs it.
    Http1Only,
}

struct Configs {
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
}

struct OwnConfigs {
    host: Host,
    port: Option<u16>,
    configs: Configs,
}

/// One sandbox's TLS towards upstream: its sessions and tickets are its own.
pub struct UpstreamTls {
    everyone: Configs,
    own: Vec<OwnConfigs>,
}

impl std::fmt::Debug for UpstreamTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamTls").finish_non_exhaustive()
    }
}

impl UpstreamTls {
    /// A sandbox's own sessions over the shared trust.
    ///
    /// # Errors
    /// [`TrustError::Tls`] when the library refuses the configuration.
    pub fn new(trust: &UpstreamTrust) -> Result<Self, TrustError> {
        let own = trust
            .own
            .iter()
            .map(|own| {
                Ok(OwnConfigs {
                    host: own.host.clone(),
                    port: own.port,
                    configs: Configs::new(&own.verifier, &trust.time)?,
                })
            })
            .collect::<Result<_, TrustError>>()?;
        Ok(Self {
            everyone: Configs::new(&trust.everyone, &trust.time)?,
            own,
        })
    }

    /// How to dial this authority in TLS. An entry with a port goes before one for every port.
    #[must_use]
    pub fn config(&self, authority: &Authority, offer: AlpnOffer) -> Arc<ClientConfig> {
        let entry = |port| {
            self.own
                .iter()
                .find(|own| own.port == port && own.host == *authority.host())
        };
        let configs = entry(Some(authority.port()))
            .or_else(|| entry(None))
            .map_or(&self.everyone, |own| &own.configs);
        match offer {
            AlpnOffer::Any => Arc::clone(&configs.any),
            AlpnOffer::Http1Only => Arc::clone(&configs.http1),
        }
    }
}

impl Configs {
    fn new(verifier: &Arc<Verifier>, time: &Arc<ClockTime>) -> Result<Self, TrustError> {
        let verifier: Arc<Verifier> = Arc::clone(verifier);
        let time: Arc<ClockTime> = Arc::clone(time);
        let mut any = ClientConfig::builder_with_details(provider(), time)
            .with_safe_default_protocol_versions()
            .map_err(TrustError::Tls)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        any.resumption = Resumption::in_memory_sessions(MAX_UPSTREAM_SESSIONS);
        any.alpn_protocols = vec![ALPN_H2.to_vec(), ALPN_HTTP1.to_vec()];
        let mut http1 = any.clone();
        http1.alpn_protocols = vec![ALPN_HTTP1.to_vec()];
        Ok(Self {
            any: Arc::new(any),
            http1: Arc::new(http1),
        })
    }
}

/// The name that a certificate must be for.
#[must_use]
pub(crate) fn server_name(host: &Host) -> Option<ServerName<'static>> {
    match host {
        Host::Name(name) => ServerName::try_from(name.as_str().to_owned()).ok(),
        Host::V4(address) => Some(ServerName::IpAddress(std::net::IpAddr::from(*address).into())),
        Host::V6(address) => Some(ServerName::IpAddress(std::net::IpAddr::from(*address).into())),
    }
}

/// The clock that was passed in, as rustls reads it.
#[derive(Debug)]
struct ClockTime(Arc<dyn Clock>);

impl TimeProvider for ClockTime {
    fn current_time(&self) -> Option<UnixTime> {
        let since_epoch = Duration::from_secs(self.0.now().as_secs());
        Some(UnixTime::since_unix_epoch(since_epoch))
    }
}

/// webpki's verdict, made stricter: a stapled "revoked" counts, and a weak key is called what it is.
///
/// It only ever turns a pass into a failure, or one failure into another.
#[derive(Debug)]
struct Verifier {
    /// `None` when there are no roots at all, which webpki's verifier does not accept: then nothing verifies.
    webpki: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(roots: RootCertStore) -> Result<Arc<Self>, TrustError> {
        let provider = provider();
        let webpki = if roots.is_empty() {
            None
        } else {
            let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            Some(builder.build().map_err(TrustError::Verifier)?)
        };
        Ok(Arc::new(Self { webpki, provider }))
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let webpki = self.webpki.as_ref().ok_or(CertificateError::UnknownIssuer)?;
        let verified = webpki
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            .map_err(|error| name_weakness(error, std::iter::once(end_entity).chain(intermediates)))?;
        if !ocsp_response.is_empty() && is_revoked(end_entity, ocsp_response) {
            return Err(CertificateError::Revoked.into());
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
            .map_err(|error| name_weakness(error, std::iter::once(cert)))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
            .map_err(|error| name_weakness(error, std::iter::once(cert)))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// webpki calls a signature by a small RSA key wrong. It is weak, and the operator should know.
fn name_weakness<'a>(error: TlsError, mut chain: impl Iterator<Item = &'a CertificateDer<'a>>) -> TlsError {
    let bad_signature = matches!(
        error,
        TlsError::InvalidCertificate(CertificateError::BadSignature)
    );
    if bad_signature && chain.any(|certificate| is_weak(certificate)) {
        return CertificateError::Other(OtherError(Arc::new(WeakKey))).into();
    }
    error
}

fn is_weak(certificate: &[u8]) -> bool {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
        return false;
    };
    match parsed.public_key().parsed() {
        Ok(x509_parser::public_key::PublicKey::RSA(key)) => key.key_size() < MIN_RSA_BITS,
        Ok(_) | Err(_) => false,
    }
}

fn is_revoked(certificate: &[u8], staple: &[u8]) -> bool {
    x509_parser::parse_x509_certificate(certificate)
        .is_ok_and(|(_, parsed)| says_revoked(staple, parsed.raw_serial()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After the vectors were made.
    const NOW: Duration = Duration::from_secs(1_800_000_001);

    #[track_caller]
    fn check(root: &[u8], leaf: &[u8], expected: Result<(), CertificateReason>) {
        let root = CertificateDer::from_pem_slice(root).unwrap();
        let leaf = CertificateDer::from_pem_slice(leaf).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(root.clone()).unwrap();
        let name = ServerName::try_from("a.test").unwrap();
        let now = UnixTime::since_unix_epoch(NOW);
        let verifier = Verifier::new(roots).unwrap();
        let got = verifier.verify_server_cert(&leaf, &[root], &name, &[], now);
        let got = got.map(drop).map_err(|error| CertificateReason::of(&error));
        assert_eq!(got, expected.map_err(Some));
    }

    #[test]
    fn an_old_signature_or_a_small_key_is_called_weak() {
        let small_root = include_bytes!("testdata/small_issuer_root.pem");
        assert!(roots_from_pem(small_root, "corp-ca.pem").is_err());
        let by_small_root = include_bytes!("testdata/small_issuer_leaf.pem");
        check(small_root, by_small_root, Err(CertificateReason::Weak));
        check(
            include_bytes!("testdata/sha1_root.pem"),
            include_bytes!("testdata/sha1_leaf.pem"),
            Err(CertificateReason::Weak),
        );
        // A leaf's own key signs in the handshake only, and there it fails.
        let small_leaf = include_bytes!("testdata/small_leaf_leaf.pem");
        check(include_bytes!("testdata/small_leaf_root.pem"), small_leaf, Ok(()));
        let leaf = CertificateDer::from_pem_slice(small_leaf).unwrap();
        let failed = name_weakness(CertificateError::BadSignature.into(), std::iter::once(&leaf));
        assert_eq!(CertificateReason::of(&failed), Some(CertificateReason::Weak));
    }

    #[test]
    fn nothing_verifies_without_roots() {
        let verifier = Verifier::new(RootCertStore::empty()).unwrap();
        let leaf = CertificateDer::from_pem_slice(include_bytes!("testdata/sha1_leaf.pem")).unwrap();
        let name = ServerName::try_from("a.test").unwrap();
        let got = verifier.verify_server_cert(&leaf, &[], &name, &[], UnixTime::since_unix_epoch(NOW));
        assert_eq!(
            CertificateReason::of(&got.unwrap_err()),
            Some(CertificateReason::UnknownIssuer)
        );
    }
}

//! The certificate authority of a room, and the certificates that it signs, good ones and bad ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// What is wrong with a server's certificate, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// It ended in the past.
    Expired,
    /// It begins in the future.
    NotYetValid,
    /// It is for another name.
    WrongName,
    /// Nobody that is trusted signed it.
    UnknownIssuer,
}

/// The room's certificate authority.
#[derive(Debug)]
pub struct Pki {
    root: CertifiedIssuer<'static, KeyPair>,
    pem: PathBuf,
}

impl Pki {
    pub(crate) fn new(directory: &Path) -> Result<Self> {
        let root = authority("wallgate test root")?;
        let pem = directory.join("upstream-ca.pem");
        fs::write(&pem, root.pem()).context("cannot write the authority's certificate")?;
        Ok(Self { root, pem })
    }

    /// The authority's certificate, for `ca = "…"` of an `[[upstream]]`.
    #[must_use]
    pub fn certificate(&self) -> &Path {
        &self.pem
    }

    /// What a server of this name presents, speaking HTTP/2 and HTTP/1.1.
    ///
    /// # Errors
    ///
    /// When the certificate cannot be made.
    pub fn server(&self, host: &str, flaw: Flaw) -> Result<Arc<ServerConfig>> {
        self.server_with_alpn(host, flaw, &["h2", "http/1.1"])
    }

    /// The same, with these protocols.
    ///
    /// # Errors
    ///
    /// When the certificate cannot be made.
    pub fn server_with_alpn(&self, host: &str, flaw: Flaw, alpn: &[&str]) -> Result<Arc<ServerConfig>> {
        let named = if flaw == Flaw::WrongName {
            "another-name.test"
        } else {
            host
        };
        let mut leaf =
            CertificateParams::new(vec![named.to_owned()]).context("not a name for a certificate")?;
        leaf.distinguished_name.push(DnType::CommonName, named);
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        (leaf.not_before, leaf.not_after) = match flaw {
            Flaw::Expired => (date_time_ymd(2020, 1, 1), date_time_ymd(2020, 2, 1)),
            Flaw::NotYetValid => (date_time_ymd(2090, 1, 1), date_time_ymd(2090, 2, 1)),
            Flaw::None | Flaw::WrongName | Flaw::UnknownIssuer => {
                (date_time_ymd(2020, 1, 1), date_time_ymd(2089, 1, 1))
            }
        };
        let key = KeyPair::generate().context("no key")?;
        let certificate = if flaw == Flaw::UnknownIssuer {
            leaf.signed_by(&key, &*authority("nobody's root")?)
        } else {
            leaf.signed_by(&key, &*self.root)
        }
        .context("cannot sign")?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("no TLS versions")?
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            )
            .context("the certificate does not fit its key")?;
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(Arc::new(config))
    }
}

fn authority(name: &str) -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::new(Vec::new()).context("no parameters")?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().context("no key")?).context("cannot sign itself")
}

//! A throw-away certificate authority for the origin and for the bare limit's leaf.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The domain that every origin's name ends in.
pub(crate) const DOMAIN: &str = "bench.test";

/// The files that [`create`] wrote.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    /// The authority's certificate, PEM.
    pub(crate) authority: PathBuf,
    /// The leaf for `bench.test` and one label below it, PEM.
    pub(crate) leaf: PathBuf,
    /// Its key, PEM.
    pub(crate) key: PathBuf,
}

/// Makes an authority and one leaf in `folder`.
pub(crate) fn create(folder: &Path) -> Result<Files> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
        .distinguished_name
        .push(DnType::CommonName, "wallgate bench authority");
    let authority_key = KeyPair::generate()?;
    let authority = params.self_signed(&authority_key)?;
    let issuer = Issuer::new(params, authority_key);

    let leaf_key = KeyPair::generate()?;
    let names = vec![DOMAIN.to_owned(), format!("*.{DOMAIN}")];
    let leaf = CertificateParams::new(names)?.signed_by(&leaf_key, &issuer)?;

    let files = Files {
        authority: folder.join("authority.pem"),
        leaf: folder.join("leaf.pem"),
        key: folder.join("leaf.key"),
    };
    fs::write(&files.authority, authority.pem())?;
    fs::write(&files.leaf, leaf.pem())?;
    fs::write(&files.key, leaf_key.serialize_pem())?;
    Ok(files)
}

/// A client that trusts the authorities in `file` alone.
pub(crate) fn client(file: &Path, alpn: &[&str], resumption: bool) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).with_context(|| format!("{}", file.display()))? {
        roots.add(certificate?)?;
    }
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    if !resumption {
        config.resumption = rustls::client::Resumption::disabled();
    }
    Ok(config)
}

/// A server with this leaf.
pub(crate) fn server(leaf: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let chain = CertificateDer::pem_file_iter(leaf)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

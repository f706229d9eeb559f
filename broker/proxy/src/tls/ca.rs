//! The installation's root and each sandbox's intermediate.
//!
//! The root's key and certificate are one file, `root.pem`, of mode 0600 in a directory that nobody else may write, so
//! that the pair is replaced atomically and cannot fall apart. A sandbox trusts the root and nothing less, so a leaf
//! that was minted for one sandbox verifies in another one of the same installation only together with the other's
//! intermediate, whose key never leaves the broker's memory.
//!
//! ```text
//!  root.pem      what signs now            -----BEGIN PRIVATE KEY-----   PKCS#8, P-256
//!                                          -----BEGIN CERTIFICATE-----   self-signed, path length 1
//!  next.pem      what will sign next: made NEXT_BEFORE its predecessor ends, trusted from then on
//!  previous.pem  what signed before (certificate only): trusted until it ends
//! ```
//!
//! **Rotation with overlap.** `NEXT_BEFORE` the end of the root its successor is made and joins
//! [`Root::certificate_pem`]; `PROMOTE_BEFORE` the end it takes over. A sandbox that was attached in between trusts
//! both, so only one that lives longer than the time between the two, 90 days, across a restart of the broker sees a
//! certificate that it does not trust. Rotation happens when the root is loaded: at start.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, Issuer,
    KeyUsagePurpose, SerialNumber,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use thiserror::Error;
use time::OffsetDateTime;
use wallgate_types::clock::{Clock, Timestamp};
use wallgate_types::sandbox::SandboxId;
use zeroize::{Zeroize as _, Zeroizing};

use super::key::EcKey;
use super::key_file::{
    MAX_KEY_FILE_BYTES, Overwrite, exists, pem, prepare_directory, read_private, rename, write_atomically,
};
use crate::edge_limits::BACKDATING;

/// How long a root is valid.
const ROOT_LIFETIME: Duration = Duration::from_hours(43800);
/// How long before its end a root gets a successor.
const NEXT_BEFORE: Duration = Duration::from_hours(4320);
/// How long before its end a root is succeeded.
const PROMOTE_BEFORE: Duration = Duration::from_hours(2160);
/// How long an intermediate is valid: longer than any sandbox, shorter than the time in which its root still signs.
const INTERMEDIATE_LIFETIME: Duration = Duration::from_hours(2136);

const ROOT_FILE: &str = "root.pem";
const NEXT_FILE: &str = "next.pem";
const PREVIOUS_FILE: &str = "previous.pem";

/// Why there is no certificate authority.
#[derive(Debug, Error)]
pub enum CaError {
    /// A file or directory could not be read or written.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// A key file that others may read, or a directory that others may write.
    #[error("{path} has mode {mode:04o}; it must be {wanted}")]
    Permissions {
        /// The file or directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// What they must be.
        wanted: &'static str,
    },
    /// A key file or directory of somebody else.
    #[error("{path} belongs to user {owner}, not to this process's user {expected}")]
    Owner {
        /// The file or directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Whose it must be.
        expected: u32,
    },
    /// A link, a device or something too large where a key file should be.
    #[error("{path} is not a plain file of at most {MAX_KEY_FILE_BYTES} bytes")]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// A file that does not hold one P-256 key and its certificate.
    #[error("{path} does not hold one P-256 private key and its certificate: {what}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The clock is before the root's validity.
    #[error("{path} is not valid yet: is the clock right?")]
    NotYetValid {
        /// The file.
        path: PathBuf,
    },
    /// The library could not make or load a key.
    #[error("cannot make or load a P-256 key")]
    Key,
    /// The library could not make a certificate.
    #[error("cannot make a certificate")]
    Certificate(#[source] rcgen::Error),
    /// The library refused a key or certificate that we made.
    #[error("cannot use a certificate that was just made")]
    Tls(#[source] rustls::Error),
    /// A date that no certificate can carry.
    #[error("the clock shows a time that no certificate can carry")]
    Clock,
}

impl CaError {
    /// The stable reason code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "ca_io",
            Self::Permissions { .. } => "ca_permissions",
            Self::Owner { .. } => "ca_owner",
            Self::NotAFile { .. } => "ca_not_a_file",
            Self::Malformed { .. } => "ca_malformed",
            Self::NotYetValid { .. } => "ca_not_yet_valid",
            Self::Key => "ca_key",
            Self::Certificate(_) => "ca_certificate",
            Self::Tls(_) => "ca_tls",
            Self::Clock => "ca_clock",
        }
    }
}

/// One root: its key, its certificate and its end.
struct Authority {
    issuer: Issuer<'static, EcKey>,
    certificate: CertificateDer<'static>,
    not_before: Timestamp,
    not_after: Timestamp,
}

/// The installation's certificate authority.
pub struct Root {
    signing: Authority,
    trust_pem: String,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Root")
            .field("not_after", &self.signing.not_after)
            .finish_non_exhaustive()
    }
}

impl Root {
    /// Loads the root in `dir`, or makes both; rotates it when it is due.
    ///
    /// Whoever calls holds the state directory's lock. Two callers at once would still end with one root, since a file
    /// is only ever created whole and never overwritten by creation.
    ///
    /// # Errors
    /// [`CaError`]; a root that is readable by others is refused, not repaired, since it must be taken as known.
    pub fn load_or_create(dir: &Path, clock: &Arc<dyn Clock>) -> Result<Self, CaError> {
        prepare_directory(dir)?;
        let now = clock.now();
        let path = dir.join(ROOT_FILE);
        if !exists(&path)? {
            create(&path, &Authority::make(now)?, Overwrite::No)?;
        }
        let mut signing = read_authority(&path)?;
        if now < signing.not_before {
            return Err(CaError::NotYetValid { path });
        }
        let mut neighbours = Vec::new();
        if now.plus(NEXT_BEFORE) >= signing.not_after {
            let next_path = dir.join(NEXT_FILE);
            if !exists(&next_path)? {
                create(&next_path, &Authority::make(now)?, Overwrite::No)?;
            }
            let next = read_authority(&next_path)?;
            if now.plus(PROMOTE_BEFORE) >= signing.not_after {
                let previous = pem("CERTIFICATE", &signing.certificate);
                write_atomically(&dir.join(PREVIOUS_FILE), previous.as_bytes(), Overwrite::Yes)?;
                rename(&next_path, &path)?;
                signing = next;
            } else {
                neighbours.push(next.certificate);
            }
        }
        neighbours.extend(read_previous(&dir.join(PREVIOUS_FILE), now)?);
        let trust_pem = std::iter::once(&signing.certificate)
            .chain(&neighbours)
            .map(|certificate| pem("CERTIFICATE", certificate))
            .collect();
        Ok(Self {
            signing,
            trust_pem,
            clock: Arc::clone(clock),
        })
    }

    /// What a sandbox must trust, as PEM: the signing root and, while they overlap, its neighbours.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.trust_pem
    }

    /// SHA-256 of the signing root's public key (SubjectPublicKeyInfo), in hexadecimal.
    #[must_use]
    pub fn spki_sha256(&self) -> String {
        self.signing.issuer.key().spki_sha256()
    }

    /// An intermediate for this sandbox, with a key that exists nowhere else.
    ///
    /// It is limited to signing leaves (path length 0). It carries no name constraint, since the names that a sandbox
    /// may use are policy's to say and change while it lives.
    ///
    /// # Errors
    /// [`CaError`] when a key or certificate cannot be made.
    pub fn intermediate(&self, sandbox: &SandboxId) -> Result<SandboxCa, CaError> {
        let now = self.clock.now();
        let key = EcKey::generate()?;
        let spki_sha256 = key.spki_sha256();
        let not_after = now.plus(INTERMEDIATE_LIFETIME).min(self.signing.not_after);
        let mut params = authority_params(&format!("wallgate sandbox {sandbox}"), 0, now, not_after)?;
        params.use_authority_key_identifier_extension = true;
        let issuer =
            CertifiedIssuer::signed_by(params, key, &self.signing.issuer).map_err(CaError::Certificate)?;
        Ok(SandboxCa {
            issuer,
            spki_sha256,
            not_after,
        })
    }
}

/// A sandbox's own certificate authority. It lives in memory, as long as the sandbox.
pub struct SandboxCa {
    issuer: CertifiedIssuer<'static, EcKey>,
    spki_sha256: String,
    not_after: Timestamp,
}

impl std::fmt::Debug for SandboxCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxCa")
            .field("spki_sha256", &self.spki_sha256)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl SandboxCa {
    /// SHA-256 of its public key (SubjectPublicKeyInfo), in hexadecimal: what a record calls it by.
    #[must_use]
    pub fn spki_sha256(&self) -> &str {
        &self.spki_sha256
    }

    /// When it ends.
    #[must_use]
    pub const fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// Its certificate, which is sent with each leaf.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        self.issuer.der()
    }

    /// What signs leaves.
    pub(super) fn issuer(&self) -> &Issuer<'static, EcKey> {
        &self.issuer
    }
}

impl Authority {
    fn make(now: Timestamp) -> Result<Self, CaError> {
        let key = EcKey::generate()?;
        let not_after = now.plus(ROOT_LIFETIME);
        // The name is unique, since clients look roots up by name and two roots may be trusted at once.
        let tag = key.spki_sha256();
        let name = format!("wallgate root {}", tag.get(..16).unwrap_or(&tag));
        let params = authority_params(&name, 1, now, not_after)?;
        let certificate = params
            .self_signed(&key)
            .map_err(CaError::Certificate)?
            .der()
            .clone();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate,
            not_before: backdated(now),
            not_after,
        })
    }
}

fn authority_params(
    common_name: &str,
    path_length: u8,
    now: Timestamp,
    not_after: Timestamp,
) -> Result<CertificateParams, CaError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(common_name);
    params.not_before = date(backdated(now))?;
    params.not_after = date(not_after)?;
    params.serial_number = Some(random_serial()?);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(path_length));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// A distinguished name of one common name.
pub(super) fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

/// [`BACKDATING`] before `now`.
pub(super) fn backdated(now: Timestamp) -> Timestamp {
    let millis = u64::try_from(BACKDATING.as_millis()).unwrap_or(u64::MAX);
    Timestamp(now.0.saturating_sub(millis))
}

/// A time as certificates have it, in whole seconds.
pub(super) fn date(at: Timestamp) -> Result<OffsetDateTime, CaError> {
    let seconds = i64::try_from(at.as_secs()).or(Err(CaError::Clock))?;
    OffsetDateTime::from_unix_timestamp(seconds).or(Err(CaError::Clock))
}

/// 127 random bits, never zero (RFC 5280, section 4.1.2.2; CA/B Forum asks for 64).
pub(super) fn random_serial() -> Result<SerialNumber, CaError> {
    let mut bytes = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut bytes).or(Err(CaError::Key))?;
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn read_authority(path: &Path) -> Result<Authority, CaError> {
    let malformed = |what| CaError::Malformed {
        path: path.to_owned(),
        what,
    };
    let text = read_private(path)?;
    let mut document = PrivatePkcs8KeyDer::from_pem_slice(&text).or(Err(malformed("no private key")))?;
    let key = EcKey::from_pkcs8(document.secret_pkcs8_der());
    // The decoded document is the one copy that the library does not overwrite by itself.
    document.zeroize();
    let key = key.or(Err(malformed("the key is not P-256")))?;
    let certificate = CertificateDer::from_pem_slice(&text).or(Err(malformed("no certificate")))?;
    let (not_before, not_after) =
        validity_for(&certificate, &key).ok_or(malformed("the certificate is not of this key"))?;
    let issuer = Issuer::from_ca_cert_der(&certificate, key)
        .or(Err(malformed("the certificate is not a certificate authority's")))?;
    Ok(Authority {
        issuer,
        certificate,
        not_before,
        not_after,
    })
}

/// The validity of `certificate`, if it is a certificate authority's for exactly this key.
fn validity_for(certificate: &[u8], key: &EcKey) -> Option<(Timestamp, Timestamp)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let same_key =
        parsed.public_key().subject_public_key.data.as_ref() == rcgen::PublicKeyData::der_bytes(key);
    (same_key && parsed.is_ca()).then(|| validity(&parsed))
}

fn validity(certificate: &x509_parser::certificate::X509Certificate<'_>) -> (Timestamp, Timestamp) {
    let millis = |at: x509_parser::time::ASN1Time| {
        let seconds = u64::try_from(at.timestamp()).unwrap_or_default();
        Timestamp(seconds.saturating_mul(1000))
    };
    let validity = certificate.validity();
    (millis(validity.not_before), millis(validity.not_after))
}

/// The predecessor's certificate, while it is valid.
fn read_previous(path: &Path, now: Timestamp) -> Result<Option<CertificateDer<'static>>, CaError> {
    if !exists(path)? {
        return Ok(None);
    }
    let text = read_private(path)?;
    let malformed = |what| CaError::Malformed {
        path: path.to_owned(),
        what,
    };
    let der = CertificateDer::from_pem_slice(&text).or(Err(malformed("no certificate")))?;
    let not_after = {
        let (_, parsed) =
            x509_parser::parse_x509_certificate(&der).or(Err(malformed("the certificate is unreadable")))?;
        validity(&parsed).1
    };
    Ok((now < not_after).then_some(der))
}

fn create(path: &Path, authority: &Authority, overwrite: Overwrite) -> Result<(), CaError> {
    let document = authority.issuer.key().to_pkcs8()?;
    let mut text = Zeroizing::new(pem("PRIVATE KEY", document.as_ref()));
    text.push_str(&pem("CERTIFICATE", &authority.certificate));
    write_atomically(path, text.as_bytes(), overwrite)
}

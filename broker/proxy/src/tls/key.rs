//! Signing keys that never exist as bytes unless they are written to disk.

use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm, SigningKey};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest as _, Sha256};

use super::ca::CaError;

/// A P-256 key. The library holds it in one allocation of its own and overwrites that when it is freed.
pub(super) struct EcKey {
    pair: EcdsaKeyPair,
}

impl EcKey {
    /// A new random key.
    pub(super) fn generate() -> Result<Self, CaError> {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).or(Err(CaError::Key))?;
        Ok(Self { pair })
    }

    /// The key in this PKCS#8 document.
    pub(super) fn from_pkcs8(der: &[u8]) -> Result<Self, CaError> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der).or(Err(CaError::Key))?;
        Ok(Self { pair })
    }

    /// The key as a PKCS#8 document, which overwrites itself when it is dropped.
    pub(super) fn to_pkcs8(&self) -> Result<aws_lc_rs::pkcs8::Document, CaError> {
        self.pair.to_pkcs8v1().or(Err(CaError::Key))
    }

    /// The key as rustls signs handshakes with it.
    pub(super) fn for_handshakes(&self) -> Result<Arc<dyn rustls::sign::SigningKey>, CaError> {
        let document = self.to_pkcs8()?;
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(document.as_ref()));
        rustls::crypto::aws_lc_rs::sign::any_ecdsa_type(&der).or(Err(CaError::Key))
    }

    /// SHA-256 of the public key's SubjectPublicKeyInfo, in hexadecimal.
    pub(super) fn spki_sha256(&self) -> String {
        use std::fmt::Write as _;
        let digest = Sha256::digest(self.subject_public_key_info());
        digest.iter().fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

impl std::fmt::Debug for EcKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EcKey(..)")
    }
}

impl PublicKeyData for EcKey {
    fn der_bytes(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl SigningKey for EcKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.pair
            .sign(&SystemRandom::new(), message)
            .map(|signature| signature.as_ref().to_vec())
            .or(Err(rcgen::Error::RingUnspecified))
    }
}

//! TLS on both sides (DESIGN §6).
//!
//! ```text
//!  Root ──signs──▶ SandboxCa ──signs──▶ leaf of one exact name      (towards the sandbox)
//!  one per          one per sandbox,     Minter: cached, single flight, rate limited
//!  installation     key in memory only
//!
//!  UpstreamTrust ──▶ UpstreamTls ──▶ ClientConfig for one authority (towards upstream)
//!  host's roots and  one per sandbox:
//!  configured ones   its own sessions
//! ```
//!
//! Both sides speak TLS 1.2 and 1.3 and nothing older, by one cryptographic provider. rustls has no renegotiation, no
//! compression and, as configured here, no early data.

pub mod ca;
pub mod mint;
pub mod upstream;

mod key;
mod key_file;
mod ocsp;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// The one cryptographic provider.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// What is negotiated over TLS, in order of preference (RFC 7301).
pub(crate) const ALPN_H2: &[u8] = b"h2";
/// HTTP/1.1 by ALPN.
pub(crate) const ALPN_HTTP1: &[u8] = b"http/1.1";

/// A staple that says "revoked" or "good" of this serial number.
#[cfg(test)]
pub(crate) fn test_staple(serial: &[u8], revoked: bool) -> Vec<u8> {
    ocsp::tests::staple(&[(serial, if revoked { 0xa1 } else { 0x80 })])
}

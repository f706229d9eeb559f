//! The committed object, and what it was built from.

use sha2::{Digest, Sha256};

/// The programs, as `cargo xtask ebpf` built them.
pub(crate) static OBJECT: &[u8] = aya::include_bytes_aligned!("../wall.o");

/// The digests of the object, of its sources and of its toolchain, as JSON.
pub const MANIFEST: &str = include_str!("../wall.json");

/// SHA-256 of the object that is loaded, in hexadecimal.
#[must_use]
pub fn sha256() -> String {
    hex::encode(Sha256::digest(OBJECT))
}

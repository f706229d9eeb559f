//! The committed object, and what it was built from.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

/// The programs, as `cargo xtask ebpf` built them.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../wall.o");

/// The digests of the object, of its sources and of its toolchain, as JSON.
pub const MANIFEST: &str = include_str!("../wall.json");

/// What is loaded: the committed object. The tests of `cargo xtask ebpf --check` put another in its place, which the
/// current toolchain has built.
pub(crate) fn bytes() -> Cow<'static, [u8]> {
    #[cfg(feature = "test-support")]
    if let Some(other) = std::env::var_os("WALLGATE_WALL_OBJECT") {
        return Cow::Owned(std::fs::read(other).unwrap_or_default());
    }
    Cow::Borrowed(OBJECT)
}

/// SHA-256 of the object that is loaded, in hexadecimal.
#[must_use]
pub fn sha256() -> String {
    hex::encode(Sha256::digest(bytes()))
}

//! Bytes that are easy to make, hard to guess and the same each time, for bodies of any length.

use std::sync::OnceLock;

use bytes::Bytes;
use sha2::{Digest, Sha256};

/// The period of the bytes. Odd, so that no power-of-two buffer boundary ever sees the same bytes twice in a row.
const PERIOD: usize = 1_048_573;

fn block() -> &'static Bytes {
    static BLOCK: OnceLock<Bytes> = OnceLock::new();
    BLOCK.get_or_init(|| {
        let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut bytes = Vec::with_capacity(PERIOD + 8);
        while bytes.len() < PERIOD {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend_from_slice(&state.to_le_bytes());
        }
        bytes.truncate(PERIOD);
        Bytes::from(bytes)
    })
}

/// The first `length` bytes, in pieces.
pub fn pieces(length: u64) -> impl Iterator<Item = Bytes> + Send + 'static {
    let mut left = length;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let next = usize::try_from(left).unwrap_or(PERIOD).min(PERIOD);
        left -= next as u64;
        Some(block().slice(..next))
    })
}

/// The SHA-256 of the first `length` bytes, in hexadecimal.
#[must_use]
pub fn sha256(length: u64) -> String {
    let mut hash = Sha256::new();
    for piece in pieces(length) {
        hash.update(&piece);
    }
    hex::encode(hash.finalize())
}

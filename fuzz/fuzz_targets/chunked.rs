//! The chunked body reader says the same wherever the bytes are cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wallgate_proxy::limits::Limits;
use wallgate_proxy::parse::chunked::Chunked;

/// How many bytes are accepted and where that leads, or `None` when they are refused.
fn read(pieces: &[&[u8]], limits: &Limits) -> Option<(usize, Chunked)> {
    let mut state = Chunked::Size;
    let (mut waiting, mut accepted) = (Vec::new(), 0);
    for piece in pieces {
        waiting.extend_from_slice(piece);
        loop {
            let (used, next) = state.advance(&waiting, limits).ok()?;
            state = next;
            accepted += used;
            waiting.drain(..used);
            if used == 0 {
                break;
            }
        }
    }
    Some((accepted, state))
}

fuzz_target!(|input: (u8, &[u8])| {
    let limits = Limits::default();
    let (cut, bytes) = input;
    let (first, second) = bytes.split_at(usize::from(cut).min(bytes.len()));
    assert_eq!(read(&[bytes], &limits), read(&[first, second], &limits));
});

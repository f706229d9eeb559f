//! However a text is cut, the scrubber says the same of it: same length, no secret left, and nothing else changed.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use wallgate_proxy::scrub::Scrubber;
use wallgate_types::secret::Secret;

const SECRETS: [&str; 3] = ["tok-0123456789abcdef", "a%25\\u0041&amp;z", "AAAAAAAAAAAA"];

static SCRUBBER: LazyLock<Scrubber> = LazyLock::new(|| {
    let secrets: Vec<_> = SECRETS.iter().map(|secret| Secret::new(secret.as_bytes().to_vec())).collect();
    Scrubber::for_secrets(&secrets).expect("a few secrets can be searched for")
});

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (cuts, text) = input;
    let (masked, count) = SCRUBBER.scrub_whole(&text);
    assert_eq!(masked.len(), text.len());
    for secret in SECRETS {
        assert!(!masked.windows(secret.len()).any(|window| window == secret.as_bytes()));
    }
    if count == 0 {
        assert_eq!(masked, text);
    }
    let mut pieces = Vec::new();
    let mut rest = text.as_slice();
    for cut in cuts {
        let (piece, after) = rest.split_at(usize::from(cut).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    assert_eq!(SCRUBBER.scrub_pieces(&pieces), (masked, count));
});

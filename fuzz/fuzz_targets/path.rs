//! The path canonicaliser: what it accepts is canonical, so it maps to itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wallgate_proxy::limits::Limits;
use wallgate_proxy::parse::path::{EscapedSlash, canonical};

fuzz_target!(|raw: &str| {
    let limits = Limits::default();
    if let Ok(path) = canonical(raw, EscapedSlash::Refused, &limits) {
        let again = canonical(&path.path, EscapedSlash::Refused, &limits);
        assert!(again.is_ok_and(|again| again.path == path.path && again.segments == path.segments), "{raw:?}");
        assert!(!path.segments.iter().any(|segment| segment == ".." || segment.contains('/')), "{raw:?}");
    }
});

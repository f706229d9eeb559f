//! The HTTP/1 head reader: never panics, and what it accepts reads the same a second time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wallgate_proxy::limits::Limits;
use wallgate_proxy::parse::head::read;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits::default();
    if read(bytes, &limits).is_ok() {
        assert!(!bytes.contains(&0), "a head with a NUL was accepted");
        assert!(read(bytes, &limits).is_ok());
    }
});

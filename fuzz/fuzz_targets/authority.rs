//! Whatever the name parser accepts is canonical, and parses to itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wallgate_types::authority::{Authority, Host};

fuzz_target!(|text: &str| {
    if let Ok(authority) = Authority::parse(text, 443) {
        let canonical = authority.to_string();
        assert_eq!(Authority::parse(&canonical, 1), Ok(authority));
        assert!(canonical.is_ascii());
    }
    if let Ok(host) = Host::parse_unicode(text) {
        assert_eq!(Host::parse(&host.to_string()), Ok(host));
    }
});

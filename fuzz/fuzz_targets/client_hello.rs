//! A ClientHello reads the same however much of it is there, and what is asked for is never already there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wallgate_proxy::client_hello::{Progress, read};

fuzz_target!(|wire: &[u8]| {
    let whole = read(wire);
    for end in [wire.len() / 2, wire.len().saturating_sub(1)] {
        match read(&wire[..end]) {
            // What is wrong in a prefix is wrong in the whole.
            Err(error) => assert_eq!(whole, Err(error)),
            Ok(Progress::Complete(hello)) => {
                assert!(matches!(&whole, Ok(Progress::Complete(same)) if *same == hello) || whole.is_err())
            }
            Ok(Progress::NeedMore { at_least }) => {
                assert!(at_least >= 1);
                if let Ok(Progress::Complete(_)) = whole {
                    assert!(end + at_least <= wire.len());
                }
            }
        }
    }
});

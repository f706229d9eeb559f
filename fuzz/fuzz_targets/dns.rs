//! Every message is answered or dropped by rule: an answer is one, is short, and is for the query that was asked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wallgate_proxy::dns::fuzz_read;

fuzz_target!(|message: &[u8]| {
    if let Some(answer) = fuzz_read(message) {
        assert!(answer.len() >= 12 && answer.len() <= 1232);
        assert_eq!(answer[..2], message[..2], "the id is echoed");
        assert!(answer[2] & 0x80 != 0, "an answer says that it is one");
        assert!(message[2] & 0x80 == 0, "an answer is never answered");
    }
});

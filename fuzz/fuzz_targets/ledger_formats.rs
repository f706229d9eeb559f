//! Every format of the ledger that somebody else may have written: records, notes, checkpoints, proofs, and stored text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wallgate_ledger::checkpoint::Checkpoint;
use wallgate_ledger::display::inert;
use wallgate_ledger::note::{SignerKey, VerifierKey};
use wallgate_ledger::proof::TlogProof;
use wallgate_ledger::record::Envelope;

fuzz_target!(|data: &[u8]| {
    if let Ok(record) = Envelope::parse(data) {
        // What is accepted has one spelling.
        assert!(serde_canonical(data), "{record:?}");
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    assert!(!inert(text).chars().any(char::is_control));
    if let Ok(checkpoint) = Checkpoint::parse_text(text) {
        assert_eq!(checkpoint.text(), text);
    }
    let _ = Checkpoint::unverified(text);
    if let Ok(proof) = TlogProof::parse(text) {
        assert_eq!(TlogProof::parse(&proof.encode()), Ok(proof));
    }
    if let Ok(key) = VerifierKey::parse(text) {
        let again = VerifierKey::parse(&key.to_string());
        assert_eq!(again, Ok(key.clone()));
        assert!(Checkpoint::open(text, &key).is_err());
    }
    let _ = SignerKey::parse(text);
});

/// No white space outside strings could have been accepted: the bytes begin and end as an envelope does.
fn serde_canonical(data: &[u8]) -> bool {
    data.starts_with(b"{\"body\":") && data.ends_with(b",\"v\":1}")
}

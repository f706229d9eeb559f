//! P10: records that prove. Any record is proven in, and the whole log untampered, offline.
//!
//! The ledger's own tests flip every byte (`broker/ledger/tests/tamper.rs`) and have Go's packages verify what is written
//! (`broker/ledger/tests/oracle.rs`); this is the auditor's path through the public API.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests stop where they stand")]

use std::sync::Arc;

use serde_json::json;
use wallgate_ledger::note::VerifierKey;
use wallgate_ledger::proof::TlogProof;
use wallgate_ledger::{
    ControlEvent, Ledger, LedgerOptions, Reader, VerifyOptions, export, verify, verify_tiles,
};
use wallgate_types::clock::SystemClock;

#[test]
fn an_auditor_proves_a_record_with_nothing_but_a_key_and_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let options = LedgerOptions {
        origin: Some("log.corp.example/wall-1".into()),
        ..LedgerOptions::default()
    };
    let ledger = Ledger::open(directory.path(), options, Arc::new(SystemClock::new())).unwrap();
    let mut places = Vec::new();
    for n in 0..300 {
        let event = ControlEvent {
            kind: "attach",
            sandbox: Some("agent-7".parse().unwrap()),
            detail: json!({ "n": n }),
        };
        places.push(ledger.control_blocking(event).unwrap());
    }
    let held = ledger.close().unwrap();
    assert!(held.starts_with("log.corp.example/wall-1\n303\n"), "{held}");

    let reader = Reader::open(directory.path()).unwrap();
    let key = VerifierKey::parse(&reader.vkey().unwrap()).unwrap();
    for index in [places.first(), places.get(150), places.last()]
        .into_iter()
        .flatten()
    {
        let file = reader.prove(*index).unwrap();
        let record = reader.get(*index).unwrap().unwrap().json;
        let proof = TlogProof::parse(&file).unwrap();
        assert_eq!(proof.check(record.as_bytes(), &key).unwrap().size, 303);
        let altered = record.replace("agent-7", "agent-8");
        assert!(proof.check(altered.as_bytes(), &key).is_err());
    }

    let with = VerifyOptions {
        checkpoint: Some(held),
        vkey: Some(key.to_string()),
    };
    assert_eq!(verify(directory.path(), &with).unwrap().first_bad, None);
    let out = tempfile::tempdir().unwrap();
    export::tiles(&reader, out.path()).unwrap();
    assert_eq!(verify_tiles(out.path(), &with).unwrap().first_bad, None);
}

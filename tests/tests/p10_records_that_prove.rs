//! P10: records that prove. Any record is proven in, and the whole log untampered, offline.
//!
//! The ledger's own tests flip every byte (`broker/ledger/tests/tamper.rs`) and have Go's packages verify what is written
//! (`broker/ledger/tests/oracle.rs`); this is the auditor's path through the public API.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests stop where they stand")]

use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use serde_json::json;
use wallgate_ledger::note::VerifierKey;
use wallgate_ledger::proof::TlogProof;
use wallgate_ledger::{
    ControlEvent, Ledger, LedgerOptions, Reader, VerifyOptions, export, verify, verify_tiles,
};
use wallgate_tests::process::succeed;
use wallgate_tests::room::room;
use wallgate_tests::wallgate::binary;
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

/// A02, through the command line: what a real run recorded verifies, and no longer does once a byte of it is flipped.
#[test]
fn a_real_runs_ledger_verifies_until_somebody_touches_it() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wall = room
            .wallgate()?
            .upstream(&origin)
            .allow_below("api.corp.test", &["/open/"]);
        let script = "curl --silent --output /dev/null 'https://api.corp.test/open/[1-5]'; \
                      curl --silent --output /dev/null https://api.corp.test/closed";
        wall.sh(script)?.succeeded()?;
        let verify = |arguments: &[&str]| -> anyhow::Result<(Option<i32>, String)> {
            let output = Command::new(binary()?)
                .args(["ledger", "verify", "--state"])
                .arg(wall.state_directory())
                .args(arguments)
                .output()?;
            let said = [output.stdout, output.stderr].concat();
            Ok((output.status.code(), String::from_utf8_lossy(&said).into_owned()))
        };
        let (code, said) = verify(&[])?;
        ensure!(code == Some(0), "{said}");

        // A second run goes on where the first ended.
        wall.sh(script)?.succeeded()?;
        let records = wall.records()?;
        ensure!(
            records.requests_to("api.corp.test").len() == 12,
            "{}",
            records.summary()
        );
        let query = |arguments: &[&str]| {
            let state = wall.state_directory().display().to_string();
            succeed(
                Command::new(binary()?)
                    .args(["ledger", "query", "--json", "--state", &state])
                    .args(arguments),
            )
        };
        ensure!(query(&["--verdict", "deny"])?.lines().count() == 2);
        ensure!(
            query(&[
                "--host",
                "api.corp.test",
                "--verdict",
                "allow",
                "--rule",
                "host.listed"
            ])?
            .lines()
            .count()
                >= 10
        );
        ensure!(query(&["--sandbox", "somebody-else"])?.is_empty());
        ensure!(verify(&[])?.0 == Some(0));

        // Some bytes, all over the stored records.
        let segment = std::fs::read_dir(wall.state_directory().join("ledger/journal"))?
            .next()
            .context("no journal")??
            .path();
        let whole = std::fs::read(&segment)?;
        let length = whole
            .iter()
            .rposition(|byte| *byte != 0)
            .context("an empty journal")?;
        for place in (1..20).map(|part| length * part / 20) {
            let mut touched = whole.clone();
            touched[place] ^= 0x01;
            std::fs::write(&segment, &touched)?;
            let (code, said) = verify(&[])?;
            ensure!(
                code != Some(0),
                "a flipped byte at {place} of {length} verifies: {said}"
            );
            ensure!(!said.is_empty(), "it does not say where");
        }
        std::fs::write(&segment, &whole[..length / 2])?;
        let (code, said) = verify(&[])?;
        ensure!(code != Some(0), "a cut ledger verifies: {said}");
        std::fs::write(&segment, &whole)?;
        ensure!(
            verify(&[])?.0 == Some(0),
            "it does not verify any more after it was restored"
        );
        Ok(())
    });
}

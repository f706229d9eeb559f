//! P5: a process that is killed at any moment loses nothing that it acknowledged.
//!
//! The test runs itself as the child: the child records, and prints each index once it is acknowledged; it is killed with
//! SIGKILL after a number of lines that differs in each round; then the ledger is opened again.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::items_after_statements,
    clippy::too_many_lines,
    clippy::naive_bytecount,
    reason = "tests stop where they stand"
)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;

use support::{asked, open, outcome, request_hex, wait};
use wallgate_ledger::{Ledger, LedgerOptions, Reader, VerifyOptions, verify};
use wallgate_types::clock::SystemClock;

const CHILD: &str = "WALLGATE_LEDGER_CRASH_CHILD";
const ROUNDS: u64 = 20;

/// Not a test of its own: what the child does.
#[test]
fn child() {
    let Ok(directory) = std::env::var(CHILD) else {
        return;
    };
    let first: u128 = std::env::var("WALLGATE_LEDGER_CRASH_FIRST")
        .unwrap()
        .parse()
        .unwrap();
    let ledger = Ledger::open(
        directory.as_ref(),
        LedgerOptions {
            checkpoint_records: 16,
            ..LedgerOptions::default()
        },
        Arc::new(SystemClock::new()),
    )
    .unwrap();
    wait(async {
        for n in (first..).step_by(8) {
            let (left, right) = (n, n + 4);
            let record = async |n: u128| {
                let recorded = ledger.record(asked(n)).await.unwrap();
                let mut out = std::io::stdout().lock();
                writeln!(out, "acknowledged {n} {}", recorded.index().0).unwrap();
                out.flush().unwrap();
                if n.is_multiple_of(3) {
                    ledger.outcome(outcome(n));
                }
            };
            futures_util::future::join(
                async {
                    for n in left..left + 4 {
                        record(n).await;
                    }
                },
                async {
                    for n in right..right + 4 {
                        record(n).await;
                    }
                },
            )
            .await;
        }
    });
}

#[test]
fn a_killed_process_loses_nothing_that_it_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged: Vec<(u128, u64)> = Vec::new();
    for round in 0..ROUNDS {
        let first = u128::from(round) * 1_000_000;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, directory.path())
            .env("WALLGATE_LEDGER_CRASH_FIRST", first.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = 0;
        let wanted = round * 7 % 41;
        while seen < wanted {
            let line = lines.next().unwrap().unwrap();
            seen += u64::from(note(&line, &mut acknowledged));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it had said before it died counts as well.
        for line in lines.map_while(Result::ok) {
            note(&line, &mut acknowledged);
        }
        let ledger = open(directory.path());
        ledger.close().unwrap();
        let report = verify(directory.path(), &VerifyOptions::default()).unwrap();
        assert_eq!(report.first_bad, None, "round {round}");
    }
    assert!(acknowledged.len() > 100);
    let reader = Reader::open(directory.path()).unwrap();
    for (n, index) in acknowledged {
        let hit = reader.by_request(&request_hex(n)).unwrap().unwrap();
        assert_eq!(hit.record.index.0, index);
        assert!(hit.outcome.is_some(), "request {n} has no outcome");
    }
}

fn note(line: &str, acknowledged: &mut Vec<(u128, u64)>) -> bool {
    // The test harness prints its own name before the first line.
    let Some((_, rest)) = line.split_once("acknowledged ") else {
        return false;
    };
    let Some((n, index)) = rest.split_once(' ') else {
        return false;
    };
    match (n.parse(), index.parse()) {
        (Ok(n), Ok(index)) => {
            acknowledged.push((n, index));
            true
        }
        _ => false,
    }
}

/// A decision that was recorded, and then the process died: nobody knows what became of it, and the ledger says so.
#[test]
fn an_orphan_gets_an_unknown_outcome_at_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let copy = tempfile::tempdir().unwrap();
    let ledger = open(directory.path());
    let _recorded = wait(ledger.record(asked(1))).unwrap();
    let _recorded = wait(ledger.record(asked(2))).unwrap();
    ledger.outcome(outcome(2));
    wait(ledger.checkpoint()).unwrap();
    support::copy(directory.path(), copy.path());
    ledger.close().unwrap();
    // The index may have been copied while it was written; it is derived, and goes.
    std::fs::remove_file(copy.path().join("index.redb")).unwrap();
    let again = open(copy.path());
    assert_eq!(again.recovered().orphans, 1);
    again.close().unwrap();
    let reader = Reader::open(copy.path()).unwrap();
    let unknown = reader
        .by_request(&request_hex(1))
        .unwrap()
        .unwrap()
        .outcome
        .unwrap();
    assert!(
        unknown.json.contains("\"result\":\"unknown_crash\""),
        "{}",
        unknown.json
    );
    let known = reader
        .by_request(&request_hex(2))
        .unwrap()
        .unwrap()
        .outcome
        .unwrap();
    assert!(known.json.contains("\"result\":\"completed\""));
    assert_eq!(
        verify(copy.path(), &VerifyOptions::default()).unwrap().first_bad,
        None
    );
    assert_eq!(open(copy.path()).recovered().orphans, 0);
}

//! The ledger as its users see it: recording, finding, following, starting and stopping.
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

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use support::{NOW_MS, asked, clock, filled, open, open_with, outcome, request_hex, wait};
use wallgate_ledger::{
    ControlEvent, Filter, Hit, Kind, LeafIndex, Ledger, LedgerOptions, OpenError, Reader, VerifyOptions,
    export, verify, verify_tiles,
};
use wallgate_types::clock::{Clock, ManualClock, Timestamp};
use wallgate_types::request::RequestId;

fn bodies(hits: &[Hit]) -> Vec<Value> {
    hits.iter()
        .map(|hit| serde_json::from_str::<Value>(&hit.record.json).unwrap()["body"].clone())
        .collect()
}

#[test]
fn what_was_recorded_is_found_again_with_its_outcome() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 40);
    let reader = Reader::open(directory.path()).unwrap();
    // created, start, 40 pairs, stop
    assert_eq!(reader.size(), 83);
    let hit = reader.by_request(&request_hex(7)).unwrap().unwrap();
    let record: Value = serde_json::from_str(&hit.record.json).unwrap();
    assert_eq!(record["body"]["path"], "/item/7");
    assert_eq!(record["seq"], hit.record.index.0);
    let outcome: Value = serde_json::from_str(&hit.outcome.unwrap().json).unwrap();
    assert_eq!(outcome["body"]["status"], 200);
    assert_eq!(outcome["body"]["request_id"], request_hex(7));
    assert!(reader.by_request(&request_hex(40)).unwrap().is_none());
    assert!(reader.by_request("nonsense").is_err());
    let report = verify(directory.path(), &VerifyOptions::default()).unwrap();
    assert_eq!(report.first_bad, None);
    assert_eq!((report.records, report.signed_records), (83, 83));
    assert!(report.index_checked && !report.live);
}

#[test]
fn every_filter_narrows() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 40);
    let reader = Reader::open(directory.path()).unwrap();
    let all = Filter::default();
    let decisions = Filter {
        kind: Some(Kind::Decision),
        ..Filter::default()
    };
    let text = |value: &str| Some(value.to_owned());
    let rows = [
        (all.clone(), 83),
        (decisions.clone(), 40),
        (
            Filter {
                sandbox: text("agent-1"),
                ..decisions.clone()
            },
            13,
        ),
        (
            Filter {
                sandbox: text("agent-1"),
                ..all.clone()
            },
            26,
        ),
        (
            Filter {
                host: text("host-2.test"),
                ..all.clone()
            },
            8,
        ),
        (
            Filter {
                verdict: text("deny"),
                ..all.clone()
            },
            6,
        ),
        (
            Filter {
                rule: text("rule.1"),
                ..all.clone()
            },
            20,
        ),
        (
            Filter {
                credential: text("npm-read"),
                ..all.clone()
            },
            10,
        ),
        (
            Filter {
                request_id: Some(request_hex(3)),
                ..all.clone()
            },
            2,
        ),
        (
            Filter {
                kind: Some(Kind::Control),
                ..all.clone()
            },
            3,
        ),
        (
            Filter {
                from: Some(Timestamp(NOW_MS + 1)),
                ..all.clone()
            },
            0,
        ),
        (
            Filter {
                until: Some(Timestamp(NOW_MS)),
                ..all.clone()
            },
            0,
        ),
        (
            Filter {
                limit: Some(5),
                ..all.clone()
            },
            5,
        ),
    ];
    for (filter, expected) in rows {
        assert_eq!(reader.query(&filter).unwrap().len(), expected, "{filter:?}");
        let since = reader.since(LeafIndex(0), &filter).unwrap();
        assert_eq!(since.len(), expected, "{filter:?}");
    }
    let newest = Filter {
        limit: Some(2),
        ..decisions.clone()
    };
    let paths: Vec<_> = bodies(&reader.query(&newest).unwrap())
        .iter()
        .map(|body| body["path"].clone())
        .collect();
    assert_eq!(paths, ["/item/38", "/item/39"]);
    let oldest = bodies(&reader.since(LeafIndex(0), &newest).unwrap());
    assert_eq!(oldest[0]["path"], "/item/0");
}

#[test]
fn times_are_searched_by_halving_even_when_the_clock_went_back() {
    let directory = tempfile::tempdir().unwrap();
    let time = clock();
    let ledger = open_with(directory.path(), Arc::<ManualClock>::clone(&time));
    wait(async {
        for n in 0..1000 {
            time.advance(Duration::from_millis(10));
            let _recorded = ledger.record(asked(n)).await.unwrap();
        }
    });
    ledger.close().unwrap();
    let earlier = Arc::new(ManualClock::at(NOW_MS - 86_400_000));
    let ledger = open_with(directory.path(), earlier);
    let _recorded = wait(ledger.record(asked(1000))).unwrap();
    ledger.close().unwrap();
    let reader = Reader::open(directory.path()).unwrap();
    let between = |from, until| Filter {
        from: Some(Timestamp(from)),
        until: Some(Timestamp(until)),
        kind: Some(Kind::Decision),
        ..Filter::default()
    };
    let hits = reader.query(&between(NOW_MS + 5000, NOW_MS + 6000)).unwrap();
    assert_eq!(hits.len(), 100);
    let hits = reader.query(&between(0, NOW_MS - 1)).unwrap();
    assert_eq!(bodies(&hits)[0]["path"], "/item/1000");
    let start = Filter {
        kind: Some(Kind::Control),
        limit: Some(2),
        ..Filter::default()
    };
    let start = bodies(&reader.query(&start).unwrap());
    assert_eq!(start[0]["event"], "start");
    assert_eq!(start[0]["detail"]["clock_back"]["to_ms"], NOW_MS - 86_400_000);
    assert!(
        verify(directory.path(), &VerifyOptions::default())
            .unwrap()
            .is_good()
    );
}

#[derive(Debug)]
struct Jumps(std::sync::atomic::AtomicU64);

impl Clock for Jumps {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(std::sync::atomic::Ordering::SeqCst))
    }
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

/// A06: the wall clock is set back a day in the middle of a run; the order of records does not depend on it.
#[test]
fn a_step_back_of_the_clock_is_recorded_and_changes_no_order() {
    let directory = tempfile::tempdir().unwrap();
    let time = Arc::new(Jumps(NOW_MS.into()));
    let ledger = open_with(directory.path(), Arc::<Jumps>::clone(&time));
    let before = wait(ledger.record(asked(0))).unwrap();
    time.0
        .store(NOW_MS - 86_400_000, std::sync::atomic::Ordering::SeqCst);
    let after = wait(ledger.record(asked(1))).unwrap();
    assert_eq!(after.index().0, before.index().0 + 2);
    ledger.close().unwrap();
    let reader = Reader::open(directory.path()).unwrap();
    let noted = reader.get(LeafIndex(before.index().0 + 1)).unwrap().unwrap();
    assert!(noted.json.contains("\"event\":\"clock_back\""), "{}", noted.json);
    assert!(
        verify(directory.path(), &VerifyOptions::default())
            .unwrap()
            .is_good()
    );
}

#[test]
fn a_live_ledger_is_read_followed_and_verified() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path());
    let mut reader = Reader::open(directory.path()).unwrap();
    let size = reader.size();
    for n in 0..20 {
        let recorded = wait(ledger.record(asked(n))).unwrap();
        assert_eq!(reader.refresh().unwrap(), recorded.index().0 + 1);
        let hits = reader.since(recorded.index(), &Filter::default()).unwrap();
        assert_eq!(hits.len(), 1);
        assert!(
            reader
                .by_request(&request_hex(n))
                .unwrap()
                .unwrap()
                .outcome
                .is_none()
        );
    }
    assert_eq!(reader.size(), size + 20);
    let note = wait(ledger.checkpoint()).unwrap();
    let report = verify(
        directory.path(),
        &VerifyOptions {
            checkpoint: Some(note),
            vkey: None,
        },
    )
    .unwrap();
    assert_eq!(report.first_bad, None);
    assert!(report.live);
    ledger.close().unwrap();
}

#[test]
fn a_start_and_a_stop_name_the_head_before_them() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 1);
    filled(directory.path(), 0);
    let reader = Reader::open(directory.path()).unwrap();
    let control = Filter {
        kind: Some(Kind::Control),
        ..Filter::default()
    };
    let events = bodies(&reader.query(&control).unwrap());
    let names: Vec<_> = events
        .iter()
        .map(|body| body["event"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["ledger_created", "start", "stop", "start", "stop"]);
    assert_eq!(events[3]["detail"]["previous"]["size"], 5);
    assert_eq!(
        events[3]["detail"]["recovered"],
        json!({"cut": null, "orphans": 0})
    );
}

#[test]
fn a_second_wallgate_is_told_that_the_ledger_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path());
    let second = Ledger::open(directory.path(), LedgerOptions::default(), clock());
    let error = second.err().unwrap();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("already in use by another wallgate"));
    ledger.close().unwrap();
    open(directory.path()).close().unwrap();
}

#[test]
fn a_ledger_of_another_version_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 1);
    let path = directory.path().join("format.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"version\":1", "\"version\":2")).unwrap();
    let error = Ledger::open(directory.path(), LedgerOptions::default(), clock())
        .err()
        .unwrap();
    assert_eq!(error.code(), "ledger_other_version");
    assert!(error.to_string().contains("another version"), "{error}");
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 1);
    let path = directory.path().join("signing.key");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    for mode in [0o640, 0o604, 0o620, 0o602] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = Ledger::open(directory.path(), LedgerOptions::default(), clock())
            .err()
            .unwrap();
        assert_eq!(error.code(), "ledger_key", "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    let error = Ledger::open(directory.path(), LedgerOptions::default(), clock())
        .err()
        .unwrap();
    assert!(error.to_string().contains("is missing"), "{error}");
}

#[test]
fn a_key_never_shows_in_debug_or_in_the_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path());
    let key = std::fs::read_to_string(directory.path().join("signing.key")).unwrap();
    let secret = key.rsplit('+').next().unwrap().to_owned();
    assert!(!format!("{ledger:?}").contains(&secret));
    ledger.close().unwrap();
    for file in [
        "format.json",
        "checkpoint",
        "index.redb",
        "journal/00000000000000000000.seg",
    ] {
        let bytes = std::fs::read(directory.path().join(file)).unwrap();
        assert!(
            !bytes
                .windows(secret.len())
                .any(|window| window == secret.as_bytes()),
            "{file}"
        );
    }
}

/// A06: the key changes in the middle; the old one signs the change, and nothing after it.
#[test]
fn a_rotation_is_signed_by_the_old_key_and_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path());
    let old = std::fs::read_to_string(directory.path().join("signing.key")).unwrap();
    let _recorded = wait(ledger.record(asked(0))).unwrap();
    wait(ledger.rotate_key()).unwrap();
    let _recorded = wait(ledger.record(asked(1))).unwrap();
    wait(ledger.rotate_key()).unwrap();
    ledger.close().unwrap();
    let new = std::fs::read_to_string(directory.path().join("signing.key")).unwrap();
    assert_ne!(old, new);
    assert!(!directory.path().join("signing.key.next").exists());
    let report = verify(directory.path(), &VerifyOptions::default()).unwrap();
    assert_eq!(report.first_bad, None);
    let vkey = VerifyOptions {
        vkey: Some(report.vkey.clone()),
        checkpoint: None,
    };
    assert!(verify(directory.path(), &vkey).unwrap().is_good());
    // A key that was put back does not open the ledger.
    std::fs::write(directory.path().join("signing.key"), old).unwrap();
    let error = Ledger::open(directory.path(), LedgerOptions::default(), clock())
        .err()
        .unwrap();
    assert!(error.to_string().contains("is not the key"), "{error}");
}

#[test]
fn a_checkpoint_is_signed_after_so_many_records_and_after_so_long() {
    let directory = tempfile::tempdir().unwrap();
    let time = clock();
    let options = LedgerOptions {
        checkpoint_records: 10,
        ..LedgerOptions::default()
    };
    let ledger = Ledger::open(directory.path(), options, Arc::<ManualClock>::clone(&time)).unwrap();
    let signed = || Reader::open(directory.path()).unwrap().signed_size().unwrap();
    assert_eq!(signed(), 2);
    for n in 0..9 {
        let _recorded = wait(ledger.record(asked(n))).unwrap();
    }
    assert_eq!(signed(), 2);
    let _recorded = wait(ledger.record(asked(9))).unwrap();
    assert_eq!(signed(), 12);
    time.advance(Duration::from_secs(2));
    let _recorded = wait(ledger.record(asked(10))).unwrap();
    assert_eq!(signed(), 13);
    ledger.close().unwrap();
}

#[test]
fn after_closing_nothing_is_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path());
    let other = ledger.clone();
    ledger.close().unwrap();
    assert_eq!(
        wait(other.record(asked(0))).err().unwrap().code(),
        "ledger_closed"
    );
    other.outcome(outcome(0));
}

#[test]
fn control_events_are_recorded_whole() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path());
    let event = ControlEvent {
        kind: "attach",
        sandbox: Some("agent-7".parse().unwrap()),
        detail: json!({"bytes": u64::MAX, "interface": "tap0"}),
    };
    let index = ledger.control_blocking(event).unwrap();
    ledger.close().unwrap();
    let stored = Reader::open(directory.path())
        .unwrap()
        .get(index)
        .unwrap()
        .unwrap();
    let body = &serde_json::from_str::<Value>(&stored.json).unwrap()["body"];
    assert_eq!(
        *body,
        json!({"detail": {"bytes": "18446744073709551615", "interface": "tap0"}, "event": "attach", "sandbox": "agent-7"})
    );
}

/// A01: whatever a sandbox says is one record, comes back byte for byte, and cannot act on a terminal.
#[test]
fn hostile_text_is_one_record_and_reads_back() {
    let long = format!("/{}", "a".repeat(65_536));
    let rows = [
        "\r\n{\"action\":\"allow\"}",
        "\u{1b}[2J\u{9b}31m",
        "\u{202e}gpj.exe\u{2066}",
        "a\0b",
        "\",\"verdict\":\"allow\",\"x\":\"",
        "\\ud800 \\u0000",
        "\u{fffd}\u{feff}\u{2028}\u{2029}",
        long.as_str(),
    ];
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path());
    let mut places = Vec::new();
    for (n, text) in rows.iter().enumerate() {
        let mut hostile = asked(n as u128);
        hostile.record.path = (*text).to_owned();
        hostile.record.sni = Some((*text).to_owned());
        hostile.record.request_id = RequestId(n as u128);
        let before = places.last().map_or(1, |index: &LeafIndex| index.0);
        let recorded = wait(ledger.record(hostile)).unwrap();
        assert_eq!(recorded.index().0, before + 1, "one record for {text:?}");
        places.push(recorded.index());
    }
    ledger.close().unwrap();
    let reader = Reader::open(directory.path()).unwrap();
    for (index, text) in places.iter().zip(rows) {
        let stored = reader.get(*index).unwrap().unwrap();
        assert!(!stored.json.contains('\n') && stored.json.len() <= 65_535);
        let body = &serde_json::from_str::<Value>(&stored.json).unwrap()["body"];
        if text.len() < 60_000 {
            assert_eq!(body["path"], *text);
        } else {
            assert_eq!(body["path"]["bytes"], text.len());
        }
        assert_ne!(body["verdict"], "injected");
        let shown = wallgate_ledger::display::inert(&stored.json);
        assert!(
            !shown
                .chars()
                .any(|c| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c))
        );
    }
    let mut lines = Vec::new();
    let written = export::ndjson(&reader, &Filter::default(), &mut lines).unwrap();
    assert_eq!(
        lines.iter().filter(|byte| **byte == b'\n').count() as u64,
        written
    );
    assert!(
        verify(directory.path(), &VerifyOptions::default())
            .unwrap()
            .is_good()
    );
}

#[test]
fn an_export_verifies_by_itself_and_a_changed_one_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let note = filled(directory.path(), 300);
    let out = tempfile::tempdir().unwrap();
    let reader = Reader::open(directory.path()).unwrap();
    export::tiles(&reader, out.path()).unwrap();
    let options = VerifyOptions {
        checkpoint: Some(note),
        vkey: Some(reader.vkey().unwrap()),
    };
    let report = verify_tiles(out.path(), &options).unwrap();
    assert_eq!(report.first_bad, None);
    assert_eq!(report.records, reader.size());
    for file in ["tile/entries/001", "tile/0/001", "tile/1/000.p/2", "checkpoint"] {
        let path = out.path().join(file);
        let bytes = std::fs::read(&path).unwrap();
        let mut changed = bytes.clone();
        changed[bytes.len() / 2] ^= 1;
        std::fs::write(&path, changed).unwrap();
        let bad = verify_tiles(out.path(), &options).unwrap().first_bad;
        assert!(bad.is_some(), "{file}");
        std::fs::write(&path, bytes).unwrap();
    }
    assert!(verify_tiles(out.path(), &options).unwrap().is_good());
}

#[test]
fn a_deleted_index_is_made_anew_from_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 600);
    std::fs::remove_file(directory.path().join("index.redb")).unwrap();
    let report = verify(directory.path(), &VerifyOptions::default()).unwrap();
    assert_eq!(report.first_bad.unwrap().code, "index_missing");
    assert!(
        Reader::open(directory.path())
            .unwrap()
            .by_request(&request_hex(5))
            .unwrap()
            .is_some()
    );
    open(directory.path()).close().unwrap();
    let report = verify(directory.path(), &VerifyOptions::default()).unwrap();
    assert_eq!(report.first_bad, None);
    assert!(report.index_checked);
}

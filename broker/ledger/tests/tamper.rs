//! A02: whatever is done to the store, verification fails and names the first bad place.
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

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use redb::{ReadableDatabase, ReadableTable, TableDefinition};
use support::{asked, copy, filled, open, outcome, wait};
use wallgate_ledger::{Place, Reader, VerifyOptions, verify};

const SEGMENT: &str = "journal/00000000000000000000.seg";
const HEADER: usize = 64;
const FRAME: usize = 32;

fn bad(directory: &Path) -> Option<Place> {
    verify(directory, &VerifyOptions::default()).unwrap().first_bad
}

/// The frames of a segment: (offset, length with header, is a record).
fn frames(segment: &[u8]) -> Vec<(usize, usize, bool)> {
    let mut frames = Vec::new();
    let mut at = HEADER;
    while at < segment.len() {
        let length = u32::from_le_bytes(segment[at + 8..at + 12].try_into().unwrap()) as usize + FRAME;
        frames.push((at, length, segment[at + 12] == 1));
        at += length;
    }
    frames
}

/// Writes frames anew, with checks that fit: what somebody does who knows the format.
fn rewrite(path: &Path, change: impl FnOnce(&mut Vec<(bool, u64, Vec<u8>)>)) {
    use sha2::{Digest, Sha256};
    let segment = std::fs::read(path).unwrap();
    let mut content: Vec<_> = frames(&segment)
        .into_iter()
        .map(|(at, length, record)| {
            let index = u64::from_le_bytes(segment[at + 16..at + 24].try_into().unwrap());
            (record, index, segment[at + FRAME..at + length].to_vec())
        })
        .collect();
    change(&mut content);
    let mut out = segment[..HEADER].to_vec();
    for (record, index, payload) in content {
        let position = out.len() as u64;
        let mut frame = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
        frame.extend([if record { 1 } else { 2 }, 0, 0, 0]);
        frame.extend(index.to_le_bytes());
        frame.extend(position.to_le_bytes());
        frame.extend(&payload);
        let check = Sha256::new()
            .chain_update(&segment[32..48])
            .chain_update(position.to_le_bytes())
            .chain_update(&frame)
            .finalize();
        out.extend(&check[..8]);
        out.extend(frame);
    }
    std::fs::write(path, out).unwrap();
}

struct Flipped {
    path: PathBuf,
    at: u64,
    was: u8,
}

impl Flipped {
    fn new(path: PathBuf, at: u64, bit: u8) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ bit], at).unwrap();
        Self {
            path,
            at,
            was: byte[0],
        }
    }
}

impl Drop for Flipped {
    fn drop(&mut self) {
        let file = OpenOptions::new().write(true).open(&self.path).unwrap();
        file.write_all_at(&[self.was], self.at).unwrap();
    }
}

/// Every byte of the journal, the checkpoint file and the format file.
#[test]
fn every_flipped_byte_outside_the_index_is_found_and_its_record_named() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 3);
    assert_eq!(bad(directory.path()), None);
    let segment = std::fs::read(directory.path().join(SEGMENT)).unwrap();
    let frames = frames(&segment);
    for file in [SEGMENT, "checkpoint", "format.json"] {
        let path = directory.path().join(file);
        let length = std::fs::metadata(&path).unwrap().len();
        for at in 0..length {
            let bit = 1 << (at % 8);
            let flipped = Flipped::new(path.clone(), at, bit);
            let place = bad(directory.path());
            let place = place.unwrap_or_else(|| panic!("{file}: byte {at} flipped, and nothing found"));
            drop(flipped);
            if file != SEGMENT || at < HEADER as u64 {
                continue;
            }
            let records_before = frames
                .iter()
                .filter(|(offset, length, record)| *record && (*offset + *length) as u64 <= at)
                .count() as u64;
            assert_eq!(place.index, records_before, "byte {at}: {place:?}");
        }
    }
    assert_eq!(bad(directory.path()), None);
}

/// Somebody who knows the format makes the checks fit; the index and the tree still name the record.
#[test]
fn a_forged_frame_is_named_by_the_record() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 6);
    type Content = Vec<(bool, u64, Vec<u8>)>;
    type Change = fn(&mut Content);
    fn record(content: &Content, index: u64) -> usize {
        content
            .iter()
            .position(|(record, at, _)| *record && *at == index)
            .unwrap()
    }
    let rows: [(&str, u64, Change); 6] = [
        ("altered", 5, |content| {
            let at = record(content, 5);
            let text = String::from_utf8(content[at].2.clone()).unwrap();
            content[at].2 = text.replace("item", "itex").replace("200", "201").into_bytes();
        }),
        ("dropped", 5, |content| {
            let at = record(content, 5);
            content.remove(at);
        }),
        ("swapped", 5, |content| {
            let at = record(content, 5);
            content.swap(at, at + 1);
        }),
        ("doubled", 6, |content| {
            let at = record(content, 5);
            let twice = content[at].clone();
            content.insert(at + 1, twice);
        }),
        ("tail cut", 9, |content| {
            let at = record(content, 9);
            content.truncate(at);
        }),
        ("not json", 4, |content| {
            let at = record(content, 4);
            content[at].2.truncate(20);
        }),
    ];
    for (what, index, change) in rows {
        let forged = tempfile::tempdir().unwrap();
        copy(directory.path(), forged.path());
        rewrite(&forged.path().join(SEGMENT), change);
        let place = bad(forged.path()).unwrap_or_else(|| panic!("{what}: nothing found"));
        assert_eq!(place.index, index, "{what}: {place:?}");
        // And with everything local that knows better taken away, the signature does.
        std::fs::remove_file(forged.path().join("index.redb")).unwrap();
        assert!(bad(forged.path()).is_some(), "{what}");
        let opened = wallgate_ledger::Ledger::open(
            forged.path(),
            wallgate_ledger::LedgerOptions::default(),
            support::clock(),
        );
        assert!(opened.is_err(), "{what}: opened");
    }
}

/// Each row of each table of the index, changed, removed or added by way of redb itself.
#[test]
fn every_changed_row_of_the_index_is_found() {
    const LEAVES: TableDefinition<u64, &[u8; 61]> = TableDefinition::new("leaves");
    const NODES: TableDefinition<(u8, u64), &[u8; 32]> = TableDefinition::new("nodes");
    const REQUESTS: TableDefinition<&[u8; 16], (u64, u64)> = TableDefinition::new("requests");
    const CHECKPOINTS: TableDefinition<u64, (u64, u32)> = TableDefinition::new("checkpoints");
    const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 150);
    let path = directory.path().join("index.redb");
    let whole = std::fs::read(&path).unwrap();
    let tamper = |change: &dyn Fn(&redb::WriteTransaction)| {
        let database = redb::Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        change(&transaction);
        transaction.commit().unwrap();
        drop(database);
        let place = bad(directory.path());
        std::fs::write(&path, &whole).unwrap();
        place
    };
    for index in [0, 5, 302_u64] {
        for byte in (0..61).step_by(3).chain([12]) {
            let place = tamper(&|transaction| {
                let mut table = transaction.open_table(LEAVES).unwrap();
                let mut row = *table.get(index).unwrap().unwrap().value();
                row[byte] ^= 1;
                table.insert(index, &row).unwrap();
            });
            assert_eq!(
                place.map(|place| place.index),
                Some(index),
                "row {index} byte {byte}"
            );
        }
        let place = tamper(&|transaction| {
            transaction.open_table(LEAVES).unwrap().remove(index).unwrap();
        });
        assert_eq!(place.map(|place| place.index), Some(index));
    }
    let place = tamper(&|transaction| {
        transaction
            .open_table(NODES)
            .unwrap()
            .insert((8, 0), &[0; 32])
            .unwrap();
    });
    assert_eq!(place.unwrap().code, "index_node");
    let place = tamper(&|transaction| {
        transaction
            .open_table(NODES)
            .unwrap()
            .insert((16, 0), &[0; 32])
            .unwrap();
    });
    assert_eq!(place.unwrap().code, "index_row");
    for swap in [(0, 1), (1, 0)] {
        let place = tamper(&|transaction| {
            let mut table = transaction.open_table(REQUESTS).unwrap();
            let (key, places) = {
                let first = table.first().unwrap().unwrap();
                (*first.0.value(), first.1.value())
            };
            table
                .insert(&key, (places.0 + swap.0, places.1 + swap.1))
                .unwrap();
        });
        assert_eq!(place.unwrap().code, "index_request");
    }
    let place = tamper(&|transaction| {
        transaction
            .open_table(REQUESTS)
            .unwrap()
            .insert(&[1; 16], (3, 4))
            .unwrap();
    });
    assert_eq!(place.unwrap().code, "index_request");
    let place = tamper(&|transaction| {
        let mut table = transaction.open_table(CHECKPOINTS).unwrap();
        let size = table.last().unwrap().unwrap().0.value();
        table.remove(size).unwrap();
    });
    assert_eq!(place.unwrap().code, "index_checkpoint");
    let state = {
        let database = redb::Database::open(&path).unwrap();
        let table = database.begin_read().unwrap().open_table(META).unwrap();
        let bytes = table.get("state").unwrap().unwrap().value().to_vec();
        drop(database);
        std::fs::write(&path, &whole).unwrap();
        bytes
    };
    for at in (0..state.len()).step_by(9) {
        let mut changed = state.clone();
        changed[at] ^= 1;
        let place = tamper(&|transaction| {
            transaction
                .open_table(META)
                .unwrap()
                .insert("state", changed.as_slice())
                .unwrap();
        });
        assert!(place.is_some(), "state byte {at}");
    }
    assert_eq!(bad(directory.path()), None);
}

/// The index's file, byte by byte (a dense sample): a flip is found, or it lies where redb reads nothing for any row,
/// and then every query still answers as before.
#[test]
fn a_flipped_byte_of_the_index_file_is_found_or_changes_no_answer() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 3);
    let path = directory.path().join("index.redb");
    let length = std::fs::metadata(&path).unwrap().len();
    let answers = |directory: &Path| {
        let reader = Reader::open(directory).ok()?;
        let all = reader.query(&wallgate_ledger::Filter::default()).ok()?;
        let request = reader.by_request(&support::request_hex(1)).ok()??;
        Some((all, request))
    };
    let expected = answers(directory.path()).unwrap();
    let mut found = 0_u32;
    for at in (0..length).step_by(61) {
        let flipped = Flipped::new(path.clone(), at, 1 << (at % 8));
        if bad(directory.path()).is_some() {
            found += 1;
        } else {
            assert_eq!(answers(directory.path()).as_ref(), Some(&expected), "byte {at}");
        }
        drop(flipped);
    }
    assert!(found > 20, "{found} flips found");
}

/// An old copy put in its place, whole, is flawless by itself. Only a checkpoint that somebody kept shows it.
#[test]
fn a_rollback_and_a_fork_are_shown_by_a_checkpoint_from_outside() {
    let directory = tempfile::tempdir().unwrap();
    let early = filled(directory.path(), 3);
    let snapshot = tempfile::tempdir().unwrap();
    copy(directory.path(), snapshot.path());
    let late = filled(directory.path(), 2);
    let with = |note: &str| VerifyOptions {
        checkpoint: Some(note.to_owned()),
        vkey: None,
    };
    assert!(verify(directory.path(), &with(&early)).unwrap().is_good());
    assert!(verify(directory.path(), &with(&late)).unwrap().is_good());
    let rolled_back = verify(snapshot.path(), &with(&late)).unwrap().first_bad.unwrap();
    assert_eq!(rolled_back.code, "external_rollback");
    // A second broker went on from the same snapshot.
    filled(snapshot.path(), 5);
    assert_eq!(bad(snapshot.path()), None);
    let forked = verify(snapshot.path(), &with(&late)).unwrap().first_bad.unwrap();
    assert_eq!(forked.code, "external_fork");
    let stranger = tempfile::tempdir().unwrap();
    let other = filled(stranger.path(), 3);
    assert!(!verify(directory.path(), &with(&other)).unwrap().is_good());
    assert!(verify(directory.path(), &with("nonsense")).is_err());
}

/// The store was put back, but the checkpoint file was not: opening refuses, and so does the reverse order of neglect.
#[test]
fn a_ledger_behind_its_checkpoint_file_does_not_open() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 3);
    let old = tempfile::tempdir().unwrap();
    copy(directory.path(), old.path());
    filled(directory.path(), 2);
    for file in [SEGMENT, "index.redb"] {
        std::fs::copy(old.path().join(file), directory.path().join(file)).unwrap();
    }
    let error = wallgate_ledger::Ledger::open(
        directory.path(),
        wallgate_ledger::LedgerOptions::default(),
        support::clock(),
    )
    .err()
    .unwrap();
    assert_eq!(error.code(), "ledger_rollback", "{error}");
    assert_eq!(bad(directory.path()).unwrap().code, "truncated");
}

/// A06: a checkpoint that the retired key signs after the rotation.
#[test]
fn a_retired_key_signs_nothing_that_counts() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path());
    let old = std::fs::read_to_string(directory.path().join("signing.key")).unwrap();
    wait(async {
        let _recorded = ledger.record(asked(0)).await.unwrap();
        ledger.outcome(outcome(0));
        ledger.rotate_key().await.unwrap();
    });
    ledger.close().unwrap();
    let key = wallgate_ledger::note::SignerKey::parse(&old).unwrap();
    rewrite(&directory.path().join(SEGMENT), |content| {
        let (_, _, note) = content.iter_mut().rfind(|(record, _, _)| !record).unwrap();
        let text = String::from_utf8(note.clone()).unwrap();
        let body = wallgate_ledger::note::unverified_text(&text).unwrap();
        *note = key.sign(body).into_bytes();
    });
    let place = bad(directory.path()).unwrap();
    assert_eq!(place.code, "key_outside_epoch", "{place:?}");
}

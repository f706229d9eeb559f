//! What a durable record costs, beside what the disk itself costs, in one run.
//!
//! ```text
//! cargo run --release -p wallgate-ledger --example durable [DIRECTORY]
//! ```
//!
//! Prints, for one record at a time and for 64 in flight: append + fdatasync of the same bytes, the ledger, their ratio and
//! the gate; and a redb two-phase commit, which is why the records are not in redb. Exits with 1 when a gate is missed.
#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measuring tool: it reads the clock, and stops where it stands"
)]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wallgate_ledger::{Ledger, LedgerOptions};
use wallgate_types::clock::SystemClock;
use wallgate_types::record::{DecisionRecord, Recordable};
use wallgate_types::request::RequestId;
use wallgate_types::ruling::Verdict;
use wallgate_types::sandbox::IdentitySource;

const ROUNDS: u32 = 5;
const SINGLE: u32 = 400;
const FLIGHT: u32 = 64;
const BATCHES: u32 = 100;
/// About what a stored record has.
const RECORD_BYTES: usize = 800;

struct Asked(u128);

impl Recordable for Asked {
    fn decision_record(&self) -> DecisionRecord {
        DecisionRecord {
            request_id: RequestId(scatter(self.0)),
            sandbox: "agent-7".parse().unwrap(),
            source: IdentitySource::Tap,
            protocol: "http",
            method: "GET".into(),
            scheme: "https",
            host: "registry.corp.example".into(),
            port: 443,
            path: format!("/left-pad/-/left-pad-{}.tgz", self.0),
            query_sha256: None,
            sni: Some("registry.corp.example".into()),
            original_dst: Some("198.18.0.1:443".into()),
            operation: "npm.tarball",
            action: "read",
            package: Some("left-pad".into()),
            version: Some("1.3.0".into()),
            service: Some("npm".into()),
            verdict: Verdict::Allow,
            rule: "npm.read".into(),
            reason: "packages may be read".into(),
            credentials: vec!["npm-read".into()],
            bundle: "00".repeat(32),
        }
    }
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}

fn append(file: &mut File, records: u32) {
    for _ in 0..records {
        file.write_all(&[b'r'; RECORD_BYTES]).unwrap();
    }
    file.sync_data().unwrap();
}

const RECORDS: redb::TableDefinition<u64, &[u8]> = redb::TableDefinition::new("records");
const HASHES: redb::TableDefinition<u64, &[u8; 32]> = redb::TableDefinition::new("hashes");
const REQUESTS: redb::TableDefinition<u128, u64> = redb::TableDefinition::new("requests");

/// Request ids are random.
fn scatter(n: u128) -> u128 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

/// What the ledger would do without a journal: record, hash and request in one transaction.
fn redb_commit(database: &redb::Database, next: &mut u64, records: u32) {
    let mut transaction = database.begin_write().unwrap();
    transaction.set_two_phase_commit(true);
    {
        let mut records_table = transaction.open_table(RECORDS).unwrap();
        let mut hashes = transaction.open_table(HASHES).unwrap();
        let mut requests = transaction.open_table(REQUESTS).unwrap();
        for _ in 0..records {
            records_table
                .insert(*next, [b'r'; RECORD_BYTES].as_slice())
                .unwrap();
            hashes.insert(*next, &[7; 32]).unwrap();
            requests.insert(scatter(u128::from(*next)), *next).unwrap();
            *next += 1;
        }
    }
    transaction.commit().unwrap();
}

fn timed(samples: &mut Vec<Duration>, step: impl FnOnce()) {
    let before = Instant::now();
    step();
    samples.push(before.elapsed());
}

#[derive(Default)]
struct Samples {
    append: Vec<Duration>,
    ledger: Vec<Duration>,
    redb: Vec<Duration>,
}

fn main() -> ExitCode {
    let directory = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = tempfile::tempdir_in(directory).unwrap();
    let good = measure(directory.path());
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn measure(directory: &Path) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join("append"))
        .unwrap();
    let database = redb::Database::create(directory.join("plain.redb")).unwrap();
    let mut next = 0;
    let ledger = Ledger::open(
        &directory.join("ledger"),
        LedgerOptions::default(),
        Arc::new(SystemClock::new()),
    )
    .unwrap();
    let mut request = 0;
    let (mut single, mut flight) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        for _ in 0..SINGLE {
            timed(&mut single.append, || append(&mut file, 1));
            request += 1;
            timed(&mut single.ledger, || {
                drop(runtime.block_on(ledger.record(Asked(request))).unwrap());
            });
        }
        for _ in 0..SINGLE / 4 {
            timed(&mut single.redb, || redb_commit(&database, &mut next, 1));
        }
        // 64 in flight: what one batch after another takes, for equally many records.
        timed(&mut flight.append, || {
            for _ in 0..BATCHES {
                append(&mut file, FLIGHT);
            }
        });
        timed(&mut flight.ledger, || {
            runtime.block_on(async {
                let mut tasks = Vec::new();
                for lane in 0..FLIGHT {
                    let ledger = &ledger;
                    let first = request + u128::from(lane * BATCHES);
                    tasks.push(async move {
                        for n in 1..=BATCHES {
                            drop(ledger.record(Asked(first + u128::from(n))).await.unwrap());
                        }
                    });
                }
                futures_util::future::join_all(tasks).await;
            });
        });
        request += u128::from(FLIGHT * BATCHES);
        timed(&mut flight.redb, || {
            for _ in 0..BATCHES / 10 {
                redb_commit(&database, &mut next, FLIGHT);
            }
        });
    }
    ledger.close().unwrap();
    report(single, flight)
}

fn report(single: Samples, flight: Samples) -> bool {
    let millis = |duration: Duration| duration.as_secs_f64() * 1000.0;
    let (append, ledger, redb) = (median(single.append), median(single.ledger), median(single.redb));
    let ratio = ledger.as_secs_f64() / append.as_secs_f64();
    println!(
        "one at a time, p50 ms:   append+fdatasync {:.3}   ledger {:.3}   redb two-phase {:.3}",
        millis(append),
        millis(ledger),
        millis(redb)
    );
    println!("  ledger / append {ratio:.2}   (gate 2.00, aim 1.20)");
    let records = f64::from(FLIGHT * BATCHES);
    let rate = |samples: Vec<Duration>, records: f64| records / median(samples).as_secs_f64();
    let (append, ledger, redb) = (
        rate(flight.append, records),
        rate(flight.ledger, records),
        rate(flight.redb, records / 10.0),
    );
    let share = ledger / append;
    println!(
        "64 in flight, records/s: append+fdatasync {append:.0}   ledger {ledger:.0}   redb two-phase {redb:.0}"
    );
    println!("  ledger / append {share:.2}   (gate 0.40, aim 0.80)");
    ratio <= 2.0 && share >= 0.4
}

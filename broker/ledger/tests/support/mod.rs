//! What the ledger's tests share: decisions to record, and a ledger to record them in.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::Path;
use std::sync::Arc;

use wallgate_ledger::{Ledger, LedgerOptions};
use wallgate_types::clock::{Clock, ManualClock};
use wallgate_types::record::{DecisionRecord, OutcomeRecord, OutcomeResult, Recordable};
use wallgate_types::request::RequestId;
use wallgate_types::ruling::Verdict;
use wallgate_types::sandbox::IdentitySource;

/// 2026-01-01, to the millisecond.
pub(crate) const NOW_MS: u64 = 1_767_225_600_000;

pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(NOW_MS))
}

pub(crate) fn open(directory: &Path) -> Ledger {
    open_with(directory, clock())
}

pub(crate) fn open_with(directory: &Path, clock: Arc<dyn Clock>) -> Ledger {
    Ledger::open(directory, LedgerOptions::default(), clock).unwrap()
}

/// A decision about request `n`.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) record: DecisionRecord,
}

impl Recordable for Asked {
    fn decision_record(&self) -> DecisionRecord {
        self.record.clone()
    }
}

pub(crate) fn asked(n: u128) -> Asked {
    Asked {
        record: DecisionRecord {
            request_id: RequestId(spread(n)),
            sandbox: format!("agent-{}", n % 3).parse().unwrap(),
            source: IdentitySource::Tap,
            protocol: "http",
            method: "GET".into(),
            scheme: "https",
            host: format!("host-{}.test", n % 5),
            port: 443,
            path: format!("/item/{n}"),
            query_sha256: None,
            sni: Some("host.test".into()),
            original_dst: Some("198.18.0.1:443".into()),
            operation: "npm.tarball",
            action: "read",
            package: Some("left-pad".into()),
            version: Some("1.3.0".into()),
            service: None,
            verdict: if n.is_multiple_of(7) {
                Verdict::Deny
            } else {
                Verdict::Allow
            },
            rule: format!("rule.{}", n % 2),
            reason: "the package is on the list".into(),
            credentials: if n.is_multiple_of(4) {
                vec!["npm-read".into()]
            } else {
                Vec::new()
            },
            bundle: "00".repeat(32),
        },
    }
}

/// Request ids are random; these are as scattered, and the same each time.
pub(crate) fn spread(n: u128) -> u128 {
    (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

pub(crate) fn request_hex(n: u128) -> String {
    RequestId(spread(n)).to_string()
}

pub(crate) fn outcome(n: u128) -> OutcomeRecord {
    OutcomeRecord {
        request_id: RequestId(spread(n)),
        sandbox: format!("agent-{}", n % 3).parse().unwrap(),
        result: OutcomeResult::Completed,
        error: None,
        status: Some(200),
        dialled: Some("203.0.113.7:443".into()),
        request_bytes: 0,
        response_bytes: 1234,
        duration_us: 4321,
        credentials: Vec::new(),
        scrubbed: 0,
    }
}

/// Runs one future to its end.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

/// A closed ledger with `count` decisions and their outcomes.
pub(crate) fn filled(directory: &Path, count: u128) -> String {
    let ledger = open(directory);
    wait(async {
        for n in 0..count {
            let _recorded = ledger.record(asked(n)).await.unwrap();
            ledger.outcome(outcome(n));
        }
    });
    ledger.close().unwrap()
}

/// A copy of a ledger's files.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

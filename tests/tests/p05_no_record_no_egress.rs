//! P5: no record, no egress. The ledger's half: `Recorded`, without which nothing is sent, exists only for what is on disk.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests stop where they stand")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::ensure;
use wallgate_ledger::{Ledger, LedgerOptions, Reader, VerifyOptions, verify};
use wallgate_tests::process::succeed;
use wallgate_tests::room::room;
use wallgate_tests::upstream::Upstream;
use wallgate_tests::upstream::origin::Origin;
use wallgate_tests::wallgate::PATIENCE;
use wallgate_types::clock::SystemClock;
use wallgate_types::record::{DecisionRecord, Recordable};
use wallgate_types::request::RequestId;
use wallgate_types::ruling::Verdict;
use wallgate_types::sandbox::IdentitySource;

struct Asked(u128);

impl Recordable for Asked {
    fn decision_record(&self) -> DecisionRecord {
        DecisionRecord {
            request_id: RequestId(self.0),
            sandbox: "agent-7".parse().unwrap(),
            source: IdentitySource::Tap,
            protocol: "http",
            method: "GET".into(),
            scheme: "https",
            host: "registry.test".into(),
            port: 443,
            path: format!("/{}", "x".repeat(2000)),
            query_sha256: None,
            sni: None,
            original_dst: None,
            operation: "unknown",
            action: "unknown",
            package: None,
            version: None,
            service: None,
            verdict: Verdict::Allow,
            rule: "test".into(),
            reason: "test".into(),
            credentials: Vec::new(),
            bundle: String::new(),
        }
    }
}

fn open(directory: &Path) -> Ledger {
    Ledger::open(directory, LedgerOptions::default(), Arc::new(SystemClock::new())).unwrap()
}

/// The stored bytes are readable by anybody, in full, at the moment that a record is acknowledged.
#[tokio::test]
async fn an_acknowledged_decision_is_in_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = open(directory.path());
    for n in 1..20 {
        let recorded = ledger.record(Asked(n)).await.unwrap();
        let reader = Reader::open(directory.path()).unwrap();
        let hit = reader.by_request(&RequestId(n).to_string()).unwrap().unwrap();
        assert_eq!(hit.record.index, recorded.index());
    }
}

const CHILD: &str = "WALLGATE_P05_CHILD";

/// What the child of the next test does: records until the disk is full, and goes on asking.
#[tokio::test]
async fn full_disk_child() {
    let Ok(directory) = std::env::var(CHILD) else {
        return;
    };
    let ledger = open(directory.as_ref());
    let mut out = std::io::stdout();
    let mut refused = 0;
    for n in 1..10_000 {
        match ledger.record(Asked(n)).await {
            Ok(recorded) => {
                assert_eq!(refused, 0, "acknowledged after a failure");
                writeln!(out, "acknowledged {n} {}", recorded.index().0).unwrap();
            }
            Err(error) => {
                assert_eq!(error.code(), "ledger_failed");
                refused += 1;
            }
        }
        if refused == 10 {
            break;
        }
    }
    assert!(ledger.failure().is_some());
    assert!(ledger.close().is_err());
    writeln!(out, "refused {refused}").unwrap();
}

/// A03: files may not grow beyond some size, which the system says as it would say that the disk is full.
#[test]
fn a_full_disk_refuses_everything_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 4000; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["full_disk_child", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("refused 10"),
        "{said}{complained}"
    );
    let ledger = open(directory.path());
    ledger.close().unwrap();
    assert_eq!(
        verify(directory.path(), &VerifyOptions::default())
            .unwrap()
            .first_bad,
        None
    );
    let reader = Reader::open(directory.path()).unwrap();
    let mut acknowledged = 0;
    for line in said.lines().filter_map(|line| line.split_once("acknowledged ")) {
        let (n, index) = line.1.split_once(' ').unwrap();
        let request = RequestId(n.parse().unwrap()).to_string();
        let hit = reader.by_request(&request).unwrap().unwrap();
        assert_eq!(hit.record.index.0.to_string(), index);
        assert!(hit.outcome.is_some(), "request {n} has no outcome");
        acknowledged += 1;
    }
    assert!(acknowledged > 100, "{acknowledged}");
}

/// A03, end to end: the disk under the state directory fills while a sandbox works. Until then every request has its
/// record; from then on the sandbox gets 503, and nothing more reaches the origin.
#[test]
fn a_full_disk_ends_egress() {
    room(|room| {
        let service = Origin::default();
        let events = service.events();
        let origin = Upstream::https(room, "api.corp.test", service)?;
        let state = room.new_directory("small-disk")?;
        succeed(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs"])
                .arg(&state),
        )?;
        let wall = room
            .wallgate()?
            .upstream(&origin)
            .allow("api.corp.test")
            .state(state.join("state"));
        let running = wall.start(&[
            "sh",
            "-c",
            "curl --silent --fail --output /dev/null https://api.corp.test/hold
             curl --silent --output /dev/null --write-out '%{http_code}\\n' 'https://api.corp.test/n/[1-4000]'",
        ])?;
        origin
            .journal
            .wait_for(PATIENCE, |request| request.path == "/hold")?;
        // The rest of the disk goes to somebody else.
        let filled = Command::new("dd")
            .args(["if=/dev/zero", "bs=4k", "status=none"])
            .arg(format!("of={}", state.join("filler").display()))
            .stderr(Stdio::null())
            .status()?;
        ensure!(!filled.success(), "the disk is not full");
        events.release();
        let run = running.finish()?;
        let served = run.stdout.lines().filter(|line| *line == "200").count();
        let refused = run.stdout.lines().filter(|line| *line == "503").count();
        ensure!(
            served + refused == 4000 && refused > 0,
            "{served} served, {refused} refused: {}",
            run.stderr
        );
        ensure!(
            run.stdout.lines().skip(served).all(|line| line == "503"),
            "served after it had been refused"
        );
        std::fs::remove_file(state.join("filler"))?;
        // The next run takes up what the disk held.
        wall.sh("true")?.succeeded()?;
        let records = run.records()?;
        let recorded = records
            .requests_to("api.corp.test")
            .iter()
            .filter(|kept| kept.text("verdict") == "allow")
            .count();
        let received = origin.journal.requests().len();
        ensure!(received == served + 1, "{received} received, {served} served");
        ensure!(received <= recorded, "{received} received, {recorded} recorded");
        Ok(())
    });
}

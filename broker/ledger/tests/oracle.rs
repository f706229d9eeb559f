//! P10: programs that we did not write verify what we wrote: Go's `x/mod/sumdb` packages `note` and `tlog`.
//!
//! Needs Debian's golang-go and golang-golang-x-mod-dev; where they are missing, the test says SKIPPED.
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

use std::path::Path;
use std::process::Command;

use support::filled;
use wallgate_ledger::{LeafIndex, Reader};

const GO_PATH: &str = "/usr/share/gocode";

#[test]
fn go_verifies_checkpoints_inclusion_and_consistency() {
    let package = Path::new(GO_PATH).join("src/golang.org/x/mod/sumdb/tlog");
    let go = Command::new("go").arg("version").output();
    if !package.is_dir() || !go.is_ok_and(|output| output.status.success()) {
        eprintln!(
            "SKIPPED go_verifies_checkpoints_inclusion_and_consistency: no go, or no golang.org/x/mod in {GO_PATH}"
        );
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let work = tempfile::tempdir().unwrap();
    let early = filled(directory.path(), 20);
    let late = filled(directory.path(), 270);
    let reader = Reader::open(directory.path()).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(work.path().join(name), bytes).unwrap();
    write("vkey", reader.vkey().unwrap().as_bytes());
    write("early", early.as_bytes());
    write("late", late.as_bytes());
    for index in [0, 1, 7, 255, 256, reader.size() - 1] {
        let index = LeafIndex(index);
        write(
            &format!("{}.tlog-proof", index.0),
            reader.prove(index).unwrap().as_bytes(),
        );
        let stored = reader.get(index).unwrap().unwrap();
        write(&format!("{}.record", index.0), stored.json.as_bytes());
    }
    wallgate_ledger::export::tiles(&reader, &work.path().join("log")).unwrap();
    write("main.go", include_bytes!("oracle/main.go"));
    let output = Command::new("go")
        .args(["run", "main.go"])
        .current_dir(work.path())
        .env("GO111MODULE", "off")
        .env("GOPATH", GO_PATH)
        .env("GOCACHE", work.path().join("cache"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    assert!(said.contains("all hold"), "{said}");
}

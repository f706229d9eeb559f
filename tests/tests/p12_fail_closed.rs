//! P12, fail closed: whatever dies or fails, nothing gets out that depended on it, and nothing is left behind.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use rustix::process::Signal;
use wallgate_ledger::{VerifyOptions, verify};
use wallgate_tests::room::{Room, room};
use wallgate_tests::wallgate::{Wallgate, binary, signal_process};

const HOST: &str = "api.corp.test";
/// Says that it runs, and stays.
const STAY: &[&str] = &["/bin/sh", "-c", "echo up; exec sleep 600"];

fn ledger_holds(gate: &Wallgate<'_>) -> Result<()> {
    let report = verify(&gate.state_directory().join("ledger"), &VerifyOptions::default())?;
    ensure!(report.is_good(), "{report:?}");
    Ok(())
}

#[test]
fn a_killed_broker_ends_the_sandbox() {
    room(|room| {
        let gate = room.wallgate()?;
        let mut running = gate.start(STAY)?;
        running.wait_for_line(|line| line == "up")?;
        signal_process(running.broker()?, Signal::KILL)?;
        let finished = running.finish()?;
        ensure!(finished.status.code() == Some(70), "{finished:?}");
        ensure!(
            finished.stderr.contains("the broker is gone (signal 9)"),
            "{}",
            finished.stderr
        );
        // Whoever signs was killed too: the next start takes up the tail, and signs it.
        gate.run(&["/bin/true"])?.succeeded()?;
        ledger_holds(&gate)?;
        Ok(())
    });
}

#[test]
fn a_killed_supervisor_takes_everything_along() {
    room(|room| {
        let gate = room.wallgate()?;
        let mut running = gate.start(STAY)?;
        running.wait_for_line(|line| line == "up")?;
        running.signal(Signal::KILL)?;
        // Litter of any kind, such as a surviving sandbox, is an error of this.
        running.finish()?;
        // Whoever signs was killed too: the next start takes up the tail, and signs it.
        gate.run(&["/bin/true"])?.succeeded()?;
        ledger_holds(&gate)?;
        let left = fs::read_dir(gate.state_directory())?
            .filter_map(|entry| Some(entry.ok()?.file_name()))
            .collect::<Vec<_>>();
        ensure!(!left.iter().any(|name| name == "run"), "not swept: {left:?}");
        Ok(())
    });
}

#[test]
fn signals_reach_the_command_and_end_what_does_not_listen() {
    room(|room| {
        let gate = room.wallgate()?.with_toml("run = { grace_ms = 300 }")?;
        let rows = [
            (Signal::TERM, "trap 'exit 5' TERM", 5),
            (Signal::INT, "trap 'exit 6' INT", 6),
            (Signal::HUP, "trap 'exit 7' HUP", 7),
            (Signal::TERM, ":", 143),
            (Signal::INT, ":", 130),
            (Signal::TERM, "trap '' TERM", 137),
        ];
        for (signal, trap, expected) in rows {
            let script = format!("{trap}; echo up; while :; do sleep 0.05; done");
            let mut running = gate.start(&["/bin/sh", "-c", &script])?;
            running.wait_for_line(|line| line == "up")?;
            running.signal(signal)?;
            let finished = running.finish()?;
            ensure!(
                finished.status.code() == Some(expected),
                "{signal:?} {trap}: {finished:?}"
            );
        }
        Ok(())
    });
}

#[test]
fn a_full_disk_refuses_requests_and_ends_cleanly() {
    room(|room| {
        let state = room.new_directory("small")?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs"])
            .arg(&state)
            .status()?;
        ensure!(mounted.success(), "cannot mount a small file system");
        let origin = room.origin(HOST)?;
        let gate = room
            .wallgate()?
            .upstream(&origin)
            .allow(HOST)
            .state(state.clone());
        let request = "curl -s -o /dev/null -m 60 -w '%{http_code}\\n'";
        // The journal has room in advance for some records (limits.rs of the ledger): more than it has room for.
        let script = format!(
            "{request} https://{HOST}/; echo first; until [ -e go ]; do sleep 0.05; done; {request} 'https://{HOST}/[1-4000]'; \
             exit 3"
        );
        let mut running = gate.start(&["/bin/sh", "-c", &script])?;
        running.wait_for_line(|line| line == "first")?;
        let mut filler = fs::File::create(state.join("run/filler"))?;
        let full = std::io::copy(&mut std::io::repeat(0), &mut filler);
        ensure!(full.is_err(), "the disk is not full");
        fs::write(gate.work().join("go"), "")?;
        let finished = running.finish()?;
        ensure!(finished.status.code() == Some(3), "{finished:?}");
        let codes: Vec<_> = finished.stdout.lines().filter(|line| *line != "first").collect();
        ensure!(codes.first() == Some(&"200"), "{finished:?}");
        let served = codes.iter().take_while(|code| **code == "200").count();
        let refused = codes.get(served..).unwrap_or_default();
        ensure!(!refused.is_empty(), "the disk never mattered");
        ensure!(!refused.contains(&"200"), "got out without a record: {refused:?}");
        ensure!(origin.journal.requests().len() == served, "{served} were served");
        Ok(())
    });
}

#[test]
fn what_is_wrong_with_the_start_is_one_sentence_and_leaves_nothing() {
    room(|room| {
        type Variables = &'static [(&'static str, &'static str)];
        let rows: [(&str, &str, Variables, i32, &str); 8] = [
            (
                "state = 1",
                GOOD,
                &[],
                64,
                "wallgate.toml:1: state: unknown field",
            ),
            (
                "[policy]\nbundle = \"nowhere\"",
                GOOD,
                &[],
                64,
                "nowhere does not exist",
            ),
            ("", "package wallgate\n\ndecision := {\n", &[], 64, "main.rego:"),
            ("", "package other\n", &[], 64, "data.wallgate.decision"),
            (FILE_SECRET, GOOD, &[], 77, "credential \"t\""),
            (ENV_SECRET, GOOD, &[], 77, "the variable WALLGATE_TEST_TOKEN"),
            (
                "",
                GOOD,
                &[("state/ledger/format.json", "{\"format\":99}")],
                73,
                "ledger",
            ),
            ("", GOOD, &[("state/letter", "")], 0, ""),
        ];
        for (configuration, policy, files, code, sentence) in rows {
            let (found, said) = start(room, configuration, policy, files)?;
            ensure!(found == Some(code), "{configuration:?}: {found:?} {said}");
            ensure!(said.contains(sentence), "{configuration:?}: {said}");
            ensure!(code == 0 || said.lines().count() == 1, "not one sentence: {said}");
            ensure!(!said.contains("panicked"), "{said}");
        }
        Ok(())
    });
}

const GOOD: &str =
    "package wallgate\ndecision := {\"verdict\": \"deny\", \"rule\": \"x\", \"reason\": \"y\"}\n";
const FILE_SECRET: &str = "[[credential]]\nname = \"t\"\nsource = \"file:nowhere\"\nshape = \"bearer\"\nbind = { hosts = [\"a.test\"] }";
const ENV_SECRET: &str = "[[credential]]\nname = \"t\"\nsource = \"env:WALLGATE_TEST_TOKEN\"\nshape = \"bearer\"\nbind = { hosts = [\"a.test\"] }";

fn start(
    room: &Room,
    configuration: &str,
    policy: &str,
    files: &[(&str, &str)],
) -> Result<(Option<i32>, String)> {
    let place = room.new_directory("place")?;
    fs::create_dir_all(place.join("policies"))?;
    fs::write(place.join("policies/main.rego"), policy)?;
    fs::write(place.join("wallgate.toml"), configuration)?;
    for (name, content) in files {
        let path = place.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, content)?;
    }
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    if place.join("state").exists() {
        fs::set_permissions(place.join("state"), private)?;
    }
    let output = Command::new(binary()?)
        .args([
            "run",
            "--quiet",
            "--config",
            "wallgate.toml",
            "--state",
            "state",
            "--",
            "/bin/true",
        ])
        .current_dir(&place)
        .stdin(Stdio::null())
        .output()?;
    let run = place.join("state/run");
    ensure!(!run.exists(), "{} was left", run.display());
    Ok((
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    ))
}

#[test]
fn one_state_directory_has_one_wallgate() {
    room(|room| {
        let gate = room.wallgate()?;
        let mut running = gate.start(STAY)?;
        running.wait_for_line(|line| line == "up")?;
        let output = Command::new(binary()?)
            .args(["run", "--config"])
            .arg(gate.write_configuration()?)
            .args(["--", "/bin/true"])
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(73) && said.contains("in use by another wallgate"),
            "{said}"
        );
        running.signal(Signal::TERM)?;
        running.finish()?;
        Ok(())
    });
}

#[test]
fn without_rights_it_says_so() {
    room(|room| {
        let configuration = room.wallgate()?.write_configuration()?;
        let copy = std::path::Path::new("/run/wallgate-copy");
        fs::copy(binary()?, copy)?;
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(copy)
            .args(["run", "--config"])
            .arg(configuration)
            .args(["--", "/bin/true"])
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(69) && said.contains("needs root"),
            "{:?} {said}",
            output.status
        );
        ensure!(said.lines().count() == 1, "{said}");
        Ok(())
    });
}

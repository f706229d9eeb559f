//! `cargo xtask demo`: the whole, shown on this host, with real programs and without any network.
//!
//! Every line that begins with `✓` was checked just now; the first thing that is not as it says ends the demo with an
//! error. It runs in a room of its own (see [`wallgate_tests::room`]), so it leaves nothing behind.
#![forbid(unsafe_code)]

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use wallgate_tests::process::succeed;
use wallgate_tests::room::{Room, demonstrate};
use wallgate_tests::tools;
use wallgate_tests::upstream::npm::{Npm, write_package};
use wallgate_tests::wallgate::{Credential, Wallgate, binary};

/// What the demo keeps from the sandbox.
const TOKEN: &str = "demo-token-7f3a9b1cd5e80a6f";

fn main() -> ExitCode {
    demonstrate(show)
}

fn show(room: &Room) -> Result<()> {
    println!(
        "This starts two servers on loopback: an API that echoes what it gets, and an npm registry (verdaccio)."
    );
    let api = room.origin("api.corp.test")?;
    let npm = Npm::start(room, "npm.corp.test")?;
    npm.add(
        room,
        "left-pad",
        "1.3.0",
        "module.exports = (text) => `padded ${text}`\n",
    )?;
    let wall = room
        .wallgate()?
        .upstream(&api)
        .upstream(&npm.upstream)
        .service("npm", "npm.corp.test", "npm")
        .own_variable("API_TOKEN", TOKEN)
        .allow_with(&Credential {
            name: "api-token",
            source: "env:API_TOKEN",
            shape: "bearer",
            host: "api.corp.test",
        })
        .readable(tools::directory().join("python"));

    step("What is allowed works, with clients that were told nothing");
    let run = wall
        .sh(&said("curl -sS --fail https://api.corp.test/hello"))?
        .succeeded()?;
    ensure!(run.stdout == "hello from the origin\n", "{}", run.told());
    held("curl got its answer over TLS, through the wall");

    step("A credential that the sandbox never sees");
    api.journal.clear();
    let run = wall
        .sh(&said(
            "env | grep -c API_TOKEN; curl -sS --fail https://api.corp.test/echo; echo",
        ))?
        .told_and(|run| run.stdout.starts_with("0\n"))?;
    let received = api.journal.requests();
    let bearer = format!("Bearer {TOKEN}");
    ensure!(
        received
            .iter()
            .any(|request| request.header("authorization") == Some(&bearer)),
        "{received:?}"
    );
    held("the API received the token");
    ensure!(!run.contains(TOKEN), "{run}");
    print!("{}", indented(&run));
    held(
        "the API echoed it back, and it was taken out of the answer: the sandbox has no environment variable, file or response that holds it",
    );

    step("A no comes with a way on");
    let run = wall
        .sh(&said(
            "curl -sS --resolve elsewhere.test:80:198.51.100.1 http://elsewhere.test/upload",
        ))?
        .told_and(|run| run.stdout.contains("\"rule\":\"default\""))?;
    print!("{}", indented(&run));
    held(
        "denied, with the rule, the reason, the record's place in the ledger, and links to ask or to give up",
    );
    wall.sh(&said(
        "curl -sS --fail --data '{\"reason\":\"The task needs elsewhere.test, which is not allowed.\"}' \
         --header 'Content-Type: application/json' http://wallgate.internal/quit",
    ))?
    .told_and(|run| run.stdout.contains("ecorded"))?;
    held("the agent gave up in the proper way, and was heard");

    step("A package mirror is for reading");
    mirror(&wall, &npm)?;

    step("The record");
    record(&wall)?;
    println!("\nEverything was as it should be.");
    Ok(())
}

fn mirror(wall: &Wallgate<'_>, npm: &Npm) -> Result<()> {
    write_package(wall.work(), "message-board", "1.0.0", "")?;
    let command = format!("{} {}", tools::node()?.display(), tools::npm()?.display());
    println!("  $ npm install left-pad && npm publish");
    wall.sh(&format!(
        "set -e
         printf 'registry=https://npm.corp.test/\\n//npm.corp.test/:_authToken=anything\\n' > ~/.npmrc
         mkdir /tmp/app; cd /tmp/app; echo '{{}}' > package.json
         {command} install --loglevel=error --no-fund --no-update-notifier left-pad
         {node} -e \"console.log(require('left-pad')('it'))\"
         cd {work}
         if {command} publish --loglevel=error --no-update-notifier; then echo published; else echo refused; fi",
        node = tools::node()?.display(),
        work = wall.work().display(),
    ))?
    .told_and(|run| run.stdout.contains("padded it") && run.stdout.ends_with("refused\n"))?;
    held("npm install worked");
    ensure!(!npm.holds("message-board"), "the package was published");
    held("npm publish was refused, and the registry, which lets everybody publish, did not get it");
    Ok(())
}

fn record(wall: &Wallgate<'_>) -> Result<()> {
    let state = wall.state_directory().display().to_string();
    let ledger = |arguments: &[&str]| {
        succeed(
            Command::new(binary()?)
                .arg("ledger")
                .args(arguments)
                .args(["--state", &state]),
        )
    };
    println!("  $ wallgate ledger query --verdict deny");
    let denials = ledger(&["query", "--verdict", "deny"])?;
    print!("{}", indented(&denials));
    ensure!(
        denials.contains("npm.corp.test"),
        "the publish is not in the ledger"
    );
    held("what was denied is there; so is what was allowed, and it was there before anything was sent");
    println!("  $ wallgate ledger verify");
    let verified = ledger(&["verify"])?;
    print!("{}", indented(&verified));
    held("no record was changed, dropped, moved or cut off");
    let exported = ledger(&["export"])?;
    ensure!(!exported.contains(TOKEN), "the token is in the ledger");
    held("the token is not in it");

    let journal = std::fs::read_dir(wall.state_directory().join("ledger/journal"))?
        .next()
        .context("no journal")??
        .path();
    let whole = std::fs::read(&journal)?;
    let mut touched = whole.clone();
    let middle = whole.iter().rposition(|byte| *byte != 0).unwrap_or_default() / 2;
    if let Some(byte) = touched.get_mut(middle) {
        *byte ^= 1;
    }
    std::fs::write(&journal, &touched)?;
    println!("  (one bit in the middle is flipped)\n  $ wallgate ledger verify");
    let verdict = ledger(&["verify"]);
    std::fs::write(&journal, &whole)?;
    let complaint = verdict.err().context("a touched ledger verifies")?;
    let complaint = complaint.to_string();
    // What the harness says of the command's end stands before it.
    print!(
        "{}",
        indented(
            complaint
                .split_once("NOT GOOD")
                .map_or(&*complaint, |(_, place)| place.trim_start())
        )
    );
    held("it no longer verifies, and says where");
    Ok(())
}

fn step(what: &str) {
    println!("\n== {what}");
}

fn held(what: &str) {
    println!("  ✓ {what}");
}

/// The script, after it was shown.
fn said(script: &str) -> String {
    println!("  $ wallgate run -- {script}");
    script.to_owned()
}

fn indented(text: &str) -> String {
    let lines: Vec<String> = text
        .trim_end()
        .lines()
        .map(|line| format!("    {line}"))
        .collect();
    lines.join("\n") + "\n"
}

/// What a run printed, when it is as it should be.
trait Told {
    /// # Errors
    ///
    /// With everything that was printed, when `expected` does not hold.
    fn told_and(self, expected: impl Fn(&wallgate_tests::wallgate::Finished) -> bool) -> Result<String>;
}

impl Told for wallgate_tests::wallgate::Finished {
    fn told_and(self, expected: impl Fn(&Self) -> bool) -> Result<String> {
        ensure!(expected(&self), "not as it should be: {}", self.told());
        Ok(self.stdout)
    }
}

//! Running every test, and counting honestly.
//!
//! A test that cannot run on this host prints a line that begins with [`SKIPPED`] and passes, as far as the test runner
//! knows. Here it is counted as skipped; and since this task runs as root with everything installed, a skipped test
//! fails the whole unless `--allow-skipped` says that this host cannot do better.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::shell::{self, Stopwatch, cargo, headline, output_of};
use crate::tools;

/// How the line of a test begins that cannot run here: `SKIPPED-PRIVILEGED: …`, `SKIPPED …: no go`.
const SKIPPED: &str = "SKIPPED";

/// What `cargo xtask test` takes.
#[derive(Debug, Default, Args)]
pub(crate) struct SuiteArguments {
    /// Count tests that cannot run on this host as skipped, and do not fail for them
    #[arg(long)]
    allow_skipped: bool,
    /// Only tests whose name contains this; doc tests are left out then
    filter: Option<String>,
}

#[derive(Debug, Default)]
struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Tests that said that they cannot run here.
    skipped: BTreeSet<String>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.skipped.extend(other.skipped);
    }

    /// The line that closes the output.
    fn line(&self) -> String {
        let skipped = self.skipped.len() as u64;
        let passed = self.passed.saturating_sub(skipped);
        let (failed, unrun) = (self.failed, skipped + self.ignored);
        if unrun == 0 {
            format!("{passed} passed, {failed} failed")
        } else {
            format!("{passed} passed, {failed} failed, {unrun} skipped")
        }
    }
}

/// Runs the tests and prints the closing line last.
pub(crate) fn run_with(arguments: &SuiteArguments, before_the_line: impl FnOnce()) -> Result<ExitCode> {
    let watch = Stopwatch::start();
    headline("building the binary");
    shell::run(cargo().args(["build", "--package", "wallgate", "--bin", "wallgate"]))?;
    let mut tally = Tally::default();
    headline("tests");
    tally.add(unit_and_integration(arguments)?);
    if arguments.filter.is_none() {
        headline("doc tests");
        tally.add(doc_tests()?);
    }
    println!("\nall of it took {:.0} s", watch.elapsed().as_secs_f64());
    for name in &tally.skipped {
        println!("could not run here: {name}");
    }
    let left_out = !tally.skipped.is_empty() && !arguments.allow_skipped;
    if left_out {
        println!("a test that should run here did not; `--allow-skipped` on a host that cannot do better");
    }
    before_the_line();
    println!("{}", tally.line());
    Ok(if tally.failed > 0 || left_out || tally.passed == 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Runs the tests by themselves.
pub(crate) fn run(arguments: &SuiteArguments) -> Result<ExitCode> {
    run_with(arguments, || ())
}

/// Where cargo puts what it builds.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .no_deps()
        .exec()
        .context("cargo metadata")?;
    Ok(metadata.target_directory.into_std_path_buf())
}

fn unit_and_integration(arguments: &SuiteArguments) -> Result<Tally> {
    let nextest = output_of(cargo().args(["nextest", "--version"])).is_some();
    let mut command = cargo();
    if nextest {
        command.args([
            "nextest",
            "run",
            "--workspace",
            "--no-tests",
            "warn",
            "--color",
            "never",
        ]);
        command.args([
            "--success-output",
            "immediate",
            "--failure-output",
            "immediate",
            "--hide-progress-bar",
        ]);
        command.args(&arguments.filter);
    } else {
        println!("cargo-nextest is not here: falling back to cargo test");
        command.args([
            "test",
            "--workspace",
            "--no-fail-fast",
            "--lib",
            "--bins",
            "--tests",
        ]);
        command.args(&arguments.filter);
        command.args(["--", "--show-output"]);
    }
    command
        .env("WALLGATE_BIN", target_directory()?.join("debug/wallgate"))
        .env("WALLGATE_TOOLS", tools::directory());
    let mut reading = if nextest {
        Reading::nextest()
    } else {
        Reading::libtest()
    };
    let ended_well = follow(&mut command, &mut reading)?;
    finish(reading, ended_well)
}

fn doc_tests() -> Result<Tally> {
    let mut reading = Reading::libtest();
    let ended_well = follow(
        cargo().args(["test", "--workspace", "--doc", "--no-fail-fast", "--quiet"]),
        &mut reading,
    )?;
    finish(reading, ended_well)
}

fn finish(reading: Reading, ended_well: bool) -> Result<Tally> {
    if !ended_well && reading.tally.failed == 0 {
        bail!("the tests did not run to their end: see above");
    }
    Ok(reading.tally)
}

/// Runs `command`, showing what matters of both its outputs as it comes.
fn follow(command: &mut Command, reading: &mut Reading) -> Result<bool> {
    let (output, input) = std::io::pipe().context("cannot make a pipe")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(input.try_clone().context("cannot share the pipe")?)
        .stderr(input)
        .spawn()
        .context("cannot start cargo")?;
    // `command` keeps its own copy of the pipe, which would keep the reading below from ever ending.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    each_line(output, |line| {
        if reading.line(line) {
            println!("{line}");
        }
    })?;
    Ok(child.wait().context("cannot wait for cargo")?.success())
}

fn each_line(output: impl Read, mut each: impl FnMut(&str)) -> Result<()> {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output
        .read_until(b'\n', &mut line)
        .context("cannot read what the tests print")?
        > 0
    {
        each(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runner {
    Nextest,
    Libtest,
}

/// Reads a test runner's output line by line.
#[derive(Debug)]
struct Reading {
    runner: Runner,
    tally: Tally,
    /// The test whose output is being read.
    current: String,
    /// Its output is not shown: it passed.
    quiet: bool,
}

impl Reading {
    fn nextest() -> Self {
        Self::new(Runner::Nextest)
    }

    fn libtest() -> Self {
        Self::new(Runner::Libtest)
    }

    fn new(runner: Runner) -> Self {
        Self {
            runner,
            tally: Tally::default(),
            current: String::new(),
            quiet: false,
        }
    }

    /// Takes one line in; says whether it is to be shown.
    fn line(&mut self, line: &str) -> bool {
        let text = line.trim_start();
        if text.starts_with(SKIPPED) {
            self.tally.skipped.insert(format!("{} ({text})", self.current));
            return true;
        }
        match self.runner {
            Runner::Nextest => self.nextest_line(line, text),
            Runner::Libtest => self.libtest_line(text),
        }
    }

    fn nextest_line(&mut self, line: &str, text: &str) -> bool {
        const STATUS: [&str; 9] = [
            "PASS [",
            "FAIL [",
            "SLOW [",
            "TIMEOUT [",
            "SIGNAL [",
            "LEAK [",
            "ABORT [",
            "SIG",
            "TERMINATING [",
        ];
        // A status is right-aligned in the first columns; a test's own output is not.
        let is_status = line.starts_with(' ') && STATUS.iter().any(|status| text.starts_with(status));
        if is_status {
            self.quiet = text.starts_with("PASS") || text.starts_with("SLOW") || text.starts_with("LEAK");
            if let Some((_, name)) = text.split_once("] ") {
                name.trim().clone_into(&mut self.current);
            }
            return true;
        }
        if let Some(summary) = text.strip_prefix("Summary [") {
            self.quiet = false;
            let counts = summary.split_once(": ").map_or("", |(_, counts)| counts);
            for count in counts.split(", ") {
                let mut words = count.split(' ');
                let number = words
                    .next()
                    .and_then(|word| word.parse::<u64>().ok())
                    .unwrap_or(0);
                match words.next() {
                    Some("passed") => self.tally.passed = number,
                    Some("failed" | "timed" | "exec") => self.tally.failed += number,
                    Some("skipped") => self.tally.ignored = number,
                    _ => {}
                }
            }
            return true;
        }
        !self.quiet
    }

    fn libtest_line(&mut self, text: &str) -> bool {
        if let Some(name) = text.strip_prefix("---- ") {
            name.split(' ')
                .next()
                .unwrap_or_default()
                .clone_into(&mut self.current);
            self.quiet = text.ends_with("stdout ----") && self.quiet;
            return !self.quiet;
        }
        if text == "successes:" {
            self.quiet = true;
            return false;
        }
        if text == "failures:" {
            self.quiet = false;
        }
        if let Some(result) = text.strip_prefix("test result: ") {
            self.quiet = false;
            let counts = result.split_once(". ").map_or("", |(_, counts)| counts);
            for count in counts.split("; ") {
                let mut words = count.split(' ');
                let number = words
                    .next()
                    .and_then(|word| word.parse::<u64>().ok())
                    .unwrap_or(0);
                match words.next() {
                    Some("passed") => self.tally.passed += number,
                    Some("failed") => self.tally.failed += number,
                    Some("ignored") => self.tally.ignored += number,
                    _ => {}
                }
            }
            return !result.starts_with("ok. 0 passed");
        }
        !self.quiet && !text.is_empty() && text != "running 0 tests"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(runner: Runner, output: &str, line: &str, shown: &[&str]) {
        let mut reading = Reading::new(runner);
        let kept: Vec<&str> = output
            .lines()
            .filter(|line| reading.line(line))
            .map(str::trim)
            .collect();
        assert_eq!(reading.tally.line(), line);
        assert_eq!(kept, shown);
    }

    #[test]
    fn counts_what_nextest_ran_and_hides_what_passing_tests_print() {
        check(
            Runner::Nextest,
            concat!(
                "        PASS [   0.004s] wallgate-wall frames::drops\n",
                "  stdout \u{2500}\u{2500}\u{2500}\n\n    noise\n",
                "        PASS [   0.004s] wallgate-wall frames::needs_root\n",
                "    SKIPPED-PRIVILEGED: not root\n",
                "        FAIL [   0.010s] wallgate-tests clients::curl\n",
                "    the reason\n",
                "     Summary [   0.020s] 3 tests run: 2 passed, 1 failed, 4 skipped\n",
            ),
            "1 passed, 1 failed, 5 skipped",
            &[
                "PASS [   0.004s] wallgate-wall frames::drops",
                "PASS [   0.004s] wallgate-wall frames::needs_root",
                "SKIPPED-PRIVILEGED: not root",
                "FAIL [   0.010s] wallgate-tests clients::curl",
                "the reason",
                "Summary [   0.020s] 3 tests run: 2 passed, 1 failed, 4 skipped",
            ],
        );
    }

    #[test]
    fn a_test_that_is_killed_counts_as_failed() {
        check(
            Runner::Nextest,
            "     Summary [ 240.020s] 2 tests run: 1 passed (1 slow), 1 timed out, 0 skipped\n",
            "1 passed, 1 failed",
            &["Summary [ 240.020s] 2 tests run: 1 passed (1 slow), 1 timed out, 0 skipped"],
        );
    }

    #[test]
    fn counts_what_cargo_test_ran_over_many_crates() {
        check(
            Runner::Libtest,
            concat!(
                "running 2 tests\n",
                "successes:\n\n---- needs_root stdout ----\nSKIPPED-PRIVILEGED: not root\nnoise\n",
                "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n",
                "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n",
            ),
            "2 passed, 1 failed, 2 skipped",
            &[
                "running 2 tests",
                "SKIPPED-PRIVILEGED: not root",
                "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
                "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            ],
        );
    }
}

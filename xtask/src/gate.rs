//! What a change must pass before it lands.
//!
//! The order is cheap to dear, and the tests are last, so that their closing line closes the whole output.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::shell::{Stopwatch, cargo, headline, output_of, run};
use crate::suite::{self, SuiteArguments};
use crate::tools::{self, Purpose};
use crate::{ebpf, workspace};

/// The whole gate.
pub(crate) fn everything() -> Result<ExitCode> {
    let watch = Stopwatch::start();
    headline("formatting");
    run(cargo().args(["fmt", "--all", "--check"]))?;
    tools::install(Purpose::Gate)?;
    deny()?;
    headline("lints");
    run(cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]))?;
    docs()?;
    fuzz_build()?;
    headline("the eBPF object is what its sources say");
    ebpf::run(true)?;
    suite::run_with(&SuiteArguments::default(), || {
        println!("the whole gate took {:.0} s", watch.elapsed().as_secs_f64());
    })
}

/// `cargo deny`. The advisories need the advisory database, which a host without it and without a way to fetch it
/// cannot check: that is said on its own line, and everything else is still held.
pub(crate) fn deny() -> Result<()> {
    headline("licences, sources, duplicates");
    let root = workspace()?;
    let cargo_deny = || -> Result<Command> {
        let program = tools::cargo_bin(&tools::directory()).join("cargo-deny");
        let mut command = Command::new(program);
        command
            .current_dir(&root)
            .args(["--workspace", "--all-features", "--log-level", "warn"]);
        Ok(command)
    };
    run(cargo_deny()?.args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"]))?;
    headline("advisories");
    if output_of(cargo_deny()?.arg("fetch").arg("db")).is_none() {
        println!("not checked: the advisory database cannot be fetched from here");
        return Ok(());
    }
    run(cargo_deny()?.args(["check", "advisories"]))
}

/// `cargo doc`, where a warning is an error. Private items are documented too, so links to them lead somewhere.
pub(crate) fn docs() -> Result<()> {
    headline("documentation");
    run(cargo()
        .args([
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
            "--quiet",
            "--locked",
        ])
        .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links"))
}

/// The flags that `cargo fuzz` would give, less the sanitisers, which the stable toolchain does not have: coverage
/// still guides the fuzzer, and a panic, an overflow, a hang or too much memory still is a finding.
const FUZZ_FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1";

/// Builds every fuzz target, so that none rots; without the instrumentation, which costs ten minutes more and which only a
/// run needs.
pub(crate) fn fuzz_build() -> Result<()> {
    headline("fuzz targets");
    tools::install_compiler()?;
    run(in_fuzz(&["build", "--bins", "--locked"])?
        .env("RUSTFLAGS", "--cfg fuzzing")
        .env("CARGO_PROFILE_DEV_DEBUG", "0"))
}

/// Runs one fuzz target, instrumented.
pub(crate) fn fuzz(target: &str, seconds: u64) -> Result<()> {
    headline("building the target with coverage (some ten minutes, once)");
    tools::install_compiler()?;
    // Naming the host as the target keeps the flags away from build scripts, which no fuzzer drives.
    let host = output_of(Command::new("rustc").args(["--print", "host-tuple"]))
        .context("rustc does not say what it builds for")?;
    run(in_fuzz(&["build", "--release", "--bin", target, "--target", &host])?.env("RUSTFLAGS", FUZZ_FLAGS))?;
    let fuzz = workspace()?.join("fuzz");
    let corpus = fuzz.join("corpus").join(target);
    let found = fuzz.join("artifacts").join(target);
    std::fs::create_dir_all(&corpus).context("cannot make the corpus directory")?;
    std::fs::create_dir_all(&found).context("cannot make the artifact directory")?;
    run(
        Command::new(fuzz.join("target").join(host).join("release").join(target))
            .arg(&corpus)
            .arg(format!("-artifact_prefix={}/", found.display()))
            .arg(format!("-max_total_time={seconds}"))
            .args(["-timeout=10", "-rss_limit_mb=2048", "-max_len=65536"]),
    )
}

fn in_fuzz(arguments: &[&str]) -> Result<Command> {
    let mut command = cargo();
    command
        .args(arguments)
        .current_dir(workspace()?.join("fuzz"))
        .env("CARGO_TARGET_DIR", Path::new("target"));
    Ok(command)
}

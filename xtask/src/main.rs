//! The project's own tasks, as `cargo xtask TASK`.
//!
//! `test` installs what the tests need and runs all of them; `ci` is what a change must pass before it lands; `demo`
//! shows the whole on this host; `bench` measures it. Each says what it does and stops at the first thing that is wrong.
#![forbid(unsafe_code)]

mod ebpf;
mod gate;
mod shell;
mod suite;
mod tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::shell::{cargo, headline, run};
use crate::tools::Purpose;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "The project's own tasks")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what the tests and the demo need on this host; quick when everything is there
    Setup,
    /// Run every test: units, promises, real clients, doc tests; ends with one line that counts them
    Test(suite::SuiteArguments),
    /// Show the whole on this host: allow, deny, inject, scrub, refuse a publish, query and verify the ledger
    Demo,
    /// Everything that a change must pass before it lands; the tests come last
    Ci,
    /// Rebuild the eBPF object that is committed
    Ebpf {
        /// Change nothing: fail when the committed object is not what the sources build to
        #[arg(long)]
        check: bool,
    },
    /// Build every fuzz target, as the fuzzer would
    FuzzBuild,
    /// Run one fuzz target for a while
    Fuzz {
        /// The target's name
        target: String,
        /// How long, in seconds
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Measure wallgate beside the bare limit in one run, and print the table of ratios
    Bench {
        /// Arguments for the bench program, such as `--repeats 5`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Licences, sources, duplicates and advisories of the dependencies
    Deny,
    /// Build the documentation; a warning is an error
    Docs,
}

fn main() -> ExitCode {
    match perform(Arguments::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("\nxtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(task: Task) -> Result<ExitCode> {
    match task {
        Task::Setup => tools::install(Purpose::Tests)?,
        Task::Test(arguments) => {
            tools::install(Purpose::Tests)?;
            return suite::run(&arguments);
        }
        Task::Demo => demo()?,
        Task::Ci => return gate::everything(),
        Task::Ebpf { check } => ebpf::run(check)?,
        Task::FuzzBuild => gate::fuzz_build()?,
        Task::Fuzz { target, seconds } => gate::fuzz(&target, seconds)?,
        Task::Bench { arguments } => bench(&arguments)?,
        Task::Deny => {
            tools::install(Purpose::Gate)?;
            gate::deny()?;
        }
        Task::Docs => gate::docs()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The workspace's own directory.
fn workspace() -> Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .context("xtask is not inside the workspace")
}

fn demo() -> Result<()> {
    tools::install(Purpose::Tests)?;
    headline("building");
    run(cargo().args(["build", "--quiet", "--package", "wallgate", "--bin", "wallgate"]))?;
    run(cargo().args([
        "build",
        "--quiet",
        "--package",
        "wallgate-tests",
        "--bin",
        "wallgate-demo",
    ]))?;
    let built = suite::target_directory()?.join("debug");
    run(std::process::Command::new(built.join("wallgate-demo"))
        .env("WALLGATE_BIN", built.join("wallgate"))
        .env("WALLGATE_TOOLS", tools::directory()))
}

fn bench(arguments: &[String]) -> Result<()> {
    tools::install(Purpose::Bench)?;
    headline("building");
    run(cargo().args([
        "build",
        "--release",
        "--package",
        "wallgate",
        "--package",
        "wallgate-bench",
    ]))?;
    let built = suite::target_directory()?.join("release");
    run(std::process::Command::new(built.join("wallgate-bench"))
        .arg("compare")
        .arg("--wallgate")
        .arg(built.join("wallgate"))
        .args(arguments))
}

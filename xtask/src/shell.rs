//! Running other programs: what is about to run is said first, and a failure names the command.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// A headline, so that a long run can be followed.
pub(crate) fn headline(text: &str) {
    println!("\n== {text}");
}

/// Time since this was made.
#[derive(Debug)]
pub(crate) struct Stopwatch(std::time::Instant);

impl Stopwatch {
    #[expect(
        clippy::disallowed_methods,
        reason = "progress output only: how long a step took"
    )]
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Runs `command` with this terminal's output, and fails when it does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    println!("$ {shown}");
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// Runs `command` silently; its output is shown only when it fails.
pub(crate) fn run_quietly(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    println!("$ {shown}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        print!("{}", String::from_utf8_lossy(&output.stdout));
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        bail!("`{shown}` ended with {}", output.status);
    }
    Ok(())
}

/// What `command` prints, or `None` when it cannot be started or fails.
pub(crate) fn output_of(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// `cargo`, as the one that runs this task.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Whether a program of this name can be found.
pub(crate) fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|directory| directory.join(name).is_file())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

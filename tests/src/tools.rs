//! Where the programs are that the tests run: what `cargo xtask setup` installed, and the host's own.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::succeed;
use crate::room::Room;

/// The directory that `cargo xtask setup` fills: `WALLGATE_TOOLS`, else one that nobody, who a sandbox is, can reach.
#[must_use]
pub fn directory() -> PathBuf {
    std::env::var_os("WALLGATE_TOOLS")
        .map_or_else(|| PathBuf::from("/var/cache/wallgate/tools"), PathBuf::from)
}

/// A program of the Python environment, such as `pypi-server`, `twine` or `bao`.
///
/// # Errors
///
/// When it is not installed.
pub fn python(program: &str) -> Result<PathBuf> {
    installed(directory().join("python/bin").join(program))
}

/// The npm registry server's program.
///
/// # Errors
///
/// When it is not installed.
pub fn verdaccio() -> Result<PathBuf> {
    installed(directory().join("npm/node_modules/verdaccio/bin/verdaccio"))
}

/// A program of the host, by name.
///
/// # Errors
///
/// When it is not on the path.
pub fn host(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("{program} is not on this host: run `cargo xtask setup`"))
}

/// Node: the host's own, unless `cargo xtask setup` brought one because that is missing or too old.
///
/// # Errors
///
/// When there is none.
pub fn node() -> Result<PathBuf> {
    python("node").or_else(|_| host("node"))
}

/// npm, as a script for [`node`].
///
/// # Errors
///
/// When there is none.
pub fn npm() -> Result<PathBuf> {
    let npm = python("npm").or_else(|_| host("npm"))?;
    std::fs::canonicalize(&npm).with_context(|| format!("{} leads nowhere", npm.display()))
}

/// The toolchain's directory, whose `bin/cargo` is the real one and not a chooser, where a sandbox can reach it: a
/// toolchain often lives in somebody's home, which nobody may enter.
///
/// # Errors
///
/// When there is no toolchain.
pub fn toolchain(room: &Room) -> Result<PathBuf> {
    let sysroot = succeed(Command::new("rustc").args(["--print", "sysroot"])).context("no toolchain")?;
    let reachable = room.new_directory("toolchain")?;
    succeed(
        Command::new("mount")
            .args(["--bind", "-o", "ro", sysroot.trim()])
            .arg(&reachable),
    )?;
    Ok(reachable)
}

fn installed(path: PathBuf) -> Result<PathBuf> {
    if path.exists() {
        Ok(path)
    } else {
        bail!("{} is not installed: run `cargo xtask setup`", path.display())
    }
}

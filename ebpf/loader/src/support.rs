//! What a host needs for the wall, and what to do when it lacks it.

use std::fs;
use std::path::Path;

use rustix::process::geteuid;

/// One thing that the wall needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// What.
    pub name: &'static str,
    /// Whether it is there, and what to do when it is not.
    pub met: Result<(), String>,
}

/// Looks at everything; the last entry builds a wall and takes it down again.
#[must_use]
pub fn check() -> Vec<Requirement> {
    let mut all = prerequisites();
    all.push(Requirement {
        name: "a wall",
        met: try_wall(),
    });
    all
}

/// Looks at what can be seen without doing anything.
#[must_use]
pub fn prerequisites() -> Vec<Requirement> {
    let require = |name, met: bool, remedy: &str| Requirement {
        name,
        met: if met { Ok(()) } else { Err(remedy.to_owned()) },
    };
    vec![
        require(
            "root",
            geteuid().is_root(),
            "run as root, or with CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_BPF and CAP_NET_RAW",
        ),
        require(
            "kernel 6.6 or later",
            kernel_has_tcx(),
            "TCX came with Linux 6.6; install a newer kernel",
        ),
        require(
            "tap devices",
            Path::new("/dev/net/tun").exists(),
            "load the module: modprobe tun",
        ),
    ]
}

fn try_wall() -> Result<(), String> {
    let options = crate::WallOptions {
        max_sandboxes: 1,
        ..crate::WallOptions::default()
    };
    let mut wall = crate::Wall::create(&options).map_err(|error| explain(&error))?;
    let slot = wall.free_slot().ok_or("no slot")?;
    let attached = wall.veth_sandbox(slot).map_err(|error| explain(&error))?;
    drop(attached);
    Ok(())
}

fn explain(error: &crate::WallError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

fn kernel_has_tcx() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.trim().parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(6))
}

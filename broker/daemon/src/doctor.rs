//! `wallgate doctor`: what this host has and lacks, and the remedy.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use caps::{CapSet, Capability};
use clap::Args;
use jiff::Timestamp;
use rustix::fs::{Access, access};
use serde::Serialize;

use crate::config::{self, DEFAULT_CONFIG, DEFAULT_STATE_DIR};
use crate::exit::Failure;
use crate::output;
use crate::sandbox::bubblewrap;

/// The oldest bubblewrap that has all that we ask of it.
const BUBBLEWRAP: (u32, u32) = (0, 8);
/// The oldest coreutils whose `env` can set signals.
const COREUTILS: (u32, u32) = (8, 31);
/// Less free space than this is worth saying, in bytes.
const LITTLE_SPACE: u64 = 256 * 1024 * 1024;
/// Any clock before this is wrong: 2026-01-01.
const EARLIEST_NOW: i64 = 1_767_225_600;

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// The state directory to look at; the configuration's, or the default, unless given.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The findings as JSON.
    #[arg(long)]
    json: bool,
}

/// Whether something that was looked at is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Standing {
    /// It is.
    Ok,
    /// It is not, and nothing runs without it.
    Missing,
    /// It is not, and something runs less well without it.
    Wanting,
}

#[derive(Debug, Serialize)]
struct Finding {
    name: &'static str,
    standing: Standing,
    /// What was found.
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    usable: bool,
    findings: Vec<Finding>,
}

/// Looks, tells, and exits with 0 or 69.
pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode, Failure> {
    let findings = examine(arguments.state.as_deref());
    let usable = findings
        .iter()
        .all(|finding| finding.standing != Standing::Missing);
    if arguments.json {
        output::json(&Report { usable, findings })?;
    } else {
        for finding in &findings {
            let word = match finding.standing {
                Standing::Ok => "ok     ",
                Standing::Missing => "MISSING",
                Standing::Wanting => "wanting",
            };
            let remedy = finding
                .remedy
                .as_ref()
                .map(|remedy| format!("; {remedy}"))
                .unwrap_or_default();
            output::line(&format!("{word}  {:<22} {}{remedy}", finding.name, finding.found))?;
        }
        output::line(if usable {
            "`wallgate run` can work here"
        } else {
            "`wallgate run` cannot work here yet"
        })?;
    }
    Ok(ExitCode::from(if usable {
        0
    } else {
        crate::exit::Exit::Unavailable.code()
    }))
}

fn examine(state: Option<&Path>) -> Vec<Finding> {
    let mut findings = vec![rights()];
    findings.extend(
        wallgate_wall::support::check()
            .into_iter()
            .map(|requirement| match requirement.met {
                Ok(()) => ok(requirement.name, "as needed"),
                Err(remedy) => missing(requirement.name, "not as needed", &remedy),
            }),
    );
    findings.extend([
        present(
            "kernel type data",
            "/sys/kernel/btf/vmlinux",
            "build the kernel with CONFIG_DEBUG_INFO_BTF",
        ),
        unprivileged_bpf(),
        user_namespaces(),
        apparmor(),
        bubblewrap_version(),
        env_version(),
        nftables(),
        kvm(),
        clock(),
    ]);
    findings.extend(state_directory(state));
    findings
}

fn ok(name: &'static str, found: impl Into<String>) -> Finding {
    Finding {
        name,
        standing: Standing::Ok,
        found: found.into(),
        remedy: None,
    }
}

fn missing(name: &'static str, found: impl Into<String>, remedy: &str) -> Finding {
    Finding {
        name,
        standing: Standing::Missing,
        found: found.into(),
        remedy: Some(remedy.to_owned()),
    }
}

fn wanting(name: &'static str, found: impl Into<String>, remedy: &str) -> Finding {
    Finding {
        name,
        standing: Standing::Wanting,
        found: found.into(),
        remedy: Some(remedy.to_owned()),
    }
}

/// Optional: nothing that runs today needs it.
fn present(name: &'static str, path: &str, remedy: &str) -> Finding {
    if Path::new(path).exists() {
        ok(name, path)
    } else {
        wanting(name, format!("no {path}"), remedy)
    }
}

fn rights() -> Finding {
    const NEEDED: &[Capability] = &[
        Capability::CAP_SYS_ADMIN,
        Capability::CAP_NET_ADMIN,
        Capability::CAP_NET_RAW,
        Capability::CAP_BPF,
        Capability::CAP_SETUID,
        Capability::CAP_SETGID,
    ];
    let have = caps::read(None, CapSet::Effective).unwrap_or_default();
    // An older kernel has no CAP_BPF; CAP_SYS_ADMIN stands for it.
    let lacking: Vec<_> = NEEDED
        .iter()
        .filter(|wanted| !have.contains(wanted))
        .map(ToString::to_string)
        .collect();
    if lacking.is_empty() {
        ok("capabilities", "all that are needed")
    } else {
        missing(
            "capabilities",
            format!("lacks {}", lacking.join(", ")),
            "run wallgate as root",
        )
    }
}

fn sysctl(path: &str) -> Option<String> {
    fs::read_to_string(Path::new("/proc/sys").join(path))
        .ok()
        .map(|text| text.trim().to_owned())
}

fn unprivileged_bpf() -> Finding {
    match sysctl("kernel/unprivileged_bpf_disabled").as_deref() {
        Some("0") => wanting(
            "unprivileged BPF",
            "open to every user",
            "sysctl -w kernel.unprivileged_bpf_disabled=2 (the sandbox is denied it either way)",
        ),
        _ => ok("unprivileged BPF", "closed"),
    }
}

fn user_namespaces() -> Finding {
    const NAME: &str = "user namespaces";
    let none = |path| sysctl(path).as_deref() == Some("0");
    if !Path::new("/proc/self/ns/user").exists() {
        return missing(NAME, "the kernel has none", "use a kernel with CONFIG_USER_NS");
    }
    if none("user/max_user_namespaces") {
        return missing(
            NAME,
            "none are allowed",
            "sysctl -w user.max_user_namespaces=65536",
        );
    }
    if none("kernel/unprivileged_userns_clone") {
        return missing(
            NAME,
            "not for nobody, whom sandboxes run as",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        );
    }
    ok(NAME, "allowed")
}

fn apparmor() -> Finding {
    match sysctl("kernel/apparmor_restrict_unprivileged_userns").as_deref() {
        Some("1") => wanting(
            "AppArmor",
            "restricts user namespaces",
            "give /usr/bin/bwrap a profile with `userns,` (Debian and Ubuntu: package `apparmor-profiles`, profile bwrap-userns-restrict)",
        ),
        _ => ok("AppArmor", "does not restrict user namespaces"),
    }
}

/// The first two numbers in what a program says of its version.
fn version(program: &Path) -> Option<(String, (u32, u32))> {
    let output = Command::new(program).arg("--version").env_clear().output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let first = text.lines().next()?.to_owned();
    let numbers = first
        .split_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut parts = numbers.split('.').map_while(|part| part.parse().ok());
    Some((first.clone(), (parts.next()?, parts.next()?)))
}

fn bubblewrap_version() -> Finding {
    const NAME: &str = "bubblewrap";
    const REMEDY: &str = "install bubblewrap 0.8 or later (Debian: apt-get install bubblewrap)";
    let Some(path) = bubblewrap::find() else {
        return missing(
            NAME,
            format!("none of {}", bubblewrap::PROGRAMS.join(", ")),
            REMEDY,
        );
    };
    match version(&path) {
        Some((text, numbers)) if numbers >= BUBBLEWRAP => ok(NAME, text),
        Some((text, _)) => missing(NAME, text, REMEDY),
        None => missing(NAME, format!("{} does not run", path.display()), REMEDY),
    }
}

fn env_version() -> Finding {
    const NAME: &str = "coreutils env";
    const REMEDY: &str = "install GNU coreutils 8.31 or later";
    match version(Path::new(bubblewrap::ENV)) {
        Some((text, numbers)) if numbers >= COREUTILS => ok(NAME, text),
        Some((text, _)) => missing(NAME, text, REMEDY),
        None => missing(NAME, format!("no {}", bubblewrap::ENV), REMEDY),
    }
}

fn nftables() -> Finding {
    // The chain is made over netlink; the program is for looking at it.
    let tables = fs::read_to_string("/proc/modules").unwrap_or_default();
    let built_in = Path::new("/proc/sys/net/netfilter").exists();
    if built_in || tables.contains("nf_tables") {
        ok("nftables", "in the kernel")
    } else {
        wanting(
            "nftables",
            "not found in the kernel",
            "modprobe nf_tables; without it routing rules alone are the backstop",
        )
    }
}

fn kvm() -> Finding {
    const NAME: &str = "KVM";
    if !Path::new("/dev/kvm").exists() {
        return wanting(
            NAME,
            "no /dev/kvm",
            "needed for microVMs only; enable virtualisation or load kvm_intel or kvm_amd",
        );
    }
    match access("/dev/kvm", Access::READ_OK | Access::WRITE_OK) {
        Ok(())
            if fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/kvm")
                .is_ok() =>
        {
            ok(NAME, "usable")
        }
        Ok(()) | Err(_) => wanting(
            NAME,
            "/dev/kvm cannot be opened",
            "needed for microVMs only; join its group or run as root",
        ),
    }
}

fn clock() -> Finding {
    let now = Timestamp::now();
    if now.as_second() < EARLIEST_NOW {
        missing(
            "clock",
            format!("{now}, which has been"),
            "set the clock: certificates and records depend on it",
        )
    } else {
        ok("clock", now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }
}

fn state_directory(state: Option<&Path>) -> Vec<Finding> {
    let configured = || {
        config::read(Path::new(DEFAULT_CONFIG))
            .ok()
            .map(|config| config.state_dir)
    };
    let directory = state
        .map(Path::to_owned)
        .or_else(configured)
        .unwrap_or_else(|| PathBuf::from(DEFAULT_STATE_DIR));
    // What is not there yet is made where its nearest ancestor is.
    let place = directory
        .ancestors()
        .find(|path| path.is_dir())
        .unwrap_or(Path::new("/"));
    let shown = directory.display();
    let writable = if access(place, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        missing(
            "state directory",
            format!("{shown} cannot be written"),
            "run as root, or set `state_dir` or --state",
        )
    } else if place == directory && fs::metadata(place).is_ok_and(|metadata| metadata.mode() & 0o077 != 0) {
        missing(
            "state directory",
            format!("{shown} is open to others"),
            "chmod 700 it",
        )
    } else {
        ok("state directory", shown.to_string())
    };
    let space = match rustix::fs::statvfs(place) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let found = format!("{} MiB free", free / (1024 * 1024));
            if free < LITTLE_SPACE {
                wanting(
                    "disk",
                    found,
                    "make room: without it nothing can be recorded, and so nothing gets out",
                )
            } else {
                ok("disk", found)
            }
        }
        Err(error) => wanting("disk", error.to_string(), "look at the file system"),
    };
    vec![writable, space]
}

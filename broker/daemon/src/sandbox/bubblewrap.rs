//! Starting bubblewrap, and what it runs.
//!
//! Everything that the sandbox is given by content (its own files, the system call filter) goes through memory files
//! whose descriptors bubblewrap inherits. Descriptors are inherited by whatever is started meanwhile as well, so
//! starting is done under one lock, [`spawn`] being the only place that clears close-on-exec.
//!
//! `env` stands before and behind bubblewrap: before, it makes bubblewrap itself deaf to the terminal's interrupt key;
//! behind, it gives the command its hearing back. So Ctrl-C reaches the command as it would in a shell.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};

use super::NOBODY;
use super::etc::OwnFile;
use super::view::{Step, View};

/// Where a trusted bubblewrap can be: never looked for along a search path.
pub const PROGRAMS: &[&str] = &[
    "/usr/bin/bwrap",
    "/usr/local/bin/bwrap",
    "/bin/bwrap",
    "/run/current-system/sw/bin/bwrap",
];
/// GNU `env` (coreutils 8.31 or later), on both sides.
pub const ENV: &str = "/usr/bin/env";

/// Held from clearing close-on-exec of a descriptor until the process that inherits it is started.
static STARTING: Mutex<()> = Mutex::new(());

/// All that a sandbox is started from.
#[derive(Debug)]
pub struct Sandbox {
    /// The program, one of [`PROGRAMS`].
    pub program: PathBuf,
    /// The host name inside.
    pub hostname: String,
    /// What is seen.
    pub view: View,
    /// The sandbox's own files.
    pub files: Vec<OwnFile>,
    /// The system call filter ([`super::filter::program`]).
    pub filter: Vec<u8>,
    /// The whole environment.
    pub environment: BTreeMap<OsString, OsString>,
    /// The command and its arguments.
    pub command: Vec<OsString>,
}

/// Finds bubblewrap.
#[must_use]
pub fn find() -> Option<PathBuf> {
    PROGRAMS.iter().map(PathBuf::from).find(|path| path.is_file())
}

/// Starts another process of ours; never while a descriptor lies open for bubblewrap.
///
/// # Errors
/// What starting it says.
pub fn spawn_plain(command: &mut Command) -> io::Result<Child> {
    let _starting = STARTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    command.spawn()
}

/// Starts the sandbox from the calling thread, whose network namespace it gets, and whose end is its end.
///
/// `status` is inherited; bubblewrap writes JSON lines to it: `child-pid` when the sandbox is made, and `exit-code` only
/// if the command was really started.
///
/// # Errors
/// When a memory file cannot be made or bubblewrap cannot be started.
pub fn spawn(sandbox: &Sandbox, status: OwnedFd) -> io::Result<Child> {
    let mut inherited = Vec::new();
    let mut arguments = namespaces(&sandbox.hostname);
    let mut give = |descriptor: OwnedFd| {
        let number = descriptor.as_raw_fd().to_string();
        inherited.push(descriptor);
        OsString::from(number)
    };
    arguments.extend(["--json-status-fd".into(), give(status)]);
    arguments.extend(["--seccomp".into(), give(memory_file(&sandbox.filter)?)]);
    arguments.extend(["--proc", "/proc", "--dev", "/dev"].map(OsString::from));
    arguments.extend(sandbox.view.steps.iter().flat_map(step_arguments));
    for file in &sandbox.files {
        let content = give(memory_file(&file.content)?);
        arguments.extend(["--perms", "0644", "--ro-bind-data"].map(OsString::from));
        arguments.extend([content, OsString::from(&file.path)]);
    }
    arguments.extend(["--symlink", "/run", "/var/run", "--dir", "/var/tmp"].map(OsString::from));
    arguments.extend(sandbox.view.masks.iter().flat_map(step_arguments));
    arguments.extend(["--chdir".into(), sandbox.view.directory.clone().into_os_string()]);
    // In a file, since the sandbox sees its first process's command line, and need not see what is masked.
    let arguments = give(memory_file(
        &arguments.join(OsStr::new("\0")).into_encoded_bytes(),
    )?);

    let mut command = Command::new(ENV);
    command
        .args(["--ignore-signal=INT", "--ignore-signal=QUIT"])
        .arg(&sandbox.program)
        .arg("--args")
        .arg(arguments)
        .arg("--")
        .args(inner_command(&sandbox.command))
        .env_clear()
        .envs(&sandbox.environment)
        .current_dir("/")
        .stdin(Stdio::inherit())
        .uid(NOBODY)
        .gid(NOBODY);

    let _starting = STARTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for descriptor in &inherited {
        fcntl_setfd(descriptor.as_fd(), FdFlags::empty())?;
    }
    command.spawn()
    // The inherited descriptors are closed here, before the lock is given back.
}

fn namespaces(hostname: &str) -> Vec<OsString> {
    [
        "--unshare-user",
        "--uid",
        "0",
        "--gid",
        "0",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
        "--hostname",
        hostname,
    ]
    .map(OsString::from)
    .to_vec()
}

fn step_arguments(step: &Step) -> Vec<OsString> {
    let arguments = |options: &[&str], paths: &[&Path]| {
        let options = options.iter().map(OsString::from);
        options.chain(paths.iter().map(OsString::from)).collect()
    };
    match step {
        Step::Empty(path) => arguments(&["--perms", "0755", "--tmpfs"], &[path]),
        Step::Link { target, path } => arguments(&["--symlink"], &[target, path]),
        Step::ReadOnly(path) => arguments(&["--ro-bind"], &[path, path]),
        Step::Writable(path) => arguments(&["--bind"], &[path, path]),
        Step::MaskDirectory(path) => arguments(&["--perms", "0000", "--tmpfs"], &[path]),
        Step::MaskFile(path) => arguments(&["--ro-bind"], &[Path::new("/dev/null"), path]),
    }
}

/// The command behind `env`. A name with an equals sign would be taken for a variable, so `sh` runs that.
fn inner_command(command: &[OsString]) -> Vec<OsString> {
    let mut inner: Vec<OsString> = [ENV, "--default-signal=INT", "--default-signal=QUIT", "--"]
        .map(OsString::from)
        .to_vec();
    let assigns = command
        .first()
        .is_some_and(|name| name.as_bytes().contains(&b'='));
    if assigns {
        inner.extend(["/bin/sh", "-c", "exec \"$0\" \"$@\""].map(OsString::from));
    }
    inner.extend(
        command
            .iter()
            .map(|argument: &OsString| OsStr::to_owned(argument)),
    );
    inner
}

/// An anonymous file with this content, at its beginning, closed on exec until [`spawn`] says otherwise.
pub(crate) fn memory_file(content: &[u8]) -> io::Result<OwnedFd> {
    let descriptor = memfd_create("wallgate", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(descriptor);
    file.write_all(content)?;
    let descriptor = OwnedFd::from(file);
    rustix::fs::seek(&descriptor, SeekFrom::Start(0))?;
    Ok(descriptor)
}

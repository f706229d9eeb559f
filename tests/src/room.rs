//! A room for one test: its own processes, mounts and network.
//!
//! The test runs itself again as the first child of a new pid, mount and network namespace. So a test owns every port,
//! can say exactly what a run left behind, cannot reach any network, and whatever it started dies with it, also when it
//! is killed for taking too long.

use std::cell::RefCell;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

use crate::pki::Pki;
use crate::process::Server;
use crate::upstream::Upstream;
use crate::upstream::origin::Origin;
use crate::wallgate::Wallgate;

/// Set in the environment of a test that is in its room already.
const INSIDE: &str = "WALLGATE_TEST_ROOM";

/// Where a room's files are: a file system in memory that nothing outside the room sees.
const DIRECTORY: &str = "/mnt";

/// What the room's first process does before it becomes the test: private places for runtime files, pinned BPF objects
/// and the room's own files; and a loopback interface.
const FURNISH: &str = "set -e
mount -t tmpfs -o mode=0755 tmpfs /run
mount -t tmpfs -o mode=0755 tmpfs /mnt
if mountpoint -q /sys/fs/bpf || [ -d /sys/fs/bpf ]; then mount -t bpf bpf /sys/fs/bpf; fi
ip link set lo up
\"$@\"";

/// One test's room.
#[derive(Debug)]
pub struct Room {
    runtime: Runtime,
    pki: Pki,
    directory: PathBuf,
    servers: RefCell<Vec<Server>>,
}

/// Runs `test` in a room of its own, and fails the test when it returns an error.
///
/// # Panics
///
/// When the test fails, or when the room cannot be made although this is root. Who is not root gets one line that says
/// so, which the test task counts as skipped.
#[expect(clippy::panic, reason = "this is how a test fails")]
pub fn room<T>(test: T)
where
    T: FnOnce(&Room) -> Result<()>,
{
    if std::env::var_os(INSIDE).is_some() {
        if let Err(error) = Room::furnished().and_then(|room| test(&room)) {
            panic!("{error:#}");
        }
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED-PRIVILEGED: a room of its own needs root");
        return;
    }
    match run_again(&test_name::<T>()) {
        Ok(()) => {}
        Err(error) => panic!("{error:#}"),
    }
}

/// Runs a program of ours in a room of its own, on this terminal, and returns its exit code.
#[must_use]
pub fn demonstrate(show: impl FnOnce(&Room) -> Result<()>) -> ExitCode {
    if std::env::var_os(INSIDE).is_none() && rustix::process::geteuid().is_root() {
        // What goes wrong inside is said inside.
        let status =
            into_a_room(&[]).and_then(|mut command| command.status().context("cannot start unshare"));
        return match status {
            Ok(status) if status.success() => ExitCode::SUCCESS,
            Ok(_) => ExitCode::FAILURE,
            Err(error) => failed(&error),
        };
    }
    match Room::furnished().and_then(|room| show(&room)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("\n{error:#}");
    ExitCode::FAILURE
}

/// The test's name as the test runner knows it: it names the thread after the test, unless it runs one test only, on its
/// first thread; then it is the path of the function that `T`, a closure, was written in.
fn test_name<T>() -> String {
    if let Some(name) = std::thread::current().name().filter(|name| *name != "main") {
        return name.to_owned();
    }
    let path = std::any::type_name::<T>();
    let function = path
        .find("::{{closure}}")
        .and_then(|end| path.get(..end))
        .unwrap_or(path);
    function
        .split_once("::")
        .map_or(function, |(_, inside_the_crate)| inside_the_crate)
        .to_owned()
}

fn run_again(test: &str) -> Result<()> {
    let output = into_a_room(&[test, "--exact", "--nocapture", "--test-threads=1"])?
        .output()
        .context("cannot start unshare (util-linux)")?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    anyhow::ensure!(
        output.status.success(),
        "the test failed in its room ({})",
        output.status
    );
    anyhow::ensure!(
        said.contains("1 passed"),
        "the room did not find a test called {test}"
    );
    Ok(())
}

/// This program again, as the first in a room.
fn into_a_room(arguments: &[&str]) -> Result<Command> {
    let program = std::env::current_exe().context("which program is this?")?;
    let mut command = Command::new("unshare");
    command
        .args([
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--mount",
            "--net",
            "--ipc",
            "--",
        ])
        .args(["sh", "-c", FURNISH, "sh"])
        .arg(program)
        .args(arguments)
        .env(INSIDE, "1")
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null());
    Ok(command)
}

impl Room {
    fn furnished() -> Result<Self> {
        let inside = std::env::var_os(INSIDE).is_some();
        anyhow::ensure!(
            inside,
            "a room of its own needs root, for namespaces and eBPF programs"
        );
        let directory = Path::new(DIRECTORY).join("room");
        fs::create_dir(&directory).context("the room has no directory of its own")?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("no runtime for the servers")?;
        Ok(Self {
            runtime,
            pki: Pki::new(&directory)?,
            directory,
            servers: RefCell::default(),
        })
    }

    /// An empty directory, new with each call.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn new_directory(&self, name: &str) -> Result<PathBuf> {
        let made = (0..=u32::MAX)
            .map(|attempt| self.directory.join(format!("{name}-{attempt}")))
            .find(|path| !path.exists())
            .context("no free name")?;
        fs::create_dir_all(&made).with_context(|| format!("cannot make {}", made.display()))?;
        Ok(made)
    }

    /// Who signs the certificates of this room's servers.
    #[must_use]
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// Runs a future of the harness to its end.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// The runtime that the room's own servers live on.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// An origin that echoes, streams and keeps what it receives, as `https://HOST`.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn origin(&self, host: &str) -> Result<Upstream> {
        Upstream::https(self, host, Origin::default())
    }

    /// Keeps a program that serves running until the room is gone.
    pub fn keep(&self, server: Server) {
        self.servers.borrow_mut().push(server);
    }

    /// A wallgate that is to be configured and run.
    ///
    /// # Errors
    ///
    /// When its directories cannot be made or the binary is not there.
    pub fn wallgate(&self) -> Result<Wallgate<'_>> {
        Wallgate::new(self)
    }
}

//! Programs that the tests start, and ports for them.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How long a server may take until it accepts connections.
const START: Duration = Duration::from_mins(1);

/// A port that nobody uses. The room's network has nobody else in it, so it stays free until it is taken.
///
/// # Errors
///
/// When there is none.
pub fn free_port() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    listener.local_addr().context("no address")
}

/// A program that serves; it ends with this value.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts `command` and waits until it accepts connections on `address`.
    ///
    /// # Errors
    ///
    /// When it ends or does not listen in time; with what it printed.
    pub fn start(
        name: &'static str,
        command: &mut Command,
        address: SocketAddr,
        directory: &Path,
    ) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("cannot share the log")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let mut server = Self { name, child, log };
        for _ in 0..START.as_millis() / PAUSE.as_millis() {
            if TcpStream::connect(address).is_ok() {
                return Ok(server);
            }
            if let Some(status) = server.child.try_wait().context("cannot ask after it")? {
                bail!("{name} ended with {status}: {}", server.output());
            }
            pause();
        }
        bail!(
            "{name} does not listen on {address} after {START:?}: {}",
            server.output()
        )
    }

    /// What it printed so far.
    #[must_use]
    pub fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait().map(drop)) {
            eprintln!("{} did not end: {error}", self.name);
        }
    }
}

const PAUSE: Duration = Duration::from_millis(20);

/// A short wait between two looks at something outside this process, which gives no sign when it changes.
fn pause() {
    std::thread::park_timeout(PAUSE);
}

/// Looks until `ready` says something, for at most `patience`.
///
/// # Errors
///
/// When it never does.
pub fn wait_until<T>(what: &str, patience: Duration, mut ready: impl FnMut() -> Option<T>) -> Result<T> {
    for _ in 0..=patience.as_millis() / PAUSE.as_millis() {
        if let Some(found) = ready() {
            return Ok(found);
        }
        pause();
    }
    bail!("waited {patience:?} in vain for {what}")
}

/// Runs a command of the harness to its end and returns what it printed.
///
/// # Errors
///
/// When it cannot be started or fails; with what it printed.
pub fn succeed(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!(
            "{program} ended with {}: {printed}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(printed)
}

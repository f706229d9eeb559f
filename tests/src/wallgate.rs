//! Configuring and running the real binary.

use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use toml::{Table, Value};

use crate::bundle::{self, Allowed};
use crate::litter::Inventory;
use crate::process::wait_until;
use crate::records::Records;
use crate::room::Room;
use crate::rss;
use crate::upstream::Upstream;

/// How long a run may take before its test fails.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// The binary under test: `WALLGATE_BIN`, else the one that was built beside this test.
///
/// # Errors
///
/// When there is none.
pub fn binary() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("WALLGATE_BIN") {
        return Ok(PathBuf::from(given));
    }
    let test = std::env::current_exe().context("which program is this?")?;
    let built = test
        .ancestors()
        .skip(1)
        .map(|directory| directory.join("wallgate"))
        .find(|candidate| candidate.is_file())
        .context("no wallgate binary: `cargo build -p wallgate` first, or `cargo xtask test`")?;
    Ok(built)
}

/// Where a credential may be used, in the words of the configuration.
#[derive(Clone, Debug)]
pub struct Credential<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it comes from, such as `env:TOKEN`.
    pub source: &'a str,
    /// `bearer` or `basic`, or the name of a header.
    pub shape: &'a str,
    /// The host that it is for.
    pub host: &'a str,
}

/// A wallgate that is being configured, and runs.
#[derive(Debug)]
pub struct Wallgate<'room> {
    room: &'room Room,
    configuration: Table,
    allowed: Vec<Allowed>,
    policy: Option<PathBuf>,
    sandbox: String,
    state: PathBuf,
    /// Where the command runs, and where it may write.
    work: PathBuf,
    read_only: Vec<PathBuf>,
    /// Variables of wallgate itself, such as a credential's source.
    own_environment: Vec<(String, String)>,
    arguments: Vec<String>,
    patience: Duration,
}

impl<'room> Wallgate<'room> {
    pub(crate) fn new(room: &'room Room) -> Result<Self> {
        let work = room.new_directory("work")?;
        // Root inside is nobody outside.
        fs::set_permissions(&work, fs::Permissions::from_mode(0o777))
            .context("cannot open the work directory")?;
        let state = room.new_directory("state")?;
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700))
            .context("cannot close the state directory")?;
        Ok(Self {
            room,
            configuration: Table::new(),
            allowed: Vec::new(),
            policy: None,
            sandbox: "agent-7".to_owned(),
            state,
            work,
            read_only: Vec::new(),
            own_environment: Vec::new(),
            arguments: Vec::new(),
            patience: PATIENCE,
        })
    }

    /// Says where a server's name is dialled, and who signed its certificate.
    #[must_use]
    pub fn upstream(self, upstream: &Upstream) -> Self {
        let host = upstream.host.clone();
        self.upstream_as(&host, upstream)
    }

    /// The same, under another name.
    #[must_use]
    pub fn upstream_as(mut self, host: &str, upstream: &Upstream) -> Self {
        let mut entry = Table::new();
        entry.insert("host".to_owned(), host.into());
        entry.insert("address".to_owned(), upstream.address.to_string().into());
        if let Some(ca) = &upstream.ca {
            entry.insert("ca".to_owned(), ca.display().to_string().into());
        }
        self.entry("upstream", entry);
        self
    }

    /// Allows every request to a host.
    #[must_use]
    pub fn allow(self, host: &str) -> Self {
        self.allow_below(host, &[])
    }

    /// Allows requests to a host whose paths begin so.
    #[must_use]
    pub fn allow_below(mut self, host: &str, paths: &[&str]) -> Self {
        self.allowed.push(Allowed {
            host: host.to_owned(),
            paths: paths.iter().map(|&path| path.to_owned()).collect(),
            credentials: Vec::new(),
        });
        self
    }

    /// Allows every request to a host, and gives it this credential.
    #[must_use]
    pub fn allow_with(mut self, credential: &Credential<'_>) -> Self {
        self.allowed.push(Allowed {
            host: credential.host.to_owned(),
            paths: Vec::new(),
            credentials: vec![credential.name.to_owned()],
        });
        let mut bind = Table::new();
        bind.insert("hosts".to_owned(), Value::Array(vec![credential.host.into()]));
        let mut entry = Table::new();
        entry.insert("name".to_owned(), credential.name.into());
        entry.insert("source".to_owned(), credential.source.into());
        match credential.shape {
            "bearer" | "basic" => {
                entry.insert("shape".to_owned(), credential.shape.into());
            }
            header => {
                entry.insert("shape".to_owned(), "header".into());
                entry.insert("header".to_owned(), header.into());
            }
        }
        entry.insert("bind".to_owned(), bind.into());
        self.entry("credential", entry);
        self
    }

    /// Says what a host is.
    #[must_use]
    pub fn service(mut self, name: &str, host: &str, profile: &str) -> Self {
        let mut entry = Table::new();
        entry.insert("name".to_owned(), name.into());
        entry.insert("hosts".to_owned(), Value::Array(vec![host.into()]));
        entry.insert("profile".to_owned(), profile.into());
        self.entry("service", entry);
        self
    }

    /// Decides by this bundle alone, instead of by the library with what the test allows.
    #[must_use]
    pub fn policy(mut self, bundle: PathBuf) -> Self {
        self.policy = Some(bundle);
        self
    }

    /// Sets a table of the configuration, such as `vault.hashicorp`, from its TOML text.
    ///
    /// # Errors
    ///
    /// When it is not TOML.
    pub fn with_toml(mut self, text: &str) -> Result<Self> {
        let more: Table = toml::from_str(text).context("not TOML")?;
        self.configuration.extend(more);
        Ok(self)
    }

    /// Names the sandbox; `agent-7` otherwise.
    #[must_use]
    pub fn sandbox(mut self, id: &str) -> Self {
        id.clone_into(&mut self.sandbox);
        self
    }

    /// Keeps state in this directory.
    #[must_use]
    pub fn state(mut self, directory: PathBuf) -> Self {
        self.state = directory;
        self
    }

    /// Lets the command read a path.
    #[must_use]
    pub fn readable(mut self, path: impl Into<PathBuf>) -> Self {
        self.read_only.push(path.into());
        self
    }

    /// Sets a variable of wallgate itself; the command does not get it.
    #[must_use]
    pub fn own_variable(mut self, name: &str, value: &str) -> Self {
        self.own_environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds an argument to `wallgate run`.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Lets a run take this long.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The directory that the command runs in.
    #[must_use]
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// The state directory.
    #[must_use]
    pub fn state_directory(&self) -> &Path {
        &self.state
    }

    /// Runs a shell script behind the wall, to its end.
    ///
    /// # Errors
    ///
    /// When wallgate cannot be started, takes too long or leaves litter. A failing script is not an error here.
    pub fn sh(&self, script: &str) -> Result<Finished> {
        self.run(&["/bin/sh", "-c", script])
    }

    /// Runs a command behind the wall, to its end.
    ///
    /// # Errors
    ///
    /// When wallgate cannot be started, takes too long or leaves litter. A failing command is not an error here.
    pub fn run(&self, command: &[&str]) -> Result<Finished> {
        self.start(command)?.finish()
    }

    /// Starts a command behind the wall.
    ///
    /// # Errors
    ///
    /// When wallgate cannot be started.
    pub fn start(&self, command: &[&str]) -> Result<Running> {
        let before = Inventory::take()?;
        let configuration = self.write_configuration()?;
        let mut wallgate = Command::new(binary()?);
        wallgate
            .arg("run")
            .arg("--config")
            .arg(configuration)
            .args(["--sandbox", &self.sandbox, "--quiet"])
            .args(
                self.read_only
                    .iter()
                    .flat_map(|path| ["--ro-bind".into(), path.clone().into_os_string()]),
            )
            .arg("--bind")
            .arg(&self.work)
            .args(&self.arguments)
            .arg("--")
            .args(command)
            .envs(self.own_environment.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.work)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = wallgate.spawn().context("cannot start wallgate")?;
        let (sender, lines) = channel();
        watch(
            child.stdout.take().context("no output")?,
            Stream::Output,
            sender.clone(),
        );
        watch(
            child.stderr.take().context("no error output")?,
            Stream::Error,
            sender,
        );
        Ok(Running {
            child,
            lines,
            stdout: String::new(),
            stderr: String::new(),
            before,
            state: self.state.clone(),
            patience: self.patience,
        })
    }

    /// What the ledger holds now.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn records(&self) -> Result<Records> {
        Records::read(&self.state)
    }

    /// Writes the configuration and returns where.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write_configuration(&self) -> Result<PathBuf> {
        let mut configuration = self.configuration.clone();
        let bundle = self.policy.clone().unwrap_or_else(bundle::library);
        let directory = self.room.new_directory("configuration")?;
        // A test runs beside whatever else this machine does; what a timeout does is tested where it is decided.
        let mut policy = Table::new();
        policy.insert("eval_timeout_ms".to_owned(), Value::Integer(2000));
        if let Some(Value::Table(given)) = configuration.remove("policy") {
            policy.extend(given);
        }
        policy.insert("bundle".to_owned(), bundle.display().to_string().into());
        if self.policy.is_none() {
            let data = directory.join("data.json");
            fs::write(&data, bundle::data_for(&self.allowed).to_string())
                .context("cannot write the policy's data")?;
            policy.insert(
                "data".to_owned(),
                Value::Array(vec![data.display().to_string().into()]),
            );
        }
        configuration.insert("policy".to_owned(), policy.into());
        configuration.insert("state_dir".to_owned(), self.state.display().to_string().into());
        let path = directory.join("wallgate.toml");
        fs::write(&path, configuration.to_string()).context("cannot write the configuration")?;
        Ok(path)
    }

    fn entry(&mut self, list: &str, entry: Table) {
        let entries = self
            .configuration
            .entry(list.to_owned())
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(entries) = entries {
            entries.push(entry.into());
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Output,
    Error,
}

fn watch(output: impl Read + Send + 'static, stream: Stream, lines: Sender<(Stream, String)>) {
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            if lines
                .send((stream, String::from_utf8_lossy(&line).into_owned()))
                .is_err()
            {
                return;
            }
            line.clear();
        }
    });
}

/// A run that is under way.
#[derive(Debug)]
pub struct Running {
    child: Child,
    lines: Receiver<(Stream, String)>,
    stdout: String,
    stderr: String,
    before: Inventory,
    state: PathBuf,
    patience: Duration,
}

impl Running {
    /// Waits for the next line of output that satisfies `wanted`.
    ///
    /// # Errors
    ///
    /// When the run ends or takes too long without one.
    pub fn wait_for_line(&mut self, wanted: impl Fn(&str) -> bool) -> Result<String> {
        loop {
            match self.lines.recv_timeout(self.patience) {
                Ok((stream, line)) => {
                    self.note(stream, &line);
                    if stream == Stream::Output && wanted(line.trim_end()) {
                        return Ok(line.trim_end().to_owned());
                    }
                }
                Err(error) => bail!(
                    "the awaited line did not come ({error}): {}{}",
                    self.stdout,
                    self.stderr
                ),
            }
        }
    }

    /// The process id of `wallgate run`.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process id of the broker.
    ///
    /// # Errors
    ///
    /// When there is none in time.
    pub fn broker(&self) -> Result<u32> {
        wait_until("the broker", self.patience, || {
            let below = rss::descendants(self.pid()).ok()?;
            let (pid, _) = below.into_iter().find(|(_, command)| {
                let mut words = command.split(' ');
                words.next().is_some_and(|program| program.ends_with("wallgate"))
                    && words.next() == Some("broker")
            })?;
            Some(pid)
        })
    }

    /// Sends a signal to `wallgate run`.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        signal_process(self.pid(), signal)
    }

    /// Waits until it ends, and looks at what it left.
    ///
    /// # Errors
    ///
    /// When it takes too long or leaves litter.
    pub fn finish(mut self) -> Result<Finished> {
        loop {
            match self.lines.recv_timeout(self.patience) {
                Ok((stream, line)) => self.note(stream, &line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "the run did not end within {:?}: {}{}",
                        self.patience,
                        self.stdout,
                        self.stderr
                    )
                }
            }
        }
        let status = self.child.wait().context("cannot wait for wallgate")?;
        let finished = Finished {
            status,
            stdout: self.stdout,
            stderr: self.stderr,
            state: self.state,
        };
        self.before.nothing_new().with_context(|| finished.told())?;
        Ok(finished)
    }

    fn note(&mut self, stream: Stream, line: &str) {
        match stream {
            Stream::Output => self.stdout.push_str(line),
            Stream::Error => self.stderr.push_str(line),
        }
    }
}

/// Sends a signal to a process.
///
/// # Errors
///
/// When it is gone.
pub fn signal_process(pid: u32, signal: rustix::process::Signal) -> Result<()> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .context("not a process id")?;
    rustix::process::kill_process(pid, signal).context("cannot send the signal")
}

/// A run that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How `wallgate run` ended.
    pub status: ExitStatus,
    /// What it and the command printed.
    pub stdout: String,
    /// What they printed as errors.
    pub stderr: String,
    state: PathBuf,
}

impl Finished {
    /// The same, when the command succeeded.
    ///
    /// # Errors
    ///
    /// With everything that was printed, when it did not.
    pub fn succeeded(self) -> Result<Self> {
        if !self.status.success() {
            bail!(
                "the command failed: {}\nthe ledger: {}",
                self.told(),
                self.ledger_told()
            );
        }
        Ok(self)
    }

    /// The same, when the command failed.
    ///
    /// # Errors
    ///
    /// With everything that was printed, when it did not.
    pub fn refused(self) -> Result<Self> {
        if self.status.success() {
            bail!(
                "the command succeeded: {}\nthe ledger: {}",
                self.told(),
                self.ledger_told()
            );
        }
        Ok(self)
    }

    /// The exit code.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// What the ledger holds.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn records(&self) -> Result<Records> {
        Records::read(&self.state)
    }

    /// Everything that was printed.
    #[must_use]
    pub fn told(&self) -> String {
        format!(
            "{}\n--- output\n{}\n--- errors\n{}",
            self.status, self.stdout, self.stderr
        )
    }

    fn ledger_told(&self) -> String {
        self.records()
            .map_or_else(|error| format!("{error:#}"), |records| records.summary())
    }
}

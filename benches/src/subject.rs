//! What is measured: nothing at all, the bare limit, and wallgate with everything on.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::load::{Seen, new_name};
use crate::origin::{Origin, free_port};
use crate::pki::{DOMAIN, Files};
use crate::process::{self, Owned, descendant, pinned, wait_for};

/// Where the subject runs.
const SUBJECT_CPU: usize = 0;
/// Where the load generator and the origin run.
pub(crate) const LOAD_CPU: usize = 1;
/// How many hosts the policy knows besides the one that is asked for.
const OTHER_HOSTS: usize = 200;
/// How many never-seen names there are.
pub(crate) const NEW_NAMES: usize = 40;
/// What wallgate injects.
const TOKEN: &str = "bench-0123456789abcdef0123456789abcdef";

/// What stands between the load generator and the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Nothing.
    Direct,
    /// [`crate::bare`].
    Bare,
    /// The real thing, with the wall, policy, injection, scrubbing and the ledger.
    Wallgate,
}

impl Subject {
    /// The order in which they take turns.
    pub(crate) const ALL: [Self; 3] = [Self::Direct, Self::Bare, Self::Wallgate];

    /// Its name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Bare => "bare",
            Self::Wallgate => "wallgate",
        }
    }
}

/// What every phase needs.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    /// A folder that goes away afterwards.
    pub(crate) folder: &'a Path,
    /// The throw-away authority.
    pub(crate) files: &'a Files,
    /// The running origin.
    pub(crate) origin: &'a Origin,
    /// The `wallgate` binary.
    pub(crate) wallgate: &'a Path,
    /// The policy bundle.
    pub(crate) policies: &'a Path,
}

/// One phase of one subject, measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// What the load generator saw.
    pub(crate) seen: Seen,
    /// The subject's CPU time between `begin` and the end.
    pub(crate) cpu: Duration,
    /// The subject's proportional set size at `begin`, in KiB.
    pub(crate) pss_kib: u64,
}

impl Bench<'_> {
    /// Runs one phase against a fresh subject.
    pub(crate) fn measure(&self, subject: Subject, load: &[String]) -> Result<Measured> {
        match subject {
            Subject::Direct => self.outside(load, &self.origin.address.to_string(), None),
            Subject::Bare => {
                let (bare, address) = self.start_bare()?;
                self.outside(load, &address, Some(bare.0.id()))
            }
            Subject::Wallgate => self.behind_the_wall(load),
        }
        .with_context(|| format!("{}: {load:?}", subject.name()))
    }

    fn start_bare(&self) -> Result<(Owned, String)> {
        let listen = free_port()?;
        let program = own_program()?;
        let mut command = pinned(SUBJECT_CPU, &program.to_string_lossy());
        command
            .args([
                "bare",
                "--listen",
                &listen.to_string(),
                "--origin",
                &self.origin.address.to_string(),
            ])
            .arg("--leaf")
            .arg(&self.files.leaf)
            .arg("--key")
            .arg(&self.files.key)
            .arg("--authority")
            .arg(&self.files.authority);
        let bare = Owned::start(&mut command)?;
        wait_for("bare does not answer", || {
            Ok(std::net::TcpStream::connect(listen)?)
        })?;
        Ok((bare, listen.to_string()))
    }

    fn outside(&self, load: &[String], address: &str, subject: Option<u32>) -> Result<Measured> {
        let mut command = pinned(LOAD_CPU, &own_program()?.to_string_lossy());
        command
            .arg("load")
            .args(load)
            .args(["--address", address])
            .arg("--authority")
            .arg(&self.files.authority);
        watch(command, |_| Ok(subject))
    }

    fn behind_the_wall(&self, load: &[String]) -> Result<Measured> {
        let state = tempfile::tempdir_in(self.folder)?;
        let config = state.path().join("wallgate.toml");
        fs::write(&config, self.configuration(state.path())?)?;
        let mut command = pinned(SUBJECT_CPU, &self.wallgate.to_string_lossy());
        command
            .args(["run", "--quiet", "--config"])
            .arg(&config)
            .arg("--state")
            .arg(state.path().join("state"))
            .args(["--", "taskset", "-c", &LOAD_CPU.to_string()])
            .arg(own_program()?)
            .arg("load")
            .args(load)
            .args(["--authority", "/etc/ssl/certs/ca-certificates.crt"])
            .env("BENCH_TOKEN", TOKEN);
        watch(command, |run| descendant(run.id(), "broker").map(Some))
    }

    /// Everything on: 200 other hosts in the policy, a credential to inject and therefore to scrub, a durable ledger.
    fn configuration(&self, folder: &Path) -> Result<String> {
        let bundle = folder.join("bundle");
        copy_rego(self.policies, &bundle)?;
        let hosts: Vec<String> = (0..OTHER_HOSTS)
            .map(|number| format!("h{number}.other.test"))
            .collect();
        let names: Vec<String> = std::iter::once(DOMAIN.to_owned())
            .chain((0..NEW_NAMES).map(new_name))
            .collect();
        let rules: serde_json::Map<String, serde_json::Value> = hosts
            .iter()
            .chain(&names)
            .map(|host| {
                (
                    host.clone(),
                    serde_json::json!([{"methods": ["GET"], "paths": ["/"], "credentials": ["bench"]}]),
                )
            })
            .collect();
        fs::write(
            bundle.join("data.json"),
            serde_json::to_vec(&serde_json::json!({"allow": {"hosts": rules}}))?,
        )?;

        let mut text = format!("[policy]\nbundle = \"{}\"\n\n", bundle.display());
        for name in &names {
            writeln!(
                text,
                "[[upstream]]\nhost = \"{name}\"\naddress = \"{}\"\nca = \"{}\"\n",
                self.origin.address,
                self.files.authority.display()
            )?;
        }
        let names = serde_json::to_string(&names)?;
        writeln!(
            text,
            "[[credential]]\nname = \"bench\"\nsource = \"env:BENCH_TOKEN\"\nshape = \"bearer\"\nbind = {{ hosts = {names}, methods = [\"GET\"], paths = [\"/**\"] }}"
        )?;
        Ok(text)
    }
}

/// Copies the Rego files, without their data, so that the bench's own data stands in.
fn copy_rego(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        if path.is_dir() {
            copy_rego(&path, &to.join(path.file_name().unwrap_or_default()))?;
        } else if path.extension().is_some_and(|extension| extension == "rego") {
            fs::copy(&path, to.join(path.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}

fn own_program() -> Result<PathBuf> {
    Ok(std::env::current_exe()?)
}

/// Runs a load generator and reads the subject's usage when it begins and when it is done.
fn watch(mut command: Command, find: impl FnOnce(&Child) -> Result<Option<u32>>) -> Result<Measured> {
    let mut load = Owned::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let mut input: Option<ChildStdin> = load.0.stdin.take();
    let output = load.0.stdout.take().context("no output")?;
    let mut lines = BufReader::new(output).lines();

    let first = lines
        .next()
        .context("the load generator failed before it began")??;
    ensure!(first == "begin", "unexpected: {first}");
    let subject = find(&load.0)?;
    let before = subject.map(process::cpu).transpose()?.unwrap_or_default();
    let pss_kib = subject.map(process::pss_kib).transpose()?.unwrap_or_default();
    if let Some(input) = input.as_mut() {
        input.flush()?;
    }
    drop(input);

    let last = lines.next().context("the load generator failed")??;
    let after = subject.map(process::cpu).transpose()?.unwrap_or_default();
    let seen = serde_json::from_str(&last).with_context(|| last.clone())?;
    load.0.wait()?;
    Ok(Measured {
        seen,
        cpu: after.saturating_sub(before),
        pss_kib,
    })
}

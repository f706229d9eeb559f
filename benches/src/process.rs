//! What a process has used, from `/proc`.

use std::fs;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// A process that is ended, by its pid, when this is dropped.
#[derive(Debug)]
pub(crate) struct Owned(pub(crate) Child);

impl Owned {
    /// Starts `command`.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        command
            .spawn()
            .map(Self)
            .with_context(|| format!("cannot start {name}"))
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let ended = self.0.kill().and_then(|()| self.0.wait());
        if let Err(error) = ended {
            eprintln!("a process was not ended: {error}");
        }
    }
}

/// A command pinned to one processor.
pub(crate) fn pinned(cpu: usize, program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string(), program]);
    command
}

/// CPU time of all threads that are alive (`schedstat`, nanosecond resolution).
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let mut total = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        total += text
            .split(' ')
            .next()
            .and_then(|ns| ns.parse::<u64>().ok())
            .unwrap_or_default();
    }
    Ok(Duration::from_nanos(total))
}

/// Proportional set size, in KiB.
pub(crate) fn pss_kib(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .context("no Pss")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}

/// The descendant of `ancestor` whose command line contains `word`.
pub(crate) fn descendant(ancestor: u32, word: &str) -> Result<u32> {
    let mut queue = vec![ancestor];
    while let Some(pid) = queue.pop() {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if pid != ancestor
            && arguments
                .split(|byte| *byte == 0)
                .any(|argument| argument == word.as_bytes())
        {
            return Ok(pid);
        }
        for thread in fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            queue.extend(
                children
                    .split_ascii_whitespace()
                    .filter_map(|child| child.parse::<u32>().ok()),
            );
        }
    }
    bail!("no descendant of {ancestor} was started with {word}")
}

/// Tries until it works, for at most ten seconds.
pub(crate) fn wait_for<T>(what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > end => return Err(error.context(what.to_owned())),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

//! What a run may leave behind: nothing.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::wait_until;

/// How long what is ending may take to be gone.
const PATIENCE: Duration = Duration::from_secs(3);

/// Everything in the room that a run could leave behind, each as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory(BTreeSet<String>);

impl Inventory {
    /// Looks around.
    ///
    /// # Errors
    ///
    /// When something cannot be read.
    pub fn take() -> Result<Self> {
        let mut found = BTreeSet::new();
        processes(&mut found)?;
        for line in read("/proc/self/net/dev")?.lines().skip(2) {
            let name = line.split(':').next().unwrap_or_default().trim();
            found.insert(format!("link {name}"));
        }
        for line in read("/proc/self/mountinfo")?.lines() {
            // Field 5 is where it is mounted; the ids before it are the kernel's own.
            let place = line.split(' ').nth(4).unwrap_or_default();
            found.insert(format!("mount {place}"));
        }
        for directory in ["/run/netns", "/run/wallgate", "/sys/fs/bpf", "/dev/shm"] {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                found.insert(format!("file {}", entry.path().display()));
            }
        }
        if let Ok(output) = Command::new("nft").args(["list", "tables"]).output() {
            for table in String::from_utf8_lossy(&output.stdout).lines() {
                found.insert(format!("nftables {table}"));
            }
        }
        Ok(Self(found))
    }

    /// Fails when there is now something that was not there then.
    ///
    /// # Errors
    ///
    /// Names what was left.
    pub fn nothing_new(&self) -> Result<()> {
        let mut left = Vec::new();
        let cleared = wait_until("the room to be tidy", PATIENCE, || {
            left = Self::take().ok()?.0.difference(&self.0).cloned().collect();
            left.is_empty().then_some(())
        });
        if cleared.is_err() {
            bail!("the run left behind: {left:#?}");
        }
        Ok(())
    }
}

fn processes(found: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir("/proc").context("no /proc")? {
        let name = entry.context("no /proc")?.file_name();
        let Some(pid) = name
            .to_str()
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        else {
            continue;
        };
        // One that ends while it is being looked at is not there any more; nor is one that only waits to be reaped.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        if state.starts_with('Z') || state.starts_with('X') {
            continue;
        }
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        found.insert(format!("process {pid} {command}"));
    }
    Ok(())
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {path}"))
}

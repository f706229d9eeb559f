//! How much memory a process took, at most.

use std::fs;

use anyhow::{Context, Result};

/// The most memory that process `pid` ever had resident (`VmHWM`), in bytes.
///
/// # Errors
///
/// When the process is gone.
pub fn peak_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} is gone"))?;
    let kibibytes: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|value| value.trim().split(' ').next())
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("process {pid} does not say how much memory it took"))?;
    Ok(kibibytes * 1024)
}

/// The processes below `ancestor`, with their command lines.
///
/// # Errors
///
/// When `/proc` cannot be read.
pub fn descendants(ancestor: u32) -> Result<Vec<(u32, String)>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").context("no /proc")? {
        let name = entry.context("no /proc")?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        let parent = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if let Some(parent) = parent {
            parents.push((pid, parent, String::from_utf8_lossy(&command).replace('\0', " ")));
        }
    }
    let mut below = vec![ancestor];
    let mut found = Vec::new();
    while let Some(current) = below.pop() {
        for (pid, parent, command) in &parents {
            if *parent == current {
                below.push(*pid);
                found.push((*pid, command.clone()));
            }
        }
    }
    Ok(found)
}

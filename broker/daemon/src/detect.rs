//! `wallgate service detect`: which package hosts this host's clients use, as `[[service]]` entries to review.
//!
//! Only what is configured is found; hosts that a client uses by default are never written here from memory. Credentials
//! in what is read are not shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use wallgate_types::authority::Host;

use crate::exit::Failure;
use crate::output;

/// The largest client configuration that is read, in bytes.
const MAX_CLIENT_FILE_BYTES: u64 = 1024 * 1024;

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Read the configuration of npm, pip, cargo, Go, Maven, apt and docker on this host and print `[[service]]`
    /// entries to review.
    Detect {
        /// The entries as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// A kind of client: where its configuration is, and what a line with an address in it begins with.
struct Client {
    name: &'static str,
    profile: &'static str,
    files: &'static [&'static str],
    /// Lower case; any line that holds one of these before an address counts.
    keys: &'static [&'static str],
    variables: &'static [&'static str],
}

/// `~` is the home directory.
const CLIENTS: &[Client] = &[
    Client {
        name: "npm",
        profile: "npm",
        files: &[
            "~/.npmrc",
            "/etc/npmrc",
            "/usr/etc/npmrc",
            ".npmrc",
            "~/.yarnrc.yml",
            ".yarnrc.yml",
        ],
        keys: &["registry", "npmregistryserver"],
        variables: &[
            "NPM_CONFIG_REGISTRY",
            "npm_config_registry",
            "YARN_NPM_REGISTRY_SERVER",
        ],
    },
    Client {
        name: "pip",
        profile: "pypi",
        files: &[
            "/etc/pip.conf",
            "~/.config/pip/pip.conf",
            "~/.pip/pip.conf",
            "~/.config/uv/uv.toml",
            "uv.toml",
        ],
        keys: &["index-url", "extra-index-url", "find-links", "url"],
        variables: &[
            "PIP_INDEX_URL",
            "PIP_EXTRA_INDEX_URL",
            "UV_INDEX_URL",
            "UV_DEFAULT_INDEX",
            "UV_INDEX",
        ],
    },
    Client {
        name: "cargo",
        profile: "cargo",
        files: &[
            "~/.cargo/config.toml",
            "~/.cargo/config",
            ".cargo/config.toml",
            "/etc/cargo/config.toml",
        ],
        keys: &["registry", "index"],
        variables: &[],
    },
    Client {
        name: "go",
        profile: "none",
        files: &["~/.config/go/env", "/etc/go/env"],
        keys: &["goproxy", "gosumdb"],
        variables: &["GOPROXY", "GOSUMDB"],
    },
    Client {
        name: "maven",
        profile: "none",
        files: &["~/.m2/settings.xml", "/etc/maven/settings.xml"],
        keys: &["<url>"],
        variables: &[],
    },
    Client {
        name: "apt",
        profile: "none",
        files: &["/etc/apt/sources.list", "/etc/apt/sources.list.d/"],
        keys: &["deb", "uris"],
        variables: &[],
    },
    Client {
        name: "docker",
        profile: "none",
        files: &["/etc/docker/daemon.json", "~/.docker/config.json"],
        keys: &["registry-mirrors", "\"http"],
        variables: &[],
    },
];

#[derive(Debug, Serialize, PartialEq, Eq)]
struct Entry {
    name: &'static str,
    profile: &'static str,
    hosts: Vec<String>,
    found_in: Vec<String>,
}

/// Prints them.
pub(crate) fn run(command: &ServiceCommand) -> Result<ExitCode, Failure> {
    let ServiceCommand::Detect { json } = command;
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    let entries: Vec<Entry> = CLIENTS
        .iter()
        .filter_map(|client| detect(client, &home))
        .collect();
    if *json {
        output::json(&entries)?;
    } else if entries.is_empty() {
        output::line("# no client configuration on this host names a package host")?;
    } else {
        entries.iter().try_for_each(|entry| output::line(&shown(entry)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn detect(client: &Client, home: &Path) -> Option<Entry> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in client.files.iter().flat_map(|file| expand(file, home)) {
        let Some(text) = read(&file) else { continue };
        for host in text.lines().flat_map(|line| hosts(line, client.keys)) {
            found.entry(host).or_default().insert(file.display().to_string());
        }
    }
    for variable in client.variables {
        let value = std::env::var(variable).unwrap_or_default();
        for host in addresses(&value) {
            found.entry(host).or_default().insert(format!("${variable}"));
        }
    }
    let places: BTreeSet<String> = found.values().flatten().cloned().collect();
    (!found.is_empty()).then(|| Entry {
        name: client.name,
        profile: client.profile,
        hosts: found.into_keys().collect(),
        found_in: places.into_iter().collect(),
    })
}

fn expand(file: &str, home: &Path) -> Vec<PathBuf> {
    let path = match file.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None => PathBuf::from(file),
    };
    if !file.ends_with('/') {
        return vec![path];
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn read(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let fine = metadata.is_file() && metadata.len() <= MAX_CLIENT_FILE_BYTES;
    fine.then(|| fs::read_to_string(path).ok()).flatten()
}

/// The hosts in a line that is no comment and holds one of the keys before its first address.
fn hosts(line: &str, keys: &[&str]) -> Vec<String> {
    let text = line.trim();
    let comment = text.starts_with(['#', ';']) || text.starts_with("<!--");
    let before = text
        .find("://")
        .and_then(|at| text.get(..at))
        .unwrap_or_default()
        .to_ascii_lowercase();
    if comment || !keys.iter().any(|key| before.contains(key)) {
        return Vec::new();
    }
    addresses(text)
}

/// The host of each `scheme://` address, without user, port and path.
fn addresses(text: &str) -> Vec<String> {
    let authority = |rest: &str| {
        let end = rest
            .find(|c: char| "/\"'<>,| \t?#".contains(c))
            .unwrap_or(rest.len());
        let with_user = rest.get(..end)?;
        let with_port = with_user.rsplit('@').next()?;
        let host = match with_port.rfind(']') {
            Some(end) => with_port.get(..=end)?,
            None => with_port.split(':').next()?,
        };
        Host::parse_unicode(host).ok().map(|host| host.to_string())
    };
    text.split("://").skip(1).filter_map(authority).collect()
}

fn shown(entry: &Entry) -> String {
    let hosts: Vec<_> = entry.hosts.iter().map(|host| format!("{host:?}")).collect();
    let review = if entry.profile == "none" {
        "   # no grammar for this client yet: every request is `unknown`, which counts as a write"
    } else {
        ""
    };
    format!(
        "# found in {}\n[[service]]\nname = {:?}\nhosts = [{}]\nprofile = {:?}{review}\n",
        entry.found_in.join(", "),
        entry.name,
        hosts.join(", "),
        entry.profile,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_hosts_and_never_what_stands_before_them() {
        let rows: [(&str, &[&str], &[&str]); 7] = [
            (
                "registry=https://npm.corp.test/api/npm/",
                &["registry"],
                &["npm.corp.test"],
            ),
            (
                "index-url = https://user:pass@pypi.corp.test:8443/simple",
                &["index-url"],
                &["pypi.corp.test"],
            ),
            (
                "registry = \"sparse+https://crates.corp.test/index/\"",
                &["registry"],
                &["crates.corp.test"],
            ),
            ("# registry=https://old.corp.test/", &["registry"], &[]),
            ("homepage = https://elsewhere.test/", &["registry"], &[]),
            (
                "GOPROXY=https://go.corp.test,https://go2.corp.test|direct",
                &["goproxy"],
                &["go.corp.test", "go2.corp.test"],
            ),
            (
                "deb [arch=amd64] http://[2001:db8::1]:80/debian x main",
                &["deb"],
                &["[2001:db8::1]"],
            ),
        ];
        for (line, keys, expected) in rows {
            assert_eq!(hosts(line, keys), expected, "{line}");
        }
    }
}

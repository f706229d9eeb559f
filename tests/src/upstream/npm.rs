//! verdaccio, where everybody may publish, so that a publish that does not arrive was stopped by the wall.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Upstream;
use super::front::Front;
use crate::process::{Server, free_port, succeed};
use crate::room::Room;
use crate::tools;

/// An npm registry.
#[derive(Debug)]
pub struct Npm {
    /// The server.
    pub upstream: Upstream,
    /// The server itself, for filling it without a wall.
    backend: SocketAddr,
    directory: PathBuf,
}

impl Npm {
    /// Serves packages as `https://HOST/`.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start(room: &Room, host: &str) -> Result<Self> {
        let directory = room.new_directory("npm")?;
        let configuration = directory.join("verdaccio.yaml");
        fs::write(&configuration, configured(&directory)).context("cannot write its configuration")?;
        let backend = free_port()?;
        let server = Server::start(
            "verdaccio",
            Command::new(tools::node()?)
                .arg(tools::verdaccio()?)
                .args(["--listen", &backend.to_string(), "--config"])
                .arg(&configuration)
                .env("HOME", &directory)
                .current_dir(&directory),
            backend,
            &directory,
        )?;
        room.keep(server);
        Ok(Self {
            upstream: Upstream::https(room, host, Front::of(backend))?,
            backend,
            directory,
        })
    }

    /// Publishes a package of one module, with the real client, past the wall.
    ///
    /// # Errors
    ///
    /// When it cannot be published: then a refused publish would prove nothing.
    pub fn add(&self, room: &Room, name: &str, version: &str, content: &str) -> Result<()> {
        let package = room.new_directory("npm-package")?;
        write_package(&package, name, version, content)?;
        let npmrc = package.join(".npmrc");
        fs::write(
            &npmrc,
            format!(
                "registry=http://{0}/\n//{0}/:_authToken={1}\n",
                self.backend,
                self.token()?
            ),
        )
        .context("cannot write .npmrc")?;
        succeed(
            Command::new(tools::node()?)
                .arg(tools::npm()?)
                .args([
                    "publish",
                    "--loglevel=error",
                    "--no-update-notifier",
                    "--userconfig",
                ])
                .arg(&npmrc)
                .arg("--cache")
                .arg(package.join("cache"))
                .current_dir(&package)
                .env("HOME", &package),
        )?;
        Ok(())
    }

    /// A token of a user that is made for it.
    fn token(&self) -> Result<String> {
        let user = r#"{"name":"filler","password":"filler-password","_id":"org.couchdb.user:filler","type":"user","roles":[]}"#;
        let answer = succeed(
            Command::new("/usr/bin/curl")
                .args(["--silent", "--show-error", "--fail", "--request", "PUT"])
                .args(["--header", "content-type: application/json", "--data", user])
                .arg(format!("http://{}/-/user/org.couchdb.user:filler", self.backend)),
        )?;
        let answer: serde_json::Value = serde_json::from_str(&answer).context("not JSON")?;
        Ok(answer
            .get("token")
            .and_then(serde_json::Value::as_str)
            .context("no token")?
            .to_owned())
    }

    /// Whether the registry holds this package.
    #[must_use]
    pub fn holds(&self, name: &str) -> bool {
        self.directory.join("storage").join(name).exists()
    }

    /// The registry's users.
    #[must_use]
    pub fn users(&self) -> String {
        fs::read_to_string(self.directory.join("users")).unwrap_or_default()
    }
}

/// Writes a package of one module.
///
/// # Errors
///
/// When it cannot be written.
pub fn write_package(directory: &Path, name: &str, version: &str, content: &str) -> Result<()> {
    let manifest =
        serde_json::json!({"name": name, "version": version, "main": "index.js", "license": "Apache-2.0"});
    fs::write(directory.join("package.json"), manifest.to_string()).context("cannot write package.json")?;
    fs::write(directory.join("index.js"), content).context("cannot write index.js")
}

fn configured(directory: &Path) -> String {
    format!(
        "storage: {0}/storage
auth:
  htpasswd:
    file: {0}/users
    max_users: 100
uplinks: {{}}
packages:
  '@*/*': {{ access: $all, publish: $all, unpublish: $all }}
  '**': {{ access: $all, publish: $all, unpublish: $all }}
log: {{ type: stdout, format: pretty, level: warn }}
",
        directory.display()
    )
}

//! A real OpenBao server, for credentials that come from a vault.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::Result;

use crate::process::{Server, free_port, succeed};
use crate::room::Room;
use crate::tools;

/// The token that may do everything.
pub const ROOT_TOKEN: &str = "test-root-token";

/// An OpenBao server in its development mode: in memory, unsealed, with a KV version 2 engine at `secret/`.
#[derive(Debug)]
pub struct OpenBao {
    address: SocketAddr,
}

impl OpenBao {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start(room: &Room) -> Result<Self> {
        let directory = room.new_directory("openbao")?;
        let address = free_port()?;
        let server = Server::start(
            "openbao",
            Command::new(tools::python("bao")?)
                .args(["server", "-dev", "-dev-no-store-token"])
                .arg(format!("-dev-root-token-id={ROOT_TOKEN}"))
                .arg(format!("-dev-listen-address={address}"))
                .env("HOME", &directory)
                .current_dir(&directory),
            address,
            &directory,
        )?;
        room.keep(server);
        Ok(Self { address })
    }

    /// Its address as a configuration has it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stores one field of one secret, as a new version.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub fn put(&self, secret: &str, field: &str, value: &str) -> Result<()> {
        let data = serde_json::json!({"data": {field: value}}).to_string();
        self.call(
            &["--request", "POST", "--data", &data],
            &format!("secret/data/{secret}"),
        )
    }

    /// Seals it, so that it answers nothing any more until it is restarted.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub fn seal(&self) -> Result<()> {
        self.call(&["--request", "PUT"], "sys/seal")
    }

    fn call(&self, arguments: &[&str], path: &str) -> Result<()> {
        succeed(
            Command::new("/usr/bin/curl")
                .args([
                    "--silent",
                    "--show-error",
                    "--fail",
                    "--retry",
                    "5",
                    "--retry-all-errors",
                ])
                .args(["--header", &format!("X-Vault-Token: {ROOT_TOKEN}")])
                .args(arguments)
                .arg(format!("{}/v1/{path}", self.url())),
        )
        .map(drop)
    }
}

//! Policy bundles for tests: small ones written for one test, and the library of the tree with a test's data.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::room::Room;

/// Names may be looked up, and requests sent, for the hosts of `data.test.hosts`; a request for one of them is given
/// the credentials that stand there. Everything else is denied.
const HOSTS: &str = r#"package wallgate

import rego.v1

default decision := {"verdict": "deny", "rule": "test.default", "reason": "No rule of this test allows it."}

decision := {
	"verdict": "allow",
	"rule": "test.hosts",
	"reason": "This test allows the host.",
	"credentials": credentials,
} if {
	data.test.hosts[input.request.host]
	not refused
}

decision := {"verdict": "deny", "rule": "test.refused", "reason": "This test refuses the path."} if {
	data.test.hosts[input.request.host]
	refused
}

refused if startswith(input.request.path, "/refused")

default credentials := []

credentials := data.test.hosts[input.request.host].credentials if input.request.protocol != "dns"
"#;

/// What a test allows one host.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// The host.
    pub host: String,
    /// The names of credentials that its requests are given.
    pub credentials: Vec<String>,
}

/// Writes a bundle that allows these hosts every path but those that begin with `/refused`.
///
/// # Errors
///
/// When it cannot be written.
pub fn for_hosts(room: &Room, hosts: &[Allowed]) -> Result<PathBuf> {
    let allowed: serde_json::Map<String, serde_json::Value> = hosts
        .iter()
        .map(|allowed| {
            (
                allowed.host.clone(),
                serde_json::json!({"credentials": allowed.credentials}),
            )
        })
        .collect();
    written(room, HOSTS, &serde_json::json!({"test": {"hosts": allowed}}))
}

/// Writes a bundle of one module and its data.
///
/// # Errors
///
/// When it cannot be written.
pub fn written(room: &Room, rego: &str, data: &serde_json::Value) -> Result<PathBuf> {
    let bundle = room.new_directory("bundle")?;
    fs::write(bundle.join("test.rego"), rego).context("cannot write the bundle")?;
    fs::write(bundle.join("data.json"), data.to_string()).context("cannot write the bundle's data")?;
    Ok(bundle)
}

/// The library of this tree.
#[must_use]
pub fn library() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies")
}

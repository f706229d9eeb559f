//! Policies for tests: the library of the tree with a test's data, and small bundles written for one test.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::room::Room;

/// What a test allows one host.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// The host.
    pub host: String,
    /// Where its paths begin; empty for every path.
    pub paths: Vec<String>,
    /// The names of credentials that its requests are given.
    pub credentials: Vec<String>,
}

/// The library of this tree.
#[must_use]
pub fn library() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies")
}

/// The library's data that allows these hosts every method, in the words of `policies/hosts.rego`.
#[must_use]
pub fn data_for(hosts: &[Allowed]) -> Value {
    let mut listed = Map::new();
    for allowed in hosts {
        let mut rule = json!({
            "methods": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"],
            "credentials": allowed.credentials,
        });
        if let (Some(rule), false) = (rule.as_object_mut(), allowed.paths.is_empty()) {
            rule.insert("paths".to_owned(), json!(allowed.paths));
        }
        listed.insert(allowed.host.clone(), json!([rule]));
    }
    json!({"allow": {"hosts": listed}})
}

/// Writes a bundle of one module and its data.
///
/// # Errors
///
/// When it cannot be written.
pub fn written(room: &Room, rego: &str, data: &Value) -> Result<PathBuf> {
    let bundle = room.new_directory("bundle")?;
    fs::write(bundle.join("test.rego"), rego).context("cannot write the bundle")?;
    fs::write(bundle.join("data.json"), data.to_string()).context("cannot write the bundle's data")?;
    Ok(bundle)
}

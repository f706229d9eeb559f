//! A cargo registry: the sparse index, downloads, and the part of the web API that publishes and yanks.
//!
//! Small, but what the real cargo talks to. Everybody may publish, so that a publish that does not arrive was stopped by
//! the wall.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use http_body_util::BodyExt as _;
use hyper::{Method, StatusCode};
use sha2::{Digest as _, Sha256};

use super::Upstream;
use super::serve::{Answer, Answering, Arrived, Service, answer_text};
use crate::process::succeed;
use crate::room::Room;

#[derive(Clone, Debug)]
struct Stored {
    version: String,
    archive: Vec<u8>,
    yanked: bool,
}

type Shelf = Arc<Mutex<BTreeMap<String, Vec<Stored>>>>;

/// A registry of crates.
#[derive(Debug)]
pub struct Crates {
    /// The server.
    pub upstream: Upstream,
    shelf: Shelf,
}

impl Crates {
    /// Serves crates as `sparse+https://HOST/index/`.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start(room: &Room, host: &str) -> Result<Self> {
        let shelf = Shelf::default();
        let registry = Registry {
            host: host.to_owned(),
            shelf: Arc::clone(&shelf),
        };
        Ok(Self {
            upstream: Upstream::https(room, host, registry)?,
            shelf,
        })
    }

    /// Adds a crate of one file.
    ///
    /// # Errors
    ///
    /// When it cannot be packed.
    pub fn add(&self, room: &Room, name: &str, version: &str, content: &str) -> Result<()> {
        let directory = room.new_directory("crate")?;
        let source = directory.join(format!("{name}-{version}"));
        write_crate(&source, name, version, content)?;
        let archive = directory.join("archive");
        succeed(
            Command::new("tar")
                .args(["--create", "--gzip", "--file"])
                .arg(&archive)
                .arg("--directory")
                .arg(&directory)
                .arg(format!("{name}-{version}")),
        )?;
        let archive = std::fs::read(archive).context("no archive")?;
        let stored = Stored {
            version: version.to_owned(),
            archive,
            yanked: false,
        };
        self.shelf
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(name.to_owned())
            .or_default()
            .push(stored);
        Ok(())
    }

    /// The versions of a crate, and whether each is yanked.
    #[must_use]
    pub fn versions(&self, name: &str) -> Vec<(String, bool)> {
        let kept = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = kept.get(name).map(Vec::as_slice).unwrap_or_default();
        stored
            .iter()
            .map(|stored| (stored.version.clone(), stored.yanked))
            .collect()
    }
}

/// Writes a crate of one file.
///
/// # Errors
///
/// When it cannot be written.
pub fn write_crate(directory: &Path, name: &str, version: &str, content: &str) -> Result<()> {
    std::fs::create_dir_all(directory.join("src")).context("no directory for the crate")?;
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"{version}\"\nedition = \"2021\"\nlicense = \"Apache-2.0\"\n\
         description = \"a test\"\n\n[workspace]\n"
    );
    std::fs::write(directory.join("Cargo.toml"), manifest).context("cannot write Cargo.toml")?;
    std::fs::write(directory.join("src/lib.rs"), content).context("cannot write lib.rs")
}

#[derive(Debug)]
struct Registry {
    host: String,
    shelf: Shelf,
}

impl Service for Registry {
    fn answer(&self, request: Arrived) -> Answering {
        Box::pin(answer(request, self.host.clone(), Arc::clone(&self.shelf)))
    }
}

async fn answer(request: Arrived, host: String, shelf: Shelf) -> Result<Answer> {
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let method = request.method().clone();
    let found = match (method, segments.as_slice()) {
        (Method::GET, ["index", "config.json"]) => Some(
            serde_json::json!({"dl": format!("https://{host}/dl"), "api": format!("https://{host}")})
                .to_string()
                .into_bytes(),
        ),
        (Method::GET, ["index", .., name]) => index(&shelf, name),
        (Method::GET, ["dl", name, version, "download"]) => archive(&shelf, name, version),
        (Method::PUT, ["api", "v1", "crates", "new"]) => {
            let body = request.into_body().collect().await?.to_bytes();
            publish(&shelf, &body)?;
            Some(b"{}".to_vec())
        }
        (Method::DELETE, ["api", "v1", "crates", name, version, "yank"]) => {
            yank(&shelf, name, version);
            Some(br#"{"ok":true}"#.to_vec())
        }
        _ => None,
    };
    Ok(found.map_or_else(
        || answer_text(StatusCode::NOT_FOUND, "no such thing\n"),
        |body| answer_text(StatusCode::OK, body),
    ))
}

/// One line of JSON a version, as the index format has it.
fn index(shelf: &Shelf, name: &str) -> Option<Vec<u8>> {
    let shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
    let lines: Vec<String> = shelf
        .get(name)?
        .iter()
        .map(|stored| {
            let sha256 = hex::encode(Sha256::digest(&stored.archive));
            serde_json::json!({"name": name, "vers": stored.version, "deps": [], "features": {}, "cksum": sha256, "yanked": stored.yanked})
                .to_string()
        })
        .collect();
    Some(lines.join("\n").into_bytes())
}

fn archive(shelf: &Shelf, name: &str, version: &str) -> Option<Vec<u8>> {
    let shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
    shelf
        .get(name)?
        .iter()
        .find(|stored| stored.version == version)
        .map(|stored| stored.archive.clone())
}

/// The body is a length, JSON, a length, the archive; the lengths are 32 bits, little-endian.
fn publish(shelf: &Shelf, body: &[u8]) -> Result<()> {
    let (length, rest) = body.split_first_chunk::<4>().context("too short")?;
    let (manifest, rest) = rest
        .split_at_checked(u32::from_le_bytes(*length) as usize)
        .context("too short")?;
    let (_, archive) = rest.split_first_chunk::<4>().context("too short")?;
    let manifest: serde_json::Value = serde_json::from_slice(manifest).context("not JSON")?;
    let text = |key: &str| {
        manifest
            .get(key)
            .and_then(serde_json::Value::as_str)
            .map(str::to_owned)
            .context("no name")
    };
    let stored = Stored {
        version: text("vers")?,
        archive: archive.to_vec(),
        yanked: false,
    };
    shelf
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(text("name")?)
        .or_default()
        .push(stored);
    Ok(())
}

fn yank(shelf: &Shelf, name: &str, version: &str) {
    let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
    for stored in shelf.get_mut(name).into_iter().flatten() {
        if stored.version == version {
            stored.yanked = true;
        }
    }
}

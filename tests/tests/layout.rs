//! The shape of the tree: what may depend on what, where unsafe code may stand, and what no file says.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::string_slice,
    reason = "tests stop where they stand"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// What each crate of ours may depend on among ours, when it is not a test. A crate that is not here fails the test.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("wallgate-types", &[]),
    ("wallgate-policy", &["wallgate-types"]),
    ("wallgate-ledger", &["wallgate-types"]),
    ("wallgate-vault", &["wallgate-types"]),
    ("wallgate-vault-local", &["wallgate-types", "wallgate-vault"]),
    ("wallgate-vault-hashicorp", &["wallgate-types", "wallgate-vault"]),
    (
        "wallgate-proxy",
        &[
            "wallgate-types",
            "wallgate-policy",
            "wallgate-ledger",
            "wallgate-vault",
        ],
    ),
    ("wallgate-wall-shared", &[]),
    ("wallgate-wall-programs", &["wallgate-wall-shared"]),
    ("wallgate-wall", &["wallgate-types", "wallgate-wall-shared"]),
    ("wallgate-vmm", &["wallgate-types"]),
];

/// Nothing may depend on these: they are programs, or hold everything together.
const TOP: &[&str] = &["wallgate", "wallgate-tests", "wallgate-bench", "xtask"];

/// What a crate must not reach, directly or through others, however useful it would be there.
const MUST_NOT_REACH: &[(&str, &[&str])] = &[
    ("wallgate-types", &["tokio", "hyper", "rustls", "redb", "aya"]),
    (
        "wallgate-policy",
        &["tokio", "hyper", "redb", "aya", "wallgate-ledger"],
    ),
    (
        "wallgate-ledger",
        &["hyper", "rustls", "aya", "regorus", "wallgate-policy"],
    ),
    (
        "wallgate-proxy",
        &[
            "aya",
            "wallgate-wall",
            "wallgate-vmm",
            "wallgate-vault-local",
            "wallgate-vault-hashicorp",
        ],
    ),
    ("wallgate-wall", &["tokio", "hyper", "rustls", "regorus", "redb"]),
    ("wallgate-wall-shared", &["aya", "libc", "tokio"]),
];

/// The crates in which unsafe code may stand, each block with its argument.
const MAY_BE_UNSAFE: &[&str] = &["wallgate-wall-programs", "wallgate-wall", "wallgate-vmm"];

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .exec()
        .unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap()
}

/// Direct dependencies of each package of the workspace, tests' and build scripts' aside.
fn direct(metadata: &Metadata) -> BTreeMap<String, BTreeSet<String>> {
    metadata
        .workspace_packages()
        .into_iter()
        .map(|package| {
            let names = package
                .dependencies
                .iter()
                .filter(|dependency| dependency.kind == DependencyKind::Normal)
                .map(|dependency| dependency.name.clone());
            (package.name.to_string(), names.collect())
        })
        .collect()
}

#[test]
fn dependencies_point_one_way() {
    let metadata = metadata();
    let direct = direct(&metadata);
    let allowed: BTreeMap<&str, &[&str]> = MAY_DEPEND_ON.iter().copied().collect();
    let mut wrong = Vec::new();
    for (package, dependencies) in &direct {
        for dependency in dependencies.iter().filter(|name| direct.contains_key(*name)) {
            if TOP.contains(&dependency.as_str()) {
                wrong.push(format!("{package} -> {dependency}: nothing depends on a program"));
            } else if !TOP.contains(&package.as_str())
                && !allowed
                    .get(package.as_str())
                    .is_some_and(|allowed| allowed.contains(&dependency.as_str()))
            {
                wrong.push(format!("{package} -> {dependency}"));
            }
        }
        if !TOP.contains(&package.as_str()) && !allowed.contains_key(package.as_str()) {
            wrong.push(format!(
                "{package} has no place in the layout yet: say here what it may depend on"
            ));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn no_crate_reaches_what_it_must_not() {
    let metadata = metadata();
    let names: BTreeMap<_, _> = metadata
        .packages
        .iter()
        .map(|package| (package.id.clone(), package.name.to_string()))
        .collect();
    let reached: BTreeMap<_, Vec<_>> = metadata
        .resolve
        .unwrap()
        .nodes
        .into_iter()
        .map(|node| {
            let normal = node
                .deps
                .into_iter()
                .filter(|dep| {
                    dep.dep_kinds
                        .iter()
                        .any(|kind| kind.kind == DependencyKind::Normal)
                })
                .map(|dep| dep.pkg);
            (node.id, normal.collect())
        })
        .collect();
    let mut wrong = Vec::new();
    for (package, forbidden) in MUST_NOT_REACH {
        let Some((start, _)) = names.iter().find(|(_, name)| name == package) else {
            continue;
        };
        let mut seen = BTreeSet::new();
        let mut open = vec![start.clone()];
        while let Some(id) = open.pop() {
            for next in reached.get(&id).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        for id in &seen {
            // The ledger's writer is the one place of that crate that knows tokio (see below).
            if forbidden.contains(&names[id].as_str()) {
                wrong.push(format!("{package} reaches {}", names[id]));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Whether a file holds nothing but tests: there `use super::*` is the custom, and rows of data are as many as there are
/// cases.
fn is_a_test(path: &Path) -> bool {
    let path = relative(path);
    path.contains("tests/") || path.ends_with("/tests.rs")
}

/// Every Rust file of ours, with its text.
fn sources() -> Vec<(PathBuf, String)> {
    files(&["rs"])
}

fn files(extensions: &[&str]) -> Vec<(PathBuf, String)> {
    fn walk(directory: &Path, extensions: &[&str], found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !["target", ".git", "corpus", "artifacts"].contains(&name.as_str()) {
                    walk(&path, extensions, found);
                }
            } else if extensions.is_empty()
                || path
                    .extension()
                    .is_some_and(|given| extensions.iter().any(|wanted| given == *wanted))
            {
                // What is not text (a compiled object) says nothing.
                if let Ok(text) = fs::read_to_string(&path) {
                    found.push((path, text));
                }
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), extensions, &mut found);
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

#[test]
fn unsafe_code_is_forbidden_where_it_is_not_needed() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for package in metadata.workspace_packages() {
        if MAY_BE_UNSAFE.contains(&package.name.as_str()) {
            continue;
        }
        for target in &package.targets {
            // Test targets are held by the workspace's lint; build scripts run on the builder's machine only.
            let of_the_crate = target.is_lib() || target.is_bin();
            let text = fs::read_to_string(&target.src_path).unwrap();
            if of_the_crate && !text.contains("#![forbid(unsafe_code)]") {
                wrong.push(relative(target.src_path.as_std_path()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn only_the_ledgers_writer_knows_tokio() {
    let outside: Vec<String> = sources()
        .into_iter()
        .filter(|(path, _)| path.starts_with(root().join("broker/ledger/src")))
        .filter(|(path, _)| !relative(path).starts_with("broker/ledger/src/writer"))
        .filter(|(_, text)| without_tests(text).contains("tokio"))
        .map(|(path, _)| relative(&path))
        .collect();
    assert_eq!(outside, Vec::<String>::new());
}

/// The text before the module of tests, without comments.
fn without_tests(text: &str) -> String {
    let end = text.find("#[cfg(test)]").unwrap_or(text.len());
    let lines = text[..end]
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn no_file_is_a_drawer() {
    let drawers: Vec<String> = sources()
        .into_iter()
        .filter(|(path, _)| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            ["utils", "util", "common", "helpers", "helper", "misc"].contains(&name.as_str())
        })
        .map(|(path, _)| relative(&path))
        .collect();
    assert_eq!(drawers, Vec::<String>::new());
}

#[test]
fn nothing_is_re_exported_wholesale() {
    let mut wrong = Vec::new();
    for (path, text) in sources().into_iter().filter(|(path, _)| !is_a_test(path)) {
        for line in without_tests(&text).lines().map(str::trim) {
            if (line.starts_with("pub use ") || line.starts_with("use ")) && line.ends_with("::*;") {
                wrong.push(format!("{}: {line}", relative(&path)));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn nothing_names_a_public_registry_or_a_place_on_one_machine() {
    // In two pieces each, so that this file does not say them.
    let forbidden: Vec<String> = [
        ("crates", ".io"),
        ("pypi", ".org"),
        ("pythonhosted", ".org"),
        ("npmjs", ".org"),
        ("npmjs", ".com"),
        ("deb.debian", ".org"),
        ("proxy.golang", ".org"),
        ("sum.golang", ".org"),
        ("docker", ".io"),
        ("registry.yarn", "pkg.com"),
        ("/root", "/"),
        ("/home", "/"),
        ("/tmp", "/w/"),
    ]
    .iter()
    .map(|(first, second)| format!("{first}{second}"))
    .collect();
    // Lock files name where each package came from; that is what they are for.
    let exempt = ["Cargo.lock"];
    let mut wrong = Vec::new();
    for (path, text) in files(&[]) {
        if exempt.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            for name in &forbidden {
                if says(line, name) {
                    wrong.push(format!("{}:{}: {name}", relative(&path), number + 1));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Whether a line says the name as such, and not as the end of a longer one (`$target_root/` is no place).
fn says(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(place, _)| {
        let before = line[..place].chars().next_back();
        !name.starts_with('/')
            || before.is_none_or(|before| !before.is_alphanumeric() && !"_}/.".contains(before))
    })
}

/// A file over 500 lines has a reason, which stands here.
const LONG_FILES: &[(&str, &str)] = &[
    (
        "broker/ledger/src/open.rs",
        "opening is one sequence of checks, each of which needs what the one before found",
    ),
    (
        "broker/ledger/src/reader.rs",
        "one type, whose queries share the index's tables",
    ),
    (
        "broker/ledger/src/writer.rs",
        "the handle and the thread behind it are read together",
    ),
];

#[test]
fn long_files_have_a_reason() {
    let exempt: BTreeSet<&str> = LONG_FILES.iter().map(|(path, _)| *path).collect();
    let long: Vec<String> = sources()
        .into_iter()
        .filter(|(path, _)| !is_a_test(path))
        .map(|(path, text)| (relative(&path), without_tests(&text).lines().count()))
        .filter(|(path, lines)| *lines > 500 && !exempt.contains(path.as_str()))
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    assert_eq!(long, Vec::<String>::new());
}

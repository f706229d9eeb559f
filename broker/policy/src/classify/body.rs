//! Reads that are told from writes only by their body: npm's audits and git's upload-pack.
//!
//! Such a body is sent out by a request that counts as a read, so it may say what its grammar has words for and nothing else.
//! Until it was read, the operation has its name but its action is unknown, and [`wanted`] says how much of it to read.

use std::io::Read as _;

use serde_json::Value;
use wallgate_types::operation::{Action, Operation};

use super::names;

/// The largest body that is looked into, inflated.
const MAX_BODY_BYTES: u64 = 4 * 1024 * 1024;
/// The deepest tree of dependencies.
const MAX_TREE_DEPTH: usize = 64;
/// The longest text in a tree of dependencies: an integrity of sha512, or the address of a tarball.
const MAX_TREE_TEXT_BYTES: usize = 512;

/// How much of the body the grammar must see to say whether this is a read.
pub(crate) fn wanted(operation: &Operation) -> Option<u64> {
    let by_body = matches!(operation.name, "npm.audit" | "git.fetch");
    (by_body && operation.action == Action::Unknown).then_some(MAX_BODY_BYTES)
}

fn json(body: &[u8]) -> Option<Value> {
    let mut text = Vec::new();
    let most = MAX_BODY_BYTES.saturating_add(1);
    let inflated = if body.starts_with(&[0x1f, 0x8b]) {
        flate2::read::GzDecoder::new(body)
            .take(most)
            .read_to_end(&mut text)
    } else {
        body.take(most).read_to_end(&mut text)
    };
    if inflated.is_err() || text.len() as u64 > MAX_BODY_BYTES {
        return None;
    }
    serde_json::from_slice(&text).ok()
}

/// `{"name": ["1.0.0", …], …}`, perhaps compressed, and nothing else.
pub(super) fn is_bulk_audit(body: &[u8]) -> bool {
    let Some(Value::Object(packages)) = json(body) else {
        return false;
    };
    packages.iter().all(|(name, versions)| {
        let versions = versions.as_array();
        names::is_npm_package(name)
            && versions.is_some_and(|all| all.iter().all(|one| one.as_str().is_some_and(names::is_semver)))
    })
}

/// The older audits: a tree of dependencies, as in a lockfile of version 1.
pub(super) fn is_audit_tree(body: &[u8]) -> bool {
    let Some(Value::Object(audit)) = json(body) else {
        return false;
    };
    audit.iter().all(|(key, value)| match key.as_str() {
        "name" | "version" => is_short(value),
        "requires" => is_requires(value),
        "dependencies" => is_tree(value, MAX_TREE_DEPTH),
        "install" | "remove" => value.as_array().is_some_and(|names| names.iter().all(is_short)),
        "metadata" => value
            .as_object()
            .is_some_and(|fields| fields.values().all(|field| field.is_null() || is_short(field))),
        _ => false,
    })
}

fn is_short(value: &Value) -> bool {
    value
        .as_str()
        .is_some_and(|text| text.len() <= MAX_TREE_TEXT_BYTES)
}

/// Names and ranges; a lockfile's own root only says that it has some.
fn is_requires(value: &Value) -> bool {
    value.is_boolean()
        || value.as_object().is_some_and(|requires| {
            requires
                .iter()
                .all(|(name, range)| names::is_npm_package(name) && is_short(range))
        })
}

fn is_tree(value: &Value, depth: usize) -> bool {
    let (Some(depth), Some(packages)) = (depth.checked_sub(1), value.as_object()) else {
        return false;
    };
    packages.iter().all(|(name, package)| {
        let fields = package.as_object();
        names::is_npm_package(name)
            && fields.is_some_and(|fields| {
                fields.iter().all(|(key, value)| match key.as_str() {
                    "version" | "integrity" | "resolved" | "from" => is_short(value),
                    "requires" => is_requires(value),
                    "dependencies" => is_tree(value, depth),
                    "dev" | "optional" | "bundled" | "peer" | "devOptional" | "inBundle" => {
                        value.is_boolean()
                    }
                    _ => false,
                })
            })
    })
}

/// A request to upload-pack, of any version of the protocol (gitprotocol-pack(5), gitprotocol-v2(5)): packet lines, each of
/// them of a known kind. `server-option` is left out: it is free text.
pub(super) fn is_upload_pack_request(body: &[u8]) -> bool {
    let mut rest = body;
    while !rest.is_empty() {
        let Some((digits, after)) = rest.split_at_checked(4) else {
            return false;
        };
        let hex = digits.iter().all(u8::is_ascii_hexdigit);
        let length = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| usize::from_str_radix(digits, 16).ok());
        rest = match length.filter(|_| hex) {
            // Flush, delimiter, end of response.
            Some(0..=2) => after,
            Some(length @ 5..) => match after.split_at_checked(length.saturating_sub(4)) {
                Some((line, after)) if is_upload_pack_line(line) => after,
                _ => return false,
            },
            _ => return false,
        };
    }
    true
}

fn is_upload_pack_line(line: &[u8]) -> bool {
    let Ok(line) = std::str::from_utf8(line) else {
        return false;
    };
    let line = line.strip_suffix('\n').unwrap_or(line);
    if line.chars().any(char::is_control) {
        return false;
    }
    let (word, argument) = match line.split_once([' ', '=']) {
        Some((word, argument)) => (word, Some(argument)),
        None => (line, None),
    };
    match (word, argument) {
        // The first want of the older protocol carries the client's capabilities.
        ("want", Some(argument)) => argument.split(' ').next().is_some_and(is_object_id),
        ("have" | "shallow" | "oid", Some(id)) => is_object_id(id),
        ("command", Some(command)) => matches!(command, "ls-refs" | "fetch" | "object-info"),
        ("object-format", Some(format)) => matches!(format, "sha1" | "sha256"),
        (
            "agent" | "session-id" | "ref-prefix" | "want-ref" | "deepen" | "deepen-since" | "deepen-not"
            | "filter" | "packfile-uris",
            Some(_),
        )
        | (
            "done" | "thin-pack" | "no-progress" | "include-tag" | "ofs-delta" | "peel" | "symrefs"
            | "unborn" | "deepen-relative" | "wait-for-done" | "sideband-all" | "size",
            None,
        ) => true,
        _ => false,
    }
}

fn is_object_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64)
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

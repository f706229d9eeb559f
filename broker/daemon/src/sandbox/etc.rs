//! The files that are a sandbox's own, so that clients find the broker and trust it without being told.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use thiserror::Error;
use wallgate_types::sandbox::SandboxId;

/// Our root alone, inside.
pub const ROOT_PATH: &str = "/run/wallgate/ca.pem";
/// The system's bundle and our root, inside.
pub const BUNDLE_PATH: &str = "/run/wallgate/ca-bundle.pem";

/// Where systems keep their bundle; each that this host has is replaced inside.
pub const SYSTEM_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The largest bundle that is copied, in bytes.
const MAX_BUNDLE_BYTES: u64 = 16 * 1024 * 1024;

/// Why the bundle cannot be made.
#[derive(Debug, Error)]
#[error("cannot read the system's certificates at {path}: {source}")]
pub struct BundleError {
    path: &'static str,
    #[source]
    source: std::io::Error,
}

/// The system's bundle (empty when it has none) followed by `root`.
///
/// # Errors
/// When there is a bundle that cannot be read.
pub fn bundle(root: &str) -> Result<String, BundleError> {
    let Some(path) = SYSTEM_BUNDLES.iter().find(|path| Path::new(path).is_file()) else {
        return Ok(root.to_owned());
    };
    let failed = |source| BundleError { path, source };
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > MAX_BUNDLE_BYTES {
        return Err(failed(std::io::ErrorKind::FileTooLarge.into()));
    }
    let mut text = fs::read_to_string(path).map_err(failed)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(root);
    Ok(text)
}

/// A file that is written into the sandbox.
#[derive(Debug, PartialEq, Eq)]
pub struct OwnFile {
    /// Where, inside.
    pub path: String,
    /// What.
    pub content: Vec<u8>,
}

/// All of them. `bundle` is [`bundle`]'s result.
#[must_use]
pub fn files(id: &SandboxId, v4: Ipv4Addr, v6: Ipv6Addr, root: &str, bundle: &str) -> Vec<OwnFile> {
    let own = |path: &str, content: String| OwnFile {
        path: path.to_owned(),
        content: content.into_bytes(),
    };
    let mut files = vec![
        own(
            "/etc/resolv.conf",
            format!("nameserver {v4}\nnameserver {v6}\noptions timeout:3 attempts:2\n"),
        ),
        own(
            "/etc/hosts",
            format!("127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 {id}\n"),
        ),
        own("/etc/hostname", format!("{id}\n")),
        own("/etc/nsswitch.conf", NSSWITCH.to_owned()),
        own("/etc/passwd", PASSWD.to_owned()),
        own("/etc/group", GROUP.to_owned()),
        own(ROOT_PATH, root.to_owned()),
        own(BUNDLE_PATH, bundle.to_owned()),
    ];
    let replaced = SYSTEM_BUNDLES.iter().filter(|path| Path::new(path).is_file());
    files.extend(replaced.map(|path| own(path, bundle.to_owned())));
    files
}

const NSSWITCH: &str = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n\
                        protocols: files\nservices: files\nethers: files\nrpc: files\n";
const PASSWD: &str =
    "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n";

//! What of the environment a sandbox sees: what a terminal and a locale need, the trust kit, and what was asked for.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use super::HOME;

/// Taken over when set. Nothing here can hold a credential or a socket's place.
const PASSED: &[&str] = &[
    "LANG",
    "LANGUAGE",
    "TERM",
    "COLORTERM",
    "TZ",
    "COLUMNS",
    "LINES",
    "NO_COLOR",
];
const PASSED_PREFIX: &str = "LC_";

/// The search path inside when ours is unset.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables that name a file of certificates which replaces a client's own: system bundle and our root.
pub const BUNDLE_VARIABLES: &[&str] = &[
    "SSL_CERT_FILE",
    "NIX_SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "PIP_CERT",
    "AWS_CA_BUNDLE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HEX_CACERTS_PATH",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
];

/// Variables that name a file of certificates which a client adds to its own: our root.
pub const EXTRA_VARIABLES: &[&str] = &["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

/// Variables that make a client look at the system's certificates, with the value that does.
pub const SYSTEM_TRUST_VARIABLES: &[(&str, &str)] = &[
    ("UV_NATIVE_TLS", "true"),
    ("UV_SYSTEM_CERTS", "true"),
    ("DENO_TLS_CA_STORE", "system,mozilla"),
];

/// The variables of a trust kit whose files stand at `bundle` and `root`.
#[must_use]
pub fn trust_variables(bundle: &str, root: &str) -> BTreeMap<String, String> {
    let bundles = BUNDLE_VARIABLES.iter().map(|name| (*name, bundle));
    let extras = EXTRA_VARIABLES.iter().map(|name| (*name, root));
    let settings = SYSTEM_TRUST_VARIABLES.iter().copied();
    bundles
        .chain(extras)
        .chain(settings)
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The whole environment of a sandboxed command.
///
/// `ours` is wallgate's own; `wanted` is what the operator set, which wins over everything but nothing else.
#[must_use]
pub fn environment(
    ours: impl Iterator<Item = (OsString, OsString)>,
    trust: BTreeMap<String, String>,
    wanted: &BTreeMap<String, OsString>,
) -> BTreeMap<OsString, OsString> {
    let mut inside = BTreeMap::from([("PATH".into(), DEFAULT_PATH.into())]);
    let passed = |name: &OsStr| {
        name.to_str()
            .is_some_and(|name| name == "PATH" || PASSED.contains(&name) || name.starts_with(PASSED_PREFIX))
    };
    inside.extend(ours.filter(|(name, _)| passed(name)));
    let fixed = [
        ("HOME", HOME),
        ("USER", "root"),
        ("LOGNAME", "root"),
        ("SHELL", "/bin/sh"),
        ("TMPDIR", "/tmp"),
    ];
    inside.extend(fixed.map(|(name, value)| (name.into(), value.into())));
    inside.extend(trust.into_iter().map(|(name, value)| (name.into(), value.into())));
    inside.extend(wanted.iter().map(|(name, value)| (name.into(), value.clone())));
    inside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_passes_but_what_is_listed_or_asked_for() {
        let ours = [
            ("PATH", "/usr/bin"),
            ("LC_ALL", "C"),
            ("SSH_AUTH_SOCK", "/run/agent"),
            ("GITHUB_TOKEN", "canary"),
            ("LD_PRELOAD", "/tmp/x.so"),
            ("https_proxy", "http://proxy.test"),
            ("HOME", "/somewhere/else"),
        ];
        let ours = ours.into_iter().map(|(name, value)| (name.into(), value.into()));
        let wanted = BTreeMap::from([("MODE".to_owned(), "test".into())]);
        let inside = environment(ours, trust_variables("/b", "/r"), &wanted);
        let get = |name: &str| inside.get(OsStr::new(name)).and_then(|value| value.to_str());
        let rows = [
            ("PATH", Some("/usr/bin")),
            ("LC_ALL", Some("C")),
            ("SSH_AUTH_SOCK", None),
            ("GITHUB_TOKEN", None),
            ("LD_PRELOAD", None),
            ("https_proxy", None),
            ("HOME", Some("/root")),
            ("MODE", Some("test")),
            ("SSL_CERT_FILE", Some("/b")),
            ("NODE_EXTRA_CA_CERTS", Some("/r")),
        ];
        for (name, expected) in rows {
            assert_eq!(get(name), expected, "{name}");
        }
    }
}

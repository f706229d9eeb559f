//! P8: each request is named by its ecosystem's grammar, and what no grammar knows counts as a write.
//!
//! The rows of reads and writes are what real clients send (npm, pip, uv, twine, cargo, git); the rest is what somebody
//! would try who wants a write to look like a read.

use proptest::prelude::{any, proptest};
use wallgate_policy::{Profile, RequestShape, classify};

const MULTIPART: &str = "multipart/form-data; boundary=x";
const JSON: &str = "application/json";

/// The operation's name and action, as `npm.tarball read`.
fn name_of(profile: &str, method: &str, target: &str, content_type: Option<&str>) -> String {
    let (path, raw_query) = target.split_once('?').unwrap_or((target, ""));
    let decode = |text: &str| {
        percent_encoding::percent_decode_str(text)
            .decode_utf8_lossy()
            .into_owned()
    };
    let segments: Vec<String> = if path == "/" {
        Vec::new()
    } else {
        path.split('/').skip(1).map(decode).collect()
    };
    let query: Vec<(String, String)> = raw_query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (decode(key), decode(value)))
        .collect();
    let shape = RequestShape {
        method,
        path,
        segments: &segments,
        query: &query,
        content_type,
        body: None,
    };
    let profile: Profile = profile.parse().unwrap_or(Profile::None);
    let operation = classify(profile, &shape);
    format!("{} {}", operation.name, operation.action.as_str())
}

#[track_caller]
fn check(rows: &[(&str, &str, &str, Option<&str>, &str)]) {
    for (profile, method, target, content_type, expected) in rows {
        assert_eq!(
            &name_of(profile, method, target, *content_type),
            expected,
            "{profile}: {method} {target}"
        );
    }
}

#[test]
fn reads_are_known_by_name() {
    check(&[
        ("npm", "GET", "/left-pad", None, "npm.metadata read"),
        ("npm", "GET", "/@scope%2fname", None, "npm.metadata read"),
        (
            "npm",
            "GET",
            "/left-pad/-/left-pad-1.3.0.tgz",
            None,
            "npm.tarball read",
        ),
        (
            "npm",
            "GET",
            "/@scope/name/-/name-1.0.0.tgz",
            None,
            "npm.tarball read",
        ),
        (
            "npm",
            "POST",
            "/-/npm/v1/security/advisories/bulk",
            Some(JSON),
            "npm.audit read",
        ),
        ("npm", "GET", "/-/ping", None, "npm.ping read"),
        ("pypi", "GET", "/simple/leftpad/", None, "pypi.simple read"),
        (
            "pypi",
            "HEAD",
            "/packages/leftpad-1.0-py3-none-any.whl",
            None,
            "pypi.file read",
        ),
        ("cargo", "GET", "/config.json", None, "cargo.config read"),
        ("cargo", "GET", "/le/ft/leftpad", None, "cargo.index read"),
        ("cargo", "GET", "/1/a", None, "cargo.index read"),
        ("cargo", "GET", "/3/s/syn", None, "cargo.index read"),
        (
            "cargo",
            "GET",
            "/api/v1/crates/leftpad/1.0.0/download",
            None,
            "cargo.download read",
        ),
        (
            "git",
            "GET",
            "/group/project.git/info/refs?service=git-upload-pack",
            None,
            "git.advertise read",
        ),
        (
            "git",
            "POST",
            "/project.git/git-upload-pack",
            Some("application/x-git-upload-pack-request"),
            "git.fetch read",
        ),
    ]);
}

#[test]
fn writes_are_known_by_name() {
    check(&[
        ("npm", "PUT", "/left-pad", Some(JSON), "npm.publish write"),
        ("npm", "PUT", "/@scope%2fname", Some(JSON), "npm.publish write"),
        (
            "npm",
            "DELETE",
            "/left-pad/-rev/3-abc",
            None,
            "npm.unpublish write",
        ),
        (
            "npm",
            "PUT",
            "/-/user/org.couchdb.user:eve",
            Some(JSON),
            "npm.login write",
        ),
        (
            "npm",
            "PUT",
            "/-/package/left-pad/dist-tags/latest",
            Some(JSON),
            "npm.dist_tag write",
        ),
        (
            "npm",
            "GET",
            "/left-pad?write=true",
            None,
            "npm.write_intent write",
        ),
        ("pypi", "POST", "/", Some(MULTIPART), "pypi.upload write"),
        ("pypi", "POST", "/legacy/", Some(MULTIPART), "pypi.upload write"),
        ("cargo", "PUT", "/api/v1/crates/new", None, "cargo.publish write"),
        (
            "cargo",
            "DELETE",
            "/api/v1/crates/leftpad/1.0.0/yank",
            None,
            "cargo.yank write",
        ),
        (
            "cargo",
            "PUT",
            "/api/v1/crates/leftpad/1.0.0/unyank",
            None,
            "cargo.unyank write",
        ),
        (
            "git",
            "GET",
            "/project.git/info/refs?service=git-receive-pack",
            None,
            "git.push write",
        ),
        (
            "git",
            "POST",
            "/project.git/git-receive-pack",
            Some("application/x-git-receive-pack-request"),
            "git.push write",
        ),
    ]);
}

#[test]
fn what_no_grammar_knows_is_no_read() {
    let rows = [
        ("npm", "GET", "/left-pad/..%2f..%2fadmin", None),
        ("npm", "GET", "/left-pad;v=1", None),
        ("npm", "GET", "/left-pad?exfil=secret", None),
        ("npm", "GET", "/left-pad/-/other-1.0.0.tgz", None),
        ("npm", "GET", "/http:/evil.test/x", None),
        ("npm", "POST", "/left-pad", Some(JSON)),
        ("npm", "PATCH", "/left-pad", Some(JSON)),
        ("npm", "MKCOL", "/left-pad", None),
        ("pypi", "GET", "/simple/exfil data/", None),
        ("pypi", "GET", "/simple/leftpad/?q=secret", None),
        ("pypi", "PUT", "/packages/leftpad-1.0-py3-none-any.whl", None),
        ("pypi", "POST", "/pypi", Some("text/xml")),
        ("cargo", "GET", "/le/ft/rightpad", None),
        ("cargo", "GET", "/LE/FT/LEFTPAD", None),
        ("cargo", "GET", "/le/ft/leftpad?x=1", None),
        ("cargo", "POST", "/api/v1/crates/new", None),
        ("git", "GET", "/project.git/info/refs", None),
        (
            "git",
            "GET",
            "/project.git/info/refs?service=git-upload-archive",
            None,
        ),
        (
            "git",
            "GET",
            "/project.git/info/refs?service=git-upload-pack&service=git-receive-pack",
            None,
        ),
        ("git", "GET", "/project.git/HEAD", None),
        ("git", "GET", "/project.git/objects/ab/cdef", None),
        ("git", "POST", "/project.git/git-upload-archive", None),
        ("git", "POST", "/project.git/git-upload-pack", Some("text/plain")),
        ("git", "DELETE", "/project.git", None),
        ("none", "GET", "/anything", None),
    ];
    for (profile, method, target, content_type) in rows {
        let named = name_of(profile, method, target, content_type);
        assert!(
            !named.ends_with(" read"),
            "{profile}: {method} {target} is {named}"
        );
    }
}

proptest! {
    #[test]
    fn never_panics_and_a_read_has_a_reading_method(
        profile in "npm|pypi|cargo|git|none",
        method in "[A-Z]{1,8}",
        target in any::<String>(),
        content_type in proptest::option::of(any::<String>()),
    ) {
        let target = format!("/{target}");
        let named = name_of(&profile, &method, &target, content_type.as_deref());
        let reads = ["GET", "HEAD", "POST"].contains(&method.as_str());
        assert!(reads || !named.ends_with(" read"), "{method} {target} is {named}");
    }
}

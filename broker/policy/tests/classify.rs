//! P8: each operation has its name, and what has none counts as a write.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use percent_encoding::percent_decode_str;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use wallgate_policy::{Profile, RequestShape, canonical_path, classify, is_canonical};
use wallgate_types::operation::{Action, Operation};

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// What a request is, told as the proxy would tell it: segments and query decoded once.
fn operation(
    profile: Profile,
    method: &str,
    target: &str,
    content_type: Option<&str>,
    body: Option<&[u8]>,
) -> Operation {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let segments: Vec<String> = path.split('/').skip(1).map(decoded).collect();
    let query: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (decoded(key), decoded(value)))
        .collect();
    let shape = RequestShape {
        method,
        path,
        segments: &segments,
        query: &query,
        content_type,
        body,
    };
    classify(profile, &shape)
}

fn told(operation: &Operation) -> String {
    let package = operation.package.as_deref().unwrap_or("-");
    let version = operation.version.as_deref().unwrap_or("-");
    format!(
        "{} {} {package} {version}",
        operation.action.as_str(),
        operation.name
    )
}

/// Columns: profile, method, target, content type, body, then what it is.
fn check_rows<'a>(lines: impl Iterator<Item = &'a str>) {
    let mut wrong = Vec::new();
    let mut rows = 0;
    for line in lines.filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        assert_eq!(columns.len(), 9, "{line}");
        let some = |column: &str| (column != "-").then(|| column.replace("\\n", "\n"));
        let operation = operation(
            profile_of(columns[0]),
            columns[1],
            columns[2],
            some(columns[3]).as_deref(),
            some(columns[4]).as_deref().map(str::as_bytes),
        );
        let told = told(&operation);
        if told != columns[5..].join(" ") {
            wrong.push(format!("{line}\n    is {told}"));
        }
        rows += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows > 10, "{rows} rows");
}

/// The rows of a claim.
fn check(claim: &str) {
    let title = format!("[{claim}]");
    let lines = include_str!("data/claims.tsv").lines();
    check_rows(
        lines
            .skip_while(|line| *line != title)
            .skip(1)
            .take_while(|line| !line.starts_with('[')),
    );
}

#[test]
fn what_real_clients_send_has_its_name() {
    check_rows(include_str!("data/captured.tsv").lines());
}

fn profile_of(name: &str) -> Profile {
    name.parse().unwrap()
}

#[test]
fn every_write_of_npm_is_one() {
    check("every_write_of_npm_is_one");
}

/// A read by POST is one only when its body is that of a read: else an audit could carry anything out.
#[test]
fn an_audit_is_a_read_when_its_body_was_read_and_is_one() {
    const JSON: &str = "application/json";
    const BULK: &str = "/-/npm/v1/security/advisories/bulk";
    const QUICK: &str = "/-/npm/v1/security/audits/quick";
    check("an_audit_is_a_read_when_its_body_was_read_and_is_one");
    let deep = format!("{}{}", r#"{"dependencies":{"a":"#.repeat(80), "{}}}".repeat(80));
    check_body("npm", QUICK, JSON, deep.as_bytes(), "unknown unknown - -");
    let long = format!(r#"{{"name":"{}"}}"#, "x".repeat(513));
    check_body("npm", QUICK, JSON, long.as_bytes(), "unknown unknown - -");
    let gzip = gzipped(br#"{"a":["1.0.0"]}"#);
    check_body("npm", BULK, JSON, &gzip, "read npm.audit - -");
    check_body("npm", BULK, JSON, &gzip[..gzip.len() - 9], "unknown unknown - -");
    // A bomb is cut, not inflated.
    let bomb = gzipped(format!("{{{}}}", " ".repeat(64 << 20)).as_bytes());
    check_body("npm", BULK, JSON, &bomb, "unknown unknown - -");
}

#[track_caller]
fn check_body(profile: &str, target: &str, content_type: &str, body: &[u8], expected: &str) {
    let operation = operation(
        profile_of(profile),
        "POST",
        target,
        Some(content_type),
        Some(body),
    );
    assert_eq!(told(&operation), expected);
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;

    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn every_write_of_pypi_is_one() {
    check("every_write_of_pypi_is_one");
}

#[test]
fn every_write_of_cargo_is_one_and_an_index_has_one_place_for_each_name() {
    check("every_write_of_cargo_is_one_and_an_index_has_one_place_for_each_name");
}

#[test]
fn a_push_is_a_write_from_its_first_request_and_a_fetch_says_only_what_a_fetch_says() {
    check("a_push_is_a_write_from_its_first_request_and_a_fetch_says_only_what_a_fetch_says");
}

/// Two servers may see two paths in one of these, or a mirror something else than wallgate.
#[test]
fn a_path_that_can_be_read_in_two_ways_is_unknown() {
    let mut wrong = Vec::new();
    for (profile, good) in [
        ("npm", "/left-pad"),
        ("npm", "/left-pad/-/left-pad-1.3.0.tgz"),
        ("pypi", "/simple/left-pad/"),
        ("cargo", "/le/ft/left-pad"),
        ("git", "/left-pad/info/refs?service=git-upload-pack"),
    ] {
        let (path, query) = good
            .split_once('?')
            .map_or((good, String::new()), |(path, query)| (path, format!("?{query}")));
        assert_eq!(
            operation(profile_of(profile), "GET", good, None, None).action,
            Action::Read,
            "{good}"
        );
        let joined = |change: &dyn Fn(&str) -> String| format!("{}{query}", change(path));
        let more = |pair: &str| {
            if query.is_empty() {
                format!("{path}?{pair}")
            } else {
                format!("{path}{query}&{pair}")
            }
        };
        let changed = [
            joined(&|path| path.replace("left", "%6ceft")),
            joined(&|path| path.replace("left-pad", "x%2fleft-pad")),
            joined(&|path| path.replace("left-pad", "x%2Fleft-pad")),
            joined(&|path| path.replace("left-pad", "x%5cleft-pad")),
            joined(&|path| path.replace("left-pad", "x%252fleft-pad")),
            joined(&|path| path.replace("left-pad", "left-pad;write=true")),
            joined(&|path| path.replace("left-pad", "left-pad%3bwrite=true")),
            joined(&|path| path.replace("left-pad", "left-pad%00")),
            joined(&|path| path.replace("left-pad", "left-pad%20")),
            joined(&|path| path.replace("left-pad", "left-pad%0a")),
            joined(&|path| path.replace("left-pad", "l\u{e9}ft-pad")),
            joined(&|path| path.replace("left-pad", "l%c3%a9ft-pad")),
            joined(&|path| path.replace("left-pad", "l%e9ft-pad")),
            joined(&|path| path.replace("left-pad", "left-pad%")),
            joined(&|path| path.replace("left-pad", "left-pad%zz")),
            joined(&|path| path.replace("left-pad", "left-pad#x")),
            joined(&|path| format!("/.{path}")),
            joined(&|path| format!("/..{path}")),
            joined(&|path| format!("/x/..{path}")),
            joined(&|path| format!("/%2e%2e{path}")),
            joined(&|path| format!("/.%2e{path}")),
            joined(&|path| format!("/{path}")),
            joined(&|path| format!("{path}//")),
            joined(&|path| path.trim_start_matches('/').to_owned()),
            joined(&|path| format!("/x/y/z/{}", "a/".repeat(1200)) + path),
            more("unknown=1"),
            more("write=1"),
            more("_method=PUT"),
            more("a=1&a=1"),
        ];
        for target in changed {
            let operation = operation(profile_of(profile), "GET", &target, None, None);
            if operation.action != Action::Unknown {
                wrong.push(format!("{profile} {target}: {}", told(&operation)));
            }
        }
        for method in [
            "get",
            "Get",
            "OPTIONS",
            "TRACE",
            "PATCH",
            "MKCOL",
            "COPY",
            "MOVE",
            "PROPFIND",
            "PROPPATCH",
            "LOCK",
            "LINK",
            "CONNECT",
            "",
        ] {
            let operation = operation(profile_of(profile), method, good, None, None);
            if operation.action != Action::Unknown {
                wrong.push(format!("{profile} {method} {good}: {}", told(&operation)));
            }
        }
        let with_body = operation(profile_of(profile), "GET", good, None, Some(b"x"));
        assert_eq!(with_body.action, Action::Unknown, "{good} with a body");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A mirror that fetches what a path or query names is a way out (M05).
#[test]
fn an_address_in_a_request_is_a_fetch() {
    for profile in ["npm", "pypi", "cargo", "git"] {
        for target in [
            "/http://other.corp.test/x",
            "/https:/other.corp.test/x",
            "/HTTPS://other.corp.test/x",
            "/https%3a%2f%2fother.corp.test",
            "/a/file:/etc/passwd",
            "/remote?url=https://other.corp.test/",
            "/remote?url=https%3A%2F%2Fother.corp.test%2F",
            "/remote?url=//other.corp.test/",
            "/remote?url=gopher:x",
            "/remote?https://other.corp.test/=1",
            "/left-pad?tarball=git://other.corp.test/x",
        ] {
            let operation = operation(profile_of(profile), "GET", target, None, None);
            assert_eq!(operation.action, Action::FetchUrl, "{profile} {target}");
            assert_eq!(operation.name, format!("{profile}.fetch_url"));
        }
    }
}

/// M06: a mirror's own administration looks like a package and a tag, if one lets it.
#[test]
fn a_mirrors_own_pages_are_no_packages() {
    check("a_mirrors_own_pages_are_no_packages");
}

/// Parts that a path, query or header is put together from by the random tests: what the grammars know, and what they fear.
fn part() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("left-pad".to_owned()),
        Just("@s%2fa".to_owned()),
        Just("@s".to_owned()),
        Just("-".to_owned()),
        Just("api".to_owned()),
        Just("v1".to_owned()),
        Just("crates".to_owned()),
        Just("simple".to_owned()),
        Just("packages".to_owned()),
        Just("info".to_owned()),
        Just("refs".to_owned()),
        Just("git-upload-pack".to_owned()),
        Just("git-receive-pack".to_owned()),
        Just("left-pad-1.0.0.tgz".to_owned()),
        Just("left_pad-1.0-py3-none-any.whl".to_owned()),
        Just("..".to_owned()),
        Just(String::new()),
        Just("%2e%2e".to_owned()),
        "[a-z]{1,4}",
        "[!-~]{0,12}",
        any::<String>(),
    ]
}

fn method() -> impl Strategy<Value = String> {
    prop_oneof!["GET|HEAD|POST|PUT|DELETE|PATCH", any::<String>()]
}

proptest! {
    /// Whatever is sent: no panic; a read has a method and body that reads have, and its spelling is canonical or it is told.
    #[test]
    fn hostile_requests_never_panic_and_reads_are_plain(
        profile in prop_oneof!["npm|pypi|cargo|git|none"],
        method in method(),
        parts in proptest::collection::vec(part(), 0..6),
        query in prop_oneof![Just(String::new()), any::<String>(), "(service|write|q|text)=(git-upload-pack|git-receive-pack|true|x)"],
        content_type in proptest::option::of(prop_oneof!["application/json|multipart/form-data|text/xml", any::<String>()]),
        body in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40)),
    ) {
        let path = format!("/{}", parts.join("/"));
        let target = if query.is_empty() { path.clone() } else { format!("{path}?{query}") };
        let operation = operation(profile_of(&profile), &method, &target, content_type.as_deref(), body.as_deref());
        if operation.action == Action::Read {
            assert!(["GET", "HEAD", "POST"].contains(&method.as_str()), "{method}");
            for bad in ["..", "//", ";", "\\", "%00", "%25", "#", " "] {
                assert!(!path.contains(bad), "{path}");
            }
            if method != "POST" {
                assert!(body.is_none_or(|body| body.is_empty()) && content_type.is_none());
            }
        }
        if let Some(canonical) = canonical_path(&operation) {
            assert!(is_canonical(&operation, &canonical, None), "{canonical}");
            // The canonical spelling says the same operation.
            let again = self::operation(profile_of(&profile), "GET", &canonical, None, None);
            assert_eq!(again, operation, "{canonical}");
        }
    }
}

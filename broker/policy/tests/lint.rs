//! What `Policy::check` finds, and how `Policy::test` fails.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use wallgate_policy::{Policy, PolicyLimits};

/// What is found in the library with this data laid over it, as `severity code`.
fn findings(data: &Value) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let overlay = directory.path().join("mine.json");
    fs::write(&overlay, serde_json::to_string_pretty(data).unwrap()).unwrap();
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies");
    let report = Policy::check(&library, &[overlay], &PolicyLimits::default()).unwrap();
    report
        .findings
        .iter()
        .map(|finding| {
            assert!(
                finding.place.file.ends_with("mine.json") && finding.place.line > 0,
                "{finding:?}"
            );
            format!("{} {}", finding.severity.as_str(), finding.code)
        })
        .collect()
}

#[test]
fn data_that_opens_or_closes_too_much_is_found() {
    let get = json!([{"methods": ["GET"], "paths": ["/"]}]);
    let domain = |name: &str| json!({"allow": {"domains": {name: get}}});
    let host = |name: &str| json!({"allow": {"hosts": {name: get}}});
    let rule = |rule: Value| json!({"allow": {"hosts": {"a.example.test": [rule]}}});
    let rows = [
        (domain("example.org"), vec![]),
        (domain("tenant.github.io"), vec![]),
        (domain("com"), vec!["error wide_domain"]),
        (domain("co.uk"), vec!["error wide_domain"]),
        (domain("github.io"), vec!["error multi_tenant_domain"]),
        (domain("windows.net"), vec!["error multi_tenant_domain"]),
        (
            domain("s3.eu-west-1.amazonaws.com"),
            vec!["error multi_tenant_domain"],
        ),
        (domain("*.example.org"), vec!["error unreachable"]),
        (domain("Example.org"), vec!["error unreachable"]),
        (host("api.example.test"), vec![]),
        (host("203.0.113.9"), vec!["error unreachable"]),
        (host("169.254.169.254"), vec!["error unreachable"]),
        (host("API.example.test"), vec!["error unreachable"]),
        (host("api.example.test."), vec!["error unreachable"]),
        (host("*.example.test"), vec!["error unreachable"]),
        (host("https://api.example.test"), vec!["error unreachable"]),
        (
            rule(json!({"methods": ["GET", "POST", "PUT", "DELETE"]})),
            vec!["warning allows_everything"],
        ),
        (
            rule(json!({"methods": ["GET", "POST", "PUT", "DELETE"], "paths": ["/a/"]})),
            vec![],
        ),
        (rule(json!({})), vec!["error unreachable"]),
        (rule(json!({"methods": ["get"]})), vec!["error unreachable"]),
        (rule(json!({"methods": ["*"]})), vec!["error unreachable"]),
        (
            rule(json!({"methods": ["GET"], "path": ["/"]})),
            vec!["error unreachable"],
        ),
        (
            rule(json!({"methods": ["GET"], "paths": ["/a/*"]})),
            vec!["error unreachable"],
        ),
        (
            rule(json!({"methods": ["GET"], "ports": [0]})),
            vec!["error unreachable"],
        ),
        (
            rule(json!({"methods": ["GET"], "protocols": ["ftp"]})),
            vec!["error unreachable"],
        ),
        (json!({"mirors": {}}), vec!["error unread_data"]),
        (json!({"allow": {"host": {}}}), vec!["error unread_data"]),
        (
            json!({"allow": {"hosts": {"a.example.org": get}, "domains": {"example.org": get}}}),
            vec!["warning overlap"],
        ),
        (
            json!({"allow": {"domains": {"github.io": get}}, "lint": {"wide_domains": ["github.io"]}}),
            vec![],
        ),
    ];
    for (data, expected) in rows {
        assert_eq!(findings(&data), expected, "{data}");
    }
}

#[test]
fn tests_of_a_bundle_pass_and_fail() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write(
        "policy.rego",
        "package wallgate\nallow(rule) := {\"verdict\": \"allow\", \"rule\": rule}\ndecision := allow(\"a.read\") if input.request.method == \"GET\"\n\
         else := {\"verdict\": \"deny\", \"rule\": \"a.other\"}\n",
    );
    write(
        "policy_test.rego",
        "package wallgate_test\ntest_get if data.wallgate.decision.rule == \"a.read\" with input as {\"request\": {\"method\": \"GET\"}}\n\
         test_wrong if data.wallgate.decision.rule == \"a.read\" with input as {\"request\": {\"method\": \"PUT\"}}\n",
    );
    write(
        "a.cases.toml",
        "[[case]]\nname = \"right\"\nverdict = \"allow\"\nrule = \"a.read\"\n\n\
         [[case]]\nname = \"wrong\"\nverdict = \"deny\"\nrule = \"a.read\"\ncredentials = [\"c\"]\n",
    );
    let report = Policy::test(directory.path(), &[], &PolicyLimits::default()).unwrap();
    let told: Vec<(&str, bool)> = report
        .results
        .iter()
        .map(|result| (result.name.as_str(), result.failure.is_none()))
        .collect();
    assert_eq!(
        told,
        [
            ("test_get", true),
            ("test_wrong", false),
            ("right", true),
            ("wrong", false)
        ]
    );
    assert_eq!(report.unraised, ["a.other"]);
    assert_eq!(report.failed(), 3);
    write(
        "a.cases.toml",
        "[[case]]\nname = \"misspelt\"\nverdict = \"deny\"\nrule = \"r\"\ncredential = []\n",
    );
    let error = Policy::test(directory.path(), &[], &PolicyLimits::default()).unwrap_err();
    assert!(error.to_string().starts_with("a.cases.toml: "), "{error}");
}

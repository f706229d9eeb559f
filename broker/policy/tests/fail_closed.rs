//! P4: only an answer that is exactly a decision to allow allows. Everything else is a denial with a name.

#![expect(
    clippy::unwrap_used,
    clippy::format_collect,
    reason = "a test fails by panicking, and its policies may be slow to write"
)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use wallgate_policy::{BundleError, EvalError, Policy, PolicyLimits, Situation, Usage};
use wallgate_types::authority::Authority;
use wallgate_types::clock::Timestamp;
use wallgate_types::operation::Operation;
use wallgate_types::record::Recordable as _;
use wallgate_types::request::{BodyFacts, DestinationFacts, Protocol, RequestFacts, RequestId, Scheme};
use wallgate_types::ruling::Verdict;
use wallgate_types::sandbox::{IdentitySource, SandboxFacts};

fn write(directory: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn limits() -> PolicyLimits {
    PolicyLimits {
        // Tests run on loaded machines in debug builds; the timeout's own test sets its own.
        eval_timeout: Duration::from_secs(10),
        ..PolicyLimits::default()
    }
}

fn load(rego: &str) -> Result<Policy, BundleError> {
    load_with(&[("policy.rego", rego)], &limits())
}

fn load_with(files: &[(&str, &str)], limits: &PolicyLimits) -> Result<Policy, BundleError> {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), files);
    Policy::load(directory.path(), limits)
}

fn facts() -> RequestFacts {
    RequestFacts {
        id: RequestId(7),
        sandbox: Arc::new(SandboxFacts {
            id: "agent-7".parse().unwrap(),
            labels: [("team".to_owned(), "research".to_owned())].into(),
            source: IdentitySource::Tap,
        }),
        protocol: Protocol::Http,
        method: "GET".into(),
        scheme: Scheme::Https,
        authority: Authority::parse("api.example.test", 443).unwrap(),
        path: "/repos/a%20b".into(),
        segments: vec!["repos".into(), "a b".into()],
        raw_query: Some("q=1&q=2".into()),
        query: vec![("q".into(), "1".into()), ("q".into(), "2".into())],
        headers: vec![("accept".into(), "a/b".into()), ("accept".into(), "c/d".into())],
        body: BodyFacts {
            size: Some(3),
            media_type: Some("application/json".into()),
            json: Some(json!({"k": [1, null, 2.5]})),
            text: None,
        },
        destination: DestinationFacts {
            service: Some("mirror".into()),
            ..DestinationFacts::default()
        },
        operation: Operation::unknown("none"),
        original_dst: None,
        sni: None,
    }
}

fn situation() -> Situation {
    Situation {
        taints: vec!["saw:internal-docs".into()],
        usage: Usage {
            requests: [("1m".to_owned(), 12)].into(),
            ..Usage::default()
        },
        now: Timestamp(1_700_000_000_123),
    }
}

/// What becomes of one request under `rules` (a body of package wallgate), as `verdict rule`.
#[track_caller]
fn verdict(rules: &str) -> String {
    let policy = load(&format!("package wallgate\n{rules}\n")).unwrap();
    let decided = policy.decide(facts(), &situation());
    let ruling = decided.ruling();
    assert_eq!(decided.is_allowed(), ruling.verdict == Verdict::Allow, "{rules}");
    format!("{} {}", ruling.verdict.as_str(), ruling.rule)
}

const ALLOW: &str = r#"{"verdict": "allow", "rule": "all", "reason": "Because."}"#;

#[test]
fn only_a_well_formed_decision_with_the_verdict_allow_allows() {
    let rows = [
        (format!("decision := {ALLOW}"), "allow all"),
        (r#"decision := {"verdict": "deny", "rule": "no", "reason": "No."}"#.into(), "deny no"),
        // A reason may be left out, and nothing may be redacted by an empty list.
        (r#"decision := {"verdict": "allow", "rule": "R/1", "redact": []}"#.into(), "allow R/1"),
        (r#"decision := {"verdict": "ask", "rule": "a.b", "reason": "Ask."}"#.into(), "ask a.b"),
        // Undefined: no default, a body that fails, a helper that does, arithmetic that has no result.
        ("decision := 1 if input.nothing".into(), "deny wallgate.policy_undefined"),
        ("decision := 1 / 0".into(), "deny wallgate.policy_undefined"),
        ("decision := x.y if { x := null }".into(), "deny wallgate.policy_undefined"),
        ("decision := to_number(\"zz\")".into(), "deny wallgate.policy_undefined"),
        (format!("decision := {ALLOW} if startswith(input.request.port, \"4\")"), "deny wallgate.policy_undefined"),
        // Two definitions that disagree.
        (
            format!("decision := {ALLOW}\ndecision := {{\"verdict\": \"deny\", \"rule\": \"no\", \"reason\": \"No.\"}}"),
            "deny wallgate.policy_undefined",
        ),
        // Not a decision.
        ("decision := true".into(), "deny wallgate.policy_type"),
        ("decision := \"allow\"".into(), "deny wallgate.policy_type"),
        ("decision := \"true\"".into(), "deny wallgate.policy_type"),
        ("decision := null".into(), "deny wallgate.policy_type"),
        ("decision := []".into(), "deny wallgate.policy_type"),
        ("decision := {}".into(), "deny wallgate.policy_type"),
        (format!("decision := [{ALLOW}]"), "deny wallgate.policy_type"),
        (format!("decision contains {ALLOW}"), "deny wallgate.policy_type"),
        // Almost a decision.
        (r#"decision := {"verdict": true, "rule": "r", "reason": "x"}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "true", "rule": "r", "reason": "x"}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "Allow", "rule": "r", "reason": "x"}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow ", "rule": "r", "reason": "x"}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": null, "rule": "r", "reason": "x"}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"allow": true, "rule": "r", "reason": "x"}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "reason": "x"}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "rule": "r", "reason": 1}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "rule": "a b", "reason": "x"}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "rule": "wallgate.policy_ok", "reason": "x"}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "rule": "r", "reason": "x", "limit": {"request_bytes": 1}}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "rule": "r", "reason": "x", 1: 2}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "rule": "r", "reason": "x", "limits": {"request_byte": 1}}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "rule": "r", "reason": "x", "limits": {"request_bytes": -1}}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "rule": "r", "reason": "x", "limits": {"request_bytes": 1.5}}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "rule": "r", "reason": "x", "limits": {"request_bytes": "1"}}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "rule": "r", "reason": "x", "credentials": "c"}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "rule": "r", "reason": "x", "credentials": [1]}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "rule": "r", "reason": "x", "canonicalise": 1}"#.into(), "deny wallgate.policy_type"),
        (r#"decision := {"verdict": "allow", "rule": "r", "reason": "x", "redact": ["body"]}"#.into(), "deny wallgate.policy_type"),
        (
            r#"decision := {"verdict": "allow", "rule": "r", "reason": "x", "credentials": ["c"], "passthrough": true}"#.into(),
            "deny wallgate.policy_type",
        ),
    ];
    for (rules, expected) in rows {
        assert_eq!(verdict(&rules), expected, "{rules}");
    }
}

/// A helper whose definitions disagree is undefined in the compiled program, so `not blocked` would hold; the
/// interpreter calls it an error, and an allow of such a bundle is confirmed by it.
#[test]
fn a_helper_that_conflicts_denies_instead_of_being_taken_for_absent() {
    let helper =
        "blocked := true if input.request.method == \"GET\"\nblocked := false if input.request.port == 443\n";
    assert_eq!(
        verdict(&format!("{helper}decision := {ALLOW} if not blocked")),
        "deny wallgate.policy_error"
    );
    // The same shape without a conflict still allows.
    let helper =
        "blocked := true if input.request.method == \"PUT\"\nblocked := false if input.request.port == 443\n";
    assert_eq!(
        verdict(&format!("{helper}decision := {ALLOW} if not blocked")),
        "allow all"
    );
    // A partial object with two values for one key.
    let helper = "map[x] := y if { some y in [1, 2]; x := \"k\" }\nblocked if map.k\n";
    for condition in ["not blocked", "not map.k", "map.k == 1", "map.k == 2"] {
        let verdict = verdict(&format!("{helper}decision := {ALLOW} if {condition}"));
        assert!(
            verdict.starts_with("deny wallgate.policy_"),
            "{condition}: {verdict}"
        );
    }
}

#[test]
fn a_full_decision_is_read_whole() {
    let policy = load(
        r#"package wallgate
        decision := {"verdict": "allow", "rule": "r", "reason": "x", "credentials": ["b", "a", "b"], "add_taints": {"t"},
            "limits": {"request_bytes": 1, "response_bytes": 2}, "canonicalise": true, "passthrough": false}"#,
    )
    .unwrap();
    let decided = policy.decide(facts(), &situation());
    let ruling = decided.ruling();
    assert_eq!(ruling.credentials, ["b", "a"]);
    assert_eq!(ruling.add_taints, ["t"]);
    assert_eq!(ruling.limits.request_bytes, Some(1));
    assert_eq!(ruling.limits.response_bytes, Some(2));
    assert!(ruling.canonicalise && !ruling.passthrough);
}

/// Attack: a policy that does not end, or that fills the memory, must not take the broker with it.
#[test]
fn a_runaway_policy_is_cut() {
    let many = "n := [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]\n";
    let endless = format!(
        "package wallgate\n{many}decision := count([1 | n[_]; n[_]; n[_]; n[_]; n[_]; n[_]; n[_]; n[_]; n[_]])\n"
    );
    let short = PolicyLimits {
        eval_timeout: Duration::from_millis(5),
        eval_instructions: usize::MAX,
        ..PolicyLimits::default()
    };
    let policy = load_with(&[("p.rego", &endless)], &short).unwrap();
    let decided = policy.decide(facts(), &situation());
    assert_eq!(decided.ruling().rule, "wallgate.policy_timeout");
    // The next evaluation is not affected by the one that was cut.
    let decided = policy.decide(facts(), &situation());
    assert_eq!(decided.ruling().rule, "wallgate.policy_timeout");

    let few = PolicyLimits {
        eval_instructions: 10_000,
        ..limits()
    };
    let policy = load_with(&[("p.rego", &endless)], &few).unwrap();
    assert_eq!(
        policy.decide(facts(), &situation()).ruling().rule,
        "wallgate.policy_timeout"
    );

    let doubling: String = (0..30)
        .map(|i| format!("s{} := concat(\"\", [s{i}, s{i}])\n", i + 1))
        .collect();
    let filling = format!(
        "package wallgate\ns0 := \"{}\"\n{doubling}decision := count(s30)\n",
        "x".repeat(900)
    );
    let policy = load_with(&[("p.rego", &filling)], &limits()).unwrap();
    assert_eq!(
        policy.decide(facts(), &situation()).ruling().rule,
        "wallgate.policy_memory"
    );
}

/// E06: impure functions, called or smuggled in through `with`, also where the decision never gets to.
#[test]
fn a_bundle_that_calls_what_it_may_not_is_not_loaded() {
    let rows = [
        ("decision := http.send({})", "policy.rego:2:13", "http.send"),
        (
            "decision := 1\nunused := net.lookup_ip_addr(\"a.test\")",
            "policy.rego:3:11",
            "net.lookup_ip_addr",
        ),
        (
            "decision := 1 if opa.runtime().env.HOME",
            "policy.rego:2:18",
            "opa.runtime",
        ),
        ("decision := time.now_ns()", "policy.rego:2:13", "time.now_ns"),
        (
            "decision := [x | x := rand.intn(\"a\", 2)]",
            "policy.rego:2:23",
            "rand.intn",
        ),
        (
            "decision := uuid.rfc4122(\"\")",
            "policy.rego:2:13",
            "uuid.rfc4122",
        ),
        ("decision := 1 if trace(\"x\")", "policy.rego:2:18", "trace"),
        ("decision := 1 if print(\"x\")", "policy.rego:2:18", "print"),
        (
            "decision := numbers.range(1, 1000000000)",
            "policy.rego:2:13",
            "numbers.range",
        ),
        (
            "decision := __builtin_host_await(1, 2)",
            "policy.rego:2:13",
            "__builtin_host_await",
        ),
        (
            "decision := x if { x := f(1) with count as http.send }\nf(x) := count(x)",
            "policy.rego:2:44",
            "http.send",
        ),
        (
            "decision := x if { x := f(1) with http.send as count }\nf(x) := 1",
            "policy.rego:2:35",
            "http.send",
        ),
        (
            "decision := 1\nf(x) := y if { every z in x { y := opa.runtime() } }",
            "policy.rego:3:36",
            "opa.runtime",
        ),
    ];
    for (rules, place, name) in rows {
        let error = load(&format!("package wallgate\n{rules}\n")).unwrap_err();
        match error {
            BundleError::Forbidden {
                place: at,
                name: which,
                ..
            } => assert_eq!(
                (at.to_string().as_str(), which.as_str()),
                (place, name),
                "{rules}"
            ),
            other => panic!("{rules}: {other:?}"),
        }
    }
}

#[test]
fn a_bundle_whose_calls_cannot_end_is_not_loaded() {
    let rows = [
        "decision := a\na := b\nb := a",
        "decision := decision",
        "decision := f(3)\nf(x) := f(x - 1) + 1",
        "decision := [x | some x in s]\ns contains y if { some y in t }\nt contains y if { some y in s }",
        "decision := data.wallgate[input.request.method]",
    ];
    for rules in rows {
        let loaded = load(&format!("package wallgate\n{rules}\n"));
        assert!(
            matches!(
                loaded,
                Err(BundleError::Recursion { .. } | BundleError::Rego { .. })
            ),
            "{rules}: {loaded:?}"
        );
    }
    let deep: String = (0..70).map(|i| format!("r{i} := r{}\n", i + 1)).collect();
    let deep = format!("package wallgate\ndecision := r0\n{deep}r70 := 1\n");
    assert!(matches!(load(&deep), Err(BundleError::Recursion { .. })));
}

#[test]
fn a_load_error_says_where() {
    let rows: [(&[(&str, &str)], &str); 12] = [
        (&[("notes.txt", "x")], "has no .rego file"),
        (&[("a.rego", "package wallgate\ndecision := {")], "a.rego:"),
        (&[("a.rego", "package wallgate\ndecision := x")], "a.rego:2:13: "),
        (
            &[("a.rego", "package wallgate\ndecision = 1 { true }")],
            "a.rego:2:14: ",
        ),
        (
            &[("a.rego", "package wallgate\nallow := true")],
            "no rule `data.wallgate.decision`",
        ),
        (
            &[("a.rego", "package other\ndecision := 1")],
            "no rule `data.wallgate.decision`",
        ),
        (
            &[
                ("a.rego", "package wallgate\ndecision := 1"),
                ("data.json", "{\"a\": 1,\n}"),
            ],
            "data.json:2:1: ",
        ),
        (
            &[("a.rego", "package wallgate\ndecision := 1"), ("data.json", "[]")],
            "data.json: data.json is a JSON object",
        ),
        (
            &[
                ("a.rego", "package wallgate\ndecision := 1"),
                ("data.yaml", "a: 1"),
            ],
            "data.yaml: data is read from data.json only",
        ),
        (
            &[
                ("a.rego", "package wallgate\ndecision := 1"),
                ("data.json", "{\"x\":{\"y\":1}}"),
                ("x/data.json", "{\"y\":2}"),
            ],
            "x/data.json: x.y is already set",
        ),
        (
            &[
                ("a.rego", "package wallgate\ndecision := 1"),
                ("data.json", "{\"wallgate\":{\"decision\":2}}"),
            ],
            "data.json: ",
        ),
        (
            &[
                ("a.rego", "package wallgate\ndecision := 1"),
                (".manifest", "{\"rego_version\": 0}"),
            ],
            ".manifest: rego_version must be 1",
        ),
    ];
    for (files, expected) in rows {
        let error = load_with(files, &limits()).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let missing = Policy::load(Path::new("/nonexistent/bundle"), &limits()).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/bundle does not exist"));
}

#[test]
fn a_bundle_has_a_size() {
    let policy = "package wallgate\ndecision := 1\n";
    let files = [("a.rego", policy), ("b/data.json", "{}"), ("c.cases.toml", "")];
    let few = PolicyLimits {
        bundle_files: 2,
        ..limits()
    };
    let small = PolicyLimits {
        bundle_bytes: 20,
        ..limits()
    };
    assert!(matches!(
        load_with(&files, &few),
        Err(BundleError::TooLarge { what: "files", .. })
    ));
    assert!(matches!(
        load_with(&files, &small),
        Err(BundleError::TooLarge { what: "bytes", .. })
    ));
    assert!(load_with(&files, &limits()).is_ok());
}

#[test]
fn the_digest_names_what_decides_and_nothing_else() {
    let policy = "package wallgate\ndecision := 1\n";
    let digest = |files: &[(&str, &str)]| load_with(files, &limits()).unwrap().digest().to_string();
    let base = digest(&[("a.rego", policy), ("data.json", "{}")]);
    assert_eq!(
        base,
        digest(&[("data.json", "{}"), ("a.rego", policy), ("README.md", "x")])
    );
    assert_eq!(
        base,
        digest(&[
            ("a.rego", policy),
            ("data.json", "{}"),
            ("a_test.rego", "package t")
        ])
    );
    assert_ne!(base, digest(&[("b.rego", policy), ("data.json", "{}")]));
    assert_ne!(base, digest(&[("a.rego", policy), ("data.json", "{ }")]));
    assert_ne!(base, digest(&[("a.rego", policy)]));
    // A golden vector: the digest's format is public.
    let expected = {
        use sha2::Digest as _;
        let mut hasher = sha2::Sha256::new();
        hasher.update(b"wallgate bundle v1\n");
        hasher.update(6_u64.to_be_bytes());
        hasher.update(b"a.rego");
        hasher.update((policy.len() as u64).to_be_bytes());
        hasher.update(policy);
        hex::encode(hasher.finalize())
    };
    assert_eq!(digest(&[("a.rego", policy)]), expected);
}

#[test]
fn an_operators_data_is_laid_over_the_bundle() {
    let directory = tempfile::tempdir().unwrap();
    let rego = "package wallgate\ndecision := {\"verdict\": \"deny\", \"rule\": data.a.rule, \"reason\": data.a.reason}\n";
    write(
        directory.path(),
        &[
            ("p.rego", rego),
            ("a/data.json", r#"{"rule": "base", "reason": "base"}"#),
        ],
    );
    let overlay = directory.path().join("mine.json");
    fs::write(&overlay, r#"{"a": {"rule": "mine"}}"#).unwrap();
    let plain = Policy::load(directory.path(), &limits()).unwrap();
    let laid = Policy::load_with_data(directory.path(), &[overlay], &limits()).unwrap();
    let ruling = laid.decide(facts(), &situation()).ruling().clone();
    assert_eq!((ruling.rule.as_str(), ruling.reason.as_str()), ("mine", "base"));
    assert_ne!(plain.digest(), laid.digest());
}

/// The input is a public contract: this is all of it.
#[test]
fn the_input_is_version_1() {
    let policy = load(
        "package wallgate\ndecision := {\"verdict\": \"deny\", \"rule\": \"r\", \"reason\": json.marshal(input)}\n",
    )
    .unwrap();
    let mut facts = facts();
    facts.authority = Authority::parse("169.254.169.254", 80).unwrap();
    let decided = policy.decide(facts, &situation());
    let seen: serde_json::Value = serde_json::from_str(&decided.ruling().reason).unwrap();
    assert_eq!(
        seen,
        json!({
            "version": 1,
            "sandbox": {"id": "agent-7", "labels": {"team": "research"}, "taints": ["saw:internal-docs"], "source": "tap"},
            "request": {
                "id": "00000000000000000000000000000007", "protocol": "http", "method": "GET", "scheme": "https",
                "host": "169.254.169.254", "port": 80, "path": "/repos/a%20b", "segments": ["repos", "a b"],
                "query": {"q": ["1", "2"]}, "headers": {"accept": ["a/b", "c/d"]},
                "body": {"size": 3, "type": "application/json", "json": {"k": [1, null, 2.5]}, "truncated": false},
            },
            "destination": {"class": "metadata", "service": "mirror"},
            "operation": {"ecosystem": "none", "action": "unknown", "name": "unknown"},
            "usage": {"requests": {"1m": 12}, "bytes_out": {}, "denied": {}, "distinct_names": {}, "not_found": {}},
            "time": 1_700_000_000_123_000_000_u64,
        })
    );
}

#[test]
fn a_body_is_wanted_only_where_a_rule_says_so() {
    let rules = |body: &str| load(&format!("package wallgate\ndecision := {ALLOW}\n{body}\n")).unwrap();
    let want = |body: &str| {
        rules(body)
            .wants_body(&facts(), &situation())
            .map(|want| want.map(|want| want.max_bytes))
    };
    assert_eq!(want(""), Ok(None));
    assert_eq!(
        want("body := {\"max_bytes\": 4096} if input.request.method == \"GET\""),
        Ok(Some(4096))
    );
    assert_eq!(
        want("body := {\"max_bytes\": 4096} if input.request.method == \"POST\""),
        Ok(None)
    );
    for malformed in [
        "body := {\"max_bytes\": 0}",
        "body := {\"max_bytes\": 99999999999}",
        "body := {\"max\": 1}",
        "body := {\"max_bytes\": 1, \"more\": 2}",
        "body := 1",
    ] {
        assert!(matches!(want(malformed), Err(EvalError::Type(_))), "{malformed}");
    }
}

/// The grammar asks for the body of what only its body tells from a write, whatever the bundle says.
#[test]
fn a_read_by_post_is_read_before_it_is_one() {
    let mut facts = facts();
    facts.operation = Operation {
        name: "npm.audit",
        ..Operation::unknown("npm")
    };
    for (body, expected) in [
        ("", 4 << 20),
        (
            "body := {\"max_bytes\": 1} if input.request.method == \"GET\"",
            4 << 20,
        ),
        (
            "body := {\"max_bytes\": 8388608} if input.request.method == \"GET\"",
            8 << 20,
        ),
        (
            "body := {\"max_bytes\": 1} if input.request.method == \"PUT\"",
            4 << 20,
        ),
    ] {
        let policy = load(&format!("package wallgate\ndecision := {ALLOW}\n{body}\n")).unwrap();
        let want = policy.wants_body(&facts, &situation()).unwrap();
        assert_eq!(want.map(|want| want.max_bytes), Some(expected), "{body}");
    }
    facts.operation.action = wallgate_types::operation::Action::Read;
    let policy = load(&format!("package wallgate\ndecision := {ALLOW}\n")).unwrap();
    assert_eq!(policy.wants_body(&facts, &situation()).unwrap(), None);
}

#[test]
fn eval_says_what_was_wrong() {
    let policy = load("package wallgate\ndecision := {\"verdict\": \"allow\", \"rules\": 1}\n").unwrap();
    let evaluation = policy.eval_json(&json!({}));
    assert_eq!(evaluation.ruling.rule, "wallgate.policy_type");
    assert_eq!(evaluation.document, Some(json!({"verdict": "allow", "rules": 1})));
    assert!(evaluation.error.unwrap().to_string().contains("it has no rule"));
}

#[test]
fn a_record_says_which_bundle_decided_or_that_none_did() {
    let policy = load(&format!("package wallgate\ndecision := {ALLOW}\n")).unwrap();
    match policy.decide(facts(), &situation()) {
        wallgate_policy::Decided::Allowed(allowed) => {
            let record = allowed.decision_record();
            assert_eq!(record.bundle, policy.digest().to_string());
            assert_eq!((record.rule.as_str(), record.verdict), ("all", Verdict::Allow));
        }
        wallgate_policy::Decided::Denied(_) => panic!("denied"),
    }
    let refused = wallgate_policy::Denied::refused(facts(), "wallgate.test", "No.");
    assert_eq!(refused.decision_record().bundle, "");
}

/// Every thread may decide at once, over one policy.
#[test]
fn decisions_run_in_parallel() {
    let policy = load(&format!("package wallgate\ndecision := {ALLOW}\n")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    assert!(policy.decide(facts(), &situation()).is_allowed());
                }
            });
        }
    });
}

/// The engine's compiled program went on with nothing in a variable when what was assigned was undefined, so a rule that
/// looked something up allowed whatever was not there.
#[test]
fn an_assignment_of_nothing_fails_its_body() {
    let helpers = "absent := 1 if false\nthree(x) := 1 if x == 3\nlooked(x) := data.wallgate_test.d[x]\nmap := {\"a\": 1}\n\
                   names contains \"a\"\nids.b := 1\nparts := 1\nundefined_names contains data.wallgate_test.d[\"zz\"] if true\n";
    let mut wrong = Vec::new();
    for body in [
        "x := input.nothing",
        "x := input.request.query[input.request.method]",
        "x := data.d[input.request.host]",
        "host := input.request.host\nx := data.d[host]",
        "d := data.d\nx := d[input.request.host]",
        "some y in [1]\nx := data.d[y]",
        "some key, _ in {\"k\": 1}\nx := data.d[key]",
        "x := absent",
        "x := three(4)",
        "x := looked(\"zz\")",
        "x := looked(\"a\")",
        "x := {1, 2}[3]",
        "x := [1, 2][7]",
        "x := map[input.request.host]",
        "x := names[input.request.host]",
        "x := ids[input.request.host]",
        "x := data.d.a[input.request.host]",
        "x := (data.d[input.request.host] == 3)\ntrue",
        "x := data.d[input.request.host] | {1}",
        "x := data.d[input.request.host] + 1",
        "x := sprintf(\"%v\", [data.d[input.request.host]])",
        "x := [data.d[input.request.host]]",
        "x := {\"a\": data.d[input.request.host]}",
        "[x, y] := data.d[input.request.host]",
        "x   :=   data.d[input.request.host]",
        "x :=\n    data.d[input.request.host]",
        "parts := data.d[input.request.host]",
        "x := 1\ny := [x | x := data.d.nothing]\ncount(y) == 1",
        "y := [x | x := data.d[input.request.host]]\ncount(y) == 1",
        "y := [data.d[k] | some k in [\"q\"]]\ncount(y) == 1",
        "y := {k: data.d[k] | some k in [\"q\"]}\ncount(y) == 1",
        // Here the language would allow; the program does not get that far.
        "y := [map[k] | some k in [\"a\", \"q\"]]\ny == [1]",
        "y := [absent | some k in [\"q\"]]\ncount(y) == 1",
        "y := [three(k) | some k in [4]]\ncount(y) == 1",
        "y := {x | x := data.d[input.request.host]}\ncount(y) == 1",
        "count(undefined_names) == 1",
        "every q in [1] { x := data.d[input.request.host]; x != q }",
        "not three(3)",
        "x := data.d[input.request.host]\nnot x",
    ] {
        let decision = format!("decision := {ALLOW} if {{\n{body}\n}}");
        let decided = verdict(&format!("{helpers}{decision}"));
        if decided.starts_with("allow") {
            wrong.push(format!("{body}: {decided}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    // The same shapes hold when there is something.
    for body in [
        "x := input.request.host",
        "some key, _ in {\"a\": 1}\nx := map[key]\nx == 1",
        "x := three(3)",
        "x := false",
        "x := null",
        "y := [x | some k in [\"a\", \"q\"]; x := map[k]]\ny == [1]",
        "x := 1\ny := [x | x := 2]\nx == 1",
        "parts := 2\ntrue",
        "y := [x | x := 1]\nz := [x | x := 2]\ny != z",
        "every q in [1] { x := q; x == 1 }",
        "x := [p | p := split(input.request.host, \".\")[_]]\ncount(x) == 3",
    ] {
        let decided = verdict(&format!("{helpers}decision := {ALLOW} if {{\n{body}\n}}"));
        assert!(
            decided == "allow all" || decided == "deny wallgate.policy_error",
            "{body}: {decided}"
        );
        if decided != "allow all" {
            wrong.push(format!("{body}: {decided}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

//! P4: no decision, no egress. A policy that fails, says nothing or says something else denies, by a rule that says so.

use anyhow::ensure;
use serde_json::json;
use wallgate_tests::bundle::written;
use wallgate_tests::room::room;
use wallgate_tests::upstream::Upstream;
use wallgate_tests::upstream::origin::Origin;

/// Runs one request under a policy, and checks that it was denied by this rule and that nothing arrived.
fn check(rego: &str, rule: &str) {
    room(|room| {
        let origin = Upstream::http(room, "api.corp.test", Origin::default())?;
        let wall = room
            .wallgate()?
            .upstream(&origin)
            .policy(written(
                room,
                &format!("package wallgate\n\nimport rego.v1\n\n{rego}\n"),
                &json!({"many": (0..5000).collect::<Vec<_>>()}),
            )?)
            .with_toml("[policy]\neval_timeout_ms = 50\n")?;
        // The address is given, so that the request is made although the name lookup is denied as well.
        let run = wall
            .sh("curl --silent --write-out '\\n%{http_code}' --resolve api.corp.test:80:198.51.100.7 http://api.corp.test/
                 getent hosts api.corp.test || echo no such name")?
            .succeeded()?;
        ensure!(
            run.stdout.contains(&format!("\"rule\":\"{rule}\"")),
            "{}",
            run.told()
        );
        ensure!(run.stdout.contains("\n403no such name\n"), "{}", run.told());
        ensure!(origin.journal.connections() == 0, "{}", run.told());
        let records = run.records()?;
        for decision in &records.decisions {
            ensure!(
                decision.text("verdict") == "deny" && decision.text("rule") == rule,
                "{}",
                records.summary()
            );
        }
        ensure!(
            records
                .decisions
                .iter()
                .any(|kept| kept.text("protocol") == "dns"),
            "{}",
            records.summary()
        );
        Ok(())
    });
}

#[test]
fn a_decision_that_is_undefined_for_this_request_denies() {
    check(
        r#"decision := {"verdict": "allow", "rule": "r", "reason": "r"} if input.request.host == "other.test""#,
        "wallgate.policy_undefined",
    );
}

#[test]
fn a_decision_of_another_type_denies() {
    check("decision := true", "wallgate.policy_type");
}

#[test]
fn a_verdict_of_another_type_denies() {
    check(
        r#"decision := {"verdict": true, "rule": "r", "reason": "r"}"#,
        "wallgate.policy_type",
    );
}

#[test]
fn a_verdict_that_does_not_exist_denies() {
    check(
        r#"decision := {"verdict": "ALLOW", "rule": "r", "reason": "r"}"#,
        "wallgate.policy_type",
    );
}

#[test]
fn two_decisions_that_contradict_deny() {
    check(
        "decision := {\"verdict\": \"allow\", \"rule\": \"a\", \"reason\": \"a\"} if input.version == 1\n\
         decision := {\"verdict\": \"deny\", \"rule\": \"b\", \"reason\": \"b\"} if input.version == 1",
        "wallgate.policy_undefined",
    );
}

#[test]
fn a_policy_that_takes_too_long_denies() {
    check(
        "decision := {\"verdict\": \"allow\", \"rule\": \"a\", \"reason\": \"a\"} if {\n\
         count([1 | some a in data.many; some b in data.many; a == b]) > 0\n}",
        "wallgate.policy_timeout",
    );
}

/// Runs with a bundle that is no good, and checks that it says so, with these words, and starts nothing.
fn starts_nothing(rego: &str, words: &str) {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let broken = written(room, rego, &json!({}))?;
        let run = room
            .wallgate()?
            .upstream(&origin)
            .policy(broken)
            .sh("echo started")?;
        ensure!(run.code() == Some(64) && run.stdout.is_empty(), "{}", run.told());
        ensure!(
            run.stderr.contains(words),
            "it does not say {words:?}: {}",
            run.told()
        );
        Ok(())
    });
}

#[test]
fn a_bundle_that_does_not_compile_starts_nothing() {
    starts_nothing(
        "package wallgate\n\nimport rego.v1\n\ndecision := {\n",
        "test.rego:",
    );
}

#[test]
fn a_bundle_without_a_decision_starts_nothing() {
    starts_nothing(
        "package wallgate\n\nunrelated := true\n",
        "data.wallgate.decision",
    );
}

#[test]
fn a_bundle_that_reaches_outside_starts_nothing() {
    starts_nothing(
        "package wallgate\n\nimport rego.v1\n\ndecision := http.send({\"method\": \"GET\", \"url\": \"http://a.test\"}).body\n",
        "http.send",
    );
}

#[test]
fn every_request_of_a_connection_is_judged_alone() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wall = room
            .wallgate()?
            .upstream(&origin)
            .allow_below("api.corp.test", &["/open/"]);
        for version in ["--http1.1", "--http2"] {
            origin.journal.clear();
            // One connection: curl keeps it between the URLs.
            let run = wall
                .sh(&format!(
                    "curl --silent --output /dev/null --write-out '%{{http_code}} %{{num_connects}}\\n' {version} \
                     https://api.corp.test/open/1 --next --silent --output /dev/null {version} \
                     --write-out '%{{http_code}} %{{num_connects}}\\n' https://api.corp.test/closed \
                     --next --silent --output /dev/null {version} --write-out '%{{http_code}}\\n' https://api.corp.test/open/2"
                ))?
                .succeeded()?;
            ensure!(
                run.stdout
                    .lines()
                    .map(|line| line.get(..3).unwrap_or_default())
                    .eq(["200", "403", "200"]),
                "{}",
                run.told()
            );
            let paths: Vec<String> = origin
                .journal
                .requests()
                .into_iter()
                .map(|request| request.path)
                .collect();
            ensure!(paths == ["/open/1", "/open/2"], "{version}: {paths:?}");
        }
        Ok(())
    });
}

#[test]
fn a_write_by_another_name_of_get_is_no_get() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wall = room.wallgate()?.upstream(&origin).allow("api.corp.test");
        for method in ["TRACE", "TRACK", "get", "PROPFIND", "MKCOL"] {
            let run = wall.sh(&format!(
                "curl --silent --output /dev/null --write-out '%{{http_code}}' --request {method} https://api.corp.test/"
            ))?;
            ensure!(!run.stdout.starts_with('2'), "{method}: {}", run.told());
        }
        ensure!(
            origin.journal.requests().is_empty(),
            "{:#?}",
            origin.journal.requests()
        );
        Ok(())
    });
}

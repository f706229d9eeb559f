//! P3: one authority. DNS name, handshake name, `Host`, certificate and dialled name are one value, or nothing is sent.

use anyhow::{Result, ensure};
use wallgate_tests::inside::raw_client;
use wallgate_tests::pki::Flaw;
use wallgate_tests::room::{Room, room};
use wallgate_tests::upstream::Upstream;
use wallgate_tests::upstream::origin::Origin;
use wallgate_tests::wallgate::Wallgate;

/// A wall with one allowed host and one that is not, both with a server behind.
struct Pair<'room> {
    allowed: Upstream,
    other: Upstream,
    wall: Wallgate<'room>,
}

fn pair(room: &Room) -> Result<Pair<'_>> {
    let allowed = room.origin("allowed.corp.test")?;
    let other = room.origin("other.corp.test")?;
    let wall = room
        .wallgate()?
        .upstream(&allowed)
        .upstream(&other)
        .allow("allowed.corp.test");
    Ok(Pair { allowed, other, wall })
}

impl Pair<'_> {
    /// Runs a script, and checks that neither server got a request.
    fn nothing_arrives(&self, script: &str) -> Result<String> {
        self.allowed.journal.clear();
        self.other.journal.clear();
        let run = self.wall.sh(script)?;
        for server in [&self.allowed, &self.other] {
            let received = server.journal.requests();
            ensure!(
                received.is_empty(),
                "{script}\narrived: {received:#?}\n{}",
                run.told()
            );
        }
        Ok(run.stdout)
    }
}

#[test]
fn another_name_inside_an_allowed_handshake_is_refused() {
    room(|room| {
        let pair = pair(room)?;
        for version in ["--http1.1", "--http2"] {
            let status = pair.nothing_arrives(&format!(
                "curl --silent --output /dev/null --write-out '%{{http_code}}' {version} \
                 --header 'Host: other.corp.test' https://allowed.corp.test/"
            ))?;
            ensure!(status == "421", "{version}: {status}");
        }
        Ok(())
    });
}

#[test]
fn a_second_request_for_another_name_is_refused_and_closes() {
    room(|room| {
        let pair = pair(room)?;
        let raw = raw_client(&pair.wall)?;
        let run = pair.wall.sh(&format!(
            "{raw} tls allowed.corp.test 443 allowed.corp.test \
             'GET /first HTTP/1.1\\r\\nHost: allowed.corp.test\\r\\n\\r\\n' \
             'GET /second HTTP/1.1\\r\\nHost: other.corp.test\\r\\n\\r\\nGET /third HTTP/1.1\\r\\nHost: allowed.corp.test\\r\\n\\r\\n'"
        ))?;
        let paths: Vec<String> = pair
            .allowed
            .journal
            .requests()
            .into_iter()
            .map(|request| request.path)
            .collect();
        ensure!(paths == ["/first"], "{paths:?}\n{}", run.told());
        ensure!(pair.other.journal.requests().is_empty());
        ensure!(run.stdout.contains("HTTP/1.1 421 "), "{}", run.told());
        Ok(())
    });
}

#[test]
fn a_host_that_can_be_read_in_two_ways_is_refused() {
    room(|room| {
        let pair = pair(room)?;
        let raw = raw_client(&pair.wall)?;
        let rows = [
            (
                "two hosts",
                "GET / HTTP/1.1\\r\\nHost: allowed.corp.test\\r\\nHost: other.corp.test\\r\\n\\r\\n",
            ),
            (
                "the same host twice",
                "GET / HTTP/1.1\\r\\nHost: allowed.corp.test\\r\\nHost: allowed.corp.test\\r\\n\\r\\n",
            ),
            ("no host", "GET / HTTP/1.1\\r\\n\\r\\n"),
            ("an empty host", "GET / HTTP/1.1\\r\\nHost:\\r\\n\\r\\n"),
            (
                "another target",
                "GET https://other.corp.test/ HTTP/1.1\\r\\nHost: allowed.corp.test\\r\\n\\r\\n",
            ),
            (
                "userinfo",
                "GET / HTTP/1.1\\r\\nHost: allowed.corp.test@other.corp.test\\r\\n\\r\\n",
            ),
            (
                "another port",
                "GET / HTTP/1.1\\r\\nHost: allowed.corp.test:8443\\r\\n\\r\\n",
            ),
            (
                "a suffix",
                "GET / HTTP/1.1\\r\\nHost: allowed.corp.test.other.corp.test\\r\\n\\r\\n",
            ),
            (
                "a NUL",
                "GET / HTTP/1.1\\r\\nHost: allowed.corp.test\\x00.other.corp.test\\r\\n\\r\\n",
            ),
            (
                "percent-encoding",
                "GET / HTTP/1.1\\r\\nHost: allowed%2ecorp.test\\r\\n\\r\\n",
            ),
            (
                "a tunnel",
                "CONNECT other.corp.test:443 HTTP/1.1\\r\\nHost: other.corp.test\\r\\n\\r\\n",
            ),
        ];
        for (what, request) in rows {
            let answer = pair.nothing_arrives(&format!(
                "{raw} tls allowed.corp.test 443 allowed.corp.test '{request}'"
            ))?;
            ensure!(!answer.contains("HTTP/1.1 2"), "{what}: {answer}");
        }
        Ok(())
    });
}

#[test]
fn the_address_of_an_allowed_name_grants_nothing() {
    room(|room| {
        let pair = pair(room)?;
        let raw = raw_client(&pair.wall)?;
        let address = "$(getent ahostsv4 allowed.corp.test | head -1 | cut -d ' ' -f 1)";
        for (what, command) in [
            (
                "another name in the handshake",
                format!(
                    "{raw} tls {address} 443 other.corp.test 'GET / HTTP/1.1\\r\\nHost: other.corp.test\\r\\n\\r\\n'"
                ),
            ),
            (
                "another name over plain HTTP",
                format!("{raw} tcp {address} 80 '' 'GET / HTTP/1.1\\r\\nHost: other.corp.test\\r\\n\\r\\n'"),
            ),
            (
                "bytes that are no protocol",
                format!("{raw} tcp {address} 443 '' 'SSH-2.0-attack\\r\\n'"),
            ),
        ] {
            let answer = pair.nothing_arrives(&command)?;
            ensure!(!answer.contains("HTTP/1.1 2"), "{what}: {answer}");
        }
        Ok(())
    });
}

#[test]
fn an_address_of_the_sandboxs_choice_is_ignored_for_an_allowed_name() {
    room(|room| {
        let pair = pair(room)?;
        // Where the sandbox says that the allowed name is.
        let attacker = "198.51.100.66";
        let run = pair
            .wall
            .sh(&format!(
                "curl --silent --show-error --fail --resolve allowed.corp.test:443:{attacker} https://allowed.corp.test/hello"
            ))?
            .succeeded()?;
        ensure!(pair.other.journal.connections() == 0, "{}", run.told());
        ensure!(pair.allowed.journal.requests().len() == 1, "{}", run.told());
        let records = run.records()?;
        let decision = records.only("the request", |kept| kept.text("path") == "/hello")?;
        ensure!(
            decision.outcome_text("dialled") == pair.allowed.address.to_string(),
            "{}",
            records.summary()
        );
        ensure!(
            decision.text("original_dst") == format!("{attacker}:443"),
            "{:?}",
            decision.decision
        );
        Ok(())
    });
}

#[test]
fn an_address_without_a_name_needs_a_rule_of_its_own() {
    room(|room| {
        let pair = pair(room)?;
        let port = pair.other.address.port();
        for url in [
            format!("https://127.0.0.1:{port}/"),
            format!("http://127.0.0.1:{port}/"),
            format!("http://198.51.100.7:{port}/"),
            "http://169.254.169.254/latest/meta-data/".to_owned(),
            format!("http://[::ffff:127.0.0.1]:{port}/"),
        ] {
            let status = pair.nothing_arrives(&format!(
                "curl --silent --insecure --globoff --max-time 5 --output /dev/null --write-out '%{{http_code}}' '{url}'"
            ))?;
            ensure!(!status.starts_with('2'), "{url}: {status}");
        }
        ensure!(pair.other.journal.connections() == 0, "somebody dialled");
        Ok(())
    });
}

#[test]
fn a_certificate_that_is_not_good_ends_the_request_before_it_is_sent() {
    room(|room| {
        for (flaw, reason) in [
            (Flaw::Expired, "expired"),
            (Flaw::NotYetValid, "not_yet_valid"),
            (Flaw::WrongName, "wrong_name"),
            (Flaw::UnknownIssuer, "unknown_issuer"),
        ] {
            let origin = Upstream::https_with(
                room,
                "api.corp.test",
                flaw,
                &["h2", "http/1.1"],
                Origin::default(),
            )?;
            let wall = room.wallgate()?.upstream(&origin).allow("api.corp.test");
            // What the client says about certificates changes nothing.
            let run = wall
                .sh("curl --silent --insecure --write-out '\\n%{http_code}' https://api.corp.test/")?
                .succeeded()?;
            ensure!(run.stdout.ends_with("\n502"), "{flaw:?}: {}", run.told());
            ensure!(
                run.stdout.contains(r#""code":"upstream_certificate""#),
                "{flaw:?}: {}",
                run.told()
            );
            ensure!(origin.journal.requests().is_empty());
            let records = run.records()?;
            let decision = records.only("the request", |kept| kept.text("protocol") == "http")?;
            ensure!(
                decision.outcome_text("result") == "failed",
                "{}",
                records.summary()
            );
            ensure!(
                decision.outcome_text("error").starts_with("upstream_certificate"),
                "{}",
                records.summary()
            );
            println!("{reason}: {}", run.stderr);
        }
        Ok(())
    });
}

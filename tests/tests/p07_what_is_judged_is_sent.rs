//! P7: what is judged is what is sent. Whatever a client writes, the origin gets the value that is in the record, or
//! nothing.

use anyhow::ensure;
use wallgate_tests::inside::raw_client;
use wallgate_tests::room::room;

/// Paths as a client may write them.
const PATHS: &[&str] = &[
    "/plain",
    "/a/../b",
    "/a/./b",
    "/a//b",
    "/open/..;/closed",
    "/%61%62c",
    "/a%2fb",
    "/a%5cb",
    "/a\\b",
    "/%2e%2e/closed",
    "/%252e%252e/closed",
    "/open/%2e%2e/closed",
    "/a%00b",
    "/a;b=c",
    "/closed.",
    "/CLOSED",
    "/%c0%ae%c0%ae/closed",
    "/a%",
    "/a%zz",
    "/a b",
    "/a#fragment",
    "//other.corp.test/closed",
    "*",
];

#[test]
fn a_path_is_sent_as_it_was_judged_or_not_at_all() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wall = room
            .wallgate()?
            .upstream(&origin)
            .allow_below("api.corp.test", &["/"]);
        let raw = raw_client(&wall)?;
        for (number, path) in PATHS.iter().enumerate() {
            origin.journal.clear();
            let escaped = path.replace('\\', "\\\\");
            let run = wall.sh(&format!(
                "{raw} tls api.corp.test 443 api.corp.test \
                 'GET {escaped} HTTP/1.1\\r\\nHost: api.corp.test\\r\\nConnection: close\\r\\n\\r\\n'"
            ))?;
            let received = origin.journal.requests();
            let records = run.records()?;
            // The ledger goes on from run to run: the last decision is this one's, if there was one.
            let judged = records.requests_to("api.corp.test").len();
            ensure!(received.len() <= 1, "{path}: {received:#?}");
            if let [request] = received.as_slice() {
                let last = records.requests_to("api.corp.test").into_iter().next_back();
                let last = last.map(|decision| decision.text("path").to_owned());
                ensure!(
                    last.as_deref() == Some(request.path.as_str()),
                    "{path}: judged {last:?}, sent {request:?}"
                );
                ensure!(
                    !request.path.contains("..") && !request.path.contains("//"),
                    "{path}: {request:?}"
                );
            } else {
                ensure!(run.stdout.contains("HTTP/1.1 4"), "{path}: {}", run.told());
            }
            println!("{number} {path}: {} sent, {judged} judged so far", received.len());
        }
        Ok(())
    });
}

#[test]
fn no_second_request_hides_in_the_first() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wall = room
            .wallgate()?
            .upstream(&origin)
            .allow_below("api.corp.test", &["/sink"]);
        let raw = raw_client(&wall)?;
        let hidden = "GET /hidden HTTP/1.1\\r\\nHost: api.corp.test\\r\\n\\r\\n";
        let rows = [
            (
                "both lengths",
                format!("Content-Length: 6\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n{hidden}"),
            ),
            (
                "two lengths",
                format!("Content-Length: 0\\r\\nContent-Length: 50\\r\\n\\r\\n{hidden}"),
            ),
            (
                "a list of lengths",
                format!("Content-Length: 5, 5\\r\\n\\r\\nhello{hidden}"),
            ),
            (
                "a signed length",
                format!("Content-Length: +5\\r\\n\\r\\nhello{hidden}"),
            ),
            (
                "a coding before chunked",
                format!("Transfer-Encoding: identity, chunked\\r\\n\\r\\n0\\r\\n\\r\\n{hidden}"),
            ),
            (
                "an unknown coding",
                format!("Transfer-Encoding: xchunked\\r\\n\\r\\n0\\r\\n\\r\\n{hidden}"),
            ),
            (
                "two codings",
                format!(
                    "Transfer-Encoding: chunked\\r\\nTransfer-Encoding: identity\\r\\n\\r\\n0\\r\\n\\r\\n{hidden}"
                ),
            ),
            (
                "a space before the colon",
                format!("Transfer-Encoding : chunked\\r\\n\\r\\n0\\r\\n\\r\\n{hidden}"),
            ),
            (
                "a folded line",
                format!("X-A: b\\r\\n Transfer-Encoding: chunked\\r\\n\\r\\n{hidden}"),
            ),
            (
                "a bare line feed",
                format!("X-A: b\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n{hidden}"),
            ),
            (
                "a bare line feed in a chunk",
                "Transfer-Encoding: chunked\\r\\n\\r\\n5\\nhello\\r\\n0\\r\\n\\r\\n".to_owned(),
            ),
            (
                "a NUL",
                format!("X-A: b\\x00c\\r\\nContent-Length: 0\\r\\n\\r\\n{hidden}"),
            ),
        ];
        for (what, rest) in rows {
            origin.journal.clear();
            let run = wall.sh(&format!(
                "{raw} tls api.corp.test 443 api.corp.test 'POST /sink HTTP/1.1\\r\\nHost: api.corp.test\\r\\n{rest}'"
            ))?;
            let received = origin.journal.requests();
            ensure!(
                received.iter().all(|request| request.path != "/hidden"),
                "{what}: {received:#?}"
            );
            ensure!(run.stdout.contains("HTTP/1.1 4"), "{what}: {}", run.told());
            ensure!(!run.stdout.contains("HTTP/1.1 2"), "{what}: {}", run.told());
        }
        Ok(())
    });
}

#[test]
fn a_header_cannot_change_the_method_or_the_way() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wall = room.wallgate()?.upstream(&origin).allow("api.corp.test");
        for header in [
            "X-HTTP-Method-Override: DELETE",
            "X-Method-Override: DELETE",
            "X-HTTP-Method: DELETE",
            "X-Forwarded-Host: other.corp.test",
            "X-Original-URL: /closed",
            "X-Rewrite-URL: /closed",
            "Proxy-Authorization: Basic eDp5",
            "Upgrade: h2c",
        ] {
            origin.journal.clear();
            let run = wall.sh(&format!(
                "curl --silent --http1.1 --output /dev/null --write-out '%{{http_code}}' --header '{header}' https://api.corp.test/"
            ))?;
            let name = header.split(':').next().unwrap_or_default().to_lowercase();
            for request in origin.journal.requests() {
                ensure!(
                    request.header(&name).is_none(),
                    "{header}: {request:?} {}",
                    run.told()
                );
            }
        }
        Ok(())
    });
}

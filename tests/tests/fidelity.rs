//! What works without the wall works behind it: protocol details that clients and servers really use.

use anyhow::ensure;
use wallgate_tests::room::room;

/// An origin may answer before it has read the request's body. (Over HTTP/1.1: the curl of Debian 12 takes the reset that
/// follows such an answer over HTTP/2 for an error, with and without a wall.)
#[test]
fn an_answer_that_comes_before_the_body_was_read_arrives() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wall = room.wallgate()?.upstream(&origin).allow("api.corp.test");
        let run = wall.sh("for n in $(seq 40); do
                 curl --silent --show-error --http1.1 --output /dev/null --write-out '%{http_code}\\n' --data 0000 \
                     https://api.corp.test/early/$n
             done")?;
        let served = run.stdout.lines().filter(|line| *line == "200").count();
        ensure!(served == 40, "{served} of 40: {}", run.stderr);
        Ok(())
    });
}

#[test]
fn ranges_heads_and_conditions_pass() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wall = room.wallgate()?.upstream(&origin).allow("api.corp.test");
        for version in ["--http1.1", "--http2"] {
            origin.journal.clear();
            let run = wall
                .sh(&format!(
                    "set -e
                     curl --silent --show-error --fail {version} --head https://api.corp.test/hello
                     curl --silent --show-error --fail {version} --range 0-4 --header 'If-None-Match: \"x\"' --header 'X-Case: Kept' https://api.corp.test/echo"
                ))?
                .succeeded()?;
            let [head, get] = &origin.journal.requests()[..] else {
                anyhow::bail!("{}", run.told())
            };
            ensure!(
                head.method == "HEAD" && run.stdout.contains("content-length: 22"),
                "{}",
                run.told()
            );
            ensure!(get.header("range") == Some("bytes=0-4"), "{get:?}");
            ensure!(
                get.header("if-none-match") == Some("\"x\"") && get.header("x-case") == Some("Kept"),
                "{get:?}"
            );
        }
        Ok(())
    });
}

#[test]
fn a_large_body_waits_for_the_decision_when_the_client_asks_to() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wall = room
            .wallgate()?
            .upstream(&origin)
            .allow_below("api.corp.test", &["/sink"]);
        let run = wall
            .sh("head --bytes=2000000 /dev/zero > body
                 curl --silent --http1.1 --expect100-timeout 20 --header 'Expect: 100-continue' --data-binary @body \
                     --write-out '\\n%{http_code}\\n' https://api.corp.test/sink
                 curl --silent --http1.1 --expect100-timeout 20 --header 'Expect: 100-continue' --data-binary @body \
                     --output /dev/null --write-out '%{http_code} %{size_upload}\\n' https://api.corp.test/closed")?
            .succeeded()?;
        ensure!(
            run.stdout.contains("\"bytes\":2000000") && run.stdout.contains("\n200\n"),
            "{}",
            run.told()
        );
        ensure!(
            run.stdout.ends_with("403 0\n"),
            "the body of a denied request was sent: {}",
            run.told()
        );
        Ok(())
    });
}

#[test]
fn many_streams_share_a_connection() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wall = room.wallgate()?.upstream(&origin).allow("api.corp.test");
        let run = wall
            .sh("curl --silent --show-error --fail --http2 --parallel --parallel-max 50 --output /dev/null \
                     --write-out '%{http_code} %{num_connects}\\n' 'https://api.corp.test/bytes/[100000-100199]'")?
            .succeeded()?;
        let served = run.stdout.lines().filter(|line| line.starts_with("200")).count();
        ensure!(served == 200, "{served} of 200: {}", run.told());
        ensure!(run.records()?.requests_to("api.corp.test").len() == 200);
        Ok(())
    });
}

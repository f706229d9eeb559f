//! P8: read-only means read-only. What each ecosystem's grammar calls a write is refused by name, and what it does not
//! know counts as one. The real clients are in `clients.rs`; here is what they would never send.

use anyhow::ensure;
use wallgate_tests::room::room;

/// What a request to a mirror is, and whether it may be sent.
struct Row {
    profile: &'static str,
    /// Arguments for curl.
    arguments: &'static str,
    path: &'static str,
    allowed: bool,
}

const fn read(profile: &'static str, arguments: &'static str, path: &'static str) -> Row {
    Row {
        profile,
        arguments,
        path,
        allowed: true,
    }
}

const fn write(profile: &'static str, arguments: &'static str, path: &'static str) -> Row {
    Row {
        profile,
        arguments,
        path,
        allowed: false,
    }
}

const GZIP: &str = "--header 'Content-Type: application/json' --data '{\"left-pad\":[\"1.3.0\"]}'";

const ROWS: &[Row] = &[
    read("npm", "", "/left-pad"),
    read("npm", "", "/@scope%2fname"),
    read("npm", "", "/left-pad/-/left-pad-1.3.0.tgz"),
    // A read by POST: every install sends it.
    read("npm", GZIP, "/-/npm/v1/security/advisories/bulk"),
    write("npm", "--request PUT --data '{}'", "/left-pad"),
    write("npm", "--request DELETE", "/left-pad/-rev/1"),
    write(
        "npm",
        "--request PUT --data '\"1.0.0\"'",
        "/-/package/left-pad/dist-tags/latest",
    ),
    write("npm", "--request DELETE", "/-/package/left-pad/dist-tags/latest"),
    write("npm", "--request PUT --data '{}'", "/-/user/org.couchdb.user:eve"),
    write("npm", "--data '{}'", "/-/npm/v1/tokens"),
    write("npm", "--data '{}'", "/left-pad"),
    write("npm", "--request PROPFIND", "/left-pad"),
    write("npm", "--request MKCOL", "/board"),
    write("npm", "", "/remote?url=https://other.corp.test/"),
    write("npm", "", "/https://other.corp.test/x"),
    write("npm", "", "/generic/board/message;property=secret"),
    write(
        "npm",
        "--header 'X-HTTP-Method-Override: PUT'",
        "/-/unknown/operation",
    ),
    read("pypi", "", "/simple/leftpad/"),
    read("pypi", "", "/packages/leftpad-1.0-py3-none-any.whl"),
    write(
        "pypi",
        "--form ':action=file_upload' --form 'name=x' --form 'content=x'",
        "/",
    ),
    write(
        "pypi",
        "--form ':action=file_upload' --form 'name=x' --form 'content=x'",
        "/legacy/",
    ),
    write(
        "pypi",
        "--form ':action=file_upload' --form 'name=x' --form 'content=x'",
        "/simple/",
    ),
    write(
        "pypi",
        "--request PUT --data x",
        "/packages/leftpad-1.0-py3-none-any.whl",
    ),
    write(
        "pypi",
        "--header 'Content-Type: text/xml' --data '<methodCall/>'",
        "/pypi",
    ),
    write(
        "pypi",
        "--request DELETE",
        "/packages/leftpad-1.0-py3-none-any.whl",
    ),
    read("cargo", "", "/index/config.json"),
    read("cargo", "", "/index/le/ft/leftpad"),
    write("cargo", "--request PUT --data x", "/api/v1/crates/new"),
    write("cargo", "--request DELETE", "/api/v1/crates/leftpad/1.0.0/yank"),
    write(
        "cargo",
        "--request PUT --data ''",
        "/api/v1/crates/leftpad/1.0.0/unyank",
    ),
    write(
        "cargo",
        "--request PUT --data '{}'",
        "/api/v1/crates/leftpad/owners",
    ),
    write(
        "cargo",
        "--request DELETE --data '{}'",
        "/api/v1/crates/leftpad/owners",
    ),
    read("git", "", "/project.git/info/refs?service=git-upload-pack"),
    read(
        "git",
        "--header 'Content-Type: application/x-git-upload-pack-request' --data 0000",
        "/project.git/git-upload-pack",
    ),
    // A write that begins with a GET.
    write("git", "", "/project.git/info/refs?service=git-receive-pack"),
    write(
        "git",
        "--header 'Content-Type: application/x-git-receive-pack-request' --data 0000",
        "/project.git/git-receive-pack",
    ),
    write(
        "git",
        "",
        "/project.git/info/refs?service=git-receive-pack&service=git-upload-pack",
    ),
    write(
        "git",
        "",
        "/project.git/info/refs?service=git-upload-pack&service=git-receive-pack",
    ),
    write("git", "--request PUT --data x", "/project.git/objects/00/00"),
    write(
        "git",
        "--data '{\"operation\":\"upload\",\"objects\":[]}'",
        "/project.git/info/lfs/objects/batch",
    ),
];

#[test]
fn each_ecosystems_writes_are_refused_and_its_reads_are_not() {
    room(|room| {
        let mut servers = Vec::new();
        let mut wall = room.wallgate()?;
        for profile in ["npm", "pypi", "cargo", "git"] {
            let server = room.origin(&format!("{profile}.corp.test"))?;
            wall = wall.upstream(&server).service(profile, &server.host, profile);
            servers.push(server);
        }
        // One sandbox makes all of the requests, one after another; each says its number and its status.
        let requests = ROWS.iter().enumerate().map(|(number, row)| {
            format!(
                "curl --silent --path-as-is --output /dev/null --write-out '{number} %{{http_code}}\\n' {} \
                 --header 'X-Row: {number}' 'https://{}.corp.test{}'\n",
                row.arguments, row.profile, row.path
            )
        });
        let run = wall.sh(&format!("{}exit 0", requests.collect::<String>()))?;
        let records = run.records()?;
        for (number, row) in ROWS.iter().enumerate() {
            let status = run
                .stdout
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{number} ")));
            let status = status.unwrap_or_default();
            let what = format!("{} {} {}: {status}", row.profile, row.arguments, row.path);
            if row.allowed {
                ensure!(
                    status.starts_with('2'),
                    "a read was refused: {what}\n{}",
                    records.summary()
                );
            } else {
                ensure!(
                    status == "403" || status == "400",
                    "a write was not refused: {what}\n{}",
                    records.summary()
                );
            }
        }
        let sent: usize = servers.iter().map(|server| server.journal.requests().len()).sum();
        let reads = ROWS.iter().filter(|row| row.allowed).count();
        ensure!(
            sent == reads,
            "{sent} requests were sent, {reads} may be: {}",
            records.summary()
        );
        for decision in &records.decisions {
            if decision.text("protocol") == "http" && decision.text("verdict") == "deny" {
                ensure!(
                    decision.text("rule").starts_with("mirror."),
                    "{}",
                    records.summary()
                );
            }
        }
        Ok(())
    });
}

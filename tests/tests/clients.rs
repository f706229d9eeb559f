//! Real clients behind the wall, in front of real servers: what works, what is refused by name, and what is recorded.
//!
//! Each test asserts three things: what the client saw, what the server received, and what the ledger holds.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use wallgate_tests::bundle::library;
use wallgate_tests::pattern;
use wallgate_tests::records::Records;
use wallgate_tests::room::{Room, room};
use wallgate_tests::rss::peak_bytes;
use wallgate_tests::tools;
use wallgate_tests::upstream::Upstream;
use wallgate_tests::upstream::crates::{Crates, write_crate};
use wallgate_tests::upstream::git::Git;
use wallgate_tests::upstream::npm::{Npm, write_package};
use wallgate_tests::upstream::origin::Origin;
use wallgate_tests::upstream::pypi::{PASSWORD, Pypi, USER, wheel};
use wallgate_tests::wallgate::{PATIENCE, Wallgate};

/// The most that a broker may hold while a gibibyte passes through it.
const MAX_BROKER_BYTES: u64 = 160 * 1024 * 1024;
const GIB: u64 = 1 << 30;

/// A wallgate that allows the origin, and nothing else.
fn allowing<'room>(room: &'room Room, origin: &Upstream) -> Result<Wallgate<'room>> {
    Ok(room.wallgate()?.upstream(origin).allow(&origin.host))
}

/// A wallgate with the library's policy, in front of one service.
fn mirror<'room>(room: &'room Room, upstream: &Upstream, profile: &str) -> Result<Wallgate<'room>> {
    Ok(room
        .wallgate()?
        .policy(library())
        .upstream(upstream)
        .service(profile, &upstream.host, profile))
}

/// That an operation was refused by this name, by a rule about mirrors, and that nothing was sent for it.
fn ensure_refused(records: &Records, operation: &str) -> Result<()> {
    let refused: Vec<_> = records
        .decisions
        .iter()
        .filter(|decision| decision.text("operation") == operation)
        .collect();
    ensure!(!refused.is_empty(), "no {operation}: {}", records.summary());
    for decision in refused {
        ensure!(
            decision.text("verdict") == "deny",
            "{operation}: {}",
            records.summary()
        );
        ensure!(
            decision.text("rule") == "mirror.write",
            "{operation}: {}",
            records.summary()
        );
        ensure!(
            decision.outcome_text("result") == "denied",
            "{operation}: {}",
            records.summary()
        );
    }
    Ok(())
}

fn write_file(directory: &Path, name: &str, content: &str) -> Result<String> {
    let path = directory.join(name);
    fs::write(&path, content)?;
    Ok(path.display().to_string())
}

#[test]
fn curl_speaks_both_versions_of_http() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wallgate = allowing(room, &origin)?;
        for version in ["--http1.1", "--http2"] {
            origin.journal.clear();
            let finished = wallgate
                .sh(&format!("curl -sS --fail {version} -w '%{{http_version}}' --data ping 'https://api.corp.test/echo?q=1'"))?
                .succeeded()?;
            ensure!(
                finished.stdout.contains(r#""body":"ping""#),
                "{}",
                finished.told()
            );
            let spoken = if version == "--http2" { "2" } else { "1.1" };
            ensure!(finished.stdout.ends_with(spoken), "{}", finished.told());
            let got = origin.journal.requests();
            let [got] = got.as_slice() else {
                anyhow::bail!("{got:?}")
            };
            ensure!(
                got.authority == "api.corp.test" && got.sni.as_deref() == Some("api.corp.test"),
                "{got:?}"
            );
            ensure!(got.body == b"ping", "{got:?}");
        }
        let records = wallgate.records()?;
        let requests = records.requests_to("api.corp.test");
        ensure!(requests.len() == 2, "{}", records.summary());
        for request in requests {
            ensure!(request.text("verdict") == "allow" && request.outcome_text("result") == "completed");
        }
        Ok(())
    });
}

#[test]
fn git_clones_and_cannot_push() {
    room(|room| {
        let git = Git::start(room, "git.corp.test")?;
        git.add(room, "project", "README", "read me")?;
        let head = git
            .head("project", "main")
            .or_else(|_| git.head("project", "master"))?;
        let wallgate = mirror(room, &git.upstream, "git")?;
        let finished = wallgate
            .sh(
                "set -e; cd /tmp; git clone --quiet https://git.corp.test/project.git; cd project; cat README
                 git -c user.name=a -c user.email=a@git.test commit --quiet --allow-empty --message second
                 if git push --quiet origin HEAD:pushed; then echo PUSHED; fi",
            )?
            .succeeded()?;
        ensure!(finished.stdout.contains("read me"), "{}", finished.told());
        ensure!(
            !finished.stdout.contains("PUSHED") && git.head("project", "pushed").is_err(),
            "{}",
            finished.told()
        );
        let records = finished.records()?;
        ensure_refused(&records, "git.push")?;
        let fetches = records.decisions.iter().filter(|decision| {
            decision.text("operation") == "git.fetch" && decision.text("verdict") == "allow"
        });
        ensure!(fetches.count() > 0, "{}", records.summary());
        ensure!(
            git.head("project", "main")
                .or_else(|_| git.head("project", "master"))?
                == head
        );
        Ok(())
    });
}

#[test]
fn pip_downloads_and_twine_cannot_upload() {
    room(|room| {
        let pypi = Pypi::start(room, "pypi.corp.test")?;
        pypi.add("leftpad", "1.0", "def pad(text): return text\n")?;
        let made = wheel(&room.new_directory("wheel")?, "sneaky", "1.0", "x = 1\n")?;
        let python = tools::directory().join("python");
        let wallgate = mirror(room, &pypi.upstream, "pypi")?
            .readable(&python)
            .readable(&made);
        let bin = python.join("bin");
        let finished = wallgate
            .sh(&format!(
                "set -e; cd /tmp
                 {bin}/python -m pip download --quiet --no-deps --index-url https://pypi.corp.test/simple/ leftpad==1.0; ls
                 if {bin}/python -m twine upload --non-interactive --disable-progress-bar \
                    --repository-url https://pypi.corp.test/ -u {USER} -p {PASSWORD} {made}; then echo UPLOADED; fi",
                bin = bin.display(),
                made = made.display()
            ))?
            .succeeded()?;
        ensure!(
            finished.stdout.contains("leftpad-1.0-py3-none-any.whl"),
            "{}",
            finished.told()
        );
        ensure!(
            !finished.stdout.contains("UPLOADED") && pypi.files()?.len() == 1,
            "{}",
            finished.told()
        );
        ensure_refused(&finished.records()?, "pypi.upload")
    });
}

#[test]
fn npm_installs_and_cannot_publish_or_log_in() {
    room(|room| {
        let npm = Npm::start(room, "npm.corp.test")?;
        npm.add(room, "left-pad", "1.3.0", "module.exports = (text) => text\n")?;
        let users = npm.users();
        let sneaky = room.new_directory("sneaky")?;
        write_package(&sneaky, "sneaky", "1.0.0", "module.exports = 1\n")?;
        let wallgate = mirror(room, &npm.upstream, "npm")?.readable(&sneaky);
        let finished = wallgate
            .sh(&format!(
                "set -e; mkdir -p /tmp/app; cd /tmp/app
                 export npm_config_registry=https://npm.corp.test/ npm_config_update_notifier=false npm_config_cache=/tmp/cache npm_config_fund=false
                 npm install --no-progress left-pad@1.3.0; node -e 'console.log(require(\"left-pad\")(\"padded\"))'
                 echo //npm.corp.test/:_authToken=anything >/tmp/npmrc; export npm_config_userconfig=/tmp/npmrc
                 cp -r {sneaky} /tmp/sneaky; cd /tmp/sneaky
                 if npm publish; then echo PUBLISHED; fi
                 curl -sS -X PUT -H 'content-type: application/json' --data '{{\"name\":\"eve\",\"password\":\"secret\"}}' \
                   https://npm.corp.test/-/user/org.couchdb.user:eve",
                sneaky = sneaky.display()
            ))?
            .succeeded()?;
        ensure!(finished.stdout.contains("padded"), "{}", finished.told());
        ensure!(
            !finished.stdout.contains("PUBLISHED") && !npm.holds("sneaky"),
            "{}",
            finished.told()
        );
        ensure!(npm.users() == users, "somebody was added: {}", npm.users());
        let records = finished.records()?;
        ensure_refused(&records, "npm.publish")?;
        ensure_refused(&records, "npm.login")?;
        records.only("the tarball", |decision| {
            decision.text("operation") == "npm.tarball" && decision.text("version") == "1.3.0"
        })?;
        Ok(())
    });
}

#[test]
fn cargo_fetches_and_cannot_publish_or_yank() {
    room(|room| {
        let crates = Crates::start(room, "crates.corp.test")?;
        crates.add(room, "leftpad", "1.0.0", "pub fn pad() {}\n")?;
        let project = room.new_directory("project")?;
        write_crate(&project, "user", "0.1.0", "")?;
        let manifest = project.join("Cargo.toml");
        let text = fs::read_to_string(&manifest)?;
        fs::write(
            &manifest,
            format!("{text}\n[dependencies]\nleftpad = {{ version = \"1\", registry = \"corp\" }}\n"),
        )?;
        let sneaky = room.new_directory("sneaky")?;
        write_crate(&sneaky, "sneaky", "1.0.0", "")?;
        let config = write_file(
            &room.new_directory("config")?,
            "config.toml",
            "[registries.corp]\nindex = \"sparse+https://crates.corp.test/index/\"\ntoken = \"t\"\n\
             [registry]\nglobal-credential-providers = [\"cargo:token\"]\n",
        )?;
        let toolchain = tools::toolchain(room)?;
        let wallgate = mirror(room, &crates.upstream, "cargo")?
            .readable(&toolchain)
            .readable(&project)
            .readable(&sneaky)
            .readable(Path::new(&config));
        let finished = wallgate
            .sh(&format!(
                "set -e; export PATH={bin}:$PATH CARGO_HOME=/tmp/cargo; mkdir -p $CARGO_HOME; cp {config} $CARGO_HOME/config.toml
                 cp -r {project} /tmp/project; cd /tmp/project; cargo fetch; ls $CARGO_HOME/registry/cache/*/
                 cp -r {sneaky} /tmp/sneaky; cd /tmp/sneaky
                 if cargo publish --registry corp --no-verify --allow-dirty; then echo PUBLISHED; fi
                 if cargo yank --registry corp --version 1.0.0 leftpad; then echo YANKED; fi",
                bin = toolchain.join("bin").display(),
                project = project.display(),
                sneaky = sneaky.display()
            ))?
            .succeeded()?;
        ensure!(
            finished.stdout.contains("leftpad-1.0.0.crate"),
            "{}",
            finished.told()
        );
        ensure!(
            !finished.stdout.contains("PUBLISHED") && crates.versions("sneaky").is_empty(),
            "{}",
            finished.told()
        );
        ensure!(!finished.stdout.contains("YANKED"), "{}", finished.told());
        ensure!(
            crates.versions("leftpad") == [("1.0.0".to_owned(), false)],
            "{:?}",
            crates.versions("leftpad")
        );
        let records = finished.records()?;
        ensure_refused(&records, "cargo.publish")?;
        ensure_refused(&records, "cargo.yank")
    });
}

#[test]
fn python_and_node_need_not_be_told() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let python = tools::directory().join("python");
        let scripts = room.new_directory("scripts")?;
        let urllib = write_file(
            &scripts,
            "get.py",
            "import urllib.request as u\nprint(u.urlopen('https://api.corp.test/one').read().decode())\n",
        )?;
        let requests = write_file(
            &scripts,
            "post.py",
            "import requests as r\nprint(r.post('https://api.corp.test/sink', data=b'x' * 100000).json())\n",
        )?;
        let fetch = write_file(
            &scripts,
            "fetch.mjs",
            "import https from 'node:https';\nconsole.log(await (await fetch('https://api.corp.test/three')).text());\n\
             https.get('https://api.corp.test/four', (answer) => answer.pipe(process.stdout));\n",
        )?;
        let wallgate = allowing(room, &origin)?.readable(&python).readable(&scripts);
        let finished = wallgate
            .sh(&format!(
                "set -e; python3 {urllib}; {python}/bin/python {requests}; node {fetch}",
                python = python.display()
            ))?
            .succeeded()?;
        ensure!(
            finished.stdout.matches("hello from the origin").count() == 3,
            "{}",
            finished.told()
        );
        ensure!(finished.stdout.contains("100000"), "{}", finished.told());
        ensure!(finished.records()?.requests_to("api.corp.test").len() == 4);
        ensure!(
            origin.journal.requests().len() == 4,
            "{:?}",
            origin.journal.requests()
        );
        Ok(())
    });
}

#[test]
fn a_gibibyte_passes_either_way_in_bounded_memory() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wallgate = allowing(room, &origin)?;
        let digest = pattern::sha256(GIB);
        let mut running = wallgate.start(&[
            "sh",
            "-c",
            &format!(
                "set -e; curl -sS --fail https://api.corp.test/bytes/{GIB} | tee /dev/null | sha256sum
                 curl -sS --fail https://api.corp.test/bytes/{GIB} | curl -sS --fail -T - https://api.corp.test/sink
                 echo; echo done; read line"
            ),
        ])?;
        let broker = running.broker()?;
        let line = running.wait_for_line(|line| line.len() > 60)?;
        ensure!(line.starts_with(&digest), "downloaded {line}");
        let line = running.wait_for_line(|line| line.contains("sha256") || line.contains(&digest))?;
        ensure!(line.contains(&digest), "uploaded {line}");
        running.wait_for_line(|line| line == "done")?;
        let peak = peak_bytes(broker)?;
        ensure!(peak < MAX_BROKER_BYTES, "the broker held {peak} bytes");
        running.finish()?;
        let records = wallgate.records()?;
        let sent = records.only("the upload", |decision| {
            decision.outcome_number("request_bytes") == GIB
        });
        sent.map(|_| ()).with_context(|| records.summary())
    });
}

#[test]
fn server_sent_events_arrive_one_by_one() {
    room(|room| {
        let service = Origin::default();
        let events = service.events();
        let origin = Upstream::https(room, "api.corp.test", service)?;
        let wallgate = allowing(room, &origin)?;
        let mut running = wallgate.start(&["curl", "-sS", "-N", "--fail", "https://api.corp.test/events"])?;
        origin
            .journal
            .wait_for(PATIENCE, |request| request.path == "/events")?;
        for number in 0..5 {
            let data = format!("event number {number}");
            // The next event is not sent before this one has arrived: whoever buffers makes this wait for ever.
            events.emit(&data)?;
            running.wait_for_line(|line| line.contains(&data))?;
        }
        running.signal(rustix::process::Signal::TERM)?;
        running.finish()?;
        Ok(())
    });
}

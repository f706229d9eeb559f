//! The harness itself, without a wall: a room is private, servers answer real clients, and litter is noticed. Here each
//! write that the promises refuse is seen to work when nothing refuses it.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use wallgate_tests::litter::Inventory;
use wallgate_tests::pattern;
use wallgate_tests::pki::Flaw;
use wallgate_tests::process::{free_port, succeed};
use wallgate_tests::room::{Room, room};
use wallgate_tests::tools;
use wallgate_tests::upstream::Upstream;
use wallgate_tests::upstream::crates::{Crates, write_crate};
use wallgate_tests::upstream::git::Git;
use wallgate_tests::upstream::npm::Npm;
use wallgate_tests::upstream::openbao::{OpenBao, ROOT_TOKEN};
use wallgate_tests::upstream::origin::Origin;
use wallgate_tests::upstream::pypi::{PASSWORD, Pypi, USER, wheel};
use wallgate_tests::upstream::raw::Reply;

/// curl past any wall, to a server of the room.
fn curl(room: &Room, upstream: &Upstream, arguments: &[&str], path: &str) -> Result<String> {
    let port = upstream.address.port();
    succeed(
        Command::new("/usr/bin/curl")
            .args([
                "--silent",
                "--show-error",
                "--fail",
                "--max-time",
                "60",
                "--cacert",
            ])
            .arg(room.pki().certificate())
            .args(["--connect-to", &format!("{}:443:127.0.0.1:{port}", upstream.host)])
            .args(arguments)
            .arg(format!("https://{}{path}", upstream.host)),
    )
}

#[test]
fn a_room_has_no_network_but_its_own() {
    room(|_| {
        let devices = std::fs::read_to_string("/proc/net/dev")?;
        let names: Vec<&str> = devices
            .lines()
            .skip(2)
            .filter_map(|line| Some(line.split_once(':')?.0.trim()))
            .collect();
        ensure!(names == ["lo"], "{names:?}");
        Ok(())
    });
}

#[test]
fn an_origin_speaks_both_versions_and_keeps_what_it_got() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        for (version, kept) in [("--http1.1", "HTTP/1.1"), ("--http2", "HTTP/2.0")] {
            origin.journal.clear();
            let answer = curl(room, &origin, &[version, "--data", "ping"], "/echo?q=1")?;
            ensure!(answer.contains(r#""body":"ping""#), "{answer}");
            let got = origin.journal.requests();
            let [got] = got.as_slice() else {
                anyhow::bail!("{got:?}")
            };
            ensure!(
                got.version == kept && got.method == "POST" && got.authority == "api.corp.test",
                "{got:?}"
            );
            ensure!(
                got.sni.as_deref() == Some("api.corp.test") && got.query.as_deref() == Some("q=1"),
                "{got:?}"
            );
            ensure!(
                got.body == b"ping" && got.body_bytes == 4 && got.body_sha256.is_some(),
                "{got:?}"
            );
        }
        let length = 3_000_000;
        let file = room.new_directory("download")?.join("file");
        curl(
            room,
            &origin,
            &["--output", &file.display().to_string()],
            &format!("/bytes/{length}"),
        )?;
        let sum = succeed(Command::new("sha256sum").arg(&file))?;
        ensure!(sum.starts_with(&pattern::sha256(length)), "{sum}");
        let answer = curl(
            room,
            &origin,
            &["--upload-file", &file.display().to_string()],
            "/sink",
        )?;
        ensure!(answer.contains(&pattern::sha256(length)), "{answer}");
        Ok(())
    });
}

#[test]
fn a_flawed_certificate_is_flawed() {
    room(|room| {
        for flaw in [
            Flaw::Expired,
            Flaw::NotYetValid,
            Flaw::WrongName,
            Flaw::UnknownIssuer,
        ] {
            let origin = Upstream::https_with(room, "api.corp.test", flaw, &["http/1.1"], Origin::default())?;
            ensure!(curl(room, &origin, &[], "/").is_err(), "{flaw:?} was accepted");
        }
        Ok(())
    });
}

#[test]
fn a_raw_server_keeps_bytes() {
    room(|room| {
        let reply = Reply::AfterHeadThenClose(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi".to_vec());
        let raw = Upstream::raw_tls(room, "raw.corp.test", reply)?;
        ensure!(curl(room, &raw, &[], "/x")? == "hi");
        let bytes = raw.journal.raw_bytes().concat();
        ensure!(
            bytes.starts_with(b"GET /x HTTP/1.1\r\n"),
            "{}",
            String::from_utf8_lossy(&bytes)
        );
        Ok(())
    });
}

#[test]
fn git_clones_and_pushes_when_nothing_refuses_it() {
    room(|room| {
        let git = Git::start(room, "git.corp.test")?;
        git.add(room, "project", "README", "read me")?;
        let url = format!("https://localhost:{}/project.git", git.upstream.address.port());
        let work = room.new_directory("clone")?;
        let client = |arguments: &[&str]| {
            succeed(
                Command::new("/usr/bin/git")
                    .args([
                        "-c",
                        "http.sslVerify=false",
                        "-c",
                        "user.name=a",
                        "-c",
                        "user.email=a@git.test",
                    ])
                    .args(arguments)
                    .current_dir(&work)
                    .env("HOME", &work),
            )
        };
        client(&["clone", "--quiet", &url, "."])?;
        ensure!(std::fs::read_to_string(work.join("README"))? == "read me");
        client(&["commit", "--quiet", "--allow-empty", "--message", "second"])?;
        client(&["push", "--quiet", "origin", "HEAD:pushed"])?;
        ensure!(git.head("project", "pushed")? == client(&["rev-parse", "HEAD"])?.trim());
        Ok(())
    });
}

#[test]
fn pypi_serves_and_takes_uploads_when_nothing_refuses_it() {
    room(|room| {
        let pypi = Pypi::start(room, "pypi.corp.test")?;
        pypi.add("leftpad", "1.0", "def pad(text): return text\n")?;
        ensure!(
            curl(room, &pypi.upstream, &[], "/simple/leftpad/")?.contains("leftpad-1.0-py3-none-any.whl")
        );
        let made = wheel(&room.new_directory("wheel")?, "sneaky", "1.0", "x = 1\n")?;
        let content = format!("content=@{}", made.display());
        let fields = [":action=file_upload", "name=sneaky", "version=1.0", &content];
        let mut arguments = vec!["--user".to_owned(), format!("{USER}:{PASSWORD}")];
        arguments.extend(
            fields
                .iter()
                .flat_map(|field| ["--form".to_owned(), (*field).to_owned()]),
        );
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        curl(room, &pypi.upstream, &arguments, "/")?;
        ensure!(pypi.files()?.len() == 2, "{:?}", pypi.files()?);
        Ok(())
    });
}

#[test]
fn npm_serves_and_takes_a_publish_when_nothing_refuses_it() {
    room(|room| {
        let npm = Npm::start(room, "npm.corp.test")?;
        npm.add(room, "left-pad", "1.3.0", "module.exports = 1\n")?;
        ensure!(npm.holds("left-pad"));
        let answer = curl(room, &npm.upstream, &[], "/left-pad")?;
        ensure!(
            answer.contains("https://npm.corp.test/left-pad/-/left-pad-1.3.0.tgz"),
            "{answer}"
        );
        Ok(())
    });
}

#[test]
fn a_cargo_registry_serves_and_takes_a_publish_when_nothing_refuses_it() {
    room(|room| {
        let crates = Crates::start(room, "crates.corp.test")?;
        crates.add(room, "leftpad", "1.0.0", "pub fn pad() {}\n")?;
        let home = room.new_directory("cargo-home")?;
        let port = crates.upstream.address.port();
        let config = format!(
            "[registries.corp]\nindex = \"sparse+https://crates.corp.test/index/\"\ntoken = \"t\"\n\
             [http]\ncainfo = \"{}\"\nproxy = \"\"\n[registry]\nglobal-credential-providers = [\"cargo:token\"]\n",
            room.pki().certificate().display()
        );
        std::fs::write(home.join("config.toml"), config)?;
        // The registry's own port is not 443: a helper that passes connections on would be a proxy. The real client is
        // tried through the wall (clients.rs); here the same requests are made by curl.
        let sneaky = room.new_directory("crate")?;
        write_crate(&sneaky, "sneaky", "1.0.0", "")?;
        ensure!(
            curl(room, &crates.upstream, &[], "/index/le/ft/leftpad")?.contains("\"vers\":\"1.0.0\""),
            "on {port}"
        );
        let body = sneaky.join("body");
        let manifest = br#"{"name":"sneaky","vers":"1.0.0"}"#;
        let length = u32::try_from(manifest.len()).context("long")?.to_le_bytes();
        std::fs::write(&body, [&length[..], manifest, &0_u32.to_le_bytes()].concat())?;
        curl(
            room,
            &crates.upstream,
            &["--upload-file", &body.display().to_string()],
            "/api/v1/crates/new",
        )?;
        ensure!(crates.versions("sneaky") == [("1.0.0".to_owned(), false)]);
        curl(
            room,
            &crates.upstream,
            &["--request", "DELETE"],
            "/api/v1/crates/sneaky/1.0.0/yank",
        )?;
        ensure!(crates.versions("sneaky") == [("1.0.0".to_owned(), true)]);
        Ok(())
    });
}

#[test]
fn openbao_keeps_a_secret() {
    room(|room| {
        let vault = OpenBao::start(room)?;
        vault.put("ci", "token", "canary")?;
        let url = format!("{}/v1/secret/data/ci", vault.url());
        let header = format!("X-Vault-Token: {ROOT_TOKEN}");
        let answer =
            succeed(Command::new("/usr/bin/curl").args(["-sS", "--fail", "--header", &header, &url]))?;
        ensure!(answer.contains("canary"), "{answer}");
        Ok(())
    });
}

#[test]
fn litter_is_noticed() {
    room(|_| {
        let before = Inventory::take()?;
        before.nothing_new()?;
        let mut left = Command::new("/bin/sh")
            .args(["-c", "read forever"])
            .stdin(Stdio::piped())
            .spawn()?;
        ensure!(before.nothing_new().is_err(), "a process was not noticed");
        left.kill()?;
        left.wait()?;
        before.nothing_new()?;
        succeed(Command::new(tools::host("ip")?).args([
            "link",
            "add",
            "dummy-left",
            "type",
            "veth",
            "peer",
            "other",
        ]))?;
        ensure!(before.nothing_new().is_err(), "a link was not noticed");
        succeed(Command::new(tools::host("ip")?).args(["link", "delete", "dummy-left"]))?;
        succeed(Command::new(tools::host("ip")?).args(["netns", "add", "left"]))?;
        ensure!(before.nothing_new().is_err(), "a namespace was not noticed");
        Ok(())
    });
}

#[test]
fn a_free_port_is_free() {
    room(|_| {
        let address = free_port()?;
        std::net::TcpListener::bind(address)
            .context("it is taken")
            .map(drop)
    });
}

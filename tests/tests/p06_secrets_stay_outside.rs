//! P6: secrets stay outside. A canary is injected, echoed back in every way that an origin has, and then looked for.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use wallgate_tests::process::succeed;
use wallgate_tests::records::Records;
use wallgate_tests::room::room;
use wallgate_tests::upstream::Upstream;
use wallgate_tests::upstream::openbao::{OpenBao, ROOT_TOKEN};
use wallgate_tests::wallgate::{Credential, Finished, Wallgate};

/// Nobody says this by chance. It holds what the encodings treat differently.
const CANARY: &str = "canary/7f3a+9b1c==d5e8~0a6f&2c4d%8e1b";

/// The forms in which it would be readable.
fn forms(secret: &str) -> Vec<String> {
    let percent: Vec<String> = secret.bytes().map(|byte| format!("%{byte:02X}")).collect();
    // The middle of it is enough, whatever stands around it.
    let inner = |text: String| text.get(4..text.len() - 6).unwrap_or_default().to_owned();
    let shifted = |shift: usize| inner(STANDARD.encode(format!("{}{secret}", "x".repeat(shift))));
    vec![
        "7f3a+9b1c".to_owned(),
        "0a6f&2c4d".to_owned(),
        hex::encode(secret),
        hex::encode_upper(secret),
        percent.concat(),
        shifted(0),
        shifted(1).get(4..).unwrap_or_default().to_owned(),
        shifted(2).get(4..).unwrap_or_default().to_owned(),
        inner(URL_SAFE_NO_PAD.encode(secret)),
    ]
}

/// Fails when `text` holds the secret in some form.
fn holds_no_secret(what: &str, text: &str) -> Result<()> {
    for form in forms(CANARY) {
        ensure!(
            !text.contains(&form),
            "{what} holds the secret as {form:?}: {text}"
        );
    }
    Ok(())
}

/// Everything in a directory, as text.
fn everything_in(directory: &Path) -> Result<String> {
    let mut text = String::new();
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            text.push_str(&everything_in(&path)?);
        } else if let Ok(bytes) = fs::read(&path) {
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    Ok(text)
}

fn with_canary<'room>(wall: Wallgate<'room>, shape: &str) -> Wallgate<'room> {
    wall.own_variable("CANARY", CANARY).allow_with(&Credential {
        name: "corp",
        source: "env:CANARY",
        shape,
        host: "api.corp.test",
    })
}

/// What holds after each of these runs: the origin got the secret each time, and nobody else has it.
fn origin_alone_has_it(run: &Finished, origin: &Upstream, header: &str, value: &str) -> Result<Records> {
    let received = origin.journal.requests();
    ensure!(!received.is_empty(), "nothing arrived: {}", run.told());
    for request in &received {
        ensure!(request.header(header) == Some(value), "{request:?}");
    }
    holds_no_secret("what the sandbox and the operator saw", &run.told())?;
    let records = run.records()?;
    holds_no_secret("the ledger", &records.lines.join("\n"))?;
    for decision in records.requests_to("api.corp.test") {
        let uses = decision
            .outcome
            .as_ref()
            .and_then(|outcome| outcome.get("credentials"))
            .map(ToString::to_string);
        ensure!(
            uses.is_some_and(|uses| uses.contains("corp")),
            "its use is not recorded: {}",
            records.summary()
        );
    }
    Ok(records)
}

#[test]
fn an_origin_that_echoes_does_not_give_it_away() {
    room(|room| {
        let bearer = format!("Bearer {CANARY}");
        for version in ["--http1.1", "--http2"] {
            for path in [
                "/echo",
                "/echo/gzip",
                "/echo/chunks",
                "/echo/base64",
                "/echo/percent",
                "/echo/hex",
                "/echo/header",
                "/echo/trailer",
            ] {
                let origin = room.origin("api.corp.test")?;
                let wall = with_canary(room.wallgate()?.upstream(&origin), "bearer");
                let run = wall.sh(&format!(
                    "curl --silent --include --raw {version} https://api.corp.test{path}"
                ))?;
                let records = origin_alone_has_it(&run, &origin, "authorization", &bearer)?;
                let decision = records.only("the request", |kept| kept.text("path") == path)?;
                let closed = decision.outcome_text("result") == "failed";
                ensure!(
                    closed || decision.outcome_number("scrubbed") > 0,
                    "{path}: neither scrubbed nor closed: {:?}",
                    decision.outcome
                );
                holds_no_secret("the state directory", &everything_in(wall.state_directory())?)?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_header_of_its_own_is_injected_and_what_the_sandbox_brings_is_removed() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wall = with_canary(room.wallgate()?.upstream(&origin), "x-api-key");
        let run = wall
            .sh("curl --silent --include --header 'Authorization: Bearer sandbox-own' --header 'X-Api-Key: sandbox-own' \
                 --header 'Cookie: session=sandbox-own' --header 'Connection: x-api-key' https://api.corp.test/echo")?;
        origin_alone_has_it(&run, &origin, "x-api-key", CANARY)?;
        for request in origin.journal.requests() {
            ensure!(!request.text().contains("sandbox-own"), "{}", request.text());
        }
        Ok(())
    });
}

#[test]
fn it_does_not_go_to_another_host_nor_over_plain_http() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let other = room.origin("other.corp.test")?;
        let wall = with_canary(
            room.wallgate()?
                .upstream(&origin)
                .upstream(&other)
                .allow("other.corp.test"),
            "bearer",
        );
        let run = wall.sh(
            "curl --silent --location 'https://api.corp.test/redirect?to=https://other.corp.test/echo'
             curl --silent --output /dev/null --write-out '%{http_code}' http://api.corp.test/echo",
        )?;
        ensure!(!other.journal.requests().is_empty(), "{}", run.told());
        for request in other.journal.requests() {
            ensure!(request.header("authorization").is_none(), "{request:?}");
        }
        ensure!(!run.stdout.ends_with("200"), "{}", run.told());
        origin_alone_has_it(&run, &origin, "authorization", &format!("Bearer {CANARY}")).map(drop)
    });
}

#[test]
fn nothing_inside_can_be_read_that_holds_it() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let secrets = room.new_directory("secrets")?;
        let file = secrets.join("token");
        fs::write(&file, CANARY)?;
        let wall = room
            .wallgate()?
            .upstream(&origin)
            .readable(&secrets)
            .allow_with(&Credential {
                name: "corp",
                source: &format!("file:{}", file.display()),
                shape: "bearer",
                host: "api.corp.test",
            });
        let run = wall.sh(&format!(
            "curl --silent --fail --output /dev/null https://api.corp.test/ && echo served
             cat {file} {state} 2>/dev/null
             for one in /proc/[0-9]*; do tr '\\0' '\\n' < $one/environ; tr '\\0' ' ' < $one/cmdline; done 2>/dev/null
             grep --recursive --no-messages --text canary/ /etc /tmp /run /var {secrets} $HOME 2>/dev/null
             exit 0",
            file = file.display(),
            state = wall.state_directory().join("*").display(),
            secrets = secrets.display(),
        ))?;
        ensure!(run.stdout.starts_with("served\n"), "{}", run.told());
        origin_alone_has_it(&run, &origin, "authorization", &format!("Bearer {CANARY}")).map(drop)
    });
}

#[test]
fn an_error_after_it_was_injected_does_not_tell_it() {
    room(|room| {
        // Nobody listens there any more: the request fails after it was armed, or before.
        let mut origin = room.origin("api.corp.test")?;
        origin.address = wallgate_tests::process::free_port()?;
        let wall = with_canary(room.wallgate()?.upstream(&origin), "bearer");
        let run = wall.sh("curl --silent --include https://api.corp.test/echo")?;
        ensure!(run.stdout.contains(" 502"), "{}", run.told());
        holds_no_secret("an error", &run.told())?;
        holds_no_secret("the state directory", &everything_in(wall.state_directory())?)
    });
}

#[test]
fn a_secret_of_a_real_vault_is_injected_and_its_version_recorded() {
    room(|room| {
        let vault = OpenBao::start(room)?;
        vault.put("ci", "token", CANARY)?;
        let origin = room.origin("api.corp.test")?;
        let wall = room
            .wallgate()?
            .upstream(&origin)
            .own_variable("VAULT_TOKEN", ROOT_TOKEN)
            .with_toml(&format!(
                "[vault.hashicorp]\naddress = \"{}\"\ntoken = \"env:VAULT_TOKEN\"\n",
                vault.url()
            ))?
            .allow_with(&Credential {
                name: "corp",
                source: "vault:secret/data/ci#token",
                shape: "bearer",
                host: "api.corp.test",
            });
        let run = wall
            .sh("curl --silent --fail https://api.corp.test/echo; env")?
            .succeeded()?;
        ensure!(!run.told().contains(ROOT_TOKEN), "{}", run.told());
        let records = origin_alone_has_it(&run, &origin, "authorization", &format!("Bearer {CANARY}"))?;
        let decision = records.only("the request", |kept| kept.text("path") == "/echo")?;
        let uses = decision
            .outcome
            .as_ref()
            .and_then(|outcome| outcome.get("credentials"))
            .map(ToString::to_string);
        ensure!(
            uses.as_deref()
                .is_some_and(|uses| uses.contains(r#""version":"1""#)),
            "{uses:?}"
        );

        // A vault that does not answer: nothing is sent.
        vault.seal()?;
        origin.journal.clear();
        let run = wall
            .sh("curl --silent --output /dev/null --write-out '%{http_code}' https://api.corp.test/echo")?;
        ensure!(origin.journal.requests().is_empty(), "{}", run.told());
        ensure!(!run.stdout.ends_with("200"), "{}", run.told());
        Ok(())
    });
}

#[test]
fn the_trust_kit_holds_no_key() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let wall = room.wallgate()?.upstream(&origin).allow("api.corp.test");
        let run = wall
            .sh("cat /etc/ssl/certs/ca-certificates.crt; env | grep -i -E 'cert|ca_|_ca'")?
            .succeeded()?;
        ensure!(
            run.stdout.contains("BEGIN CERTIFICATE") && !run.stdout.contains("PRIVATE KEY"),
            "a key is inside"
        );
        let keys = succeed(
            std::process::Command::new("find")
                .arg(wall.state_directory())
                .args(["-name", "*.pem", "-perm", "/077"]),
        )?;
        ensure!(keys.is_empty(), "others may read {keys}");
        Ok(())
    });
}

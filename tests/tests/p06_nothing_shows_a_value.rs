//! P6: no value of a credential is readable in what a service echoes, nor in what an operator reads.
//!
//! In one process, from a secret's file to the header it becomes and back; `p06_secrets_stay_outside` does it with
//! everything in between.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use wallgate_proxy::scrub::Scrubber;
use wallgate_types::clock::{Clock, ManualClock};
use wallgate_vault::binding::Binding;
use wallgate_vault::config::Credential;
use wallgate_vault::material::Shape;
use wallgate_vault::reference::{Backends, SecretRef};
use wallgate_vault::store::{CredentialStore, StoreOptions};
use wallgate_vault_local::FileBackend;

const CANARY: &str = "canary-7f3a91c2d4e5";

/// Each shape with the value that its file holds.
fn shapes() -> Vec<(Shape, String)> {
    let header = Shape::Header {
        name: http::HeaderName::from_static("x-api-key"),
        prefix: "Key ".to_owned(),
    };
    let user = |user: Option<&str>| Shape::Basic {
        user: user.map(str::to_owned),
    };
    vec![
        (Shape::Bearer, CANARY.to_owned()),
        (user(None), format!("someone:{CANARY}")),
        (user(Some("someone")), CANARY.to_owned()),
        (header, CANARY.to_owned()),
    ]
}

/// A store of one credential whose file holds this.
fn store(dir: &tempfile::TempDir, shape: Shape, content: &str) -> anyhow::Result<CredentialStore> {
    let path = dir.path().join("secret");
    fs::write(&path, content)?;
    let backends = Backends::new().with(Arc::new(FileBackend::new("/")));
    let source = backends.open(&SecretRef::parse(&format!("file:{}", path.display()))?)?;
    let binding = Binding {
        hosts: vec!["api.example.test".parse()?],
        ports: BTreeSet::new(),
        methods: BTreeSet::new(),
        paths: Vec::new(),
        sandboxes: BTreeSet::new(),
        labels: BTreeMap::new(),
        max_uses: None,
        expires: None,
    };
    let credential = Credential {
        name: "it".into(),
        shape,
        binding,
    };
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(0));
    Ok(CredentialStore::new(
        vec![(credential, source)],
        StoreOptions::default(),
        &clock,
    )?)
}

#[tokio::test]
async fn what_a_service_echoes_of_a_credential_does_not_come_back() -> anyhow::Result<()> {
    for (shape, content) in shapes() {
        let dir = tempfile::tempdir()?;
        let material = store(&dir, shape.clone(), &content)?.get("it").await?;
        let mut sent = http::HeaderMap::new();
        material.inject(&mut sent);
        let scrubber = Scrubber::for_secrets(material.needles()).expect("it can be searched for");
        let sent = sent.get(material.header()).expect("it was injected").as_bytes();
        let echoes = [
            sent.to_vec(),
            format!("{{\"headers\": {:?}}}", String::from_utf8_lossy(sent)).into_bytes(),
            STANDARD.encode(sent).into_bytes(),
            hex::encode(sent).into_bytes(),
            percent_encoding::percent_encode(sent, percent_encoding::NON_ALPHANUMERIC)
                .to_string()
                .into_bytes(),
        ];
        for echo in echoes {
            let (masked, count) = scrubber.scrub_whole(&echo);
            assert!(count > 0, "{shape:?}: {}", masked.escape_ascii());
            let shown = String::from_utf8_lossy(&masked).into_owned();
            for secret in [CANARY.to_owned(), STANDARD.encode(&content), hex::encode(CANARY)] {
                assert!(!shown.contains(&secret), "{shape:?}: {shown}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn nothing_that_an_operator_reads_holds_a_value() -> anyhow::Result<()> {
    let unusable = [
        format!("{CANARY}\nsecond line"),
        format!("{CANARY}\u{e9}"),
        format!("{CANARY} with spaces"),
        CANARY.repeat(2000),
    ];
    for content in unusable {
        let dir = tempfile::tempdir()?;
        let store = store(&dir, Shape::Bearer, &content)?;
        let error = store.get("it").await.expect_err("it is unusable");
        let shown = format!("{store:?} {error:?} {error} {:?}", store.credential("it"));
        assert!(!shown.contains("canary"), "{shown}");
    }
    for (shape, content) in shapes() {
        let dir = tempfile::tempdir()?;
        let store = store(&dir, shape, &content)?;
        let material = store.get("it").await?;
        let mut headers = http::HeaderMap::new();
        material.inject(&mut headers);
        let shown = format!("{store:?} {material:?} {headers:?} {}", material.version());
        assert!(
            !shown.contains("canary") && !shown.contains(&STANDARD.encode(&content)),
            "{shown}"
        );
    }
    Ok(())
}

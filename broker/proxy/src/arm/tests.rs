//! What arming refuses, removes and injects. The order of the stages is held by types, not here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, COOKIE, RANGE};
use http::{HeaderName, Request, Response};
use http_body_util::{BodyExt as _, Empty, Full};
use wallgate_types::authority::Authority;
use wallgate_types::clock::{Clock, ManualClock};
use wallgate_types::operation::Operation;
use wallgate_types::request::{BodyFacts, DestinationFacts, RequestId, Scheme};
use wallgate_types::ruling::{RulingLimits, Verdict};
use wallgate_types::sandbox::{IdentitySource, SandboxFacts, SandboxId};
use wallgate_types::secret::Secret;
use wallgate_vault::binding::Binding;
use wallgate_vault::material::Shape;
use wallgate_vault::source::{BoxFuture, Fetched, SecretSource, SourceError};
use wallgate_vault::store::StoreOptions;

use super::*;
use crate::parse::Wishes;
use crate::parse::body::Progress;

const TOKEN: &str = "tok-0123456789abcdef";
const KEY: &str = "key-fedcba9876543210";

/// A source whose value a test can take away.
#[derive(Debug)]
struct Fixed(Mutex<Option<&'static str>>);

impl SecretSource for Fixed {
    fn describe(&self) -> String {
        "test:fixed".to_owned()
    }

    fn fetch(&self) -> BoxFuture<'_, Result<Fetched, SourceError>> {
        let value = *self.0.lock().unwrap();
        Box::pin(async move {
            let value = value.ok_or_else(|| SourceError::Missing {
                what: "it".to_owned(),
            })?;
            Ok(Fetched {
                value: Secret::new(value.as_bytes().to_vec()),
                version: "7".to_owned(),
                lease: None,
            })
        })
    }
}

fn credential(name: &str, shape: Shape, hosts: &[&str]) -> Credential {
    Credential {
        name: name.into(),
        shape,
        binding: Binding {
            hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
            ports: BTreeSet::new(),
            methods: BTreeSet::new(),
            paths: vec!["/repos/**".parse().unwrap()],
            sandboxes: BTreeSet::new(),
            labels: BTreeMap::new(),
            max_uses: None,
            expires: None,
        },
    }
}

/// Two credentials of one host, one whose source has nothing, and one that may be used once.
fn armoury() -> Armoury {
    let header = |name| Shape::Header {
        name: HeaderName::from_static(name),
        prefix: String::new(),
    };
    let mut once = credential("once", Shape::Bearer, &["once.test"]);
    once.binding.max_uses = Some(1);
    let rows = [
        (credential("github", Shape::Bearer, &["api.test"]), Some(TOKEN)),
        (credential("extra", header("x-extra"), &["api.test"]), Some(KEY)),
        (
            credential(
                "same",
                Shape::Basic {
                    user: Some("u".into()),
                },
                &["api.test"],
            ),
            Some(KEY),
        ),
        (credential("gone", Shape::Bearer, &["gone.test"]), None),
        (once, Some(TOKEN)),
    ];
    let entries = rows
        .into_iter()
        .map(|(credential, value)| {
            let source: Arc<dyn SecretSource> = Arc::new(Fixed(Mutex::new(value)));
            (credential, source)
        })
        .collect();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(0));
    let store = CredentialStore::new(entries, StoreOptions::default(), &clock).unwrap();
    Armoury::new(Arc::new(store), Arc::new(Placeholders::new()))
}

fn sandbox() -> SandboxId {
    "agent-7".parse().unwrap()
}

/// A `GET` of this URL with these headers.
fn parsed(url: &str, headers: &[(&'static str, &str)]) -> Parsed {
    let uri: http::Uri = url.parse().unwrap();
    let path = uri.path().to_owned();
    let mut request = Request::get(uri.path_and_query().unwrap().as_str());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (head, ()) = request.body(()).unwrap().into_parts();
    let pairs = |query: &str| -> Vec<(String, String)> {
        query
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    let https = uri.scheme_str() == Some("https");
    Parsed {
        facts: RequestFacts {
            id: RequestId(1),
            sandbox: Arc::new(SandboxFacts {
                id: sandbox(),
                labels: BTreeMap::new(),
                source: IdentitySource::Tap,
            }),
            protocol: Protocol::Http,
            method: "GET".to_owned(),
            scheme: if https { Scheme::Https } else { Scheme::Http },
            authority: Authority::parse(uri.authority().unwrap().as_str(), if https { 443 } else { 80 })
                .unwrap(),
            segments: path.split('/').skip(1).map(str::to_owned).collect(),
            path,
            raw_query: uri.query().map(str::to_owned),
            query: uri.query().map(pairs).unwrap_or_default(),
            headers: Vec::new(),
            body: BodyFacts::default(),
            destination: DestinationFacts::default(),
            operation: Operation::unknown("none"),
            original_dst: None,
            sni: None,
        },
        head,
        body: Empty::new().map_err(|never| match never {}).boxed_unsync(),
        progress: Arc::new(Progress::new(u64::MAX)),
        wishes: Wishes::default(),
    }
}

fn ruling(credentials: &[&str]) -> Ruling {
    Ruling {
        verdict: Verdict::Allow,
        rule: "test".to_owned(),
        reason: "test".to_owned(),
        credentials: credentials.iter().map(|name| (*name).to_owned()).collect(),
        add_taints: Vec::new(),
        limits: RulingLimits::default(),
        canonicalise: false,
        passthrough: false,
    }
}

async fn equipped(
    armoury: &Armoury,
    parsed: &mut Parsed,
    credentials: &[&str],
) -> Result<Equipment, ArmError> {
    equip(parsed, &ruling(credentials), armoury, Timestamp(0)).await
}

fn words(uses: &[CredentialUse]) -> Vec<String> {
    uses.iter()
        .map(|each| match (&each.version, &each.withheld) {
            (Some(version), _) => format!("{}@{version}", each.name),
            (None, Some(reason)) => format!("{}!{reason}", each.name),
            (None, None) => each.name.clone(),
        })
        .collect()
}

#[tokio::test]
async fn injects_what_the_ruling_names_and_nothing_else() {
    let armoury = armoury();
    let mut request = parsed("https://api.test/repos/a", &[("accept", "*/*")]);
    let injected = equipped(&armoury, &mut request, &["github", "extra"])
        .await
        .unwrap();
    let headers = &request.head.headers;
    assert_eq!(headers.get(AUTHORIZATION).unwrap(), &format!("Bearer {TOKEN}"));
    assert_eq!(headers.get("x-extra").unwrap(), KEY);
    assert!(headers.get(AUTHORIZATION).unwrap().is_sensitive());
    assert_eq!(words(&injected.uses), ["github@7", "extra@7"]);
    assert!(injected.pool_key.as_ref().unwrap().starts_with("github@7#"));

    let mut request = parsed("https://api.test/repos/a", &[("accept", "*/*")]);
    let injected = equipped(&armoury, &mut request, &[]).await.unwrap();
    assert!(request.head.headers.get(AUTHORIZATION).is_none());
    assert_eq!((words(&injected.uses), injected.pool_key), (vec![], None));
}

#[tokio::test]
async fn what_the_sandbox_brings_to_a_bound_host_is_taken_out_and_noted() {
    let armoury = armoury();
    for credentials in [&["github"][..], &[]] {
        let mut request = parsed(
            "https://api.test/repos/a",
            &[
                ("authorization", "Bearer attacker-1"),
                ("authorization", "Bearer attacker-2"),
                ("proxy-authorization", "Basic x"),
                ("cookie", "session=attacker"),
                ("x-api-key", "attacker"),
                ("x-extra", "attacker"),
                ("accept", "*/*"),
            ],
        );
        let injected = equipped(&armoury, &mut request, credentials).await.unwrap();
        let headers = &request.head.headers;
        assert!(!format!("{:?}", headers.values().collect::<Vec<_>>()).contains("attacker"));
        assert!(headers.get(COOKIE).is_none());
        assert_eq!(headers.get_all(AUTHORIZATION).iter().count(), credentials.len());
        let mut noted = words(&injected.uses);
        noted.retain(|word| word.ends_with("!foreign"));
        noted.sort_unstable();
        assert_eq!(
            noted,
            [
                "sandbox:authorization!foreign",
                "sandbox:cookie!foreign",
                "sandbox:proxy-authorization!foreign",
                "sandbox:x-api-key!foreign",
                "sandbox:x-extra!foreign",
            ]
        );
    }
}

#[tokio::test]
async fn a_host_without_credentials_gets_what_the_sandbox_sends() {
    let mut request = parsed(
        "https://other.test/?key=mine",
        &[("authorization", "Bearer mine"), ("range", "bytes=0-1")],
    );
    let injected = equipped(&armoury(), &mut request, &[]).await.unwrap();
    assert_eq!(request.head.headers.get(AUTHORIZATION).unwrap(), "Bearer mine");
    assert!(request.head.headers.contains_key(RANGE));
    assert!(injected.scrub.is_none());
}

/// Arms a request and compares the refusal's code and what is recorded of credentials.
async fn check(url: &str, headers: &[(&'static str, &str)], credentials: &[&str], code: &str, uses: &[&str]) {
    let mut request = parsed(url, headers);
    let error = equipped(&armoury(), &mut request, credentials).await.unwrap_err();
    assert_eq!(
        (error.refusal.code(), words(&error.uses)),
        (code, uses.iter().map(|&u| u.to_owned()).collect()),
        "{url}"
    );
    assert!(!request.head.headers.values().any(|value| {
        value
            .as_bytes()
            .windows(4)
            .any(|window| window == b"tok-" || window == b"key-")
    }));
}

#[tokio::test]
async fn a_credential_goes_only_where_it_is_bound_and_only_over_tls() {
    check(
        "https://other.test/repos/a",
        &[],
        &["github"],
        "credential_binding",
        &["github!host"],
    )
    .await;
    check(
        "https://api.test:8443/repos/a",
        &[],
        &["github"],
        "credential_binding",
        &["github!port"],
    )
    .await;
    check(
        "https://api.test/user/keys",
        &[],
        &["github"],
        "credential_binding",
        &["github!path"],
    )
    .await;
    check(
        "http://api.test:443/repos/a",
        &[],
        &["github"],
        "credential_binding",
        &["github!scheme"],
    )
    .await;
    check(
        "https://api.test/repos/a",
        &[],
        &["github", "same"],
        "credential_conflict",
        &["github!credential_conflict", "same!credential_conflict"],
    )
    .await;
    check(
        "https://api.test/repos/a",
        &[],
        &["nobody"],
        "credential_unknown",
        &["nobody!credential_unknown"],
    )
    .await;
    check(
        "https://gone.test/repos/a",
        &[],
        &["gone"],
        "credential_unavailable",
        &["gone!credential_unavailable"],
    )
    .await;
}

#[tokio::test]
async fn a_foreign_key_in_the_url_is_refused() {
    for query in ["key=x", "access_token=x", "a=b&API_KEY=x", "X-Amz-Signature=x"] {
        let url = format!("https://api.test/repos/a?{query}");
        check(
            &url,
            &[],
            &["github"],
            "credential_foreign",
            &["github!credential_foreign"],
        )
        .await;
        check(&url, &[], &[], "credential_foreign", &[]).await;
    }
}

#[tokio::test]
async fn uses_run_out() {
    let armoury = armoury();
    let mut first = parsed("https://once.test/repos/a", &[]);
    equipped(&armoury, &mut first, &["once"]).await.unwrap();
    let mut second = parsed("https://once.test/repos/a", &[]);
    let error = equipped(&armoury, &mut second, &["once"]).await.unwrap_err();
    assert_eq!(
        (error.refusal.code(), words(&error.uses)),
        ("credential_binding", vec!["once!uses".to_owned()])
    );
}

#[tokio::test]
async fn passthrough_and_upgrades_get_no_credential() {
    let armoury = armoury();
    let mut request = parsed("https://api.test/repos/a", &[]);
    let mut through = ruling(&["github"]);
    through.passthrough = true;
    let error = equip(&mut request, &through, &armoury, Timestamp(0))
        .await
        .unwrap_err();
    assert_eq!(error.refusal.code(), "credential_passthrough");
    let mut request = parsed("https://api.test/repos/a", &[]);
    request.facts.protocol = Protocol::Websocket;
    let error = equipped(&armoury, &mut request, &["github"]).await.unwrap_err();
    assert_eq!(error.refusal.code(), "credential_upgrade");
}

#[tokio::test]
async fn a_connection_header_cannot_strip_what_is_injected() {
    let rows = [
        ("authorization", None),
        ("keep-alive, Authorization", Some("keep-alive")),
        ("upgrade", Some("upgrade")),
    ];
    for (given, expected) in rows {
        let mut request = parsed("https://api.test/repos/a", &[("connection", given)]);
        equipped(&armoury(), &mut request, &["github"]).await.unwrap();
        let kept = request
            .head
            .headers
            .get(CONNECTION)
            .map(|value| value.to_str().unwrap());
        assert_eq!(kept, expected);
        assert!(request.head.headers.contains_key(AUTHORIZATION));
    }
}

#[tokio::test]
async fn a_placeholder_works_in_its_place_and_nowhere_else() {
    let armoury = armoury();
    let mine = armoury
        .placeholders
        .issue(&sandbox(), "github", 1)
        .unwrap()
        .to_string();
    let theirs = armoury
        .placeholders
        .issue(&"agent-8".parse().unwrap(), "github", 2)
        .unwrap()
        .to_string();
    let ended: SandboxId = "agent-9".parse().unwrap();
    let dead = armoury
        .placeholders
        .issue(&ended, "github", 3)
        .unwrap()
        .to_string();
    armoury.placeholders.forget(&ended);

    let basic = format!("Basic {}", STANDARD.encode(format!("x-access-token:{mine}")));
    for value in [format!("Bearer {mine}"), basic] {
        let mut request = parsed("https://api.test/repos/a", &[("authorization", &value)]);
        equipped(&armoury, &mut request, &["github"]).await.unwrap();
        assert_eq!(
            request.head.headers.get(AUTHORIZATION).unwrap(),
            &format!("Bearer {TOKEN}")
        );
    }

    let basic = format!("Basic {}", STANDARD.encode(format!("u:{theirs}")));
    let place = "https://api.test/repos/a".to_owned();
    let rows: Vec<(String, &'static str, String, &str)> = vec![
        (
            place.clone(),
            "authorization",
            format!("Bearer {theirs}"),
            "another sandbox's",
        ),
        (place.clone(), "authorization", basic, "another sandbox's"),
        (
            place.clone(),
            "authorization",
            format!("Bearer {dead}"),
            "unknown",
        ),
        (
            place.clone(),
            "authorization",
            format!("Bearer wgp_{}", "0".repeat(32)),
            "unknown",
        ),
        (place.clone(), "x-extra", mine.clone(), "out of place"),
        (place.clone(), "accept", mine.clone(), "out of place"),
        (format!("{place}/{mine}"), "accept", String::new(), "out of place"),
        (
            format!("{place}?q={mine}"),
            "accept",
            String::new(),
            "out of place",
        ),
        (
            "https://other.test/".to_owned(),
            "authorization",
            format!("Bearer {mine}"),
            "out of place",
        ),
        (
            format!("https://other.test/{}", mine.to_uppercase()),
            "accept",
            String::new(),
            "out of place",
        ),
    ];
    for (url, name, value, expected) in rows {
        let mut request = parsed(&url, &[(name, &value)]);
        let error = equipped(&armoury, &mut request, &[]).await.unwrap_err();
        assert_eq!(error.refusal.code(), "credential_placeholder");
        match error.refusal {
            ArmRefusal::Placeholder { standing, .. } => assert_eq!(standing, expected, "{url} {name}"),
            other => panic!("{other}"),
        }
    }
    let mut request = parsed(&place, &[]);
    request.facts.body.json = Some(serde_json::json!({"a": [mine]}));
    let error = equipped(&armoury, &mut request, &[]).await.unwrap_err();
    assert_eq!(error.refusal.code(), "credential_placeholder");
}

/// One request brings the secret to a service, a later one without a credential fetches what the service kept.
#[tokio::test]
async fn what_was_injected_before_is_scrubbed_later_too() {
    let armoury = armoury();
    let mut first = parsed("https://api.test/repos/a", &[("range", "bytes=0-1")]);
    equipped(&armoury, &mut first, &["github"]).await.unwrap();
    assert!(!first.head.headers.contains_key(RANGE));

    let mut later = parsed("https://api.test/repos/log", &[]);
    let injected = equipped(&armoury, &mut later, &[]).await.unwrap();
    let echoed = Full::new(Bytes::from(format!("log: Bearer {TOKEN}")));
    let response = Response::new(echoed.map_err(|never| match never {}).boxed_unsync());
    let count = Arc::new(AtomicU64::new(0));
    let masked = injected
        .scrub
        .unwrap()
        .response(response, &Method::GET, &count)
        .unwrap()
        .into_body();
    let text = masked.collect().await.unwrap().to_bytes();
    assert_eq!(text, format!("log: Bearer {}", "*".repeat(TOKEN.len())));
}

//! KV version 2: one string of the current version of a secret.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use wallgate_types::clock::Clock;
use wallgate_vault::field::{Field, FieldOf};
use wallgate_vault::reference::{RefError, SecretBackend, SecretRef};
use wallgate_vault::source::{BoxFuture, Fetched, GuardedClient, SecretSource, SourceError};

use crate::auth::{Session, check_status, wipe};
use crate::config::HashicorpConfig;

/// How a reference is written right.
const EXAMPLE: &str = "write vault:MOUNT/data/PATH#KEY, such as vault:kv/data/ci#token";

/// Opens `vault:` references of one server.
#[derive(Debug)]
pub struct HashicorpBackend {
    session: Arc<Session>,
}

impl HashicorpBackend {
    /// This server, through this client. Nothing is sent yet.
    #[must_use]
    pub fn new(config: HashicorpConfig, client: Arc<dyn GuardedClient>, clock: Arc<dyn Clock>) -> Self {
        Self {
            session: Arc::new(Session::new(config, client, clock)),
        }
    }
}

impl SecretBackend for HashicorpBackend {
    fn scheme(&self) -> &'static str {
        "vault"
    }

    fn open(&self, reference: &SecretRef) -> Result<Arc<dyn SecretSource>, RefError> {
        let path = reference.locator();
        if !is_plain_path(path) {
            return Err(reference.bad_locator("a path consists of names of letters, digits, and - _ ."));
        }
        let names: Vec<&str> = path.split('/').collect();
        let is_data = names.iter().position(|name| *name == "data");
        if !is_data.is_some_and(|at| at > 0 && at.saturating_add(1) < names.len()) {
            return Err(reference.bad_locator(EXAMPLE));
        }
        let key = reference.key().ok_or_else(|| RefError::MissingKey {
            reference: reference.to_string(),
            example: EXAMPLE,
        })?;
        Ok(Arc::new(KvSource {
            session: Arc::clone(&self.session),
            path: path.to_owned(),
            key: key.to_owned(),
        }))
    }
}

/// A path that means the same to every parser: names of unreserved characters, none of them dots alone.
pub(crate) fn is_plain_path(path: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    path.split('/')
        .all(|name| !name.is_empty() && name.bytes().all(plain) && !name.bytes().all(|b| b == b'.'))
}

#[derive(Debug)]
struct KvSource {
    session: Arc<Session>,
    path: String,
    key: String,
}

impl SecretSource for KvSource {
    fn describe(&self) -> String {
        format!("vault:{}#{}", self.path, self.key)
    }

    fn fetch(&self) -> BoxFuture<'_, Result<Fetched, SourceError>> {
        Box::pin(async {
            let what = self.describe();
            let response = self.session.get(&self.path, &what).await?;
            check_status(&response, &what)?;
            let malformed = |reason| SourceError::Malformed {
                what: what.clone(),
                reason,
            };
            // What a parser says could quote the secret.
            let read = Version::read(response.body()).zip(read_value(response.body(), &self.key));
            wipe(response.into_body());
            let (version, value) =
                read.ok_or(malformed("the answer is not a secret of a KV version 2 engine"))?;
            match value {
                Field::Text(value) => Ok(Fetched {
                    value,
                    version: version.to_string(),
                    lease: None,
                }),
                Field::Other => Err(malformed("the value under the key is not a string")),
                Field::Absent => Err(SourceError::Missing {
                    what: format!("the key {} in vault:{}", self.key, self.path),
                }),
            }
        })
    }
}

/// The secret's version number.
struct Version(u64);

impl Version {
    fn read(body: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Envelope {
            data: Inner,
        }
        #[derive(Deserialize)]
        struct Inner {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        struct Metadata {
            version: u64,
        }
        let envelope: Envelope = serde_json::from_slice(body).ok()?;
        Some(Self(envelope.data.metadata.version))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `data.data.KEY`.
fn read_value(body: &[u8], key: &str) -> Option<Field> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let seed = Under {
        key: "data",
        inner: Under {
            key: "data",
            inner: FieldOf(key),
        },
    };
    let field = seed.deserialize(&mut json).ok()?;
    json.end().ok()?;
    Some(field)
}

/// What is read from the object under a key. The key must be there once.
pub(crate) struct Under<S> {
    pub(crate) key: &'static str,
    pub(crate) inner: S,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Under<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for Under<S> {
    type Value = S::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with {}", self.key)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<S::Value, A::Error> {
        let mut inner = Some(self.inner);
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == self.key {
                let seed = inner
                    .take()
                    .ok_or_else(|| A::Error::custom("the key stands there twice"))?;
                found = Some(map.next_value_seed(seed)?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        found.ok_or_else(|| A::Error::custom("the key is not there"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use bytes::Bytes;
    use http::{Request, Response};
    use wallgate_types::clock::ManualClock;
    use wallgate_vault::reference::Backends;
    use wallgate_vault::source::{ClientError, MAX_VAULT_RESPONSE_BYTES};
    use wallgate_vault_local::EnvBackend;
    use zeroize::Zeroizing;

    use super::*;
    use crate::config::{RawAppRole, RawHashicorp};

    const GOOD: &str = r#"{"data": {"data": {"token": "canary-value", "n": 1}, "metadata": {"version": 3}}}"#;

    /// Answers as scripted and remembers what it was asked.
    #[derive(Debug, Default)]
    struct Scripted {
        answers: Mutex<VecDeque<(u16, String)>>,
        asked: Mutex<Vec<Request<Bytes>>>,
    }

    impl GuardedClient for Scripted {
        fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, ClientError>> {
            self.asked.lock().unwrap().push(request);
            let answer = self.answers.lock().unwrap().pop_front();
            Box::pin(async move {
                let (status, body) = answer.ok_or(ClientError::Timeout)?;
                let response = Response::builder()
                    .status(status)
                    .header("location", "http://evil.test/");
                Ok(response.body(Bytes::from(body)).unwrap())
            })
        }
    }

    fn backend(answers: &[(u16, &str)], approle: bool) -> (HashicorpBackend, Arc<Scripted>) {
        let environment = |name: &str| Some(Zeroizing::new(format!("{name}-value").into_bytes()));
        let local = Backends::new().with(Arc::new(EnvBackend::new(environment)));
        let raw = RawHashicorp {
            address: "http://127.0.0.1:8200".to_owned(),
            namespace: Some("team-a".to_owned()),
            token: (!approle).then(|| "env:TOKEN".to_owned()),
            approle: approle.then(|| RawAppRole {
                mount: None,
                role_id: "role".to_owned(),
                secret_id: "env:SECRET_ID".to_owned(),
            }),
        };
        let client = Arc::new(Scripted::default());
        let answers = answers.iter().map(|(status, body)| (*status, (*body).to_owned()));
        client.answers.lock().unwrap().extend(answers);
        let config = raw.validate(&local).unwrap();
        let clock = Arc::new(ManualClock::at(0));
        (HashicorpBackend::new(config, client.clone(), clock), client)
    }

    async fn fetch(backend: &HashicorpBackend) -> Result<Fetched, String> {
        let reference = SecretRef::parse("vault:kv/data/ci#token").unwrap();
        let source = backend.open(&reference).unwrap();
        source.fetch().await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn asks_for_one_secret_with_the_token_and_shows_neither() {
        let (backend, client) = backend(&[(200, GOOD)], false);
        let fetched = fetch(&backend).await.unwrap();
        assert_eq!((fetched.version.as_str(), fetched.lease), ("3", None));
        let asked = client.asked.lock().unwrap();
        let request = &asked[0];
        assert_eq!(request.uri(), "http://127.0.0.1:8200/v1/kv/data/ci");
        assert_eq!(request.headers().get("x-vault-token").unwrap(), "TOKEN-value");
        assert_eq!(request.headers().get("x-vault-request").unwrap(), "true");
        assert_eq!(request.headers().get("x-vault-namespace").unwrap(), "team-a");
        let shown = format!("{request:?} {backend:?} {fetched:?}");
        assert!(
            !shown.contains("TOKEN-value") && !shown.contains("canary"),
            "{shown}"
        );
    }

    #[tokio::test]
    async fn every_other_answer_is_an_error_that_says_what_it_was() {
        let not_kv = "vault:kv/data/ci#token: the answer is not a secret of a KV version 2 engine";
        let huge = "x".repeat(MAX_VAULT_RESPONSE_BYTES + 1);
        let rows = [
            (
                403,
                "{}",
                "vault:kv/data/ci#token: access denied by the secret store",
            ),
            (404, "{}", "vault:kv/data/ci#token does not exist"),
            (
                429,
                "{}",
                "vault:kv/data/ci#token: the secret store is overloaded or a standby (status 429)",
            ),
            (
                503,
                "{}",
                "vault:kv/data/ci#token: the secret store is sealed or down for maintenance (status 503)",
            ),
            (
                500,
                "{}",
                "vault:kv/data/ci#token: the secret store is not answering as it should (status 500)",
            ),
            (
                204,
                "",
                "vault:kv/data/ci#token: the secret store is not answering as it should (status 204)",
            ),
            (
                307,
                GOOD,
                "vault:kv/data/ci#token: the secret store redirects (status 307), which is not followed",
            ),
            (200, "", not_kv),
            (200, "canary-value", not_kv),
            (200, "[]", not_kv),
            (200, "{\"data\": {\"token\": \"canary-value\"}}", not_kv),
            (
                200,
                "{\"data\": {\"data\": {\"token\": \"canary-value\"}}}",
                not_kv,
            ),
            (
                200,
                "{\"data\": {\"data\": null, \"metadata\": {\"version\": 2}}}",
                not_kv,
            ),
            (
                200,
                "{\"data\": {\"data\": {\"token\": 1}, \"metadata\": {\"version\": 2}}}",
                "vault:kv/data/ci#token: the value under the key is not a string",
            ),
            (
                200,
                "{\"data\": {\"data\": {\"other\": \"canary-value\"}, \"metadata\": {\"version\": 2}}}",
                "the key token in vault:kv/data/ci does not exist",
            ),
            (200, &huge, "vault:kv/data/ci#token is larger than 1048576 bytes"),
        ];
        for (status, body, expected) in rows {
            let (backend, client) = backend(&[(status, body)], false);
            assert_eq!(
                fetch(&backend).await.map(drop),
                Err(expected.to_owned()),
                "{status}"
            );
            assert_eq!(
                client.asked.lock().unwrap().len(),
                1,
                "nothing is followed or tried again"
            );
        }
        let (backend, _) = backend(&[], false);
        assert_eq!(
            fetch(&backend).await.map(drop),
            Err("vault:kv/data/ci#token: the secret store could not be reached".to_owned())
        );
    }

    #[tokio::test]
    async fn an_approle_logs_in_once_and_again_when_its_token_is_refused() {
        let login = r#"{"auth": {"client_token": "s.first", "lease_duration": 60}}"#;
        let again = r#"{"auth": {"client_token": "s.second", "lease_duration": 60}}"#;
        let answers = [
            (200, login),
            (200, GOOD),
            (200, GOOD),
            (403, "{}"),
            (200, again),
            (200, GOOD),
        ];
        let (backend, client) = backend(&answers, true);
        for _ in 0..3 {
            fetch(&backend).await.unwrap();
        }
        let asked = client.asked.lock().unwrap();
        let seen: Vec<_> = asked
            .iter()
            .map(|request| {
                let token = request.headers().get("x-vault-token");
                (
                    request.uri().path(),
                    token.map_or("", |token| token.to_str().unwrap()),
                )
            })
            .collect();
        let (at, read) = ("/v1/auth/approle/login", "/v1/kv/data/ci");
        let expected = [
            (at, ""),
            (read, "s.first"),
            (read, "s.first"),
            (read, "s.first"),
            (at, ""),
            (read, "s.second"),
        ];
        assert_eq!(seen, expected);
        assert_eq!(
            asked[0].body(),
            r#"{"role_id":"role","secret_id":"SECRET_ID-value"}"#
        );
    }

    #[tokio::test]
    async fn a_login_that_fails_is_a_secret_that_cannot_be_had() {
        let expected = "vault:kv/data/ci#token (could not log in: the login at auth/approle/login: access denied by the secret store): \
                        access denied by the secret store";
        for answer in [(400, "{}"), (403, "{}")] {
            let (backend, _) = backend(&[answer], true);
            assert_eq!(fetch(&backend).await.map(drop), Err(expected.to_owned()));
        }
        let (backend, _) = backend(&[(200, "{\"auth\": null}")], true);
        assert!(fetch(&backend).await.is_err());
    }

    #[test]
    fn a_reference_is_a_plain_path_and_a_key() {
        let (backend, _) = backend(&[], false);
        let open = |text: &str| {
            backend
                .open(&SecretRef::parse(text).unwrap())
                .map(|source| source.describe())
        };
        assert_eq!(
            open("vault:team/kv/data/a/b#k").as_deref(),
            Ok("vault:team/kv/data/a/b#k")
        );
        assert!(matches!(
            open("vault:kv/data/ci"),
            Err(RefError::MissingKey { .. })
        ));
        for text in [
            "vault:kv/ci#k",
            "vault:data/ci#k",
            "vault:kv/data#k",
            "vault:kv/data/../sys#k",
            "vault:kv/data/a?version=1#k",
            "vault:kv/data/a%2fb#k",
            "vault:/kv/data/a#k",
            "vault:kv//data/a#k",
        ] {
            assert!(matches!(open(text), Err(RefError::Locator { .. })), "{text}");
        }
    }
}

//! The token that a request is made with.
//!
//! This is the one module of the crate that looks at a secret.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeSeed;
use wallgate_types::clock::Clock;
use wallgate_types::secret::Secret;
use wallgate_vault::field::{Field, FieldOf};
use wallgate_vault::flight::SingleFlight;
use wallgate_vault::source::{GuardedClient, MAX_VAULT_RESPONSE_BYTES, SecretSource, SourceError};
use zeroize::{Zeroize as _, Zeroizing};

use crate::config::HashicorpConfig;

/// Sent with every request, so that a browser or a confused proxy cannot make one.
const REQUEST: HeaderName = HeaderName::from_static("x-vault-request");
const TOKEN: HeaderName = HeaderName::from_static("x-vault-token");
const NAMESPACE: HeaderName = HeaderName::from_static("x-vault-namespace");

/// The longest that an `AppRole`'s token is kept, whatever its lease says.
const MAX_TOKEN_LIFE: Duration = Duration::from_hours(1);

/// How to come by a token.
#[derive(Clone, Debug)]
pub(crate) enum Login {
    /// It is somewhere.
    Token(Arc<dyn SecretSource>),
    /// By logging in.
    AppRole {
        path: String,
        role_id: String,
        secret_id: Arc<dyn SecretSource>,
    },
}

impl Login {
    pub(crate) fn token(source: Arc<dyn SecretSource>) -> Self {
        Self::Token(source)
    }

    pub(crate) fn app_role(mount: &str, role_id: &str, secret_id: Arc<dyn SecretSource>) -> Self {
        Self::AppRole {
            path: format!("auth/{mount}/login"),
            role_id: role_id.to_owned(),
            secret_id,
        }
    }
}

/// One server, and the token that is good there now.
pub(crate) struct Session {
    config: HashicorpConfig,
    client: Arc<dyn GuardedClient>,
    clock: Arc<dyn Clock>,
    kept: Mutex<Option<Kept>>,
    flight: SingleFlight<Result<Token, Arc<SourceError>>>,
}

/// A header value, in memory that is overwritten when the last request with it is gone.
#[derive(Clone)]
pub(crate) struct Token(HeaderValue);

struct Kept {
    token: Token,
    expires_at: Duration,
}

struct Overwritten(Zeroizing<Vec<u8>>);

impl AsRef<[u8]> for Overwritten {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Session {
    pub(crate) fn new(
        config: HashicorpConfig,
        client: Arc<dyn GuardedClient>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            config,
            client,
            clock,
            kept: Mutex::new(None),
            flight: SingleFlight::new(),
        }
    }

    /// Reads `path` with the token. A kept token that is refused is given up, and tried once more with a new one.
    pub(crate) async fn get(
        self: &Arc<Self>,
        path: &str,
        what: &str,
    ) -> Result<Response<Bytes>, SourceError> {
        let token = self.token(what).await?;
        let response = self
            .send(Method::GET, path, Some(&token), Bytes::new(), what)
            .await?;
        let renewable = matches!(self.config.login, Login::AppRole { .. });
        if response.status() != StatusCode::FORBIDDEN || !renewable {
            return Ok(response);
        }
        self.forget(&token);
        let token = self.token(what).await?;
        self.send(Method::GET, path, Some(&token), Bytes::new(), what)
            .await
    }

    async fn token(self: &Arc<Self>, what: &str) -> Result<Token, SourceError> {
        match &self.config.login {
            Login::Token(source) => {
                let fetched = source.fetch().await?;
                Token::new(&fetched.value).ok_or_else(|| SourceError::Malformed {
                    what: source.describe(),
                    reason: "it is not a token",
                })
            }
            Login::AppRole { .. } => {
                if let Some(token) = self.kept_token() {
                    return Ok(token);
                }
                let session = Arc::clone(self);
                let login = self
                    .flight
                    .run(|| async move { session.log_in().await.map_err(Arc::new) });
                login.await.map_err(|error| login_failed(&error, what))
            }
        }
    }

    async fn log_in(&self) -> Result<Token, SourceError> {
        let Login::AppRole {
            path,
            role_id,
            secret_id,
        } = &self.config.login
        else {
            return Err(SourceError::Missing {
                what: "an AppRole".to_owned(),
            });
        };
        let what = format!("the login at {path}");
        let asked = self.clock.monotonic();
        let secret = secret_id.fetch().await?;
        let body = login_body(role_id, &secret.value).ok_or_else(|| SourceError::Malformed {
            what: secret_id.describe(),
            reason: "it is not a secret id",
        })?;
        let response = self.send(Method::POST, path, None, body, &what).await?;
        // A wrong or used-up secret id is a 400.
        if response.status() == StatusCode::BAD_REQUEST {
            return Err(SourceError::Denied { what });
        }
        check_status(&response, &what)?;
        let malformed = |reason| SourceError::Malformed {
            what: what.clone(),
            reason,
        };
        let granted = Granted::read(response.body());
        wipe(response.into_body());
        let granted = granted.ok_or(malformed("the answer is not a login"))?;
        let token = Token::new(&granted.token).ok_or(malformed("the answer holds no token"))?;
        // A token without a lease does not expire (a batch or root token); it is renewed like the longest.
        let lease = Duration::from_secs(granted.lease_seconds);
        let life = if lease.is_zero() {
            MAX_TOKEN_LIFE
        } else {
            lease.min(MAX_TOKEN_LIFE)
        };
        let kept = Kept {
            token: token.clone(),
            expires_at: asked.saturating_add(life.mul_f64(0.8)),
        };
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        Ok(token)
    }

    fn kept_token(&self) -> Option<Token> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.monotonic();
        kept.as_ref()
            .filter(|kept| now < kept.expires_at)
            .map(|kept| kept.token.clone())
    }

    fn forget(&self, token: &Token) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.take_if(|kept| kept.token.0 == token.0);
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        token: Option<&Token>,
        body: Bytes,
        what: &str,
    ) -> Result<Response<Bytes>, SourceError> {
        let mut request = Request::new(body);
        let malformed = || SourceError::Malformed {
            what: what.to_owned(),
            reason: "its path is not a URL's",
        };
        *request.uri_mut() = format!("{}/v1/{path}", self.config.base)
            .parse()
            .or(Err(malformed()))?;
        *request.method_mut() = method;
        let headers = request.headers_mut();
        headers.insert(REQUEST, HeaderValue::from_static("true"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(Token(token)) = token {
            headers.insert(TOKEN, token.clone());
        } else {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(namespace) = &self.config.namespace {
            headers.insert(NAMESPACE, namespace.clone());
        }
        let response = self
            .client
            .send(request)
            .await
            .map_err(|source| SourceError::Unreachable {
                what: what.to_owned(),
                source,
            })?;
        if response.body().len() > MAX_VAULT_RESPONSE_BYTES {
            return Err(SourceError::TooLarge {
                what: what.to_owned(),
                limit: MAX_VAULT_RESPONSE_BYTES,
            });
        }
        Ok(response)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("base", &self.config.base)
            .finish_non_exhaustive()
    }
}

/// Overwrites what a secret store answered, as far as nobody else holds it.
pub(crate) fn wipe(body: Bytes) {
    if let Ok(mut body) = body.try_into_mut() {
        body.as_mut().zeroize();
    }
}

/// Says what a status means, but for success and what only the caller can tell.
pub(crate) fn check_status(response: &Response<Bytes>, what: &str) -> Result<(), SourceError> {
    let what = || what.to_owned();
    let status = response.status();
    let not_ready = |state| SourceError::NotReady {
        what: what(),
        state,
        status: status.as_u16(),
    };
    match status.as_u16() {
        200 => Ok(()),
        300..=399 => Err(SourceError::Redirected {
            what: what(),
            status: status.as_u16(),
        }),
        401 | 403 => Err(SourceError::Denied { what: what() }),
        404 => Err(SourceError::Missing { what: what() }),
        429 => Err(not_ready("overloaded or a standby")),
        472 | 473 => Err(not_ready("a standby")),
        501 => Err(not_ready("not initialised")),
        503 => Err(not_ready("sealed or down for maintenance")),
        _ => Err(not_ready("not answering as it should")),
    }
}

/// A shared failure, told to each who waited for it.
fn login_failed(error: &SourceError, what: &str) -> SourceError {
    match error {
        SourceError::NotReady { state, status, .. } => SourceError::NotReady {
            what: what.to_owned(),
            state,
            status: *status,
        },
        other => SourceError::Denied {
            what: format!("{what} (could not log in: {other})"),
        },
    }
}

impl Token {
    #[expect(
        clippy::disallowed_methods,
        reason = "here the token becomes the header that the secret store asks for"
    )]
    fn new(value: &Secret<Vec<u8>>) -> Option<Self> {
        let value = value.expose();
        if value.is_empty() || !value.iter().all(u8::is_ascii_graphic) {
            return None;
        }
        let shared = Bytes::from_owner(Overwritten(Zeroizing::new(value.clone())));
        let mut header = HeaderValue::from_maybe_shared(shared).ok()?;
        header.set_sensitive(true);
        Some(Self(header))
    }
}

/// `{"role_id": …, "secret_id": …}` in memory that is overwritten.
#[expect(
    clippy::disallowed_methods,
    reason = "here the secret id goes into the login that it is for"
)]
fn login_body(role_id: &str, secret_id: &Secret<Vec<u8>>) -> Option<Bytes> {
    let secret_id = std::str::from_utf8(secret_id.expose()).ok()?;
    if secret_id.is_empty() {
        return None;
    }
    // Room for every character escaped, so that the buffer never moves.
    let room = role_id.len().saturating_add(secret_id.len()).saturating_mul(6);
    let mut body = Zeroizing::new(Vec::with_capacity(room.saturating_add(64)));
    let fields = [("role_id", role_id), ("secret_id", secret_id)];
    for (index, (key, value)) in fields.iter().enumerate() {
        body.extend_from_slice(if index == 0 { b"{" } else { b"," });
        serde_json::to_writer(&mut *body, key).ok()?;
        body.extend_from_slice(b":");
        serde_json::to_writer(&mut *body, value).ok()?;
    }
    body.extend_from_slice(b"}");
    Some(Bytes::from_owner(Overwritten(body)))
}

/// What a login answers.
struct Granted {
    token: Secret<Vec<u8>>,
    lease_seconds: u64,
}

impl Granted {
    fn read(body: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Envelope {
            auth: Lease,
        }
        #[derive(Deserialize)]
        struct Lease {
            lease_duration: u64,
        }
        let envelope: Envelope = serde_json::from_slice(body).ok()?;
        let mut json = serde_json::Deserializer::from_slice(body);
        match InAuth.deserialize(&mut json).ok()? {
            Field::Text(token) => Some(Self {
                token,
                lease_seconds: envelope.auth.lease_duration,
            }),
            Field::Other | Field::Absent => None,
        }
    }
}

/// `auth.client_token`.
struct InAuth;

impl<'de> DeserializeSeed<'de> for InAuth {
    type Value = Field;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Field, D::Error> {
        crate::kv::Under {
            key: "auth",
            inner: FieldOf("client_token"),
        }
        .deserialize(deserializer)
    }
}

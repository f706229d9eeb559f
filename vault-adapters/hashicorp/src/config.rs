//! `[vault]` as an operator writes it, and as it is once it has been checked.
//!
//! ```toml
//! [vault]
//! address = "https://vault.corp.example:8200"
//! namespace = "team-a"                            # optional
//! token = "file:/run/wallgate/vault-token"        # or:
//! # approle = { role_id = "…", secret_id = "file:/run/wallgate/secret-id", mount = "approle" }
//! ```

use std::sync::Arc;

use http::{HeaderValue, Uri};
use serde::Deserialize;
use thiserror::Error;
use wallgate_types::authority::{Authority, AuthorityError, Host};
use wallgate_vault::reference::{Backends, RefError, SecretRef};
use wallgate_vault::source::SecretSource;

use crate::auth::Login;
use crate::kv::is_plain_path;

/// The port of a server whose address names none.
const DEFAULT_PORT: u16 = 8200;

/// The `[vault]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawHashicorp {
    /// Scheme, host and port.
    pub address: String,
    /// The namespace of every request.
    pub namespace: Option<String>,
    /// Where the token is.
    pub token: Option<String>,
    /// How to log in as an `AppRole`.
    pub approle: Option<RawAppRole>,
}

/// How to log in as an `AppRole`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawAppRole {
    /// Where the method is mounted; `approle` by default.
    pub mount: Option<String>,
    /// The role.
    pub role_id: String,
    /// Where its secret is.
    pub secret_id: String,
}

/// A checked `[vault]` table.
#[derive(Clone, Debug)]
pub struct HashicorpConfig {
    /// `https://host:port`.
    pub(crate) base: String,
    pub(crate) namespace: Option<HeaderValue>,
    pub(crate) login: Login,
}

/// What is wrong with a `[vault]` table.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum HashicorpConfigError {
    /// Not a usable address.
    #[error(
        "[vault] `address` is \"{0}\": write scheme, host and port only, such as https://vault.corp.example:8200"
    )]
    Address(String),
    /// Not a host.
    #[error("[vault] `address`: {0}")]
    Host(#[from] AuthorityError),
    /// In the clear to another host.
    #[error("[vault] `address` is \"{0}\": http:// is for this host only, any other needs https://")]
    Clear(String),
    /// Not a path of names.
    #[error("[vault] `{0}` is a path of letters, digits, and - _ .")]
    Path(&'static str),
    /// Neither a token nor an `AppRole`, or both.
    #[error("[vault] needs one of `token` and `approle`")]
    Login,
    /// Not a usable reference.
    #[error("[vault] `{key}`: {source}")]
    Reference {
        /// The key.
        key: &'static str,
        /// Why.
        #[source]
        source: RefError,
    },
}

impl RawHashicorp {
    /// Checks the table and opens what it refers to, without fetching anything.
    ///
    /// # Errors
    /// The first problem, with its key.
    pub fn validate(&self, local: &Backends) -> Result<HashicorpConfig, HashicorpConfigError> {
        let namespace = match &self.namespace {
            Some(text) if !is_plain_path(text) => return Err(HashicorpConfigError::Path("namespace")),
            Some(text) => {
                let value = HeaderValue::from_str(text).or(Err(HashicorpConfigError::Path("namespace")))?;
                Some(value)
            }
            None => None,
        };
        let login = match (&self.token, &self.approle) {
            (Some(token), None) => Login::token(open(local, "token", token)?),
            (None, Some(role)) => {
                let mount = role.mount.as_deref().unwrap_or("approle");
                if !is_plain_path(mount) {
                    return Err(HashicorpConfigError::Path("approle.mount"));
                }
                let secret_id = open(local, "approle.secret_id", &role.secret_id)?;
                Login::app_role(mount, &role.role_id, secret_id)
            }
            (Some(_), Some(_)) | (None, None) => return Err(HashicorpConfigError::Login),
        };
        Ok(HashicorpConfig {
            base: check_address(&self.address)?,
            namespace,
            login,
        })
    }
}

fn open(
    local: &Backends,
    key: &'static str,
    reference: &str,
) -> Result<Arc<dyn SecretSource>, HashicorpConfigError> {
    SecretRef::parse(reference)
        .and_then(|reference| local.open(&reference))
        .map_err(|source| HashicorpConfigError::Reference { key, source })
}

fn check_address(text: &str) -> Result<String, HashicorpConfigError> {
    let bad = || HashicorpConfigError::Address(text.to_owned());
    let uri: Uri = text.parse().or(Err(bad()))?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(bad());
    };
    let bare = uri.path() == "/" && uri.query().is_none() && !authority.as_str().contains('@');
    if !bare || !matches!(scheme, "http" | "https") {
        return Err(bad());
    }
    let authority = Authority::parse(authority.as_str(), DEFAULT_PORT)?;
    let is_this_host = match authority.host() {
        Host::Name(name) => name.as_str() == "localhost",
        Host::V4(address) => address.is_loopback(),
        Host::V6(address) => address.is_loopback(),
    };
    if scheme == "http" && !is_this_host {
        return Err(HashicorpConfigError::Clear(text.to_owned()));
    }
    Ok(format!("{scheme}://{authority}"))
}

#[cfg(test)]
mod tests {
    use wallgate_vault_local::FileBackend;

    use super::*;

    #[track_caller]
    fn check(address: &str, expected: Result<&str, &str>) {
        let got = check_address(address).map_err(|error| error.to_string());
        match expected {
            Ok(base) => assert_eq!(got.as_deref(), Ok(base)),
            Err(part) => assert!(got.is_err_and(|error| error.contains(part)), "{address}"),
        }
    }

    #[test]
    fn a_server_is_spoken_to_in_tls_or_on_this_host() {
        check(
            "https://vault.corp.example",
            Ok("https://vault.corp.example:8200"),
        );
        check(
            "https://vault.corp.example:443/",
            Ok("https://vault.corp.example:443"),
        );
        check("http://127.0.0.1:8200", Ok("http://127.0.0.1:8200"));
        check("http://[::1]:8200", Ok("http://[::1]:8200"));
        check("http://localhost:8200", Ok("http://localhost:8200"));
        check("http://vault.corp.example", Err("http:// is for this host only"));
        check(
            "http://127.0.0.1.corp.example",
            Err("http:// is for this host only"),
        );
        check("vault.corp.example", Err("write scheme, host and port only"));
        check(
            "https://user:x@vault.corp.example",
            Err("write scheme, host and port only"),
        );
        check(
            "https://vault.corp.example/v1",
            Err("write scheme, host and port only"),
        );
        check(
            "ftp://vault.corp.example",
            Err("write scheme, host and port only"),
        );
    }

    #[test]
    fn says_which_key_is_wrong() {
        let local = Backends::new().with(Arc::new(FileBackend::new("/")));
        let base = RawHashicorp {
            address: "https://vault.corp.example".to_owned(),
            namespace: None,
            token: Some("file:/t".to_owned()),
            approle: None,
        };
        let approle = RawAppRole {
            mount: Some("a/../b".to_owned()),
            role_id: "r".to_owned(),
            secret_id: "file:/s".to_owned(),
        };
        let rows = [
            (
                RawHashicorp {
                    token: None,
                    ..base.clone()
                },
                "[vault] needs one of `token` and `approle`",
            ),
            (
                RawHashicorp {
                    approle: Some(approle.clone()),
                    ..base.clone()
                },
                "[vault] needs one of `token` and `approle`",
            ),
            (
                RawHashicorp {
                    token: None,
                    approle: Some(approle),
                    ..base.clone()
                },
                "[vault] `approle.mount` is a path of letters, digits, and - _ .",
            ),
            (
                RawHashicorp {
                    namespace: Some("a b".to_owned()),
                    ..base.clone()
                },
                "[vault] `namespace` is a path of letters, digits, and - _ .",
            ),
            (
                RawHashicorp {
                    token: Some("vault:x".to_owned()),
                    ..base.clone()
                },
                "[vault] `token`: `vault:x`: there is no secret source `vault`; there are file",
            ),
            (
                RawHashicorp {
                    token: Some("s.pastedByMistake".to_owned()),
                    ..base
                },
                "[vault] `token`: the reference has no scheme: write, for example, env:NAME or file:PATH, never the secret itself",
            ),
        ];
        for (raw, expected) in rows {
            assert_eq!(raw.validate(&local).unwrap_err().to_string(), expected);
        }
    }
}

//! `[[credential]]` as an operator writes it, and as it is once it has been checked.
//!
//! ```toml
//! [[credential]]
//! name = "github-read"
//! source = "env:GITHUB_TOKEN"
//! shape = "bearer"          # or "basic" (with `user`), or "header" (with `header` and perhaps `prefix`)
//! bind = { hosts = ["api.github.test"], methods = ["GET"], paths = ["/repos/**"] }
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderName, Method};
use serde::Deserialize;
use thiserror::Error;
use wallgate_types::clock::Timestamp;
use wallgate_types::sandbox::SandboxIdError;

use crate::binding::{Binding, HostPattern, HostPatternError};
use crate::glob::PathGlobError;
use crate::material::Shape;
use crate::reference::{RefError, SecretRef};

/// The longest name, user or prefix, in bytes.
pub const MAX_CONFIG_TEXT_BYTES: usize = 128;

/// Headers that frame or route a message, so that nobody may set them as a credential.
const FRAMING: [&str; 16] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "max-forwards",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A `[[credential]]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawCredential {
    /// What policy and records call it.
    pub name: String,
    /// Where its value is.
    pub source: String,
    /// `bearer`, `basic` or `header`.
    pub shape: String,
    /// The user of `basic`, when the value is only the password.
    pub user: Option<String>,
    /// The header of `header`.
    pub header: Option<String>,
    /// What stands before the value of `header`.
    pub prefix: Option<String>,
    /// What it may be used for.
    pub bind: RawBinding,
}

/// The `bind` table of a credential.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawBinding {
    /// `api.example.test`, `*.example.test`, `api.example.test:8443`.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// 443 when there is none.
    #[serde(default)]
    pub ports: Vec<u16>,
    /// `GET` and `HEAD` when there is none.
    #[serde(default)]
    pub methods: Vec<String>,
    /// Any path when there is none.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Any sandbox when there is none.
    #[serde(default)]
    pub sandboxes: Vec<String>,
    /// Labels that a sandbox must have.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// How often it may be used while a broker lives.
    pub max_uses: Option<u64>,
    /// An RFC 3339 time.
    pub expires: Option<String>,
}

/// A credential without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// What policy and records call it.
    pub name: Arc<str>,
    /// What it looks like on the wire.
    pub shape: Shape,
    /// What it may be used for.
    pub binding: Binding,
}

/// What is wrong with a `[[credential]]` table: which one, which key, why.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("credential \"{name}\": {problem}")]
pub struct CredentialConfigError {
    /// The credential's name as written.
    pub name: String,
    /// What is wrong.
    #[source]
    pub problem: Problem,
}

/// What can be wrong with a `[[credential]]` table.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// The name is empty, too long, or has characters that do not belong in records.
    #[error("`name` is 1 to {MAX_CONFIG_TEXT_BYTES} letters, digits, and - _ . /")]
    Name,
    /// No such shape.
    #[error("`shape` is \"{0}\", but there are bearer, basic and header")]
    Shape(String),
    /// A key that another shape has.
    #[error("`{key}` does not go with shape \"{shape}\"")]
    Misplaced {
        /// The key.
        key: &'static str,
        /// The shape as written.
        shape: String,
    },
    /// Shape `header` without `header`.
    #[error("shape \"header\" needs `header`, the header's name")]
    NoHeader,
    /// Not a header's name, or one that may not be set.
    #[error("`header` is \"{0}\", which is not a header that a credential can be put in")]
    Header(String),
    /// Not visible ASCII, or too long.
    #[error("`{0}` is at most {MAX_CONFIG_TEXT_BYTES} visible ASCII characters, and a user has no colon")]
    Text(&'static str),
    /// Not a usable reference.
    #[error("`source`: {0}")]
    Source(#[from] RefError),
    /// A binding to nothing.
    #[error("`bind.hosts` is empty: a credential is bound to at least one host")]
    NoHosts,
    /// Not a host pattern.
    #[error("`bind.hosts` has \"{text}\": {reason}")]
    Host {
        /// As written.
        text: String,
        /// Why not.
        reason: HostPatternError,
    },
    /// Port 0.
    #[error("`bind.ports` has 0")]
    Port,
    /// Not an upper-case method.
    #[error("`bind.methods` has \"{0}\", which is not a method in upper case")]
    Method(String),
    /// Not a path pattern.
    #[error("`bind.paths` has \"{text}\": {reason}")]
    Path {
        /// As written.
        text: String,
        /// Why not.
        reason: PathGlobError,
    },
    /// Not a sandbox id.
    #[error("`bind.sandboxes` has \"{text}\": {reason}")]
    Sandbox {
        /// As written.
        text: String,
        /// Why not.
        reason: SandboxIdError,
    },
    /// No use at all.
    #[error("`bind.max_uses` is 0, so it could never be used")]
    NoUses,
    /// Not a time.
    #[error("`bind.expires` is \"{0}\", which is not a time such as 2030-01-31T00:00:00Z")]
    Expires(String),
}

impl RawCredential {
    /// Checks everything that can be checked without fetching the value.
    ///
    /// # Errors
    /// The first problem, with the credential's name and the key.
    pub fn validate(self) -> Result<(Credential, SecretRef), CredentialConfigError> {
        let name = self.name.clone();
        self.check()
            .map_err(|problem| CredentialConfigError { name, problem })
    }

    fn check(self) -> Result<(Credential, SecretRef), Problem> {
        let shape = self.check_shape()?;
        let named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/');
        if self.name.is_empty() || self.name.len() > MAX_CONFIG_TEXT_BYTES || !self.name.bytes().all(named) {
            return Err(Problem::Name);
        }
        let reference = SecretRef::parse(&self.source)?;
        let credential = Credential {
            name: self.name.into(),
            shape,
            binding: self.bind.check()?,
        };
        Ok((credential, reference))
    }

    fn check_shape(&self) -> Result<Shape, Problem> {
        let absent = |key: &'static str, value: &Option<String>| match value {
            None => Ok(()),
            Some(_) => Err(Problem::Misplaced {
                key,
                shape: self.shape.clone(),
            }),
        };
        match self.shape.as_str() {
            "bearer" => {
                absent("user", &self.user)?;
                absent("header", &self.header)?;
                absent("prefix", &self.prefix)?;
                Ok(Shape::Bearer)
            }
            "basic" => {
                absent("header", &self.header)?;
                absent("prefix", &self.prefix)?;
                if self
                    .user
                    .as_ref()
                    .is_some_and(|user| user.contains(':') || !is_text(user))
                {
                    return Err(Problem::Text("user"));
                }
                Ok(Shape::Basic {
                    user: self.user.clone(),
                })
            }
            "header" => {
                absent("user", &self.user)?;
                let text = self.header.as_ref().ok_or(Problem::NoHeader)?;
                let name: HeaderName = text.parse().or(Err(Problem::Header(text.clone())))?;
                if FRAMING.contains(&name.as_str()) || name.as_str().starts_with("sec-") {
                    return Err(Problem::Header(text.clone()));
                }
                let prefix = self.prefix.clone().unwrap_or_default();
                if !is_text(&prefix) || prefix.starts_with(' ') {
                    return Err(Problem::Text("prefix"));
                }
                Ok(Shape::Header { name, prefix })
            }
            other => Err(Problem::Shape(other.to_owned())),
        }
    }
}

fn is_text(text: &str) -> bool {
    text.len() <= MAX_CONFIG_TEXT_BYTES && text.bytes().all(|b| matches!(b, 0x20..=0x7e))
}

impl RawBinding {
    fn check(self) -> Result<Binding, Problem> {
        if self.hosts.is_empty() {
            return Err(Problem::NoHosts);
        }
        if self.ports.contains(&0) {
            return Err(Problem::Port);
        }
        if self.max_uses == Some(0) {
            return Err(Problem::NoUses);
        }
        let host = |text: String| {
            text.parse::<HostPattern>()
                .map_err(|reason| Problem::Host { text, reason })
        };
        let path = |text: String| text.parse().map_err(|reason| Problem::Path { text, reason });
        let sandbox = |text: String| text.parse().map_err(|reason| Problem::Sandbox { text, reason });
        Ok(Binding {
            hosts: self.hosts.into_iter().map(host).collect::<Result<_, _>>()?,
            ports: self.ports.into_iter().collect(),
            methods: self.methods.into_iter().map(method).collect::<Result<_, _>>()?,
            paths: self.paths.into_iter().map(path).collect::<Result<_, _>>()?,
            sandboxes: self
                .sandboxes
                .into_iter()
                .map(sandbox)
                .collect::<Result<_, _>>()?,
            labels: self.labels,
            max_uses: self.max_uses,
            expires: self.expires.map(time).transpose()?,
        })
    }
}

fn method(text: String) -> Result<String, Problem> {
    let valid = Method::from_bytes(text.as_bytes()).is_ok() && !text.bytes().any(|b| b.is_ascii_lowercase());
    // CONNECT would carry the credential into a tunnel, TRACE would send it back (RFC 9110, section 9.3.8).
    if valid && !matches!(text.as_str(), "CONNECT" | "TRACE") {
        Ok(text)
    } else {
        Err(Problem::Method(text))
    }
}

fn time(text: String) -> Result<Timestamp, Problem> {
    text.parse::<jiff::Timestamp>()
        .ok()
        .and_then(|time| u64::try_from(time.as_millisecond()).ok())
        .map(Timestamp)
        .ok_or(Problem::Expires(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(lines: &str, expected: Result<(), &str>) {
        let base = "name = \"c\"\nsource = \"env:TOKEN\"\n";
        let text = if lines.contains("bind") {
            format!("{base}{lines}")
        } else {
            format!("{base}{lines}\nbind = {{ hosts = [\"api.example.test\"] }}")
        };
        let raw: RawCredential = toml::from_str(&text).unwrap();
        let got = raw.validate().map(drop).map_err(|error| error.to_string());
        assert_eq!(
            got,
            expected.map_err(|reason| format!("credential \"c\": {reason}")),
            "{text}"
        );
    }

    #[test]
    fn accepts_what_the_design_shows() {
        check("shape = \"bearer\"", Ok(()));
        check("shape = \"basic\"\nuser = \"x-access-token\"", Ok(()));
        check("shape = \"header\"\nheader = \"X-Api-Key\"", Ok(()));
        check(
            "shape = \"header\"\nheader = \"Authorization\"\nprefix = \"token \"",
            Ok(()),
        );
        check(
            "shape = \"bearer\"\nbind = { hosts = [\"*.example.test\"], ports = [8443], methods = [\"GET\", \"POST\"], paths = [\"/repos/**\"], \
             sandboxes = [\"a\"], labels = { team = \"x\" }, max_uses = 3, expires = \"2030-01-31T00:00:00Z\" }",
            Ok(()),
        );
    }

    #[test]
    fn says_which_key_is_wrong() {
        let rows = [
            (
                "shape = \"sigv4\"",
                "`shape` is \"sigv4\", but there are bearer, basic and header",
            ),
            (
                "shape = \"bearer\"\nuser = \"x\"",
                "`user` does not go with shape \"bearer\"",
            ),
            (
                "shape = \"header\"",
                "shape \"header\" needs `header`, the header's name",
            ),
            (
                "shape = \"header\"\nheader = \"Host\"",
                "`header` is \"Host\", which is not a header that a credential can be put in",
            ),
            (
                "shape = \"header\"\nheader = \"a b\"",
                "`header` is \"a b\", which is not a header that a credential can be put in",
            ),
            (
                "shape = \"basic\"\nuser = \"a:b\"",
                "`user` is at most 128 visible ASCII characters, and a user has no colon",
            ),
            (
                "shape = \"bearer\"\nbind = { }",
                "`bind.hosts` is empty: a credential is bound to at least one host",
            ),
            (
                "shape = \"bearer\"\nbind = { hosts = [\"*\"] }",
                "`bind.hosts` has \"*\": a * stands for one label in front of a name of at least two",
            ),
            (
                "shape = \"bearer\"\nbind = { hosts = [\"a.test\"], methods = [\"get\"] }",
                "`bind.methods` has \"get\", which is not a method in upper case",
            ),
            (
                "shape = \"bearer\"\nbind = { hosts = [\"a.test\"], methods = [\"TRACE\"] }",
                "`bind.methods` has \"TRACE\", which is not a method in upper case",
            ),
            (
                "shape = \"bearer\"\nbind = { hosts = [\"a.test\"], paths = [\"repos\"] }",
                "`bind.paths` has \"repos\": a path pattern begins with /",
            ),
            (
                "shape = \"bearer\"\nbind = { hosts = [\"a.test\"], expires = \"tomorrow\" }",
                "`bind.expires` is \"tomorrow\", which is not a time such as 2030-01-31T00:00:00Z",
            ),
        ];
        for (lines, reason) in rows {
            check(lines, Err(reason));
        }
    }

    #[test]
    fn unknown_keys_are_errors() {
        let text = "name = \"c\"\nsource = \"env:T\"\nshape = \"bearer\"\nbind = { hosts = [\"a.test\"], path = [\"/\"] }";
        let error = toml::from_str::<RawCredential>(text).unwrap_err().to_string();
        assert!(error.contains("unknown field `path`"), "{error}");
    }
}

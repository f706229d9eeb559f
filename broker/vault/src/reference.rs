//! Where a secret is: `scheme:locator` or `scheme:locator#key`, as an operator writes it.
//!
//! The scheme chooses an adapter; what the rest means is the adapter's own business, and is checked by it before
//! anything is bound.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::source::SecretSource;

/// The longest reference, in bytes.
pub const MAX_REFERENCE_BYTES: usize = 4096;

/// A parsed reference. It names a secret and holds none, so it may be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRef {
    scheme: String,
    locator: String,
    key: Option<String>,
}

/// Why a text is no usable reference.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RefError {
    /// There is no `scheme:`. The text is not shown: it may be the secret itself.
    #[error(
        "the reference has no scheme: write, for example, env:NAME or file:PATH, never the secret itself"
    )]
    NoScheme,
    /// No adapter is called so.
    #[error("`{reference}`: there is no secret source `{scheme}`; there are {known}")]
    UnknownScheme {
        /// What was written.
        reference: String,
        /// The scheme in it.
        scheme: String,
        /// The schemes that there are.
        known: String,
    },
    /// Not the name of an environment variable. The text is not shown: it may be the secret itself.
    #[error("what follows env: is not the name of a variable (letters, digits and _)")]
    NotAName,
    /// Nothing after the scheme.
    #[error("`{reference}` names nothing after `{scheme}:`")]
    NoLocator {
        /// What was written.
        reference: String,
        /// Its scheme.
        scheme: String,
    },
    /// The adapter needs `#key`, or the key is empty.
    #[error("`{reference}` needs a key: {example}")]
    MissingKey {
        /// What was written.
        reference: String,
        /// How it is written right.
        example: &'static str,
    },
    /// The adapter knows no keys.
    #[error("`{reference}` has a key, but {scheme}: takes none")]
    UnexpectedKey {
        /// What was written.
        reference: String,
        /// Its scheme.
        scheme: String,
    },
    /// The locator is not what the adapter expects.
    #[error("`{reference}`: {reason}")]
    Locator {
        /// What was written.
        reference: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Longer than [`MAX_REFERENCE_BYTES`], or with control characters.
    #[error("a secret reference is at most {MAX_REFERENCE_BYTES} bytes of text without control characters")]
    Unreadable,
}

impl SecretRef {
    /// Splits a reference at its first `:` and its last `#`.
    ///
    /// # Errors
    /// [`RefError`] when there is no scheme, no locator, or an empty key.
    pub fn parse(text: &str) -> Result<Self, RefError> {
        if text.len() > MAX_REFERENCE_BYTES || text.chars().any(char::is_control) {
            return Err(RefError::Unreadable);
        }
        let reference = || text.to_owned();
        let is_scheme = |scheme: &str| {
            scheme.starts_with(|c: char| c.is_ascii_lowercase())
                && scheme
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        let (scheme, rest) = text
            .split_once(':')
            .filter(|(scheme, _)| is_scheme(scheme))
            .ok_or(RefError::NoScheme)?;
        let (locator, key) = match rest.rsplit_once('#') {
            Some((locator, key)) => (locator, Some(key)),
            None => (rest, None),
        };
        if locator.is_empty() {
            return Err(RefError::NoLocator {
                reference: reference(),
                scheme: scheme.to_owned(),
            });
        }
        if key.is_some_and(str::is_empty) {
            return Err(RefError::MissingKey {
                reference: reference(),
                example: "write its name after the #",
            });
        }
        Ok(Self {
            scheme: scheme.to_owned(),
            locator: locator.to_owned(),
            key: key.map(str::to_owned),
        })
    }

    /// Which adapter it is for.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Where the secret is.
    #[must_use]
    pub fn locator(&self) -> &str {
        &self.locator
    }

    /// Which part of it.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// This reference with a locator that its adapter does not take.
    #[must_use]
    pub fn bad_locator(&self, reason: &'static str) -> RefError {
        RefError::Locator {
            reference: self.to_string(),
            reason,
        }
    }
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scheme, self.locator)?;
        self.key.iter().try_for_each(|key| write!(f, "#{key}"))
    }
}

/// A kind of secret store: opens references of one scheme.
pub trait SecretBackend: Send + Sync + fmt::Debug {
    /// The scheme of its references.
    fn scheme(&self) -> &'static str;

    /// Checks a reference and makes a source of it, without fetching anything.
    ///
    /// # Errors
    /// [`RefError`] when the reference is not one of this backend's.
    fn open(&self, reference: &SecretRef) -> Result<Arc<dyn SecretSource>, RefError>;
}

/// The kinds of secret store that this installation has.
#[derive(Clone, Debug, Default)]
pub struct Backends {
    known: Vec<Arc<dyn SecretBackend>>,
}

impl Backends {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// These and one more.
    #[must_use]
    pub fn with(mut self, backend: Arc<dyn SecretBackend>) -> Self {
        self.known.push(backend);
        self
    }

    /// Opens a reference by its scheme.
    ///
    /// # Errors
    /// [`RefError::UnknownScheme`], or what the backend says of the reference.
    pub fn open(&self, reference: &SecretRef) -> Result<Arc<dyn SecretSource>, RefError> {
        match self
            .known
            .iter()
            .find(|backend| backend.scheme() == reference.scheme)
        {
            Some(backend) => backend.open(reference),
            None => Err(RefError::UnknownScheme {
                reference: reference.to_string(),
                scheme: reference.scheme.clone(),
                known: self
                    .known
                    .iter()
                    .map(|backend| backend.scheme())
                    .collect::<Vec<_>>()
                    .join(", "),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<(&str, &str, Option<&str>), &str>) {
        let got = SecretRef::parse(text);
        let got = got
            .as_ref()
            .map(|r| (r.scheme(), r.locator(), r.key()))
            .map_err(ToString::to_string);
        assert_eq!(got, expected.map_err(str::to_owned), "{text:?}");
    }

    #[test]
    fn splits_scheme_locator_and_key() {
        check("env:GITHUB_TOKEN", Ok(("env", "GITHUB_TOKEN", None)));
        check("file:/run/a b#token", Ok(("file", "/run/a b", Some("token"))));
        check("file:C:/x", Ok(("file", "C:/x", None)));
        check(
            "vault:kv/data/ci#token",
            Ok(("vault", "kv/data/ci", Some("token"))),
        );
        check("file:/a#b#c", Ok(("file", "/a#b", Some("c"))));
    }

    #[test]
    fn says_what_is_missing() {
        let no_scheme = RefError::NoScheme.to_string();
        for text in [
            "",
            "ghp_pastedByMistake",
            ":x",
            "/run/secrets/x",
            "Env:X",
            "a b:c",
        ] {
            check(text, Err(&no_scheme));
        }
        check("env:", Err("`env:` names nothing after `env:`"));
        check("file:#k", Err("`file:#k` names nothing after `file:`"));
        check(
            "vault:kv/data/ci#",
            Err("`vault:kv/data/ci#` needs a key: write its name after the #"),
        );
        let unreadable = RefError::Unreadable.to_string();
        check("env:A\nB", Err(&unreadable));
    }

    #[test]
    fn an_unknown_scheme_names_the_known_ones() {
        let backends = Backends::new();
        let error = backends.open(&SecretRef::parse("op:x").unwrap()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`op:x`: there is no secret source `op`; there are "
        );
    }
}

//! `env:NAME`.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use wallgate_vault::material::trimmed;
use wallgate_vault::reference::{RefError, SecretBackend, SecretRef};
use wallgate_vault::source::{BoxFuture, Fetched, SecretSource, SourceError};
use zeroize::Zeroizing;

/// What looks a variable up, once for each reference.
type Lookup = dyn Fn(&str) -> Option<Zeroizing<Vec<u8>>> + Send + Sync;

/// Opens `env:NAME` references.
pub struct EnvBackend {
    lookup: Box<Lookup>,
    opened: Mutex<HashMap<String, Arc<Captured>>>,
}

/// A variable as it was when it was first referred to.
#[derive(Debug)]
struct Captured(Option<Zeroized>);

/// The value in custody; a fetch gets a copy that is overwritten in its turn.
struct Zeroized(Zeroizing<Vec<u8>>);

impl fmt::Debug for Zeroized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Zeroized(..)")
    }
}

impl EnvBackend {
    /// Reads variables through `lookup`, each once, when a reference to it is opened.
    pub fn new(lookup: impl Fn(&str) -> Option<Zeroizing<Vec<u8>>> + Send + Sync + 'static) -> Self {
        Self {
            lookup: Box::new(lookup),
            opened: Mutex::default(),
        }
    }
}

impl fmt::Debug for EnvBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvBackend").finish_non_exhaustive()
    }
}

impl SecretBackend for EnvBackend {
    fn scheme(&self) -> &'static str {
        "env"
    }

    fn open(&self, reference: &SecretRef) -> Result<Arc<dyn SecretSource>, RefError> {
        if reference.key().is_some() {
            return Err(RefError::UnexpectedKey {
                reference: reference.to_string(),
                scheme: "env".to_owned(),
            });
        }
        let name = reference.locator();
        let valid = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        if !name.bytes().all(valid) || name.starts_with(|c: char| c.is_ascii_digit()) {
            // Not shown: it may be the secret itself.
            return Err(RefError::NotAName);
        }
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let captured = opened
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new(Captured((self.lookup)(name).map(Zeroized))));
        Ok(Arc::new(EnvSource {
            name: name.to_owned(),
            captured: Arc::clone(captured),
        }))
    }
}

#[derive(Debug)]
struct EnvSource {
    name: String,
    captured: Arc<Captured>,
}

impl SecretSource for EnvSource {
    fn describe(&self) -> String {
        format!("env:{}", self.name)
    }

    fn fetch(&self) -> BoxFuture<'_, Result<Fetched, SourceError>> {
        Box::pin(async {
            let value = self.captured.0.as_ref().ok_or_else(|| SourceError::Missing {
                what: format!("the environment variable {}", self.name),
            })?;
            Ok(Fetched {
                value: trimmed(Zeroizing::new(value.0.to_vec())),
                version: "start".to_owned(),
                lease: None,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use wallgate_vault::contract::{self, Fixture};

    use super::*;

    #[derive(Debug)]
    struct Env(EnvBackend);

    impl Fixture for Env {
        fn open(&self) -> Result<Arc<dyn SecretSource>, RefError> {
            self.0.open(&SecretRef::parse("env:TOKEN")?)
        }

        fn open_absent(&self) -> Result<Arc<dyn SecretSource>, RefError> {
            self.0.open(&SecretRef::parse("env:NOT_SET")?)
        }

        fn put<'a>(&'a self, _: &'a str) -> BoxFuture<'a, bool> {
            Box::pin(async { false })
        }

        fn take_away(&self) -> BoxFuture<'_, bool> {
            Box::pin(async { false })
        }
    }

    fn backend() -> EnvBackend {
        EnvBackend::new(|name| (name == "TOKEN").then(|| Zeroizing::new(b"canary-in-the-env\n".to_vec())))
    }

    #[tokio::test]
    async fn keeps_the_contract() {
        contract::check(&Env(backend()), "canary-in-the-env")
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_variable_that_is_not_set_is_named() {
        let source = backend().open(&SecretRef::parse("env:NOT_SET").unwrap()).unwrap();
        let error = source.fetch().await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the environment variable NOT_SET does not exist"
        );
    }

    #[test]
    fn refuses_what_is_no_variable_name_without_repeating_it() {
        for text in ["env:ghp-token", "env:1A", "env:A=B", "env:A B"] {
            let error = backend().open(&SecretRef::parse(text).unwrap()).unwrap_err();
            assert!(!error.to_string().contains(text), "{error}");
        }
        let error = backend().open(&SecretRef::parse("env:A#k").unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "`env:A#k` has a key, but env: takes none");
    }
}

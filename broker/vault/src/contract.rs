//! The test that every adapter passes, whatever store is behind it.
//!
//! An adapter's own tests make a [`Fixture`] of its store and run [`check`]; what is particular to that store (sealed
//! vaults, permissions of files) is tested beside it.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::material::{Material, Shape};
use crate::reference::RefError;
use crate::source::{Fetched, SecretSource, SourceError};

/// A store that a test can change.
pub trait Fixture: fmt::Debug {
    /// Opens the fixture's one secret.
    ///
    /// # Errors
    /// None is expected.
    fn open(&self) -> Result<Arc<dyn SecretSource>, RefError>;
    /// Opens a secret that does not exist.
    ///
    /// # Errors
    /// None is expected.
    fn open_absent(&self) -> Result<Arc<dyn SecretSource>, RefError>;
    /// Stores a value under the secret's name. `false` when this store cannot change (an environment).
    fn put<'a>(&'a self, value: &'a str) -> BoxFuture<'a, bool>;
    /// Takes the secret, or the store, away. `false` when that cannot be done.
    fn take_away(&self) -> BoxFuture<'_, bool>;
}

/// What [`check`] found wrong.
#[derive(Debug, thiserror::Error)]
#[error("the adapter breaks the contract: {0}")]
pub struct Broken(String);

/// Runs the contract. The fixture's secret holds `first` to begin with.
///
/// # Errors
/// [`Broken`] with the first claim that does not hold.
pub async fn check(fixture: &dyn Fixture, first: &str) -> Result<(), Broken> {
    let source = fixture
        .open()
        .map_err(|error| broken("its reference opens", &error))?;
    let fetched = fetch(source.as_ref(), "the secret is there").await?;
    require(
        is(&fetched, first)?,
        "it returns the value that was stored, and nothing around it",
    )?;
    require(!fetched.version.is_empty(), "a value has a version")?;
    require(
        !fetched.version.contains(first),
        "a version does not hold the value",
    )?;
    require(
        !source.describe().contains(first),
        "a description does not hold the value",
    )?;
    require(
        !format!("{source:?} {fetched:?}").contains(first),
        "no Debug shows the value",
    )?;

    let again = fetch(source.as_ref(), "the secret is still there").await?;
    require(
        fetched.version == again.version,
        "an unchanged value keeps its version",
    )?;

    let absent = fixture
        .open_absent()
        .map_err(|error| broken("a reference to nothing opens", &error))?;
    match absent.fetch().await {
        Err(error) => {
            require(matches_absent(&error), "what does not exist is reported so")?;
            require(
                !error.to_string().contains(first),
                "an error does not hold a value",
            )?;
        }
        Ok(_) => return Err(Broken("what does not exist returned a value".to_owned())),
    }

    let second = format!("{first}-rotated");
    if fixture.put(&second).await {
        let rotated = fetch(source.as_ref(), "the rotated secret is there").await?;
        require(
            is(&rotated, &second)?,
            "a rotated value is seen at the next fetch",
        )?;
        require(
            rotated.version != fetched.version,
            "a rotated value has another version",
        )?;
        let shown = format!("{} {:?}", rotated.version, rotated);
        require(!shown.contains(&second), "a rotated value is not shown")?;
    }
    if fixture.take_away().await && source.fetch().await.is_ok() {
        return Err(Broken("a secret that was taken away returned a value".to_owned()));
    }
    Ok(())
}

async fn fetch(source: &dyn SecretSource, claim: &str) -> Result<Fetched, Broken> {
    source.fetch().await.map_err(|error| broken(claim, &error))
}

/// Compares through the shape that the proxy uses, so that no other place looks at a secret.
fn is(fetched: &Fetched, expected: &str) -> Result<bool, Broken> {
    let shaped = |value| {
        Material::new("contract".into(), &Shape::Bearer, value, String::new())
            .map_err(|error| broken("the value is usable", &error))
    };
    let expected = wallgate_types::secret::Secret::new(expected.as_bytes().to_vec());
    Ok(shaped(&fetched.value)?.same_as(&shaped(&expected)?))
}

const fn matches_absent(error: &SourceError) -> bool {
    match error {
        SourceError::Missing { .. } | SourceError::Io { .. } => true,
        SourceError::Denied { .. }
        | SourceError::NotAFile { .. }
        | SourceError::TooLarge { .. }
        | SourceError::Malformed { .. }
        | SourceError::Unreachable { .. }
        | SourceError::NotReady { .. }
        | SourceError::Redirected { .. } => false,
    }
}

fn require(holds: bool, claim: &str) -> Result<(), Broken> {
    if holds {
        Ok(())
    } else {
        Err(Broken(claim.to_owned()))
    }
}

fn broken(claim: &str, error: &dyn std::error::Error) -> Broken {
    Broken(format!("{claim}: {error}"))
}

//! Stand-ins that a sandbox may hold where a client insists on a key.
//!
//! A placeholder is `wgp_` and 32 hexadecimal digits: 128 random bits that mean one credential in one sandbox until
//! that sandbox ends. It is worth nothing anywhere else. Whoever sends one that is not theirs, or sends their own
//! where it does not belong, is refused (attacks C02, C08).

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use thiserror::Error;
use wallgate_types::sandbox::SandboxId;

/// What every placeholder begins with.
pub const PREFIX: &str = "wgp_";
/// The most placeholders that are known at a time.
pub const MAX_PLACEHOLDERS: usize = 65_536;

const DIGITS: usize = 32;

/// One placeholder. It is no secret from its own sandbox, and is of no use to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placeholder(u128);

impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:032x}", self.0)
    }
}

impl Placeholder {
    /// Every placeholder in `text`, in any letter case. Something longer than a placeholder counts too, since a
    /// receiver may cut it.
    pub fn all_in(text: &[u8]) -> impl Iterator<Item = Self> {
        text.windows(PREFIX.len() + DIGITS).filter_map(|window| {
            let (prefix, digits) = window.split_at_checked(PREFIX.len())?;
            let named = prefix.eq_ignore_ascii_case(PREFIX.as_bytes());
            named.then(|| Self::parse_digits(digits)).flatten()
        })
    }

    fn parse_digits(digits: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(digits).ok()?;
        // `from_str_radix` would take a sign.
        if !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(Self)
    }
}

/// Whose a placeholder is, from the point of view of the sandbox that sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its own, for this credential.
    Own(Arc<str>),
    /// Another sandbox's.
    Foreign,
    /// Nobody's: made up, or of a sandbox that has ended.
    Unknown,
}

/// The table is full.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("there are {MAX_PLACEHOLDERS} placeholders already")]
pub struct PlaceholdersFull;

/// Every placeholder that means something now.
#[derive(Debug, Default)]
pub struct Placeholders {
    known: RwLock<HashMap<Placeholder, (SandboxId, Arc<str>)>>,
}

impl Placeholders {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A new one for `credential` in `sandbox`, out of 128 random bits.
    ///
    /// # Errors
    /// [`PlaceholdersFull`] at [`MAX_PLACEHOLDERS`].
    pub fn issue(
        &self,
        sandbox: &SandboxId,
        credential: &str,
        random: u128,
    ) -> Result<Placeholder, PlaceholdersFull> {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_PLACEHOLDERS {
            return Err(PlaceholdersFull);
        }
        let placeholder = Placeholder(random);
        known.insert(placeholder, (sandbox.clone(), credential.into()));
        Ok(placeholder)
    }

    /// The sandbox has ended: its placeholders mean nothing from now on.
    pub fn forget(&self, sandbox: &SandboxId) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (owner, _)| owner != sandbox);
    }

    /// What `placeholder` means when `sandbox` sends it.
    #[must_use]
    pub fn standing(&self, placeholder: Placeholder, sandbox: &SandboxId) -> Standing {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        match known.get(&placeholder) {
            Some((owner, credential)) if owner == sandbox => Standing::Own(Arc::clone(credential)),
            Some(_) => Standing::Foreign,
            None => Standing::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_is_of_one_sandbox_and_dies_with_it() {
        let (a, b): (SandboxId, SandboxId) = ("a".parse().unwrap(), "b".parse().unwrap());
        let table = Placeholders::new();
        let mine = table.issue(&a, "github", 0x0123_4567).unwrap();
        assert_eq!(mine.to_string(), "wgp_00000000000000000000000001234567");
        assert_eq!(table.standing(mine, &a), Standing::Own("github".into()));
        assert_eq!(table.standing(mine, &b), Standing::Foreign);
        table.forget(&a);
        assert_eq!(table.standing(mine, &a), Standing::Unknown);
    }

    #[test]
    fn placeholders_are_found_wherever_they_stand() {
        let one = format!("{}", Placeholder(7));
        let rows = [
            (format!("Bearer {one}"), 1),
            (one.to_uppercase(), 1),
            (format!("{one}0"), 1),
            (format!("x{one}{one}"), 2),
            ("wgp_000".to_owned(), 0),
            ("wgp_+0000000000000000000000000000007".to_owned(), 0),
            (String::new(), 0),
        ];
        for (text, expected) in rows {
            let found: Vec<_> = Placeholder::all_in(text.as_bytes()).collect();
            assert_eq!(found, vec![Placeholder(7); expected], "{text}");
        }
    }
}

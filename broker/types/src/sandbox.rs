//! Who is asking.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest [`SandboxId`], in bytes.
pub const MAX_SANDBOX_ID_BYTES: usize = 63;

/// A sandbox's name: 1 to 63 bytes of `a-z`, `0-9` and `-`, beginning and ending with a letter or digit.
///
/// It is chosen by the operator when the sandbox is attached, never by the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

/// Why a string is no [`SandboxId`].
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SandboxIdError {
    /// Empty, or longer than [`MAX_SANDBOX_ID_BYTES`].
    #[error("a sandbox id has 1 to {MAX_SANDBOX_ID_BYTES} characters, this one has {0}")]
    Length(usize),
    /// A byte outside `a-z`, `0-9` and `-`, or a hyphen at either end.
    #[error("a sandbox id consists of a-z, 0-9 and inner hyphens")]
    Character,
}

impl SandboxId {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxId {
    type Err = SandboxIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() || text.len() > MAX_SANDBOX_ID_BYTES {
            return Err(SandboxIdError::Length(text.len()));
        }
        let allowed = text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if !allowed || text.starts_with('-') || text.ends_with('-') {
            return Err(SandboxIdError::Character);
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for SandboxId {
    type Error = SandboxIdError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> Self {
        id.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How the broker knows who is asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdentitySource {
    /// The interface that the frame came in on: nothing that a sandbox sends can change it.
    Tap,
    /// The explicit-proxy listener that accepted the connection: weaker, since anything that reaches it is trusted.
    Listener,
}

/// What is fixed about a sandbox for as long as it is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxFacts {
    /// Its name.
    pub id: SandboxId,
    /// The operator's labels.
    pub labels: BTreeMap<String, String>,
    /// How it is recognised.
    pub source: IdentitySource,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_lower_case_letters_digits_and_inner_hyphens() {
        let rows = [
            ("agent-7", None),
            ("a", None),
            ("", Some(SandboxIdError::Length(0))),
            ("Agent", Some(SandboxIdError::Character)),
            ("-a", Some(SandboxIdError::Character)),
            ("a-", Some(SandboxIdError::Character)),
            ("a/b", Some(SandboxIdError::Character)),
            ("a\n", Some(SandboxIdError::Character)),
        ];
        for (text, expected) in rows {
            assert_eq!(text.parse::<SandboxId>().err(), expected, "{text:?}");
        }
        assert_eq!(
            "x".repeat(64).parse::<SandboxId>(),
            Err(SandboxIdError::Length(64))
        );
    }
}

//! What a request would do to the service it is sent to.

use serde::Serialize;

/// What kind of effect an operation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Fetches one named thing and changes nothing.
    Read,
    /// Changes something, or makes a token.
    Write,
    /// Looks something up by free text.
    Search,
    /// Enumerates what there is.
    List,
    /// Manages the service itself.
    Admin,
    /// Makes the service fetch an address of the caller's choice.
    FetchUrl,
    /// Not a shape that the grammar knows. Counts as a write.
    Unknown,
}

impl Action {
    /// The name that policy sees.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Search => "search",
            Self::List => "list",
            Self::Admin => "admin",
            Self::FetchUrl => "fetch_url",
            Self::Unknown => "unknown",
        }
    }
}

/// A request, named by the grammar of the service that it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// The grammar that named it: `npm`, `pypi`, `cargo`, `git` …, or `none` for a host without a profile.
    pub ecosystem: &'static str,
    /// Its effect.
    pub action: Action,
    /// The operation's own name, such as `npm.tarball` or `git.push`; `unknown` when no rule of the grammar matched.
    pub name: &'static str,
    /// The package, crate or repository that it is about.
    pub package: Option<String>,
    /// The version or revision that it is about.
    pub version: Option<String>,
}

impl Operation {
    /// What a request is when no grammar knows it.
    #[must_use]
    pub const fn unknown(ecosystem: &'static str) -> Self {
        Self {
            ecosystem,
            action: Action::Unknown,
            name: "unknown",
            package: None,
            version: None,
        }
    }
}

//! How a command ends: one sentence on standard error and an exit code that a script can rely on.
//!
//! The numbers are those of `sysexits.h` where it has one, so that they stay clear of what a sandboxed command is
//! likely to return by itself.

use std::fmt;
use std::process::ExitCode;

/// What kind of failure ended a command. The number is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// A check that was asked for did not hold: a ledger that does not verify, a policy test that fails.
    NotHeld,
    /// The command line or the configuration is wrong, the policy bundle included (`EX_USAGE`).
    Usage,
    /// This host or this user cannot do it (`EX_UNAVAILABLE`).
    Unavailable,
    /// wallgate itself failed (`EX_SOFTWARE`).
    Internal,
    /// The state directory or the ledger in it cannot be used (`EX_CANTCREAT`).
    State,
    /// A secret cannot be read (`EX_NOPERM`).
    Secret,
}

impl Exit {
    /// The exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::NotHeld => 1,
            Self::Usage => 64,
            Self::Unavailable => 69,
            Self::Internal => 70,
            Self::State => 73,
            Self::Secret => 77,
        }
    }
}

/// A failure as the operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Failure {
    /// Decides the exit code.
    pub exit: Exit,
    /// One sentence, without a source chain and without anything secret.
    pub message: String,
}

impl Failure {
    /// A failure of this kind, told in one sentence.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self {
            exit,
            message: message.to_string(),
        }
    }

    /// [`Exit::Internal`].
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(Exit::Internal, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<&Failure> for ExitCode {
    fn from(failure: &Failure) -> Self {
        Self::from(failure.exit.code())
    }
}

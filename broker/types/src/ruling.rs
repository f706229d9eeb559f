//! What policy said.

use serde::{Deserialize, Serialize};

/// The three things that policy can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Let it out.
    Allow,
    /// Refuse it.
    Deny,
    /// Refuse it until a person grants it.
    Ask,
}

impl Verdict {
    /// The name that policy uses and the ledger keeps.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Ask => "ask",
        }
    }
}

/// Bounds that a rule sets on one request; `None` leaves the broker's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulingLimits {
    /// The largest request body, in bytes.
    pub request_bytes: Option<u64>,
    /// The largest response body, in bytes.
    pub response_bytes: Option<u64>,
}

/// `data.wallgate.decision`, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// Allow, deny or ask.
    pub verdict: Verdict,
    /// The rule that said so. For what the broker refuses by itself it begins with `wallgate.`.
    pub rule: String,
    /// Why, in one sentence that a person can act on.
    pub reason: String,
    /// Names of the credentials to inject, in order.
    pub credentials: Vec<String>,
    /// What the sandbox is remembered by from now on.
    pub add_taints: Vec<String>,
    /// Bounds on this request.
    pub limits: RulingLimits,
    /// Rebuild a mirror read from its parsed operation.
    pub canonicalise: bool,
    /// Relay undecrypted.
    pub passthrough: bool,
}

impl Ruling {
    /// A refusal made by wallgate itself: no rule of the operator's was asked, or its answer was unusable.
    #[must_use]
    pub fn refusal(rule: &str, reason: &str) -> Self {
        Self {
            verdict: Verdict::Deny,
            rule: rule.to_owned(),
            reason: reason.to_owned(),
            credentials: Vec::new(),
            add_taints: Vec::new(),
            limits: RulingLimits::default(),
            canonicalise: false,
            passthrough: false,
        }
    }
}

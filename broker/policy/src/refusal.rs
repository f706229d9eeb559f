//! The refusals that this crate makes by itself, each with its stable rule name and its sentence.
//!
//! A bundle's own rules may not begin with `wallgate.`, so whoever reads such a rule in a record knows that no rule of
//! the operator's said it.

use wallgate_types::ruling::Ruling;

/// A rule name and what to tell whoever was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The stable name, `wallgate.…`.
    pub rule: &'static str,
    /// One sentence that a person can act on.
    pub reason: &'static str,
}

/// What every rule name of this module begins with, and no rule of a bundle may.
pub const RESERVED_PREFIX: &str = "wallgate.";

/// The bundle said nothing.
pub const UNDEFINED: Refusal = Refusal {
    rule: "wallgate.policy_undefined",
    reason: "The policy has no answer for this request, so it is denied; ask the operator to add a default decision.",
};
/// The bundle failed.
pub const ERROR: Refusal = Refusal {
    rule: "wallgate.policy_error",
    reason: "The policy failed while it looked at this request, so it is denied; the operator finds the error in the log.",
};
/// The bundle said something that is no decision.
pub const TYPE: Refusal = Refusal {
    rule: "wallgate.policy_type",
    reason: "The policy's answer is not a valid decision, so this request is denied; the operator finds what is wrong with it in the log.",
};
/// The bundle took too long.
pub const TIMEOUT: Refusal = Refusal {
    rule: "wallgate.policy_timeout",
    reason: "The policy took too long to decide this request, so it is denied; retrying will not help until the operator simplifies it.",
};
/// The bundle took too much memory.
pub const MEMORY: Refusal = Refusal {
    rule: "wallgate.policy_memory",
    reason: "The policy needed too much memory to decide this request, so it is denied; retrying will not help until the operator simplifies it.",
};
/// The evaluator itself failed.
pub const PANIC: Refusal = Refusal {
    rule: "wallgate.policy_panic",
    reason: "The policy engine failed on this request, so it is denied; this is a defect that the operator should report.",
};
/// The service's name list does not have this package.
pub const NAME_NOT_LISTED: Refusal = Refusal {
    rule: "wallgate.name_not_listed",
    reason: "What this asks for is not in the lockfile that the operator gave for this mirror; use a listed package, or ask for it to be added.",
};

/// All of them.
pub const ALL: [Refusal; 7] = [UNDEFINED, ERROR, TYPE, TIMEOUT, MEMORY, PANIC, NAME_NOT_LISTED];

impl Refusal {
    /// The refusal as a ruling.
    #[must_use]
    pub fn ruling(&self) -> Ruling {
        Ruling::refusal(self.rule, self.reason)
    }
}

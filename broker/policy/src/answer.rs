//! What a bundle answered → a ruling, strictly: an unknown key, a wrong type or a limit exceeded is no decision.
//!
//! A misspelt key must not widen what is let out (`"limit"` for `"limits"`), so nothing is ignored.

use std::collections::BTreeSet;

use regorus::Value;
use wallgate_types::ruling::{Ruling, RulingLimits, Verdict};

use crate::policy::BodyWant;
use crate::program::EvalError;
use crate::refusal::RESERVED_PREFIX;

/// The longest rule name, in bytes.
const MAX_RULE_BYTES: usize = 128;
/// The longest reason, in bytes.
const MAX_REASON_BYTES: usize = 1024;
/// The most credentials or taints that one decision names.
const MAX_NAMES: usize = 32;
/// The longest credential's or taint's name, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// The largest body that a bundle may ask to see.
const MAX_WANTED_BODY_BYTES: u64 = 16 * 1024 * 1024;

/// Reads `data.wallgate.decision`.
pub(crate) fn ruling(value: &Value) -> Result<Ruling, EvalError> {
    let mut fields = Fields::of(value, "the decision")?;
    let verdict = match fields.text("verdict")?.as_deref() {
        Some("allow") => Verdict::Allow,
        Some("deny") => Verdict::Deny,
        Some("ask") => Verdict::Ask,
        Some(_) => return Err(wrong("verdict is not \"allow\", \"deny\" or \"ask\"")),
        None => return Err(wrong("it has no verdict")),
    };
    let rule = fields.text("rule")?.ok_or_else(|| wrong("it has no rule"))?;
    check_rule(&rule)?;
    let reason = fields.text("reason")?.unwrap_or_default();
    if reason.len() > MAX_REASON_BYTES || reason.chars().any(char::is_control) {
        return Err(wrong(
            "reason is longer than 1024 bytes, or has control characters",
        ));
    }
    let ruling = Ruling {
        verdict,
        rule,
        reason,
        credentials: fields.names("credentials")?,
        add_taints: fields.names("add_taints")?,
        limits: fields.limits()?,
        canonicalise: fields.flag("canonicalise")?,
        passthrough: fields.flag("passthrough")?,
    };
    // Part of the contract, but nothing redacts yet: a rule that relies on it must not let anything out.
    if !fields.names("redact")?.is_empty() {
        return Err(wrong("redact is not supported yet"));
    }
    fields.finish()?;
    if ruling.passthrough && !ruling.credentials.is_empty() {
        return Err(wrong(
            "a credential cannot be injected into what is passed through",
        ));
    }
    Ok(ruling)
}

/// Reads `data.wallgate.body`.
pub(crate) fn body_want(value: &Value) -> Result<BodyWant, EvalError> {
    let mut fields = Fields::of(value, "the body rule's value")?;
    let max_bytes = fields
        .count("max_bytes")?
        .ok_or_else(|| wrong("the body rule's value has no max_bytes"))?;
    fields.finish()?;
    if max_bytes == 0 || max_bytes > MAX_WANTED_BODY_BYTES {
        return Err(wrong("the body rule's max_bytes is not between 1 and 16 MiB"));
    }
    Ok(BodyWant { max_bytes })
}

fn wrong(message: &str) -> EvalError {
    EvalError::Type(message.to_owned())
}

/// `github.read`: a word of printable ASCII.
fn check_rule(rule: &str) -> Result<(), EvalError> {
    let characters = rule.bytes().all(|b| b.is_ascii_graphic());
    if rule.is_empty() || rule.len() > MAX_RULE_BYTES || !characters {
        return Err(wrong("rule is not one short word of printable ASCII"));
    }
    if rule.starts_with(RESERVED_PREFIX) {
        return Err(wrong(
            "rule begins with `wallgate.`, which is kept for wallgate itself",
        ));
    }
    Ok(())
}

/// An object whose keys are taken one by one; what nobody took is an error.
struct Fields<'a> {
    object: &'a Value,
    taken: BTreeSet<&'static str>,
}

impl<'a> Fields<'a> {
    fn of(object: &'a Value, what: &str) -> Result<Self, EvalError> {
        match object {
            Value::Object(_) => Ok(Self {
                object,
                taken: BTreeSet::new(),
            }),
            _ => Err(EvalError::Type(format!("{what} is not an object"))),
        }
    }

    fn take(&mut self, key: &'static str) -> Option<&'a Value> {
        self.taken.insert(key);
        self.object.as_object().ok()?.get(&Value::from(key))
    }

    fn text(&mut self, key: &'static str) -> Result<Option<String>, EvalError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.to_string())),
            Some(_) => Err(EvalError::Type(format!("{key} is not a string"))),
        }
    }

    fn flag(&mut self, key: &'static str) -> Result<bool, EvalError> {
        match self.take(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(EvalError::Type(format!("{key} is not true or false"))),
        }
    }

    fn count(&mut self, key: &'static str) -> Result<Option<u64>, EvalError> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        match value {
            Value::Number(_) => value
                .as_u64()
                .map(Some)
                .map_err(|_not_whole| EvalError::Type(format!("{key} is not a whole number of bytes"))),
            _ => Err(EvalError::Type(format!("{key} is not a number"))),
        }
    }

    /// An array, whose order counts, or a set.
    fn names(&mut self, key: &'static str) -> Result<Vec<String>, EvalError> {
        let items: Vec<&Value> = match self.take(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(items)) => items.iter().collect(),
            Some(Value::Set(items)) => items.iter().collect(),
            Some(_) => return Err(EvalError::Type(format!("{key} is not a list of names"))),
        };
        if items.len() > MAX_NAMES {
            return Err(EvalError::Type(format!("{key} has more than {MAX_NAMES} names")));
        }
        let mut names = Vec::with_capacity(items.len());
        for item in items {
            match item {
                Value::String(name)
                    if !name.is_empty()
                        && name.len() <= MAX_NAME_BYTES
                        && !name.chars().any(char::is_control) =>
                {
                    if !names.contains(&name.to_string()) {
                        names.push(name.to_string());
                    }
                }
                _ => return Err(EvalError::Type(format!("{key} has something that is not a name"))),
            }
        }
        Ok(names)
    }

    fn limits(&mut self) -> Result<RulingLimits, EvalError> {
        let Some(value) = self.take("limits") else {
            return Ok(RulingLimits::default());
        };
        let mut fields = Fields::of(value, "limits")?;
        let limits = RulingLimits {
            request_bytes: fields.count("request_bytes")?,
            response_bytes: fields.count("response_bytes")?,
        };
        fields.finish()?;
        Ok(limits)
    }

    fn finish(self) -> Result<(), EvalError> {
        let Ok(object) = self.object.as_object() else {
            return Ok(());
        };
        for (key, _) in object.iter() {
            let known = matches!(key, Value::String(key) if self.taken.contains(&**key));
            if !known {
                return Err(EvalError::Type(format!("the key {key} is unknown")));
            }
        }
        Ok(())
    }
}

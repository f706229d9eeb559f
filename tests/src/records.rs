//! What the ledger holds, as `wallgate ledger export` says it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::succeed;
use crate::wallgate::binary;

/// A decision, with the outcome that belongs to it.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Its place in the ledger.
    pub index: u64,
    /// The decision's body.
    pub decision: Value,
    /// The outcome's body.
    pub outcome: Option<Value>,
}

impl Decision {
    /// A field of the decision, as text; empty when it is not there.
    #[must_use]
    pub fn text(&self, field: &str) -> &str {
        self.decision
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// A field of the outcome, as text; empty when it is not there.
    #[must_use]
    pub fn outcome_text(&self, field: &str) -> &str {
        self.outcome
            .as_ref()
            .and_then(|outcome| outcome.get(field))
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// A number of the outcome; 0 when it is not there.
    #[must_use]
    pub fn outcome_number(&self, field: &str) -> u64 {
        self.outcome
            .as_ref()
            .and_then(|outcome| outcome.get(field))
            .and_then(Value::as_u64)
            .unwrap_or_default()
    }
}

/// Everything that a ledger holds.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Each record as it came, one line of JSON each.
    pub lines: Vec<String>,
    /// The decisions.
    pub decisions: Vec<Decision>,
    /// The bodies of the control records.
    pub controls: Vec<Value>,
}

impl Records {
    /// Reads the ledger of a state directory.
    ///
    /// # Errors
    ///
    /// When `wallgate ledger export` fails or prints something else than records.
    pub fn read(state: &Path) -> Result<Self> {
        let output = succeed(
            Command::new(binary()?)
                .args(["ledger", "export", "--state"])
                .arg(state),
        )
        .context("cannot export the ledger")?;
        Self::parse(&output)
    }

    fn parse(output: &str) -> Result<Self> {
        let mut records = Self::default();
        for line in output.lines().filter(|line| !line.is_empty()) {
            records.lines.push(line.to_owned());
            let value: Value = serde_json::from_str(line).with_context(|| format!("not a record: {line}"))?;
            match value.get("kind").and_then(Value::as_str) {
                Some("decision") => records.decisions.push(Decision {
                    index: value
                        .get("seq")
                        .and_then(Value::as_u64)
                        .context("a record without seq")?,
                    decision: value.get("body").cloned().unwrap_or_default(),
                    outcome: None,
                }),
                Some("outcome") => {
                    let body = value.get("body").cloned().unwrap_or_default();
                    let request = body.get("request_id").cloned().unwrap_or_default();
                    let of = records
                        .decisions
                        .iter_mut()
                        .find(|kept| kept.decision.get("request_id") == Some(&request));
                    match of {
                        Some(decision) => decision.outcome = Some(body),
                        None => bail!("an outcome without a decision: {line}"),
                    }
                }
                Some("control") => records
                    .controls
                    .push(value.get("body").cloned().unwrap_or_default()),
                _ => bail!("not a record: {line}"),
            }
        }
        Ok(records)
    }

    /// The decisions about requests to a host, name lookups aside.
    #[must_use]
    pub fn requests_to(&self, host: &str) -> Vec<&Decision> {
        self.decisions
            .iter()
            .filter(|decision| decision.text("host") == host && decision.text("protocol") != "dns")
            .collect()
    }

    /// The one decision that satisfies `wanted`.
    ///
    /// # Errors
    ///
    /// When there is none, or more than one.
    pub fn only(&self, what: &str, wanted: impl Fn(&Decision) -> bool) -> Result<&Decision> {
        let mut found = self.decisions.iter().filter(|decision| wanted(decision));
        match (found.next(), found.next()) {
            (Some(decision), None) => Ok(decision),
            (None, _) => bail!("no record of {what}; there are: {}", self.summary()),
            (Some(_), Some(_)) => bail!("more than one record of {what}; there are: {}", self.summary()),
        }
    }

    /// Whether a control event of this kind was recorded.
    #[must_use]
    pub fn has_event(&self, kind: &str) -> bool {
        self.controls
            .iter()
            .any(|control| control.get("event").and_then(Value::as_str) == Some(kind))
    }

    /// One line a decision, for a failing test.
    #[must_use]
    pub fn summary(&self) -> String {
        let line = |kept: &Decision| {
            format!(
                "\n  {} {} {} {}{} {} {} {} -> {} {}",
                kept.index,
                kept.text("protocol"),
                kept.text("method"),
                kept.text("host"),
                kept.text("path"),
                kept.text("operation"),
                kept.text("verdict"),
                kept.text("rule"),
                kept.outcome_text("result"),
                kept.outcome_text("error"),
            )
        };
        self.decisions.iter().map(line).collect()
    }
}

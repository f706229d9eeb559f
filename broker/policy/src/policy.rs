//! A loaded bundle, and what it says about a request.
//!
//! ```text
//!   RequestFacts + Situation ─▶ input ─▶ program ─▶ answer ─▶ Ruling ─▶ Allowed<T> | Denied<T>
//!                                          │ error, undefined, wrong type, timeout, panic
//!                                          └──────────────▶ Denied<T>, rule wallgate.policy_*
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use regorus::Value;
use wallgate_types::clock::Timestamp;
use wallgate_types::request::{RequestFacts, Subject};
use wallgate_types::ruling::{Ruling, Verdict};

use crate::answer;
use crate::bundle::{Bundle, BundleDigest, BundleError};
use crate::classify;
use crate::decided::{Allowed, Decided, Denied};
use crate::input;
use crate::program::{Compiled, Entry, EvalError};

/// What a bundle may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyLimits {
    /// The longest evaluation, by the wall clock.
    pub eval_timeout: Duration,
    /// The most memory that one evaluation may add, in bytes.
    pub eval_memory_bytes: u64,
    /// The most instructions of one evaluation: a bound that does not depend on the machine's load.
    pub eval_instructions: usize,
    /// The most files of a bundle.
    pub bundle_files: usize,
    /// The most bytes of a bundle's files together.
    pub bundle_bytes: u64,
}

impl Default for PolicyLimits {
    fn default() -> Self {
        Self {
            eval_timeout: Duration::from_millis(20),
            eval_memory_bytes: 16 * 1024 * 1024,
            eval_instructions: 2_000_000,
            bundle_files: 1_000,
            bundle_bytes: 64 * 1024 * 1024,
        }
    }
}

/// What policy sees besides the request: what is remembered of its sandbox, and the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Situation {
    /// What earlier rulings remembered the sandbox by.
    pub taints: Vec<String>,
    /// What it used.
    pub usage: Usage,
    /// Now.
    pub now: Timestamp,
}

/// Counts of a sandbox over sliding windows: from the window's name (`1m`, `1h`) to the count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests.
    pub requests: BTreeMap<String, u64>,
    /// Body bytes sent upstream.
    pub bytes_out: BTreeMap<String, u64>,
    /// Denials.
    pub denied: BTreeMap<String, u64>,
    /// Different names that were looked up.
    pub distinct_names: BTreeMap<String, u64>,
    /// Answers of 404 or 410.
    pub not_found: BTreeMap<String, u64>,
}

/// That policy must see a request's body to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BodyWant {
    /// The most bytes that it looks at. A longer body is denied.
    pub max_bytes: u64,
}

/// What a bundle said of one input, for `wallgate policy eval`.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// What would happen.
    pub ruling: Ruling,
    /// What the rule returned, when it returned something.
    pub document: Option<serde_json::Value>,
    /// Why the answer is not usable, when it is not.
    pub error: Option<EvalError>,
}

/// A compiled bundle. It does not change; a reload makes another one.
#[derive(Debug)]
pub struct Policy {
    digest: Arc<BundleDigest>,
    revision: Option<String>,
    compiled: Compiled,
}

impl Policy {
    /// Reads and compiles the bundle in the directory `path`.
    ///
    /// # Errors
    /// [`BundleError`]: nothing is half loaded.
    pub fn load(path: &Path, limits: &PolicyLimits) -> Result<Self, BundleError> {
        Self::load_with_data(path, &[], limits)
    }

    /// Like [`Policy::load`], with the operator's own data files laid over the bundle's `data.json`: objects are merged
    /// key by key, anything else is replaced, `null` removes. They are part of the digest.
    ///
    /// # Errors
    /// [`BundleError`]: nothing is half loaded.
    pub fn load_with_data(path: &Path, data: &[PathBuf], limits: &PolicyLimits) -> Result<Self, BundleError> {
        let bundle = Bundle::read(path, data, limits)?;
        Self::of(&bundle, limits)
    }

    pub(crate) fn of(bundle: &Bundle, limits: &PolicyLimits) -> Result<Self, BundleError> {
        let (compiled, _) = Compiled::new(bundle, limits)?;
        Ok(Self {
            digest: Arc::new(bundle.digest.clone()),
            revision: bundle.manifest.revision.clone(),
            compiled,
        })
    }

    /// The name of exactly this policy.
    #[must_use]
    pub fn digest(&self) -> &BundleDigest {
        &self.digest
    }

    /// The revision that the bundle's `.manifest` gives it.
    #[must_use]
    pub fn revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }

    /// Decides. It never fails: whatever goes wrong is a denial by a rule of [`crate::refusal`].
    pub fn decide<T: Subject>(&self, subject: T, situation: &Situation) -> Decided<T> {
        let input = input::build(subject.facts(), situation);
        let ruling = self
            .ruling(input)
            .unwrap_or_else(|error| error.refusal().ruling());
        match ruling.verdict {
            Verdict::Allow => Decided::Allowed(Allowed::new(subject, ruling, Arc::clone(&self.digest))),
            Verdict::Deny | Verdict::Ask => {
                Decided::Denied(Denied::new(subject, ruling, Arc::clone(&self.digest)))
            }
        }
    }

    /// Whether this request's body must be read before it is decided: because the bundle says so (rule
    /// `data.wallgate.body`, asked without the body), or because only the body tells a read of a mirror from a write (npm's
    /// audits, git's upload-pack). `None`: stream it.
    ///
    /// # Errors
    /// When the rule fails; the request is to be denied by [`EvalError::refusal`].
    pub fn wants_body(
        &self,
        facts: &RequestFacts,
        situation: &Situation,
    ) -> Result<Option<BodyWant>, EvalError> {
        let grammar = classify::wanted_body(&facts.operation).map(|max_bytes| BodyWant { max_bytes });
        if !self.compiled.has_body_rule() {
            return Ok(grammar);
        }
        let input = input::build(facts, situation);
        match self.compiled.evaluate(Entry::Body, input) {
            Ok(value) => answer::body_want(&value).map(|bundle| grammar.max(Some(bundle))),
            Err(EvalError::Undefined) => Ok(grammar),
            Err(error) => Err(error),
        }
    }

    /// What the bundle says of an input that somebody wrote down.
    #[must_use]
    pub fn eval_json(&self, input: &serde_json::Value) -> Evaluation {
        let input = Value::from(input.clone());
        let answer = self.compiled.evaluate(Entry::Decision, input.clone());
        let document = answer
            .as_ref()
            .ok()
            .and_then(|answer| serde_json::to_value(answer).ok());
        match answer.and_then(|answer| self.accept(input, &answer)) {
            Ok(ruling) => Evaluation {
                ruling,
                document,
                error: None,
            },
            Err(error) => Evaluation {
                ruling: error.refusal().ruling(),
                document,
                error: Some(error),
            },
        }
    }

    fn ruling(&self, input: Value) -> Result<Ruling, EvalError> {
        if !self.compiled.needs_confirmation() {
            return answer::ruling(&self.compiled.evaluate(Entry::Decision, input)?);
        }
        let answer = self.compiled.evaluate(Entry::Decision, input.clone())?;
        self.accept(input, &answer)
    }

    fn accept(&self, input: Value, answer: &Value) -> Result<Ruling, EvalError> {
        let ruling = answer::ruling(answer)?;
        if ruling.verdict == Verdict::Allow {
            self.compiled.confirm(input, answer)?;
        }
        Ok(ruling)
    }
}

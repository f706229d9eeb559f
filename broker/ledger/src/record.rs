//! The stored record: an envelope around a body.
//!
//! ```text
//!   {"body":{…},                 what happened: DecisionRecord, OutcomeRecord, or {"detail":…,"event":…,"sandbox":…}
//!    "boot":"<16 hex>",          random for each start: which run wrote it
//!    "epoch":n,                  which signing key is in force, from 0
//!    "kind":"decision",          or "outcome", "control"
//!    "ledger":"<32 hex>",        random for each ledger
//!    "mono_us":n,                monotonic time of that run, in microseconds
//!    "seq":n,                    its place in the log, from 0; no clock has a say in it
//!    "time_ms":n,                wall-clock time, Unix milliseconds; may go back, which is itself recorded
//!    "v":1}                      this schema
//! ```
//!
//! Without the white space, in exactly this order: that is JCS (RFC 8785), and the bytes are hashed as stored, never made
//! anew. The request id is stored in hexadecimal; it joins an outcome to its decision.

use std::fmt::Write as _;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;
use wallgate_types::sandbox::SandboxId;

use crate::canonical::{self, CanonicalError};
use crate::limits::MAX_RECORD_BYTES;

/// The version of the envelope.
pub const SCHEMA: u32 = 1;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// What policy said, before anything was sent.
    Decision,
    /// What became of it.
    Outcome,
    /// Everything else: start, stop, attach, bundle, key rotation, quarantine …
    Control,
}

impl Kind {
    /// The stored word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Decision => "decision",
            Self::Outcome => "outcome",
            Self::Control => "control",
        }
    }
}

/// A word that is no [`Kind`].
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a record's kind is decision, outcome or control, not {0:?}")]
pub struct KindError(String);

impl FromStr for Kind {
    type Err = KindError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "decision" => Ok(Self::Decision),
            "outcome" => Ok(Self::Outcome),
            "control" => Ok(Self::Control),
            other => Err(KindError(other.to_owned())),
        }
    }
}

/// Something that happened to the wall itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlEvent {
    /// What, in snake case: `attach`, `bundle`, `quarantine` …
    pub kind: &'static str,
    /// The sandbox that it is about.
    pub sandbox: Option<SandboxId>,
    /// The facts. Never a secret: only names, versions, digests and counts.
    pub detail: Value,
}

impl ControlEvent {
    pub(crate) fn into_body(self) -> Result<Vec<u8>, CanonicalError> {
        let mut members = Map::new();
        members.insert("detail".to_owned(), self.detail);
        members.insert("event".to_owned(), self.kind.into());
        if let Some(sandbox) = self.sandbox {
            members.insert("sandbox".to_owned(), sandbox.as_str().into());
        }
        canonical::body(Value::Object(members))
    }
}

/// Everything around a body but the place and the time.
#[derive(Clone, Debug)]
pub(crate) struct Author {
    pub(crate) ledger: String,
    pub(crate) boot: String,
    pub(crate) epoch: u64,
}

/// When something was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) time_ms: u64,
    pub(crate) mono_us: u64,
}

/// The stored bytes. `body` is canonical, and so is what comes out.
pub(crate) fn seal(author: &Author, kind: Kind, seq: u64, moment: Moment, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len().saturating_add(256));
    bytes.extend_from_slice(b"{\"body\":");
    bytes.extend_from_slice(body);
    let mut tail = String::with_capacity(224);
    // Writing to a String cannot fail.
    let _infallible = write!(
        tail,
        ",\"boot\":\"{}\",\"epoch\":{},\"kind\":\"{}\",\"ledger\":\"{}\",\"mono_us\":{},\"seq\":{seq},\"time_ms\":{},\"v\":{SCHEMA}}}",
        author.boot,
        author.epoch,
        kind.as_str(),
        author.ledger,
        moment.mono_us,
        moment.time_ms,
    );
    bytes.extend_from_slice(tail.as_bytes());
    bytes
}

/// A record, read.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// What happened.
    pub body: Value,
    /// Which run wrote it.
    pub boot: String,
    /// Which key was in force.
    pub epoch: u64,
    /// What it is about.
    pub kind: Kind,
    /// Which ledger it belongs to.
    pub ledger: String,
    /// Monotonic time of the run, in microseconds.
    pub mono_us: u64,
    /// Its place.
    pub seq: u64,
    /// Wall-clock time, Unix milliseconds.
    pub time_ms: u64,
    /// The schema.
    pub v: u32,
}

/// Why stored bytes are no record.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RecordError {
    /// Longer than any record.
    #[error("a record has at most {MAX_RECORD_BYTES} bytes")]
    TooLong,
    /// Not JSON, or not the envelope.
    #[error("not a record: {0}")]
    Json(String),
    /// Another spelling than the canonical one: duplicate keys, white space, order.
    #[error("the record is not in canonical form")]
    NotCanonical,
    /// Written by another version of this program.
    #[error("the record has schema version {0}, this program reads {SCHEMA}")]
    Version(u32),
}

impl Envelope {
    /// Reads stored bytes, strictly: only the one canonical spelling is a record.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.len() > MAX_RECORD_BYTES {
            return Err(RecordError::TooLong);
        }
        let value: Value =
            serde_json::from_slice(bytes).map_err(|error| RecordError::Json(error.to_string()))?;
        let canonical =
            serde_json_canonicalizer::to_vec(&value).map_err(|error| RecordError::Json(error.to_string()))?;
        if canonical != bytes {
            return Err(RecordError::NotCanonical);
        }
        let record: Self =
            serde_json::from_value(value).map_err(|error| RecordError::Json(error.to_string()))?;
        if record.v == SCHEMA {
            Ok(record)
        } else {
            Err(RecordError::Version(record.v))
        }
    }

    /// The request that a decision or an outcome is about.
    #[must_use]
    pub fn request_id(&self) -> Option<u128> {
        match self.kind {
            Kind::Decision | Kind::Outcome => parse_request_id(self.text("request_id")?),
            Kind::Control => None,
        }
    }

    /// A text of the body.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.body.get(key).and_then(Value::as_str)
    }

    /// The name of a control record's event.
    #[must_use]
    pub fn event(&self) -> Option<&str> {
        match self.kind {
            Kind::Control => self.text("event"),
            Kind::Decision | Kind::Outcome => None,
        }
    }
}

/// Reads a request id as it is stored: 32 lower-case hexadecimal digits.
#[must_use]
pub fn parse_request_id(text: &str) -> Option<u128> {
    let lower = text
        .bytes()
        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if text.len() == 32 && lower {
        u128::from_str_radix(text, 16).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn author() -> Author {
        Author {
            ledger: "00112233445566778899aabbccddeeff".into(),
            boot: "0123456789abcdef".into(),
            epoch: 0,
        }
    }

    const MOMENT: Moment = Moment {
        time_ms: 1_764_547_200_000,
        mono_us: 42,
    };

    #[test]
    fn a_record_has_these_bytes_and_reads_as_itself() {
        let event = ControlEvent {
            kind: "attach",
            sandbox: Some("agent-7".parse().unwrap()),
            detail: json!({"interface": "tap0"}),
        };
        let stored = seal(&author(), Kind::Control, 3, MOMENT, &event.into_body().unwrap());
        let golden = r#"{"body":{"detail":{"interface":"tap0"},"event":"attach","sandbox":"agent-7"},"boot":"0123456789abcdef","epoch":0,"kind":"control","ledger":"00112233445566778899aabbccddeeff","mono_us":42,"seq":3,"time_ms":1764547200000,"v":1}"#;
        assert_eq!(std::str::from_utf8(&stored).unwrap(), golden);
        let read = Envelope::parse(&stored).unwrap();
        assert_eq!((read.seq, read.event()), (3, Some("attach")));
    }

    #[test]
    fn only_the_canonical_spelling_is_a_record() {
        let stored = seal(&author(), Kind::Control, 3, MOMENT, b"{\"event\":\"x\"}");
        let text = std::str::from_utf8(&stored).unwrap();
        assert!(Envelope::parse(&stored).is_ok());
        let rows = [
            text.replace(':', ": "),
            text.replace("\"seq\":3", "\"seq\":3,\"seq\":4"),
            text.replace("\"seq\":3", "\"seq\":3.0"),
            text.replace("\"event\":\"x\"", "\"event\":\"\\u0078\""),
            format!("{text}\n"),
            text.replace("\"v\":1", "\"v\":2"),
            text.replace("\"v\":1", "\"v\":1,\"z\":1"),
            text.replace("control", "rumour"),
            String::new(),
        ];
        for row in rows {
            assert!(Envelope::parse(row.as_bytes()).is_err(), "{row}");
        }
    }
}

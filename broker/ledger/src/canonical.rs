//! Bodies as JCS (RFC 8785) bytes, and never more of them than a record holds.
//!
//! - Integers beyond ±(2^53 - 1) become strings, since JCS numbers are IEEE doubles.
//! - Bytes that are not UTF-8 become `{"base64": …}`.
//! - When a body is longer than [`MAX_BODY_BYTES`], its long strings become `{"bytes": n, "cut": "…", "sha256": "…"}`: the
//!   beginning, and a commitment to the whole. Nothing that a sandbox says is an object, so none can pretend to be cut.
//! - A body that is still too long is an error: it is not recorded, and so not let out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::limits::{CUT_STRING_BYTES, MAX_BODY_BYTES, MAX_DEPTH};

/// The largest integer that every JSON reader keeps exactly.
const MAX_SAFE: u64 = (1 << 53) - 1;

/// Why a body cannot be stored.
#[derive(Debug, Error)]
pub(crate) enum CanonicalError {
    /// Longer than a record may be, even with its strings cut.
    #[error("the body has {bytes} bytes")]
    TooLarge {
        /// How long it is with everything cut.
        bytes: usize,
    },
    /// Nested more deeply than is ever read back.
    #[error("the body is nested too deeply")]
    TooDeep,
    /// Not a JSON value.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Bytes from outside as a JSON value: text when they are UTF-8, else base64.
#[must_use]
pub fn bytes_value(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(
        |_| {
            let mut object = Map::new();
            object.insert("base64".to_owned(), STANDARD.encode(bytes).into());
            Value::Object(object)
        },
        Value::from,
    )
}

/// The canonical bytes of a body, short enough for a record.
pub(crate) fn body(mut value: Value) -> Result<Vec<u8>, CanonicalError> {
    let plain = make_safe(&mut value, 0)?;
    let mut bytes = if plain {
        serde_json::to_vec(&value)?
    } else {
        serde_json_canonicalizer::to_vec(&value)?
    };
    for longest in CUT_STRING_BYTES {
        if bytes.len() <= MAX_BODY_BYTES {
            return Ok(bytes);
        }
        value = cut(value, longest);
        bytes = serde_json_canonicalizer::to_vec(&value)?;
    }
    if bytes.len() <= MAX_BODY_BYTES {
        Ok(bytes)
    } else {
        Err(CanonicalError::TooLarge { bytes: bytes.len() })
    }
}

/// Replaces what JCS cannot hold. Says whether the value is plain: without fractions, and with ASCII keys only. What
/// `serde_json` writes of a plain value, sorted by bytes and escaped as little as possible, is JCS already (RFC 8785, sections
/// 3.2.2 and 3.2.3), at half the cost; that is what nearly every record is.
fn make_safe(value: &mut Value, depth: usize) -> Result<bool, CanonicalError> {
    if depth > MAX_DEPTH {
        return Err(CanonicalError::TooDeep);
    }
    let deeper = depth.saturating_add(1);
    match value {
        Value::Number(number) => {
            let unsafe_integer = match (number.as_u64(), number.as_i64()) {
                (Some(n), _) => n > MAX_SAFE,
                (None, Some(n)) => n.unsigned_abs() > MAX_SAFE,
                (None, None) => false,
            };
            if unsafe_integer {
                *value = Value::String(number.to_string());
                return Ok(true);
            }
            Ok(!number.is_f64())
        }
        Value::Array(items) => {
            let mut plain = true;
            for item in items {
                plain &= make_safe(item, deeper)?;
            }
            Ok(plain)
        }
        Value::Object(members) => {
            let mut plain = true;
            for (key, member) in members {
                plain &= key.is_ascii() & make_safe(member, deeper)?;
            }
            Ok(plain)
        }
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(true),
    }
}

/// Commits to strings longer than `longest` by digest.
fn cut(value: Value, longest: usize) -> Value {
    match value {
        Value::String(text) if text.len() > longest => commit(&text, longest / 4),
        Value::Array(items) => Value::Array(items.into_iter().map(|item| cut(item, longest)).collect()),
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .map(|(key, member)| {
                    // What was cut before keeps its digest, and a shorter beginning.
                    let member = match (key.as_str(), member) {
                        ("cut", Value::String(text)) => Value::String(
                            text.get(..floor(&text, longest / 4))
                                .unwrap_or_default()
                                .to_owned(),
                        ),
                        ("sha256", digest) => digest,
                        (_, member) => cut(member, longest),
                    };
                    (key, member)
                })
                .collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

fn floor(text: &str, at: usize) -> usize {
    text.floor_char_boundary(at)
}

fn commit(text: &str, keep: usize) -> Value {
    let mut object = Map::new();
    object.insert("bytes".to_owned(), text.len().into());
    let kept = text.get(..floor(text, keep)).unwrap_or_default();
    object.insert("cut".to_owned(), kept.into());
    object.insert("sha256".to_owned(), hex::encode(Sha256::digest(text)).into());
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[track_caller]
    fn check(value: Value, expected: &str) {
        assert_eq!(String::from_utf8(body(value).unwrap()).unwrap(), expected);
    }

    #[test]
    fn bodies_are_canonical() {
        check(
            json!({"b": 1, "a": [true, null, 1.5]}),
            r#"{"a":[true,null,1.5],"b":1}"#,
        );
        check(
            json!({"n": 9_007_199_254_740_991_u64}),
            r#"{"n":9007199254740991}"#,
        );
        check(
            json!({"n": 9_007_199_254_740_992_u64}),
            r#"{"n":"9007199254740992"}"#,
        );
        check(json!({"n": u64::MAX}), r#"{"n":"18446744073709551615"}"#);
        check(json!({"n": i64::MIN}), r#"{"n":"-9223372036854775808"}"#);
        check(
            json!({"s": "\r\n\u{1b}\0\u{7f}"}),
            "{\"s\":\"\\r\\n\\u001b\\u0000\u{7f}\"}",
        );
        // RFC 8785 sorts by UTF-16 code units: U+1F600 (D83D …) before U+FB33.
        check(
            json!({"\u{fb33}": 1, "\u{1f600}": 2}),
            "{\"\u{1f600}\":2,\"\u{fb33}\":1}",
        );
        check(bytes_value(b"caf\xe9"), r#"{"base64":"Y2Fm6Q=="}"#);
    }

    #[test]
    fn a_long_field_is_committed_by_digest_and_the_rest_stays() {
        let path = format!("/{}", "x".repeat(70_000));
        let stored = body(json!({"path": path, "host": "a.test"})).unwrap();
        assert!(stored.len() <= MAX_BODY_BYTES);
        let value: Value = serde_json::from_slice(&stored).unwrap();
        assert_eq!(value["host"], "a.test");
        assert_eq!(value["path"]["bytes"], 70_001);
        assert_eq!(value["path"]["sha256"], hex::encode(Sha256::digest(&path)));
    }

    #[test]
    fn what_cannot_be_cut_short_enough_is_refused() {
        let long: Vec<u32> = (0..40_000).collect();
        assert!(matches!(body(json!(long)), Err(CanonicalError::TooLarge { .. })));
        let mut deep = json!(1);
        for _ in 0..100 {
            deep = json!([deep]);
        }
        assert!(matches!(body(deep), Err(CanonicalError::TooDeep)));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            (-1.0e9..1.0e9_f64).prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..8)
                    .prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        /// The short way to canonical bytes gives what the long way gives.
        #[test]
        fn any_value_is_stored_as_jcs(value in any_json()) {
            let stored = body(value).unwrap();
            let read: Value = serde_json::from_slice(&stored).unwrap();
            prop_assert_eq!(serde_json_canonicalizer::to_vec(&read).unwrap(), stored);
        }

        #[test]
        fn any_text_reads_back_as_it_was(text in any::<String>()) {
            let stored = body(json!({ "text": text })).unwrap();
            prop_assert!(!stored.contains(&b'\n'));
            let value: Value = serde_json::from_slice(&stored).unwrap();
            prop_assert_eq!(value["text"].as_str().unwrap(), text);
        }
    }
}

//! Facts → `input`, version 1 (DESIGN §8), built as the engine's own values without a detour through JSON.
//!
//! A key that has no value is left out, never `null`, so that a rule that needs it is undefined. Times are nanoseconds
//! since the Unix epoch, as in the rest of Rego.

use std::collections::BTreeMap;

use regorus::Value;
use wallgate_types::address::AddressClass;
use wallgate_types::request::{BodyFacts, RequestFacts};

use crate::policy::{Situation, Usage};

/// Policy's public contract. A bundle may look at it.
pub const INPUT_VERSION: u64 = 1;

const NANOS_PER_MILLI: u64 = 1_000_000;

/// An object under construction.
#[derive(Default)]
struct Fields(BTreeMap<Value, Value>);

impl Fields {
    fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(Value::from(key), value.into());
        self
    }

    fn set_if(self, key: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.set(key, value),
            None => self,
        }
    }
}

impl From<Fields> for Value {
    fn from(fields: Fields) -> Self {
        Self::from(fields.0)
    }
}

fn strings<'a>(items: impl IntoIterator<Item = &'a str>) -> Value {
    Value::from(items.into_iter().map(Value::from).collect::<Vec<_>>())
}

/// Names and their values: `{"accept": ["a", "b"]}`, the values in the order in which they came.
fn grouped(pairs: &[(String, String)]) -> Value {
    let mut groups: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (name, value) in pairs {
        groups.entry(name).or_default().push(Value::from(value.as_str()));
    }
    Value::from(
        groups
            .into_iter()
            .map(|(name, values)| (Value::from(name), Value::from(values)))
            .collect::<BTreeMap<_, _>>(),
    )
}

/// The whole of `input`.
pub(crate) fn build(facts: &RequestFacts, situation: &Situation) -> Value {
    let nanos = situation.now.0.saturating_mul(NANOS_PER_MILLI);
    Fields::default()
        .set("version", INPUT_VERSION)
        .set("sandbox", sandbox(facts, situation))
        .set("request", request(facts))
        .set("destination", destination(facts))
        .set("operation", operation(facts))
        .set("usage", usage(&situation.usage))
        .set("time", nanos)
        .into()
}

fn sandbox(facts: &RequestFacts, situation: &Situation) -> Fields {
    let labels: BTreeMap<Value, Value> = facts
        .sandbox
        .labels
        .iter()
        .map(|(key, value)| (Value::from(key.as_str()), Value::from(value.as_str())))
        .collect();
    let source = match facts.sandbox.source {
        wallgate_types::sandbox::IdentitySource::Tap => "tap",
        wallgate_types::sandbox::IdentitySource::Listener => "listener",
    };
    Fields::default()
        .set("id", facts.sandbox.id.as_str())
        .set("labels", labels)
        .set("taints", strings(situation.taints.iter().map(String::as_str)))
        .set("source", source)
}

fn request(facts: &RequestFacts) -> Fields {
    Fields::default()
        .set("id", facts.id.to_string())
        .set("protocol", facts.protocol.as_str())
        .set("method", facts.method.as_str())
        .set("scheme", facts.scheme.as_str())
        .set("host", facts.authority.host().to_string())
        .set("port", u64::from(facts.authority.port()))
        .set("path", facts.path.as_str())
        .set("segments", strings(facts.segments.iter().map(String::as_str)))
        .set("query", grouped(&facts.query))
        .set("headers", grouped(&facts.headers))
        .set("body", body(&facts.body))
}

fn body(body: &BodyFacts) -> Fields {
    Fields::default()
        .set_if("size", body.size)
        .set_if("type", body.media_type.as_deref())
        .set_if("json", body.json.clone())
        .set_if("text", body.text.as_deref())
        // A body that is longer than a rule asked to see is refused before this, so policy never sees half of one.
        .set("truncated", false)
}

fn destination(facts: &RequestFacts) -> Fields {
    // An address literal says its class before anything is resolved.
    let class = facts
        .destination
        .class
        .or_else(|| facts.authority.host().address().map(AddressClass::of));
    let addresses = (!facts.destination.addresses.is_empty()).then(|| {
        let addresses = facts.destination.addresses.iter();
        Value::from(
            addresses
                .map(|address| Value::from(address.to_string()))
                .collect::<Vec<_>>(),
        )
    });
    Fields::default()
        .set_if("class", class.map(AddressClass::as_str))
        .set_if("addresses", addresses)
        .set_if("service", facts.destination.service.as_deref())
}

fn operation(facts: &RequestFacts) -> Fields {
    let operation = &facts.operation;
    Fields::default()
        .set("ecosystem", operation.ecosystem)
        .set("action", operation.action.as_str())
        .set("name", operation.name)
        .set_if("package", operation.package.as_deref())
        .set_if("version", operation.version.as_deref())
}

fn usage(usage: &Usage) -> Fields {
    let windows = |counts: &BTreeMap<String, u64>| {
        counts
            .iter()
            .map(|(window, count)| (Value::from(window.as_str()), Value::from(*count)))
            .collect::<BTreeMap<Value, Value>>()
    };
    Fields::default()
        .set("requests", windows(&usage.requests))
        .set("bytes_out", windows(&usage.bytes_out))
        .set("denied", windows(&usage.denied))
        .set("distinct_names", windows(&usage.distinct_names))
        .set("not_found", windows(&usage.not_found))
}

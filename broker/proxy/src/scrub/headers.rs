//! Header and trailer fields of a response.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::matcher::Patterns;

/// Covers every form in every value, and drops a field whose name holds one. Returns how many there were.
pub(super) fn scrub_fields(fields: &mut HeaderMap, patterns: &Patterns) -> u64 {
    let mut count = 0_u64;
    let named: Vec<HeaderName> = fields
        .keys()
        .filter(|name| patterns.stands_in_name(name.as_str()))
        .cloned()
        .collect();
    for name in named {
        fields.remove(&name);
        count = count.saturating_add(1);
    }
    for value in fields.values_mut() {
        let spans = patterns.scan(value.as_bytes(), true).spans;
        if spans.is_empty() {
            continue;
        }
        count = count.saturating_add(u64::try_from(spans.len()).unwrap_or(u64::MAX));
        let mut covered = value.as_bytes().to_vec();
        for (start, end) in spans {
            if let Some(part) = covered.get_mut(start..end) {
                part.fill(patterns.mask());
            }
        }
        // A mask is a visible character, so the value stays valid.
        *value = HeaderValue::from_bytes(&covered).unwrap_or_else(|_| HeaderValue::from_static(""));
    }
    count
}

//! Refusals before policy: each is counted, and a flood of them does not fill the ledger.
//!
//! The first refusal of a kind is recorded at once. Those that follow within the window are counted, and recorded with
//! their exact number when it is over.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use wallgate_ledger::ControlEvent;
use wallgate_types::sandbox::SandboxId;

#[derive(Debug)]
struct Tally {
    /// Not recorded yet.
    pending: u64,
    recorded_at: Duration,
    sample: Value,
}

/// One sandbox's refusals, by kind and code.
#[derive(Debug)]
pub(crate) struct Refusals {
    sandbox: SandboxId,
    window: Duration,
    tallies: Mutex<BTreeMap<(&'static str, &'static str), Tally>>,
}

impl Refusals {
    pub(crate) const fn new(sandbox: SandboxId, window: Duration) -> Self {
        Self {
            sandbox,
            window,
            tallies: Mutex::new(BTreeMap::new()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(&'static str, &'static str), Tally>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one refusal. What comes back is to be recorded now.
    pub(crate) fn note(
        &self,
        kind: &'static str,
        code: &'static str,
        now: Duration,
        sample: impl FnOnce() -> Value,
    ) -> Option<ControlEvent> {
        let mut tallies = self.lock();
        let Some(tally) = tallies.get_mut(&(kind, code)) else {
            let sample = sample();
            let event = self.event(kind, code, 1, &sample);
            tallies.insert(
                (kind, code),
                Tally {
                    pending: 0,
                    recorded_at: now,
                    sample,
                },
            );
            return Some(event);
        };
        tally.pending = tally.pending.saturating_add(1);
        if now.saturating_sub(tally.recorded_at) < self.window {
            return None;
        }
        tally.sample = sample();
        tally.recorded_at = now;
        let count = std::mem::take(&mut tally.pending);
        Some(self.event(kind, code, count, &tally.sample))
    }

    /// What has been counted and not recorded: all of it at the end, otherwise what is older than the window.
    pub(crate) fn due(&self, now: Duration, all: bool) -> Vec<ControlEvent> {
        let mut events = Vec::new();
        for ((kind, code), tally) in &mut *self.lock() {
            if tally.pending > 0 && (all || now.saturating_sub(tally.recorded_at) >= self.window) {
                tally.recorded_at = now;
                let count = std::mem::take(&mut tally.pending);
                events.push(self.event(kind, code, count, &tally.sample));
            }
        }
        events
    }

    fn event(&self, kind: &'static str, code: &str, count: u64, sample: &Value) -> ControlEvent {
        ControlEvent {
            kind,
            sandbox: Some(self.sandbox.clone()),
            detail: json!({ "reason": code, "rule": format!("wallgate.{code}"), "count": count, "sample": sample }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_recorded_with_its_exact_count() {
        let refusals = Refusals::new("a".parse().unwrap(), Duration::from_secs(10));
        let count = |event: &ControlEvent| event.detail["count"].as_u64().unwrap();
        let mut recorded = Vec::new();
        for millis in 0..25_000_u64 {
            let now = Duration::from_millis(millis);
            recorded.extend(refusals.note("http_reject", "te", now, || Value::Null));
        }
        recorded.extend(refusals.due(Duration::from_secs(25), false));
        assert_eq!(
            recorded.iter().map(count).collect::<Vec<_>>(),
            [1, 10_000, 10_000]
        );
        let last = refusals.due(Duration::from_secs(25), true);
        assert_eq!(last.iter().map(count).collect::<Vec<_>>(), [4_999]);
        assert!(refusals.due(Duration::from_hours(1), true).is_empty());
    }
}

//! What is counted of a sandbox's lookups: repeats, refusals, their rate, and how many different names there are.
//!
//! Everything is bounded. A name beyond the budget is refused; a repeat that finds no room is recorded by itself, so
//! that the counts stay exact.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wallgate_types::authority::Name;
use wallgate_types::clock::{Clock, Timestamp};
use wallgate_types::ruling::Verdict;

use super::message::RecordType;
use super::{DnsReport, NameRepeats};
use crate::edge_limits::{DNS_BURST, DNS_NAME_WINDOW, DNS_QUERIES_PER_SECOND, MAX_DISTINCT_NAMES, MAX_NAMES};
use crate::rate::Bucket;

/// What makes two lookups the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) name: Name,
    pub(super) record_type: RecordType,
    pub(super) verdict: Verdict,
    pub(super) rule: String,
}

#[derive(Debug)]
struct Repeated {
    count: u64,
    recorded_at: Duration,
}

#[derive(Debug)]
struct State {
    queries: Bucket,
    window_began: Duration,
    window_names: HashSet<Name>,
    repeated: HashMap<Key, Repeated>,
    unasked: BTreeMap<&'static str, u64>,
    reported_at: Timestamp,
}

/// One sandbox's counts.
#[derive(Debug)]
pub(super) struct Tally(Mutex<State>);

impl Tally {
    pub(super) fn new(clock: &dyn Clock) -> Self {
        let now = clock.monotonic();
        Self(Mutex::new(State {
            queries: Bucket::new(DNS_BURST, DNS_QUERIES_PER_SECOND, now),
            window_began: now,
            window_names: HashSet::new(),
            repeated: HashMap::new(),
            unasked: BTreeMap::new(),
            reported_at: clock.now(),
        }))
    }

    /// Whether the sandbox may send another message.
    pub(super) fn take_token(&self, clock: &dyn Clock) -> bool {
        let now = clock.monotonic();
        self.lock().queries.take(now)
    }

    /// Counts a message that policy is not asked about.
    pub(super) fn count(&self, reason: &'static str) {
        let mut state = self.lock();
        let count = state.unasked.entry(reason).or_default();
        *count = count.saturating_add(1);
    }

    /// Whether this name is within the window's budget of different names.
    pub(super) fn admit_name(&self, name: &Name, clock: &dyn Clock) -> bool {
        let now = clock.monotonic();
        let mut state = self.lock();
        if now >= state.window_began.saturating_add(DNS_NAME_WINDOW) {
            state.window_began = now;
            state.window_names.clear();
        }
        if state.window_names.contains(name) {
            return true;
        }
        if state.window_names.len() >= MAX_DISTINCT_NAMES {
            return false;
        }
        state.window_names.insert(name.clone())
    }

    /// Counts a lookup whose like was recorded; false when there was none, and it must be recorded itself.
    pub(super) fn repeat(&self, key: &Key) -> bool {
        let mut state = self.lock();
        let Some(repeated) = state.repeated.get_mut(key) else {
            return false;
        };
        repeated.count = repeated.count.saturating_add(1);
        true
    }

    /// Remembers that a lookup was recorded, so that its like is only counted from now on.
    pub(super) fn recorded(&self, key: Key, clock: &dyn Clock) {
        let recorded_at = clock.monotonic();
        let mut state = self.lock();
        if state.repeated.len() < MAX_NAMES {
            // Two of a kind may have been recorded side by side: the first one's count stays.
            state.repeated.entry(key).or_insert(Repeated {
                count: 0,
                recorded_at,
            });
        }
    }

    /// Takes what was counted since the last time.
    pub(super) fn take(&self, clock: &dyn Clock) -> DnsReport {
        let (now, until) = (clock.monotonic(), clock.now());
        let mut state = self.lock();
        let from = std::mem::replace(&mut state.reported_at, until);
        let unasked = std::mem::take(&mut state.unasked).into_iter().collect();
        let mut repeats = Vec::new();
        state.repeated.retain(|key, repeated| {
            if repeated.count > 0 {
                repeats.push(NameRepeats {
                    name: key.name.clone(),
                    record_type: key.record_type.name(),
                    verdict: key.verdict,
                    rule: key.rule.clone(),
                    count: std::mem::take(&mut repeated.count),
                });
            }
            now < repeated.recorded_at.saturating_add(DNS_NAME_WINDOW)
        });
        drop(state);
        repeats.sort_by(|a, b| (&a.name, &a.record_type).cmp(&(&b.name, &b.record_type)));
        DnsReport {
            from,
            until,
            repeats,
            unasked,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! What a sandbox has done lately, and what it is remembered by: policy's `usage` and `taints` (DESIGN §8).
//!
//! Everything here is bounded: counters are rings of buckets, distinct names and taints have limits. A counter may be
//! one bucket late in forgetting, never early.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher as _;
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wallgate_policy::{Situation, Usage};
use wallgate_types::authority::Host;
use wallgate_types::clock::Clock;

use crate::limits::Limits;

/// Buckets of one window.
const BUCKETS: usize = 60;

/// The windows, by the name that policy sees, and what one bucket of each spans.
const WINDOWS: [(&str, Duration); 2] = [("1m", Duration::from_secs(1)), ("1h", Duration::from_mins(1))];

/// A sum over the last [`BUCKETS`] buckets.
#[derive(Debug)]
struct Window {
    span: Duration,
    buckets: [u64; BUCKETS],
    tick: u128,
    sum: u64,
}

impl Window {
    const fn new(span: Duration) -> Self {
        Self {
            span,
            buckets: [0; BUCKETS],
            tick: 0,
            sum: 0,
        }
    }

    fn slot(&mut self, tick: u128) -> Option<&mut u64> {
        let index = usize::try_from(tick % BUCKETS as u128).unwrap_or(0);
        self.buckets.get_mut(index)
    }

    /// Forgets what is older than the window.
    fn turn(&mut self, now: Duration) {
        let tick = now.as_millis() / self.span.as_millis().max(1);
        if tick <= self.tick {
            return;
        }
        if tick.saturating_sub(self.tick) >= BUCKETS as u128 {
            self.buckets = [0; BUCKETS];
            self.sum = 0;
        } else {
            for passed in self.tick.saturating_add(1)..=tick {
                let old = self.slot(passed).map(std::mem::take).unwrap_or_default();
                self.sum = self.sum.saturating_sub(old);
            }
        }
        self.tick = tick;
    }

    fn add(&mut self, now: Duration, count: u64) {
        self.turn(now);
        self.sum = self.sum.saturating_add(count);
        if let Some(slot) = self.slot(self.tick) {
            *slot = slot.saturating_add(count);
        }
    }
}

#[derive(Debug)]
struct Counter([Window; 2]);

impl Counter {
    fn new() -> Self {
        Self(WINDOWS.map(|(_, span)| Window::new(span)))
    }

    fn add(&mut self, now: Duration, count: u64) {
        for window in &mut self.0 {
            window.add(now, count);
        }
    }

    fn read(&mut self, now: Duration) -> BTreeMap<String, u64> {
        WINDOWS
            .iter()
            .zip(&mut self.0)
            .map(|((name, _), window)| {
                window.turn(now);
                ((*name).to_owned(), window.sum)
            })
            .collect()
    }
}

/// How many different names were asked for in an hour, by the minute in which each was asked for last.
#[derive(Debug)]
struct Names {
    hasher: RandomState,
    last: HashMap<u64, u64>,
    limit: usize,
}

impl Names {
    fn note(&mut self, now: Duration, host: &Host) {
        let minute = now.as_secs() / 60;
        let key = self.hasher.hash_one(host);
        if self.last.len() >= self.limit && !self.last.contains_key(&key) {
            self.forget(minute);
            if self.last.len() >= self.limit {
                // A budget that cannot count higher stays at its limit.
                return;
            }
        }
        self.last.insert(key, minute);
    }

    fn forget(&mut self, minute: u64) {
        self.last.retain(|_, last| minute.saturating_sub(*last) < 60);
    }

    fn read(&mut self, now: Duration) -> u64 {
        let minute = now.as_secs() / 60;
        if self.last.len() > 64 {
            // A look over all names each time would cost more than it tells: once in a while is exact enough.
            self.forget(minute);
        }
        let recent = self
            .last
            .values()
            .filter(|last| minute.saturating_sub(**last) < 60)
            .count();
        u64::try_from(recent).unwrap_or(u64::MAX)
    }
}

#[derive(Debug)]
struct Inner {
    requests: Counter,
    denied: Counter,
    bytes_out: Counter,
    not_found: Counter,
    names: Names,
    names_read: (u64, u64),
    taints: Vec<String>,
    internal: Window,
    asks: Window,
}

/// One sandbox's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    inner: Mutex<Inner>,
    taints_limit: usize,
    internal_per_minute: u64,
    asks_per_hour: u64,
}

impl Memory {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            inner: Mutex::new(Inner {
                requests: Counter::new(),
                denied: Counter::new(),
                bytes_out: Counter::new(),
                not_found: Counter::new(),
                names: Names {
                    hasher: RandomState::new(),
                    last: HashMap::new(),
                    limit: limits.distinct_names,
                },
                names_read: (u64::MAX, 0),
                taints: Vec::new(),
                internal: Window::new(Duration::from_secs(1)),
                asks: Window::new(Duration::from_mins(1)),
            }),
            taints_limit: limits.taints,
            internal_per_minute: limits.internal_per_minute,
            asks_per_hour: limits.asks_per_hour,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Counters are whole after every statement, so a panic elsewhere leaves nothing half-done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request for `host`, and says what policy should know, this request included.
    pub(crate) fn situation(&self, host: &Host, clock: &dyn Clock) -> Situation {
        let now = clock.monotonic();
        let mut inner = self.lock();
        inner.requests.add(now, 1);
        inner.names.note(now, host);
        // Counting distinct names walks over them, so it is done at most once a second.
        let second = now.as_secs();
        if inner.names_read.0 != second || inner.names.last.len() < 64 {
            inner.names_read = (second, inner.names.read(now));
        }
        let distinct = inner.names_read.1;
        Situation {
            taints: inner.taints.clone(),
            usage: Usage {
                requests: inner.requests.read(now),
                bytes_out: inner.bytes_out.read(now),
                denied: inner.denied.read(now),
                distinct_names: BTreeMap::from([("1h".to_owned(), distinct)]),
                not_found: inner.not_found.read(now),
            },
            now: clock.now(),
        }
    }

    pub(crate) fn denied(&self, now: Duration) {
        self.lock().denied.add(now, 1);
    }

    pub(crate) fn not_found(&self, now: Duration) {
        self.lock().not_found.add(now, 1);
    }

    pub(crate) fn sent(&self, now: Duration, bytes: u64) {
        if bytes > 0 {
            self.lock().bytes_out.add(now, bytes);
        }
    }

    /// Remembers taints. `false` when there is no room for one: the request that brings it must then be refused, since
    /// later rules rely on it.
    #[must_use]
    pub(crate) fn taint(&self, taints: &[String]) -> bool {
        if taints.is_empty() {
            return true;
        }
        let mut inner = self.lock();
        for taint in taints {
            if inner.taints.contains(taint) {
                continue;
            }
            if inner.taints.len() >= self.taints_limit {
                return false;
            }
            inner.taints.push(taint.clone());
        }
        true
    }

    pub(crate) fn taints(&self) -> Vec<String> {
        self.lock().taints.clone()
    }

    /// Whether one more request to `wallgate.internal` may be answered.
    pub(crate) fn may_visit(&self, now: Duration) -> bool {
        spend(&mut self.lock().internal, now, self.internal_per_minute)
    }

    /// Whether one more ask, report or quit may be recorded.
    pub(crate) fn may_ask(&self, now: Duration) -> bool {
        spend(&mut self.lock().asks, now, self.asks_per_hour)
    }
}

fn spend(window: &mut Window, now: Duration, limit: u64) -> bool {
    window.turn(now);
    if window.sum >= limit {
        return false;
    }
    window.add(now, 1);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use wallgate_types::clock::ManualClock;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    #[test]
    fn a_window_slides() {
        let mut window = Window::new(Duration::from_secs(1));
        for second in 0..120_u64 {
            window.add(Duration::from_secs(second), 1);
            assert_eq!(window.sum, (second + 1).min(60), "after second {second}");
        }
        window.turn(Duration::from_secs(150));
        assert_eq!(window.sum, 29);
        window.turn(Duration::from_secs(10_000));
        assert_eq!(window.sum, 0);
    }

    #[test]
    fn policy_sees_what_was_done_in_each_window() {
        let clock = ManualClock::at(0);
        let memory = Memory::new(&Limits::default());
        for name in ["a.test", "b.test", "a.test"] {
            drop(memory.situation(&host(name), &clock));
        }
        memory.denied(clock.monotonic());
        memory.sent(clock.monotonic(), 100);
        clock.advance(Duration::from_mins(2));
        let situation = memory.situation(&host("a.test"), &clock);
        assert_eq!(
            situation.usage.requests,
            BTreeMap::from([("1m".into(), 1), ("1h".into(), 4)])
        );
        assert_eq!(situation.usage.denied.get("1h"), Some(&1));
        assert_eq!(situation.usage.denied.get("1m"), Some(&0));
        assert_eq!(situation.usage.bytes_out.get("1h"), Some(&100));
        assert_eq!(situation.usage.distinct_names.get("1h"), Some(&2));
        clock.advance(Duration::from_hours(2));
        let situation = memory.situation(&host("c.test"), &clock);
        assert_eq!(situation.usage.distinct_names.get("1h"), Some(&1));
    }

    #[test]
    fn taints_stay_and_are_bounded() {
        let limits = Limits {
            taints: 2,
            ..Limits::default()
        };
        let memory = Memory::new(&limits);
        assert!(memory.taint(&["a".into(), "b".into(), "a".into()]));
        assert!(!memory.taint(&["c".into()]));
        assert_eq!(memory.taints(), ["a", "b"]);
    }

    #[test]
    fn names_are_bounded() {
        let clock = ManualClock::at(0);
        let memory = Memory::new(&Limits {
            distinct_names: 10,
            ..Limits::default()
        });
        for n in 0..100 {
            drop(memory.situation(&host(&format!("n{n}.test")), &clock));
        }
        clock.advance(Duration::from_secs(2));
        let situation = memory.situation(&host("x.test"), &clock);
        assert_eq!(situation.usage.distinct_names.get("1h"), Some(&10));
    }

    #[test]
    fn asks_have_a_rate() {
        let memory = Memory::new(&Limits {
            asks_per_hour: 2,
            ..Limits::default()
        });
        let now = Duration::from_secs(5);
        assert!(memory.may_ask(now) && memory.may_ask(now) && !memory.may_ask(now));
        assert!(memory.may_ask(now + Duration::from_hours(1)));
    }
}

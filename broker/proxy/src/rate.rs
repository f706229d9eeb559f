//! A token bucket: how often something may happen, and how much of it at once.

use std::time::Duration;

/// Counts in thousandths of a token, so that a millisecond's share is exact.
#[derive(Debug)]
pub(crate) struct Bucket {
    milli_tokens: u64,
    burst: u64,
    per_second: u64,
    filled_at: Duration,
}

impl Bucket {
    /// A full bucket.
    pub(crate) const fn new(burst: u32, per_second: u32, now: Duration) -> Self {
        let burst = (burst as u64).saturating_mul(1000);
        Self {
            milli_tokens: burst,
            burst,
            per_second: per_second as u64,
            filled_at: now,
        }
    }

    /// Takes one token, if there is one at `now` (monotonic time).
    pub(crate) fn take(&mut self, now: Duration) -> bool {
        let elapsed = now.saturating_sub(self.filled_at);
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        if millis > 0 {
            // `per_second` tokens a second are as many thousandths a millisecond.
            let gained = millis.saturating_mul(self.per_second);
            self.milli_tokens = self.milli_tokens.saturating_add(gained).min(self.burst);
            self.filled_at = self.filled_at.saturating_add(Duration::from_millis(millis));
        }
        match self.milli_tokens.checked_sub(1000) {
            Some(rest) => {
                self.milli_tokens = rest;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_burst_and_then_the_rate() {
        let mut bucket = Bucket::new(2, 10, Duration::ZERO);
        assert!(bucket.take(Duration::ZERO));
        assert!(bucket.take(Duration::ZERO));
        assert!(!bucket.take(Duration::from_millis(99)));
        assert!(bucket.take(Duration::from_millis(100)));
        assert!(!bucket.take(Duration::from_millis(100)));
        assert!(bucket.take(Duration::from_hours(1)));
        assert!(bucket.take(Duration::from_hours(1)));
        assert!(!bucket.take(Duration::from_hours(1)));
    }
}

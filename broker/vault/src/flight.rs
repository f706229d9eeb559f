//! One at a time: callers who want the same thing at the same moment share one attempt.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};

/// At most one running attempt; who comes while it runs waits for its result.
///
/// The attempt is driven by those who wait for it. When all of them go away it is dropped, so an abandoned attempt
/// never answers a later caller.
pub struct SingleFlight<T: Clone> {
    running: Mutex<Option<WeakShared<BoxFuture<'static, T>>>>,
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// Nothing running.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            running: Mutex::new(None),
        }
    }

    /// The running attempt, or a new one. Cancel-safe.
    pub fn run<F>(&self, attempt: impl FnOnce() -> F) -> Shared<BoxFuture<'static, T>>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let joined = running
            .as_ref()
            .and_then(WeakShared::upgrade)
            .filter(|shared| shared.peek().is_none());
        if let Some(shared) = joined {
            return shared;
        }
        let shared = attempt().boxed().shared();
        *running = shared.downgrade();
        shared
    }
}

impl<T: Clone + Send + Sync + 'static> Default for SingleFlight<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone> fmt::Debug for SingleFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlight").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn callers_at_the_same_time_share_one_attempt_and_later_ones_make_their_own() {
        let flight = Arc::new(SingleFlight::<u32>::new());
        let attempts = Arc::new(AtomicU32::new(0));
        let gate = Arc::new(Notify::new());
        let start = || {
            let (attempts, gate) = (Arc::clone(&attempts), Arc::clone(&gate));
            async move {
                gate.notified().await;
                attempts.fetch_add(1, Ordering::SeqCst) + 1
            }
        };
        let first = flight.run(start);
        let second = flight.run(start);
        gate.notify_one();
        assert_eq!((first.await, second.await), (1, 1));
        gate.notify_one();
        assert_eq!(flight.run(start).await, 2);
    }

    #[tokio::test]
    async fn an_abandoned_attempt_answers_nobody() {
        let flight = SingleFlight::<u32>::new();
        let abandoned = flight.run(std::future::pending);
        drop(abandoned);
        assert_eq!(flight.run(|| async { 7 }).await, 7);
    }
}

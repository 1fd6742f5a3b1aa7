//! The account of all memory that a store has taken, and its limit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The limit does not allow that much more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Bytes taken, never more than the limit. `used ≤ limit`, `used ≤ max`.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicU64,
    max: AtomicU64,
    limit: u64,
    #[cfg(test)]
    faults: Faults,
}

/// Which calls of [`Budget::take`] are to fail.
#[cfg(test)]
#[derive(Debug, Default)]
struct Faults {
    calls: AtomicU64,
    first: AtomicU64,
    count: AtomicU64,
}

#[cfg(test)]
impl Faults {
    fn strikes(&self) -> bool {
        let call = self.calls.fetch_add(1, Relaxed);
        call.checked_sub(self.first.load(Relaxed)).is_some_and(|since| since < self.count.load(Relaxed))
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            used: AtomicU64::new(0),
            max: AtomicU64::new(0),
            limit,
            #[cfg(test)]
            faults: Faults::default(),
        }
    }

    /// Lets the next `after` calls of [`take`](Self::take) pass and makes the `count` after those fail.
    #[cfg(test)]
    pub(crate) fn fail(&self, after: u64, count: u64) {
        self.faults.calls.store(0, Relaxed);
        self.faults.first.store(after, Relaxed);
        self.faults.count.store(count, Relaxed);
    }

    /// Whether a call has failed since [`fail`](Self::fail) said that some would.
    #[cfg(test)]
    pub(crate) fn has_failed(&self) -> bool {
        self.faults.calls.load(Relaxed) > self.faults.first.load(Relaxed)
    }

    /// Takes `bytes`, or nothing if that would go over the limit.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), Full> {
        #[cfg(test)]
        if self.faults.strikes() {
            return Err(Full);
        }
        let limit = self.limit;
        let before = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| used.checked_add(bytes).filter(|&used| used <= limit))
            .map_err(|_| Full)?;
        self.max.fetch_max(before + bytes, Relaxed);
        Ok(())
    }

    /// Gives `bytes` that were taken back.
    pub(crate) fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The most that was ever taken at once.
    pub(crate) fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_over_the_limit() {
        let budget = Budget::new(100);
        assert_eq!(budget.take(60), Ok(()));
        assert_eq!(budget.take(41), Err(Full));
        assert_eq!(budget.take(u64::MAX), Err(Full));
        assert_eq!(budget.take(40), Ok(()));
        budget.give(100);
        assert_eq!((budget.used(), budget.max()), (0, 100));
    }
}

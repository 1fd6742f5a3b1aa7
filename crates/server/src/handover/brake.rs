//! Slows clients down while the last rounds are sent. Several clients can otherwise write as fast as
//! rounds are sent, and the pause has to send what was written during the last one.

use std::time::Duration;

use pagefold_executor::Exports;

/// How long each request waits at first, and at most: well below the time that a pause may take.
const FIRST: Duration = Duration::from_millis(1);
const MOST: Duration = Duration::from_millis(16);

/// Makes the requests of all clients wait, until it is dropped.
pub(super) struct Brake {
    exports: Exports,
    wait: Duration,
}

impl Brake {
    /// Creates a brake that lets all requests pass.
    pub(super) fn new(exports: Exports) -> Self {
        Self { exports, wait: Duration::ZERO }
    }

    /// Doubles the time that each request waits. Returns false if it is already the longest.
    pub(super) fn pull(&mut self) -> bool {
        if self.wait >= MOST {
            return false;
        }
        self.wait = (2 * self.wait).max(FIRST);
        self.set(Some(self.wait));
        true
    }

    fn set(&self, wait: Option<Duration>) {
        self.exports.list().iter().for_each(|export| export.brake(wait));
    }
}

impl Drop for Brake {
    fn drop(&mut self) {
        if !self.wait.is_zero() {
            self.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Instant};

    use pagefold_disk::{Pool, PoolConfig, RamDisk};
    use pagefold_executor::{Export, Quota};

    use super::*;

    #[test]
    fn requests_wait_no_longer_than_the_maximum_and_only_until_the_end() {
        let pool = Pool::new(PoolConfig::default()).expect("a pool");
        let exports = Exports::new();
        for (name, bytes_per_second) in [("free", None), ("slow", Some(1 << 20))] {
            let disk = Arc::new(RamDisk::new(&pool, 1 << 20).expect("a disk"));
            let quota = Quota { bytes_per_second, ..Quota::default() };
            exports.add(Export::new(name, disk).with_quota(quota)).expect("a new name");
        }
        let rate = |name| exports.get(name).and_then(|export| export.open()).expect("an export").rate.clone();
        let mut brake = Brake::new(exports.clone());
        assert!(!rate("free").is_set(), "not pulled yet");
        let pulls = std::iter::from_fn(|| brake.pull().then_some(())).count();
        assert_eq!(pulls, 5, "1, 2, 4, 8 and 16 ms");
        let before = Instant::now();
        let start = rate("free").begin(1 << 30).expect("a wait");
        assert!(start >= before + MOST && start <= Instant::now() + MOST);
        drop(brake);
        assert!(!rate("free").is_set());
        assert!(rate("slow").is_set(), "a quota stays");
    }
}

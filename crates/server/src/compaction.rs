//! Compaction on request.

use std::{
    sync::{Mutex, TryLockError},
    time::{Duration, Instant},
};

use pagefold_control::{Code, Compacted, Failure};
use pagefold_disk::Pool;

/// The length of a step. Between two steps, compaction checks whether the server is stopping.
const COMPACT_STEP: Duration = Duration::from_millis(500);

/// Compacts a pool for one client at a time.
#[derive(Default)]
pub(crate) struct Compaction(Mutex<()>);

impl Compaction {
    /// Frees the memory in the holes of the disks' storage, for at most about `time` and while
    /// `goes_on` returns true.
    pub(crate) fn run(&self, pool: &Pool, time: Duration, goes_on: &dyn Fn() -> bool) -> Result<Compacted, Failure> {
        let busy = || Failure::new(Code::Busy, "another client is already compacting the disks: try again later");
        let _turn = match self.0.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(busy()),
        };
        let start = Instant::now();
        let spent = || pool.stats().spent_bytes;
        let before_bytes = spent();
        let mut last_bytes = before_bytes;
        loop {
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() || !goes_on() {
                return Ok(Compacted { before_bytes, after_bytes: spent(), more: true });
            }
            let more = pool.compact_for(left.min(COMPACT_STEP));
            let after_bytes = spent();
            // Stop if clients write as fast as the pool is compacted.
            if !more || after_bytes >= last_bytes {
                return Ok(Compacted { before_bytes, after_bytes, more });
            }
            last_bytes = after_bytes;
        }
    }
}

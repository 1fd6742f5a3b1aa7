//! The memory of clients, within the limit that they share with the disks.
//!
//! ```text
//! limit  │ disks: pages, tables, streams                                   │ kept for clients │ 4 MiB     │
//!        │                                                                 │ at most 1/16     │ overdraft │
//! ```
//!
//! When what is kept is spent, a connection's least comes from the overdraft: disks would refuse
//! pages, or all of the limit would be kept for clients that may never come. Beyond that,
//! connections are refused.
//!
//! Without a limit nothing is kept, and what clients take is counted.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pagefold_disk::Pool;
use pagefold_serve::{Account, LEAST_BYTES, Limits};

/// Of a limit up to this nothing is kept for clients: the streams of the disks take most of it.
const SMALL_LIMIT_BYTES: u64 = 4 << 20;

/// What connections take beyond the limit: half of what the process may take beyond it.
const OVERDRAFT_BYTES: u64 = 4 << 20;

/// What clients take, counted in a pool.
///
/// `taken_bytes ≤ counted_bytes`, and of a pool that has room, `counted_bytes ≥ kept_bytes`.
pub(crate) struct ClientMemory {
    pool: Pool,
    limits: Limits,
    state: Mutex<ClientMemoryState>,
}

#[derive(Default)]
struct ClientMemoryState {
    limited: bool,
    /// What disks leave to clients, and the most that clients take for more than their least.
    kept_bytes: u64,
    /// By clients now.
    taken_bytes: u64,
    /// In the pool.
    counted_bytes: u64,
}

impl ClientMemory {
    /// Keeps a part of the limit, which the pool has already.
    pub(crate) fn new(pool: Pool, limits: Limits, limit_bytes: Option<u64>) -> Self {
        let memory = Self { pool, limits, state: Mutex::default() };
        memory.set_limit(limit_bytes);
        memory
    }

    /// Keeps a part of the pool's new limit.
    pub(crate) fn set_limit(&self, limit_bytes: Option<u64>) {
        let mut state = self.lock();
        state.limited = limit_bytes.is_some();
        state.kept_bytes = limit_bytes.map_or(0, |limit_bytes| kept_bytes(limit_bytes, self.limits));
        self.settle(&mut state);
    }

    /// What clients take now.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.lock().taken_bytes
    }

    /// Counts what is kept, as far as there is room for it in the pool, and no more than that and
    /// what is taken.
    fn settle(&self, state: &mut ClientMemoryState) {
        let due_bytes = state.kept_bytes.max(state.taken_bytes);
        if let Some(more_bytes) = due_bytes.checked_sub(state.counted_bytes) {
            if self.pool.take_beside(more_bytes) {
                state.counted_bytes = due_bytes;
            }
        } else {
            self.pool.give_beside(state.counted_bytes - due_bytes);
            state.counted_bytes = due_bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, ClientMemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of a limit 1/32 is kept for clients and up to 1/16 for the least of as many as there may be, but
/// never more than all of them can take.
fn kept_bytes(limit_bytes: u64, limits: Limits) -> u64 {
    let spare_bytes = limit_bytes.saturating_sub(SMALL_LIMIT_BYTES);
    let least_bytes = ((limits.connections + limits.negotiating) as u64).saturating_mul(LEAST_BYTES);
    let most_bytes = least_bytes.saturating_add(limits.memory_bytes);
    (spare_bytes / 16).min(least_bytes).max(spare_bytes / 32).min(most_bytes)
}

impl Account for ClientMemory {
    fn take(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        let Some(taken_bytes) = state.taken_bytes.checked_add(bytes) else { return false };
        if state.limited && taken_bytes > state.kept_bytes {
            return false;
        }
        if let Some(more_bytes @ 1..) = taken_bytes.checked_sub(state.counted_bytes) {
            if !self.pool.take_beside(more_bytes) {
                return false;
            }
            state.counted_bytes = taken_bytes;
        }
        state.taken_bytes = taken_bytes;
        true
    }

    fn take_least(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        if state.limited && state.taken_bytes + bytes > state.kept_bytes + OVERDRAFT_BYTES {
            return false;
        }
        state.taken_bytes += bytes;
        if let Some(more_bytes @ 1..) = state.taken_bytes.checked_sub(state.counted_bytes) {
            self.pool.take_beside_least(more_bytes);
            state.counted_bytes = state.taken_bytes;
        }
        true
    }

    fn give(&self, bytes: u64) {
        let mut state = self.lock();
        state.taken_bytes -= bytes;
        self.settle(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use pagefold_disk::PoolConfig;

    use super::*;

    fn pool(limit_bytes: Option<u64>) -> Pool {
        let memory_limit = limit_bytes.unwrap_or(u64::MAX);
        Pool::new(PoolConfig::default().memory_limit(memory_limit)).expect("a pool")
    }

    #[test]
    fn a_part_of_each_limit_is_kept() {
        let limits = Limits::default();
        let least_bytes = 160 * LEAST_BYTES;
        let cases = [
            (1 << 20, 0),
            (4 << 20, 0),
            (68 << 20, 4 << 20),
            (196 << 20, least_bytes),
            (1028 << 20, 32 << 20),
            (1 << 40, least_bytes + (64 << 20)),
        ];
        for (limit_bytes, expected) in cases {
            assert_eq!(kept_bytes(limit_bytes, limits), expected, "{limit_bytes}");
        }
    }

    #[test]
    fn clients_take_what_is_kept_and_disks_have_the_rest() {
        let pool = pool(Some(68 << 20));
        let memory = ClientMemory::new(pool.clone(), Limits::default(), Some(68 << 20));
        let beside = || pool.stats().beside_bytes;
        assert_eq!(beside(), 4 << 20);
        assert!(memory.take(4 << 20) && !memory.take(1));
        assert_eq!(beside(), 4 << 20);
        let overdrawn = (0..).find(|_| !memory.take_least(LEAST_BYTES)).unwrap_or_default();
        assert_eq!(overdrawn, OVERDRAFT_BYTES / LEAST_BYTES, "connections beyond what is kept");
        assert_eq!(beside(), (4 << 20) + overdrawn * LEAST_BYTES);
        memory.give(4 << 20);
        (0..overdrawn).for_each(|_| memory.give(LEAST_BYTES));
        assert_eq!((beside(), memory.taken_bytes()), (4 << 20, 0));
    }

    #[test]
    fn without_a_limit_what_is_taken_is_counted_and_a_new_limit_keeps_its_part() {
        let pool = pool(None);
        let memory = ClientMemory::new(pool.clone(), Limits::default(), None);
        let beside = || pool.stats().beside_bytes;
        assert!(memory.take(8 << 20));
        assert_eq!(beside(), 8 << 20);
        pool.set_memory_limit(68 << 20).expect("room");
        memory.set_limit(Some(68 << 20));
        assert!(!memory.take(1));
        assert_eq!(beside(), 8 << 20);
        memory.give(8 << 20);
        assert_eq!(beside(), 4 << 20);
        memory.set_limit(None);
        assert_eq!(beside(), 0);
    }
}

//! The memory of clients, within the limit that they share with the disks.
//!
//! ```text
//! limit  │ disks: pages, tables, streams               │ reserved for clients │ 4 MiB     │
//!        │                                             │ at most 1/16         │ overdraft │
//! ```
//!
//! Once the reserve is used up, the minimum memory of a further connection comes from the
//! overdraft. The alternatives are worse: disks would refuse pages, or the whole limit would be
//! reserved for clients that may never connect. Beyond the overdraft, connections are refused.
//!
//! Without a limit, nothing is reserved, and the memory of clients is only counted.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pagefold_disk::Pool;
use pagefold_serve::{Account, LEAST_BYTES, Limits};

/// For limits up to this, nothing is reserved for clients: the disks' streams need most of it.
const SMALL_LIMIT_BYTES: u64 = 4 << 20;

/// Memory of connections beyond the limit, half of what the process may use beyond it. Disks keep
/// their room: a full pool would otherwise refuse overwrites while many clients are connected.
const OVERDRAFT_BYTES: u64 = 4 << 20;

/// The memory of clients, counted in a pool.
///
/// `taken_bytes ≤ counted_bytes + beyond_bytes`, and if the pool has room, `counted_bytes ≥
/// kept_bytes`.
pub(crate) struct ClientMemory {
    pool: Pool,
    limits: Limits,
    state: Mutex<ClientMemoryState>,
}

#[derive(Default)]
struct ClientMemoryState {
    limited: bool,
    /// Memory that disks leave to clients, and the most that clients use beyond their minimum.
    kept_bytes: u64,
    /// Memory that clients use now.
    taken_bytes: u64,
    /// Memory counted in the pool, within its limit.
    counted_bytes: u64,
    /// Memory counted in the pool, beyond its limit.
    beyond_bytes: u64,
}

impl ClientMemory {
    /// Reserves a part of the limit, which is already set in the pool.
    pub(crate) fn new(pool: Pool, limits: Limits, limit_bytes: Option<u64>) -> Self {
        let memory = Self { pool, limits, state: Mutex::default() };
        memory.set_limit(limit_bytes);
        memory
    }

    /// Reserves a part of the pool's new limit.
    pub(crate) fn set_limit(&self, limit_bytes: Option<u64>) {
        let mut state = self.lock();
        state.limited = limit_bytes.is_some();
        state.kept_bytes = limit_bytes.map_or(0, |limit_bytes| kept_bytes(limit_bytes, self.limits));
        self.settle(&mut state);
    }

    /// Returns the memory that clients use now.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.lock().taken_bytes
    }

    /// Counts the reserve in the pool if there is room, and what clients use in addition beyond the
    /// limit. Of a reserve that was larger, as much stays as is in use. Without a limit, counts what
    /// clients use.
    fn settle(&self, state: &mut ClientMemoryState) {
        let in_use_bytes = state.taken_bytes.min(state.counted_bytes);
        let due_bytes = if state.limited { state.kept_bytes.max(in_use_bytes) } else { state.taken_bytes };
        if let Some(more_bytes) = due_bytes.checked_sub(state.counted_bytes) {
            if self.pool.take_beside(more_bytes) {
                state.counted_bytes = due_bytes;
            }
        } else {
            self.pool.give_beside(state.counted_bytes - due_bytes);
            state.counted_bytes = due_bytes;
        }
        let beyond_bytes = state.taken_bytes.saturating_sub(state.counted_bytes);
        if let Some(more_bytes) = beyond_bytes.checked_sub(state.beyond_bytes) {
            self.pool.take_beyond(more_bytes);
        } else {
            self.pool.give_beyond(state.beyond_bytes - beyond_bytes);
        }
        state.beyond_bytes = beyond_bytes;
    }

    fn lock(&self) -> MutexGuard<'_, ClientMemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how much of a limit to reserve: 1/32, or up to 1/16 if the minimum of all possible
/// connections needs it, but never more than all of them can use.
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
        self.settle(&mut state);
        true
    }

    fn take_least(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        if state.limited && state.taken_bytes + bytes > state.kept_bytes + OVERDRAFT_BYTES {
            return false;
        }
        state.taken_bytes += bytes;
        self.settle(&mut state);
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

    /// The objects of these pages have one length, so that a full heap has no free bytes between
    /// them; the overdraft is more than the pool keeps for overwriting.
    #[test]
    fn a_full_disk_is_overwritten_while_clients_overdraw() {
        let limit_bytes = 64 << 20;
        let pool = pool(Some(limit_bytes));
        let memory = ClientMemory::new(pool.clone(), Limits::default(), Some(limit_bytes));
        let disk = pool.disk(1 << 16).expect("room");
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.rotate_left(29)
        };
        let mut write = |slot| {
            let mut page = [0; 4096];
            page[..2048].chunks_mut(8).for_each(|word| word.copy_from_slice(&next().to_ne_bytes()));
            disk.write(slot, &page)
        };
        let stored = (0..1 << 16).find(|&slot| write(slot).is_err()).expect("64 MiB do not hold 256");
        let clients = (0..).find(|_| !memory.take_least(LEAST_BYTES)).unwrap_or_default();
        for slot in (0..stored).step_by(7) {
            write(slot).expect("a page like the one before");
        }
        (0..clients).for_each(|_| memory.give(LEAST_BYTES));
        let stats = pool.stats();
        assert!(stats.spent_bytes <= limit_bytes && stats.mem_used_max > limit_bytes, "{stats:?}");
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

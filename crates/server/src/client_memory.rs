//! The memory of clients, within the limit that they share with the disks.
//!
//! ```text
//! limit │ disks: pages, tables, streams │ reserved for clients, at most 1/16 │ overdraft, 4 MiB │
//!                                       │ connections │ connections that work │ loans            │
//! ```
//!
//! If all permitted connections need that much, half of the reserve and the overdraft together is
//! kept for connections, and three quarters of the rest for those that work. Loans get what is left
//! of the reserve. They get nothing of the overdraft, so long-lived loans never keep other clients
//! out.
//!
//! Without an overdraft, disks would refuse pages, or the whole limit would be reserved for clients
//! that may never connect. When the overdraft is spent, connections are refused, and requests take
//! turns.
//!
//! Without a limit, nothing is reserved, and the memory of clients is only counted.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pagefold_disk::Pool;
use pagefold_serve::{Account, Claim, IDLE_BYTES, Limits, WORK_BYTES};

use pagefold_size as size;

/// For limits up to this, nothing is reserved for clients: the disks' streams need most of it.
const SMALL_LIMIT_BYTES: u64 = 4 << 20;

/// Memory that connections may take beyond the limit: half of what the process may use beyond it.
/// Disks keep their room: a full pool would otherwise refuse overwrites while many clients are
/// connected.
const OVERDRAFT_BYTES: u64 = 4 << 20;

/// Number of connections without a chosen export for which memory is reserved. If memory is short,
/// silent connections above this number are closed.
const NEWCOMERS: u64 = 64;

/// The memory of clients, counted in a pool.
///
/// `taken ≤ counted_bytes + exempt_bytes` and, if the pool has room, `counted_bytes ≥ kept_bytes`.
pub(crate) struct ClientMemory {
    pool: Pool,
    state: Mutex<ClientMemoryState>,
}

struct ClientMemoryState {
    limits: Limits,
    cost: Cost,
    limit_bytes: Option<u64>,
    /// Memory that disks leave to clients.
    kept_bytes: u64,
    /// Memory that clients use now.
    taken: Claims,
    /// Memory counted in the pool, within its limit.
    counted_bytes: u64,
    /// Memory counted in the pool, beyond its limit.
    exempt_bytes: u64,
}

/// The memory of one connection without loans.
#[derive(Clone, Copy, Debug)]
struct Cost {
    idle_bytes: u64,
    /// Additional memory while the connection works.
    work_bytes: u64,
}

impl Cost {
    const PLAIN: Self = Self { idle_bytes: IDLE_BYTES, work_bytes: WORK_BYTES };
}

/// Bytes of each purpose.
#[derive(Clone, Copy, Default)]
struct Claims {
    connections: u64,
    work: u64,
    loans: u64,
}

impl Claims {
    fn sum(self) -> u64 {
        self.connections.saturating_add(self.work).saturating_add(self.loans)
    }

    fn of(&mut self, claim: Claim) -> &mut u64 {
        match claim {
            Claim::Connection => &mut self.connections,
            Claim::Work => &mut self.work,
            _ => &mut self.loans,
        }
    }

    /// Returns these bytes, which include a new `claim`, plus the reserves that it must leave
    /// unused: those of other purposes, once it exceeds its own.
    fn with_reserves(self, claim: Claim, reserved: Self) -> u64 {
        let connections = self.connections.max(reserved.connections);
        let work = self.work.max(reserved.work);
        let all = match claim {
            Claim::Connection if self.connections <= reserved.connections => self,
            Claim::Connection => Self { work, ..self },
            Claim::Work => Self { connections, ..self },
            _ => Self { connections, work, ..self },
        };
        all.sum()
    }
}

impl ClientMemoryState {
    /// Returns the most bytes that all clients together may take.
    fn most_bytes(&self) -> u64 {
        self.limit_bytes.map_or(u64::MAX, |_| self.kept_bytes + OVERDRAFT_BYTES)
    }

    /// Returns the part of [`most_bytes`](Self::most_bytes) that is reserved for connections and for
    /// those that work.
    fn reserved(&self) -> Claims {
        let need = need(self.limits, self.cost);
        let connections = need.connections.min(self.most_bytes() / 2);
        let work = need.work.min((self.most_bytes() - connections) / 4 * 3);
        Claims { connections, work, loans: 0 }
    }

    fn allows(&self, claim: Claim, bytes: u64) -> bool {
        if self.limit_bytes.is_none() {
            return true;
        }
        let mut after = self.taken;
        let part = after.of(claim);
        *part = part.saturating_add(bytes);
        after.with_reserves(claim, self.reserved()) <= self.most_bytes()
            && (claim != Claim::Loan || after.sum() <= self.kept_bytes)
    }

    /// Returns what is wrong with a limit that is too small for the permitted connections.
    fn warning(&self) -> Option<String> {
        let (limit_bytes, connections) = (self.limit_bytes?, self.limits.connections as u64);
        let reserved = self.reserved();
        let idle = (self.most_bytes() - reserved.work) / self.cost.idle_bytes;
        let working = reserved.work / self.cost.work_bytes;
        let what = if idle < connections {
            format!("only {idle} of {connections} clients can connect, and {working} have requests in progress")
        } else if working < connections {
            format!("only {working} of {connections} clients can have requests in progress at the same time")
        } else {
            return None;
        };
        let enough = size::show(enough_bytes(self.limits, self.cost));
        let limit = size::written(limit_bytes);
        Some(format!("with a memory limit of {limit}, {what}: raise it to {enough}, or allow fewer connections"))
    }
}

/// Returns the bytes that all permitted connections take without loans.
fn need(limits: Limits, cost: Cost) -> Claims {
    let served = (limits.connections as u64).saturating_add(limits.private as u64);
    let connections = served.saturating_add(NEWCOMERS.min(limits.negotiating as u64)).saturating_mul(cost.idle_bytes);
    Claims { connections, work: served.saturating_mul(cost.work_bytes), loans: 0 }
}

/// Returns how much of a limit to reserve: 1/32, or up to 1/16 if all permitted connections need it,
/// but never more than all of them can use.
fn kept_bytes(limit_bytes: u64, limits: Limits, cost: Cost) -> u64 {
    let spare_bytes = limit_bytes.saturating_sub(SMALL_LIMIT_BYTES);
    let need_bytes = need(limits, cost).sum();
    let most_bytes = need_bytes.saturating_add(limits.memory_bytes);
    (spare_bytes / 16).min(need_bytes).max(spare_bytes / 32).min(most_bytes)
}

/// Returns a limit with which all permitted connections can work, to a whole MiB.
fn enough_bytes(limits: Limits, cost: Cost) -> u64 {
    const MIB: u64 = 1 << 20;
    // With a limit of this size, both reserves are granted in full.
    let Claims { connections, work, .. } = need(limits, cost);
    let most_bytes = connections.saturating_mul(2).max(connections.saturating_add(work.div_ceil(3).saturating_mul(4)));
    let kept_bytes = most_bytes.saturating_sub(OVERDRAFT_BYTES);
    let need_bytes = connections.saturating_add(work);
    let spare_bytes = kept_bytes.saturating_mul(if kept_bytes <= need_bytes { 16 } else { 32 });
    spare_bytes.saturating_add(SMALL_LIMIT_BYTES).div_ceil(MIB).saturating_mul(MIB)
}

impl ClientMemory {
    /// Reserves a part of the limit, which is already set in the pool.
    pub(crate) fn new(pool: Pool, limits: Limits, limit_bytes: Option<u64>) -> Self {
        let state = ClientMemoryState {
            limits,
            cost: Cost::PLAIN,
            limit_bytes: None,
            kept_bytes: 0,
            taken: Claims::default(),
            counted_bytes: 0,
            exempt_bytes: 0,
        };
        let memory = Self { pool, state: Mutex::new(state) };
        memory.set_limit(limit_bytes);
        memory
    }

    /// Reserves a part of the pool's new limit.
    pub(crate) fn set_limit(&self, limit_bytes: Option<u64>) {
        let mut state = self.lock();
        state.limit_bytes = limit_bytes;
        self.reserve(&mut state);
    }

    /// Reserves memory for another number of connections.
    pub(crate) fn set_connections(&self, connections: usize) {
        let mut state = self.lock();
        state.limits.connections = connections;
        self.reserve(&mut state);
    }

    /// Reserves memory for connections that may cost more than plain ones, such as those with TLS.
    #[cfg(any(feature = "tls", test))]
    pub(crate) fn add_cost(&self, idle_bytes: u64, work_bytes: u64) {
        let mut state = self.lock();
        state.cost.idle_bytes += idle_bytes;
        state.cost.work_bytes += work_bytes;
        self.reserve(&mut state);
    }

    fn reserve(&self, state: &mut ClientMemoryState) {
        state.kept_bytes = state.limit_bytes.map_or(0, |limit_bytes| kept_bytes(limit_bytes, state.limits, state.cost));
        self.settle(state);
    }

    /// Returns the memory that clients use now.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.lock().taken.sum()
    }

    /// Returns what is wrong with a limit that is too small for the permitted connections.
    pub(crate) fn warning(&self) -> Option<String> {
        self.lock().warning()
    }

    /// Counts the reserve in the pool if there is room. Memory that clients use in addition is
    /// counted beyond the limit. When the reserve shrinks, the part in use stays counted. Without a
    /// limit, only the memory in use is counted.
    fn settle(&self, state: &mut ClientMemoryState) {
        let taken_bytes = state.taken.sum();
        let in_use_bytes = taken_bytes.min(state.counted_bytes);
        let due_bytes = if state.limit_bytes.is_some() { state.kept_bytes.max(in_use_bytes) } else { taken_bytes };
        if let Some(more_bytes) = due_bytes.checked_sub(state.counted_bytes) {
            if self.pool.take_outside(more_bytes) {
                state.counted_bytes = due_bytes;
            }
        } else {
            self.pool.give_outside(state.counted_bytes - due_bytes);
            state.counted_bytes = due_bytes;
        }
        let exempt_bytes = taken_bytes.saturating_sub(state.counted_bytes);
        if let Some(more_bytes) = exempt_bytes.checked_sub(state.exempt_bytes) {
            self.pool.take_exempt(more_bytes);
        } else {
            self.pool.give_exempt(state.exempt_bytes - exempt_bytes);
        }
        state.exempt_bytes = exempt_bytes;
    }

    fn lock(&self) -> MutexGuard<'_, ClientMemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account for ClientMemory {
    fn take(&self, claim: Claim, bytes: u64) -> bool {
        let mut state = self.lock();
        if !state.allows(claim, bytes) {
            return false;
        }
        // Loans are never beyond the limit.
        let taken_bytes = state.taken.sum() + bytes;
        if claim == Claim::Loan
            && let Some(more_bytes @ 1..) = taken_bytes.checked_sub(state.counted_bytes)
        {
            if !self.pool.take_outside(more_bytes) {
                return false;
            }
            state.counted_bytes = taken_bytes;
        }
        *state.taken.of(claim) += bytes;
        self.settle(&mut state);
        true
    }

    fn give(&self, claim: Claim, bytes: u64) {
        let mut state = self.lock();
        *state.taken.of(claim) -= bytes;
        self.settle(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use pagefold_disk::PoolConfig;
    use proptest::prelude::*;

    use super::*;

    fn pool(limit_bytes: Option<u64>) -> Pool {
        let memory_limit = limit_bytes.unwrap_or(u64::MAX);
        Pool::new(PoolConfig::default().memory_limit(memory_limit)).expect("a pool")
    }

    fn most(memory: &ClientMemory, claim: Claim, bytes: u64) -> u64 {
        (0..).find(|_| !memory.take(claim, bytes)).unwrap_or_default()
    }

    #[test]
    fn a_part_of_each_limit_is_kept() {
        let limits = Limits::default();
        let need_bytes = (128 + 16) * (IDLE_BYTES + WORK_BYTES) + 64 * IDLE_BYTES;
        let cases = [
            (1 << 20, 0),
            (4 << 20, 0),
            (68 << 20, 4 << 20),
            (132 << 20, need_bytes),
            (1028 << 20, 32 << 20),
            (1 << 40, need_bytes + (64 << 20)),
        ];
        for (limit_bytes, expected) in cases {
            assert_eq!(kept_bytes(limit_bytes, limits, Cost::PLAIN), expected, "{limit_bytes}");
        }
    }

    #[test]
    fn loans_leave_room_for_all_connections_and_their_work() {
        let limits = Limits::default();
        for limit_mib in [64, 256, 1024] {
            let pool = pool(Some(limit_mib << 20));
            let memory = ClientMemory::new(pool.clone(), limits, Some(limit_mib << 20));
            let before_bytes = pool.stats().outside_bytes;
            let loans = most(&memory, Claim::Loan, 64 << 10);
            assert!(loans >= 32, "only {loans} loans at {limit_mib} MiB");
            assert_eq!(pool.stats().outside_bytes, before_bytes, "loans are reserved");
            for _ in 0..limits.connections + limits.private {
                assert!(memory.take(Claim::Connection, IDLE_BYTES) && memory.take(Claim::Work, WORK_BYTES));
            }
            assert!(memory.take(Claim::Connection, IDLE_BYTES), "a newcomer");
            assert_eq!(memory.warning(), None);
        }
    }

    #[test]
    fn disks_get_the_memory_that_is_not_reserved_for_clients() {
        let pool = pool(Some(68 << 20));
        let memory = ClientMemory::new(pool.clone(), Limits::default(), Some(68 << 20));
        let outside = || pool.stats().outside_bytes;
        assert_eq!(outside(), 4 << 20);
        let taken_bytes = || memory.taken_bytes();
        let connections = most(&memory, Claim::Connection, IDLE_BYTES);
        let working = most(&memory, Claim::Work, WORK_BYTES);
        assert!(
            taken_bytes() <= (4 << 20) + OVERDRAFT_BYTES && taken_bytes() + WORK_BYTES > (4 << 20) + OVERDRAFT_BYTES
        );
        assert_eq!(outside(), taken_bytes().max(4 << 20));
        assert!(!memory.take(Claim::Loan, 1));
        (0..working).for_each(|_| memory.give(Claim::Work, WORK_BYTES));
        (0..connections).for_each(|_| memory.give(Claim::Connection, IDLE_BYTES));
        assert_eq!((outside(), taken_bytes()), (4 << 20, 0));
    }

    #[test]
    fn a_limit_that_is_too_small_for_the_connections_is_warned_of() {
        let with = |connections| {
            let mut limits = Limits::default();
            limits.connections = connections;
            limits
        };
        for (connections, limit_mib) in [(128, 16), (1100, 64), (5000, 16)] {
            let limits = with(connections);
            let warning = |limit_bytes| ClientMemory::new(pool(Some(limit_bytes)), limits, Some(limit_bytes)).warning();
            let text = warning(limit_mib << 20).expect("a warning");
            assert!(text.contains(&connections.to_string()), "{text}");
            let enough = enough_bytes(limits, Cost::PLAIN);
            assert_eq!(warning(enough), None, "{enough}");
        }
        assert_eq!(ClientMemory::new(pool(None), with(1 << 20), None).warning(), None);
        // A reserve that suffices for plain connections does not suffice with TLS.
        let enough = enough_bytes(with(128), Cost::PLAIN);
        let memory = ClientMemory::new(pool(Some(enough)), with(128), Some(enough));
        assert_eq!(memory.warning(), None);
        memory.add_cost(12 << 10, 72 << 10);
        let warning = memory.warning().expect("a warning");
        assert!(warning.contains("of 128 clients can have requests in progress"), "{warning}");
        let enough = enough_bytes(with(128), memory.lock().cost);
        memory.set_limit(Some(enough));
        assert_eq!(memory.warning(), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Whatever clients do, they take no more than their share. Every connection up to the
        /// maximum gets its minimum and, with a sufficient limit, also what it needs to work.
        #[test]
        fn claims_keep_each_others_reserves(
            connections in 1_usize..300,
            limit_kib in 1024_u64..(256 << 10),
            (more_idle_kib, more_work_kib) in prop_oneof![Just((0, 0)), Just((12, 72)), (0_u64..64, 0_u64..256)],
            steps in proptest::collection::vec((0_u8..3, 1_u64..(2 << 20), any::<bool>()), 1..200),
        ) {
            let mut limits = Limits::default();
            limits.connections = connections;
            let limit_bytes = limit_kib << 10;
            let memory = ClientMemory::new(pool(Some(limit_bytes)), limits, Some(limit_bytes));
            memory.add_cost(more_idle_kib << 10, more_work_kib << 10);
            let cost = memory.lock().cost;
            let (idle_bytes, work_bytes) = (cost.idle_bytes, cost.work_bytes);
            let is_enough = memory.warning().is_none();
            let most_bytes = kept_bytes(limit_bytes, limits, cost) + OVERDRAFT_BYTES;
            let (mut idle, mut working, mut loans) = (0, 0, Vec::new());
            for (kind, bytes, more) in steps {
                match (kind, more) {
                    (0, true) => {
                        let taken = memory.take(Claim::Connection, idle_bytes);
                        let reserved = memory.lock().reserved().connections;
                        prop_assert!(taken || (idle + 1) * idle_bytes > reserved);
                        idle += u64::from(taken);
                    }
                    (1, true) if working < idle && working < connections as u64 => {
                        let taken = memory.take(Claim::Work, work_bytes);
                        prop_assert!(taken || !is_enough);
                        working += u64::from(taken);
                    }
                    (2, true) => loans.extend(memory.take(Claim::Loan, bytes).then_some(bytes)),
                    (0, false) if idle > working => {
                        memory.give(Claim::Connection, idle_bytes);
                        idle -= 1;
                    }
                    (1, false) if working > 0 => {
                        memory.give(Claim::Work, work_bytes);
                        working -= 1;
                    }
                    (2, false) => if let Some(bytes) = loans.pop() {
                        memory.give(Claim::Loan, bytes);
                    }
                    _ => {}
                }
                let loan_bytes: u64 = loans.iter().sum();
                prop_assert_eq!(memory.taken_bytes(), idle * idle_bytes + working * work_bytes + loan_bytes);
                prop_assert!(memory.taken_bytes() <= most_bytes);
            }
        }
    }

    /// All pages compress to one length, so a full heap has no free bytes between objects. The
    /// overdraft exceeds what the pool reserves for overwriting.
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
        let clients = most(&memory, Claim::Connection, IDLE_BYTES);
        let working = most(&memory, Claim::Work, WORK_BYTES);
        assert!(memory.taken_bytes() > kept_bytes(limit_bytes, Limits::default(), Cost::PLAIN), "the clients overdraw");
        for slot in (0..stored).step_by(7) {
            write(slot).expect("a page like the one before");
        }
        (0..working).for_each(|_| memory.give(Claim::Work, WORK_BYTES));
        (0..clients).for_each(|_| memory.give(Claim::Connection, IDLE_BYTES));
        let stats = pool.stats();
        assert!(stats.spent_bytes <= limit_bytes, "{stats:?}");
    }

    #[test]
    fn without_a_limit_what_is_taken_is_counted_and_a_new_limit_keeps_its_part() {
        let pool = pool(None);
        let memory = ClientMemory::new(pool.clone(), Limits::default(), None);
        let outside = || pool.stats().outside_bytes;
        assert!(memory.take(Claim::Loan, 8 << 20));
        assert_eq!(outside(), 8 << 20);
        pool.set_memory_limit(68 << 20).expect("room");
        memory.set_limit(Some(68 << 20));
        assert!(!memory.take(Claim::Loan, 1));
        assert_eq!(outside(), 8 << 20);
        memory.give(Claim::Loan, 8 << 20);
        assert_eq!(outside(), 4 << 20);
        memory.set_limit(None);
        assert_eq!(outside(), 0);
    }
}

//! The CPU that a thread runs on, as a number without gaps.
//!
//! The system's ids have gaps: a process may be restricted to some CPUs (affinity, cpusets), and
//! sockets and siblings may be absent. CPUs are numbered from 0. Two CPUs known when the pool was
//! created share a number only if the process may use fewer simultaneously (a CPU time quota). A
//! CPU that appears later gets one of the same numbers. A number is only a hint where to look
//! first: a thread may run on another CPU before it has used the number.
//!
//! The id comes from libc's `sched_getcpu`. rustix's crashes under valgrind: it looks for the vDSO,
//! which valgrind hides.
#![allow(unsafe_code)] // calls libc

use std::{num::NonZero, thread};

use rustix::thread::{CpuSet, sched_getaffinity};

/// The CPUs that the process may use.
#[derive(Debug)]
pub(crate) struct Cpus {
    /// The number of each id, below `count`.
    numbers: Box<[u16]>,
    count: usize,
}

impl Cpus {
    /// Finds the CPUs that the calling thread may run on. The count is the number that the process
    /// may use simultaneously.
    pub(crate) fn new() -> Self {
        #[cfg(all(test, not(loom)))]
        if let Some((ids, count)) = fake::machine() {
            return Self::of(&ids, count);
        }
        let count = thread::available_parallelism().map_or(1, NonZero::get);
        // There are more CPUs than a set can name: their ids are used instead.
        let ids = sched_getaffinity(None)
            .map_or(Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|&id| set.is_set(id)).collect());
        Self::of(&ids, count)
    }

    fn of(ids: &[usize], count: usize) -> Self {
        let end = ids.last().map_or(0, |&last| last + 1);
        let mut numbers: Box<[u16]> = (0..end).map(|id| (id % count) as u16).collect();
        for (rank, &id) in ids.iter().enumerate() {
            numbers[id] = (rank % count) as u16;
        }
        Self { numbers, count }
    }

    /// Returns how many numbers there are, at least one.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of the CPU that this thread runs on.
    #[inline]
    pub(crate) fn current(&self) -> usize {
        let id = Self::current_id();
        self.numbers.get(id).map_or_else(|| id % self.count, |&number| number.into())
    }

    fn current_id() -> usize {
        #[cfg(all(test, not(loom)))]
        if let Some(id) = fake::current_id() {
            return id;
        }
        // SAFETY: it accesses no memory of the caller, and no state but errno.
        let id = unsafe { libc::sched_getcpu() };
        // The call fails only in a kernel that does not have it.
        usize::try_from(id).unwrap_or(0)
    }

    /// Returns the bytes used in addition to the struct.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(&*self.numbers) as u64
    }
}

/// A machine that a test pretends to run on.
#[cfg(all(test, not(loom)))]
pub(crate) mod fake {
    use std::cell::{Cell, RefCell};

    thread_local! {
        static MACHINE: RefCell<Option<(Vec<usize>, usize)>> = const { RefCell::new(None) };
        static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Makes pools that this thread creates see CPUs with these ids, in ascending order, of which
    /// `count` may be used simultaneously.
    pub(crate) fn set_machine(ids: impl IntoIterator<Item = usize>, count: usize) {
        MACHINE.set(Some((ids.into_iter().collect(), count)));
    }

    /// Makes this thread appear to run on the CPU with this id.
    pub(crate) fn run_on(id: usize) {
        CURRENT.set(Some(id));
    }

    pub(super) fn machine() -> Option<(Vec<usize>, usize)> {
        MACHINE.with_borrow(Clone::clone)
    }

    pub(super) fn current_id() -> Option<usize> {
        CURRENT.get()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pagefold_codec::{PAGE_SIZE, Page};

    use super::*;
    use crate::{PoolConfig, tests::One};

    /// Writes and reads pages from threads that appear to run on the CPUs `ids`, then checks the
    /// store.
    fn use_from(store: &One, ids: impl IntoIterator<Item = usize>) {
        let part = 40;
        thread::scope(|scope| {
            for (thread, id) in (0..).zip(ids) {
                scope.spawn(move || {
                    fake::run_on(id);
                    let page = |slot: u64| -> Page { std::array::from_fn(|at| (at as u64 * slot / 700) as u8) };
                    for slot in thread * part..(thread + 1) * part {
                        store.write(slot, &page(slot + 1)).expect("memory");
                    }
                    for slot in thread * part..(thread + 1) * part {
                        let mut back = [0; PAGE_SIZE];
                        store.read(slot, &mut back).expect("written");
                        assert_eq!(back, page(slot + 1));
                    }
                });
            }
        });
        store.check().expect("consistent");
    }

    #[test]
    fn a_thread_that_is_moved_over_64_cpus_makes_one_stream() {
        fake::set_machine(0..64, 64);
        let store = One::new(1 << 20, PoolConfig::default());
        let empty = store.stats();
        assert!(empty.spent_bytes <= 40 << 10, "{empty:?}");
        use_from(&store, [0]);
        let one = store.stats().stream_bytes - empty.stream_bytes;
        (1..64).for_each(|id| use_from(&store, [id]));
        let all = store.stats().stream_bytes - empty.stream_bytes;
        // One more, if the compacting thread held the first for a moment.
        assert!(all == one || all == 2 * one, "{all} bytes, {one} a stream");
        use_from(&store, 0..64);
        assert!(store.stats().stream_bytes - empty.stream_bytes <= 256 * one);
    }

    #[test]
    fn cpus_with_far_ids_are_no_special_case() {
        fake::set_machine([3, 64, 65, 700], 4);
        let store = One::new(1 << 20, PoolConfig::default());
        use_from(&store, [3, 64, 65, 700]);
    }

    #[test]
    fn a_cpu_that_came_later_is_no_special_case() {
        fake::set_machine([0, 1], 2);
        let store = One::new(1 << 20, PoolConfig::default());
        use_from(&store, [0, 1, 2, 77, 4095, usize::MAX]);
    }

    fn numbers(cpus: &Cpus, ids: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let number = |id| {
            fake::run_on(id);
            cpus.current()
        };
        ids.into_iter().map(number).collect()
    }

    #[test]
    fn ids_with_gaps_have_numbers_without() {
        let ids = [3, 64, 65, 700];
        assert_eq!(numbers(&Cpus::of(&ids, 4), ids), [0, 1, 2, 3]);
    }

    #[test]
    fn a_quota_shares_numbers_out_evenly() {
        let mut found = numbers(&Cpus::of(&Vec::from_iter(0..64), 4), 0..64);
        found.sort_unstable();
        assert_eq!(found, Vec::from_iter((0..64).map(|at| at / 16)));
    }

    #[test]
    fn ids_that_were_unknown_have_a_number() {
        for cpus in [Cpus::of(&[1, 2], 2), Cpus::of(&[], 3)] {
            assert!(numbers(&cpus, [0, 5, 4095, usize::MAX]).iter().all(|&number| number < cpus.count()));
        }
    }

    #[test]
    fn this_machine_has_a_number_for_each_cpu() {
        let cpus = Cpus::new();
        assert!(cpus.count() > 0 && cpus.current() < cpus.count());
    }
}

//! The five locks that were compared for zram's table ("zram: remove global tb_lock with fine grain
//! lock", May 2014).
//!
//! | strategy      | its name there | lock                           | bytes for each entry  | readers of an entry |
//! |---------------|----------------|--------------------------------|-----------------------|---------------------|
//! | `TableRwLock` | base           | one reader-writer lock for all | 0                     | share               |
//! | `Cas`         | CAS            | a flag, compare-and-swap       | 4                     | take turns          |
//! | `Spin`        | spinlock       | a ticket lock                  | 4                     | take turns          |
//! | `RwLock`      | rwlock         | a reader-writer lock           | 4                     | share               |
//! | `BitSpin`     | bit_spinlock   | a bit of the entry's word      | 0                     | take turns          |
//!
//! `BitSpin` was chosen because it needs no memory. In the kernel the holder of a spinlock cannot
//! be preempted. Here it can, so a waiter that has spun for a while yields the CPU.

use std::{fmt::Debug, marker::PhantomData};

#[cfg(not(loom))]
use std::sync::atomic::{
    AtomicU16, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

#[cfg(not(loom))]
use crossbeam_utils::Backoff;
#[cfg(loom)]
use loom::{
    sync::atomic::{
        AtomicU16, AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    thread::yield_now,
};

/// A way to guard the entries of a [`Store`](crate::Store): the kind of lock, and where it is. The
/// types in [`strategy`](crate::strategy) are the only ones.
pub trait EntryLock: Sealed + Debug + Send + Sync + Sized + 'static {
    /// The name in tables and benches.
    const NAME: &'static str;

    /// Bytes per entry, including the lock.
    const ENTRY_BYTES: usize = size_of::<AtomicU64>() + size_of::<Self::PerEntry>();

    /// Data that exists once per table.
    type Whole: Debug + Default + Send + Sync;

    /// Data next to each entry's word.
    type PerEntry: Debug + Default + Send + Sync;

    /// The lock.
    type Lock: Lock;

    /// Returns the lock that guards the entry with this word.
    fn of<'a>(whole: &'a Self::Whole, per_entry: &'a Self::PerEntry, word: &'a BitLock) -> &'a Self::Lock;

    /// Locks the entry with this word, and returns the word.
    fn lock(lock: &Self::Lock, word: &BitLock) -> u64 {
        lock.lock();
        word.get()
    }

    /// Locks the entry with this word for reading, and returns the word.
    fn lock_shared(lock: &Self::Lock, word: &BitLock) -> u64 {
        lock.lock_shared();
        word.get()
    }
}

/// Restricts strategies to those of this file: the store's safety depends on them.
pub trait Sealed {}

/// A lock that is exclusive or, if it supports that, shared with other readers.
pub trait Lock {
    /// Waits until no thread holds the lock and takes it.
    fn lock(&self);

    /// Releases the lock. Later holders see what this holder has stored.
    fn unlock(&self);

    /// Takes the lock for reading.
    fn lock_shared(&self) {
        self.lock();
    }

    /// Releases the lock after reading.
    fn unlock_shared(&self) {
        self.unlock();
    }
}

/// Waits until `attempt` succeeds, which depends on another thread. Tries less and less often, then
/// yields the CPU between two tries.
#[cfg(not(loom))]
pub(crate) fn wait_until(mut attempt: impl FnMut() -> bool) {
    let backoff = Backoff::new();
    while !attempt() {
        backoff.snooze();
    }
}

#[cfg(loom)]
pub(crate) fn wait_until(mut attempt: impl FnMut() -> bool) {
    while !attempt() {
        yield_now();
    }
}

/// A flag, taken by compare-and-swap.
#[derive(Debug, Default)]
pub struct Flag(AtomicU32);

impl Lock for Flag {
    fn lock(&self) {
        wait_until(|| self.0.load(Relaxed) == 0 && self.0.compare_exchange_weak(0, 1, Acquire, Relaxed).is_ok());
    }

    fn unlock(&self) {
        self.0.store(0, Release);
    }
}

/// A ticket lock: first come, first served. The numbers wrap, so up to 65,535 threads may wait.
#[derive(Debug, Default)]
pub struct Ticket {
    next: AtomicU16,
    served: AtomicU16,
}

impl Lock for Ticket {
    fn lock(&self) {
        let own = self.next.fetch_add(1, Relaxed);
        wait_until(|| self.served.load(Acquire) == own);
    }

    fn unlock(&self) {
        // Only the holder changes `served`.
        self.served.store(self.served.load(Relaxed).wrapping_add(1), Release);
    }
}

/// A reader-writer spinlock: the number of readers, or a writer. A waiting writer keeps new readers
/// out, so that readers cannot starve it.
#[derive(Debug, Default)]
pub struct RwSpin(AtomicU32);

const WRITER: u32 = 1 << 31;
const WRITER_WAITS: u32 = 1 << 30;

impl Lock for RwSpin {
    fn lock(&self) {
        wait_until(|| {
            let state = self.0.load(Relaxed);
            if state & !WRITER_WAITS == 0 {
                // This also clears the mark of other waiting writers; they set it again.
                return self.0.compare_exchange_weak(state, WRITER, Acquire, Relaxed).is_ok();
            }
            if state & WRITER_WAITS == 0 {
                self.0.fetch_or(WRITER_WAITS, Relaxed);
            }
            false
        });
    }

    fn unlock(&self) {
        self.0.fetch_and(!WRITER, Release);
    }

    fn lock_shared(&self) {
        wait_until(|| {
            let readers = self.0.load(Relaxed);
            readers & (WRITER | WRITER_WAITS) == 0
                && self.0.compare_exchange_weak(readers, readers + 1, Acquire, Relaxed).is_ok()
        });
    }

    fn unlock_shared(&self) {
        self.0.fetch_sub(1, Release);
    }
}

/// An entry's word, whose highest bit is a lock.
#[derive(Debug, Default)]
pub struct BitLock(AtomicU64);

const LOCKED: u64 = 1 << 63;

impl Lock for BitLock {
    fn lock(&self) {
        self.lock_and_get();
    }

    fn unlock(&self) {
        // Only the holder changes a locked word: exchanges by waiters fail.
        self.0.store(self.get(), Release);
    }
}

impl BitLock {
    /// Takes the lock and returns the word as it was before the bit was set. The CPU continues with
    /// that value while it sets the bit, as in zram, where the object's handle and the bit are in
    /// different words.
    fn lock_and_get(&self) -> u64 {
        let mut word = 0;
        wait_until(|| {
            word = self.get();
            self.0.compare_exchange_weak(word, word | LOCKED, Acquire, Relaxed).is_ok()
        });
        word
    }

    /// Returns the word without the bit. The caller holds the entry's lock.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed) & !LOCKED
    }

    /// Stores `word`, whose highest bit is clear, and leaves the lock bit unchanged. The caller
    /// holds the entry's lock exclusively.
    pub(crate) fn set(&self, word: u64) {
        debug_assert_eq!(word & LOCKED, 0);
        self.0.store(word | self.0.load(Relaxed) & LOCKED, Relaxed);
    }
}

/// One reader-writer lock for the whole table, as zram had before its entries had locks.
#[derive(Debug)]
pub enum TableRwLock {}

impl Sealed for TableRwLock {}

impl EntryLock for TableRwLock {
    const NAME: &'static str = "table-rwlock";
    type Whole = RwSpin;
    type PerEntry = ();
    type Lock = RwSpin;

    fn of<'a>(whole: &'a RwSpin, (): &'a (), _: &'a BitLock) -> &'a RwSpin {
        whole
    }
}

/// A bit of the entry's word, which zram adopted in 2014.
#[derive(Debug)]
pub enum BitSpin {}

impl Sealed for BitSpin {}

impl EntryLock for BitSpin {
    const NAME: &'static str = "bit-spin";
    type Whole = ();
    type PerEntry = ();
    type Lock = BitLock;

    fn of<'a>((): &'a (), (): &'a (), word: &'a BitLock) -> &'a BitLock {
        word
    }

    fn lock(lock: &BitLock, _: &BitLock) -> u64 {
        lock.lock_and_get()
    }

    fn lock_shared(lock: &BitLock, _: &BitLock) -> u64 {
        lock.lock_and_get()
    }
}

/// A lock next to each entry.
#[derive(Debug)]
pub struct Separate<A>(PhantomData<A>);

/// A flag next to each entry, taken by compare-and-swap.
pub type Cas = Separate<Flag>;
/// A ticket lock next to each entry.
pub type Spin = Separate<Ticket>;
/// A reader-writer lock next to each entry.
pub type RwLock = Separate<RwSpin>;

/// A lock small enough to store next to an entry.
pub trait Small: Lock + Debug + Default + Send + Sync + 'static {
    /// The strategy's name.
    const NAME: &'static str;
}

impl Small for Flag {
    const NAME: &'static str = "cas";
}

impl Small for Ticket {
    const NAME: &'static str = "spin";
}

impl Small for RwSpin {
    const NAME: &'static str = "rwlock";
}

impl<A: Small> Sealed for Separate<A> {}

impl<A: Small> EntryLock for Separate<A> {
    const NAME: &'static str = A::NAME;
    type Whole = ();
    type PerEntry = A;
    type Lock = A;

    fn of<'a>((): &'a (), per_entry: &'a A, _: &'a BitLock) -> &'a A {
        per_entry
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{sync::atomic::AtomicBool, thread};

    use super::*;

    /// Threads add to a counter with separate loads and stores, and read two numbers that change
    /// together.
    fn excludes(lock: &(impl Lock + Sync)) {
        const THREADS: u64 = 4;
        const TURNS: u64 = 20_000;
        let (one, other, torn) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for turn in 0..TURNS {
                        lock.lock();
                        let next = one.load(Relaxed) + 1;
                        one.store(next, Relaxed);
                        if turn % 512 == 0 {
                            thread::yield_now();
                        }
                        other.store(next, Relaxed);
                        lock.unlock();
                        lock.lock_shared();
                        torn.fetch_or(one.load(Relaxed) != other.load(Relaxed), Relaxed);
                        lock.unlock_shared();
                    }
                });
            }
        });
        assert_eq!(one.into_inner(), THREADS * TURNS);
        assert!(!torn.into_inner(), "a reader met a writer");
    }

    #[test]
    fn every_lock_keeps_others_out() {
        excludes(&Flag::default());
        excludes(&Ticket::default());
        excludes(&RwSpin::default());
        excludes(&BitLock::default());
    }

    #[test]
    fn readers_share_where_the_table_says_so() {
        let lock = RwSpin::default();
        lock.lock_shared();
        lock.lock_shared();
        lock.unlock_shared();
        lock.unlock_shared();
        lock.lock();
    }

    #[test]
    fn tickets_wrap() {
        let lock = Ticket::default();
        for _ in 0..3 << 15 {
            lock.lock();
            lock.unlock();
        }
    }

    #[test]
    fn a_word_can_change_while_its_lock_bit_is_held() {
        let word = BitLock::default();
        word.lock();
        word.set(7);
        assert_eq!(word.get(), 7);
        word.unlock();
        word.lock();
        assert_eq!(word.get(), 7);
    }

    #[test]
    fn entries_have_the_bytes_of_the_table_above() {
        assert_eq!(TableRwLock::ENTRY_BYTES, 8);
        assert_eq!([Cas::ENTRY_BYTES, Spin::ENTRY_BYTES, RwLock::ENTRY_BYTES], [12; 3]);
        assert_eq!(BitSpin::ENTRY_BYTES, 8);
    }
}

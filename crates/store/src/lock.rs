//! The strategies that guard an entry, chosen by type at compile time.
//!
//! All but [`Hazard`] are locks that a reader holds while it copies an object's compressed bytes; with `Hazard` a reader
//! holds none. They differ in where the lock is, and in whether readers exclude each other:
//!
//! | strategy      | lock                                | bytes beside an entry | readers of an entry |
//! |---------------|-------------------------------------|-----------------------|---------------------|
//! | `TableRwLock` | one reader-writer lock for all      | 0                     | share               |
//! | `Cas`         | a flag, compare-and-swap            | 4                     | take turns          |
//! | `Spin`        | a ticket lock                       | 4                     | take turns          |
//! | `RwLock`      | a reader-writer lock                | 4                     | share               |
//! | `BitSpin`     | a bit of the entry's word           | 0                     | take turns          |
//! | `Hazard`      | the same bit, for writers only      | 0                     | do not lock         |
//!
//! The first five are those that were compared for zram in May 2014 ("zram: remove global tb_lock with fine grain lock",
//! LKML); there the fifth won, for its memory. All spin and, when that lasts, give the CPU away.

use std::{fmt::Debug, marker::PhantomData};

use crate::{
    entry::LOCK,
    pins::Pin,
    sync::{
        AtomicU16, AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
        wait_for,
    },
};

/// A way to guard the entries of a [`Store`](crate::Store); the types in [`strategy`](crate::strategy) are all there are.
pub trait EntryLock: Protocol {
    /// The name in tables and benches.
    const NAME: &'static str;

    /// Bytes that a slot's entry costs, lock included.
    const ENTRY_BYTES: usize = size_of::<AtomicU64>() + size_of::<Self::Beside>();
}

/// What a strategy does with an entry. Not nameable outside the crate.
pub trait Protocol: Debug + Send + Sync + Sized + 'static {
    /// The part that a table has once.
    type Whole: Debug + Default + Send + Sync;

    /// The part that each entry has beside its word.
    type Beside: Debug + Default + Send + Sync;

    /// Whether readers pin objects instead of locking entries. What a writer takes out of a slot then stays live until no
    /// pin names it.
    const PINS: bool = false;

    /// Waits until no one else holds the entry and takes it. Returns its word, lock bit clear.
    ///
    /// This and the two below take and give the bit of the word, unless the strategy's lock is elsewhere.
    fn lock(place: Place<'_, Self>) -> u64 {
        wait_for(|| {
            let word = place.word.load(Relaxed);
            if word & LOCK != 0 {
                return None;
            }
            place.word.compare_exchange_weak(word, word | LOCK, Acquire, Relaxed).ok()
        })
    }

    /// As [`lock`](Self::lock), but `None` if someone else holds the entry.
    fn try_lock(place: Place<'_, Self>) -> Option<u64> {
        let word = place.word.load(Relaxed) & !LOCK;
        place.word.compare_exchange(word, word | LOCK, Acquire, Relaxed).ok()
    }

    /// Stores `word` and gives the entry back.
    fn unlock(place: Place<'_, Self>, word: u64) {
        place.word.store(word, Release);
    }

    /// Takes the entry for reading. Returns its word, lock bit clear; what it names stays live until
    /// [`leave`](Self::leave), or with [`PINS`](Self::PINS) as long as `pin` is held and not moved.
    fn enter(place: Place<'_, Self>, pin: &mut Pin<'_>) -> u64;

    /// Gives the entry back after reading.
    fn leave(place: Place<'_, Self>);
}

/// Where an entry and its lock are.
#[derive(Debug)]
pub struct Place<'a, P: Protocol> {
    pub(crate) word: &'a AtomicU64,
    pub(crate) beside: &'a P::Beside,
    pub(crate) whole: &'a P::Whole,
}

impl<P: Protocol> Clone for Place<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Protocol> Copy for Place<'_, P> {}

/// A lock that is not in the entry's word.
pub trait Apart: Debug + Default + Send + Sync + 'static {
    /// The name of the strategy that has one beside each entry.
    const NAME: &'static str;

    fn lock(&self);
    fn try_lock(&self) -> bool;
    fn unlock(&self);

    /// Takes it for reading: with others, where the lock can tell.
    fn lock_shared(&self) {
        self.lock();
    }

    fn unlock_shared(&self) {
        self.unlock();
    }
}

/// A flag, taken by compare-and-swap.
#[derive(Debug, Default)]
pub struct Flag(AtomicU32);

impl Apart for Flag {
    const NAME: &'static str = "cas";

    fn lock(&self) {
        wait_for(|| self.0.compare_exchange_weak(0, 1, Acquire, Relaxed).ok());
    }

    fn try_lock(&self) -> bool {
        self.0.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    fn unlock(&self) {
        self.0.store(0, Release);
    }
}

/// A ticket lock: who came first is served first. The numbers wrap, so up to 65,535 threads may wait.
#[derive(Debug, Default)]
pub struct Ticket {
    next: AtomicU16,
    served: AtomicU16,
}

impl Apart for Ticket {
    const NAME: &'static str = "spin";

    fn lock(&self) {
        let mine = self.next.fetch_add(1, Relaxed);
        wait_for(|| (self.served.load(Acquire) == mine).then_some(()));
    }

    fn try_lock(&self) -> bool {
        let served = self.served.load(Acquire);
        self.next.compare_exchange(served, served.wrapping_add(1), Acquire, Relaxed).is_ok()
    }

    fn unlock(&self) {
        // Only the holder changes `served`.
        let mine = self.served.load(Relaxed);
        self.served.store(mine.wrapping_add(1), Release);
    }
}

/// A reader-writer spinlock. A writer that waits keeps new readers out, so readers cannot starve it.
#[derive(Debug, Default)]
pub struct RwSpin(AtomicU32);

const WRITER: u32 = 1 << 31;
const WRITER_WAITS: u32 = 1 << 30;

impl Apart for RwSpin {
    const NAME: &'static str = "rwlock";

    fn lock(&self) {
        wait_for(|| {
            let state = self.0.load(Relaxed);
            if state & !WRITER_WAITS == 0 {
                // Clears the mark of other waiting writers too; they set it again.
                return self.0.compare_exchange_weak(state, WRITER, Acquire, Relaxed).ok();
            }
            if state & WRITER_WAITS == 0 {
                self.0.fetch_or(WRITER_WAITS, Relaxed);
            }
            None
        });
    }

    fn try_lock(&self) -> bool {
        self.0.compare_exchange(0, WRITER, Acquire, Relaxed).is_ok()
    }

    fn unlock(&self) {
        self.0.fetch_and(!WRITER, Release);
    }

    fn lock_shared(&self) {
        wait_for(|| {
            let readers = self.0.load(Relaxed);
            if readers & (WRITER | WRITER_WAITS) != 0 {
                return None;
            }
            self.0.compare_exchange_weak(readers, readers + 1, Acquire, Relaxed).ok()
        });
    }

    fn unlock_shared(&self) {
        self.0.fetch_sub(1, Release);
    }
}

/// A lock beside each entry.
#[derive(Debug)]
pub struct Beside<A>(PhantomData<A>);

/// A flag beside each entry, taken by compare-and-swap.
pub type Cas = Beside<Flag>;
/// A ticket lock beside each entry: who came first is served first.
pub type Spin = Beside<Ticket>;
/// A reader-writer lock beside each entry.
pub type RwLock = Beside<RwSpin>;

impl<A: Apart> EntryLock for Beside<A> {
    const NAME: &'static str = A::NAME;
}

/// One reader-writer lock for the whole table: what zram had before its entries had locks.
#[derive(Debug)]
pub enum TableRwLock {}

impl EntryLock for TableRwLock {
    const NAME: &'static str = "table-rwlock";
}

/// The five operations with a lock apart from the word, which is the place's field `$lock`.
macro_rules! with_lock {
    ($lock:ident) => {
        fn lock(place: Place<'_, Self>) -> u64 {
            place.$lock.lock();
            place.word.load(Relaxed)
        }

        fn try_lock(place: Place<'_, Self>) -> Option<u64> {
            place.$lock.try_lock().then(|| place.word.load(Relaxed))
        }

        fn unlock(place: Place<'_, Self>, word: u64) {
            place.word.store(word, Release);
            place.$lock.unlock();
        }

        fn enter(place: Place<'_, Self>, _: &mut Pin<'_>) -> u64 {
            place.$lock.lock_shared();
            place.word.load(Relaxed)
        }

        fn leave(place: Place<'_, Self>) {
            place.$lock.unlock_shared();
        }
    };
}

impl<A: Apart> Protocol for Beside<A> {
    type Whole = ();
    type Beside = A;

    with_lock!(beside);
}

impl Protocol for TableRwLock {
    type Whole = RwSpin;
    type Beside = ();

    with_lock!(whole);
}

/// A bit of the entry's word.
#[derive(Debug)]
pub enum BitSpin {}

impl EntryLock for BitSpin {
    const NAME: &'static str = "bit-spin";
}

impl Protocol for BitSpin {
    type Whole = ();
    type Beside = ();

    fn enter(place: Place<'_, Self>, _: &mut Pin<'_>) -> u64 {
        Self::lock(place)
    }

    fn leave(place: Place<'_, Self>) {
        // The holder alone changes a locked word.
        let word = place.word.load(Relaxed);
        place.word.store(word & !LOCK, Release);
    }
}

/// No lock for readers, a bit of the entry's word for writers: a reader says in its stream's pin which object it reads,
/// and a writer frees no object that a pin names.
#[derive(Debug)]
pub enum Hazard {}

impl EntryLock for Hazard {
    const NAME: &'static str = "hazard";
}

impl Protocol for Hazard {
    type Whole = ();
    type Beside = ();

    const PINS: bool = true;

    fn enter(place: Place<'_, Self>, pin: &mut Pin<'_>) -> u64 {
        pin.pin(place.word)
    }

    fn leave(_: Place<'_, Self>) {}
}

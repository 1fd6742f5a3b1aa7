//! Who moves objects and when.
//!
//! | pressure | free bytes of a shard             | who empties segments                                        |
//! |----------|-----------------------------------|-------------------------------------------------------------|
//! | none     | ≤ 1/24 of the live ones + 32 KiB  | nobody                                                      |
//! | soft     | above                             | one thread for all stores of the process, made when needed  |
//! | hard     | > 1/18 of the live ones + 64 KiB  | that thread, or a writer, [`HELP_OBJECTS`] a write          |
//!
//! One thread at a time does so in a shard. They stop at 1/30 + 16 KiB. At the memory limit a writer that finds no room empties segments itself, one writer at a time,
//! so that what was free in them lies together. An object moves while its entry is held, for the time of a copy: a reader never waits for
//! more, and with the default strategy not even for that.
#![allow(unsafe_code)] // frees objects that are in no entry

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Relaxed, Release},
        },
    },
    thread,
    time::{Duration, Instant},
};

use pagefold_codec::PAGE_SIZE;

use crate::{
    budget::Full,
    entry::Entry,
    lock::EntryLock,
    pool::{Goal, Location, Owners, Pool, Pressure},
    streams::Streams,
    table::Table,
};

/// Objects that a writer moves when the pressure is hard.
const HELP_OBJECTS: usize = 24;

/// Objects that the thread in the background moves between two looks at the other stores.
const TURN_OBJECTS: usize = 256;

/// Objects that [`Core::compact`] moves between two looks at what that brought, and how many looks without gain end it.
const LOOK_OBJECTS: usize = 512;
const LOOKS_WITHOUT_GAIN: u32 = 3;

/// What the thread in the background waits when a store's pressure stays though nothing can be moved.
const PAUSE: Duration = Duration::from_millis(1);

/// The part of a store that objects are moved in.
pub(crate) struct Core<L: EntryLock> {
    pub(crate) table: Table<L>,
    pub(crate) streams: Streams,
    pub(crate) pool: Box<dyn Pool>,
    /// Whether the background thread has been told of the pressure.
    told: AtomicBool,
    /// Held by the background thread while it moves objects, and by a writer that makes room.
    turning: Mutex<()>,
}

impl<L: EntryLock> Core<L> {
    pub(crate) fn new(table: Table<L>, streams: Streams, pool: Box<dyn Pool>) -> Arc<Self> {
        Arc::new(Self { table, streams, pool, told: AtomicBool::new(false), turning: Mutex::new(()) })
    }

    /// Frees the object of an entry that is in no slot (any more) and that nobody reads.
    pub(crate) fn free(&self, entry: Entry) {
        match entry {
            Entry::Empty | Entry::Same(_) => {}
            // SAFETY: the entry is in no slot and no pin names it, so the caller alone knows of its object.
            Entry::Object { len_bytes, at, .. } => unsafe { self.pool.free(at, len_bytes) },
            // SAFETY: as above.
            Entry::Raw { at } => unsafe { self.pool.free(at, PAGE_SIZE) },
        }
    }

    /// Sees to it that memory which frees have left empty in parts is given back.
    pub(crate) fn relieve(self: &Arc<Self>) {
        match self.pool.pressure() {
            Pressure::None => return,
            Pressure::Soft => {}
            Pressure::Hard => _ = self.pool.compact(&**self, Goal::Relief, HELP_OBJECTS),
        }
        // The line of `told` is one that every thread reads all the time.
        if !self.told.load(Relaxed) && !self.told.swap(true, AcqRel) {
            let store: Weak<Self> = Arc::downgrade(self);
            Background::get().tell(store);
        }
    }

    /// Takes room for an object where the limit allows no more memory: moves others until there is.
    #[cold]
    pub(crate) fn make_room(&self, len_bytes: usize, owner: u64) -> Result<Location, Full> {
        // What the limit leaves for moving is enough for one.
        let _turning = self.pause();
        self.pool.make_room(self, len_bytes, owner)
    }

    /// Keeps the background thread from moving objects of this store while the guard lives.
    pub(crate) fn pause(&self) -> MutexGuard<'_, ()> {
        self.turning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves objects until nothing more can be given back that way, or until `end`. Returns whether there is more to do.
    pub(crate) fn compact(&self, end: Option<Instant>) -> bool {
        self.settle();
        let (mut least, mut without_gain) = (self.pool.account().held_bytes, 0);
        while without_gain < LOOKS_WITHOUT_GAIN && self.pool.compact(self, Goal::Densest, LOOK_OBJECTS) {
            if end.is_some_and(|end| Instant::now() >= end) {
                return true;
            }
            let held_bytes = self.pool.account().held_bytes;
            without_gain = if held_bytes < least { 0 } else { without_gain + 1 };
            least = least.min(held_bytes);
        }
        false
    }
}

/// The object that an entry names, and its length.
pub(crate) fn object_of(entry: Entry) -> Option<(Location, usize)> {
    match entry {
        Entry::Empty | Entry::Same(_) => None,
        Entry::Object { len_bytes, at, .. } => Some((at, len_bytes)),
        Entry::Raw { at } => Some((at, PAGE_SIZE)),
    }
}

impl<L: EntryLock> Owners for Core<L> {
    fn object(&self, owner: u64) -> Option<(Location, usize)> {
        object_of(self.table.peek(owner))
    }

    fn repoint(
        &self,
        owner: u64,
        from: Location,
        to: Location,
        len_bytes: usize,
        copy: &mut dyn FnMut(),
    ) -> Option<u64> {
        let locked = self.table.try_lock(owner)?;
        let old = locked.entry();
        if object_of(old) != Some((from, len_bytes)) {
            return None;
        }
        copy();
        locked.replace(match old {
            Entry::Object { tables, .. } => Entry::Object { tables, len_bytes, at: to },
            _ => Entry::Raw { at: to },
        });
        Some(old.encode())
    }

    fn wait_for_readers(&self, words: &[u64]) {
        if L::PINS {
            self.streams.wait_for_readers(words);
        }
    }

    fn settle(&self) {
        self.streams.release_all(None, |word| self.free(Entry::decode(word)));
    }
}

/// What the background thread does for a store.
trait Compact: Send + Sync {
    /// Moves some objects. Returns whether there is more to do at once.
    fn turn(&self) -> bool;
}

impl<L: EntryLock> Compact for Core<L> {
    fn turn(&self) -> bool {
        self.told.store(false, Release);
        let turning = self.pause();
        if self.pool.compact(self, Goal::Relief, TURN_OBJECTS) {
            return true;
        }
        drop(turning);
        if self.pool.pressure() > Pressure::None {
            thread::sleep(PAUSE);
        }
        false
    }
}

/// The thread that compacts the stores of this process.
struct Background {
    waiting: Mutex<VecDeque<Weak<dyn Compact>>>,
    told: Condvar,
}

impl Background {
    fn get() -> &'static Self {
        static BACKGROUND: OnceLock<Background> = OnceLock::new();
        static THREAD: OnceLock<bool> = OnceLock::new();
        let background = BACKGROUND.get_or_init(|| Self { waiting: Mutex::default(), told: Condvar::new() });
        // Without the thread, writers alone compact.
        THREAD
            .get_or_init(|| thread::Builder::new().name("pagefold-compact".into()).spawn(|| background.run()).is_ok());
        background
    }

    fn tell(&self, store: Weak<dyn Compact>) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(store);
        self.told.notify_one();
    }

    fn run(&self) {
        loop {
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let waiting = self.told.wait_while(waiting, |waiting| waiting.is_empty());
            let store = waiting.unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(store) = store else { continue };
            if store.upgrade().is_some_and(|store| store.turn()) {
                self.tell(store);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pagefold_codec::{Lz4, Page};

    use super::*;
    use crate::{Config, Store, budget::Budget, cpus::fake, lock::Hazard, pool::PoolKind, streams::StreamPolicy};

    const LEN: usize = 100;

    /// Slot 0 holds an object, and there is room to move it to.
    struct World {
        core: Arc<Core<Hazard>>,
        budget: Arc<Budget>,
        from: Location,
        to: Location,
    }

    impl World {
        fn new() -> Self {
            let budget = Arc::new(Budget::new(u64::MAX));
            let table = Table::new(4).expect("a small root");
            let pool = PoolKind::Mosaic.make(16, 4, Arc::clone(&budget)).expect("a small pool");
            let core = Core::new(table, Streams::new(Arc::new(Lz4), StreamPolicy::PerCpu, true), pool);
            let [from, to] = [0, 0].map(|owner| core.pool.alloc(LEN, owner).expect("memory"));
            core.table.lock_or_make(0, &budget).expect("no limit").replace(object(from));
            Self { core, budget, from, to }
        }

        fn repoint(&self, owner: u64, from: Location, len_bytes: usize) -> bool {
            let mut copy =
                || assert!(self.core.table.try_lock(owner).is_none(), "the entry is held while it is copied");
            let word = self.core.repoint(owner, from, self.to, len_bytes, &mut copy);
            self.core.wait_for_readers(word.as_slice());
            word.is_some()
        }
    }

    fn object(at: Location) -> Entry {
        Entry::Object { tables: 0, len_bytes: LEN, at }
    }

    /// Many CPUs' streams each keep what they took out of slots for a moment; freed together it must not look like memory
    /// that is worth moving objects for.
    #[test]
    fn a_small_store_on_many_cpus_does_not_take_its_memory_anew() {
        fake::set_machine(0..16, 16);
        let (slots, rounds) = (192, 40);
        let store = Store::new(Config { slots, codec: Arc::new(Lz4), ..Config::default() }).expect("a small store");
        let noise =
            |salt: u64| std::array::from_fn(|at| ((at as u64 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8);
        let pages: Vec<Page> = (0..7).map(|salt| noise(salt << 40)).collect();
        for round in 0..rounds {
            if round == rounds / 2 {
                store.budget().fail(0, 0);
            }
            for slot in 0..slots {
                fake::run_on((slot * 16 / slots) as usize);
                store.write(slot, &pages[((slot + round) % 7) as usize]).expect("no limit");
            }
        }
        let (taken, writes) = (store.budget().calls(), rounds / 2 * slots);
        assert!(taken < writes / 6, "memory was taken {taken} times in {writes} writes of equal length");
    }

    #[test]
    fn an_object_moves_while_its_entry_names_it() {
        let world = World::new();
        assert!(!world.repoint(0, world.to, LEN), "the entry names another");
        assert!(!world.repoint(0, world.from, LEN - 1), "it was replaced by one of another length");
        assert!(!world.repoint(1, world.from, LEN), "nothing is in the slot");
        let held = world.core.table.lock(0);
        assert!(!world.repoint(0, world.from, LEN), "somebody holds the entry");
        drop(held);
        assert_eq!(world.core.table.peek(0), object(world.from));
        assert!(world.repoint(0, world.from, LEN));
        assert_eq!(world.core.table.peek(0), object(world.to));
    }

    #[test]
    fn a_move_waits_for_who_reads_the_object() {
        let world = World::new();
        let mut reader = world.core.streams.take(object(world.from).encode(), &world.budget).expect("no limit");
        let view = world.core.table.view(0, reader.parts().1).expect("a leaf");
        assert_eq!(view.entry(), object(world.from));
        drop(view);
        thread::scope(|scope| {
            let moved = scope.spawn(|| world.repoint(0, world.from, LEN));
            thread::sleep(Duration::from_millis(20));
            assert!(!moved.is_finished(), "the reader may still be in it");
            assert_eq!(world.core.table.peek(0), object(world.to), "others find the new one");
            drop(reader);
            assert!(moved.join().expect("no panic"));
        });
    }
}

//! Which threads free unused parts and move objects, and when.
//!
//! | pressure | free bytes of a shard             | who empties segments                          |
//! |----------|-----------------------------------|-----------------------------------------------|
//! | none     | ≤ 1/24 of the live ones + 32 KiB  | no thread                                     |
//! | soft     | above                             | the pool's background thread                  |
//! | hard     | > 1/18 of the live ones + 64 KiB  | it, or a writer, [`HELP_OBJECTS`] per write   |
//!
//! One thread at a time compacts a shard, down to 1/30 + 16 KiB. Near the memory limit, the
//! background thread also empties segments when little budget is left (`limit/budget.rs`), and a
//! writer without room empties them itself, in a shard that no other thread is compacting. An
//! object moves while its entry is locked, for the time of a copy; no reader waits for that.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::{
    background::{Chores, Turn},
    core::Core,
    entry::Entry,
    heap::{Goal, Owners, Pressure},
    limit::Full,
    memory::malloc,
    tree::Unused,
};

/// Objects that a writer moves if the pressure is hard.
const HELP_OBJECTS: usize = 24;

/// The number of objects that the background thread moves before it checks whether the pool has
/// ended.
const TURN_OBJECTS: usize = 256;

/// Objects that [`Core::compact`] moves between two checks of the gain, and the number of checks
/// without gain that end it.
const LOOK_OBJECTS: usize = 512;
const LOOKS_WITHOUT_GAIN: u32 = 3;

/// Pause of the background thread while pressure persists but nothing can be moved.
const PAUSE: Duration = Duration::from_millis(1);

/// How long objects are moved after clean pages were discarded to make room for tables or buffers.
const RECLAIM_TIME: Duration = Duration::from_millis(2);

/// Parts freed in one batch, by the thread that drops them or between two checks of the background
/// thread.
const BATCH_PARTS: usize = 64;

/// Freeing.
impl Core {
    /// Frees unused parts and objects: a small batch immediately, the rest in the background.
    pub(crate) fn leave(self: &Arc<Self>, mut unused: Unused) {
        if self.free_some(&mut unused) {
            self.leave_later(unused);
        }
    }

    /// Ends a disk that left `unused`.
    pub(crate) fn end_disk(self: &Arc<Self>, unused: Unused) {
        self.leave(unused);
        if self.background.count_dropped() {
            self.background.notify(self);
        }
    }

    /// Queues everything for the background thread and frees nothing yet.
    pub(crate) fn leave_later(self: &Arc<Self>, unused: Unused) {
        if !unused.is_empty() {
            self.background.leave(unused);
            self.background.notify_again(self);
        }
    }

    /// Frees everything in `unused`.
    pub(crate) fn free_all(self: &Arc<Self>, unused: &mut Unused) {
        while self.free_some(unused) {}
    }

    fn free_some(self: &Arc<Self>, unused: &mut Unused) -> bool {
        let parts = self.parts();
        let more = (0..BATCH_PARTS).all(|_| parts.free_one(unused));
        self.free_unread(&mut unused.words);
        more
    }

    /// Frees a batch of what dropped disks left. Returns whether more is left.
    pub(crate) fn free_left(self: &Arc<Self>, turn: &Turn<'_>) -> bool {
        self.background.free_left(turn, |unused| self.free_some(unused))
    }

    /// Frees a batch for a caller that needs room. Returns whether it may have freed some.
    pub(crate) fn has_freed(self: &Arc<Self>) -> bool {
        let some = self.background.has_leftovers();
        if some {
            self.free_left(&self.pause());
        }
        some
    }

    /// Waits until no thread reads the objects of `words`, which were swapped out of their slots, then
    /// frees them and clears the list.
    fn free_unread(self: &Arc<Self>, words: &mut Vec<u64>) {
        if words.is_empty() {
            return;
        }
        self.streams.wait_for_readers(words);
        words.drain(..).for_each(|word| self.free(Entry::decode(word)));
        self.relieve();
    }

    /// Frees the part of the table of hints that exceeds its share of the pool's memory.
    fn shrink_equals(&self) {
        if let Some(equals) = &self.equals {
            equals.shrink(&self.budget);
        }
    }
}

/// Compaction.
impl Core {
    /// Starts compaction if frees have left enough memory partly empty.
    pub(crate) fn relieve(self: &Arc<Self>) {
        match self.heap.pressure() {
            Pressure::None => {}
            Pressure::Soft => self.background.notify(self),
            Pressure::Hard => {
                // The background thread frees what dropped disks left, which empties segments anyway.
                if !self.background.has_leftovers() {
                    self.heap.compact(&**self, Goal::Relief, HELP_OBJECTS);
                }
                self.background.notify_again(self);
            }
        }
    }

    /// Keeps the background thread from moving objects of this pool while the guard lives.
    pub(crate) fn pause(&self) -> Turn<'_> {
        self.background.pause()
    }

    /// Moves objects until that frees no more memory, or until `end`. Returns whether more work is
    /// left.
    pub(crate) fn compact(self: &Arc<Self>, end: Option<Instant>) -> bool {
        let turn = self.pause();
        while self.free_left(&turn) {}
        drop(turn);
        self.settle();
        let (mut least, mut without_gain) = (self.heap.account().held_bytes, 0);
        while without_gain < LOOKS_WITHOUT_GAIN && self.heap.compact(&**self, Goal::Densest, LOOK_OBJECTS) {
            if end.is_some_and(|end| Instant::now() >= end) {
                return true;
            }
            let held_bytes = self.heap.account().held_bytes;
            without_gain = if held_bytes < least { 0 } else { without_gain + 1 };
            least = least.min(held_bytes);
        }
        self.shrink_equals();
        false
    }

    /// Retries an attempt to take memory for something other than an object while there are clean
    /// pages to discard or shadows to drop. The caller must not hold a stream, an entry or a lock
    /// of the pool.
    pub(crate) fn reclaiming<T, E: From<Full> + PartialEq>(
        self: &Arc<Self>,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut done = attempt();
        while done.as_ref().is_err_and(|error| *error == Full.into()) && (self.clean.reclaim() || self.end_shadows()) {
            // The discarded objects leave segments partly empty.
            self.compact(Instant::now().checked_add(RECLAIM_TIME));
            done = attempt();
        }
        if done.as_ref().is_err_and(|error| *error == Full.into()) && self.without_shadows() {
            done = attempt();
        }
        done
    }
}

impl Chores for Core {
    fn turn(self: &Arc<Self>) -> bool {
        let turn = self.background.begin_turn();
        if self.free_left(&turn) {
            return true;
        }
        if self.background.forget_many() {
            malloc::give_back();
        }
        self.shrink_equals();
        if self.heap.compact(&**self, Goal::Relief, TURN_OBJECTS) {
            return true;
        }
        drop(turn);
        if self.heap.pressure() > Pressure::None {
            thread::sleep(PAUSE);
        }
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pagefold_codec::{Lz4, Page};

    use super::*;
    use crate::{
        Disk, Pool, PoolConfig,
        cpus::fake,
        entry::Locked,
        heap::{Location, Owner},
        sync::AtomicU64,
        tests::One,
    };

    const LEN: usize = 100;

    /// A world in which slot 0 of leaf 0 holds an object, and there is room to move it to.
    struct World {
        core: Arc<Core>,
        from: Location,
        to: Location,
        _disk: Disk,
    }

    impl World {
        fn new() -> Self {
            let pool = Pool::new(PoolConfig::default().codec(Arc::new(Lz4))).expect("a small pool");
            let disk = pool.disk(64).expect("a disk");
            let core = Arc::clone(pool.core());
            let [from, to] = [0, 0].map(|leaf| core.heap.alloc(LEN, leaf).expect("memory"));
            disk.write_zeroes(0).expect("a leaf");
            disk.change_entry(0, |_| object(from));
            Self { core, from, to, _disk: disk }
        }

        fn word(&self, slot: u64) -> &AtomicU64 {
            self.core.storage.word(slot)
        }

        fn entry(&self) -> Entry {
            self.core.storage.entry(0).expect("a leaf")
        }

        fn repoint(&self, owner: Owner, from: Location, len_bytes: usize) -> bool {
            let entry = self.core.storage.entry(0).expect("a leaf");
            let mut copy =
                || assert!(Locked::try_lock(self.word(0), entry).is_none(), "the entry is held while it is copied");
            let word = self.core.repoint(owner, from, self.to, len_bytes, &mut copy);
            self.core.wait_for_readers(word.as_slice());
            word.is_some()
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            // The object was never counted.
            Locked::lock(self.word(0)).expect("a leaf").replace(Entry::Same(crate::entry::Fill::ZERO));
        }
    }

    fn object(at: Location) -> Entry {
        Entry::Object { tables: 0, len_bytes: LEN, at }
    }

    /// The streams of many CPUs each keep replaced objects briefly. Freeing all of these together
    /// must not trigger compaction.
    #[test]
    fn a_small_store_on_many_cpus_does_not_take_its_memory_again() {
        fake::set_machine(0..16, 16);
        let (slots, rounds) = (192, 40);
        let store = One::new(slots, PoolConfig::default().codec(Arc::new(Lz4)));
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
        assert!(!world.repoint(1, world.from, LEN), "nothing is in the leaf");
        let held = Locked::lock(world.word(0)).expect("a leaf");
        assert!(!world.repoint(0, world.from, LEN), "somebody holds the entry");
        drop(held);
        assert_eq!(world.entry(), object(world.from));
        assert!(world.repoint(0, world.from, LEN));
        assert_eq!(world.entry(), object(world.to));
    }

    #[test]
    fn a_move_waits_for_who_reads_the_object() {
        let world = World::new();
        let mut reader = world.core.streams.take(object(world.from).encode(), &world.core.budget).expect("no limit");
        assert_eq!(Entry::decode(reader.parts().1.pin(world.word(0))), object(world.from));
        thread::scope(|scope| {
            let moved = scope.spawn(|| world.repoint(0, world.from, LEN));
            // Others find the new one.
            while world.entry() != object(world.to) {
                thread::yield_now();
            }
            assert!(!moved.is_finished(), "the reader may still be in it");
            drop(reader);
            assert!(moved.join().expect("no panic"));
        });
    }
}

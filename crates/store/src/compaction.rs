//! Which threads move objects, and when.
//!
//! | pressure | free bytes of a shard             | who empties segments                          |
//! |----------|-----------------------------------|-----------------------------------------------|
//! | none     | ≤ 1/24 of the live ones + 32 KiB  | no thread                                     |
//! | soft     | above                             | the pool's background thread                  |
//! | hard     | > 1/18 of the live ones + 64 KiB  | it, or a writer, [`HELP_OBJECTS`] per write   |
//!
//! One thread at a time compacts a shard, down to 1/30 + 16 KiB. Near the memory limit, the
//! background thread also empties segments when little budget is left (`budget.rs`), and a writer
//! without room empties them itself, in a shard that no other thread is compacting. An object moves
//! while its entry is locked, for the time of a copy; no reader waits for that.

use std::{
    mem, process,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU32,
            Ordering::{AcqRel, Relaxed, Release},
        },
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    core::Core,
    entry::Entry,
    heap::{Goal, Location, Owner, Owners, Pressure},
};

/// Objects that a writer moves if the pressure is hard.
const HELP_OBJECTS: usize = 24;

/// Objects that the background thread moves before it looks whether the pool has ended.
const TURN_OBJECTS: usize = 256;

/// Objects that [`Core::compact`] moves between two checks of the gain, and the number of checks
/// without gain that end it.
const LOOK_OBJECTS: usize = 512;
const LOOKS_WITHOUT_GAIN: u32 = 3;

/// Pause of the background thread if a pool's pressure persists although nothing can be moved.
const PAUSE: Duration = Duration::from_millis(1);

impl Core {
    /// Has memory that frees have left partly empty compacted, if there is pressure.
    pub(crate) fn relieve(self: &Arc<Self>) {
        match self.heap.pressure() {
            Pressure::None => {}
            Pressure::Soft => self.tell(),
            Pressure::Hard => {
                // The background thread frees what dropped disks left, which empties segments anyway.
                if self.left.load(Relaxed) == 0 {
                    self.heap.compact(&**self, Goal::Relief, HELP_OBJECTS);
                }
                self.tell_again();
            }
        }
    }

    /// Like [`Self::tell`], also if the thread that was notified is that of a process from
    /// which this one was forked.
    pub(crate) fn tell_again(self: &Arc<Self>) {
        if self.background.is_lost() {
            self.told.store(false, Relaxed);
        }
        self.tell();
    }

    /// Notifies the background thread that there is work.
    pub(crate) fn tell(self: &Arc<Self>) {
        // All threads read `told` frequently, so its line is not written without need.
        if !self.told.load(Relaxed) && !self.told.swap(true, AcqRel) {
            self.background.tell(self);
        }
    }

    /// Keeps the background thread from moving objects of this pool while the guard lives.
    pub(crate) fn pause(&self) -> MutexGuard<'_, ()> {
        self.turning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves objects until that frees no more memory, or until `end`. Returns whether more work is
    /// left.
    pub(crate) fn compact(self: &Arc<Self>, end: Option<Instant>) -> bool {
        let turning = self.pause();
        while self.free_left(&turning) {}
        drop(turning);
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

    /// Frees what the table of equal pages' hints has beyond its share of the pool's memory.
    fn shrink_equals(&self) {
        if let Some(equals) = &self.equals {
            equals.shrink(&self.budget);
        }
    }
}

impl Owners for Core {
    fn len_bytes(&self, owner: Owner, at: Location) -> Option<usize> {
        self.leaves.find(owner, at).map(|(_, entry)| entry.object_bytes())
    }

    fn repoint(
        &self,
        owner: Owner,
        from: Location,
        to: Location,
        len_bytes: usize,
        copy: &mut dyn FnMut(),
    ) -> Option<u64> {
        let locked = self.leaves.try_lock(owner, from)?;
        let old = locked.entry();
        if old.object_bytes() != len_bytes {
            return None;
        }
        copy();
        locked.replace(old.moved(to));
        Some(old.encode())
    }

    fn wait_for_readers(&self, words: &[u64]) {
        self.streams.wait_for_readers(words);
    }

    fn settle(&self) {
        self.streams.release_all(None, |word| self.free(Entry::decode(word)));
    }
}

impl Core {
    /// Moves some objects, for the background thread. Returns whether there is more work to do immediately.
    fn turn(self: &Arc<Self>) -> bool {
        self.told.store(false, Release);
        let turning = self.pause();
        if self.free_left(&turning) {
            return true;
        }
        self.give_back_small();
        self.shrink_equals();
        if self.heap.compact(&**self, Goal::Relief, TURN_OBJECTS) {
            return true;
        }
        drop(turning);
        if self.heap.pressure() > Pressure::None {
            thread::sleep(PAUSE);
        }
        false
    }
}

/// The thread that compacts a pool in the background. It starts when there is work for the first
/// time, and ends with the pool.
#[derive(Default)]
pub(crate) struct Background {
    worker: Mutex<Option<Worker>>,
    /// The process that has started the thread. A fork of it has the pool, but no such thread.
    process: AtomicU32,
}

struct Worker {
    process: u32,
    turns: Arc<Turns>,
    thread: JoinHandle<()>,
}

/// Whether a pool has work, and whether it ends.
#[derive(Default)]
struct Turns {
    state: Mutex<TurnsState>,
    changed: Condvar,
}

#[derive(Default)]
struct TurnsState {
    waiting: bool,
    ended: bool,
}

impl Background {
    /// Returns whether the thread was left behind in the process from which this one was forked.
    fn is_lost(&self) -> bool {
        let process = self.process.load(Relaxed);
        process != 0 && process != process::id()
    }

    /// Notifies the thread that there is work. If it cannot be started, only writers compact.
    fn tell(&self, core: &Arc<Core>) {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_lost() {
            // There is nothing to end or to release.
            mem::forget(worker.take());
        }
        if worker.is_none() {
            *worker = Worker::start(core);
            self.process.store(worker.as_ref().map_or(0, |worker| worker.process), Relaxed);
        }
        if let Some(worker) = &*worker {
            worker.turns.change(|state| state.waiting = true);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let is_lost = self.is_lost();
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(worker) = worker else { return };
        if is_lost {
            mem::forget(worker);
            return;
        }
        worker.turns.change(|state| state.ended = true);
        // The thread itself may have had the pool's last reference.
        if worker.thread.thread().id() != thread::current().id() {
            // A panic of the thread has already been reported.
            let _ = worker.thread.join();
        }
    }
}

impl Worker {
    fn start(core: &Arc<Core>) -> Option<Self> {
        let turns = Arc::<Turns>::default();
        let (own, core) = (Arc::clone(&turns), Arc::downgrade(core));
        let run = move || {
            while own.wait() {
                // Between two turns, nothing here keeps the pool.
                while core.upgrade().is_some_and(|core| core.turn()) {}
            }
        };
        let thread = thread::Builder::new().name("pagefold-compact".into()).spawn(run).ok()?;
        Some(Self { process: process::id(), turns, thread })
    }
}

impl Turns {
    fn change(&self, change: impl FnOnce(&mut TurnsState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }

    /// Waits for work. Returns false at the end of the pool.
    fn wait(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.changed.wait_while(state, |state| !state.waiting && !state.ended);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        state.waiting = false;
        !state.ended
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pagefold_codec::{Lz4, Page};

    use super::*;
    use crate::{Disk, Pool, PoolConfig, cpus::fake, lock::Locked, one::One, sync::AtomicU64};

    const LEN: usize = 100;

    /// A world in which slot 0 holds an object and there is room to move it to. Both are entries of
    /// leaf 0.
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
            self.core.leaves.word(slot)
        }

        fn entry(&self) -> Entry {
            self.core.leaves.entry(0).expect("a leaf")
        }

        fn repoint(&self, owner: Owner, from: Location, len_bytes: usize) -> bool {
            let entry = self.core.leaves.entry(0).expect("a leaf");
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

    /// The streams of many CPUs each keep replaced objects for a moment; freeing them together must
    /// not look like memory worth compacting.
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

//! The entry protocol under loom: every interleaving, and every value that the memory model allows a load to see.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p pagefold-store --lib --release models
//! ```
//!
//! Objects are loom's cells, so that a reader and a writer, or a reader and whoever frees, in one object at once fail the
//! model. An object's value says which page it is; a freed object is poisoned.

#![allow(unsafe_code)] // cells that loom watches

use std::sync::Arc;

use loom::{cell::UnsafeCell, model::Builder, thread};

use crate::{
    budget::Budget,
    disks::DiskId,
    entry::{Entry, Fill},
    heap::Location,
    leaves::{LEAF_SLOTS, Leaves},
    pins::{Pin, Pins},
    sync::yield_now,
    table::{Place, Table},
};

const POISON: u64 = u64::MAX;
const SLOT: u64 = 0;

/// A disk of a pool whose heap is an array: whoever allocates names the place.
struct World {
    leaves: Leaves,
    budget: Budget,
    table: Table,
    pins: Pins,
    objects: Vec<UnsafeCell<u64>>,
}

// SAFETY: who may touch an object when is what the models check.
unsafe impl Sync for World {}

fn entry(at: u64) -> Entry {
    Entry::Object { tables: 0, len_bytes: 100, at: Location::new(at) }
}

impl World {
    /// The slot holds object 0 with value 0; the other objects are free.
    fn new(objects: usize, pins: usize) -> Arc<Self> {
        let objects = (0..objects).map(|at| UnsafeCell::new(if at == 0 { 0 } else { POISON })).collect();
        let world = Self {
            leaves: Leaves::new().expect("leaves"),
            budget: Budget::new(u64::MAX, 1),
            table: Table::new(),
            pins: Pins::new(pins),
            objects,
        };
        world.place(&world.table, SLOT).lock().expect("a leaf").replace(entry(0));
        Arc::new(world)
    }

    /// The slot's place in a table, made if need be.
    fn place<'a>(&'a self, table: &'a Table, slot: u64) -> Place<'a> {
        table.find_or_make(&self.leaves, slot, || 8, DiskId::of(0), &self.budget).expect("no limit")
    }

    /// What the slot's object says, `None` when the slot is empty.
    fn read(&self, stream: usize) -> Option<u64> {
        self.read_slot(&self.table, SLOT, stream)
    }

    /// As `Disk::read` does.
    fn read_slot(&self, table: &Table, slot: u64, stream: usize) -> Option<u64> {
        while let Some(place) = table.find(&self.leaves, slot) {
            let seen = place.word.load(crate::sync::Ordering::Acquire);
            if Entry::decode(seen).object().is_none() {
                if place.is_current() {
                    return None;
                }
                continue;
            }
            let mut pin = self.pins.try_take(stream, seen).expect("every thread has a stream of its own");
            let pinned = pin.pin(place.word);
            if !place.is_current() {
                continue;
            }
            let value = Entry::decode(pinned).object().map(|(at, _)| self.value(at.get()));
            assert_ne!(value, Some(POISON), "read an object that was free");
            return value;
        }
        None
    }

    fn value(&self, at: u64) -> u64 {
        // SAFETY: loom checks it.
        self.objects[at as usize].with(|object| unsafe { *object })
    }

    /// Fills object `at`, which the caller knows to be free.
    fn fill(&self, at: u64, value: u64) {
        // SAFETY: loom checks it.
        self.objects[at as usize].with_mut(|object| unsafe { *object = value });
    }

    /// Puts object `at` with `value` in the slot and frees the old one, or leaves it in `retired` while it is read.
    fn write(&self, at: u64, value: u64, retired: &mut Vec<u64>) {
        self.fill(at, value);
        let old = loop {
            if let Some(locked) = self.place(&self.table, SLOT).lock() {
                break locked.replace(entry(at));
            }
        };
        self.retire(old, retired);
    }

    fn retire(&self, old: Entry, retired: &mut Vec<u64>) {
        if old.object().is_some() {
            retired.push(old.encode());
            self.pins.release(retired, |word| self.free(Entry::decode(word)));
        }
    }

    /// Empties the slot and waits for its readers.
    fn discard(&self) {
        let Some((_, locked)) = self.table.lock(&self.leaves, SLOT) else { return };
        let old = locked.replace(Entry::Empty);
        while old.object().is_some() && self.pins.name_any(&[old.encode()]) {
            yield_now();
        }
        self.free(old);
    }

    /// Moves the object at `from`, as compaction does: it knows the leaf alone.
    fn relocate(&self, from: u64, to: u64, retired: &mut Vec<u64>) {
        if let Some(locked) = self.leaves.try_lock(0, Location::new(from)) {
            self.fill(to, self.value(from));
            let old = locked.replace(entry(to));
            self.retire(old, retired);
        }
    }

    fn free(&self, old: Entry) {
        if let Some((at, _)) = old.object() {
            self.fill(at.get(), POISON);
        }
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn read_against_write() {
    check(3, || {
        let world = World::new(2, 1);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        world.write(1, 1, &mut Vec::new());
        assert!(matches!(reader.join().expect("no panic"), Some(0 | 1)));
        assert_eq!(world.read(0), Some(1));
    });
}

#[test]
fn read_against_free() {
    check(3, || {
        let world = World::new(1, 1);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        world.discard();
        assert!(matches!(reader.join().expect("no panic"), None | Some(0)));
        assert_eq!(world.read(0), None);
    });
}

#[test]
fn read_against_move() {
    check(3, || {
        let world = World::new(2, 1);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        world.relocate(0, 1, &mut Vec::new());
        assert_eq!(reader.join().expect("no panic"), Some(0));
    });
}

/// A move never undoes a write.
#[test]
fn write_against_move() {
    check(3, || {
        let world = World::new(3, 1);
        let mover = thread::spawn({
            let world = Arc::clone(&world);
            move || world.relocate(0, 1, &mut Vec::new())
        });
        world.write(2, 1, &mut Vec::new());
        mover.join().expect("no panic");
        assert_eq!(world.read(0), Some(1));
    });
}

/// Two changes that read, then write: neither is lost.
#[test]
fn updates_add_up() {
    check(3, || {
        let world = World::new(1, 1);
        world.discard();
        let add = |world: &World| {
            let locked = loop {
                if let Some(locked) = world.place(&world.table, SLOT).lock() {
                    break locked;
                }
            };
            let count = if let Entry::Same(fill) = locked.entry() { fill.word() } else { 0 };
            locked.replace(Entry::Same(Fill::new(count + 1).expect("a small number")));
        };
        let other = thread::spawn({
            let world = Arc::clone(&world);
            move || add(&world)
        });
        add(&world);
        other.join().expect("no panic");
        assert_eq!(world.table.peek(&world.leaves, SLOT), Entry::Same(Fill::new(2).expect("a small number")));
    });
}

/// A reader, a mover and a writer.
#[test]
fn read_against_write_and_move() {
    check(2, || {
        let world = World::new(3, 1);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        let mover = thread::spawn({
            let world = Arc::clone(&world);
            move || world.relocate(0, 1, &mut Vec::new())
        });
        world.write(2, 1, &mut Vec::new());
        assert!(matches!(reader.join().expect("no panic"), Some(0 | 1)));
        mover.join().expect("no panic");
        assert_eq!(world.read(0), Some(1));
    });
}

/// An object that comes back to the same place for the same slot: the word a reader saw first can be there again with
/// another page behind it.
#[test]
fn a_place_used_again() {
    check(3, || {
        let world = World::new(2, 1);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        let mut retired = Vec::new();
        world.write(1, 1, &mut retired);
        // Object 0 is free unless the reader is in it.
        if retired.is_empty() {
            world.write(0, 2, &mut retired);
        }
        assert!(matches!(reader.join().expect("no panic"), Some(0..=2)));
    });
}

/// Objects of two slots that move together and wait for their readers together.
#[test]
fn read_against_moves() {
    check(3, || {
        let world = World::new(4, 1);
        world.fill(1, 1);
        world.place(&world.table, SLOT + 1).lock().expect("a leaf").replace(entry(1));
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read_slot(&world.table, SLOT + 1, 0)
        });
        let moves = [(SLOT, 0, 2), (SLOT + 1, 1, 3)];
        let words = moves.map(|(slot, from, to)| {
            let (_, locked) = world.table.lock(&world.leaves, slot).expect("a leaf");
            world.fill(to, world.value(from));
            locked.replace(entry(to)).encode()
        });
        while world.pins.name_any(&words) {
            yield_now();
        }
        for (_, from, _) in moves {
            world.fill(from, POISON);
        }
        assert_eq!(reader.join().expect("no panic"), Some(1));
        assert_eq!((world.read(0), world.read_slot(&world.table, SLOT + 1, 0)), (Some(0), Some(1)));
    });
}

/// A leaf that goes while its slot is read, and is another disk's then: the reader finds its own page or nothing, never the
/// other disk's.
#[test]
fn read_against_a_leaf_that_becomes_another_disks() {
    check(3, || {
        let world = World::new(2, 1);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        world.discard();
        world.table.remove_empty(&world.leaves, SLOT, &world.budget);
        let other = Table::new();
        world.fill(1, 1);
        world.place(&other, SLOT + 4).lock().expect("a leaf").replace(entry(1));
        assert!(matches!(reader.join().expect("no panic"), None | Some(0)));
        assert_eq!(world.read(0), None);
        assert_eq!(world.read_slot(&other, SLOT + 4, 0), Some(1));
    });
}

/// A write to an empty slot whose leaf goes at the same time is not lost, and the leaf that stays is the slot's.
#[test]
fn write_against_the_end_of_its_leaf() {
    check(3, || {
        let world = World::new(2, 1);
        world.discard();
        let remover = thread::spawn({
            let world = Arc::clone(&world);
            move || world.table.remove_empty(&world.leaves, SLOT, &world.budget)
        });
        world.write(1, 1, &mut Vec::new());
        remover.join().expect("no panic");
        assert_eq!(world.read(0), Some(1));
    });
}

/// The same with a third who takes leaves for another disk: no entry is in two disks.
#[test]
fn write_against_a_leaf_that_becomes_another_disks() {
    check(2, || {
        let world = World::new(3, 1);
        world.discard();
        let remover = thread::spawn({
            let world = Arc::clone(&world);
            move || {
                world.table.remove_empty(&world.leaves, SLOT, &world.budget);
                let other = Table::new();
                world.fill(2, 2);
                world.place(&other, SLOT).lock().expect("a leaf").replace(entry(2));
                assert_eq!(other.peek(&world.leaves, SLOT), entry(2));
            }
        });
        world.write(1, 1, &mut Vec::new());
        remover.join().expect("no panic");
        assert_eq!(world.read(0), Some(1));
        assert_eq!(LEAF_SLOTS, 2, "the leaf has a slot that nobody wrote");
    });
}

/// Two threads at one stream: one gets it, and the next finds what the last left.
#[test]
fn a_stream_has_one_holder() {
    check(3, || {
        let pins: Arc<Pins> = Arc::new(Pins::new(1));
        let state = Arc::new(Shared(UnsafeCell::new(0u64)));
        let turn = |pins: &Pins, state: &Shared| {
            let held: Option<Pin<'_>> = pins.try_take(0, 0);
            // SAFETY: loom checks it.
            held.is_some().then(|| state.0.with_mut(|state| unsafe { *state += 1 })).map_or(0, |()| 1)
        };
        let other = thread::spawn({
            let (pins, state) = (Arc::clone(&pins), Arc::clone(&state));
            move || turn(&pins, &state)
        });
        let turns = turn(&pins, &state) + other.join().expect("no panic");
        // SAFETY: the other thread is gone.
        assert_eq!(state.0.with(|state| unsafe { *state }), turns);
        assert!(turns >= 1);
    });
}

struct Shared(UnsafeCell<u64>);

// SAFETY: the holder of the pin alone touches it: that is what the model checks.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

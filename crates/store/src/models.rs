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
    entry::{Entry, Fill},
    lock::{BitSpin, Cas, Hazard, Protocol, RwLock, Spin, TableRwLock},
    pins::{Pin, Pins},
    pool::Location,
    sync::yield_now,
    table::Table,
};

const POISON: u64 = u64::MAX;
const SLOT: u64 = 0;

/// A store of two slots whose pool is an array: whoever allocates names the place.
struct World<L: Protocol> {
    table: Table<L>,
    pins: Pins,
    objects: Vec<UnsafeCell<u64>>,
}

// SAFETY: who may touch an object when is what the models check.
unsafe impl<L: Protocol> Sync for World<L> {}

fn entry(at: u64) -> Entry {
    Entry::Object { tables: 0, len_bytes: 100, at: Location::new(at) }
}

impl<L: Protocol> World<L> {
    /// The slot holds object 0 with value 0; the other objects are free.
    fn new(objects: usize, pins: usize) -> Arc<Self> {
        let table = Table::new(2).expect("a small root");
        let locked = table.lock_or_make(SLOT, &Budget::new(u64::MAX)).expect("no limit");
        locked.replace(entry(0));
        let objects = (0..objects).map(|at| UnsafeCell::new(if at == 0 { 0 } else { POISON })).collect();
        Arc::new(Self { table, pins: Pins::new(pins), objects })
    }

    /// What the slot's object says, `None` when the slot is empty.
    fn read(&self, stream: usize) -> Option<u64> {
        self.read_slot(SLOT, stream)
    }

    fn read_slot(&self, slot: u64, stream: usize) -> Option<u64> {
        let seen = self.table.peek(slot);
        let mut pin = self.pins.try_take(stream, seen.encode()).expect("every thread has a stream of its own");
        let view = self.table.view(slot, &mut pin).expect("a leaf");
        match view.entry() {
            Entry::Object { at, .. } => {
                let value = self.value(at.get());
                assert_ne!(value, POISON, "read an object that was free");
                Some(value)
            }
            _ => None,
        }
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
        let old = self.table.lock(SLOT).expect("a leaf").replace(entry(at));
        self.retire(old, retired);
    }

    fn retire(&self, old: Entry, retired: &mut Vec<u64>) {
        if !matches!(old, Entry::Object { .. }) {
            return;
        }
        if L::PINS {
            retired.push(old.encode());
            self.pins.release(retired, |word| self.free(Entry::decode(word)));
        } else {
            self.free(old);
        }
    }

    fn discard(&self) {
        let old = self.table.lock(SLOT).expect("a leaf").replace(Entry::Empty);
        while L::PINS && self.pins.name_any(&[old.encode()]) {
            yield_now();
        }
        self.free(old);
    }

    /// Moves the slot's object to `to`, as compaction does.
    fn relocate(&self, to: u64, retired: &mut Vec<u64>) {
        let locked = self.table.lock(SLOT).expect("a leaf");
        if let Entry::Object { at, .. } = locked.entry() {
            self.fill(to, self.value(at.get()));
            let old = locked.replace(entry(to));
            self.retire(old, retired);
        }
    }

    fn free(&self, old: Entry) {
        if let Entry::Object { at, .. } = old {
            self.fill(at.get(), POISON);
        }
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn read_against_write<L: Protocol>() {
    check(3, || {
        let world = World::<L>::new(2, 1);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        world.write(1, 1, &mut Vec::new());
        assert!(matches!(reader.join().expect("no panic"), Some(0 | 1)));
        assert_eq!(world.read(0), Some(1));
    });
}

fn read_against_free<L: Protocol>() {
    check(3, || {
        let world = World::<L>::new(1, 1);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        world.discard();
        assert!(matches!(reader.join().expect("no panic"), None | Some(0)));
        assert_eq!(world.read(0), None);
    });
}

fn read_against_move<L: Protocol>() {
    check(3, || {
        let world = World::<L>::new(2, 1);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        world.relocate(1, &mut Vec::new());
        assert_eq!(reader.join().expect("no panic"), Some(0));
    });
}

/// A move never undoes a write.
fn write_against_move<L: Protocol>() {
    check(3, || {
        let world = World::<L>::new(3, 1);
        let mover = thread::spawn({
            let world = Arc::clone(&world);
            move || world.relocate(1, &mut Vec::new())
        });
        world.write(2, 1, &mut Vec::new());
        mover.join().expect("no panic");
        assert_eq!(world.read(0), Some(1));
    });
}

/// Two changes that read, then write: neither is lost.
fn updates_add_up<L: Protocol>() {
    check(3, || {
        let table = Arc::new(Table::<L>::new(1).expect("a small root"));
        let budget = Arc::new(Budget::new(u64::MAX));
        let add = |table: &Table<L>, budget: &Budget| {
            let locked = table.lock_or_make(SLOT, budget).expect("no limit");
            let count = if let Entry::Same(fill) = locked.entry() { fill.word() } else { 0 };
            locked.replace(Entry::Same(Fill::new(count + 1).expect("a small number")));
        };
        let other = thread::spawn({
            let (table, budget) = (Arc::clone(&table), Arc::clone(&budget));
            move || add(&table, &budget)
        });
        add(&table, &budget);
        other.join().expect("no panic");
        assert_eq!(table.peek(SLOT), Entry::Same(Fill::new(2).expect("a small number")));
    });
}

macro_rules! for_every_strategy {
    ($($model:ident)*) => {$(
        mod $model {
            use super::*;

            #[test]
            fn table_rwlock() {
                super::$model::<TableRwLock>();
            }

            #[test]
            fn cas() {
                super::$model::<Cas>();
            }

            #[test]
            fn spin() {
                super::$model::<Spin>();
            }

            #[test]
            fn rwlock() {
                super::$model::<RwLock>();
            }

            #[test]
            fn bit_spin() {
                super::$model::<BitSpin>();
            }

            #[test]
            fn hazard() {
                super::$model::<Hazard>();
            }
        }
    )*};
}

for_every_strategy! { read_against_write read_against_free read_against_move write_against_move updates_add_up }

/// A reader, a mover and a writer. (With locks two waiters yield to each other for ever, which loom takes for a hang; their
/// pairs are above.)
#[test]
fn read_against_write_and_move() {
    check(2, || {
        let world = World::<Hazard>::new(3, 1);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        let mover = thread::spawn({
            let world = Arc::clone(&world);
            move || world.relocate(1, &mut Vec::new())
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
        let world = World::<Hazard>::new(2, 1);
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
        let world = World::<Hazard>::new(4, 1);
        world.fill(1, 1);
        let budget = Budget::new(u64::MAX);
        world.table.lock_or_make(SLOT + 1, &budget).expect("no limit").replace(entry(1));
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read_slot(SLOT + 1, 0)
        });
        let moves = [(SLOT, 0, 2), (SLOT + 1, 1, 3)];
        let words = moves.map(|(slot, from, to)| {
            let locked = world.table.try_lock(slot).expect("nobody else locks it");
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
        assert_eq!((world.read(0), world.read_slot(SLOT + 1, 0)), (Some(0), Some(1)));
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

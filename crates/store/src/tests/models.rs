//! The entry protocol under loom: every interleaving, and every value that the memory model allows
//! a load to see.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p pagefold-store --lib --release models
//! ```
//!
//! Objects are loom's cells: if a reader and a writer, or a reader and a freeing thread, access one
//! object simultaneously, the model fails. An object's value identifies the page; a freed object is
//! poisoned.

#![allow(unsafe_code)] // cells that loom watches

use std::sync::Arc;

use loom::{cell::UnsafeCell, model::Builder, thread};

use crate::{
    entry::{Entry, Fill, LayerId, Locked, Pin, Pins},
    equal::Common,
    heap::Location,
    limit::{Budget, Purpose},
    sync::{Ordering::Acquire, yield_now},
    tree::{EntryCounter, EntryPlace, LEAF_SLOTS, Layers, NOTHING, PartStorage, Parts, SlotPlace, Tree, Unused},
};

pub(crate) const POISON: u64 = u64::MAX;
pub(crate) const SLOT: u64 = 0;

/// Slots of a disk: two levels of nodes.
const SLOTS: u64 = 8;

/// A disk of a pool whose heap is an array: the caller chooses an object's place.
pub(crate) struct World {
    pub(crate) storage: PartStorage,
    layers: Layers,
    budget: Budget,
    common: Common,
    pub(crate) tree: Tree,
    pins: Pins,
    objects: Vec<UnsafeCell<u64>>,
}

// SAFETY: the models check which thread may access an object when.
unsafe impl Sync for World {}

fn entry(at: u64) -> Entry {
    Entry::Object { tables: 0, len_bytes: 100, at: Location::new(at) }
}

impl EntryCounter for World {
    fn replaced(&self, _: LayerId, _: Entry, _: Entry) {}

    fn tables_replaced(&self, _: Entry, _: Entry) {}
}

impl World {
    /// Creates a world in which the slot holds object 0 with value 0; the other objects are free.
    pub(crate) fn new(objects: usize, pins: usize) -> Arc<Self> {
        let objects = (0..objects).map(|at| UnsafeCell::new(if at == 0 { 0 } else { POISON })).collect();
        let (budget, layers) = (Budget::new(u64::MAX, 1), Layers::new(1).expect("layers"));
        let common = Common::new(layers.take(&budget).expect("no limit"));
        let tree = Tree::new(layers.take(&budget).expect("no limit"));
        let (storage, pins) = (PartStorage::new(None).expect("storage of parts"), Pins::new(pins));
        let world = Self { storage, layers, budget, common, tree, pins, objects };
        Locked::lock(world.place(&world.tree, SLOT).word).expect("a leaf").replace(entry(0));
        Arc::new(world)
    }

    fn parts(&self) -> Parts<'_> {
        Parts { storage: &self.storage, layers: &self.layers, budget: &self.budget, counts: self, common: &self.common }
    }

    /// Creates a second, empty disk.
    pub(crate) fn other_tree(&self) -> Tree {
        Tree::new(self.layers.take(&self.budget).expect("no limit"))
    }

    /// Returns the slot's place in a tree, created if necessary.
    fn place<'a>(&'a self, tree: &'a Tree, slot: u64) -> EntryPlace<'a> {
        tree.find_own(&self.storage, slot).unwrap_or_else(|| {
            let mut changing = tree.change(self.parts(), Some(Purpose::Keep));
            let place = changing.own(slot, SLOTS).expect("no limit");
            self.free_all(changing.end());
            place
        })
    }

    /// Returns the value of the slot's object, or `None` if the slot is empty.
    pub(crate) fn read(&self, stream: usize) -> Option<u64> {
        self.read_slot(&self.tree, SLOT, stream)
    }

    /// Reads like `Disk::read`.
    pub(crate) fn read_slot(&self, tree: &Tree, slot: u64, stream: usize) -> Option<u64> {
        loop {
            let version = tree.version();
            let SlotPlace::Entry(place) = tree.find(&self.storage, slot) else {
                if tree.is(version) {
                    return None;
                }
                continue;
            };
            let mut looked = place.look(&self.storage);
            if looked.entry().object().is_none() {
                if tree.is_current(&looked, version) {
                    return None;
                }
                continue;
            }
            let mut pin = self.pins.try_take(stream, looked.seen).expect("every thread has a stream of its own");
            let pinned = looked.pin(&mut pin);
            if !tree.is_current(&looked, version) {
                continue;
            }
            let value = pinned.object().map(|(at, _)| self.value(at.get()));
            assert_ne!(value, Some(POISON), "read an object that was free");
            return value;
        }
    }

    pub(crate) fn value(&self, at: u64) -> u64 {
        // SAFETY: loom checks the access.
        self.objects[at as usize].with(|object| unsafe { *object })
    }

    /// Fills object `at`, which must be free.
    fn fill(&self, at: u64, value: u64) {
        // SAFETY: loom checks the access.
        self.objects[at as usize].with_mut(|object| unsafe { *object = value });
    }

    /// Stores object `at` with `value` in the slot and frees the old one, or leaves it in `retired`
    /// while it is read.
    pub(crate) fn write(&self, at: u64, value: u64, stream: usize, retired: &mut Vec<u64>) {
        self.write_slot(&self.tree, SLOT, at, value, stream, retired);
    }

    /// Writes like `Disk::write`.
    pub(crate) fn write_slot(
        &self,
        tree: &Tree,
        slot: u64,
        at: u64,
        value: u64,
        stream: usize,
        retired: &mut Vec<u64>,
    ) {
        self.fill(at, value);
        let mut pin = self.pins.try_take(stream, 0).expect("every thread has a stream of its own");
        let (place, locked) = loop {
            let place = self.place(tree, slot);
            if let Some(locked) = tree.lock(&self.storage, place, &mut pin, || true) {
                break (place, locked);
            }
        };
        let old = locked.replace(entry(at));
        drop(pin);
        self.let_go(old, PartStorage::leaf_of(place.number()).1, retired);
    }

    fn let_go(&self, old: Entry, index: usize, retired: &mut Vec<u64>) {
        let mut unused = Unused::default();
        self.parts().let_go(old, index, &mut unused);
        for word in unused.words {
            self.retire(Entry::decode(word), retired);
        }
    }

    /// Makes the slot share the object of entry `number` if its value is `value`, as `Disk::write`
    /// does with a page that is already stored.
    pub(crate) fn share(&self, number: u64, tree: &Tree, value: u64, stream: usize, retired: &mut Vec<u64>) -> bool {
        let word = self.storage.word(number);
        let mut pin = self.pins.try_take(stream, 0).expect("every thread has a stream of its own");
        let Some((at, _)) = Entry::decode(pin.pin(word)).object() else { return false };
        if self.value(at.get()) != value {
            return false;
        }
        let Some(held) = Locked::try_lock_object(word, at) else { return false };
        let shared = self.parts().share(number, held, |_| ()).expect("no limit");
        pin.rests();
        let (place, locked) = loop {
            let place = self.place(tree, SLOT);
            if let Some(locked) = tree.lock(&self.storage, place, &mut pin, || true) {
                break (place, locked);
            }
        };
        let old = locked.replace(shared);
        drop(pin);
        self.let_go(old, PartStorage::leaf_of(place.number()).1, retired);
        true
    }

    /// Returns the number of the slot's own entry.
    pub(crate) fn number(&self, tree: &Tree) -> u64 {
        self.place(tree, SLOT).number()
    }

    /// Returns the number of the entry that the slot's entry leads to.
    pub(crate) fn shared_number(&self, tree: &Tree) -> u64 {
        let entry = Entry::decode(self.place(tree, SLOT).word.load(Acquire));
        let Entry::Shared { number, .. } = entry else { panic!("{entry:?} shares nothing") };
        number
    }

    fn retire(&self, old: Entry, retired: &mut Vec<u64>) {
        if old.object().is_some() {
            retired.push(old.encode());
            self.pins.release(retired, |word| self.free(Entry::decode(word)));
        }
    }

    /// Frees unused parts, and their objects once no thread reads them.
    fn free_all(&self, mut unused: Unused) {
        while self.parts().free_one(&mut unused) {}
        while self.pins.name_any(&unused.words) {
            yield_now();
        }
        unused.words.iter().for_each(|&word| self.free(Entry::decode(word)));
    }

    /// Empties the slot and waits for its readers.
    fn discard(&self) {
        self.discard_slots(1);
    }

    /// Empties `count` slots from the slot on.
    fn discard_slots(&self, count: u64) {
        let mut changing = self.tree.change(self.parts(), Some(Purpose::Move));
        changing.clear(SLOT..SLOT + count, NOTHING, SLOTS).expect("no limit");
        self.free_all(changing.end());
    }

    /// Forks like `Disk::fork`.
    pub(crate) fn fork(&self) -> Tree {
        let [ours, theirs] = [(); 2].map(|()| self.layers.take(&self.budget).expect("no limit"));
        let wait = |layer| {
            while self.pins.write_to(layer) {
                yield_now();
            }
        };
        let mut changing = self.tree.change(self.parts(), Some(Purpose::Keep));
        let fork = changing.fork(ours, theirs, wait);
        self.free_all(changing.end());
        fork
    }

    /// Ends a tree as dropping its disk does.
    pub(crate) fn end(&self, tree: &Tree) {
        self.free_all(tree.end(self.parts()));
    }

    /// Moves the object at `from` as compaction does: it knows the entry's leaf, but not the disk.
    fn relocate(&self, from: u64, to: u64, retired: &mut Vec<u64>) {
        if let Some(locked) = self.storage.try_lock(0, Location::new(from)) {
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

pub(crate) fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 4000;
    builder.check(model);
}

#[test]
fn read_against_write() {
    check(3, || {
        let world = World::new(2, 2);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        world.write(1, 1, 1, &mut Vec::new());
        assert!(matches!(reader.join().expect("no panic"), Some(0 | 1)));
        assert_eq!(world.read(0), Some(1));
    });
}

#[test]
fn read_against_free() {
    check(3, || {
        let world = World::new(1, 2);
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
        let world = World::new(2, 2);
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
        let world = World::new(3, 2);
        let mover = thread::spawn({
            let world = Arc::clone(&world);
            move || world.relocate(0, 1, &mut Vec::new())
        });
        world.write(2, 1, 1, &mut Vec::new());
        mover.join().expect("no panic");
        assert_eq!(world.read(0), Some(1));
    });
}

/// Two threads read and then write: neither change is lost.
#[test]
fn updates_add_up() {
    check(3, || {
        let world = World::new(1, 2);
        world.discard();
        let add = |world: &World, stream: usize| {
            let mut pin = world.pins.try_take(stream, 0).expect("a stream of its own");
            let locked = loop {
                let place = world.place(&world.tree, SLOT);
                if let Some(locked) = world.tree.lock(&world.storage, place, &mut pin, || true) {
                    break locked;
                }
            };
            let count = if let Entry::Same(fill) = locked.entry() { fill.word() } else { 0 };
            locked.replace(Entry::Same(Fill::new(count + 1).expect("a small number")));
        };
        let other = thread::spawn({
            let world = Arc::clone(&world);
            move || add(&world, 0)
        });
        add(&world, 1);
        other.join().expect("no panic");
        assert_eq!(world.tree.peek(&world.storage, SLOT), Entry::Same(Fill::new(2).expect("a small number")));
    });
}

/// A reader, a mover and a writer.
#[test]
fn read_against_write_and_move() {
    check(2, || {
        let world = World::new(3, 2);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        let mover = thread::spawn({
            let world = Arc::clone(&world);
            move || world.relocate(0, 1, &mut Vec::new())
        });
        world.write(2, 1, 1, &mut Vec::new());
        assert!(matches!(reader.join().expect("no panic"), Some(0 | 1)));
        mover.join().expect("no panic");
        assert_eq!(world.read(0), Some(1));
    });
}

/// An object is stored again at the same place for the same slot: a reader may see the same word
/// again with another page behind it.
#[test]
fn a_place_used_again() {
    check(3, || {
        let world = World::new(2, 2);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        let mut retired = Vec::new();
        world.write(1, 1, 1, &mut retired);
        // Object 0 is free unless it is being read.
        if retired.is_empty() {
            world.write(0, 2, 1, &mut retired);
        }
        assert!(matches!(reader.join().expect("no panic"), Some(0..=2)));
    });
}

/// Objects of two slots move together, and one wait covers their readers.
#[test]
fn read_against_moves() {
    check(3, || {
        let world = World::new(4, 2);
        world.fill(1, 1);
        Locked::lock(world.place(&world.tree, SLOT + 1).word).expect("a leaf").replace(entry(1));
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read_slot(&world.tree, SLOT + 1, 0)
        });
        let moves = [(SLOT, 0, 2), (SLOT + 1, 1, 3)];
        let words = moves.map(|(slot, from, to)| {
            let locked = Locked::lock(world.place(&world.tree, slot).word).expect("a leaf");
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
        assert_eq!((world.read(0), world.read_slot(&world.tree, SLOT + 1, 0)), (Some(0), Some(1)));
    });
}

/// A leaf is freed while its slot is read, and then becomes another disk's: the reader finds its
/// own page or nothing, never the other disk's.
#[test]
fn read_against_a_leaf_that_becomes_another_disks() {
    check(3, || {
        let world = World::new(2, 2);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        world.discard();
        let other = world.other_tree();
        world.write_slot(&other, SLOT + 4, 1, 1, 1, &mut Vec::new());
        assert!(matches!(reader.join().expect("no panic"), None | Some(0)));
        assert_eq!(world.read(0), None);
        assert_eq!(world.read_slot(&other, SLOT + 4, 0), Some(1));
    });
}

/// A write to an empty slot while its leaf is freed with the leaf's last page: the write is not
/// lost, and the leaf that remains is the slot's.
#[test]
fn write_against_the_end_of_its_leaf() {
    check(3, || {
        let world = World::new(2, 2);
        let remover = thread::spawn({
            let world = Arc::clone(&world);
            move || world.discard()
        });
        world.write_slot(&world.tree, SLOT + 1, 1, 1, 1, &mut Vec::new());
        remover.join().expect("no panic");
        assert_eq!(world.read_slot(&world.tree, SLOT + 1, 0), Some(1));
    });
}

/// A write while its leaf is freed with the node above it, or with the whole tree: it takes effect
/// or not, and leaves nothing behind.
#[test]
fn write_against_the_end_of_the_parts_above() {
    for count in [4, SLOTS] {
        check(3, move || {
            let world = World::new(2, 2);
            let remover = thread::spawn({
                let world = Arc::clone(&world);
                move || world.discard_slots(count)
            });
            world.write(1, 1, 1, &mut Vec::new());
            remover.join().expect("no panic");
            let seen = world.read(0);
            assert!(matches!(seen, None | Some(1)));
            assert_eq!(world.value(1) == POISON, seen.is_none(), "what no thread can read is free");
            world.end(&world.tree);
            assert_eq!((world.value(0), world.value(1)), (POISON, POISON));
            world.storage.check().expect("consistent");
        });
    }
}

/// The same while the freeing thread takes leaves for another disk: no entry is in two disks.
#[test]
fn write_against_a_leaf_that_becomes_another_disks() {
    check(2, || {
        let world = World::new(3, 2);
        let remover = thread::spawn({
            let world = Arc::clone(&world);
            move || {
                world.discard();
                let other = world.other_tree();
                world.write_slot(&other, SLOT, 2, 2, 0, &mut Vec::new());
                assert_eq!(other.peek(&world.storage, SLOT), entry(2));
            }
        });
        world.write_slot(&world.tree, SLOT + 1, 1, 1, 1, &mut Vec::new());
        remover.join().expect("no panic");
        assert_eq!(world.read_slot(&world.tree, SLOT + 1, 0), Some(1));
        assert_eq!(LEAF_SLOTS, 2, "both slots are in one leaf");
    });
}

/// A write begins before a fork and ends after it: the disk has it, and the fork either always or
/// never has it.
#[test]
fn write_against_fork() {
    check(3, || {
        let world = World::new(2, 2);
        let writer = thread::spawn({
            let world = Arc::clone(&world);
            move || world.write(1, 1, 0, &mut Vec::new())
        });
        let fork = world.fork();
        let seen = world.read_slot(&fork, SLOT, 1);
        assert!(matches!(seen, Some(0 | 1)));
        writer.join().expect("no panic");
        assert_eq!(world.read_slot(&fork, SLOT, 1), seen);
        assert_eq!(world.read(1), Some(1));
    });
}

/// Two consecutive writes while the disk is forked: the fork never has the second without the
/// first.
#[test]
fn writes_in_order_against_fork() {
    check(2, || {
        let world = World::new(3, 2);
        let writer = thread::spawn({
            let world = Arc::clone(&world);
            move || {
                world.write(1, 1, 0, &mut Vec::new());
                world.write_slot(&world.tree, SLOT + 4, 2, 2, 0, &mut Vec::new());
            }
        });
        let fork = world.fork();
        let second = world.read_slot(&fork, SLOT + 4, 1);
        assert!(second.is_none() || world.read_slot(&fork, SLOT, 1) == Some(1));
        writer.join().expect("no panic");
    });
}

/// An update across a fork changes the disk's current page: it does not lose a write that began
/// earlier.
#[test]
fn updates_add_up_across_a_fork() {
    check(2, || {
        let world = World::new(1, 3);
        world.discard();
        let add = |world: &World, stream: usize| {
            let mut pin = world.pins.try_take(stream, 0).expect("a stream of its own");
            let (place, locked) = loop {
                let place = world.place(&world.tree, SLOT);
                if let Some(locked) = world.tree.lock(&world.storage, place, &mut pin, || true) {
                    break (place, locked);
                }
            };
            let entry = match locked.entry() {
                Entry::Link(_) => place.look(&world.storage).entry(),
                entry => entry,
            };
            let count = if let Entry::Same(fill) = entry { fill.word() } else { 0 };
            let old = locked.replace(Entry::Same(Fill::new(count + 1).expect("a small number")));
            drop(pin);
            world.parts().let_go(old, PartStorage::leaf_of(place.number()).1, &mut Unused::default());
        };
        let other = thread::spawn({
            let world = Arc::clone(&world);
            move || add(&world, 0)
        });
        let fork = world.fork();
        let seen = world.tree.peek(&world.storage, SLOT);
        add(&world, 1);
        other.join().expect("no panic");
        assert_eq!(world.tree.peek(&world.storage, SLOT), Entry::Same(Fill::new(2).expect("a small number")));
        let forked = world.tree.peek(&world.storage, SLOT);
        assert!(forked != Entry::Empty, "{seen:?}");
        world.end(&fork);
    });
}

/// A disk writes what it shares while its fork is dropped: the object is freed once, by the later
/// of the two.
#[test]
fn write_against_the_end_of_a_fork() {
    check(3, || {
        let world = World::new(3, 2);
        let fork = world.fork();
        // Writing the leaf's other slot copies the leaf, with a link for this one.
        world.write_slot(&world.tree, SLOT + 1, 1, 1, 1, &mut Vec::new());
        let ender = thread::spawn({
            let world = Arc::clone(&world);
            move || world.end(&fork)
        });
        world.write(2, 2, 1, &mut Vec::new());
        ender.join().expect("no panic");
        assert_eq!(world.read(1), Some(2));
        assert_eq!(world.value(0), POISON, "no thread needs it any more");
        world.end(&world.tree);
        assert_eq!((world.value(1), world.value(2)), (POISON, POISON));
        world.storage.check().expect("consistent");
    });
}

/// A read through a link while the disk writes there and the fork is gone, so that the link's
/// target is freed.
#[test]
fn read_through_a_link_against_write() {
    check(2, || {
        let world = World::new(3, 2);
        let fork = world.fork();
        world.write_slot(&world.tree, SLOT + 1, 1, 1, 1, &mut Vec::new());
        world.end(&fork);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        let mut retired = Vec::new();
        world.write(2, 2, 1, &mut retired);
        assert!(matches!(reader.join().expect("no panic"), Some(0 | 2)));
        assert_eq!(world.read(0), Some(2));
    });
}

/// A disk and its fork copy the part that they share at the same time; the old part is freed.
#[test]
fn a_fork_parts_from_its_origin_in_one_step() {
    check(2, || {
        let world = World::new(3, 2);
        let fork = Arc::new(world.fork());
        let other = thread::spawn({
            let (world, fork) = (Arc::clone(&world), Arc::clone(&fork));
            move || world.write_slot(&fork, SLOT, 1, 1, 0, &mut Vec::new())
        });
        world.write(2, 2, 1, &mut Vec::new());
        other.join().expect("no panic");
        assert_eq!((world.read(0), world.read_slot(&fork, SLOT, 0)), (Some(2), Some(1)));
        assert_eq!(world.value(0), POISON, "no thread needs it any more");
        world.storage.check().expect("consistent");
    });
}

/// Two threads take one stream: one gets it, and the other then sees the state that the first has
/// left.
#[test]
fn a_stream_has_one_holder() {
    check(3, || {
        let pins: Arc<Pins> = Arc::new(Pins::new(1));
        let state = Arc::new(Shared(UnsafeCell::new(0u64)));
        let turn = |pins: &Pins, state: &Shared| {
            let held: Option<Pin<'_>> = pins.try_take(0, 0);
            // SAFETY: loom checks the access.
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

// SAFETY: only the holder of the pin accesses it: the model checks that.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

//! A disk's tree: the leaves that have the entries of its slots.
//!
//! ```text
//! root     names the topmost part, and the number of levels of nodes
//! nodes    64 places each; a place covers 256 KiB (a leaf), 16 MiB, 1 GiB, …
//! leaf     64 entries: 256 KiB
//! ```
//!
//! A slot without a leaf holds nothing; a reader that finds no leaf has its answer. Parts are
//! created by the first write below them.
//!
//! **Layers.** Every part belongs to a layer. A disk changes only parts of its own layer, under
//! `changing` or with an entry held. A fork is a second tree with the same topmost part. Both disks
//! get new layers, so from then on no disk may change a shared part. A writer first makes the parts
//! on its way its own, from the top ([`Tree::own`]). It takes over a part that nothing else uses
//! ([`Parts::adopt`]) and copies any other. So above a part of the disk's layer there are only such
//! parts, and no other thread uses it.
//!
//! **Late accesses.** A part without uses is freed, and any disk may then take it.
//!
//! ```text
//! reader:  v ← version; walk from the root; pin the object or look at the entry; if the version
//!          is still v, all of it was the slot's. Otherwise retry.
//! writer:  walk; if the leaf is not of the disk's layer, make it so under `changing`
//!          pin ← layer; lock the entry; if that is still the disk's and the leaf's layer, and the
//!          leaf is still in its place, the entry is the slot's and stays so while it is locked.
//!          Otherwise retry.
//! changer: under `changing`: change a place; version ← version + 1; drop the use of what it named.
//!          A node without uses loses its places before what they named is freed, and a leaf each
//!          entry under its lock.
//! forker:  under `changing`: layer ← new one; wait until no pin says that its holder writes to the
//!          old one
//! ```
//!
//! A part is reused only after the version has changed and through the lock of a slab, so a reader
//! that sees what the next user wrote also sees another version. A part's id is never reused, so a
//! place that still names the leaf names it for the same slot. A writer's pin and the layer work
//! like a reader's pin and the entry (`pins.rs`): a writer that locks an entry after the layer has
//! changed sees the change, and the forker waits for all others. So no change is half done at the
//! instant of the fork, and shared parts never change afterwards.

mod kept;
mod layers;
mod parts;
mod shadows;
mod storage;

use std::sync::{Arc, PoisonError};

use self::storage::FAN_BITS;
pub(crate) use self::{
    kept::{
        HEAD_BYTES, Head, KEY, KeptFile, NOTE_BYTES, OF_LEAF_BYTES, OF_NODE_BYTES, ROOT, ROW_WORDS, Row, TABLES_BYTES,
        Written, read_checked,
    },
    layers::{Layers, Sums},
    parts::{EntryCounter, HOLE, NOTHING, Parts, Unused, entry_below, names_part},
    shadows::Shadows,
    storage::{LEAF_BYTES, LEAF_SLOTS, PartId, PartStorage},
};
use crate::{
    entry::{Entry, Fill, LayerId, Locked, MARKS, Pin},
    limit::{Budget, Full, Purpose},
    sync::{
        AtomicU32, AtomicU64, Mutex, MutexGuard,
        Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
        fence,
    },
};

/// The bits of the root with the number of levels of nodes, above a number of 25 bits.
const LEVEL_SHIFT: u32 = 28;
const LEVEL_MASK: u64 = 0xf << LEVEL_SHIFT;

/// A level whose part would cover all possible slots.
const ALL: u32 = 9;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Tree {
    root: AtomicU64,
    version: AtomicU64,
    layer: AtomicU32,
    /// The layers that the disk wrote to before, of which parts are left. The disk holds
    /// each.
    changing: Mutex<Vec<LayerId>>,
    /// The tree's row in the pool's file, if there is one.
    row: Option<Row>,
}

/// The place of a slot's entry when it was looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryPlace<'a> {
    place: &'a AtomicU64,
    leaf: PartId,
    index: usize,
    pub(crate) word: &'a AtomicU64,
}

/// The result of looking up a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlotPlace<'a> {
    /// An entry.
    Entry(EntryPlace<'a>),
    /// No leaf: the value of the place that would name one, or name a part `level` levels above it.
    None { place: u64, level: u32 },
}

/// A change of a tree in progress.
pub(crate) struct Changing<'a> {
    tree: &'a Tree,
    parts: Parts<'a>,
    lineage: MutexGuard<'a, Vec<LayerId>>,
    layer: LayerId,
    /// The purpose for which memory for parts is taken; `None` forbids more parts.
    purpose: Option<Purpose>,
    unused: Unused,
}

impl<'a> EntryPlace<'a> {
    /// Returns the entry's number in the pool.
    pub(crate) fn number(&self) -> u64 {
        PartStorage::entry_number(self.leaf.number(), self.index)
    }

    /// Returns the leaf's number.
    pub(crate) fn leaf(&self) -> u32 {
        self.leaf.number()
    }

    /// Loads the entry, or the one that it leads to.
    #[inline]
    pub(crate) fn look(self, storage: &'a PartStorage) -> Looked<'a> {
        let seen = self.word.load(Acquire);
        let looked = Looked { number: self.number(), word: self.word, seen, steps: [None; 2] };
        if looked.entry().is_elsewhere() { looked.follow(storage) } else { looked }
    }
}

/// An entry that was loaded for a slot: the slot's own, or one that this leads to. It is valid if
/// [`Tree::is_current`] says so afterwards.
pub(crate) struct Looked<'a> {
    /// The number of the slot's own entry.
    pub(crate) number: u64,
    word: &'a AtomicU64,
    pub(crate) seen: u64,
    /// The entries that led to this one, and their values: a link, a sharing entry, or a link and
    /// then a sharing entry.
    steps: [Option<(&'a AtomicU64, u64)>; 2],
}

impl<'a> Looked<'a> {
    pub(crate) fn entry(&self) -> Entry {
        Entry::decode(self.seen)
    }

    /// Returns whether the slot's own entry led to another one.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.steps[0].is_some()
    }

    #[inline(never)]
    fn follow(mut self, storage: &'a PartStorage) -> Self {
        let index = PartStorage::leaf_of(self.number).1;
        for at in 0..self.steps.len() {
            let word = match self.entry() {
                Entry::Link(leaf) => &storage.words(leaf)[index],
                Entry::Shared { number, .. } => storage.word(number),
                _ => break,
            };
            self.steps[at] = Some((self.word, self.seen));
            self.word = word;
            self.seen = word.load(Acquire);
        }
        self
    }

    /// Pins the entry's object.
    #[inline]
    pub(crate) fn pin(&mut self, pin: &mut Pin<'_>) -> Entry {
        self.seen = pin.pin(self.word);
        self.entry()
    }

    /// Returns whether the entries that led to this one still do, and it is unchanged. A shared
    /// object moves from entry to entry. Without this check, an entry that was emptied and refilled
    /// would be mistaken for the one that led to the first object.
    fn is_there(&self) -> bool {
        let is = |word: &AtomicU64, seen: u64| (word.load(Acquire) ^ seen) & !MARKS == 0;
        !self.entry().is_elsewhere()
            && match self.steps {
                [None, _] => true,
                [Some((word, seen)), second] => {
                    is(word, seen) && second.is_none_or(|(word, seen)| is(word, seen)) && is(self.word, self.seen)
                }
            }
    }
}

/// Returns the number of slots below a part.
pub(crate) fn span(level: u32) -> u64 {
    1 << (FAN_BITS * (level + 1))
}

/// Returns the index of the place or entry in a part that leads to the slot.
fn index(slot: u64, level: u32) -> usize {
    (slot >> (FAN_BITS * level)) as usize % LEAF_SLOTS
}

/// Splits the root into a place and the level of the part that it names.
#[inline]
pub(crate) fn split(root: u64) -> (u64, u32) {
    if names_part(root) { (root & !LEVEL_MASK, ((root & LEVEL_MASK) >> LEVEL_SHIFT) as u32) } else { (root, 0) }
}

/// Returns the number of levels of nodes that `slots` slots need.
pub(crate) fn levels(slots: u64) -> u32 {
    let mut level = 1;
    while span(level) < slots {
        level += 1;
    }
    level
}

impl Tree {
    /// Creates a tree without parts, whose disk writes to `layer`.
    pub(crate) fn new(layer: LayerId) -> Self {
        Self {
            root: AtomicU64::new(NOTHING),
            version: AtomicU64::new(0),
            layer: AtomicU32::new(layer.number()),
            changing: Mutex::default(),
            row: None,
        }
    }

    /// Keeps the tree in the pool's file from now on. No other thread uses it yet.
    pub(crate) fn keep(&mut self, kept: &Arc<KeptFile>, budget: &Budget) -> Result<(), Full> {
        self.row = Some(Row::take(kept, self.root.load(Acquire), &self.layers(), budget)?);
        Ok(())
    }

    /// Returns the tree's description for the pool's file.
    pub(crate) fn row(&self) -> Option<&Row> {
        self.row.as_ref()
    }

    fn store_root(&self, root: u64) {
        // Recorded before another thread can write below it.
        if let Some(row) = &self.row {
            row.set_root(root);
        }
        self.root.store(root, Release);
    }

    /// Creates a tree over existing parts, which already count it as a user. `root` is a place and
    /// the level of the part that it names. The disk holds `layer` and the layers that it wrote to
    /// before.
    pub(crate) fn restored((place, level): (u64, u32), layer: LayerId, earlier: Vec<LayerId>) -> Self {
        let root = if names_part(place) { place | u64::from(level) << LEVEL_SHIFT } else { place };
        Self { root: AtomicU64::new(root), changing: Mutex::new(earlier), ..Self::new(layer) }
    }

    /// Returns the place of the topmost part, and the part's level.
    pub(crate) fn root(&self) -> (u64, u32) {
        split(self.root.load(Acquire))
    }

    /// Returns the layer that the disk writes to.
    #[inline]
    pub(crate) fn layer(&self) -> LayerId {
        LayerId::of(self.layer.load(SeqCst))
    }

    /// Returns whether there is no part.
    pub(crate) fn is_empty(&self) -> bool {
        self.root.load(Acquire) == NOTHING
    }

    /// Returns the version that [`is`](Self::is) compares.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// Returns whether everything looked up since [`version`](Self::version) returned `version` was
    /// the slot's.
    #[inline]
    pub(crate) fn is(&self, version: u64) -> bool {
        fence(Acquire);
        self.version.load(Relaxed) == version
    }

    /// Like `is`, for an entry that was loaded since then.
    #[inline]
    pub(crate) fn is_current(&self, looked: &Looked<'_>, version: u64) -> bool {
        fence(Acquire);
        looked.is_there() && self.is(version)
    }

    /// Looks the slot up. The result is valid if the version is unchanged afterwards.
    #[inline]
    pub(crate) fn find<'a>(&self, storage: &'a PartStorage, slot: u64) -> SlotPlace<'a> {
        let (mut name, mut level) = split(self.root.load(Acquire));
        if !names_part(name) {
            return SlotPlace::None { place: name, level: ALL };
        }
        if slot >> (FAN_BITS * (level + 1)) != 0 {
            return SlotPlace::None { place: NOTHING, level: ALL };
        }
        loop {
            let place = &storage.node(PartId::of(name).number())[index(slot, level)];
            name = place.load(Acquire);
            level -= 1;
            if !names_part(name) {
                return SlotPlace::None { place: name, level };
            }
            if level == 0 {
                return SlotPlace::Entry(Self::place(storage, place, PartId::of(name), slot));
            }
        }
    }

    fn place<'a>(storage: &'a PartStorage, place: &'a AtomicU64, leaf: PartId, slot: u64) -> EntryPlace<'a> {
        let index = index(slot, 0);
        EntryPlace { place, leaf, index, word: &storage.words(leaf.number())[index] }
    }

    /// Returns the slot's entry at some moment during the call, or the one that it leads to.
    pub(crate) fn peek(&self, storage: &PartStorage, slot: u64) -> Entry {
        loop {
            let version = self.version();
            match self.find(storage, slot) {
                SlotPlace::None { place, .. } if self.is(version) => return entry_below(place),
                SlotPlace::None { .. } => {}
                SlotPlace::Entry(place) => {
                    let looked = place.look(storage);
                    if self.is_current(&looked, version) {
                        return looked.entry();
                    }
                }
            }
        }
    }

    /// Returns the slot's entry or the one that it leads to, and a number of slots, at most
    /// `limit`, that have equal entries from this one on. A slot with data is always returned
    /// alone.
    pub(crate) fn run(&self, storage: &PartStorage, slot: u64, limit: u64) -> (Entry, u64) {
        let (mut count, mut first) = (0, Entry::Empty);
        while count < limit {
            let (at, version) = (slot + count, self.version());
            let (entry, same) = match self.find(storage, at) {
                SlotPlace::None { place, level } => (entry_below(place), span(level) - at % span(level)),
                SlotPlace::Entry(_) => (self.peek(storage, at), 1),
            };
            if !self.is(version) {
                continue;
            }
            let is_data = !matches!(entry, Entry::Empty | Entry::Hole | Entry::Same(Fill::ZERO));
            if count > 0 && (entry != first || is_data) {
                break;
            }
            first = entry;
            count = limit.min(count + same);
        }
        (first, count)
    }

    /// Returns whether the slot's content belongs to one of `layers`, which is uncertain for holes,
    /// and a number of slots from it on, at most `limit`, for which the answer is the same.
    pub(crate) fn run_of(&self, storage: &PartStorage, slot: u64, limit: u64, layers: &[LayerId]) -> (bool, u64) {
        let (mut count, mut first) = (0, false);
        while count < limit {
            let (at, version) = (slot + count, self.version());
            let (is_of, same) = match self.find(storage, at) {
                SlotPlace::None { place, level } => (place == HOLE, span(level) - at % span(level)),
                SlotPlace::Entry(place) => match Entry::decode(place.word.load(Acquire)) {
                    Entry::Empty => (false, 1),
                    Entry::Link(leaf) => (layers.contains(&storage.layer(leaf)), 1),
                    _ => (layers.contains(&storage.layer(place.leaf())), 1),
                },
            };
            if !self.is(version) {
                continue;
            }
            if count > 0 && is_of != first {
                break;
            }
            first = is_of;
            count = limit.min(count + same);
        }
        (first, count)
    }

    /// Returns the place of the slot's entry if it is in a leaf that the disk may change.
    #[inline]
    pub(crate) fn find_own<'a>(&self, storage: &'a PartStorage, slot: u64) -> Option<EntryPlace<'a>> {
        match self.find(storage, slot) {
            SlotPlace::Entry(place) if self.owns(storage, place) => Some(place),
            _ => None,
        }
    }

    /// Returns whether `place` is in a leaf that the disk may change.
    #[inline]
    pub(crate) fn owns(&self, storage: &PartStorage, place: EntryPlace<'_>) -> bool {
        storage.layer(place.leaf()) == self.layer()
    }

    /// Locks the entry at `place` for a change, if it is still the slot's, is in a leaf of the
    /// disk's own, and `may` returns true. Until `pin` is dropped or names an object, the disk
    /// cannot be forked.
    #[inline]
    pub(crate) fn lock<'a>(
        &self,
        storage: &PartStorage,
        place: EntryPlace<'a>,
        pin: &mut Pin<'_>,
        may: impl FnOnce() -> bool,
    ) -> Option<Locked<'a>> {
        let layer = storage.layer(place.leaf());
        pin.writes(layer);
        if let Some(locked) = Locked::lock(place.word) {
            let is_own = self.layer() == layer
                && storage.layer(place.leaf()) == layer
                && place.place.load(Relaxed) == place.leaf.word();
            if is_own && may() {
                return Some(locked);
            }
        }
        // Otherwise a forker would wait for this pin, and this thread for the forker.
        pin.rests();
        None
    }

    /// Returns the layers that the disk writes to or has written to, of which parts are
    /// left.
    pub(crate) fn layers(&self) -> Vec<LayerId> {
        let lineage = self.lineage();
        lineage.iter().copied().chain([self.layer()]).collect()
    }

    fn lineage(&self) -> MutexGuard<'_, Vec<LayerId>> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no thread changes the tree, then starts a change.
    pub(crate) fn change<'a>(&'a self, parts: Parts<'a>, purpose: Option<Purpose>) -> Changing<'a> {
        let lineage = self.lineage();
        Changing { tree: self, parts, layer: self.layer(), lineage, purpose, unused: Unused::default() }
    }
}

impl<'a> Changing<'a> {
    /// Ends the change and returns what became unused.
    pub(crate) fn end(self) -> Unused {
        self.unused
    }

    /// Returns the slot's entry in a leaf of the disk's own, if the slot is below `slots`, the
    /// current number of slots.
    ///
    /// # Errors
    /// There is no memory, or the slot is not below `slots`; the content of the tree is unchanged.
    pub(crate) fn own(&mut self, slot: u64, slots: u64) -> Result<EntryPlace<'a>, Full> {
        if slot >= slots {
            return Err(Full);
        }
        let (tree, storage) = (self.tree, self.parts.storage);
        self.raise(levels(slots))?;
        let (_, mut level) = split(tree.root.load(Acquire));
        let mut place = &tree.root;
        let mut part = self.own_part(place, level)?;
        while level > 0 {
            place = &storage.node(part.number())[index(slot, level)];
            level -= 1;
            part = self.own_part(place, level)?;
        }
        Ok(Tree::place(storage, place, part, slot))
    }

    /// Adds levels of nodes until the tree has at least `levels`.
    fn raise(&mut self, levels: u32) -> Result<(), Full> {
        let root = &self.tree.root;
        loop {
            let (name, level) = split(root.load(Acquire));
            if !names_part(name) {
                let part = self.parts.take(self.layer, levels, name, self.purpose.ok_or(Full)?)?;
                self.put(root, part.word() | u64::from(levels) << LEVEL_SHIFT);
            } else if level < levels {
                let part = self.parts.take(self.layer, level + 1, NOTHING, self.purpose.ok_or(Full)?)?;
                self.parts.storage.node(part.number())[0].store(name, Release);
                self.put(root, part.word() | u64::from(level + 1) << LEVEL_SHIFT);
            } else {
                return Ok(());
            }
        }
    }

    fn put(&self, place: &AtomicU64, name: u64) {
        if std::ptr::eq(place, &self.tree.root) {
            self.tree.store_root(name);
        } else {
            place.store(name, Release);
        }
        self.tree.version.fetch_add(1, AcqRel);
    }

    /// Makes the part that `place` names the disk's own. `place` is the root or in a part of the
    /// disk's own.
    fn own_part(&mut self, place: &AtomicU64, level: u32) -> Result<PartId, Full> {
        let Self { parts, layer, purpose, .. } = *self;
        let before = place.load(Acquire);
        let is_root = std::ptr::eq(place, &self.tree.root);
        let (name, marks) = if is_root { (split(before).0, before & LEVEL_MASK) } else { (before, 0) };
        if !names_part(name) {
            let part = parts.take(layer, level, name, purpose.ok_or(Full)?)?;
            self.put(place, part.word() | marks);
            return Ok(part);
        }
        let part = PartId::of(name);
        let of = parts.layer(part, level);
        if of == layer || (self.lineage.contains(&of) && parts.adopt(part, level, layer)) {
            return Ok(part);
        }
        let copy = parts.copy(part, level, layer, purpose.ok_or(Full)?)?;
        self.put(place, copy.word() | marks);
        parts.drop_use(part, level, &mut self.unused);
        Ok(copy)
    }

    /// Makes the slots like those below a place with the value `below`: [`NOTHING`] or [`HOLE`].
    ///
    /// # Errors
    /// There is no memory for a copy of a shared part or for holes; some of the slots are cleared.
    pub(crate) fn clear(&mut self, slots: std::ops::Range<u64>, below: u64, most: u64) -> Result<(), Full> {
        let root = &self.tree.root;
        // Nothing is stored beyond the disk's end.
        let slots = slots.start..if slots.end >= most { u64::MAX } else { slots.end };
        let (name, level) = split(root.load(Acquire));
        if slots == (0..u64::MAX) {
            self.set_root(below);
            return Ok(());
        }
        if name == below || (below == NOTHING && slots.start >= span(level)) {
            return Ok(());
        }
        if below == HOLE {
            self.raise(levels(most))?;
        }
        let (_, level) = split(root.load(Acquire));
        self.clear_below(root, level, 0, &slots, below)
    }

    /// Replaces the tree's root.
    fn set_root(&mut self, root: u64) {
        let (name, level) = split(self.tree.root.load(Acquire));
        self.put(&self.tree.root, root);
        if names_part(name) {
            self.parts.drop_use(PartId::of(name), level, &mut self.unused);
        }
    }

    /// Clears slots of the part that `place` names, whose first slot is `start`.
    fn clear_below(
        &mut self,
        place: &AtomicU64,
        level: u32,
        start: u64,
        slots: &std::ops::Range<u64>,
        below: u64,
    ) -> Result<(), Full> {
        let is_root = std::ptr::eq(place, &self.tree.root);
        let before = place.load(Acquire);
        let name = if is_root { split(before).0 } else { before };
        if name == below || (name == NOTHING && below == NOTHING) {
            return Ok(());
        }
        let end = start + span(level);
        if slots.start <= start && end <= slots.end && !is_root {
            self.put(place, below);
            if names_part(name) {
                self.parts.drop_use(PartId::of(name), level, &mut self.unused);
            }
            return Ok(());
        }
        let part = self.own_part(place, level)?;
        let (first, last) = (slots.start.max(start), slots.end.min(end) - 1);
        if level == 0 {
            self.clear_entries(part, index(first, 0)..=index(last, 0), below);
            let (tree, parts) = (self.tree, self.parts);
            parts.give_uniform(part, entry_below(below), || {
                place.store(below, Release);
                tree.version.fetch_add(1, AcqRel);
            });
            return Ok(());
        }
        let storage = self.parts.storage;
        for at in index(first, level)..=index(last, level) {
            let child = start + at as u64 * span(level - 1);
            self.clear_below(&storage.node(part.number())[at], level - 1, child, slots, below)?;
        }
        let mut places = storage.node(part.number()).iter();
        if !is_root && places.all(|place| place.load(Relaxed) == below) {
            self.put(place, below);
            self.parts.drop_use(part, level, &mut self.unused);
        }
        Ok(())
    }

    fn clear_entries(&mut self, leaf: PartId, at: std::ops::RangeInclusive<usize>, below: u64) {
        for index in at {
            let Some(locked) = Locked::lock(&self.parts.storage.words(leaf.number())[index]) else {
                unreachable!("the leaf is in the tree")
            };
            let old = self.parts.replace(leaf.number(), locked, entry_below(below));
            self.parts.let_go(old, index, &mut self.unused);
        }
    }

    /// Stores an entry without an object in the slot.
    pub(crate) fn put_entry(&mut self, slot: u64, slots: u64, new: Entry) -> Result<(), Full> {
        let place = self.own(slot, slots)?;
        let Some(locked) = Locked::lock(place.word) else { unreachable!("the leaf is in the tree") };
        let old = self.parts.replace(place.leaf(), locked, new);
        self.parts.let_go(old, place.index, &mut self.unused);
        Ok(())
    }

    /// Frees the slot's leaf if it is the disk's own and holds nothing.
    pub(crate) fn give_empty(&mut self, slot: u64) {
        let (tree, parts) = (self.tree, self.parts);
        if let Some(place) = tree.find_own(parts.storage, slot) {
            parts.give_uniform(place.leaf, Entry::Empty, || {
                place.place.store(NOTHING, Release);
                tree.version.fetch_add(1, AcqRel);
            });
        }
    }

    /// Makes the disk write to `layer` from now on, and its present parts read-only. `wait` returns
    /// when no thread writes to a layer. Returns whether `layer` was needed.
    fn freeze(&mut self, layer: LayerId, mut wait: impl FnMut(LayerId)) -> bool {
        let before = self.layer;
        if self.parts.layers.parts(before) == 0 {
            return false;
        }
        if let Some(row) = &self.tree.row {
            row.owns(layer);
        }
        self.tree.layer.store(layer.number(), SeqCst);
        self.layer = layer;
        wait(before);
        let parts = self.parts;
        self.lineage.push(before);
        self.lineage.retain(|&old| {
            let is_used = parts.layers.parts(old) > 0;
            if !is_used {
                parts.layers.give(old, parts.budget);
            }
            is_used
        });
        true
    }

    /// Creates a tree with the same content for a disk that writes to `theirs`. This tree's disk
    /// writes to `ours` from now on, unless it has changed nothing since it was last forked. `wait`
    /// returns when no thread writes to a layer.
    pub(crate) fn fork(&mut self, ours: LayerId, theirs: LayerId, wait: impl FnMut(LayerId)) -> Tree {
        if !self.freeze(ours, wait) {
            self.parts.layers.give(ours, self.parts.budget);
        }
        let fork = Tree::new(theirs);
        let root = self.tree.root.load(Acquire);
        let (name, level) = split(root);
        if names_part(name) {
            self.parts.add_use(PartId::of(name), level);
        }
        fork.root.store(root, Release);
        fork
    }

    /// Moves the content of `other` to this tree, which leaves `other` empty; this tree's old
    /// content becomes unused. No other thread uses `other`. The disk writes to `layer` from now on,
    /// unless it has changed nothing.
    pub(crate) fn become_as(&mut self, other: &Tree, layer: LayerId, wait: impl FnMut(LayerId)) {
        if !self.freeze(layer, wait) {
            self.parts.layers.give(layer, self.parts.budget);
        }
        let root = other.root.load(Acquire);
        // In the file, this tree gets the content before `other` loses it.
        if let Some(row) = &self.tree.row {
            row.set_root(root);
        }
        other.store_root(NOTHING);
        self.set_root(root);
    }
}

impl Tree {
    /// Drops everything that the disk had. No thread uses the disk any more.
    pub(crate) fn end(&self, parts: Parts<'_>) -> Unused {
        let mut changing = self.change(parts, None);
        let mut layers = std::mem::take(&mut *changing.lineage);
        layers.push(self.layer());
        if let Some(row) = &self.row {
            row.ends(&layers);
        }
        changing.set_root(NOTHING);
        for layer in layers {
            parts.layers.give(layer, parts.budget);
        }
        if let Some(row) = &self.row {
            row.give(parts.budget);
        }
        changing.end()
    }
}

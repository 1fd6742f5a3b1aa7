//! Reference counts of the parts of trees, and what happens to parts at zero.
//!
//! ```text
//! disk a ─ node ─┬─ leaf 1 │ object  │ link to 2 │ …   leaf 1 was made for a write after the fork:
//!                │                   │               the entries not written are links
//!                └─ leaf 3           ▼
//! disk b ─ node ─┬─ leaf 2 │ object  │ object    │ …   leaf 2 is as it was at the fork
//!                └─ leaf 3                             leaf 3 has two uses: not written since
//! ```
//!
//! - Many places may name one part; each is a *use*. A part of another layer is copied before it is
//!   changed.
//! - A copy of a node has the same places and adds a use to each part. A copy of a leaf has *links*
//!   to the entries of the old one, or to those that these link to. A fork never changes an
//!   object's owner, and a single link leads to it however often a disk was forked.
//! - An entry lives while its leaf has uses or another entry links to it. So a leaf without uses
//!   keeps only entries with links, and is freed with the last of them.
//!
//! Two threads may drop an entry simultaneously: one removes the leaf's last use, the other the
//! entry's last link. Both lock the entry. The first has decremented the uses before, and the
//! second checks them while it holds the entry, so the later of the two knows that it is the last.

use super::{
    layers::Layers,
    storage::{LEAF_SLOTS, PartId, PartStorage},
};
use crate::{
    entry::{Entry, LayerId, Locked},
    equal::Common,
    heap::Owner,
    limit::{Budget, Full, Purpose},
    sync::{
        Ordering::{AcqRel, Acquire, Relaxed, Release},
        fence,
    },
};

/// A place without a part: nothing is below it.
pub(crate) const NOTHING: u64 = 0;

/// A place without a part: zeros are below it, regardless of what is below the disk.
pub(crate) const HOLE: u64 = u64::MAX;

/// Returns whether a place names a part.
#[inline]
pub(crate) fn names_part(place: u64) -> bool {
    place != NOTHING && place != HOLE
}

/// Returns the entry of the slots below a place without a part.
pub(crate) fn entry_below(place: u64) -> Entry {
    if place == HOLE { Entry::Hole } else { Entry::Empty }
}

/// The counter of what entries hold.
pub(crate) trait EntryCounter {
    /// Counts that `new` replaced `old` in a layer.
    fn replaced(&self, layer: LayerId, old: Entry, new: Entry);

    /// Counts the same for the tables of their objects. Once no entry has a number of tables, other
    /// tables may get that number.
    fn tables_replaced(&self, old: Entry, new: Entry);
}

/// The parts of a pool, and what is needed to create and free them.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) storage: &'a PartStorage,
    pub(crate) layers: &'a Layers,
    pub(crate) budget: &'a Budget,
    pub(crate) counts: &'a dyn EntryCounter,
    pub(crate) common: &'a Common,
}

/// Parts and objects to be freed: parts without uses, and objects that are not in an entry any more but may
/// still be read.
#[derive(Debug, Default)]
pub(crate) struct Unused {
    /// Numbers and levels. The last is freed first, so there are never more than 64 per level.
    parts: Vec<(u32, u32)>,
    pub(crate) words: Vec<u64>,
}

impl Unused {
    /// Adds a part that has no use.
    pub(crate) fn add(&mut self, number: u32, level: u32) {
        self.parts.push((number, level));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.words.is_empty()
    }
}

impl<'a> Parts<'a> {
    /// Takes a part for `layer`, `level` levels above the leaves. All its places equal `place`, or all
    /// its entries are what the slots below `place` have.
    pub(crate) fn take(&self, layer: LayerId, level: u32, place: u64, purpose: Purpose) -> Result<PartId, Full> {
        let part = match level {
            0 => self.storage.take(layer, entry_below(place), purpose, self.budget),
            _ => self.storage.take_node(layer, place, purpose, self.budget),
        }?;
        self.layers.hold(layer);
        Ok(part)
    }

    /// Returns the layer that the part belongs to.
    pub(crate) fn layer(&self, part: PartId, level: u32) -> LayerId {
        match level {
            0 => self.storage.layer(part.number()),
            _ => self.storage.node_layer(part.number()),
        }
    }

    fn uses(&self, part: PartId, level: u32) -> &'a crate::sync::AtomicU32 {
        match level {
            0 => self.storage.uses(part.number()),
            _ => self.storage.node_uses(part.number()),
        }
    }

    /// Adds a use to a part that has some.
    pub(crate) fn add_use(&self, part: PartId, level: u32) {
        self.uses(part, level).fetch_add(1, Relaxed);
    }

    /// Removes a use.
    pub(crate) fn drop_use(&self, part: PartId, level: u32, unused: &mut Unused) {
        if self.uses(part, level).fetch_sub(1, Release) == 1 {
            fence(Acquire);
            unused.parts.push((part.number(), level));
        }
    }

    /// Frees one of the parts without uses. The caller then frees its objects. Returns whether
    /// there was one.
    pub(crate) fn free_one(&self, unused: &mut Unused) -> bool {
        let Some((number, level)) = unused.parts.pop() else { return false };
        if level == 0 {
            self.free_leaf(number, unused);
            return true;
        }
        for place in self.storage.node(number) {
            // A thread that has found a leaf here, and locks an entry of it after the leaf was
            // freed, sees that the leaf is not in its place any more.
            let part = place.swap(NOTHING, AcqRel);
            if names_part(part) {
                self.drop_use(PartId::of(part), level - 1, unused);
            }
        }
        self.layers.give(self.storage.node_layer(number), self.budget);
        self.storage.give_node(number, self.budget);
        true
    }

    /// Empties the entries without links of a leaf without uses.
    fn free_leaf(&self, number: Owner, unused: &mut Unused) {
        for (index, word) in self.storage.words(number).iter().enumerate() {
            let Some(locked) = Locked::lock(word) else { unreachable!("the leaf lives") };
            if self.links(number, index) == 0 {
                let old = self.replace(number, locked, Entry::Empty);
                self.let_go(old, index, unused);
            }
        }
        self.drop_life(number);
    }

    /// Returns how many entries link to this one.
    fn links(&self, number: Owner, index: usize) -> u32 {
        self.storage.counts(number).map_or(0, |counts| counts[index].load(Relaxed))
    }

    /// Replaces an entry that is held with one without an object of its own.
    pub(crate) fn replace(&self, number: Owner, locked: Locked<'_>, new: Entry) -> Entry {
        debug_assert!(new.object().is_none(), "its tables are counted too late");
        // The leaf may lose its layer once it is not held.
        self.counts.replaced(self.storage.layer(number), locked.entry(), new);
        let old = locked.replace(new);
        self.counts.tables_replaced(old, new);
        old
    }

    /// Drops what `old` refers to, an entry that was removed from its leaf at `index`.
    pub(crate) fn let_go(&self, old: Entry, index: usize, unused: &mut Unused) {
        match old {
            Entry::Link(to) => self.unlink(to, index, unused),
            Entry::Shared { number, .. } => self.unshare(number, unused),
            _ => unused.words.extend(old.object().map(|_| old.encode())),
        }
    }

    /// Removes a link to an entry.
    fn unlink(&self, to: Owner, index: usize, unused: &mut Unused) {
        let Some(locked) = Locked::lock(&self.storage.words(to)[index]) else { unreachable!("the link kept the leaf") };
        let Some(counts) = self.storage.counts(to) else { unreachable!("the link was counted") };
        let was_last = counts[index].fetch_sub(1, Relaxed) == 1;
        if was_last && self.storage.uses(to).load(Acquire) == 0 {
            let old = self.replace(to, locked, Entry::Empty);
            debug_assert!(!matches!(old, Entry::Link(_)), "a link leads to what is not one");
            self.let_go(old, index, unused);
        } else {
            drop(locked);
        }
        self.drop_life(to);
    }

    /// Decrements a leaf's lives, and frees the leaf at zero.
    pub(crate) fn drop_life(&self, number: Owner) {
        if self.storage.lives(number).fetch_sub(1, AcqRel) > 1 {
            return;
        }
        for word in self.storage.words(number) {
            let Some(locked) = Locked::lock(word) else { unreachable!("the leaf lives") };
            debug_assert_eq!(locked.entry(), Entry::Empty, "nothing keeps the entry");
            locked.end();
        }
        self.layers.give(self.storage.layer(number), self.budget);
        self.storage.give(number, self.budget);
    }

    /// Frees a leaf of the caller's own, without links to it, if all its entries are `entry` and
    /// no thread holds one. `detach` clears its place.
    pub(crate) fn give_uniform(&self, leaf: PartId, entry: Entry, detach: impl FnOnce()) {
        let number = leaf.number();
        let mut held: [Option<Locked<'_>>; LEAF_SLOTS] = [const { None }; LEAF_SLOTS];
        for (held, word) in held.iter_mut().zip(self.storage.words(number)) {
            *held = Locked::try_lock(word, entry);
            if held.is_none() {
                return;
            }
        }
        detach();
        held.into_iter().flatten().for_each(Locked::end);
        self.layers.give(self.storage.layer(number), self.budget);
        self.storage.give(number, self.budget);
    }

    /// Moves a part to the layer if it has only one use, by a part of that layer, and no links to
    /// it. Returns false if it has more.
    pub(crate) fn adopt(&self, part: PartId, level: u32, layer: LayerId) -> bool {
        if self.uses(part, level).load(Acquire) != 1 {
            return false;
        }
        let before = self.layer(part, level);
        let number = part.number();
        if level > 0 {
            self.storage.set_node_layer(number, layer);
        } else {
            if self.storage.lives(number).load(Acquire) != 1 {
                return false;
            }
            // A thread that rewrites an object for other tables counts the change in the leaf's
            // layer.
            let held: [Option<Locked<'_>>; LEAF_SLOTS] =
                std::array::from_fn(|index| Locked::lock(&self.storage.words(number)[index]));
            self.storage.set_layer(number, layer);
            for locked in held.iter().flatten() {
                self.layers.moved(before, layer, locked.entry());
            }
        }
        self.layers.hold(layer);
        self.layers.give(before, self.budget);
        true
    }

    /// Copies `part` for `layer`. The caller uses `part`, and no thread changes it.
    pub(crate) fn copy(&self, part: PartId, level: u32, layer: LayerId, purpose: Purpose) -> Result<PartId, Full> {
        if level == 0 {
            return self.copy_leaf(part, layer, purpose);
        }
        let new = self.take(layer, level, NOTHING, purpose)?;
        for (from, to) in self.storage.node(part.number()).iter().zip(self.storage.node(new.number())) {
            let place = from.load(Acquire);
            if names_part(place) {
                self.add_use(PartId::of(place), level - 1);
            }
            to.store(place, Release);
        }
        Ok(new)
    }

    fn copy_leaf(&self, leaf: PartId, layer: LayerId, purpose: Purpose) -> Result<PartId, Full> {
        let from = leaf.number();
        self.storage.make_counts(from, purpose, self.budget)?;
        let new = self.take(layer, 0, NOTHING, purpose)?;
        let words = self.storage.words(from).iter().zip(self.storage.words(new.number()));
        for (index, (word, to)) in words.enumerate() {
            let target = match Entry::decode(word.load(Acquire)) {
                Entry::Empty => continue,
                Entry::Link(target) => target,
                _ => from,
            };
            self.link(target, index);
            to.store(Entry::Link(target).encode(), Release);
        }
        Ok(new)
    }

    /// Adds a sharer to the object of entry `number`, which the caller holds. If the entry is a
    /// disk's, first moves the object to one of the pool's own entries; `set_owner` records that in
    /// the object. Returns the new sharer's entry: it is already counted, so it must be stored in a
    /// slot or be [let go](Self::let_go).
    ///
    /// # Errors
    /// There is no memory for an entry; nothing has changed.
    pub(crate) fn share(&self, number: u64, locked: Locked<'a>, set_owner: impl FnOnce(Owner)) -> Result<Entry, Full> {
        let (leaf, index) = PartStorage::leaf_of(number);
        let held = locked.entry();
        let len_bytes = held.object_bytes();
        debug_assert!(len_bytes > 0, "an object is shared");
        if self.storage.layer(leaf) == self.common.layer() {
            self.link(leaf, index);
            return Ok(Entry::Shared { number, len_bytes });
        }
        let (number, room) = self.take_common()?;
        let shared = Entry::Shared { number, len_bytes };
        set_owner(PartStorage::leaf_of(number).0);
        self.counts.replaced(self.common.layer(), room.entry(), held);
        self.counts.tables_replaced(room.entry(), held);
        room.replace(held);
        self.replace(leaf, locked, shared);
        Ok(shared)
    }

    /// Counts another link to an entry that stays during the call, in a leaf with counts.
    pub(crate) fn link(&self, leaf: Owner, index: usize) {
        let Some(counts) = self.storage.counts(leaf) else { unreachable!("the leaf has counts") };
        counts[index].fetch_add(1, Relaxed);
        self.storage.lives(leaf).fetch_add(1, Relaxed);
    }

    /// Takes an empty entry of the pool's own, and counts two sharers for its object.
    fn take_common(&self) -> Result<(u64, Locked<'a>), Full> {
        let mut roomy = self.common.roomy();
        let leaf = match roomy.first() {
            Some(&leaf) => leaf,
            None => {
                let leaf = self.take(self.common.layer(), 0, NOTHING, Purpose::Keep)?.number();
                roomy.insert(leaf);
                leaf
            }
        };
        self.storage.make_counts(leaf, Purpose::Keep, self.budget)?;
        let words = self.storage.words(leaf).iter().enumerate();
        let mut empty = words.filter_map(|(index, word)| Some((index, Locked::try_lock(word, Entry::Empty)?)));
        let taken = empty.next();
        if taken.is_none() || empty.next().is_none() {
            roomy.remove(&leaf);
        }
        let (index, locked) = taken.ok_or(Full)?;
        // Both are counted before another thread can find the leaf unreferenced.
        for _ in 0..2 {
            self.link(leaf, index);
        }
        Ok((PartStorage::entry_number(leaf, index), locked))
    }

    /// Removes a sharer of an object. The last one empties the object's entry.
    pub(crate) fn unshare(&self, number: u64, unused: &mut Unused) {
        let (leaf, index) = PartStorage::leaf_of(number);
        let Some(locked) = Locked::lock(self.storage.word(number)) else { unreachable!("the link kept the leaf") };
        let Some(counts) = self.storage.counts(leaf) else { unreachable!("the link was counted") };
        let lives = self.storage.lives(leaf);
        if counts[index].fetch_sub(1, Relaxed) > 1 {
            lives.fetch_sub(1, AcqRel);
            return;
        }
        let mut roomy = self.common.roomy();
        let old = self.replace(leaf, locked, Entry::Empty);
        self.let_go(old, index, unused);
        // Only a sharer adds sharers, so none can be added once there is none.
        if lives.fetch_sub(1, AcqRel) > 2 {
            roomy.insert(leaf);
            return;
        }
        roomy.remove(&leaf);
        self.storage.uses(leaf).store(0, Relaxed);
        self.drop_life(leaf);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::heap::Location;

    /// A counter that checks the word whose entry is replaced.
    struct Looks<'a> {
        leaves: &'a PartStorage,
        seen: Cell<Option<Entry>>,
    }

    impl EntryCounter for Looks<'_> {
        fn replaced(&self, _: LayerId, _: Entry, _: Entry) {}

        fn tables_replaced(&self, _: Entry, _: Entry) {
            self.seen.set(self.leaves.entry(0));
        }
    }

    /// Once a number of tables is no longer counted, other tables may get it, so no entry may have
    /// it by then.
    #[test]
    fn tables_are_given_up_after_the_entry() {
        let (leaves, budget) = (PartStorage::new(None).expect("address space"), Budget::new(u64::MAX, 1));
        let layers = Layers::new(1).expect("address space");
        let common = Common::new(layers.take(&budget).expect("no limit"));
        let layer = layers.take(&budget).expect("no limit");
        let counts = Looks { leaves: &leaves, seen: Cell::new(None) };
        let parts = Parts { storage: &leaves, layers: &layers, budget: &budget, counts: &counts, common: &common };
        let leaf = parts.take(layer, 0, NOTHING, Purpose::Keep).expect("no limit").number();
        let object = Entry::Object { tables: 1, len_bytes: 100, at: Location::new(64) };
        let lock = || Locked::lock(&leaves.words(leaf)[0]).expect("the leaf lives");
        lock().replace(object);
        assert_eq!(parts.replace(leaf, lock(), Entry::Empty), object);
        assert_eq!(counts.seen.get(), Some(Entry::Empty));
    }
}

//! Objects that slots of any disks share because their pages are equal.
//!
//! ```text
//! disk a ─ leaf │ shared 9.2 │ object  │ …        leaf 9 is the pool's: no tree names it
//! disk b ─ leaf │ object  │ shared 9.2 │ …        entry 2 of it has the object, and counts two who share it
//! ```
//!
//! An object has one owner. When a second slot gets the same page, the object moves from the first
//! one's entry to an entry of the pool's own, and both slots' entries say which. It stays there
//! until the last of them lets go of it. These entries lie in leaves like any others, so
//! compaction, training and checks know nothing of it, and whoever counts links counts these.
//!
//! Entries are taken and emptied under one lock, which is locked after an entry's and never before
//! one that somebody may hold for long: who holds it waits only for empty entries, which nobody
//! keeps.

use std::{collections::BTreeSet, sync::PoisonError};

use crate::{
    budget::{Full, Purpose},
    entry::Entry,
    heap::Owner,
    layers::LayerId,
    leaves::Leaves,
    lock::Locked,
    parts::{NOTHING, Parts, Unused},
    sync::{
        Mutex, MutexGuard,
        Ordering::{AcqRel, Relaxed},
    },
};

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct Common {
    /// The layer of its leaves.
    layer: LayerId,
    /// The leaves that have an empty entry.
    roomy: Mutex<BTreeSet<Owner>>,
}

impl Common {
    /// No entry yet. `layer` is nobody else's.
    pub(crate) fn new(layer: LayerId) -> Self {
        Self { layer, roomy: Mutex::default() }
    }

    /// The layer that counts the objects.
    pub(crate) fn layer(&self) -> LayerId {
        self.layer
    }

    fn roomy(&self) -> MutexGuard<'_, BTreeSet<Owner>> {
        self.roomy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> Parts<'a> {
    /// Has one entry more share the object of entry `number`, which the caller holds. If that is a
    /// disk's, the object moves to an entry of the pool's own first; `set_owner` tells the object.
    /// Returns what the new entry is to be: it is counted, so it must come into a slot, or be [let
    /// go](Self::let_go).
    ///
    /// # Errors
    /// There is no memory for an entry; nothing has changed.
    pub(crate) fn share(&self, number: u64, locked: Locked<'a>, set_owner: impl FnOnce(Owner)) -> Result<Entry, Full> {
        let (leaf, index) = Leaves::leaf_of(number);
        let held = locked.entry();
        let len_bytes = held.object_bytes();
        debug_assert!(len_bytes > 0, "an object is shared");
        if self.leaves.layer(leaf) == self.common.layer {
            self.link(leaf, index);
            return Ok(Entry::Shared { number, len_bytes });
        }
        let (number, room) = self.take_common()?;
        let shared = Entry::Shared { number, len_bytes };
        set_owner(Leaves::leaf_of(number).0);
        self.counts.replaced(self.common.layer, room.entry(), held);
        room.replace(held);
        self.replace(leaf, locked, shared);
        Ok(shared)
    }

    /// Counts one more who links to an entry that stays meanwhile, in a leaf with counts.
    pub(crate) fn link(&self, leaf: Owner, index: usize) {
        let Some(counts) = self.leaves.counts(leaf) else { unreachable!("the leaf has counts") };
        counts[index].fetch_add(1, Relaxed);
        self.leaves.lives(leaf).fetch_add(1, Relaxed);
    }

    /// Takes an empty entry of the pool's own, and counts two who will share its object.
    fn take_common(&self) -> Result<(u64, Locked<'a>), Full> {
        let mut roomy = self.common.roomy();
        let leaf = match roomy.first() {
            Some(&leaf) => leaf,
            None => {
                let leaf = self.take(self.common.layer, 0, NOTHING, Purpose::Keep)?.number();
                roomy.insert(leaf);
                leaf
            }
        };
        self.leaves.make_counts(leaf, Purpose::Keep, self.budget)?;
        let words = self.leaves.words(leaf).iter().enumerate();
        let mut empty = words.filter_map(|(index, word)| Some((index, Locked::try_lock(word, Entry::Empty)?)));
        let taken = empty.next();
        if taken.is_none() || empty.next().is_none() {
            roomy.remove(&leaf);
        }
        let (index, locked) = taken.ok_or(Full)?;
        // Both before anybody else may find that nothing keeps the leaf.
        for _ in 0..2 {
            self.link(leaf, index);
        }
        Ok((Leaves::entry_number(leaf, index), locked))
    }

    /// One who shares an object lets go of it. The last empties its entry.
    pub(crate) fn unshare(&self, number: u64, unused: &mut Unused) {
        let (leaf, index) = Leaves::leaf_of(number);
        let Some(locked) = Locked::lock(self.leaves.word(number)) else { unreachable!("the link kept the leaf") };
        let Some(counts) = self.leaves.counts(leaf) else { unreachable!("the link was counted") };
        let lives = self.leaves.lives(leaf);
        if counts[index].fetch_sub(1, Relaxed) > 1 {
            lives.fetch_sub(1, AcqRel);
            return;
        }
        let mut roomy = self.common.roomy();
        let old = self.replace(leaf, locked, Entry::Empty);
        self.let_go(old, index, unused);
        // Only who shares an object already lets more share it, so nobody comes once there is none.
        if lives.fetch_sub(1, AcqRel) > 2 {
            roomy.insert(leaf);
            return;
        }
        roomy.remove(&leaf);
        self.leaves.uses(leaf).store(0, Relaxed);
        self.drop_life(leaf);
    }
}

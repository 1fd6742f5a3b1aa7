//! The state that a pool's disks share, and the operations on a single entry of any disk.
//!
//! ```text
//! write:   stream ← CPU's; object ← compress (no lock held)
//!          room ← heap; lock entry; copy; swap; unlock; retire the old object
//! read:    stream ← CPU's; prefetch the object; pin it; decode it in place; unpin
//! update:  stream ← CPU's; lock entry; decode; change; compress; room ← heap; copy; swap; unlock;
//!          retire the old object
//! ```
//!
//! A failure before the swap leaves the old page in place. Lock order: stream, entry, heap.
#![allow(unsafe_code)] // an object is owned by the holder of its entry: see the SAFETY comments

use std::sync::{Arc, atomic::AtomicU64};

use pagefold_codec::{PAGE_SIZE, Page, Stream, fill, same_filled};

use crate::{
    background::Background,
    clean::Clean,
    entry::{Entry, Fill, GONE, LayerId, Locked},
    equal::{Common, Equals, Sum},
    heap::{Heap, Location, Owner, Owners},
    limit::{Budget, Full},
    streams::{Coder, Kept, Streams, Taken, Trained, Trainee, Training, Working, prepare},
    tree::{EntryCounter, KeptFile, LEAF_BYTES, Layers, PartStorage, Parts, Shadows, Unused},
};

/// Objects longer than this are stored raw: they save almost nothing and would cost a decode on
/// every read.
const OBJECT_MAX: usize = PAGE_SIZE - PAGE_SIZE / 64;

/// See the module documentation.
pub(crate) struct Core {
    /// The file in memory from which another process can restore the disks, if the pool is in one.
    pub(crate) kept: Option<Arc<KeptFile>>,
    pub(crate) storage: PartStorage,
    pub(crate) layers: Layers,
    pub(crate) common: Common,
    pub(crate) clean: Clean,
    /// Hints to equal pages, if the pool deduplicates.
    pub(crate) equals: Option<Equals>,
    pub(crate) streams: Streams,
    pub(crate) heap: Heap,
    pub(crate) training: Option<Training>,
    /// Copies of the disks' trees for the rounds of a stream.
    pub(crate) shadows: Shadows,
    pub(crate) budget: Arc<Budget>,
    /// Bytes of the budget taken for memory outside the pool.
    pub(crate) outside_bytes: AtomicU64,
    pub(crate) background: Background,
}

/// Maximum number of entries compared with a written page. Different pages rarely have the same
/// hash, so comparing more candidates finds nothing.
const EQUALS_MAX: usize = 2;

/// An object that cannot be decoded, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) &'static str);

/// Why a page could not be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// No room for the new object.
    Full,
    /// The caller rejected the new entry.
    Refused,
    /// No page to change.
    Nothing,
    /// The old object cannot be decoded.
    Corrupt(Corrupt),
}

impl From<Full> for Failed {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

/// The result of compressing a page. The object's bytes are in the coder.
#[derive(Clone, Copy)]
pub(crate) enum Compressed {
    /// One word, repeated.
    Same(Fill),
    /// An object, compressed with the tables of this number.
    Object { tables: u8, len_bytes: usize },
    /// No object shorter than the page.
    Raw,
}

/// Where an object with exactly this page was found.
pub(crate) enum Equal {
    /// In the slot's own entry.
    Own,
    /// Elsewhere. This is the slot's new entry. It is already counted, so it must be stored in the
    /// slot or be [let go](Core::let_go).
    Shared(Entry),
}

/// The initial page when a slot that holds nothing is changed.
#[derive(Clone, Copy)]
pub(crate) enum Below<'a> {
    /// Zeros.
    Zeros,
    /// This page.
    Page(&'a Page),
    /// None: the slot is not changed.
    Unknown,
}

impl Trainee for Core {
    fn training(&self) -> Option<&Training> {
        self.training.as_ref()
    }

    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn read_entry(&self, entry: u64, page: &mut Page) -> bool {
        let Ok(mut taken) = self.streams.take(0, &self.budget) else { return false };
        let Some(word) = self.storage.used_word(entry) else { return false };
        let (working, pin) = taken.parts();
        let seen = pin.pin(word);
        // SAFETY: the pin names its object.
        seen != GONE && unsafe { self.decode(Entry::decode(seen), &mut working.coder, page) }.is_ok()
    }

    fn visit_streams(&self, change: &mut dyn FnMut(&mut dyn Stream, &mut Trained)) {
        self.streams.visit(|Working { coder, .. }| change(&mut *coder.stream, &mut coder.trained));
    }
}

impl Owners for Core {
    fn len_bytes(&self, owner: Owner, at: Location) -> Option<usize> {
        self.storage.find(owner, at).map(|(_, entry)| entry.object_bytes())
    }

    fn repoint(
        &self,
        owner: Owner,
        from: Location,
        to: Location,
        len_bytes: usize,
        copy: &mut dyn FnMut(),
    ) -> Option<u64> {
        let locked = self.storage.try_lock(owner, from)?;
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

impl EntryCounter for Core {
    fn replaced(&self, layer: LayerId, old: Entry, new: Entry) {
        self.layers.replaced(layer, 0, old, new);
    }

    fn tables_replaced(&self, old: Entry, new: Entry) {
        self.count_tables(old, new);
    }
}

impl Core {
    /// Returns the parts of all trees.
    pub(crate) fn parts(&self) -> Parts<'_> {
        let Self { storage, layers, budget, common, .. } = self;
        Parts { storage, layers, budget, counts: self, common }
    }

    /// Returns the bytes of a layer's parts. A disk must hold the layer.
    pub(crate) fn parts_bytes(&self, layer: LayerId) -> u64 {
        self.layers.parts(layer) * LEAF_BYTES as u64
    }

    /// Frees the object of an entry that is not in a slot and that no thread reads.
    pub(crate) fn free(&self, entry: Entry) {
        if let Some((at, _)) = entry.object() {
            // SAFETY: the entry is not in a slot and no pin names it, so only the caller can reach
            // its object.
            unsafe { self.heap.free(at) };
        }
    }

    /// Allocates room for an object that an entry of `leaf` will name, and copies it there.
    pub(crate) fn put_object(&self, bytes: &[u8], leaf: Owner) -> Result<Location, Full> {
        let at = self.heap.alloc(bytes.len(), leaf)?;
        // SAFETY: just allocated with this length, and in no entry yet.
        unsafe { self.heap.write(at, bytes) };
        Ok(at)
    }

    /// Appends the bytes of the object of an entry that the caller holds.
    pub(crate) fn append_object(&self, locked: &Locked<'_>, out: &mut Vec<u8>) {
        let Some((at, len_bytes)) = locked.entry().object() else { return };
        // SAFETY: the entry is held.
        if let Some(bytes) = unsafe { self.heap.bytes(at, len_bytes) } {
            out.extend_from_slice(bytes);
            return;
        }
        let start = out.len();
        out.resize(start + len_bytes, 0);
        // SAFETY: as above.
        unsafe { self.heap.read(at, &mut out[start..]) };
    }

    /// Compresses `page`.
    pub(crate) fn compress(&self, coder: &mut Coder, page: &Page) -> Compressed {
        let training = self.training.as_ref();
        if let Some(fill) = same_filled(page).and_then(Fill::new) {
            return Compressed::Same(fill);
        }
        let tables = training.map_or(0, Training::current);
        let is_ready = prepare(training, &mut *coder.stream, &mut coder.trained, tables);
        debug_assert!(is_ready, "the current tables are kept");
        match coder.stream.compress(page, &mut coder.object[..OBJECT_MAX]) {
            Some(len_bytes) => Compressed::Object { tables, len_bytes },
            None => Compressed::Raw,
        }
    }

    /// Builds an entry from the result of [`compress`](Self::compress), to replace entry `number`,
    /// and allocates room for its object if it needs one. The caller [`put`](Self::put)s the object
    /// there. `replaced_bytes` is the length of the object that it will replace.
    pub(crate) fn build(
        self: &Arc<Self>,
        number: u64,
        made: Compressed,
        coder: &mut Coder,
        kept: &mut Kept,
        replaced_bytes: usize,
    ) -> Result<Entry, Full> {
        let len_bytes = match made {
            Compressed::Same(fill) => return Ok(Entry::Same(fill)),
            Compressed::Object { len_bytes, .. } => len_bytes,
            Compressed::Raw => PAGE_SIZE,
        };
        if let Some(training) = &self.training {
            training.offer(&mut coder.trained, number, self);
        }
        let (leaf, _) = PartStorage::leaf_of(number);
        let grows_bytes = len_bytes.saturating_sub(replaced_bytes) as u64;
        let is_new = replaced_bytes == 0;
        if !self.budget.admits(grows_bytes, is_new) && (is_new || !self.admits_at_last(grows_bytes, kept)) {
            return Err(Full);
        }
        let at = match self.heap.alloc_to_write(len_bytes, leaf) {
            Ok(at) => at,
            Err(Full) => {
                // Freeing the objects kept for readers may be enough.
                self.streams.release_all(Some(kept), |word| self.free(Entry::decode(word)));
                self.heap.make_room(&**self, len_bytes, leaf)?
            }
        };
        Ok(match made {
            Compressed::Object { tables, .. } => Entry::Object { tables, len_bytes, at },
            _ => Entry::Raw { at },
        })
    }

    /// Frees the objects that are kept for readers or wait to be freed, and returns whether a
    /// longer object is then admitted. With many CPUs, these objects take more memory than pages
    /// may grow by.
    #[cold]
    fn admits_at_last(&self, grows_bytes: u64, kept: &mut Kept) -> bool {
        self.streams.release_all(Some(kept), |word| self.free(Entry::decode(word)));
        self.heap.publish_all_free();
        self.budget.admits(grows_bytes, false)
    }

    /// Returns whether `entry` is exactly what [`compress`](Self::compress) has just made of
    /// `page`.
    ///
    /// # Safety
    /// As for [`decode`](Self::decode).
    pub(crate) unsafe fn is_same(&self, entry: Entry, made: Compressed, coder: &mut Coder, page: &Page) -> bool {
        let (at, len_bytes, object) = match (entry, made) {
            (Entry::Same(old), Compressed::Same(new)) => return old == new,
            (Entry::Object { tables: old, len_bytes: old_bytes, at }, Compressed::Object { tables, len_bytes })
                if (old, old_bytes) == (tables, len_bytes) =>
            {
                (at, len_bytes, &coder.object[..len_bytes])
            }
            (Entry::Raw { at }, Compressed::Raw) => (at, PAGE_SIZE, &page[..]),
            _ => return false,
        };
        // SAFETY: guaranteed by the caller.
        match unsafe { self.heap.bytes(at, len_bytes) } {
            Some(bytes) => bytes == object,
            None => {
                let mut old = [0; PAGE_SIZE];
                // SAFETY: guaranteed by the caller.
                unsafe { self.heap.read(at, &mut old[..len_bytes]) };
                old[..len_bytes] == *object
            }
        }
    }

    /// Copies the object of `new`, which [`build`](Self::build) has just returned, to its room.
    pub(crate) fn put(&self, new: Entry, object: &Page, page: &Page) {
        let (at, bytes) = match new {
            Entry::Empty | Entry::Hole | Entry::Link(_) | Entry::Shared { .. } | Entry::Same(_) => return,
            Entry::Object { len_bytes, at, .. } => (at, &object[..len_bytes]),
            Entry::Raw { at } => (at, &page[..]),
        };
        // SAFETY: just allocated with this length, and in no entry yet.
        unsafe { self.heap.write(at, bytes) };
    }

    /// Fills `page` from `entry`.
    ///
    /// # Safety
    /// The entry's object, if any, must stay live and unchanged during the call: the caller's pin
    /// names it, or the caller holds the entry.
    #[inline]
    pub(crate) unsafe fn decode(&self, entry: Entry, coder: &mut Coder, page: &mut Page) -> Result<(), Corrupt> {
        match entry {
            Entry::Empty | Entry::Hole => page.fill(0),
            Entry::Link(_) | Entry::Shared { .. } => return Err(Corrupt("entry does not lead to a page")),
            Entry::Same(word) => fill(page, word.word()),
            // SAFETY: guaranteed by the caller.
            Entry::Raw { at } => unsafe { self.heap.read(at, page) },
            Entry::Object { tables, len_bytes, at } => {
                if !prepare(self.training.as_ref(), &mut *coder.stream, &mut coder.trained, tables) {
                    return Err(Corrupt("object uses tables that the pool does not have"));
                }
                // SAFETY: guaranteed by the caller.
                let bytes = match unsafe { self.heap.bytes(at, len_bytes) } {
                    Some(bytes) => bytes,
                    None => {
                        // SAFETY: guaranteed by the caller.
                        unsafe { self.heap.read(at, &mut coder.object[..len_bytes]) };
                        &coder.object[..len_bytes]
                    }
                };
                return coder.stream.decompress(bytes, page).map_err(|corrupt| Corrupt(corrupt.what));
            }
        }
        Ok(())
    }

    /// Fills `page` from an entry that the caller holds, or from the entry that it leads to.
    /// `index` is the entry's index in its leaf.
    fn decode_held(&self, entry: Entry, index: usize, coder: &mut Coder, page: &mut Page) -> Result<(), Corrupt> {
        let word = match entry {
            Entry::Link(leaf) => &self.storage.words(leaf)[index],
            Entry::Shared { number, .. } => self.storage.word(number),
            // SAFETY: the entry is held.
            _ => return unsafe { self.decode(entry, coder, page) },
        };
        let Some(locked) = Locked::lock(word) else { unreachable!("the entry keeps what it leads to") };
        self.decode_held(locked.entry(), index, coder, page)
    }

    /// Changes the page of entry `number`, which the caller holds, and stores the result, if `fits`
    /// accepts the new entry in place of the old one.
    pub(crate) fn change(
        self: &Arc<Self>,
        number: u64,
        locked: Locked<'_>,
        taken: &mut Taken<'_>,
        below: Below<'_>,
        change: impl FnOnce(&mut Page),
        fits: impl FnOnce(Entry, Entry) -> bool,
    ) -> Result<(), Failed> {
        let Working { coder, page, kept, .. } = taken.parts().0;
        let old = locked.entry();
        match (old, below) {
            (Entry::Empty, Below::Unknown) => return Err(Failed::Nothing),
            (Entry::Empty, Below::Page(below)) => page.copy_from_slice(below),
            _ => self.decode_held(old, PartStorage::leaf_of(number).1, coder, page).map_err(Failed::Corrupt)?,
        }
        change(page);
        let made = self.compress(coder, page);
        let new = self.build(number, made, coder, kept, old.object_bytes())?;
        if !fits(old, new) {
            self.free(new);
            return Err(Failed::Refused);
        }
        self.put(new, &coder.object, page);
        self.replace(number, locked, taken, new);
        Ok(())
    }

    /// Replaces entry `number`, which the caller holds, with `new`, and frees the old object as
    /// soon as no thread reads it.
    pub(crate) fn replace(self: &Arc<Self>, number: u64, locked: Locked<'_>, taken: &mut Taken<'_>, new: Entry) {
        let (leaf, index) = PartStorage::leaf_of(number);
        let layer = self.storage.layer(leaf);
        let old = locked.replace(new);
        self.count(layer, taken.number(), old, new);
        match old {
            _ if old.is_elsewhere() => self.let_go(old, index, taken),
            _ if old.object().is_some() => self.retire(old.encode(), old.object_bytes(), taken),
            _ => {}
        }
    }

    /// Frees an object that was removed from its entry, as soon as no thread reads it.
    #[inline]
    fn retire(&self, word: u64, len_bytes: usize, taken: &mut Taken<'_>) {
        let keep = !self.budget.is_low();
        let free = |word| self.free(Entry::decode(word));
        self.streams.retire(&mut taken.parts().0.kept, word, len_bytes, keep, free);
    }

    /// Drops an entry's reference to another entry, and frees what that leaves unused.
    #[cold]
    pub(crate) fn let_go(&self, old: Entry, index: usize, taken: &mut Taken<'_>) {
        let mut unused = Unused::default();
        self.parts().let_go(old, index, &mut unused);
        for word in unused.words {
            self.retire(word, Entry::decode(word).object_bytes(), taken);
        }
    }

    /// Looks for an object that holds `page` and that the written slot can share. `own` is the
    /// slot's entry.
    pub(crate) fn find_equal(
        &self,
        equals: &Equals,
        sum: Sum,
        page: &Page,
        own: Option<u64>,
        taken: &mut Taken<'_>,
    ) -> Option<Equal> {
        let (Working { coder, page: other, .. }, pin) = taken.parts();
        let mut shared = None;
        for number in equals.find(sum).take(EQUALS_MAX) {
            let Some(word) = self.storage.used_word(number) else {
                equals.forget(sum, number);
                continue;
            };
            let entry = Entry::decode(pin.pin(word));
            // SAFETY: the pin names its object until it rests.
            let is_equal = entry.object().is_some()
                && unsafe { self.decode(entry, coder, other) }.is_ok()
                && page[..] == other[..];
            if !is_equal {
                equals.forget(sum, number);
                continue;
            }
            if own == Some(number) {
                pin.rests();
                return Some(Equal::Own);
            }
            // A pinned object's location is not reused, so an entry that still names it names the
            // same object.
            let locked = entry.object().and_then(|(at, _)| Some((Locked::try_lock_object(word, at)?, at)));
            let Some((locked, at)) = locked else { continue };
            shared = self.parts().share(number, locked, |owner| self.heap.set_owner(at, owner)).ok();
            break;
        }
        pin.rests();
        if let Some(Entry::Shared { number, .. }) = shared {
            equals.put(sum, number, &self.budget);
        }
        shared.map(Equal::Shared)
    }

    /// Counts that `new` replaced `old` in a layer.
    pub(crate) fn count(&self, layer: LayerId, hint: usize, old: Entry, new: Entry) {
        self.layers.replaced(layer, hint, old, new);
        self.count_tables(old, new);
    }

    #[inline]
    fn count_tables(&self, old: Entry, new: Entry) {
        if let Some(training) = &self.training {
            training.replaced(old, new);
        }
    }

    /// Rewrites some objects whose tables are being retired.
    pub(crate) fn rewrite_some(self: &Arc<Self>) {
        let Some(training) = &self.training else { return };
        for number in training.to_rewrite(&self.storage) {
            let Ok(mut taken) = self.streams.take(0, &self.budget) else { return };
            if let Some(locked) = Locked::lock(self.storage.word(number))
                && locked.entry().object().is_some()
            {
                // If there is no room to rewrite a page, its tables stay in use.
                let _ = self.change(number, locked, &mut taken, Below::Zeros, |_| {}, |_, _| true);
            }
        }
    }
}

//! A disk: an array of slots in a pool.
#![allow(unsafe_code)] // decodes objects that its pin names: see the SAFETY reasons

use std::{
    fmt,
    ops::Range,
    ptr,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use pagefold_codec::{PAGE_SIZE, Page, same_filled};

use crate::{
    core::{Below, Compressed, Core, Corrupt, Equal, Failed},
    entry::{ChangedRun, Entry, Fill, LayerId, Pin, Status, StatusRun},
    error::{Error, SLOTS_MAX, Slot},
    heap::Location,
    limit::{Full, Purpose},
    memory::{LINE_BYTES, prefetch},
    own_limit::OwnLimit,
    stats::DiskStats,
    streams::{Coder, Taken},
    tree::{Changing, EntryPlace, HOLE, LEAF_SLOTS, NOTHING, SlotPlace, Sums, Tree, entry_below},
};

/// A read prefetches its whole object: a decoder that fetches the lines one by one waits for each.
/// A sequential reader prefetches only this many bytes of the next object while it decodes the
/// current one; the CPU's prefetcher does the rest.
const AHEAD_BYTES: usize = 1024;

/// An array of slots in a [`Pool`](crate::Pool), each empty or holding one page. Dropping a disk
/// returns its memory to the pool, in the background if there is much.
pub struct Disk {
    core: Arc<Core>,
    tree: Tree,
    slots: AtomicU64,
    limit: OwnLimit,
    /// Whether discarded slots become holes.
    over: AtomicBool,
    /// Whether the pages are [clean](crate::Pool::clean_disk).
    clean: bool,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("slots", &self.slots()).finish_non_exhaustive()
    }
}

impl Disk {
    pub(crate) fn new(core: Arc<Core>, slots: u64, over: bool) -> Result<Self, Error> {
        if slots > SLOTS_MAX {
            return Err(Error::TooLarge { slots });
        }
        Self::unkept(core, slots, over)?.kept()
    }

    /// Creates a disk that is not kept in the pool's file.
    fn unkept(core: Arc<Core>, slots: u64, over: bool) -> Result<Self, Error> {
        let tree = Tree::new(core.layers.take(&core.budget)?);
        Ok(Self::with_tree(core, tree, slots, over))
    }

    /// Keeps the disk in the pool's file, if it has one.
    fn kept(mut self) -> Result<Self, Error> {
        if let Some(kept) = &self.core.kept {
            self.tree.keep(kept, &self.core.budget)?;
        }
        Ok(self)
    }

    pub(crate) fn clean(core: Arc<Core>, slots: u64) -> Result<Self, Error> {
        if slots > SLOTS_MAX {
            return Err(Error::TooLarge { slots });
        }
        let mut disk = Self::unkept(core, slots, false)?;
        disk.clean = true;
        disk.core.clean.add(disk.tree.layer());
        Ok(disk)
    }

    fn with_tree(core: Arc<Core>, tree: Tree, slots: u64, over: bool) -> Self {
        let (slots, limit, over) = (AtomicU64::new(slots), OwnLimit::default(), AtomicBool::new(over));
        Self { core, tree, slots, limit, over, clean: false }
    }

    /// Creates a disk with the content of this tree.
    ///
    /// # Errors
    /// [`Error::Full`]: there is no room for its row in the pool's file.
    pub(crate) fn restored(
        core: Arc<Core>,
        tree: Tree,
        slots: u64,
        over: bool,
        limit_bytes: u64,
    ) -> Result<Self, Error> {
        let disk = Self::with_tree(core, tree, slots, over).kept()?;
        disk.set_limit(limit_bytes);
        disk.limit.count_before(&disk.core, &disk.tree);
        Ok(disk)
    }

    /// Returns whether the disk belongs to this pool and is not clean.
    pub(crate) fn is_of(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.core, core) && !self.clean
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.bytes()
    }

    /// Returns a disk with the content of this one at one instant during the call. Each write is
    /// included whole or not at all: a write that returned before the call is included, one that
    /// begins after the call is not. The two disks are written independently from then on. The time
    /// and memory that a fork takes do not depend on the disk's content; pages are stored once
    /// until one of the two disks writes there.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn fork(&self) -> Result<Self, Error> {
        let (tree, slots) = self.forked()?;
        self.over.store(true, Relaxed);
        Self::with_tree(Arc::clone(&self.core), tree, slots, true).kept()
    }

    /// Returns a tree with the content of this disk at one instant during the call, and the number of
    /// slots.
    fn forked(&self) -> Result<(Tree, u64), Full> {
        let core = &self.core;
        let [ours, theirs] = core.reclaiming(|| self.take_layers())?;
        let forked = self.change(|changing| {
            let fork = changing.fork(ours, theirs, |layer| core.streams.wait_for_writers(layer));
            (fork, self.slots())
        });
        self.limit.count_before(core, &self.tree);
        Ok(forked)
    }

    /// Returns a tree like a fork's, but for no disk: unlike after a fork, discarded slots of this
    /// disk do not become holes.
    pub(crate) fn shadow(&self) -> Result<Tree, Full> {
        self.forked().map(|(tree, _)| tree)
    }

    /// Gives this disk the content and the size of `like`, a disk of the same pool, such as a
    /// [`fork`](Self::fork) of a snapshot. The time does not depend on the content of either disk.
    ///
    /// # Errors
    /// [`Error::Full`]; the disk is unchanged.
    pub fn become_as(&self, like: Self) -> Result<(), Error> {
        let core = &self.core;
        let ours = core.reclaiming(|| core.layers.take(&core.budget))?;
        let slots = like.slots();
        self.change(|changing| {
            changing.become_as(&like.tree, ours, |layer| core.streams.wait_for_writers(layer));
            self.slots.store(slots, Release);
        });
        self.over.store(true, Relaxed);
        self.limit.count_before(core, &self.tree);
        Ok(())
    }

    /// Takes two layers, or none.
    fn take_layers(&self) -> Result<[LayerId; 2], Full> {
        let Core { layers, budget, .. } = &*self.core;
        let first = layers.take(budget)?;
        match layers.take(budget) {
            Ok(second) => Ok([first, second]),
            Err(full) => {
                layers.give(first, budget);
                Err(full)
            }
        }
    }

    /// Changes the tree, then frees what is no longer used.
    fn change<T>(&self, change: impl FnOnce(&mut Changing<'_>) -> T) -> T {
        let mut changing = self.tree.change(self.core.parts(), Some(Purpose::Keep));
        let done = change(&mut changing);
        self.core.leave(changing.end());
        done
    }

    /// Clears slots. Like [`change`](Self::change), but uses the reserve for moving, as it frees
    /// more memory than it takes, and frees everything immediately. A disk far beyond its own limit
    /// takes no memory for it.
    fn clear(&self, slots: Range<Slot>, most: u64) -> Result<(), Error> {
        if self.clean {
            return self.clear_now(slots, most);
        }
        match self.core.reclaiming(|| self.clear_now(slots.clone(), most)) {
            Err(Error::DiskFull) if self.core.without_shadows() => self.clear_now(slots, most),
            done => done,
        }
    }

    fn clear_now(&self, slots: Range<Slot>, most: u64) -> Result<(), Error> {
        let below = if self.over.load(Relaxed) { HOLE } else { NOTHING };
        let may_take = self.limit.lets_clear(&self.core, &self.tree);
        let mut changing = self.tree.change(self.core.parts(), may_take.then_some(Purpose::Move));
        let done = changing.clear(slots, below, most);
        self.core.free_all(&mut changing.end());
        done.map_err(|Full| if may_take { Error::Full } else { Error::DiskFull })
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u64 {
        self.slots.load(Acquire)
    }

    /// Changes the number of slots. New slots are empty; removed slots lose their pages. Other
    /// threads may use the disk at the same time; their writes to removed slots are lost or
    /// rejected.
    ///
    /// # Errors
    /// - [`Error::TooLarge`]: the disk is unchanged.
    /// - [`Error::Full`], [`Error::DiskFull`]: the disk shares pages that are to be removed, and
    ///   there is no memory to record their removal. The disk keeps its size, and some of these
    ///   pages are gone.
    pub fn resize(&self, slots: u64) -> Result<(), Error> {
        if slots > SLOTS_MAX {
            return Err(Error::TooLarge { slots });
        }
        let before = self.slots.swap(slots, Release);
        if slots < before {
            // From here on, no thread can write to the removed slots until they are cleared.
            self.clear(slots..before, before).inspect_err(|_| self.slots.store(before, Release))?;
        }
        Ok(())
    }

    /// Removes content beyond the end, which a [salvaged](crate::Salvage::write) disk may have.
    ///
    /// # Errors
    /// Those of [`resize`](Self::resize).
    pub fn cut(&self) -> Result<(), Error> {
        let slots = self.slots();
        self.clear(slots..slots.saturating_add(1), slots)
    }

    /// Sets the most bytes that the disk may use of the pool, for objects and table, as counted by
    /// [`DiskStats::spent_bytes`]; `u64::MAX` means no limit. A limit below the current use keeps
    /// the disk from growing.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.limit.set(limit_bytes);
    }

    /// Fills `page` with the slot's page; an empty slot reads as zeros. Returns whether the slot
    /// holds anything, including a hole. After an error the content of `page` is unspecified.
    pub fn read(&self, slot: Slot, page: &mut Page) -> Result<bool, Error> {
        self.read_as::<true>(slot, page)
    }

    /// Like [`read`](Self::read), but leaves `page` unspecified if the slot is empty, for a caller
    /// that then reads what is below the disk.
    pub fn read_held(&self, slot: Slot, page: &mut Page) -> Result<bool, Error> {
        self.read_as::<false>(slot, page)
    }

    /// Reads a slot; `ZEROS` says whether an empty slot fills `page` with zeros.
    #[inline(always)]
    fn read_as<const ZEROS: bool>(&self, slot: Slot, page: &mut Page) -> Result<bool, Error> {
        self.check_slot(slot)?;
        let (core, tree) = (&*self.core, &self.tree);
        loop {
            let version = tree.version();
            let place = match tree.find(&core.storage, slot) {
                SlotPlace::Entry(place) => place,
                SlotPlace::None { place, .. } if tree.is(version) => {
                    let is_held = entry_below(place) != Entry::Empty;
                    if ZEROS || is_held {
                        page.fill(0);
                    }
                    return Ok(is_held);
                }
                SlotPlace::None { .. } => continue,
            };
            let mut looked = place.look(&core.storage);
            let entry = looked.entry();
            // Empty and same-filled pages need no stream.
            let Some(object) = entry.object() else {
                if !tree.is_current(&looked, version) {
                    continue;
                }
                match entry {
                    Entry::Same(word) => pagefold_codec::fill(page, word.word()),
                    Entry::Empty if !ZEROS => {}
                    _ => page.fill(0),
                }
                return Ok(entry != Entry::Empty);
            };
            let mut taken = core.streams.take(looked.seen, &core.budget)?;
            let (working, pin) = taken.parts();
            let number = looked.number;
            let soon = if number == working.next {
                (self.next_object(place, slot), AHEAD_BYTES)
            } else {
                (Some(object), PAGE_SIZE)
            };
            working.next = number + 1;
            if let (Some((at, len_bytes)), most) = soon {
                core.heap.prefetch(at, len_bytes.min(most));
            }
            let pinned = looked.pin(pin);
            if !tree.is_current(&looked, version) {
                continue;
            }
            // SAFETY: the pin names its object until the stream goes back at the end.
            let done = unsafe { core.decode(pinned, &mut working.coder, page) };
            // The slot may have been emptied before the pin named its object.
            let is_held = pinned != Entry::Empty;
            return done.map(|()| is_held).map_err(|Corrupt(what)| Error::Corrupt { slot, what });
        }
    }

    /// Returns the object of the slot after `slot`, whose own entry is at `place`.
    #[inline]
    fn next_object(&self, place: EntryPlace<'_>, slot: Slot) -> Option<(Location, usize)> {
        let number = place.number() + 1;
        if number.is_multiple_of(LEAF_SLOTS as u64) {
            self.tree.peek(&self.core.storage, slot + 1).object()
        } else {
            self.core.storage.entry(number)?.object()
        }
    }

    /// Writes `page` to the slot. It is compressed with no lock held.
    pub fn write(&self, slot: Slot, page: &Page) -> Result<(), Error> {
        self.check_slot(slot)?;
        self.when_there_is_room(slot, || self.write_now(slot, page))
    }

    fn write_now(&self, slot: Slot, page: &Page) -> Result<(), Error> {
        // The codec reads these lines first; the page may not be in the cache.
        for at in (0..4 * LINE_BYTES).step_by(LINE_BYTES).chain([PAGE_SIZE - 1]) {
            prefetch(&page[at]);
        }
        let (core, tree) = (&self.core, &self.tree);
        // The entry is fetched into the cache while the page is compressed.
        let mut version = tree.version();
        let mut found = tree.find(&core.storage, slot);
        if let SlotPlace::Entry(place) = found {
            prefetch(ptr::from_ref(place.word).cast());
        }
        let mut taken = core.streams.take(0, &core.budget)?;
        let sum = core
            .equals
            .as_ref()
            .filter(|_| !self.clean && same_filled(page).is_none())
            .map(|equals| (equals, equals.sum(page)));
        if let Some((equals, sum)) = sum {
            let own = if let SlotPlace::Entry(place) = found { Some(place.number()) } else { None };
            match core.find_equal(equals, sum, page, own, &mut taken) {
                Some(Equal::Own) if tree.is(version) => return Ok(()),
                Some(Equal::Shared(shared)) => return self.put_shared(slot, shared, taken),
                _ => {}
            }
        }
        let (working, pin) = taken.parts();
        let made = core.compress(&mut working.coder, page);
        if !tree.is(version) {
            version = tree.version();
            found = tree.find(&core.storage, slot);
        }
        if let SlotPlace::Entry(place) = found
            && self.has(place, version, made, page, &mut working.coder, pin)
        {
            return Ok(());
        }
        loop {
            let place = self.make(slot)?;
            let (working, pin) = taken.parts();
            let old = Entry::decode(place.word.load(Relaxed));
            let new = core.build(place.number(), made, &mut working.coder, &mut working.kept, old.object_bytes())?;
            let Some(locked) = self.tree.lock(&core.storage, place, pin, || slot < self.slots()) else {
                // The leaf may be another disk's by now, and the object's header names it as owner.
                core.free(new);
                self.check_slot(slot)?;
                continue;
            };
            if let Err(full) = self.fits(locked.entry(), new) {
                core.free(new);
                return Err(full);
            }
            core.put(new, &working.coder.object, page);
            core.replace(place.number(), locked, &mut taken, new);
            if let Some((equals, sum)) = sum {
                equals.put(sum, place.number(), &core.budget);
            }
            break;
        }
        drop(taken);
        core.relieve();
        core.rewrite_some();
        Ok(())
    }

    /// Stores an entry that shares an object, already counted, in the slot; on failure drops it.
    fn put_shared(&self, slot: Slot, shared: Entry, mut taken: Taken<'_>) -> Result<(), Error> {
        let core = &self.core;
        let done = self.try_shared(slot, shared, &mut taken);
        if done != Ok(true) {
            core.let_go(shared, 0, &mut taken);
        }
        drop(taken);
        core.relieve();
        done.map(drop)
    }

    /// Like `put_shared`, but without dropping `shared`. Returns false if the slot already shares
    /// the object.
    fn try_shared(&self, slot: Slot, shared: Entry, taken: &mut Taken<'_>) -> Result<bool, Error> {
        let core = &self.core;
        loop {
            let place = self.make(slot)?;
            let pin = taken.parts().1;
            let Some(locked) = self.tree.lock(&core.storage, place, pin, || slot < self.slots()) else {
                self.check_slot(slot)?;
                continue;
            };
            if locked.entry().shares_with(shared) {
                return Ok(false);
            }
            self.fits(locked.entry(), shared)?;
            core.replace(place.number(), locked, taken, shared);
            return Ok(true);
        }
    }

    /// Returns whether the slot already holds exactly what `page` was compressed to, in an object
    /// that it shares or that belongs to another disk. An object of its own is not compared:
    /// replacing it by an equal one takes no memory, and a comparison would wait for its bytes,
    /// which are rarely in the cache. The slot's entry was at `place` in this version of the tree.
    #[inline]
    fn has(
        &self,
        place: EntryPlace<'_>,
        version: u64,
        made: Compressed,
        page: &Page,
        coder: &mut Coder,
        pin: &mut Pin<'_>,
    ) -> bool {
        let (core, tree) = (&*self.core, &self.tree);
        let mut looked = place.look(&core.storage);
        if !looked.is_elsewhere() && tree.owns(&core.storage, place) {
            return false;
        }
        let may_be = match (looked.entry(), made) {
            (Entry::Object { len_bytes, .. }, Compressed::Object { len_bytes: new_bytes, .. }) => {
                len_bytes == new_bytes
            }
            (Entry::Raw { .. }, Compressed::Raw) | (Entry::Same(_), Compressed::Same(_)) => true,
            _ => false,
        };
        if !may_be {
            return false;
        }
        let pinned = looked.pin(pin);
        let is_current = tree.is_current(&looked, version);
        // SAFETY: the pin names its object until it rests.
        let has = is_current && unsafe { core.is_same(pinned, made, coder, page) };
        pin.rests();
        has
    }

    /// Returns whether no slot can hold anything: nothing was ever written to the disk or to the
    /// disk that it was forked from.
    pub fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// Makes the slot hold nothing, so that it shows what is below the disk.
    pub fn forget(&self, slot: Slot) -> Result<(), Error> {
        self.check_slot(slot)?;
        if self.tree.peek(&self.core.storage, slot) == Entry::Empty {
            return Ok(());
        }
        self.put_entry(slot, Entry::Empty)?;
        self.change(|changing| changing.give_empty(slot));
        Ok(())
    }

    /// Changes part of the slot's page: `change` gets the current page, and its result is stored.
    /// The operation is atomic on the slot. `change` should be short, because the slot is locked
    /// while it runs, and it must not use the pool. If there was no room to store its result, it
    /// may be called again, with the page as it is then.
    pub fn update(&self, slot: Slot, change: impl FnMut(&mut Page)) -> Result<(), Error> {
        self.update_from(slot, Below::Zeros, change).map(drop)
    }

    /// Like [`update`](Self::update), but leaves a slot that holds nothing as it is. Returns
    /// whether the slot held anything.
    pub fn update_held(&self, slot: Slot, change: impl FnMut(&mut Page)) -> Result<bool, Error> {
        self.update_from(slot, Below::Unknown, change)
    }

    /// Like [`update`](Self::update), but if the slot holds nothing, changes and stores `below`.
    pub fn update_over(&self, slot: Slot, below: &Page, change: impl FnMut(&mut Page)) -> Result<(), Error> {
        self.update_from(slot, Below::Page(below), change).map(drop)
    }

    fn update_from(&self, slot: Slot, below: Below<'_>, mut change: impl FnMut(&mut Page)) -> Result<bool, Error> {
        self.check_slot(slot)?;
        if let Below::Unknown = below
            && self.tree.peek(&self.core.storage, slot) == Entry::Empty
        {
            return Ok(false);
        }
        self.when_there_is_room(slot, || self.update_now(slot, below, &mut change))
    }

    fn update_now(&self, slot: Slot, below: Below<'_>, change: impl FnOnce(&mut Page)) -> Result<bool, Error> {
        let core = &self.core;
        let mut taken = core.streams.take(0, &core.budget)?;
        let (place, locked) = loop {
            let place = self.make(slot)?;
            let pin = taken.parts().1;
            if let Some(locked) = self.tree.lock(&core.storage, place, pin, || slot < self.slots()) {
                break (place, locked);
            }
            self.check_slot(slot)?;
        };
        let fits = |old, new| self.fits(old, new).is_ok();
        match core.change(place.number(), locked, &mut taken, below, change, fits) {
            Ok(()) => {}
            Err(Failed::Nothing) => return Ok(false),
            Err(Failed::Full) => return Err(Error::Full),
            Err(Failed::Refused) => return Err(Error::DiskFull),
            Err(Failed::Corrupt(Corrupt(what))) => return Err(Error::Corrupt { slot, what }),
        }
        drop(taken);
        core.relieve();
        Ok(true)
    }

    /// Empties the slots and frees their memory. On a disk that was forked, is a fork, or is
    /// [over](crate::Pool::disk_over) something, they hold a hole afterwards.
    ///
    /// # Errors
    /// - [`Error::NoSuchSlot`].
    /// - [`Error::Full`], [`Error::DiskFull`]: the disk shares its pages or is over something, and
    ///   there is no memory to record the change; some of the slots are emptied.
    pub fn discard(&self, slots: Range<Slot>) -> Result<(), Error> {
        if slots.is_empty() {
            return Ok(());
        }
        self.check_slot(slots.end - 1)?;
        self.clear(slots, self.slots())
    }

    /// Writes a page of zeros to the slot: it counts as stored, but uses no memory except its
    /// entry.
    pub fn write_zeroes(&self, slot: Slot) -> Result<(), Error> {
        self.check_slot(slot)?;
        self.put_entry(slot, Entry::Same(Fill::ZERO))
    }

    /// Stores an entry without an object in the slot.
    fn put_entry(&self, slot: Slot, new: Entry) -> Result<(), Error> {
        self.when_there_is_room(slot, || {
            let place = self.tree.find_own(&self.core.storage, slot);
            self.fits(place.map_or(Entry::Empty, |place| Entry::decode(place.word.load(Relaxed))), new)?;
            let done = self.change(|changing| changing.put_entry(slot, self.slots(), new));
            done.map_err(|full| self.check_slot(slot).err().unwrap_or(full.into()))
        })
    }

    /// Returns what the slot holds.
    pub fn status(&self, slot: Slot) -> Result<Status, Error> {
        self.check_slot(slot)?;
        Ok(Status::of(self.tree.peek(&self.core.storage, slot)))
    }

    /// Returns what the slot holds, and a number of slots, at most `limit`, that hold the same from
    /// this one on. There may be more of them.
    pub fn run(&self, slot: Slot, limit: u64) -> Result<StatusRun, Error> {
        self.check_slot(slot)?;
        let (entry, slots) = self.tree.run(&self.core.storage, slot, limit.min(self.slots() - slot));
        Ok(StatusRun { status: Status::of(entry), slots })
    }

    /// Returns whether the slot was changed since the disk was created (as a fork or empty), and a
    /// number of slots from it on, at most `limit`, for which the answer is the same. An older hole
    /// may be reported as changed.
    pub fn changed(&self, slot: Slot, limit: u64) -> Result<ChangedRun, Error> {
        self.changed_by(self, slot, limit)
    }

    /// Like [`changed`](Self::changed), but for changes since `disk` was created. This disk is a
    /// fork of `disk` that was never written to: returns what `disk` had changed when it was
    /// forked.
    pub fn changed_by(&self, disk: &Self, slot: Slot, limit: u64) -> Result<ChangedRun, Error> {
        self.check_slot(slot)?;
        // The fork's layers are those of the disk, which keeps them in its lineage even after
        // `become_as`.
        let layers = disk.tree.layers();
        let (changed, slots) = self.tree.run_of(&self.core.storage, slot, limit.min(self.slots() - slot), &layers);
        Ok(ChangedRun { changed, slots })
    }

    /// Returns the disk's figures at some moment during the call. They cover only pages that the
    /// disk itself wrote and that still exist.
    pub fn stats(&self) -> DiskStats {
        let Core { layers, .. } = &*self.core;
        let own = self.tree.layers();
        let Sums { pages, compressed_bytes, same_pages, huge_pages, shared_bytes, .. } =
            own.iter().map(|&layer| layers.sums(layer)).sum();
        let table_bytes = own.iter().map(|&layer| self.core.parts_bytes(layer)).sum();
        DiskStats {
            orig_data_size: pages * PAGE_SIZE as u64,
            compr_data_size: compressed_bytes,
            same_pages,
            huge_pages,
            shared_bytes,
            table_bytes,
            spent_bytes: compressed_bytes + table_bytes,
            mem_limit: self.limit.bytes(),
        }
    }

    /// Checks whether the disk's own limit allows `new` to replace `old`.
    #[inline]
    fn fits(&self, old: Entry, new: Entry) -> Result<(), Error> {
        if self.limit.lets_replace(&self.core, &self.tree, old, new) { Ok(()) } else { Err(Error::DiskFull) }
    }

    /// Returns the place of the slot's entry in a leaf of the disk's own, which is created if
    /// necessary.
    #[inline]
    fn make(&self, slot: Slot) -> Result<EntryPlace<'_>, Error> {
        match self.tree.find_own(&self.core.storage, slot) {
            Some(place) => Ok(place),
            None => self.make_own(slot),
        }
    }

    #[cold]
    fn make_own(&self, slot: Slot) -> Result<EntryPlace<'_>, Error> {
        // A disk at its limit gets no new leaf: rejected writes would create leaves without bound.
        self.fits(Entry::Empty, Entry::Same(Fill::ZERO))?;
        let mut changing = self.tree.change(self.core.parts(), Some(Purpose::Keep));
        let made = changing.own(slot, self.slots());
        // The caller holds a stream, so freeing is left to the background: it may wait for others.
        self.core.leave_later(changing.end());
        made.map_err(|full| self.check_slot(slot).err().unwrap_or(full.into()))
    }

    /// Retries an attempt that failed for lack of room while room is about to become free: from
    /// dropped disks, from a training and, if the slot has an object, from writers that have just
    /// replaced theirs. Neither the caller nor, after it has returned, `attempt` may hold a stream
    /// or an entry. If all attempts fail, the empty leaf that they created is removed.
    fn when_there_is_room<T>(&self, slot: Slot, mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        match attempt() {
            Err(error @ (Error::Full | Error::DiskFull)) => self.wait_for_room(slot, error, attempt),
            done => done,
        }
    }

    #[cold]
    fn wait_for_room<T>(
        &self,
        slot: Slot,
        error: Error,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let core = &self.core;
        let (mut done, mut more) = (Err(error), !self.clean);
        if error == Error::DiskFull {
            // Pages that shadows keep count against the disk's own limit.
            if self.clean || !core.without_shadows() {
                return done;
            }
            done = attempt();
        }
        while let Err(Error::Full) = done
            && more
        {
            // Tries again even if nothing is left: others may have freed the last of it since the
            // first attempt.
            more = core.has_freed();
            done = attempt();
        }
        while let Err(Error::Full) = done
            && !self.clean
            && core.clean.reclaim()
        {
            done = attempt();
        }
        if let Err(Error::Full) = done
            && !self.clean
            && core.without_shadows()
        {
            done = attempt();
        }
        if let Err(Error::Full) = done
            && !self.clean
            && core.training.as_ref().is_some_and(|training| training.wait_for_end())
        {
            done = attempt();
        }
        if let Err(Error::Full) = done
            && !self.clean
            && self.tree.peek(&core.storage, slot).object().is_some()
        {
            core.streams.release_when_free(|word| core.free(Entry::decode(word)));
            done = attempt();
        }
        if error == Error::Full
            && let Err(Error::DiskFull) = done
            && !self.clean
            && core.without_shadows()
        {
            done = attempt();
        }
        if done.is_err() {
            self.change(|changing| changing.give_empty(slot));
        }
        done
    }

    fn check_slot(&self, slot: Slot) -> Result<(), Error> {
        let slots = self.slots();
        if slot < slots { Ok(()) } else { Err(Error::NoSuchSlot { slot, slots }) }
    }

    /// Changes the slot's entry, as damaged memory would.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn change_entry(&self, slot: Slot, change: impl FnOnce(Entry) -> Entry) {
        let SlotPlace::Entry(place) = self.tree.find(&self.core.storage, slot) else { panic!("a slot with a leaf") };
        let locked = crate::entry::Locked::lock(place.word).expect("a leaf");
        let entry = change(locked.entry());
        locked.replace(entry);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.clean {
            // The disk must leave nothing: only pages of existing clean disks are counted
            // separately.
            let _ = self.clear(0..self.slots(), self.slots());
            self.core.clean.remove(self.tree.layer());
        }
        self.core.end_disk(self.tree.end(self.core.parts()));
    }
}

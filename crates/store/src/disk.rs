//! A disk: slots in a pool, pages out.
#![allow(unsafe_code)] // decodes objects that its pin names: see the SAFETY reasons

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use pagefold_codec::{PAGE_SIZE, Page};

use crate::{
    DiskStats,
    budget::Full,
    core::{Core, Corrupt, Failed},
    disks::{DiskId, Sums},
    entry::{Entry, Fill},
    heap::Location,
    leaves::LEAF_SLOTS,
    lock::Locked,
    prefetch::{LINE_BYTES, prefetch},
    sync::wait_for,
    table::{Place, Table},
};

/// A read asks for all lines of its object at once: a decoder that meets them one by one waits for each. Whoever reads slots in
/// order has asked before, for this much of the next object while the last one was decoded; the CPU itself sees to the rest.
const AHEAD_BYTES: usize = 1024;

/// The most slots of a disk: 64 TiB. Its table's root takes 32 MiB then.
const SLOTS_MAX: u64 = 1 << 34;

/// A slot's number, from 0.
pub type Slot = u64;

/// Why an operation failed. The slot holds what it held before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool's memory limit is reached.
    #[error("the memory limit is reached")]
    Full,
    /// The disk's own limit is reached.
    #[error("the disk's own memory limit is reached")]
    DiskFull,
    /// There is no such slot.
    #[error("slot {slot} is beyond the disk's {slots} slots")]
    NoSuchSlot {
        /// The slot asked for.
        slot: Slot,
        /// How many there are.
        slots: u64,
    },
    /// The slot's object cannot be decoded.
    #[error("slot {slot} is corrupt: {what}")]
    Corrupt {
        /// The slot.
        slot: Slot,
        /// What was found wrong.
        what: &'static str,
    },
    /// No disk has so many slots.
    #[error("{slots} pages of 4 KiB ({} GiB) are more than a disk can have: take at most {} GiB", slots >> 18, SLOTS_MAX >> 18)]
    TooLarge {
        /// The slots asked for.
        slots: u64,
    },
}

impl From<Full> for Error {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing; it reads as zeros.
    Empty,
    /// A page of zeros.
    Zero,
    /// A page.
    Data,
}

/// A row of slots in a [`Pool`](crate::Pool), each empty or holding one page. Dropping it gives its memory back to the pool.
pub struct Disk {
    core: Arc<Core>,
    table: Table,
    id: DiskId,
    slots: AtomicU64,
    limit: AtomicU64,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("slots", &self.slots()).finish_non_exhaustive()
    }
}

impl Disk {
    pub(crate) fn new(core: Arc<Core>, slots: u64) -> Result<Self, Error> {
        if slots > SLOTS_MAX {
            return Err(Error::TooLarge { slots });
        }
        let id = core.disks.take(&core.budget)?;
        Ok(Self { core, table: Table::new(), id, slots: AtomicU64::new(slots), limit: AtomicU64::new(u64::MAX) })
    }

    /// How many slots there are.
    pub fn slots(&self) -> u64 {
        self.slots.load(Acquire)
    }

    /// Makes it a disk of so many slots. New ones are empty; those that go lose their pages. Others use the disk meanwhile: what they
    /// write to slots that go is lost or refused.
    ///
    /// # Errors
    /// [`Error::TooLarge`]; the disk is as it was.
    pub fn resize(&self, slots: u64) -> Result<(), Error> {
        if slots > SLOTS_MAX {
            return Err(Error::TooLarge { slots });
        }
        let before = self.slots.swap(slots, Release);
        if slots < before {
            self.table.settle();
            self.empty(slots..before);
        }
        Ok(())
    }

    /// The most bytes that the disk may take of the pool: objects and table, as [`DiskStats::spent_bytes`] counts. `u64::MAX` for as
    /// much as there is. A limit below what the disk takes already keeps it from growing.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes, Relaxed);
    }

    /// Fills `page` with the slot's page; an empty slot reads as zeros. After an error `page` is unspecified.
    pub fn read(&self, slot: Slot, page: &mut Page) -> Result<(), Error> {
        self.check_slot(slot)?;
        let core = &*self.core;
        while let Some(place) = self.table.find(&core.leaves, slot) {
            let seen = place.word.load(Acquire);
            let entry = Entry::decode(seen);
            // Empty and same-filled pages need no stream.
            let Some(object) = entry.object() else {
                if !place.is_current() {
                    continue;
                }
                match entry {
                    Entry::Same(word) => pagefold_codec::fill(page, word.word()),
                    _ => page.fill(0),
                }
                return Ok(());
            };
            let mut taken = core.streams.take(seen, &core.budget)?;
            let (working, pin) = taken.parts();
            let number = place.number();
            let soon = if number == working.next {
                (self.next_object(place, slot), AHEAD_BYTES)
            } else {
                (Some(object), PAGE_SIZE)
            };
            working.next = number + 1;
            if let (Some((at, len_bytes)), most) = soon {
                core.heap.prefetch(at, len_bytes.min(most));
            }
            let pinned = pin.pin(place.word);
            if !place.is_current() {
                continue;
            }
            // SAFETY: the pin names its object until the stream goes back at the end.
            let done = unsafe { core.decode(Entry::decode(pinned), &mut working.coder, page) };
            return done.map_err(|Corrupt(what)| Error::Corrupt { slot, what });
        }
        page.fill(0);
        Ok(())
    }

    /// The object of the slot after `slot`, whose own entry is at `place`.
    #[inline]
    fn next_object(&self, place: Place<'_>, slot: Slot) -> Option<(Location, usize)> {
        let number = place.number() + 1;
        if number.is_multiple_of(LEAF_SLOTS as u64) {
            self.table.peek(&self.core.leaves, slot + 1).object()
        } else {
            self.core.leaves.entry(number)?.object()
        }
    }

    /// Puts `page` in the slot. It is compressed with no lock held.
    pub fn write(&self, slot: Slot, page: &Page) -> Result<(), Error> {
        self.check_slot(slot)?;
        self.when_there_is_room(slot, || self.write_now(slot, page))
    }

    fn write_now(&self, slot: Slot, page: &Page) -> Result<(), Error> {
        // What the codec looks at first, in case the page is not in the cache.
        for at in (0..4 * LINE_BYTES).step_by(LINE_BYTES).chain([PAGE_SIZE - 1]) {
            prefetch(&page[at]);
        }
        let core = &self.core;
        let mut taken = core.streams.take(0, &core.budget)?;
        loop {
            let place = self.make(slot)?;
            let working = taken.parts().0;
            let old = Entry::decode(place.word.load(Relaxed));
            let new = core.build(place.number(), &mut working.coder, &mut working.kept, page, old.object_bytes())?;
            let Some(locked) = self.lock_made(place, slot) else {
                // The leaf is another's: so is the room in the heap, by its header.
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
            break;
        }
        drop(taken);
        core.relieve();
        core.rewrite_some();
        Ok(())
    }

    /// Changes part of the slot's page: `change` gets the page as it is, and what it leaves there is stored. No other
    /// operation on the slot comes between. `change` is short: the slot is locked while it runs, and it must not use
    /// the pool. It is called again, with the page as it is then, when there was no room for the first.
    pub fn update(&self, slot: Slot, mut change: impl FnMut(&mut Page)) -> Result<(), Error> {
        self.check_slot(slot)?;
        self.when_there_is_room(slot, || self.update_now(slot, &mut change))
    }

    fn update_now(&self, slot: Slot, change: impl FnOnce(&mut Page)) -> Result<(), Error> {
        let core = &self.core;
        let mut taken = core.streams.take(0, &core.budget)?;
        let (place, locked) = self.lock_or_make(slot)?;
        let changed = core.change(place.number(), locked, &mut taken, change, |old, new| self.fits(old, new).is_ok());
        changed.map_err(|failed| match failed {
            Failed::Full => Error::Full,
            Failed::Refused => Error::DiskFull,
            Failed::Corrupt(Corrupt(what)) => Error::Corrupt { slot, what },
        })?;
        drop(taken);
        core.relieve();
        Ok(())
    }

    /// Empties the slots and gives their memory back.
    pub fn discard(&self, slots: Range<Slot>) -> Result<(), Error> {
        if slots.is_empty() {
            return Ok(());
        }
        self.check_slot(slots.end - 1)?;
        self.empty(slots);
        Ok(())
    }

    /// Empties slots that there may be no longer.
    fn empty(&self, slots: Range<Slot>) {
        let leaf_slots = LEAF_SLOTS as u64;
        let mut words = Vec::with_capacity(LEAF_SLOTS);
        for start in self.table.leaf_starts(&self.core.leaves, slots.start).take_while(|&start| start < slots.end) {
            for slot in slots.start.max(start)..slots.end.min(start + leaf_slots) {
                let Some((place, locked)) = self.table.lock(&self.core.leaves, slot) else { break };
                let old = locked.replace(Entry::Empty);
                self.core.count(self.id, place.owner() as usize, old, Entry::Empty);
                words.extend(old.object().map(|_| old.encode()));
            }
            self.core.free_unread(&mut words);
            self.table.remove_empty(&self.core.leaves, start, &self.core.budget);
        }
    }

    /// Puts a page of zeros in the slot: it counts as stored, though no memory holds it but its entry.
    pub fn write_zeroes(&self, slot: Slot) -> Result<(), Error> {
        self.check_slot(slot)?;
        let new = Entry::Same(Fill::ZERO);
        let (place, locked) = self.when_there_is_room(slot, || {
            let found = self.lock_or_make(slot)?;
            self.fits(found.1.entry(), new)?;
            Ok(found)
        })?;
        let old = locked.replace(new);
        self.core.count(self.id, place.owner() as usize, old, new);
        self.core.free_unread(&mut old.object().map(|_| old.encode()).into_iter().collect());
        Ok(())
    }

    /// What the slot holds.
    pub fn status(&self, slot: Slot) -> Result<Status, Error> {
        self.check_slot(slot)?;
        Ok(match self.table.peek(&self.core.leaves, slot) {
            Entry::Empty => Status::Empty,
            Entry::Same(Fill::ZERO) => Status::Zero,
            _ => Status::Data,
        })
    }

    /// How many slots from `slot` on are empty for certain and cheap to pass over, at most `limit`.
    pub fn empty_run(&self, slot: Slot, limit: u64) -> u64 {
        self.table.missing(&self.core.leaves, slot, limit.min(self.slots().saturating_sub(slot)))
    }

    /// The disk's figures at some moment during the call.
    pub fn stats(&self) -> DiskStats {
        let Sums { pages, compressed_bytes, same_pages, huge_pages } = self.core.disks.sums(self.id);
        let table_bytes = self.table.bytes();
        DiskStats {
            orig_data_size: pages * PAGE_SIZE as u64,
            compr_data_size: compressed_bytes,
            same_pages,
            huge_pages,
            table_bytes,
            spent_bytes: compressed_bytes + table_bytes,
            mem_limit: self.limit.load(Relaxed),
        }
    }

    /// Whether the disk's own limit lets `new` take the place of `old`.
    fn fits(&self, old: Entry, new: Entry) -> Result<(), Error> {
        let limit = self.limit.load(Relaxed);
        if limit == u64::MAX {
            return Ok(());
        }
        let grows = new.object_bytes() > old.object_bytes() || old == Entry::Empty;
        let after = self.core.disks.compressed_bytes(self.id) + self.table.bytes() + new.object_bytes() as u64;
        if grows && after > limit.saturating_add(old.object_bytes() as u64) { Err(Error::DiskFull) } else { Ok(()) }
    }

    /// Where the slot's entry is, made if need be.
    fn make(&self, slot: Slot) -> Result<Place<'_>, Error> {
        let Core { leaves, budget, .. } = &*self.core;
        match self.table.find_or_make(leaves, slot, || self.slots(), self.id, budget) {
            Ok(place) => Ok(place),
            Err(full) => {
                self.check_slot(slot)?;
                Err(full.into())
            }
        }
    }

    /// Holds the slot's entry at `place`, if it is still there and the slot too.
    fn lock_made<'a>(&self, place: Place<'a>, slot: Slot) -> Option<Locked<'a>> {
        place.lock().filter(|_| slot < self.slots())
    }

    /// Holds the slot's entry, made if need be.
    fn lock_or_make(&self, slot: Slot) -> Result<(Place<'_>, Locked<'_>), Error> {
        loop {
            let place = self.make(slot)?;
            if let Some(locked) = self.lock_made(place, slot) {
                return Ok((place, locked));
            }
            self.check_slot(slot)?;
        }
    }

    /// Tries once more what failed for want of room that others give back by themselves: a training, and, where the slot has
    /// an object, those who have just replaced theirs. Neither may hold a stream or an entry. A leaf that was made in vain goes.
    fn when_there_is_room<T>(&self, slot: Slot, mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        match attempt() {
            Err(Error::Full) => self.wait_for_room(slot, attempt),
            done => done,
        }
    }

    #[cold]
    fn wait_for_room<T>(&self, slot: Slot, mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        let core = &self.core;
        let mut done = Err(Error::Full);
        if core.training.as_ref().is_some_and(|training| training.wait_for_end()) {
            done = attempt();
        }
        if let Err(Error::Full) = done
            && self.table.peek(&core.leaves, slot).object().is_some()
        {
            core.streams.release_when_free(|word| core.free(Entry::decode(word)));
            done = attempt();
        }
        if done.is_err() {
            self.table.remove_empty(&core.leaves, slot, &core.budget);
        }
        done
    }

    fn check_slot(&self, slot: Slot) -> Result<(), Error> {
        let slots = self.slots();
        if slot < slots { Ok(()) } else { Err(Error::NoSuchSlot { slot, slots }) }
    }

    /// Puts another entry in the slot, as damaged memory would.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn change_entry(&self, slot: Slot, change: impl FnOnce(Entry) -> Entry) {
        let (_, locked) = self.table.lock(&self.core.leaves, slot).expect("a slot with a leaf");
        let entry = change(locked.entry());
        locked.replace(entry);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A leaf stays while somebody holds one of its entries for a moment: a thread that took it for another disk's.
        wait_for(|| {
            self.empty(0..SLOTS_MAX);
            (self.table.leaves() == 0).then_some(())
        });
        let Core { leaves, disks, budget, .. } = &*self.core;
        self.table.give_back(leaves, budget);
        disks.give(self.id, budget);
    }
}

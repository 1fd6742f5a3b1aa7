//! The store: slots in, pages out.
//!
//! ```text
//! write:   stream ← CPU's; object ← compress (no lock held)
//!          room ← pool; lock entry; copy; swap; unlock; retire the old object
//! read:    stream ← CPU's; ask for the object's lines; pin it; decode it where it lies; unpin
//! update:  stream ← CPU's; lock entry; decode; change; compress; room ← pool; copy; swap; unlock; retire the old
//!
//! under a strategy whose readers lock
//! read:    stream ← CPU's; lock entry; copy the object; unlock; decode
//! write:   as above, but copies before it locks
//! ```
//!
//! A failure before the swap leaves the old page. Lock order: stream, entry, pool.
#![allow(unsafe_code)] // objects belong to whoever holds their entry: see the SAFETY reasons

use std::{
    fmt, io,
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use pagefold_codec::{Codec, Fold, PAGE_SIZE, Page, Stream, fill, same_filled};

use crate::{
    budget::{Budget, Full, Purpose},
    compaction::{Core, object_of},
    counters::{Share, Sums},
    entry::{Entry, Fill},
    lock::{EntryLock, Hazard},
    pool::PoolKind,
    prefetch::{LINE_BYTES, prefetch},
    stats::Stats,
    streams::{StreamPolicy, Streams, Taken, Working},
    table::Table,
    training::{Plan, Trained, Training, prepare},
};

/// A read asks for all lines of its object at once: a decoder that meets them one by one waits for each. Whoever reads slots in
/// order has asked before, for this much of the next object while the last one was decoded; the CPU itself sees to the rest.
const AHEAD_BYTES: usize = 1024;

/// A slot's number, from 0.
pub type Slot = u64;

/// Objects longer than this are kept raw: they save next to nothing and would cost a decode at every read.
const OBJECT_MAX: usize = PAGE_SIZE - PAGE_SIZE / 64;

/// What a pool takes for its first page at most: two pages, and what it knows them by.
const FIRST_PAGE_BYTES: u64 = 4 * PAGE_SIZE as u64;

/// How a store is made. To be written as `Config { slots, ..Config::default() }`, since later versions may have more fields.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many slots there are.
    pub slots: u64,
    /// What compresses the pages.
    pub codec: Arc<dyn Codec>,
    /// Whether the codec's tables, if it has any, are trained on the pages written.
    pub train: bool,
    /// The most memory that the store may spend, everything counted; `u64::MAX` for no limit.
    pub memory_limit: u64,
    /// How many compression streams there are and who gets which.
    pub streams: StreamPolicy,
    /// What holds the objects.
    pub pool: PoolKind,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            slots: 0,
            codec: Arc::new(Fold),
            train: true,
            memory_limit: u64::MAX,
            streams: StreamPolicy::default(),
            pool: PoolKind::default(),
        }
    }
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NewError {
    /// The address space has no room for that many slots, or the process may not have it (`ulimit -v`,
    /// `vm.overcommit_memory`).
    #[error("{slots} pages of 4 KiB ({} GiB) need more address space than this process can have: take fewer", slots >> 18)]
    TooLarge {
        /// The slots asked for.
        slots: u64,
        /// What the system said.
        source: io::Error,
    },
    /// Under that limit no page could ever be written.
    #[error("a memory limit of {limit} bytes is below the {needed} bytes that it takes to hold a page")]
    LimitTooSmall {
        /// The limit asked for.
        limit: u64,
        /// What it has to be at least.
        needed: u64,
    },
}

/// Why an operation failed. The slot holds what it held before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The memory limit is reached.
    #[error("the memory limit is reached")]
    Full,
    /// There is no such slot.
    #[error("slot {slot} is beyond the store's {slots} slots")]
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

/// A compressed page store. `L` says how its entries are guarded; the default is the one that measures best.
pub struct Store<L: EntryLock = Hazard> {
    core: Arc<Core<L>>,
    /// Counts for those who hold no stream.
    loose: CachePadded<Share>,
    training: Option<Arc<Training>>,
    budget: Arc<Budget>,
    slots: u64,
    base_bytes: u64,
    /// With so much left nothing that is kept is near.
    ample_bytes: u64,
}

impl<L: EntryLock> fmt::Debug for Store<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("slots", &self.slots)
            .field("codec", &self.core.streams.codec())
            .finish_non_exhaustive()
    }
}

impl Store {
    /// An empty store.
    pub fn new(config: Config) -> Result<Self, NewError> {
        Self::with_strategy(config)
    }
}

impl<L: EntryLock> Store<L> {
    /// An empty store whose entries are guarded by strategy `L`.
    pub fn with_strategy(config: Config) -> Result<Self, NewError> {
        let Config { slots, codec, train, memory_limit, streams, pool } = config;
        let too_large = |source| NewError::TooLarge { slots, source };
        let training = if train { Training::new(&*codec, Plan::USUAL) } else { None };
        let mut streams = Streams::new(codec, streams, L::PINS);
        streams.keep_room(memory_limit);
        let budget = Arc::new(Budget::for_streams(memory_limit, streams.len()));
        // Each holder of a stream may have an object that is in no slot yet, and objects kept for readers.
        let objects = slots.saturating_add((streams.len() + streams.retired_max()) as u64);
        let pool = pool.make(objects, slots, Arc::clone(&budget)).map_err(too_large)?;
        let table = Table::new(slots).ok_or_else(|| too_large(io::ErrorKind::OutOfMemory.into()))?;
        let base_bytes = table.root_bytes() + streams.base_bytes() + size_of::<CachePadded<Share>>() as u64;
        let empty_bytes = base_bytes + pool.account().held_bytes;
        // Of the limit 1/16 each is kept for moving and swapping, 1/64 each for overwriting and more streams, at most.
        let one_bytes = streams.one_bytes();
        let needed = (empty_bytes + one_bytes + Table::<L>::FIRST_BYTES + FIRST_PAGE_BYTES) * 64 / 54 + 1;
        let too_small = NewError::LimitTooSmall { limit: memory_limit, needed };
        if memory_limit < needed || budget.take_for(Purpose::Move, empty_bytes).is_err() {
            return Err(too_small);
        }
        let ample_bytes = 3 * budget.swap_bytes() + budget.overwrite_bytes() + streams.kept_bytes();
        let core = Core::new(table, streams, pool);
        Ok(Self { core, loose: CachePadded::default(), training, budget, slots, base_bytes, ample_bytes })
    }

    /// How many slots there are.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// The codec's name.
    pub fn codec_name(&self) -> String {
        self.core.streams.codec().name()
    }

    /// Whether its codec takes long for a page, see [`Codec::is_slow`].
    pub fn is_slow(&self) -> bool {
        self.core.streams.codec().is_slow()
    }

    /// Fills `page` with the slot's page; an empty slot reads as zeros. After an error `page` is unspecified.
    pub fn read(&self, slot: Slot, page: &mut Page) -> Result<(), Error> {
        self.check_slot(slot)?;
        read(&self.core, self.training.as_ref(), &self.budget, slot, page)
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
        let mut taken = self.core.streams.take(0, &self.budget)?;
        let replaced_bytes = object_bytes(self.core.table.peek(slot));
        let new = Entry::decode(self.build(slot, taken.parts().0, Source::Given(page), replaced_bytes)?);
        // Nobody reads it before it is in the entry; where readers wait for the entry, it is held for the swap alone.
        if !L::PINS {
            self.put(new, &taken.parts().0.object, page);
        }
        let locked = match self.core.table.lock_or_make(slot, &self.budget) {
            Ok(locked) => locked,
            Err(full) => {
                self.core.free(new);
                return Err(full.into());
            }
        };
        if L::PINS {
            self.put(new, &taken.parts().0.object, page);
        }
        let old = locked.replace(new);
        self.retire(&mut taken, old, new);
        drop(taken);
        self.core.relieve();
        self.rewrite_some();
        Ok(())
    }

    /// Changes part of the slot's page: `change` gets the page as it is, and what it leaves there is stored. No other
    /// operation on the slot comes between. `change` is short: the slot is locked while it runs, and it must not use
    /// the store. It is called again, with the page as it is then, when there was no room for the first.
    pub fn update(&self, slot: Slot, mut change: impl FnMut(&mut Page)) -> Result<(), Error> {
        self.check_slot(slot)?;
        self.when_there_is_room(slot, || self.update_now(slot, &mut change))
    }

    fn update_now(&self, slot: Slot, change: impl FnOnce(&mut Page)) -> Result<(), Error> {
        let mut taken = self.core.streams.take(0, &self.budget)?;
        let (working, _) = taken.parts();
        let Working { stream, object, page, trained, .. } = working;
        let locked = self.core.table.lock_or_make(slot, &self.budget)?;
        match locked.entry() {
            Entry::Object { tables, len_bytes, at } => {
                ready(self.training.as_ref(), &mut **stream, trained, tables, slot)?;
                // SAFETY: the entry names this object and stays locked to the end.
                unsafe { self.core.pool.read(at, &mut object[..len_bytes]) };
                decode(&mut **stream, &object[..len_bytes], page, slot)?;
            }
            entry => copy_plain(&self.core, entry, page),
        }
        change(page);
        let new = Entry::decode(self.build(slot, working, Source::Assembled, object_bytes(locked.entry()))?);
        self.put(new, &working.object, &working.page);
        let old = locked.replace(new);
        self.retire(&mut taken, old, new);
        drop(taken);
        self.core.relieve();
        Ok(())
    }

    /// Empties the slot and gives its memory back.
    pub fn discard(&self, slot: Slot) -> Result<(), Error> {
        self.check_slot(slot)?;
        if let Some(locked) = self.core.table.lock(slot) {
            let old = locked.replace(Entry::Empty);
            self.replaced(old, Entry::Empty);
            self.free_unread(old);
        }
        Ok(())
    }

    /// Puts a page of zeros in the slot: it counts as stored, though no memory holds it but its entry.
    pub fn write_zeroes(&self, slot: Slot) -> Result<(), Error> {
        self.check_slot(slot)?;
        let new = Entry::Same(Fill::ZERO);
        let lock = || Ok(self.core.table.lock_or_make(slot, &self.budget)?);
        let old = self.when_there_is_room(slot, lock)?.replace(new);
        self.replaced(old, new);
        self.free_unread(old);
        Ok(())
    }

    /// What the slot holds.
    pub fn status(&self, slot: Slot) -> Result<Status, Error> {
        self.check_slot(slot)?;
        Ok(match self.core.table.peek(slot) {
            Entry::Empty => Status::Empty,
            Entry::Same(Fill::ZERO) => Status::Zero,
            _ => Status::Data,
        })
    }

    /// How many slots from `slot` on are empty for certain and cheap to pass over, at most `limit`.
    pub fn empty_run(&self, slot: Slot, limit: u64) -> u64 {
        let limit = limit.min(self.slots.saturating_sub(slot));
        self.core.table.missing(slot, limit)
    }

    /// The figures at some moment during the call.
    pub fn stats(&self) -> Stats {
        let sums = self.sums();
        let mut stats = Stats {
            orig_data_size: sums.pages * PAGE_SIZE as u64,
            compr_data_size: sums.compressed_bytes,
            mem_used_total: self.core.pool.account().held_bytes,
            mem_limit: self.budget.limit(),
            mem_used_max: self.budget.max(),
            same_pages: sums.same_pages,
            huge_pages: sums.huge_pages,
            table_bytes: self.core.table.used_bytes(),
            stream_bytes: self.core.streams.used_bytes() + self.base_bytes - self.core.table.root_bytes(),
            spent_bytes: self.budget.used(),
            ..Stats::default()
        };
        if let Some(training) = &self.training {
            training.count(&mut stats);
        }
        stats
    }

    /// Moves objects together until no more memory can be given back that way. Other threads use the store meanwhile.
    pub fn compact(&self) {
        self.core.compact(None);
    }

    /// As [`compact`](Self::compact), but stops after about `time`. Returns whether there is more to do.
    pub fn compact_for(&self, time: Duration) -> bool {
        self.core.compact(Instant::now().checked_add(time))
    }

    /// Looks everything over and says what is inconsistent. For tests, with no other thread in the store.
    pub fn check(&self) -> Result<(), String> {
        let _paused = self.core.pause();
        self.core.pool.check()?;
        let stats = self.stats();
        let parts = stats.mem_used_total + stats.table_bytes + stats.stream_bytes + stats.training_bytes;
        if parts != stats.spent_bytes {
            return Err(format!("the parts make {parts} bytes, the budget says {}", stats.spent_bytes));
        }
        let fresh = Share::default();
        for slot in 0..self.slots {
            fresh.replaced(Entry::Empty, self.core.table.peek(slot));
        }
        if let Some(training) = &self.training {
            training.check((0..self.slots).map(|slot| self.core.table.peek(slot)))?;
        }
        let (found, counted) = (Sums::of([&fresh].into_iter()), self.sums());
        if found != counted {
            return Err(format!("slots hold {found:?}, the counters say {counted:?}"));
        }
        Ok(())
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Trains in another way, from the start.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn set_training(&mut self, training: Option<Arc<Training>>) {
        self.training = training;
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_training(&self) -> bool {
        self.training.as_ref().is_some_and(|training| training.is_busy())
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn tables(&self) -> Vec<pagefold_codec::Tables> {
        self.training.as_ref().map_or_else(Vec::new, |training| training.tables())
    }

    /// Puts another entry in the slot, as damaged memory would.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn change_entry(&self, slot: Slot, change: impl FnOnce(Entry) -> Entry) {
        let locked = self.core.table.lock(slot).expect("a slot with a leaf");
        let entry = change(locked.entry());
        locked.replace(entry);
    }

    /// Tries once more what failed for want of room that others give back by themselves: a training, and, where the slot has
    /// an object, those who have just replaced theirs. Neither may hold a stream or an entry.
    fn when_there_is_room<T>(&self, slot: Slot, mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        match attempt() {
            Err(Error::Full) => self.wait_for_room(slot, attempt),
            done => done,
        }
    }

    #[cold]
    fn wait_for_room<T>(&self, slot: Slot, mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        let mut done = Err(Error::Full);
        if self.training.as_ref().is_some_and(|training| training.wait_for_end()) {
            done = attempt();
        }
        if let Err(Error::Full) = done
            && object_bytes(self.core.table.peek(slot)) > 0
        {
            self.core.streams.release_when_free(|word| self.core.free(Entry::decode(word)));
            done = attempt();
        }
        done
    }

    fn check_slot(&self, slot: Slot) -> Result<(), Error> {
        if slot < self.slots { Ok(()) } else { Err(Error::NoSuchSlot { slot, slots: self.slots }) }
    }

    /// Makes the word of the slot's new entry for the page of `source`, and takes room for its object if it needs one; the
    /// caller [`put`](Self::put)s it there. `replaced_bytes` is the length of the object that it will replace.
    fn build(&self, slot: Slot, working: &mut Working, source: Source<'_>, replaced_bytes: usize) -> Result<u64, Full> {
        let tables = self.training.as_ref().map_or(0, |training| training.current());
        let Working { stream, object, page: assembled, trained, .. } = working;
        let page = match source {
            Source::Given(page) => page,
            Source::Assembled => &**assembled,
        };
        if let Some(fill) = same_filled(page).and_then(Fill::new) {
            return Ok(Entry::Same(fill).encode());
        }
        let is_ready = prepare(self.training.as_ref(), &mut **stream, trained, tables);
        debug_assert!(is_ready, "the current tables are kept");
        let compressed = stream.compress(page, &mut object[..OBJECT_MAX]);
        if let Some(training) = &self.training {
            training.offer(trained, slot, &self.core, &self.budget);
        }
        let len_bytes = compressed.unwrap_or(PAGE_SIZE);
        let fits = || self.fits(len_bytes, replaced_bytes);
        let alloc = || self.core.pool.alloc_to_write(len_bytes, slot);
        let at = match if fits() { alloc() } else { Err(Full) } {
            Ok(at) => at,
            Err(Full) => {
                // Objects kept for readers may be all that is missing.
                self.core.streams.release_all(Some(working), |word| self.core.free(Entry::decode(word)));
                if !fits() {
                    return Err(Full);
                }
                self.core.make_room(len_bytes, slot)?
            }
        };
        Ok(if compressed.is_some() { Entry::Object { tables, len_bytes, at } } else { Entry::Raw { at } }.encode())
    }

    /// Copies the object of `new`, whose word [`build`](Self::build) has just made, to its room.
    fn put(&self, new: Entry, object: &Page, page: &Page) {
        let (at, bytes) = match new {
            Entry::Empty | Entry::Same(_) => return,
            Entry::Object { len_bytes, at, .. } => (at, &object[..len_bytes]),
            Entry::Raw { at } => (at, &page[..]),
        };
        // SAFETY: just allocated with this length, and in no entry yet.
        unsafe { self.core.pool.write(at, bytes) };
    }

    /// Whether the limit is so near that nothing may be kept that could be given back.
    fn is_tight(&self) -> bool {
        self.budget.left() < 2 * self.budget.swap_bytes()
    }

    /// Whether an object of `len_bytes` may take the place of one of `replaced_bytes`, 0 for none, without touching what
    /// is not kept for it. Pages of one kind differ in length, and overwriting cuts objects in two: a store that new
    /// pages may fill to the brim refuses a third and more of the pages that are to replace others of their kind.
    fn fits(&self, len_bytes: usize, replaced_bytes: usize) -> bool {
        let left = self.budget.left();
        if left >= self.ample_bytes {
            return true;
        }
        let grows_bytes = len_bytes.saturating_sub(replaced_bytes) as u64;
        let swap_bytes = self.budget.swap_bytes();
        let overwrite_bytes = if replaced_bytes == 0 { self.budget.overwrite_bytes() } else { 0 };
        let kept_bytes = swap_bytes + overwrite_bytes + self.core.streams.to_come_bytes();
        if grows_bytes == 0 || left >= kept_bytes + 2 * swap_bytes {
            return true;
        }
        let account = self.core.pool.account();
        self.budget.left_with(account.free_bytes + account.tail_bytes) >= kept_bytes + grows_bytes
    }

    fn sums(&self) -> Sums {
        Sums::of(self.core.streams.shares().chain([&*self.loose]))
    }

    /// Counts that `new` took the place of `old`, and frees the old object as soon as nobody reads it.
    fn retire(&self, taken: &mut Taken<'_>, old: Entry, new: Entry) {
        taken.share().replaced_by_holder(old, new);
        if let Some(training) = &self.training {
            training.replaced(old, new);
        }
        match old {
            Entry::Object { .. } | Entry::Raw { .. } if L::PINS => {
                let keep = !self.is_tight();
                let free = |word| self.core.free(Entry::decode(word));
                self.core.streams.retire(taken.parts().0, old.encode(), object_bytes(old), keep, free);
            }
            _ => self.core.free(old),
        }
    }

    /// Counts the same by a thread that holds no stream.
    fn replaced(&self, old: Entry, new: Entry) {
        self.loose.replaced(old, new);
        if let Some(training) = &self.training {
            training.replaced(old, new);
        }
    }

    /// Makes some objects anew whose tables are to be given up.
    fn rewrite_some(&self) {
        let Some(training) = &self.training else { return };
        for slot in training.to_rewrite(self.slots, |slot| self.core.table.peek(slot)) {
            // A page that cannot be rewritten for want of room keeps its tables in use.
            let _ = self.update_now(slot, |_| {});
        }
    }

    /// Frees the object of an entry that was swapped out of its slot, waiting for those who read it.
    fn free_unread(&self, old: Entry) {
        if L::PINS && matches!(old, Entry::Object { .. } | Entry::Raw { .. }) {
            self.core.streams.wait_for_readers(&[old.encode()]);
        }
        self.core.free(old);
        self.core.relieve();
    }
}

/// The length of the object that an entry names, 0 if it names none.
fn object_bytes(entry: Entry) -> usize {
    match entry {
        Entry::Empty | Entry::Same(_) => 0,
        Entry::Object { len_bytes, .. } => len_bytes,
        Entry::Raw { .. } => PAGE_SIZE,
    }
}

/// Where the page is that [`Store::build`] compresses.
#[derive(Clone, Copy)]
enum Source<'a> {
    Given(&'a Page),
    /// In the working state.
    Assembled,
}

/// [`Store::read`] of a slot that there is.
pub(crate) fn read<L: EntryLock>(
    core: &Core<L>,
    training: Option<&Arc<Training>>,
    budget: &Budget,
    slot: Slot,
    page: &mut Page,
) -> Result<(), Error> {
    // Empty and same-filled pages need neither lock nor stream.
    let seen = core.table.peek(slot);
    match seen {
        Entry::Empty => {
            page.fill(0);
            return Ok(());
        }
        Entry::Same(word) => {
            fill(page, word.word());
            return Ok(());
        }
        Entry::Object { .. } | Entry::Raw { .. } => {}
    }
    let mut taken = core.streams.take(seen.encode(), budget)?;
    let (Working { stream, object, trained, next_slot, .. }, pin) = taken.parts();
    let (soon, most) = if slot == *next_slot { (core.table.peek(slot + 1), AHEAD_BYTES) } else { (seen, PAGE_SIZE) };
    *next_slot = slot + 1;
    if let Some((at, len_bytes)) = object_of(soon) {
        core.pool.prefetch(at, len_bytes.min(most));
    }
    let Some(view) = core.table.view(slot, pin) else {
        page.fill(0);
        return Ok(());
    };
    match view.entry() {
        Entry::Object { tables, len_bytes, at } => {
            ready(training, &mut **stream, trained, tables, slot)?;
            // SAFETY: the entry names this object, which stays live and unchanged while the view does, and with pins
            // until the stream goes back at the end.
            let in_place = if L::PINS { unsafe { core.pool.bytes(at, len_bytes) } } else { None };
            if let Some(bytes) = in_place {
                return decode(&mut **stream, bytes, page, slot);
            }
            let object = &mut object[..len_bytes];
            // SAFETY: as above.
            unsafe { core.pool.read(at, object) };
            drop(view);
            decode(&mut **stream, object, page, slot)
        }
        entry => {
            copy_plain(core, entry, page);
            Ok(())
        }
    }
}

/// Fills `page` from an entry that is viewed or locked and not compressed.
fn copy_plain<L: EntryLock>(core: &Core<L>, entry: Entry, page: &mut Page) {
    match entry {
        Entry::Empty => page.fill(0),
        Entry::Same(word) => fill(page, word.word()),
        // SAFETY: the caller views or holds the entry that names the object.
        Entry::Raw { at } => unsafe { core.pool.read(at, page) },
        Entry::Object { .. } => unreachable!("compressed entries are decoded"),
    }
}

/// Sets `stream` to the tables that an object of the slot was made with.
#[inline]
fn ready(
    training: Option<&Arc<Training>>,
    stream: &mut dyn Stream,
    trained: &mut Trained,
    tables: u8,
    slot: Slot,
) -> Result<(), Error> {
    let is_ready = prepare(training, stream, trained, tables);
    is_ready.then_some(()).ok_or(Error::Corrupt { slot, what: "an object of tables that the store does not have" })
}

fn decode(stream: &mut dyn Stream, object: &[u8], page: &mut Page, slot: Slot) -> Result<(), Error> {
    stream.decompress(object, page).map_err(|corrupt| Error::Corrupt { slot, what: corrupt.what })
}

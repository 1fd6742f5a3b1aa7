//! The store: what zram was between 2014 and 2016, as far as these comparisons need it.
//!
//! ```text
//! write:  take a stream; compress; put the object in the heap; give the stream back
//!         lock the entry; swap; free the old object; unlock
//! read:   lock the entry for reading; take a stream; decode the object where it lies; give it back; unlock
//! ```
//!
//! As in zram, a read holds its entry while it decodes, and a write while the old object is freed.
//! What differs: requests are whole pages in one process, not parts of block requests, and
//! [`OBJECT_MAX`] is the product's.
//!
//! Order of locks: entry, stream, allocator. A write holds no entry while it has a stream.
#![allow(unsafe_code)] // an object belongs to the holder of the entry that names it

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use pagefold_codec::{Codec, Corrupt, Lz4, PAGE_SIZE, Page, StreamError, same_filled};

use crate::{
    heap::{AllocatorKind, Heap, Object},
    lock::EntryLock,
    streams::{StreamPolicy, Streams, Working},
    table::{EntryTable, PublishedEntry},
};

/// Longer objects are pages kept as they are. pagefold's own store has the same bound, so that both
/// store the same objects; zram's was 3072 bytes, zcache's 3584.
const OBJECT_MAX: usize = PAGE_SIZE - PAGE_SIZE / 64;

/// Objects that there may be beside the slots': threads that write at once each have one that is in
/// no slot yet.
const WRITERS_MAX: u64 = 1024;

/// How a store is made.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// How many slots there are, at most 4 Mi less 1024.
    pub slots: u64,
    /// What compresses the pages.
    pub codec: Arc<dyn Codec>,
    /// How many streams there are and who gets which.
    pub streams: StreamPolicy,
    /// What holds the objects.
    pub allocator: AllocatorKind,
}

impl StoreConfig {
    /// `slots` slots with LZ4, a stream a CPU and xvmalloc.
    pub fn new(slots: u64) -> Self {
        Self { slots, codec: Arc::new(Lz4), streams: StreamPolicy::PerCpu, allocator: AllocatorKind::Xvmalloc }
    }
}

/// Why an operation failed. The slot holds what it held before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no memory for an object.
    #[error("the heap has no room for another object: use fewer threads")]
    Full,
    /// There is no memory for a stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// There is no such slot.
    #[error("slot {slot} is beyond the store's {slots} slots")]
    NoSuchSlot {
        /// The slot asked for.
        slot: u64,
        /// How many there are.
        slots: u64,
    },
    /// The slot's object cannot be decoded.
    #[error("a slot's object is damaged: {0}")]
    Corrupt(#[from] Corrupt),
}

/// What a store holds and spends, as zram's `mm_stat` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of the objects.
    pub compr_data_size: u64,
    /// All memory of the heap.
    pub mem_used_total: u64,
    /// That, the table and the streams.
    pub spent_bytes: u64,
}

/// A table of compressed pages. `L` says how its entries are guarded.
pub struct Store<L: EntryLock> {
    table: EntryTable<L>,
    streams: Streams,
    heap: Heap,
    compr_data_size: AtomicU64,
}

impl<L: EntryLock> fmt::Debug for Store<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("lock", &L::NAME).field("slots", &self.table.slots()).finish_non_exhaustive()
    }
}

impl<L: EntryLock> Store<L> {
    /// An empty store.
    pub fn new(config: StoreConfig) -> io::Result<Self> {
        let StoreConfig { slots, codec, streams, allocator } = config;
        let heap = Heap::new(allocator, slots.saturating_add(WRITERS_MAX))?;
        let table = EntryTable::new(slots as usize);
        Ok(Self { table, streams: Streams::new(codec, streams), heap, compr_data_size: AtomicU64::new(0) })
    }

    /// Puts `page` in the slot.
    pub fn write(&self, slot: u64, page: &Page) -> Result<(), Error> {
        let index = self.index(slot)?;
        if same_filled(page) == Some(0) {
            self.replace(index, PublishedEntry::Empty);
            return Ok(());
        }
        let object = self.streams.with(|working| self.compress(working, page))?.ok_or(Error::Full)?;
        let (at, len_bytes) = object.parts();
        self.replace(index, PublishedEntry::Object { at, len_bytes });
        Ok(())
    }

    fn compress(&self, working: &mut Working, page: &Page) -> Option<Object> {
        let Working { stream, object } = working;
        match stream.compress(page, &mut object[..OBJECT_MAX]) {
            Some(len_bytes) => self.heap.put(&object[..len_bytes]),
            None => self.heap.put(page),
        }
    }

    /// Fills `page` with the slot's page; an empty slot reads as zeros. After an error `page` is
    /// unspecified.
    pub fn read(&self, slot: u64, page: &mut Page) -> Result<(), Error> {
        let held = self.table.lock_shared(self.index(slot)?);
        let PublishedEntry::Object { at, len_bytes } = held.entry() else {
            page.fill(0);
            return Ok(());
        };
        // SAFETY: the entry names this object, and is held until this one is no longer used.
        let object = unsafe { self.heap.object(at, len_bytes) };
        self.streams.with(|Working { stream, object: buffer }| {
            let bytes = self.heap.bytes(&object, buffer);
            if len_bytes == PAGE_SIZE {
                page.copy_from_slice(bytes);
                return Ok(());
            }
            Ok(stream.decompress(bytes, page)?)
        })?
    }

    /// Empties the slot.
    pub fn discard(&self, slot: u64) -> Result<(), Error> {
        self.replace(self.index(slot)?, PublishedEntry::Empty);
        Ok(())
    }

    /// The figures at some moment during the call.
    pub fn stats(&self) -> Stats {
        let mem_used_total = self.heap.spent_bytes();
        let spent_bytes = mem_used_total + self.table.bytes() + self.streams.bytes();
        Stats { compr_data_size: self.compr_data_size.load(Relaxed), mem_used_total, spent_bytes }
    }

    /// Looks everything over and says what is inconsistent. For tests, with no other thread in the
    /// store.
    pub fn check(&self) -> Result<(), String> {
        let live_bytes = self.heap.check()?;
        let len_bytes = |slot| match self.table.lock_shared(slot).entry() {
            PublishedEntry::Empty => 0,
            PublishedEntry::Object { len_bytes, .. } => len_bytes as u64,
        };
        let (found, counted) = ((0..self.table.slots()).map(len_bytes).sum::<u64>(), self.stats().compr_data_size);
        if found != counted || found > live_bytes {
            return Err(format!("the entries name {found} bytes, {counted} are counted, {live_bytes} are live"));
        }
        Ok(())
    }

    /// Puts `new` in an entry and frees what it named.
    fn replace(&self, index: usize, new: PublishedEntry) {
        // Added before anyone can take it away, so that the sum is never below zero.
        if let PublishedEntry::Object { len_bytes, .. } = new {
            self.compr_data_size.fetch_add(len_bytes as u64, Relaxed);
        }
        let mut held = self.table.lock(index);
        if let PublishedEntry::Object { at, len_bytes } = held.replace(new) {
            // SAFETY: the entry named this object and no longer does, and readers hold the entry.
            self.heap.remove(unsafe { self.heap.object(at, len_bytes) });
            self.compr_data_size.fetch_sub(len_bytes as u64, Relaxed);
        }
    }

    fn index(&self, slot: u64) -> Result<usize, Error> {
        let slots = self.table.slots() as u64;
        if slot < slots { Ok(slot as usize) } else { Err(Error::NoSuchSlot { slot, slots }) }
    }
}

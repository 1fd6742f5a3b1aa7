//! The store: zram between 2014 and 2016, reduced to what is compared.
//!
//! ```text
//! write:  take a stream; compress; put the object in the heap; give the stream back
//!         lock the entry; swap; free the old object; unlock
//! read:   lock the entry for reading; take a stream; decode the object in place; give the stream
//!         back; unlock
//! ```
//!
//! As in zram, a read holds its entry while it decodes, and a write while it frees the old object.
//! Differences: requests are whole pages in one process, not parts of block requests, and
//! [`OBJECT_MAX`] is pagefold's.
//!
//! Lock order: entry, stream, allocator. A write holds no entry while it has a stream.
#![allow(unsafe_code)] // an object is owned by the holder of the entry that names it

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use pagefold_codec::{Codec, Corrupt, Lz4, PAGE_SIZE, Page, StreamError, same_filled};

use crate::{
    allocator::AllocatorKind,
    heap::{Heap, Object},
    lock::EntryLock,
    streams::{StreamPolicy, Streams, Working},
    table::{EntryTable, PublishedEntry},
};

/// The maximum length of an object in bytes: pages that compress to more are stored raw. pagefold's
/// own store has the same limit, so that both store the same objects; zram's was 3072 bytes,
/// zcache's 3584.
const OBJECT_MAX: usize = PAGE_SIZE - PAGE_SIZE / 64;

/// The maximum number of objects outside of slots: each concurrent writer has one until it stores
/// it in its slot.
const WRITERS_MAX: u64 = 1024;

/// The configuration of a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Number of slots, at most 4 Mi less 1024.
    pub slots: u64,
    /// The codec that compresses the pages.
    pub codec: Arc<dyn Codec>,
    /// The number of streams and how they are shared.
    pub streams: StreamPolicy,
    /// The allocator of the objects.
    pub allocator: AllocatorKind,
}

impl StoreConfig {
    /// Returns a configuration of `slots` slots with LZ4, a stream per CPU and xvmalloc.
    pub fn new(slots: u64) -> Self {
        Self { slots, codec: Arc::new(Lz4), streams: StreamPolicy::PerCpu, allocator: AllocatorKind::Xvmalloc }
    }
}

/// Why an operation failed. The slot is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no memory for an object.
    #[error("the heap is full: use fewer threads")]
    Full,
    /// There is no memory for a stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The slot number is beyond the store's end.
    #[error("slot {slot} is beyond the store's {slots} slots")]
    NoSuchSlot {
        /// The slot asked for.
        slot: u64,
        /// The number of slots that the store has.
        slots: u64,
    },
    /// The slot's object cannot be decoded.
    #[error("a slot's object is damaged: {0}")]
    Corrupt(#[from] Corrupt),
}

/// What a store holds and the memory that it uses, as in zram's `mm_stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of the objects.
    pub compr_data_size: u64,
    /// All memory of the heap.
    pub mem_used_total: u64,
    /// The same plus the table and the streams.
    pub spent_bytes: u64,
}

/// A table of compressed pages. `L` is the lock of its entries.
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
    /// Creates an empty store.
    pub fn new(config: StoreConfig) -> io::Result<Self> {
        let StoreConfig { slots, codec, streams, allocator } = config;
        let heap = Heap::new(allocator, slots.saturating_add(WRITERS_MAX))?;
        let table = EntryTable::new(slots as usize);
        Ok(Self { table, streams: Streams::new(codec, streams), heap, compr_data_size: AtomicU64::new(0) })
    }

    /// Writes `page` to the slot.
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

    /// Fills `page` with the slot's page; an empty slot reads as zeros. After an error the content
    /// of `page` is unspecified.
    pub fn read(&self, slot: u64, page: &mut Page) -> Result<(), Error> {
        let held = self.table.lock_shared(self.index(slot)?);
        let PublishedEntry::Object { at, len_bytes } = held.entry() else {
            page.fill(0);
            return Ok(());
        };
        // SAFETY: the entry names this object, and is held as long as the object is used.
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

    /// Returns the figures at some moment during the call.
    pub fn stats(&self) -> Stats {
        let mem_used_total = self.heap.spent_bytes();
        let spent_bytes = mem_used_total + self.table.bytes() + self.streams.bytes();
        Stats { compr_data_size: self.compr_data_size.load(Relaxed), mem_used_total, spent_bytes }
    }

    /// Checks the structure and reports an inconsistency. For tests, with no other thread in the
    /// store.
    pub fn check(&self) -> Result<(), String> {
        let live_bytes = self.heap.check()?;
        let len_bytes = |slot| match self.table.lock_shared(slot).entry() {
            PublishedEntry::Empty => 0,
            PublishedEntry::Object { len_bytes, .. } => len_bytes as u64,
        };
        let (found, counted) = ((0..self.table.slots()).map(len_bytes).sum::<u64>(), self.stats().compr_data_size);
        if found != counted || found > live_bytes {
            return Err(format!("bytes in entries: {found}, counted: {counted}, live in the heap: {live_bytes}"));
        }
        Ok(())
    }

    /// Stores `new` in an entry and frees the object that it named.
    fn replace(&self, index: usize, new: PublishedEntry) {
        // Added before another thread can subtract it, so that the sum is never negative.
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

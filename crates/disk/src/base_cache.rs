//! The pages of bases that a pool keeps compressed.
//!
//! A read of one page of a compressed base decodes a whole cluster. So the pages of a decoded
//! cluster are kept in a clean disk of the pool, each compressed by itself.
//!
//! ```text
//! unit     an aligned range of the length of the base's clusters, up to 256 KiB
//! missed   the first time:  kept if there is plenty of room, unless the reader is sequential
//!          again:           kept; of many if the cache is full, one in SELDOM, in the place of units
//!                           that were not read since the hand last passed (the clock algorithm)
//! asked    by the pool, which has no room for something else: units go in the order of the hand
//! ```
//!
//! A kept page is a copy of bytes that never change, so it may be discarded at any time.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{
            AtomicU8, AtomicU32, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
};

use pagefold_store::{Disk, PAGE_SIZE, Page, Pool, Reclaim};

use crate::{chunks::Chunks, counter::Counter};

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// Shorter units are not kept: decoding one costs little more than decoding a page of the pool.
const LEAST_UNIT_BYTES: u64 = 32 << 10;

/// The longest unit. The first reader of a longer cluster would wait for the compression of all its
/// pages, and the base's own cache avoids most of its further decodings.
const MOST_UNIT_BYTES: u64 = 256 << 10;

/// If the cache is full, one in this many missed units is kept.
const SELDOM: u32 = 8;

/// If less than this fraction of the pool's limit is free, nothing is kept any more; if less than
/// twice this fraction is free, only units that are missed again.
const RESERVE_PART: u64 = 16;

/// The number of pages discarded when the pool asks for room.
const RECLAIM_PAGES: u64 = 256;

/// The states of a unit: missed before; kept; read since the hand passed; being changed by a
/// thread.
const SEEN: u8 = 1;
const KEPT: u8 = 2;
const USED: u8 = 4;
const BUSY: u8 = 8;

/// The cache of a pool: pages of bases that were read, kept compressed as long as disks do not need
/// the room. Clones are the same cache. A pool has at most one.
#[derive(Clone, Debug)]
pub struct BaseCache(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    pool: Pool,
    limit_bytes: AtomicU64,
    /// Missed units that were not kept because the cache is full.
    refused: AtomicU32,
    hit_bytes: Counter,
    missed_units: Counter,
    bases: Mutex<Bases>,
}

#[derive(Debug, Default)]
struct Bases {
    all: Vec<Weak<KeptPages>>,
    /// The base that the hand points into.
    hand: usize,
}

impl BaseCache {
    /// Creates the cache of a pool, which uses at most about `limit_bytes` of the pool's memory.
    pub fn new(pool: &Pool, limit_bytes: u64) -> Self {
        let shared = Arc::new(Shared {
            pool: pool.clone(),
            limit_bytes: AtomicU64::new(limit_bytes),
            refused: AtomicU32::new(0),
            hit_bytes: Counter::default(),
            missed_units: Counter::default(),
            bases: Mutex::default(),
        });
        pool.set_reclaim(&shared);
        Self(shared)
    }

    /// Returns the most bytes that the cache uses.
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit_bytes.load(Relaxed)
    }

    /// Changes the limit. Pages beyond a lower one are discarded.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.0.limit_bytes.store(limit_bytes, Relaxed);
        self.0.trim();
    }

    /// Returns the bytes of the pool that the cache uses.
    pub fn used_bytes(&self) -> u64 {
        self.0.used_bytes(&mut self.0.bases())
    }

    /// Returns how many bytes were read from the kept pages of all bases.
    pub fn hit_bytes(&self) -> u64 {
        self.0.hit_bytes.sum()
    }

    /// Returns how often a unit was read from a base because its pages were not kept.
    pub fn missed_units(&self) -> u64 {
        self.0.missed_units.sum()
    }

    /// Creates a base's part of the cache; `None` if its pages are not worth keeping, or there is no
    /// room for it.
    pub(crate) fn join(&self, size_bytes: u64, unit_bytes: u64) -> Option<Arc<KeptPages>> {
        if unit_bytes < LEAST_UNIT_BYTES {
            return None;
        }
        let unit_bytes = unit_bytes.min(MOST_UNIT_BYTES);
        let disk = self.0.pool.clean_disk(size_bytes.div_ceil(PAGE_BYTES)).ok()?;
        let units = Chunks::new(&self.0.pool, size_bytes.div_ceil(unit_bytes));
        let hand = AtomicU64::new(0);
        let kept = Arc::new(KeptPages { cache: Arc::clone(&self.0), disk, units, unit_bytes, size_bytes, hand });
        self.0.bases().all.push(Arc::downgrade(&kept));
        Some(kept)
    }
}

impl Shared {
    fn bases(&self) -> MutexGuard<'_, Bases> {
        self.bases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn used_bytes(&self, bases: &mut Bases) -> u64 {
        bases.all.retain(|base| base.strong_count() > 0);
        bases.all.iter().filter_map(Weak::upgrade).map(|base| base.disk.stats().spent_bytes).sum()
    }

    /// Discards units until the cache is within its limit.
    fn trim(&self) {
        let mut bases = self.bases();
        while self.used_bytes(&mut bases) > self.limit_bytes.load(Relaxed) && bases.evict() > 0 {}
    }

    /// Returns whether to keep a unit of this length, given whether it was missed before.
    fn admits(&self, unit_bytes: u64, again: bool) -> bool {
        let (left_bytes, reserve_bytes) = (self.pool.left_bytes(), self.pool.memory_limit() / RESERVE_PART);
        if left_bytes <= reserve_bytes + unit_bytes {
            return false;
        }
        let is_full = self.used_bytes(&mut self.bases()) + unit_bytes > self.limit_bytes.load(Relaxed);
        match again {
            _ if unit_bytes > self.limit_bytes.load(Relaxed) => false,
            false => !is_full && left_bytes > 2 * reserve_bytes && !self.pool.is_slow(),
            true => !is_full || self.refused.fetch_add(1, Relaxed).is_multiple_of(SELDOM),
        }
    }
}

impl Reclaim for Shared {
    fn reclaim(&self) -> bool {
        let mut bases = self.bases();
        let mut pages = 0;
        while pages < RECLAIM_PAGES {
            match bases.evict() {
                0 => break,
                evicted => pages += evicted,
            }
        }
        pages > 0
    }
}

impl Bases {
    /// Discards the next unit that was not read since the hand passed it. Returns the number of
    /// pages discarded; 0 if nothing is kept.
    fn evict(&mut self) -> u64 {
        // In the second round, no unit is marked as read, unless it is being read.
        for turn in 0..=2 * self.all.len() {
            self.hand %= self.all.len().max(1);
            let Some(base) = self.all.get(self.hand).and_then(Weak::upgrade) else {
                self.hand += 1;
                continue;
            };
            match base.evict(turn <= self.all.len()) {
                0 => self.hand += 1,
                pages => return pages,
            }
        }
        0
    }
}

/// The kept pages of one base.
#[derive(Debug)]
pub(crate) struct KeptPages {
    cache: Arc<Shared>,
    disk: Disk,
    units: Chunks<AtomicU8>,
    unit_bytes: u64,
    size_bytes: u64,
    /// The unit to examine next for an eviction.
    hand: AtomicU64,
}

/// A unit that is to be kept. No other thread changes its state until this is dropped.
pub(crate) struct Filling<'a> {
    kept: &'a KeptPages,
    number: u64,
    state: &'a AtomicU8,
}

impl KeptPages {
    /// Fills the start of `buf` from kept pages, from `offset` up to the first page that is not
    /// kept. Returns how many bytes are filled.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let Some(state) = self.units.get(at / self.unit_bytes) else { break };
            let seen = state.load(Acquire);
            if seen & KEPT == 0 {
                break;
            }
            let in_page = (at % PAGE_BYTES) as usize;
            let end = buf.len().min(done + PAGE_SIZE - in_page);
            if !self.read_page(at / PAGE_BYTES, in_page, &mut buf[done..end]) {
                break;
            }
            if seen & USED == 0 {
                state.fetch_or(USED, Relaxed);
            }
            done = end;
        }
        if done > 0 {
            self.cache.hit_bytes.add(done as u64);
        }
        done
    }

    /// Fills `out` from a part of a page. Returns whether the page is kept.
    fn read_page(&self, slot: u64, at: usize, out: &mut [u8]) -> bool {
        if let Ok(page) = <&mut Page>::try_from(&mut *out) {
            return self.disk.read_held(slot, page).unwrap_or(false);
        }
        let mut page = [0; PAGE_SIZE];
        let is_kept = self.disk.read_held(slot, &mut page).unwrap_or(false);
        out.copy_from_slice(&page[at..at + out.len()]);
        is_kept
    }

    /// Returns how many of `len` bytes from `offset` on to read together: those before the next
    /// kept unit. The byte at `offset` must not be in a kept unit.
    pub(crate) fn missing(&self, offset: u64, len: usize) -> usize {
        let end = offset + len as u64;
        let mut at = self.unit_end(offset);
        while at < end && self.units.get(at / self.unit_bytes).is_none_or(|state| state.load(Relaxed) & KEPT == 0) {
            at = self.unit_end(at);
        }
        (at.min(end) - offset) as usize
    }

    /// Returns the end of the unit that contains the byte at `offset`.
    pub(crate) fn unit_end(&self, offset: u64) -> u64 {
        (offset / self.unit_bytes + 1) * self.unit_bytes
    }

    /// Records that a read missed the unit of the byte at `offset`. Returns the unit if it is to be
    /// kept.
    pub(crate) fn missed(&self, offset: u64, read: &Range<u64>) -> Option<Filling<'_>> {
        let number = offset / self.unit_bytes;
        let state = self.units.make(number)?;
        let before = state.fetch_or(SEEN, Relaxed);
        self.cache.missed_units.add(1);
        if before & (KEPT | BUSY) != 0 {
            return None;
        }
        let again = before & SEEN != 0;
        // A read of many bytes is likely to be sequential, and so is one that continues from the
        // preceding unit.
        let is_seen = |state: &AtomicU8| state.load(Relaxed) & SEEN != 0;
        let comes_from_before = read.start <= number * self.unit_bytes
            && number.checked_sub(1).and_then(|before| self.units.get(before)).is_some_and(is_seen);
        let is_long = read.end - read.start > self.unit_bytes / 2;
        let may_be = again || !(is_long || comes_from_before);
        if !may_be || !self.cache.admits(self.unit_bytes, again) || state.fetch_or(BUSY, AcqRel) & BUSY != 0 {
            return None;
        }
        let filling = Filling { kept: self, number, state };
        // Another thread may have kept the unit since.
        (state.load(Relaxed) & KEPT == 0).then_some(filling)
    }

    /// Discards the next unit from the hand to the end of the base. If `spare`, units that were read
    /// since the hand passed are skipped once. Returns the number of pages discarded. Callers take
    /// turns.
    fn evict(&self, spare: bool) -> u64 {
        let units = self.size_bytes.div_ceil(self.unit_bytes);
        let mut number = self.hand.load(Relaxed);
        while number < units {
            let Some(state) = self.units.get(number) else {
                number = Chunks::<AtomicU8>::next(number);
                continue;
            };
            number += 1;
            let seen = state.load(Relaxed);
            if seen & (KEPT | BUSY) != KEPT {
                continue;
            }
            if spare && seen & USED != 0 {
                state.fetch_and(!USED, Relaxed);
                continue;
            }
            if state.fetch_or(BUSY, AcqRel) & BUSY != 0 {
                continue;
            }
            self.hand.store(number, Relaxed);
            state.fetch_and(!(KEPT | USED), AcqRel);
            let slots = self.slots(number - 1);
            let pages = slots.end - slots.start;
            // No disk is over a clean disk or shares its pages, so this takes no memory.
            let _ = self.disk.discard(slots);
            state.fetch_and(!BUSY, Release);
            return pages;
        }
        self.hand.store(0, Relaxed);
        0
    }

    /// Returns the slots of a unit.
    fn slots(&self, number: u64) -> Range<u64> {
        let unit_pages = self.unit_bytes / PAGE_BYTES;
        number * unit_pages..((number + 1) * unit_pages).min(self.disk.slots())
    }
}

impl Filling<'_> {
    /// Returns the unit's offset and length in the base.
    pub(crate) fn range(&self) -> (u64, usize) {
        let start = self.number * self.kept.unit_bytes;
        (start, self.kept.unit_bytes.min(self.kept.size_bytes - start) as usize)
    }

    /// Keeps the unit's pages, which `bytes` contains, if the pool has room for all of them.
    pub(crate) fn keep(self, bytes: &[u8]) {
        let slots = self.kept.slots(self.number);
        let (pages, end) = bytes.as_chunks::<PAGE_SIZE>();
        let mut last = [0; PAGE_SIZE];
        last[..end.len()].copy_from_slice(end);
        let last = (!end.is_empty()).then_some(&last);
        let disk = &self.kept.disk;
        let is_kept = slots.clone().zip(pages.iter().chain(last)).all(|(slot, page)| disk.write(slot, page).is_ok());
        if is_kept {
            self.state.fetch_or(KEPT | USED, AcqRel);
            let cache = Arc::clone(&self.kept.cache);
            drop(self);
            cache.trim();
        } else {
            let _ = disk.discard(slots);
        }
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.state.fetch_and(!BUSY, Release);
    }
}

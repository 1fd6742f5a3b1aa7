//! What is below disks: a base, and digests of its pages.
//!
//! A page that equals the base's needs no memory. Comparing every written page would need a read of
//! the base for each. So a 15-bit digest is kept of each page of the base that was read whole
//! through a disk, two bytes per page, and a page is compared only if its digest matches. If no
//! digest is known, only large requests are compared with the base, since one read of it serves
//! many pages. If a few of these have found no equal page, only some are compared.

use std::sync::{
    Arc, OnceLock,
    atomic::{
        AtomicU16, AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use pagefold_store::{PAGE_SIZE, Page, Pool};

use crate::{BlockDevice, Error, Read};

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// Pages whose digests share a chunk of one page.
const CHUNK_PAGES: usize = PAGE_SIZE / size_of::<AtomicU16>();

/// The most chunks: no digests are kept beyond 512 GiB.
const CHUNKS_MAX: u64 = 1 << 16;

type Chunk = Box<[AtomicU16; CHUNK_PAGES]>;

/// Requests of fewer pages are compared only by digests.
const LARGE_PAGES: usize = 8;

/// Large requests without an equal page after which only one in [`SELDOM`] is compared.
const MISSES: u32 = 4;
const SELDOM: u32 = 16;

/// A base and the digests of its pages, shared by all disks over the base.
pub(crate) struct Below {
    device: Arc<dyn BlockDevice>,
    pool: Pool,
    digests: Box<[OnceLock<Chunk>]>,
    /// Bytes of digests counted against the pool's limit.
    counted_bytes: AtomicU64,
    /// Large requests since the last one with an equal page.
    misses: AtomicU32,
}

/// Computes a digest of a page, which is never 0, from widely spaced words: enough to distinguish
/// most pages that differ.
fn digest(page: &Page) -> u16 {
    let mut sum = 0u64;
    for words in page.chunks_exact(128) {
        let mut word = [0; 8];
        word.copy_from_slice(&words[64..72]);
        sum = (sum.rotate_left(29) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    (sum >> 48) as u16 | 1
}

impl Below {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, pool: &Pool) -> Self {
        let chunks = (device.size_bytes() / PAGE_BYTES).div_ceil(CHUNK_PAGES as u64).min(CHUNKS_MAX);
        let bytes = chunks * size_of::<OnceLock<Chunk>>() as u64;
        let counted_bytes = if pool.take_beside(bytes) { bytes } else { 0 };
        let digests = (0..if counted_bytes == 0 { 0 } else { chunks }).map(|_| OnceLock::new()).collect();
        let (counted_bytes, misses) = (AtomicU64::new(counted_bytes), AtomicU32::new(0));
        Self { device, pool: pool.clone(), digests, counted_bytes, misses }
    }

    pub(crate) fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Fills `buf` from `offset`, with zeros beyond the base's end.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let held = self.device.size_bytes().saturating_sub(offset).min(buf.len() as u64) as usize;
        let (held, beyond) = buf.split_at_mut(held);
        beyond.fill(0);
        if held.is_empty() {
            return Ok(());
        }
        self.device.read(offset, held)?;
        self.note_all(offset, held);
        Ok(())
    }

    /// As [`read`](Self::read), without waiting for storage: returns how many bytes of `buf` are
    /// filled.
    pub(crate) fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let held_bytes = self.device.size_bytes().saturating_sub(offset).min(buf.len() as u64) as usize;
        let (held, beyond) = buf.split_at_mut(held_bytes);
        if !held.is_empty() {
            let filled = self.device.try_read(offset, held)?;
            self.note_all(offset, &held[..filled]);
            if filled < held_bytes {
                return Ok(filled);
            }
        }
        beyond.fill(0);
        Ok(buf.len())
    }

    /// Runs several reads; what they need in common is fetched once.
    pub(crate) fn read_together(&self, reads: &mut [Read<'_>]) {
        let size_bytes = self.device.size_bytes();
        let is_held =
            |read: &Read<'_>| read.offset.checked_add(read.buf.len() as u64).is_some_and(|end| end <= size_bytes);
        if !reads.iter().all(is_held) {
            for read in reads {
                read.result = self.read(read.offset, read.buf);
            }
            return;
        }
        self.device.read_together(reads);
        for read in reads.iter().filter(|read| read.result.is_ok()) {
            self.note_all(read.offset, read.buf);
        }
    }

    /// Records the digests of the whole pages in `bytes`, which are the base's from `offset` on.
    fn note_all(&self, offset: u64, bytes: &[u8]) {
        let skipped = (offset.next_multiple_of(PAGE_BYTES) - offset) as usize;
        let pages = bytes.get(skipped..).unwrap_or_default().as_chunks().0;
        for (number, page) in (offset.div_ceil(PAGE_BYTES)..).zip(pages) {
            self.note(number, page);
        }
    }

    /// Records the digest of a page of the base, if there is memory for it.
    fn note(&self, number: u64, page: &Page) {
        let Some(place) = self.digests.get(number as usize / CHUNK_PAGES) else { return };
        let chunk = match place.get() {
            Some(chunk) => chunk,
            None if self.pool.take_beside(PAGE_BYTES) => {
                let mut made = false;
                let chunk = place.get_or_init(|| {
                    made = true;
                    Box::new([const { AtomicU16::new(0) }; CHUNK_PAGES])
                });
                if made {
                    self.counted_bytes.fetch_add(PAGE_BYTES, Relaxed);
                } else {
                    self.pool.give_beside(PAGE_BYTES);
                }
                chunk
            }
            None => return,
        };
        chunk[number as usize % CHUNK_PAGES].store(digest(page), Release);
    }

    /// Starts the comparison for a request of `pages` pages.
    pub(crate) fn compare(&self, pages: usize) -> Comparing<'_> {
        Comparing { below: self, all: pages >= LARGE_PAGES && self.is_worth_it(), found: false }
    }

    /// Returns whether a page equals the base's. An unreadable page of the base equals nothing.
    fn equals(&self, number: u64, page: &Page) -> bool {
        let mut below = [0; PAGE_SIZE];
        self.read(number * PAGE_BYTES, &mut below).is_ok() && below == *page
    }

    /// The same, without waiting for storage; `None` if that is not known.
    fn try_equals(&self, number: u64, page: &Page) -> Option<bool> {
        let mut below = [0; PAGE_SIZE];
        match self.try_read(number * PAGE_BYTES, &mut below) {
            Ok(PAGE_SIZE) => Some(below == *page),
            Ok(_) => None,
            Err(_) => Some(false),
        }
    }

    fn digest_of(&self, number: u64) -> Option<u16> {
        let chunk = self.digests.get(number as usize / CHUNK_PAGES)?.get()?;
        Some(chunk[number as usize % CHUNK_PAGES].load(Acquire)).filter(|&known| known != 0)
    }

    /// Returns whether to compare a large request.
    fn is_worth_it(&self) -> bool {
        let misses = self.misses.load(Relaxed);
        if misses >= MISSES && !misses.is_multiple_of(SELDOM) {
            self.misses.store(misses.saturating_add(1), Relaxed);
            return false;
        }
        true
    }
}

/// The comparison of one request's pages with the base's.
pub(crate) struct Comparing<'a> {
    below: &'a Below,
    /// Whether to compare all pages, or only those with a matching digest.
    all: bool,
    found: bool,
}

impl Comparing<'_> {
    /// Returns whether a page equals the base's.
    pub(crate) fn is_equal(&mut self, number: u64, page: &Page) -> bool {
        let is_equal = self.may_equal(number, page) && self.below.equals(number, page);
        self.found |= is_equal;
        is_equal
    }

    /// The same, without waiting for storage; `None` if that is not known.
    pub(crate) fn try_is_equal(&mut self, number: u64, page: &Page) -> Option<bool> {
        let is_equal = if self.may_equal(number, page) { self.below.try_equals(number, page)? } else { false };
        self.found |= is_equal;
        Some(is_equal)
    }

    fn may_equal(&self, number: u64, page: &Page) -> bool {
        self.all || self.below.digest_of(number).is_some_and(|known| known == digest(page))
    }
}

impl Drop for Comparing<'_> {
    fn drop(&mut self) {
        if self.all {
            let misses = if self.found { 0 } else { self.below.misses.load(Relaxed).saturating_add(1) };
            self.below.misses.store(misses, Relaxed);
        }
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        self.pool.give_beside(*self.counted_bytes.get_mut());
    }
}

//! The base below disks, and digests of its pages.
//!
//! A page that equals the base's needs no memory. Comparing every written page would need a read of
//! the base for each. So a 15-bit digest is kept of each page of the base that was read whole
//! through a disk, two bytes per page, and a page is compared only if its digest matches. If no
//! digest is known, only large requests are compared with the base, since one read of it serves
//! many pages. After a few large requests without an equal page, only some of them are compared.

use std::{
    mem,
    ops::Range,
    sync::{
        Arc,
        atomic::{
            AtomicU16, AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use pagefold_store::{PAGE_SIZE, Page, Pool};

use crate::{
    BlockDevice, Error, Read,
    base_cache::{BaseCache, Filling, KeptPages},
    chunks::Chunks,
};

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// Requests of fewer pages are compared only by digests.
const LARGE_PAGES: usize = 8;

/// Large requests without an equal page after which only one in [`SELDOM`] is compared.
const MISSES: u32 = 4;
const SELDOM: u32 = 16;

/// The maximum number of units that one call reads to keep them, because it holds their content.
const UNITS_TOGETHER: usize = 16;

/// A base, digests of its pages, and kept pages. All disks over the base share it.
pub(crate) struct Below {
    device: Arc<dyn BlockDevice>,
    digests: Chunks<AtomicU16>,
    kept: Option<Arc<KeptPages>>,
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
    pub(crate) fn new(device: Arc<dyn BlockDevice>, pool: &Pool, cache: Option<&BaseCache>) -> Self {
        let digests = Chunks::new(pool, device.size_bytes() / PAGE_BYTES);
        let kept = cache.and_then(|cache| cache.join(device.size_bytes(), device.read_unit_bytes()));
        Self { device, digests, kept, misses: AtomicU32::new(0) }
    }

    pub(crate) fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Splits `buf`, which is to be filled from `offset`, at the base's end.
    fn split<'a>(&self, offset: u64, buf: &'a mut [u8]) -> (&'a mut [u8], &'a mut [u8]) {
        buf.split_at_mut(self.device.size_bytes().saturating_sub(offset).min(buf.len() as u64) as usize)
    }

    /// Fills `buf` from `offset`, with zeros beyond the base's end.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let (held, beyond) = self.split(offset, buf);
        beyond.fill(0);
        match &self.kept {
            Some(kept) => self.read_kept(kept, offset, held),
            None => self.read_device(offset, held),
        }
    }

    /// Like [`read`](Self::read), without waiting for storage: returns how many bytes of `buf` are
    /// filled.
    pub(crate) fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let len = buf.len();
        let (held, beyond) = self.split(offset, buf);
        let filled = self.try_read_held(offset, held)?;
        if filled < held.len() {
            return Ok(filled);
        }
        beyond.fill(0);
        Ok(len)
    }

    /// Like `try_read`, for a range within the base.
    fn try_read_held(&self, offset: u64, held: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        while done < held.len() {
            let (at, rest) = (offset + done as u64, &mut held[done..]);
            let filled = self.kept.as_ref().map_or(0, |kept| kept.read(at, rest));
            done += filled;
            if filled == rest.len() {
                break;
            }
            let (at, rest) = (offset + done as u64, &mut held[done..]);
            let missing = self.kept.as_ref().map_or(rest.len(), |kept| kept.missing(at, rest.len()));
            let filled = self.device.try_read(at, &mut rest[..missing])?;
            self.note_all(at, &rest[..filled]);
            done += filled;
            if filled < missing {
                break;
            }
        }
        Ok(done)
    }

    /// Reads a range within the base.
    fn read_device(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        if !buf.is_empty() {
            self.device.read(offset, buf)?;
            self.note_all(offset, buf);
        }
        Ok(())
    }

    /// Reads a range within the base: first from kept pages and memory, then the rest from the
    /// base, unit by unit if units are to be kept.
    fn read_kept(&self, kept: &KeptPages, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let end = offset + buf.len() as u64;
        let mut at = offset;
        while at < end {
            at += self.try_read_held(at, &mut buf[(at - offset) as usize..])? as u64;
            // The range from here to `at` has yet to be read from the base.
            let mut from = at;
            let missing_end = if at < end { at + kept.missing(at, (end - at) as usize) as u64 } else { end };
            while at < missing_end {
                let until = missing_end.min(kept.unit_end(at));
                if let Some(filling) = kept.missed(at, &(offset..end)) {
                    self.read_device(from, &mut buf[(from - offset) as usize..(at - offset) as usize])?;
                    let part = &mut buf[(at - offset) as usize..(until - offset) as usize];
                    self.fill(filling, at, part)?;
                    from = until;
                }
                at = until;
            }
            self.read_device(from, &mut buf[(from - offset) as usize..(at - offset) as usize])?;
        }
        Ok(())
    }

    /// Reads a unit, fills a part of it from `offset`, and keeps the unit.
    fn fill(&self, filling: Filling<'_>, offset: u64, part: &mut [u8]) -> Result<(), Error> {
        let (start, len) = filling.range();
        let mut unit = vec![0; len];
        if self.device.read(start, &mut unit).is_err() {
            // The error may be in another part of the unit.
            return self.read_device(offset, part);
        }
        let from = (offset - start) as usize;
        part.copy_from_slice(&unit[from..from + part.len()]);
        self.note_all(start, &unit);
        filling.keep(&unit);
        Ok(())
    }

    /// Runs several reads; data that they share is fetched once.
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
        match &self.kept {
            Some(kept) => self.read_kept_together(kept, reads),
            None => self.read_device_together(reads),
        }
    }

    fn read_device_together(&self, reads: &mut [Read<'_>]) {
        self.device.read_together(reads);
        for read in reads.iter().filter(|read| read.result.is_ok()) {
            self.note_all(read.offset, read.buf);
        }
    }

    /// Like [`read_kept`](Self::read_kept) for several reads; reads of one unit share it.
    fn read_kept_together(&self, kept: &KeptPages, reads: &mut [Read<'_>]) {
        let mut missing: Vec<Read<'_>> = Vec::with_capacity(reads.len());
        // For each of them, the number and the range of the read that it belongs to.
        let mut owners = Vec::with_capacity(reads.len());
        for (number, Read { offset, buf, result }) in reads.iter_mut().enumerate() {
            let whole = *offset..*offset + buf.len() as u64;
            match self.try_read_held(*offset, buf) {
                Ok(filled) if filled == buf.len() => *result = Ok(()),
                Ok(filled) if whole.end <= kept.unit_end(*offset + filled as u64) => {
                    missing.push(Read::new(*offset + filled as u64, &mut buf[filled..]));
                    owners.push((number, whole));
                }
                Ok(filled) => *result = self.read_kept(kept, *offset + filled as u64, &mut buf[filled..]),
                Err(error) => *result = Err(error),
            }
        }
        let mut rest: Vec<((usize, Range<u64>), Read<'_>)> = owners.into_iter().zip(missing).collect();
        let (mut units, mut plain) = (Vec::new(), Vec::new());
        while let Some(((_, whole), Read { offset, .. })) = rest.first() {
            let unit_end = kept.unit_end(*offset);
            let filling = kept.missed(*offset, whole);
            let (unit, others): (Vec<_>, Vec<_>) =
                mem::take(&mut rest).into_iter().partition(|(_, read)| kept.unit_end(read.offset) == unit_end);
            rest = others;
            let parts = unit.into_iter().map(|((number, _), read)| (number, read));
            match filling {
                Some(filling) => units.push((filling, parts.collect::<Vec<_>>())),
                None => plain.extend(parts),
            }
        }
        for (number, result) in self.fetch_together(units, plain) {
            reads[number].result = result;
        }
    }

    /// Reads and keeps units, fills the requested parts, and runs the `plain` reads. Returns the
    /// results of all reads, by their numbers.
    fn fetch_together<'a>(
        &self,
        mut units: Vec<(Filling<'_>, Vec<(usize, Read<'a>)>)>,
        mut plain: Vec<(usize, Read<'a>)>,
    ) -> Vec<(usize, Result<(), Error>)> {
        let mut results = Vec::new();
        while !units.is_empty() || !plain.is_empty() {
            let now: Vec<_> = units.drain(..units.len().min(UNITS_TOGETHER)).collect();
            let mut bufs: Vec<_> = now.iter().map(|(filling, _)| vec![0; filling.range().1]).collect();
            let (numbers, reads): (Vec<_>, Vec<_>) = mem::take(&mut plain).into_iter().unzip();
            let fills = now.iter().zip(&mut bufs).map(|((filling, _), buf)| Read::new(filling.range().0, buf));
            let mut all: Vec<_> = fills.chain(reads).collect();
            self.read_device_together(&mut all);
            let mut found: Vec<_> = all.into_iter().map(|read| read.result).collect();
            results.extend(numbers.into_iter().zip(found.split_off(now.len())));
            for (((filling, parts), buf), result) in now.into_iter().zip(bufs).zip(found) {
                if result.is_err() {
                    // The error may be in another part of the unit.
                    plain.extend(parts);
                    continue;
                }
                let start = filling.range().0;
                for (number, read) in parts {
                    let from = (read.offset - start) as usize;
                    read.buf.copy_from_slice(&buf[from..from + read.buf.len()]);
                    results.push((number, Ok(())));
                }
                filling.keep(&buf);
            }
        }
        results
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
        if let Some(place) = self.digests.make(number)
            && place.load(Relaxed) == 0
        {
            place.store(digest(page), Release);
        }
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

    /// Like `equals`, without waiting for storage; `None` if the answer needs storage.
    fn try_equals(&self, number: u64, page: &Page) -> Option<bool> {
        let mut below = [0; PAGE_SIZE];
        match self.try_read(number * PAGE_BYTES, &mut below) {
            Ok(PAGE_SIZE) => Some(below == *page),
            Ok(_) => None,
            Err(_) => Some(false),
        }
    }

    fn digest_of(&self, number: u64) -> Option<u16> {
        Some(self.digests.get(number)?.load(Acquire)).filter(|&known| known != 0)
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

    /// Like `is_equal`, without waiting for storage; `None` if the answer needs storage.
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

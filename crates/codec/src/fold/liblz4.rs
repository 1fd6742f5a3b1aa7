//! The search of pages of fields: it takes the matches that liblz4's default search takes
//! (`LZ4_compress_default`), and repeats of the last distance among the literals between them.
//!
//! ```text
//! while the page is not covered:
//!     candidate := where four bytes with the same hash were last seen; remember that they are here
//!     if these four bytes are there: extend the match in both directions
//!     else continue with the next byte, or further on after 64 misses
//!     for each place of the literals before the match whose three bytes, or four in a long run,
//!         repeat at the last distance: make a match of these
//! ```
//!
//! Table, hash, steps, and the places that are remembered are those of liblz4 for an input of a
//! page. The [tokens](super::tables::CLASSES) of pages of fields code each of its matches in no
//! more bits than LZ4 does, and each other match in no more than its literals take. So an object of
//! this search is never longer than liblz4's.
#![allow(unsafe_code)] // Loads at places whose bounds are checked once.

use super::{
    Format, Isa,
    compare::{self, Compare},
    encode::{BACK, Encoder, FRONT, Matches, begin, length_of},
    hashes::FIELD_HASH_BITS,
    tables::{Codes, Kind, LENGTH_MIN, RUN_MAX, length_min_new},
    tokens::{Columns, Emit, Emitted},
};
use crate::{PAGE_SIZE, mem};

/// The factor of liblz4's hash.
const FACTOR: u32 = 2_654_435_761;

/// Places without a match after which the step to the next one grows by a byte.
const TRIES: usize = 64;

/// liblz4 examines a place only if the next one is not after this.
const LAST_NEXT: usize = PAGE_SIZE - 11;

/// Its matches end here or before.
const MATCH_END: usize = PAGE_SIZE - 5;

/// Number of bytes that are equal in every match of it.
const FOUND: usize = 4;

const _: () = assert!(FOUND == length_min_new(Kind::Fields as usize));

/// The search's results so far.
struct Taken<'a> {
    page: *const u8,
    columns: &'a mut Columns,
    literals_end: *mut u8,
    /// Number of sequences.
    count: usize,
    /// The first byte that no sequence covers.
    anchor: usize,
    last: usize,
    before: usize,
}

impl Encoder {
    /// Searches a page of fields, which is behind the first [`FRONT`] bytes of `window`.
    pub(super) fn find_fields(&mut self, format: &Format, window: &[u8]) -> Matches {
        let codes = &format.tokens[Kind::Fields as usize].codes;
        match self.isa {
            // SAFETY: the stream detected these CPU features when it chose the build.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { self.find_fields_avx2(codes, window) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { self.find_fields_avx512(codes, window) },
            Isa::Portable => self.find_fields_portable(codes, window),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2,lzcnt,avx2")]
    #[inline(never)]
    fn find_fields_avx2(&mut self, codes: &Codes, window: &[u8]) -> Matches {
        self.find_fields_by::<compare::Avx2>(codes, window)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2,lzcnt,avx2,avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    #[inline(never)]
    fn find_fields_avx512(&mut self, codes: &Codes, window: &[u8]) -> Matches {
        self.find_fields_by::<compare::Avx512>(codes, window)
    }

    #[inline(never)]
    fn find_fields_portable(&mut self, codes: &Codes, window: &[u8]) -> Matches {
        self.find_fields_by::<compare::Words>(codes, window)
    }

    /// Fills `literals`, `extra` and `tokens` from the page behind the first [`FRONT`] bytes of
    /// `window`.
    #[inline(always)]
    fn find_fields_by<C: Compare + Emit>(&mut self, codes: &Codes, window: &[u8]) -> Matches {
        assert!(window.len() == FRONT + PAGE_SIZE + BACK);
        mem::clear(&mut self.seen);
        let seen = self.seen.as_mut_ptr();
        let page = window.as_ptr().wrapping_add(FRONT);
        let literals = self.literals.as_mut_ptr();
        let columns = &mut self.columns;
        columns.offsets[0] = 1;
        let mut taken = Taken { page, columns, literals_end: literals, count: 0, anchor: 0, last: 1, before: 1 };
        // SAFETY: for each load and store here:
        // - `pos < LAST_NEXT`, and the window has FRONT bytes before and BACK bytes after the page;
        // - an entry of `seen` is 0, an earlier `pos`, or two bytes before one, so it is below
        //   `pos`; a hash has FIELD_HASH_BITS bits;
        // - a match begins at `start`, `anchor <= start <= pos`, and its source at 0 or later;
        // - what `take_repeats` and `take` ask.
        unsafe {
            let mut pos = 1;
            'page: while let Some((found, mut candidate)) = find::<C>(seen, page, pos) {
                pos = found;
                let mut start = pos;
                loop {
                    let before = start;
                    start = begin::<C>(page, start, candidate, taken.anchor);
                    candidate -= before - start;
                    if before - start < compare::BACK {
                        break;
                    }
                }
                taken.take_repeats::<C>(start);
                // Right behind matches, too.
                loop {
                    let offset = start - candidate;
                    let difference = mem::load64(page.add(start)) ^ mem::load64(page.add(candidate));
                    let length = length_of::<C>(page, start, offset, difference, PAGE_SIZE);
                    taken.take(start, length.min(MATCH_END - start), offset);
                    pos = taken.anchor;
                    if pos >= LAST_NEXT {
                        break 'page;
                    }
                    look_up(seen, page, pos - 2);
                    let is_found;
                    (candidate, is_found) = look_up(seen, page, pos);
                    if !is_found {
                        pos += 1;
                        break;
                    }
                    start = pos;
                }
            }
            if taken.count > 0 {
                taken.take_repeats::<C>(PAGE_SIZE);
            }
        }
        let Taken { mut literals_end, count, anchor, .. } = taken;
        // SAFETY: all runs together are at most a page.
        unsafe {
            page.add(anchor).copy_to_nonoverlapping(literals_end, PAGE_SIZE - anchor);
            literals_end = literals_end.add(PAGE_SIZE - anchor);
        }
        // SAFETY: the first `count` sequences are the page's, and the caller chose `C` for this CPU.
        let Emitted { tokens, extra } = unsafe {
            let tokens = self.tokens.first_chunk_mut().expect("TOKENS_ROOM bytes");
            C::emit(&self.columns, codes, count, anchor < PAGE_SIZE, tokens, &mut self.extra)
        };
        Matches { tokens, extra, literals: literals_end.addr() - literals.addr(), sequences: count, saved: 0 }
    }
}

/// Returns the first place from `pos` on, among those that liblz4 examines, whose four bytes
/// occurred before, and the place where they did. Records all examined places.
///
/// # Safety
/// As for [`look_up`], for `pos` and each later place below LAST_NEXT.
#[inline(always)]
unsafe fn find<C: Compare>(seen: *mut u16, page: *const u8, mut pos: usize) -> Option<(usize, usize)> {
    // The first step is taken once more.
    let (mut step, mut tries) = (1, TRIES + 1);
    loop {
        let stop = (pos + tries * step).min(LAST_NEXT + 1 - step);
        if pos >= stop {
            return None;
        }
        while pos < stop {
            // SAFETY: upheld by the caller.
            if let (candidate, true) = unsafe { look_up(seen, page, pos) } {
                return Some((pos, candidate));
            }
            pos += step;
        }
        step += 1;
        tries = TRIES;
    }
}

/// Returns the last place of four bytes with the same hash as those at `pos`, and whether they are
/// equal. Records `pos`.
///
/// # Safety
/// Four bytes can be read from `pos` and from all places in `seen`, which has one for each hash.
#[inline(always)]
unsafe fn look_up(seen: *mut u16, page: *const u8, pos: usize) -> (usize, bool) {
    // SAFETY: upheld by the caller; a hash has FIELD_HASH_BITS bits.
    unsafe {
        let here = mem::load32(page.add(pos));
        let slot = seen.add((here.wrapping_mul(FACTOR) >> (32 - FIELD_HASH_BITS)) as usize);
        let candidate = usize::from(slot.replace(pos as u16));
        (candidate, mem::load32(page.add(candidate)) == here)
    }
}

impl Taken<'_> {
    /// Takes the literals before `start`, and a match of `length` bytes there.
    ///
    /// # Safety
    /// `anchor <= start`, the match is within the page and has LENGTH_MIN bytes or more, and there
    /// is room behind literals and page for a copy of 32 bytes.
    #[inline(always)]
    unsafe fn take(&mut self, start: usize, length: usize, offset: usize) {
        let Self { page, literals_end, count, anchor, last, before, .. } = *self;
        let run = start - anchor;
        // SAFETY: the literals of all sequences are at most a page; a copy overshoots by less than
        // 32 bytes at both ends, as the caller allows.
        unsafe {
            mem::copy::<32>(page.add(anchor), literals_end);
            if run > 32 {
                mem::wild_copy::<32>(page.add(anchor + 32), literals_end.add(32), run - 32);
            }
            self.literals_end = literals_end.add(run);
        }
        // SAFETY: each sequence covers LENGTH_MIN bytes of the page or more, for which the columns
        // have room.
        unsafe { self.columns.put(count, run, length, offset, before) };
        self.before = if offset == last && run <= RUN_MAX { before } else { last };
        self.last = offset;
        self.count += 1;
        self.anchor = start + length;
    }

    /// Takes repeats at the last distance among the literals before `end`.
    ///
    /// # Safety
    /// `anchor <= end`, which is in the page or its end; C::BYTES bytes can be read from every place
    /// of the page.
    #[inline(always)]
    unsafe fn take_repeats<C: Compare>(&mut self, end: usize) {
        // The first literal cannot be a repeat, because the match before it would be longer.
        let mut place = self.anchor + 1;
        while place + LENGTH_MIN <= end {
            // SAFETY: `place` is in the page, and `last` is not more than the anchor, before which
            // it was the distance of a match, or it is 1.
            let equal = unsafe { C::equal(self.page.add(place), self.last) };
            let repeats = equal & equal >> 1 & equal >> 2;
            if repeats == 0 {
                place += C::BYTES - (LENGTH_MIN - 1);
                continue;
            }
            let at = repeats.trailing_zeros();
            let start = place + at as usize;
            place = (start + (!(equal >> at)).trailing_zeros() as usize).min(end);
            if place == start + C::BYTES - at as usize {
                // SAFETY: `place` is in the page, as before.
                while place < end && unsafe { *self.page.add(place) == *self.page.add(place - self.last) } {
                    place += 1;
                }
            }
            // A longer run needs a class with matches of FOUND bytes or more.
            let least = if start - self.anchor > RUN_MAX { FOUND } else { LENGTH_MIN };
            if place >= start + least {
                // SAFETY: `anchor < start`, and `place` is at most `end`. `take` overshoots by less
                // than 32 bytes.
                unsafe { self.take(start, place - start, self.last) };
            }
            place += 1;
        }
    }
}

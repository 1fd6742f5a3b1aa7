//! The encoder: it finds sequences (literals, then a match), and [`tokens`](super::tokens) writes
//! them.
//!
//! ```text
//! while the page goes on:
//!     candidate := where the next five bytes were last seen; remember that they are here
//!     if the next three or four bytes are those at a repeated distance, or the next five or six those at the candidate:
//!         note the match, go on behind it
//!     else go on with the next byte, or further on the longer nothing was found
//! make tokens and extra bits of all matches
//! code the literals by the palette that has most of them
//! ```
//!
//! What differs from the usual match finder, and what each brought (compression speed;
//! `docs/log/fold.md` has the order of the work):
//!
//! 1. Two loops: one finds, one makes tokens of eight or sixteen matches at a time. The first has a
//!    third of the instructions that one loop for both had (+5 to +10 % on heaps, +15 % on all).
//! 2. A repeated distance is a branch of its own: where it matches, the place behind the match does
//!    not wait for the table and the candidate, which take more than twice as long (+4 to +6 % on
//!    heaps).
//! 3. One repeated distance is tried at each place: right behind a match the one before (the last
//!    cannot match there, or the match would have been longer), and the last one everywhere else.
//!    The place right behind a match has code of its own, since it has no literals before it.
//! 4. In pages of words, six bytes are compared in place of five: fewer, longer matches (+4 to +6 %
//!    on heaps, for 0.1 % of their bytes; 2 to 5 % of text's and code's, where five it stays). In
//!    other pages, matches at the last distance have four bytes, not three: 6 % fewer sequences in
//!    tables and code, which is as much of decoding, for 0.1 % of the bytes.
//! 5. In pages of words, a place right behind a match that begins a word, and has none, is looked
//!    up once more by the word's upper bytes, six at the last distance and seven in a table of
//!    words: one step for three places, since what differs from word to word are low bytes (heaps
//!    +2 to +25 %, their decoding up to +9 %, their bytes -4.4 to +2.6 %).
//! 6. The table is small enough to be cleared for each page (4 KiB), so its entries need no check
//!    (+8 %), and the same page always gives the same object.
//! 7. The search steps faster and faster until it finds something (`TRIES`), which also bounds what
//!    a page that does not compress costs.
//! 8. What is equal beyond the first 8 bytes is found 32 or 64 bytes at a time (text +8 %). The
//!    first 8 are not: the next place waits for the length, and a word tells it sooner than a
//!    vector (-5 % on heaps).
#![allow(unsafe_code)] // A place of the page is loaded from three times; that it lies in the page is known once.

use core::{hint::select_unpredictable, ops::RangeInclusive};

use super::{
    Format, Isa,
    compare::{self, Compare},
    literals::{EMPTY, Room},
    shared::Starts,
    tables::{LENGTH_MIN_NEW, LITERALS_MASK, PALETTE_SHIFT, RUN_MAX, WORDS_SHIFT},
    tokens::{Columns, EXTRA_ROOM, Emit, Emitted, TOKENS_ROOM, class_of},
};
use crate::{PAGE_SIZE, Page, mem};

const HASH_BITS: u32 = 11;
pub(super) const WORD_HASH_BITS: u32 = 9;

/// After so many places without a match, the step to the next grows by a byte.
const TRIES: usize = 24;

/// How many zeros of [`mem::ZEROS_SAMPLED`] bytes a page of words has: pointers and small numbers.
/// Tables of binaries have more, code has fewer.
const WORDS_ZEROS: RangeInclusive<usize> = mem::ZEROS_SAMPLED / 4..=mem::ZEROS_SAMPLED * 5 / 8;

/// Nothing is searched for in so many last bytes of a page.
const UNSEARCHED: usize = 8;

/// Room before and after the window, for what [`Compare`] reads.
pub(super) const FRONT: usize = compare::BACK;
pub(super) const BACK: usize = 64 + 8;

/// A sequence that the encoder found.
pub(super) struct Sequence {
    pub(super) class: usize,
    pub(super) run: usize,
    pub(super) length: usize,
}

/// What the match finder left in the encoder.
struct Found {
    /// How many tokens it wrote, END included if it is needed.
    tokens: usize,
    /// Bytes of extra bits.
    extra: usize,
    literals: usize,
    sequences: usize,
}

pub(super) struct Encoder {
    isa: Isa,
    /// Where in the window five bytes of this hash were last seen; 0 also stands for nowhere.
    seen: [u16; 1 << HASH_BITS],
    /// In a page of words, where a word was last seen whose upper seven bytes have this hash; 0
    /// also stands for nowhere.
    seen_words: [u16; 1 << WORD_HASH_BITS],
    literals: Room,
    packed: Room,
    /// What was found last: whether the page is one of words, how many sequences, how many
    /// literals.
    found: (bool, usize, usize),
    columns: Columns,
    extra: [u8; EXTRA_ROOM],
    /// Filled from its end.
    tokens: [u8; TOKENS_ROOM],
}

impl Encoder {
    pub(super) fn new(isa: Isa) -> Box<Self> {
        Box::new(Self {
            isa,
            seen: [0; 1 << HASH_BITS],
            seen_words: [0; 1 << WORD_HASH_BITS],
            literals: EMPTY,
            packed: EMPTY,
            found: (false, 0, 0),
            columns: Columns::NEW,
            extra: [0; EXTRA_ROOM],
            tokens: [0; TOKENS_ROOM],
        })
    }

    /// See [`Stream::compress`](crate::Stream::compress). An object is shorter than a page. The
    /// last page of `window`, before its BACK last bytes, is overwritten.
    pub(super) fn encode(&mut self, format: &Format, window: &mut [u8], page: &Page, out: &mut [u8]) -> Option<usize> {
        self.seen.fill(0);
        let words = is_of_words(page);
        if words {
            self.seen_words.fill(0);
        }
        self.encode_after::<0>(format, Starts::NONE, window, words, page, out)
    }

    /// As [`encode`](Self::encode), with matches in the `REACH` bytes before the page too, whose
    /// places are in `starts`.
    pub(super) fn encode_with<const REACH: usize>(
        &mut self,
        format: &Format,
        starts: &Starts,
        window: &mut [u8],
        page: &Page,
        out: &mut [u8],
    ) -> Option<usize> {
        let words = is_of_words(page);
        self.seen.fill(0);
        if words {
            self.seen_words.copy_from_slice(&starts.words);
        }
        self.encode_after::<REACH>(format, starts, window, words, page, out)
    }

    /// The sequences of the page that was encoded last, of whatever length its object was, and its
    /// literals.
    pub(super) fn found(&self) -> (bool, impl Iterator<Item = Sequence>, &[u8]) {
        let Columns { runs, lengths, offsets, befores } = &self.columns;
        let (words, sequences, literals) = self.found;
        let sequences = (0..sequences).map(|at| {
            let [run, length, last, offset, before] =
                [runs[at], lengths[at], offsets[at], offsets[at + 1], befores[at]].map(usize::from);
            Sequence { class: class_of(run, offset, last, before), run, length }
        });
        (words, sequences, &self.literals[..literals])
    }

    fn encode_after<const REACH: usize>(
        &mut self,
        format: &Format,
        starts: &Starts,
        window: &mut [u8],
        words: bool,
        page: &Page,
        out: &mut [u8],
    ) -> Option<usize> {
        assert!(window.len() == FRONT + REACH + PAGE_SIZE + BACK);
        window[FRONT + REACH..][..PAGE_SIZE].copy_from_slice(page);
        let found = self.find::<REACH>(format, starts, window, words);
        self.found = (words, found.sequences, found.literals);
        if found.literals > LITERALS_MASK {
            return None;
        }
        let literals = found.literals;
        let palette = format.palettes.choose(&self.literals[..literals]);
        let packed = if palette == 0 {
            PAGE_SIZE
        } else {
            format.palettes.pack(self.isa, palette, &self.literals, literals, &mut self.packed)
        };
        let palette = if packed < literals { palette } else { 0 };
        let room = out.len().min(PAGE_SIZE - 1);
        let len = 2 + literals.min(packed) + found.extra + found.tokens;
        if len > room {
            return None;
        }
        let header = literals as u16 | u16::from(words) << WORDS_SHIFT | (palette as u16) << PALETTE_SHIFT;
        let (header_out, mut out) = out.split_at_mut(2);
        header_out.copy_from_slice(&header.to_le_bytes());
        let mut put = |bytes: &[u8]| {
            let (front, rest) = core::mem::take(&mut out).split_at_mut(bytes.len());
            front.copy_from_slice(bytes);
            out = rest;
        };
        put(if palette == 0 { &self.literals[..literals] } else { &self.packed[..packed] });
        put(&self.extra[..found.extra]);
        put(&self.tokens[self.tokens.len() - found.tokens..]);
        Some(len)
    }

    fn find<const REACH: usize>(&mut self, format: &Format, starts: &Starts, window: &[u8], words: bool) -> Found {
        match self.isa {
            // SAFETY: the stream found these features before it chose the build.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { self.find_avx2::<REACH>(format, starts, window, words) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { self.find_avx512::<REACH>(format, starts, window, words) },
            Isa::Portable => self.find_by::<compare::Words, REACH>(format, starts, window, words),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2,lzcnt,avx2")]
    #[inline(never)]
    fn find_avx2<const REACH: usize>(&mut self, format: &Format, starts: &Starts, window: &[u8], words: bool) -> Found {
        self.find_by::<compare::Avx2, REACH>(format, starts, window, words)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2,lzcnt,avx2,avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    #[inline(never)]
    fn find_avx512<const REACH: usize>(
        &mut self,
        format: &Format,
        starts: &Starts,
        window: &[u8],
        words: bool,
    ) -> Found {
        self.find_by::<compare::Avx512, REACH>(format, starts, window, words)
    }

    #[inline(always)]
    fn find_by<C: Compare + Emit, const REACH: usize>(
        &mut self,
        format: &Format,
        starts: &Starts,
        window: &[u8],
        words: bool,
    ) -> Found {
        if words {
            self.find_matches::<C, 6, REACH>(format, starts, window)
        } else {
            self.find_matches::<C, 5, REACH>(format, starts, window)
        }
    }

    /// Fills `literals`, `extra` and `tokens` from the page behind the `REACH` bytes of the window;
    /// `seen`, and in a page of words `seen_words`, is all zero or has places in these. New offsets
    /// have matches of `MIN` bytes or more: 6 in pages of words, 5 in others.
    #[inline(always)]
    fn find_matches<C: Compare + Emit, const MIN: u32, const REACH: usize>(
        &mut self,
        format: &Format,
        starts: &Starts,
        window: &[u8],
    ) -> Found {
        let searched = const { REACH + PAGE_SIZE - UNSEARCHED };
        let page_end = const { REACH + PAGE_SIZE };
        let unused = 64 - 8 * MIN;
        let last_bytes = if MIN == 5 { u32::MAX } else { 0xFF_FFFF };
        // The window, from which places are counted. Made of the whole, since bytes before it are
        // read too.
        let page = window.as_ptr().wrapping_add(FRONT);
        let seen = self.seen.as_mut_ptr();
        let seen_words = self.seen_words.as_mut_ptr();
        let literals = self.literals.as_mut_ptr();
        let mut literals_end = literals;
        let runs = self.columns.runs.as_mut_ptr();
        let lengths = self.columns.lengths.as_mut_ptr();
        let offsets = self.columns.offsets.as_mut_ptr();
        let befores = self.columns.befores.as_mut_ptr();
        let mut at = 0;
        let mut anchor = REACH;
        let mut pos = REACH + 1;
        let (mut last, mut before) = (1, 1);
        // SAFETY: for each load and store here:
        // - `1 <= pos < searched`, and the window has FRONT bytes before and BACK bytes after it;
        // - an entry of `seen` is 0, a place before the page, an earlier `pos`, or the place two
        //   before one, so it lies before `pos`; one of `seen_words` is 0 or an earlier `pos`; a
        //   hash has HASH_BITS bits, a word's WORD_HASH_BITS;
        // - `last` and `before` are at least 1 and at most `pos`: they start as 1, and become an
        //   offset, which is at most the `pos` of its time;
        // - a match begins at `start`, `anchor <= start`, and its source at 0 or later: `pos -
        //   start` is at most `candidate`;
        // - all runs together are at most a page, and copies of them go less than 32 bytes further
        //   at both ends;
        // - every sequence takes LENGTH_MIN bytes of the page or more, and only the last one, which
        //   ends the loop, may reach past its end: the columns have a place for each.
        unsafe {
            *offsets = 1;
            let put = |at: usize, run: usize, length: usize, offset: usize, before: usize| {
                *runs.add(at) = run as u16;
                *lengths.add(at) = length as u16;
                *offsets.add(at + 1) = offset as u16;
                *befores.add(at) = before as u16;
            };
            'page: loop {
                // Here the last match ended before `pos`.
                let (offset, difference, start);
                'found: {
                    // `last_page.add(pos)` is the place at the last distance. (The compiler would
                    // subtract at each place.)
                    let last_page = page.wrapping_sub(last);
                    let mut step = 1;
                    let mut stop = (pos + TRIES).min(searched);
                    loop {
                        while pos < stop {
                            let here = mem::load64(page.add(pos));
                            let slot = seen.add(hash(here, unused));
                            let candidate = usize::from(*slot);
                            *slot = pos as u16;
                            let at_last = here ^ mem::load64(last_page.add(pos));
                            if at_last as u32 & last_bytes == 0 {
                                // A longer run needs a class whose matches have LENGTH_MIN_NEW
                                // bytes or more.
                                if pos - anchor > RUN_MAX && at_last << (64 - 8 * LENGTH_MIN_NEW) != 0 {
                                    pos += 1;
                                    continue;
                                }
                                (offset, difference, start) = (last, at_last, pos);
                                break 'found;
                            }
                            if mem::load32(page.add(candidate)) == here as u32 {
                                let at_candidate = here ^ mem::load64(page.add(candidate));
                                if at_candidate << unused == 0 {
                                    start = begin::<C>(page, pos, candidate, anchor);
                                    (offset, difference) = (pos - candidate, at_candidate);
                                    break 'found;
                                }
                            }
                            if REACH > 0
                                && let Some((candidate, at_candidate)) = find_shared(starts, page, here)
                            {
                                start = begin::<C>(page, pos, candidate, anchor);
                                (offset, difference) = (pos - candidate, at_candidate);
                                break 'found;
                            }
                            pos += step;
                        }
                        if pos >= searched {
                            break 'page;
                        }
                        step += 1;
                        stop = (pos + TRIES * step).min(searched);
                    }
                }
                {
                    let length = if difference == 0 {
                        common_length::<C>(page, pos, offset, page_end)
                    } else {
                        difference.trailing_zeros() as usize / 8
                    };
                    let run = start - anchor;
                    mem::copy::<32>(page.add(anchor), literals_end);
                    if run > 32 {
                        mem::wild_copy::<32>(page.add(anchor + 32), literals_end.add(32), run - 32);
                    }
                    literals_end = literals_end.add(run);
                    let end = pos + length;
                    pos = end;
                    put(at, run, end - start, offset, before);
                    before = select_unpredictable(offset == last && run <= RUN_MAX, before, last);
                    last = offset;
                    at += 1;
                    anchor = end;
                }
                // Right behind matches.
                loop {
                    if pos >= searched {
                        break 'page;
                    }
                    if MIN == 5 {
                        *seen.add(hash(mem::load64(page.add(pos - 2)), unused)) = (pos - 2) as u16;
                    }
                    let here = mem::load64(page.add(pos));
                    let slot = seen.add(hash(here, unused));
                    let candidate = usize::from(*slot);
                    *slot = pos as u16;
                    let at_before = here ^ mem::load64(page.add(pos - before));
                    let (offset, difference);
                    if at_before as u32 & 0xFF_FFFF == 0 {
                        (offset, difference) = (before, at_before);
                    } else {
                        let at_candidate = here ^ mem::load64(page.add(candidate));
                        if at_candidate << unused == 0 {
                            (offset, difference) = (pos - candidate, at_candidate);
                        } else if REACH > 0
                            && let Some((candidate, at_candidate)) = find_shared(starts, page, here)
                        {
                            (offset, difference) = (pos - candidate, at_candidate);
                        } else {
                            if MIN == 6 && pos.is_multiple_of(8) {
                                let slot = seen_words.add(hash_word(here));
                                let candidate = usize::from(*slot);
                                *slot = pos as u16;
                                let at_last = here ^ mem::load64(page.add(pos - last));
                                let at_candidate = here ^ mem::load64(page.add(candidate));
                                // A match of upper bytes at `last` has a run, since the match
                                // before would have been longer.
                                let upper = if at_last >> 16 == 0 {
                                    Some((last, at_last))
                                } else if at_candidate >> 8 == 0 {
                                    Some((pos - candidate, at_candidate))
                                } else {
                                    None
                                };
                                if let Some((offset, difference)) = upper {
                                    let run = 8 - difference.leading_zeros() as usize / 8;
                                    let end = pos + common_length::<C>(page, pos, offset, page_end);
                                    mem::store64(literals_end, here);
                                    literals_end = literals_end.add(run);
                                    put(at, run, end - pos - run, offset, before);
                                    before = select_unpredictable(offset == last, before, last);
                                    last = offset;
                                    at += 1;
                                    pos = end;
                                    anchor = end;
                                    continue;
                                }
                            }
                            pos += 1;
                            break;
                        }
                    }
                    let length = if difference == 0 {
                        common_length::<C>(page, pos, offset, page_end)
                    } else {
                        difference.trailing_zeros() as usize / 8
                    };
                    put(at, 0, length, offset, before);
                    before = last;
                    last = offset;
                    at += 1;
                    pos += length;
                    anchor = pos;
                }
            }
            if anchor > page_end {
                *lengths.add(at - 1) -= (anchor - page_end) as u16;
                anchor = page_end;
            }
            page.add(anchor).copy_to_nonoverlapping(literals_end, page_end - anchor);
        }
        let literals = literals_end.addr() - literals.addr() + page_end - anchor;
        // SAFETY: the first `at` sequences are those of the page, and the caller chose `C` by the
        // CPU.
        let Emitted { tokens, extra } = unsafe {
            C::emit(
                &self.columns,
                &format.tokens[usize::from(MIN == 6)].codes,
                at,
                anchor < page_end,
                &mut self.tokens,
                &mut self.extra,
            )
        };
        Found { tokens, extra, literals, sequences: at }
    }
}

/// Whether a page is one of pointers and small numbers.
pub(super) fn is_of_words(page: &Page) -> bool {
    WORDS_ZEROS.contains(&mem::sampled_zeros(page))
}

/// The hash of the five lowest bytes, by the golden ratio.
#[inline(always)]
fn hash(bytes: u64, unused: u32) -> usize {
    ((bytes << unused).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (64 - HASH_BITS)) as usize
}

/// The hash of a word's upper seven bytes.
#[inline(always)]
pub(super) fn hash_word(word: u64) -> usize {
    ((word >> 8).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (64 - WORD_HASH_BITS)) as usize
}

/// Where a match of `pos` with `candidate` begins, at `anchor` or behind it.
///
/// # Safety
/// That of [`Compare::backward`].
#[inline(always)]
unsafe fn begin<C: Compare>(page: *const u8, pos: usize, candidate: usize, anchor: usize) -> usize {
    // SAFETY: the caller's.
    let back = unsafe {
        let equal = mem::load64(page.add(pos).sub(8)) ^ mem::load64(page.add(candidate).sub(8));
        if equal == 0 { C::backward(page.add(pos), pos - candidate) } else { equal.leading_zeros() as usize / 8 }
    };
    pos - back.min(pos - anchor).min(candidate)
}

/// Where in the dictionary the lowest bytes of `here` are, and in which bits the eight there differ
/// from `here`.
///
/// # Safety
/// `window` can be read 8 bytes beyond its places in `starts`.
#[inline(always)]
unsafe fn find_shared(starts: &Starts, window: *const u8, here: u64) -> Option<(usize, u64)> {
    let place = starts.probable(here)?;
    // SAFETY: the caller's.
    let difference = here ^ unsafe { mem::load64(window.add(place)) };
    (difference << starts.unused() == 0).then_some((place, difference))
}

/// How many bytes from `pos` on equal those at `offset` back, if the first 8 do, or those of them
/// that matter. May count bytes past the page's end.
///
/// # Safety
/// That of [`Compare::forward`] for any place of the page from `pos + 8` on.
#[inline(always)]
unsafe fn common_length<C: Compare>(page: *const u8, pos: usize, offset: usize, page_end: usize) -> usize {
    let mut length = 8;
    loop {
        // SAFETY: the caller's; `pos + length` is at most the page's end.
        let more = unsafe { C::forward(page.add(pos + length), offset) };
        length += more;
        if more < C::BYTES || pos + length >= page_end {
            return length;
        }
    }
}

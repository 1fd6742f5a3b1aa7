//! The encoder.
//!
//! ```text
//! while the page goes on:
//!     candidate := where the next five bytes were last seen; remember that they are here
//!     if the next three bytes are those at a repeated distance, or the next five those at the candidate:
//!         extend the match both ways, write its literals, token and extra bits, go on behind it
//!     else go on with the next byte, or further on the longer nothing was found
//! code the literals by the palette that has most of them
//! ```
//!
//! What differs from the usual match finder, and what each brought (compression speed, geometric mean over nine kinds of
//! pages, in the order of the work):
//!
//! 1. A repeated distance is a branch of its own: where it matches, the place behind the match does not wait for the table
//!    and the candidate, which take more than twice as long (+4 to +6 % on heaps).
//! 2. One repeated distance is tried at each place: right behind a match the one before (the last cannot match there, or
//!    the match would have been longer), and the last one everywhere else.
//! 3. The table is small enough to be cleared for each page (4 KiB), so its entries need no check (+8 %), and the
//!    same page always gives the same object.
//! 4. The search steps faster and faster until it finds something (`STEP`), which also bounds what a page that does not
//!    compress costs.
//! 5. The class is made by arithmetic, and the loop is built for BMI2 too (+12 %).
//! 6. A match is written where it is found: while the next place waits for the page and the table, there is time for it.
//!    Two loops, one that finds and one that writes, cost 3 to 5 % more on heaps; three, with the literals in the second,
//!    20 % more.
//! 7. What is equal beyond the first 8 bytes is found 32 or 64 bytes at a time (text +8 %). The first 8 are not: the next
//!    place waits for the length, and a word tells it sooner than a vector (-4 % on heaps).
#![allow(unsafe_code)] // A place of the page is loaded from three times; that it lies in the page is known once.

use core::hint::select_unpredictable;

use super::{
    Isa,
    compare::{self, Compare},
    literals::{self, EMPTY, Room},
    tables::{
        BEFORE, BITS_MAX, CODES, END, FAR, LAST, LENGTH_CODES, LENGTH_MIN, LENGTH_MIN_NEW, LITERALS_MASK, NEAR,
        NEAR_END, PALETTE_SHIFT, RUN_CODES, RUN_MAX, WIDE_SHIFT, WORDS,
    },
};
use crate::{PAGE_SIZE, Page, mem};

const HASH_BITS: u32 = 11;

/// By how much each place without a match lengthens the step to the next, in 64ths of a byte.
const STEP: usize = 4;

/// Nothing is searched for in the last bytes of a page.
const SEARCHED: usize = PAGE_SIZE - 8;

/// Room before and after the copy of the page, for what [`Compare`] reads.
const FRONT: usize = compare::BACK;
const BACK: usize = 64 + 8;

/// Each sequence is a match of [`LENGTH_MIN`] bytes or more.
const SEQUENCES_MAX: usize = PAGE_SIZE / LENGTH_MIN + 1;

/// What the match finder left in the encoder.
struct Found {
    /// How many tokens it wrote, END included if it is needed.
    tokens: usize,
    /// Bytes of extra bits.
    extra: usize,
    literals: usize,
    /// The decoder does well to copy 32 bytes at once: long matches are more common than short distances.
    wide: bool,
}

pub(super) struct Encoder {
    isa: Isa,
    /// Where in the page five bytes of this hash were last seen; 0 also stands for nowhere.
    seen: [u16; 1 << HASH_BITS],
    page: [u8; FRONT + PAGE_SIZE + BACK],
    literals: Room,
    packed: Room,
    extra: [u8; SEQUENCES_MAX * BITS_MAX / 8 + 8],
    /// Filled from its end.
    tokens: [u8; SEQUENCES_MAX + 1],
}

impl Encoder {
    pub(super) fn new(isa: Isa) -> Box<Self> {
        Box::new(Self {
            isa,
            seen: [0; 1 << HASH_BITS],
            page: [0; FRONT + PAGE_SIZE + BACK],
            literals: EMPTY,
            packed: EMPTY,
            extra: [0; SEQUENCES_MAX * BITS_MAX / 8 + 8],
            tokens: [0; SEQUENCES_MAX + 1],
        })
    }

    /// See [`Stream::compress`](crate::Stream::compress). An object is shorter than a page.
    pub(super) fn encode(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.page[FRONT..FRONT + PAGE_SIZE].copy_from_slice(page);
        self.seen.fill(0);
        let found = self.find();
        if found.literals > LITERALS_MASK {
            return None;
        }
        let literals = found.literals;
        let palette = literals::choose(&self.literals[..literals]);
        let packed = if palette == 0 {
            PAGE_SIZE
        } else {
            literals::pack(self.isa, palette, &self.literals, literals, &mut self.packed)
        };
        let palette = if packed < literals { palette } else { 0 };
        let room = out.len().min(PAGE_SIZE - 1);
        let len = 2 + literals.min(packed) + found.extra + found.tokens;
        if len > room {
            return None;
        }
        let header = literals as u16 | u16::from(found.wide) << WIDE_SHIFT | (palette as u16) << PALETTE_SHIFT;
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

    fn find(&mut self) -> Found {
        match self.isa {
            // SAFETY: the stream found these features before it chose the build.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { self.find_avx2() },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { self.find_avx512() },
            Isa::Portable => self.find_matches::<compare::Words>(),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2,lzcnt,avx2")]
    #[inline(never)]
    fn find_avx2(&mut self) -> Found {
        self.find_matches::<compare::Avx2>()
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2,lzcnt,avx2,avx512f,avx512bw")]
    #[inline(never)]
    fn find_avx512(&mut self) -> Found {
        self.find_matches::<compare::Avx512>()
    }

    /// Fills `literals`, `extra` and `tokens` from `page`; `seen` is all zero.
    #[inline(always)]
    fn find_matches<C: Compare>(&mut self) -> Found {
        // Made of the whole, since bytes before the page are read too.
        let page = self.page.as_ptr().wrapping_add(FRONT);
        let seen = self.seen.as_mut_ptr();
        let literals = self.literals.as_mut_ptr();
        let mut literals_end = literals;
        let extra = self.extra.as_mut_ptr();
        let mut extra_end = extra;
        let tokens_end = self.tokens.as_mut_ptr_range().end;
        let mut token = tokens_end;
        let (mut bits, mut count) = (0_u64, 0_u32);
        let mut anchor = 0;
        let mut pos = 1;
        let (mut last, mut before) = (1, 1);
        let mut probe = last;
        let mut step = 64;
        let (mut near, mut long) = (0, 0);
        // SAFETY: for each load and store here:
        // - `1 <= pos < SEARCHED`, and the page's copy has FRONT bytes before and BACK bytes after it;
        // - an entry of `seen` is 0 or an earlier `pos`, or the place two before one, so it lies before `pos`; a hash
        //   has HASH_BITS bits;
        // - `last`, `before` and `probe` are at least 1 and at most `pos`: they start as 1, and become an offset, which
        //   is at most the `pos` of its time;
        // - `back <= pos - offset` and `anchor <= start`, so a match's source begins in the page;
        // - all runs together are at most a page, and copies of them go less than 32 bytes further at both ends;
        // - every sequence takes LENGTH_MIN bytes of the page or more, so there are at most SEQUENCES_MAX: `tokens` has a byte for
        //   each and one for END; `extra` has BITS_MAX bits for each, and the 8 bytes that a store writes at once;
        // - a class is a place in CODES; run and length are cut to the tables' ends.
        unsafe {
            while pos < SEARCHED {
                let here = mem::load64(page.add(pos));
                let slot = seen.add(hash(here));
                let candidate = usize::from(*slot);
                *slot = pos as u16;
                let at_probe = here ^ mem::load64(page.add(pos - probe));
                let at_candidate = here ^ mem::load64(page.add(candidate));
                let repeats = at_probe << 40 == 0;
                let (offset, difference) = if repeats {
                    (probe, at_probe)
                } else if at_candidate << 24 == 0 {
                    (pos - candidate, at_candidate)
                } else {
                    probe = last;
                    pos += step >> 6;
                    step += STEP;
                    continue;
                };
                step = 64;
                let length = if difference == 0 {
                    common_length::<C>(page, pos, offset)
                } else {
                    difference.trailing_zeros() as usize / 8
                };
                let difference = mem::load64(page.add(pos).sub(8)) ^ mem::load64(page.add(pos).sub(8 + offset));
                let back = if difference == 0 {
                    C::backward(page.add(pos), offset)
                } else {
                    difference.leading_zeros() as usize / 8
                };
                let back = back.min(pos - anchor).min(pos - offset);
                let start = pos - back;
                let end = (pos + length).min(PAGE_SIZE);
                let run = start - anchor;

                let class =
                    NEAR + usize::from(offset >= NEAR_END) * (FAR - NEAR) + usize::from(offset % 8 == 0) * WORDS;
                let class = select_unpredictable(offset == before, BEFORE, class);
                let mut class = select_unpredictable(offset == last, LAST, class);
                let mut next_before = select_unpredictable(offset == last, before, last);
                if run > RUN_MAX {
                    if end - start < LENGTH_MIN_NEW {
                        pos += 1;
                        continue;
                    }
                    class = FAR;
                    next_before = last;
                }
                debug_assert!(class != LAST || run > 0);
                near += usize::from(offset < 64);
                long += usize::from(end - start > 16);
                before = next_before;
                last = offset;
                mem::copy::<32>(page.add(anchor), literals_end);
                if run > 32 {
                    mem::wild_copy::<32>(page.add(anchor + 32), literals_end.add(32), run - 32);
                }
                literals_end = literals_end.add(run);

                let length = end - start;
                let codes = CODES.get_unchecked(class);
                let run_code = codes.runs.get_unchecked(run.min(RUN_CODES - 1));
                let length_code = codes.lengths.get_unchecked(length.min(LENGTH_CODES - 1));
                token = token.sub(1);
                *token = run_code.token + length_code.token;
                let field = (offset as u32 >> (codes.offset_shift & 31)) & codes.offset_mask;
                let fields = u64::from(field) << (run_code.bits & 63) | (run - usize::from(run_code.base)) as u64;
                let fields = fields << (length_code.bits & 63) | (length - usize::from(length_code.base)) as u64;
                bits |= fields << (count & 63);
                count += u32::from(length_code.bits) + u32::from(run_code.bits) + codes.offset_bits;
                mem::store64(extra_end, bits);
                extra_end = extra_end.add((count >> 3) as usize);
                bits >>= count & 56;
                count &= 7;

                pos = end;
                anchor = end;
                probe = before;
                if pos < SEARCHED {
                    *seen.add(hash(mem::load64(page.add(pos - 2)))) = (pos - 2) as u16;
                }
            }
            page.add(anchor).copy_to_nonoverlapping(literals_end, PAGE_SIZE - anchor);
            if anchor < PAGE_SIZE {
                token = token.sub(1);
                *token = END;
            }
        }
        Found {
            tokens: tokens_end.addr() - token.addr(),
            extra: extra_end.addr() - extra.addr() + usize::from(count > 0),
            literals: literals_end.addr() - literals.addr() + PAGE_SIZE - anchor,
            wide: 2 * long > near,
        }
    }
}

/// The hash of the five lowest bytes, by the golden ratio.
#[inline(always)]
fn hash(bytes: u64) -> usize {
    ((bytes << 24).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (64 - HASH_BITS)) as usize
}

/// How many bytes from `pos` on equal those at `offset` back, if the first 8 do. May count bytes past the page's end.
///
/// # Safety
/// That of [`Compare::forward`] for any place of the page from `pos + 8` on.
#[inline(always)]
unsafe fn common_length<C: Compare>(page: *const u8, pos: usize, offset: usize) -> usize {
    let mut length = 8;
    loop {
        // SAFETY: the caller's; `pos + length` is at most PAGE_SIZE.
        let more = unsafe { C::forward(page.add(pos + length), offset) };
        length += more;
        if more < C::BYTES || pos + length >= PAGE_SIZE {
            return length;
        }
    }
}

//! What all of a page's tokens say, for [`window`](super::window): sixteen tokens at a time, by AVX-512.
//!
//! ```text
//! for each sixteen tokens:
//!     widths of length, run and offset, and what they begin at := by the token's number
//!     where each token's extra bits begin := the sum of all widths before
//!     length, run, offset := their bases and the bits there
//!     where each token's bytes begin := the sum of all runs and lengths before
//!     stop at END, or at the first token that begins at the page's end or behind it
//! ```
//!
//! What makes that quick:
//!
//! 1. A table has a byte for each token, so 64 tokens are looked up by two permutations of 128 bytes, not by 64 loads.
//! 2. The extra bits of sixteen tokens lie in 64 bytes, in 128 at most: a permutation brings four of them to each token.
//! 3. These four also have the offset's bits, unless one of the sixteen tokens has more than 25 (+3 to +4 % on heaps).
#![allow(unsafe_code)] // Loads and stores of whole registers; the streams have room around them.

use core::arch::x86_64::*;

use super::tables::{BITS_MAX, END, LENGTH_MIN, Source, TOKENS};
use crate::PAGE_SIZE;

/// Every token but [`END`] fills [`LENGTH_MIN`] bytes of the page or more: so many tokens do, and one is behind them.
const TOKENS_MAX: usize = PAGE_SIZE.div_ceil(LENGTH_MIN) + 1;

/// Tokens of a register of 32-bit numbers.
const LANES: usize = 16;

/// Tokens that are looked up at once.
const BLOCK: usize = 64;

/// How far [`Sequences::parse`] reads before the tokens' end.
pub(super) const FRONT: usize = TOKENS_MAX.next_multiple_of(BLOCK);

/// How far it reads from the first extra bit on.
pub(super) const BACK: usize = TOKENS_MAX * BITS_MAX / 8 + 2 * BLOCK;

/// In place of an offset: it is that of the last match.
pub(super) const LAST: i32 = 0;

/// In place of an offset: it is that of the match before.
pub(super) const BEFORE: i32 = -1;

/// In place of an offset, behind the last token. It reaches further back than any page does.
const STOP: i32 = i32::MAX;

/// So many bits can be told from four bytes, wherever in the first of them they begin.
const NARROW_BITS: i32 = 32 - 7;

/// A byte for each token.
#[repr(align(64))]
struct Table([u8; 256]);

/// By token: extra bits of the length, and of the run shifted left by 4; the length's base; the run's base, and the source
/// shifted left by 6; extra bits of the offset, and how far they are shifted left, shifted left by 4.
static TABLES: [Table; 4] = {
    let mut tables = [const { Table([0; 256]) }; 4];
    let mut at = 0;
    while at < END as usize {
        let token = &TOKENS[at];
        let offset_shift = if token.offset_mask == 0 { 0 } else { token.offset_mask.trailing_zeros() };
        let (length_bits, run_bits) = (token.length_mask.count_ones(), token.run_mask.count_ones());
        assert!(length_bits < 16 && run_bits < 16 && length_bits + run_bits <= NARROW_BITS as u32);
        assert!(token.length_base < 256 && token.run_base < 64 && token.source < 4);
        tables[0].0[at] = (length_bits | run_bits << 4) as u8;
        tables[1].0[at] = token.length_base as u8;
        tables[2].0[at] = token.run_base as u8 | token.source << 6;
        tables[3].0[at] = (token.offset_mask.count_ones() | offset_shift << 4) as u8;
        at += 1;
    }
    tables
};

/// 63 down to 0: tokens are read backwards.
static REVERSE: Table = {
    let mut bytes = [0; 256];
    let mut at = 0;
    while at < BLOCK {
        bytes[at] = (BLOCK - 1 - at) as u8;
        at += 1;
    }
    Table(bytes)
};

/// A number for each token; groups of [`LANES`] are written whole.
type Column = [u32; TOKENS_MAX.next_multiple_of(LANES)];

/// The tokens of a page, a column for each thing that they say.
#[repr(C, align(64))]
pub(super) struct Sequences {
    pub(super) runs: Column,
    /// The run, modulo 256, in each of four bytes.
    pub(super) shifts: Column,
    pub(super) lengths: Column,
    /// A new offset, from 1 on; or [`LAST`], or [`BEFORE`]. Behind the last token, an offset that no reach allows.
    pub(super) offsets: Column,
    /// The most that the offset may be: where the match begins.
    pub(super) reaches: Column,
}

/// What the tokens come to.
pub(super) struct Sums {
    /// Tokens, END not among them.
    pub(super) tokens: usize,
    /// All runs.
    pub(super) literals: usize,
    /// All runs and lengths: where the page's last match ends. May be more than a page.
    pub(super) bytes: usize,
    /// All extra bits.
    pub(super) bits: usize,
    /// END follows the tokens; otherwise `bytes` is a page or more.
    pub(super) end: bool,
}

impl Sequences {
    pub(super) const fn new() -> Self {
        const NONE: Column = [0; TOKENS_MAX.next_multiple_of(LANES)];
        Self { runs: NONE, shifts: NONE, lengths: NONE, offsets: NONE, reaches: NONE }
    }

    /// Fills the columns with the tokens before `tokens_end`, the last byte first, that END or a full page ends, and whose
    /// extra bits begin at `bits`. `None` if one has the offset 0.
    ///
    /// Afterwards, for each token, `reaches` is the sum of all runs and lengths before and of its own run.
    ///
    /// # Safety
    /// [`FRONT`] bytes before `tokens_end` and [`BACK`] bytes from `bits` on can be read.
    #[target_feature(enable = "avx2,bmi1,lzcnt,popcnt,avx512f,avx512bw,avx512vbmi")]
    #[inline(never)]
    pub(super) unsafe fn parse(&mut self, bits: *const u8, tokens_end: *const u8) -> Option<Sums> {
        let all_to = |value: i32| _mm512_set1_epi32(value);
        // The lowest byte of each lane, in all four.
        let spread = _mm512_set4_epi32(0x0C0C_0C0C, 0x0808_0808, 0x0404_0404, 0);
        let sources_to_offsets = _mm512_setr_epi32(LAST, BEFORE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        // SAFETY: a table has 256 bytes.
        let reverse = unsafe { _mm512_load_si512(REVERSE.0.as_ptr().cast()) };
        let mut block = tokens_end;
        let mut first = 0;
        // Of all groups before: bits, bytes, literals, and whether an offset was 0.
        let (mut bit, mut bytes, mut literals, mut zeros) = (0_usize, all_to(0), all_to(0), 0);
        loop {
            // SAFETY: each token takes LENGTH_MIN bytes of the page or stops the loop, so tokens before TOKENS_MAX do, and
            // FRONT has room for all blocks until then.
            let tokens = unsafe {
                block = block.sub(BLOCK);
                _mm512_permutexvar_epi8(reverse, _mm512_loadu_si512(block.cast()))
            };
            let ends = _mm512_cmpeq_epi8_mask(tokens, _mm512_set1_epi8(END as i8));
            let mut fields = [[0_u8; BLOCK]; 4];
            for (field, table) in fields.iter_mut().zip(&TABLES) {
                // SAFETY: 64 bytes are written to as many.
                unsafe { _mm512_storeu_si512(field.as_mut_ptr().cast(), lookup(table, tokens)) };
            }
            for group in (0..BLOCK).step_by(LANES) {
                // SAFETY: 16 bytes from at most 48 of 64 on.
                let [widths, length_bases, runs_and_sources, offset_fields] = [0, 1, 2, 3].map(|field: usize| unsafe {
                    _mm512_cvtepu8_epi32(_mm_loadu_si128(fields[field].as_ptr().add(group).cast()))
                });
                let length_bits = _mm512_and_si512(widths, all_to(15));
                let run_bits = _mm512_srli_epi32::<4>(widths);
                let offset_bits = _mm512_and_si512(offset_fields, all_to(15));
                let offset_shift = _mm512_srli_epi32::<4>(offset_fields);
                let to_offset = _mm512_add_epi32(length_bits, run_bits);
                let all_bits = _mm512_add_epi32(to_offset, offset_bits);
                let bit_ends = _mm512_add_epi32(prefix_sum(all_bits), all_to((bit & 7) as i32));
                let bit_starts = _mm512_sub_epi32(bit_ends, all_bits);
                // SAFETY: fewer than TOKENS_MAX tokens are before, of BITS_MAX bits each; two blocks fit behind them.
                let near = unsafe { _mm512_loadu_si512(bits.add(bit >> 3).cast()) };
                let (extra, offset_extra);
                if _mm512_cmpgt_epi32_mask(all_bits, all_to(NARROW_BITS)) == 0 {
                    // 7 bits and 16 times 25 lie in 51 bytes.
                    extra = words_at(bit_starts, spread, |bytes| _mm512_permutexvar_epi8(bytes, near));
                    offset_extra = _mm512_srlv_epi32(extra, to_offset);
                } else {
                    // 7 bits and 16 times 36 lie in 73 bytes.
                    // SAFETY: as above.
                    let far = unsafe { _mm512_loadu_si512(bits.add((bit >> 3) + BLOCK).cast()) };
                    let both = |bytes| _mm512_permutex2var_epi8(near, bytes, far);
                    extra = words_at(bit_starts, spread, both);
                    offset_extra = words_at(_mm512_add_epi32(bit_starts, to_offset), spread, both);
                }
                let length = _mm512_add_epi32(low_bits(extra, length_bits), length_bases);
                let run = _mm512_add_epi32(
                    low_bits(_mm512_srlv_epi32(extra, length_bits), run_bits),
                    _mm512_and_si512(runs_and_sources, all_to(63)),
                );
                let offset = _mm512_sllv_epi32(low_bits(offset_extra, offset_bits), offset_shift);
                let source = _mm512_srli_epi32::<6>(runs_and_sources);

                // No sum overflows: a group begins before the page's end, and a token says less than 10000.
                let total = _mm512_add_epi32(run, length);
                let byte_ends = _mm512_add_epi32(prefix_sum(total), bytes);
                let byte_starts = _mm512_sub_epi32(byte_ends, total);
                let group_ends = (ends >> group) as u16;
                let stops = group_ends | _mm512_cmpge_epi32_mask(byte_starts, all_to(PAGE_SIZE as i32));
                let is_new = _mm512_cmpeq_epi32_mask(source, all_to(Source::New as i32));
                let is_zero = _mm512_mask_testn_epi32_mask(is_new, offset, offset);
                let offset = _mm512_add_epi32(offset, _mm512_permutexvar_epi32(source, sources_to_offsets));
                let offset = _mm512_mask_mov_epi32(offset, stops, all_to(STOP));
                for (column, values) in [
                    (&mut self.runs, run),
                    (&mut self.shifts, _mm512_shuffle_epi8(run, spread)),
                    (&mut self.lengths, length),
                    (&mut self.offsets, offset),
                    (&mut self.reaches, _mm512_add_epi32(byte_starts, run)),
                ] {
                    debug_assert!(first + LANES <= column.len());
                    // SAFETY: `first` is a multiple of LANES below TOKENS_MAX, as above.
                    unsafe { _mm512_storeu_si512(column.as_mut_ptr().add(first).cast(), values) };
                }
                if stops != 0 {
                    let lane = stops.trailing_zeros();
                    let before = ((1_u32 << lane) - 1) as u16;
                    if zeros | is_zero & before != 0 {
                        return None;
                    }
                    let here = |of| _mm512_cvtsi512_si32(_mm512_permutexvar_epi32(all_to(lane as i32), of)) as usize;
                    let literals = _mm512_mask_add_epi32(literals, before, literals, run);
                    return Some(Sums {
                        tokens: first + lane as usize,
                        literals: _mm512_reduce_add_epi32(literals) as usize,
                        bytes: here(byte_starts),
                        bits: (bit & !7) + here(bit_starts),
                        end: here(byte_starts) < PAGE_SIZE,
                    });
                }
                let highest = |of| _mm512_permutexvar_epi32(all_to(LANES as i32 - 1), of);
                zeros |= is_zero;
                literals = _mm512_add_epi32(literals, run);
                bytes = highest(byte_ends);
                bit = (bit & !7) + _mm512_cvtsi512_si32(highest(bit_ends)) as usize;
                first += LANES;
            }
        }
    }
}

/// What `table` says of each token.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
#[inline]
fn lookup(table: &Table, tokens: __m512i) -> __m512i {
    // SAFETY: `quarter` is 0 to 3, and a table has 256 bytes.
    let part = |quarter: usize| unsafe { _mm512_load_si512(table.0.as_ptr().add(64 * quarter).cast()) };
    let low = _mm512_permutex2var_epi8(part(0), tokens, part(1));
    let high = _mm512_permutex2var_epi8(part(2), tokens, part(3));
    _mm512_mask_blend_epi8(_mm512_movepi8_mask(tokens), low, high)
}

/// The sum of each lane and all before it.
#[target_feature(enable = "avx512f")]
#[inline]
fn prefix_sum(of: __m512i) -> __m512i {
    let zero = _mm512_setzero_si512();
    let of = _mm512_add_epi32(of, _mm512_alignr_epi32::<15>(of, zero));
    let of = _mm512_add_epi32(of, _mm512_alignr_epi32::<14>(of, zero));
    let of = _mm512_add_epi32(of, _mm512_alignr_epi32::<12>(of, zero));
    _mm512_add_epi32(of, _mm512_alignr_epi32::<8>(of, zero))
}

/// The lowest `count` bits of each lane, at most 31.
#[target_feature(enable = "avx512f")]
#[inline]
fn low_bits(of: __m512i, count: __m512i) -> __m512i {
    _mm512_andnot_si512(_mm512_sllv_epi32(_mm512_set1_epi32(-1), count), of)
}

/// [`NARROW_BITS`] or more from each of `bit` on. `fetch` takes the places of bytes and gives the bytes.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn words_at(bit: __m512i, spread: __m512i, fetch: impl Fn(__m512i) -> __m512i) -> __m512i {
    let first = _mm512_shuffle_epi8(_mm512_srli_epi32::<3>(bit), spread);
    let words = fetch(_mm512_add_epi32(first, _mm512_set1_epi32(0x0302_0100)));
    _mm512_srlv_epi32(words, _mm512_and_si512(bit, _mm512_set1_epi32(7)))
}

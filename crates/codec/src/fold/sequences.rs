//! Reads all of a page's tokens for [`window`](super::window), sixteen at a time, by AVX-512.
//!
//! ```text
//! for each sixteen tokens:
//!     widths and bases of length, run and offset := by the token's number
//!     start of each token's extra bits := the sum of all previous widths
//!     length, run, offset := their bases plus the bits there
//!     start of each token's bytes := the sum of all previous runs and lengths
//!     a repeated offset := that of the token found by following links, all tokens at once
//!     stop at END, or at the first token that begins at or after the page's end
//! ```
//!
//! Speed:
//!
//! 1. A table has a byte for each token, so two permutations of 128 bytes look 64 tokens up,
//!    instead of 64 loads.
//! 2. The extra bits of sixteen tokens are in 64 bytes, at most 128: a permutation brings four of
//!    them to each token.
//! 3. These four also contain the offset's bits, unless one of the sixteen tokens has more than 25
//!    bits (+3 to +4 % on heaps).
#![allow(unsafe_code)] // Whole-register loads and stores; the streams have room around them.

use core::arch::x86_64::*;

use super::{
    tables::{BITS_MAX, Bytes, END, LENGTH_MIN, Source},
    window::{FAR_ROW, ROW, WINDOW},
};
use crate::PAGE_SIZE;

/// Maximum number of tokens, plus one entry after them: every token but [`END`] fills at least
/// [`LENGTH_MIN`] bytes of the page.
const TOKENS_MAX: usize = PAGE_SIZE.div_ceil(LENGTH_MIN) + 1;

/// Tokens in a register of 32-bit numbers.
const LANES: usize = 16;

/// Tokens looked up at once.
const BLOCK: usize = 64;

/// How many bytes before the tokens' end [`Sequences::parse`] may read.
pub(super) const FRONT: usize = TOKENS_MAX.next_multiple_of(BLOCK);

/// How many bytes from the first extra bit it may read.
pub(super) const BACK: usize = TOKENS_MAX * BITS_MAX / 8 + 2 * BLOCK;

/// Replaces the total after the last token: greater than any token's.
const STOP: i32 = i32::MAX;

/// Number of bits that four bytes always contain, wherever in the first byte they begin.
const NARROW_BITS: i32 = 32 - 7;

/// 63 down to 0: tokens are read backwards.
static REVERSE: Bytes = {
    let mut bytes = [0; 256];
    let mut at = 0;
    while at < BLOCK {
        bytes[at] = (BLOCK - 1 - at) as u8;
        at += 1;
    }
    Bytes(bytes)
};

/// A number for each token; groups of [`LANES`] are written whole.
type Column = [u32; COLUMN];

const COLUMN: usize = TOKENS_MAX.next_multiple_of(LANES);

/// The tokens of a page: a column for each property that [`window`](super::window) needs.
#[repr(C, align(64))]
pub(super) struct Sequences {
    /// Run plus length. After the last token, [`STOP`].
    pub(super) totals: Column,
    /// Sum of all previous runs. Also set after the last token.
    pub(super) literals: Column,
    /// The run, modulo 256, in each of four bytes.
    pub(super) run_bytes: Column,
    /// Run and length, modulo 256, in each of four bytes.
    pub(super) total_bytes: Column,
    /// [`ROW`] times the offset, or times [`FAR_ROW`] if the match is far; plus the length.
    pub(super) orders: Column,
    /// For a far match, the start in the page of the [`WINDOW`] bytes that end with its source;
    /// signed. For others, 0.
    pub(super) sources: Column,
}

/// The totals over all tokens.
pub(super) struct Sums {
    /// Number of tokens, without END.
    pub(super) tokens: usize,
    /// Sum of all runs.
    pub(super) literals: usize,
    /// Sum of all runs and lengths: the end of the page's last match. May exceed a page.
    pub(super) bytes: usize,
    /// Number of extra bits.
    pub(super) bits: usize,
    /// Whether a match begins before the page.
    pub(super) beyond: bool,
    /// Whether END follows the tokens; otherwise `bytes` is at least a page.
    pub(super) end: bool,
}

impl Sequences {
    pub(super) const fn new() -> Self {
        const NONE: Column = [0; COLUMN];
        Self { totals: NONE, literals: NONE, run_bytes: NONE, total_bytes: NONE, orders: NONE, sources: NONE }
    }

    /// Fills the columns with the tokens before `tokens_end`, last byte first, up to END or a full
    /// page. Their extra bits begin at `bits`. Returns `None` if an offset is 0 or reaches more
    /// than `reach` bytes before the page.
    ///
    /// # Safety
    /// [`FRONT`] bytes before `tokens_end` and [`BACK`] bytes from `bits` can be read.
    #[target_feature(enable = "avx2,bmi1,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512vbmi")]
    #[inline(never)]
    pub(super) unsafe fn parse(
        &mut self,
        fields: &[Bytes; 4],
        reach: usize,
        bits: *const u8,
        tokens_end: *const u8,
    ) -> Option<Sums> {
        let all_to = |value: i32| _mm512_set1_epi32(value);
        // Copies the lowest byte of each lane to all four.
        let spread = _mm512_set4_epi32(0x0C0C_0C0C, 0x0808_0808, 0x0404_0404, 0);
        // SAFETY: a table has 256 bytes.
        let reverse = unsafe { _mm512_load_si512(REVERSE.0.as_ptr().cast()) };
        let mut block = tokens_end;
        let mut first = 0;
        // Over all previous groups: bits, bytes and literals, and whether an offset was wrong or
        // reached before the page.
        let (mut bit, mut sums, mut wrong, mut beyond) = (0_usize, all_to(0), 0, 0);
        let mut known = Known(all_to(1));
        loop {
            // SAFETY: each token fills LENGTH_MIN bytes of the page or stops the loop, so the loop
            // stops before TOKENS_MAX tokens, and FRONT has room for all blocks until then.
            let tokens = unsafe {
                block = block.sub(BLOCK);
                _mm512_permutexvar_epi8(reverse, _mm512_loadu_si512(block.cast()))
            };
            let ends = _mm512_cmpeq_epi8_mask(tokens, _mm512_set1_epi8(END as i8));
            let mut found = [[0_u8; BLOCK]; 4];
            for (field, table) in found.iter_mut().zip(fields) {
                // SAFETY: 64 bytes are written to 64 bytes.
                unsafe { _mm512_storeu_si512(field.as_mut_ptr().cast(), lookup(table, tokens)) };
            }
            for group in (0..BLOCK).step_by(LANES) {
                // SAFETY: reads 16 bytes from index 48 or below, of 64.
                let [widths, length_bases, runs_and_sources, offset_fields] = [0, 1, 2, 3].map(|field: usize| unsafe {
                    _mm512_cvtepu8_epi32(_mm_loadu_si128(found[field].as_ptr().add(group).cast()))
                });
                let length_bits = _mm512_and_si512(widths, all_to(15));
                let run_bits = _mm512_srli_epi32::<4>(widths);
                let offset_bits = _mm512_and_si512(offset_fields, all_to(31));
                let offset_shift = _mm512_srli_epi32::<5>(offset_fields);
                let to_offset = _mm512_add_epi32(length_bits, run_bits);
                let all_bits = _mm512_add_epi32(to_offset, offset_bits);
                let bit_ends = _mm512_add_epi32(prefix_sum(all_bits), all_to((bit & 7) as i32));
                let bit_starts = _mm512_sub_epi32(bit_ends, all_bits);
                // SAFETY: fewer than TOKENS_MAX tokens precede, of BITS_MAX bits each; two blocks
                // fit after them.
                let near = unsafe { _mm512_loadu_si512(bits.add(bit >> 3).cast()) };
                let (extra, offset_extra);
                if _mm512_cmpgt_epi32_mask(all_bits, all_to(NARROW_BITS)) == 0 {
                    // 7 bits plus 16 times 25 are in 51 bytes.
                    extra = words_at(bit_starts, spread, |bytes| _mm512_permutexvar_epi8(bytes, near));
                    offset_extra = _mm512_srlv_epi32(extra, to_offset);
                } else {
                    // 7 bits plus 16 times 40 are in 81 bytes.
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

                // Bytes in the lower halves, literals in the upper. Neither overflows up to the
                // lane that stops: it begins less than a token after the page's end, and a token
                // covers less than 10000.
                let total = _mm512_add_epi32(run, length);
                let both = _mm512_or_si512(_mm512_slli_epi32::<16>(run), total);
                let both_ends = _mm512_add_epi32(prefix_sum(both), sums);
                let byte_ends = _mm512_and_si512(both_ends, all_to(0xFFFF));
                let byte_starts = _mm512_sub_epi32(byte_ends, total);
                let literal_starts = _mm512_sub_epi32(_mm512_srli_epi32::<16>(both_ends), run);
                let group_ends = (ends >> group) as u16;
                let stops = group_ends | _mm512_cmpge_epi32_mask(byte_starts, all_to(PAGE_SIZE as i32));
                let match_starts = _mm512_add_epi32(byte_starts, run);

                let is_new = _mm512_cmpeq_epi32_mask(source, all_to(Source::New as i32));
                let is_zero = _mm512_mask_testn_epi32_mask(is_new, offset, offset);
                let offset = known.resolve(is_new, source, offset);
                let is_beyond = _mm512_cmpgt_epi32_mask(offset, match_starts);
                let is_wrong =
                    is_zero | _mm512_cmpgt_epi32_mask(_mm512_sub_epi32(offset, all_to(reach as i32)), match_starts);

                let is_far = _mm512_cmpgt_epi32_mask(offset, all_to(WINDOW as i32));
                let row = _mm512_min_epi32(offset, all_to(FAR_ROW as i32));
                let order = _mm512_add_epi32(_mm512_slli_epi32::<{ ROW.ilog2() }>(row), length);
                let source_ends = _mm512_sub_epi32(byte_ends, offset);
                let sources = _mm512_maskz_sub_epi32(is_far, source_ends, all_to(WINDOW as i32));
                for (column, values) in [
                    (&mut self.totals, _mm512_mask_mov_epi32(total, stops, all_to(STOP))),
                    (&mut self.literals, literal_starts),
                    (&mut self.run_bytes, _mm512_shuffle_epi8(run, spread)),
                    (&mut self.total_bytes, _mm512_shuffle_epi8(total, spread)),
                    (&mut self.orders, order),
                    (&mut self.sources, sources),
                ] {
                    debug_assert!(first + LANES <= column.len());
                    // SAFETY: `first` is a multiple of LANES below TOKENS_MAX, as above.
                    unsafe { _mm512_storeu_si512(column.as_mut_ptr().add(first).cast(), values) };
                }
                if stops != 0 {
                    let lane = stops.trailing_zeros();
                    let before = ((1_u32 << lane) - 1) as u16;
                    if wrong | is_wrong & before != 0 {
                        return None;
                    }
                    let here = |of| _mm512_cvtsi512_si32(_mm512_permutexvar_epi32(all_to(lane as i32), of)) as usize;
                    return Some(Sums {
                        tokens: first + lane as usize,
                        literals: here(literal_starts),
                        bytes: here(byte_starts),
                        bits: (bit & !7) + here(bit_starts),
                        beyond: beyond | is_beyond & before != 0,
                        end: here(byte_starts) < PAGE_SIZE,
                    });
                }
                let highest = |of| _mm512_permutexvar_epi32(all_to(LANES as i32 - 1), of);
                wrong |= is_wrong;
                beyond |= is_beyond;
                sums = highest(both_ends);
                bit = (bit & !7) + _mm512_cvtsi512_si32(highest(bit_ends)) as usize;
                first += LANES;
            }
        }
    }
}

/// The format's *before* and *last*, in the last two lanes.
struct Known(__m512i);

impl Known {
    /// Returns the offsets of sixteen tokens; those of new offsets are in `offset`.
    ///
    /// Each lane links to one that has its offset: a number below [`LANES`] is a lane of `self`,
    /// others are lanes of `offset`. A lane that uses *last* links to the nearest previous lane
    /// that does not itself use *last*. A lane that uses *before* links to that lane's predecessor
    /// of the same kind.
    #[target_feature(enable = "avx512f,avx512cd")]
    #[inline]
    fn resolve(&mut self, is_new: __mmask16, source: __m512i, offset: __m512i) -> __m512i {
        const LAST_KNOWN: i32 = LANES as i32 - 1;
        let all_to = |value: i32| _mm512_set1_epi32(value);
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let lanes_before = _mm512_sub_epi32(_mm512_sllv_epi32(all_to(1), lanes), all_to(1));
        let is_before = _mm512_cmpeq_epi32_mask(source, all_to(Source::Before as i32));
        let changes = is_new | is_before;
        // The highest bit of the previous ones, or LAST_KNOWN if there are none.
        let changes_before = _mm512_and_si512(all_to(i32::from(changes)), lanes_before);
        let last = _mm512_sub_epi32(all_to(LAST_KNOWN + 32), _mm512_lzcnt_epi32(changes_before));
        let before_each = _mm512_sub_epi32(lanes, all_to(1));
        let before = _mm512_permutex2var_epi32(before_each, last, last);
        let from = _mm512_mask_add_epi32(last, is_new, lanes, all_to(LANES as i32));
        let mut from = _mm512_mask_mov_epi32(from, is_before, before);
        // A chain has at most nine links.
        for _ in 0..4 {
            from = _mm512_permutex2var_epi32(lanes, from, from);
        }
        let offset = _mm512_permutex2var_epi32(self.0, from, offset);
        let last_of_all = all_to(LAST_KNOWN + 32 - u32::from(changes).leading_zeros() as i32);
        let before_of_all = _mm512_permutex2var_epi32(before_each, last_of_all, last);
        let known = _mm512_mask_mov_epi32(last_of_all, 1 << (LAST_KNOWN - 1), before_of_all);
        self.0 = _mm512_permutex2var_epi32(self.0, known, offset);
        offset
    }
}

/// Returns the entry of `table` for each token.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
#[inline]
fn lookup(table: &Bytes, tokens: __m512i) -> __m512i {
    // SAFETY: `quarter` is 0 to 3, and a table has 256 bytes.
    let part = |quarter: usize| unsafe { _mm512_load_si512(table.0.as_ptr().add(64 * quarter).cast()) };
    let low = _mm512_permutex2var_epi8(part(0), tokens, part(1));
    let high = _mm512_permutex2var_epi8(part(2), tokens, part(3));
    _mm512_mask_blend_epi8(_mm512_movepi8_mask(tokens), low, high)
}

/// Returns the sum of each lane and all lanes before it.
#[target_feature(enable = "avx512f")]
#[inline]
fn prefix_sum(of: __m512i) -> __m512i {
    let zero = _mm512_setzero_si512();
    let of = _mm512_add_epi32(of, _mm512_alignr_epi32::<15>(of, zero));
    let of = _mm512_add_epi32(of, _mm512_alignr_epi32::<14>(of, zero));
    let of = _mm512_add_epi32(of, _mm512_alignr_epi32::<12>(of, zero));
    _mm512_add_epi32(of, _mm512_alignr_epi32::<8>(of, zero))
}

/// Returns the lowest `count` bits of each lane, at most 31.
#[target_feature(enable = "avx512f")]
#[inline]
fn low_bits(of: __m512i, count: __m512i) -> __m512i {
    _mm512_andnot_si512(_mm512_sllv_epi32(_mm512_set1_epi32(-1), count), of)
}

/// Returns at least [`NARROW_BITS`] bits from each position of `bit`. `fetch` maps places of bytes
/// to the bytes.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn words_at(bit: __m512i, spread: __m512i, fetch: impl Fn(__m512i) -> __m512i) -> __m512i {
    let first = _mm512_shuffle_epi8(_mm512_srli_epi32::<3>(bit), spread);
    let words = fetch(_mm512_add_epi32(first, _mm512_set1_epi32(0x0302_0100)));
    _mm512_srlv_epi32(words, _mm512_and_si512(bit, _mm512_set1_epi32(7)))
}

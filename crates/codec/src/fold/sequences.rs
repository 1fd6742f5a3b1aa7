//! Reads all of a page's tokens for [`window`](super::window), sixteen at a time, by AVX-512.
//!
//! ```text
//! for each sixteen tokens:
//!     widths and bases of length, run and offset := by the token's number
//!     start of each token's extra bits := the sum of all previous widths
//!     length, run, offset := their bases plus the bits there
//!     start of each token's bytes := the sum of all previous runs and lengths
//!     a repeated offset := that of the token found by following links, all tokens in parallel
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
//! 4. The steps for a group of sixteen depend on each other, so two groups take turns, and the
//!    number of bits of each group is known from the look-up (+4 % on Zen 4; four groups: +2 %).
//! 5. Copying a token is limited by its loads, so numbers share columns (+3 to +4 % on Zen 4).
#![allow(unsafe_code)] // Whole-register loads and stores; the streams have room around them.

use core::arch::x86_64::*;

use super::tables::{BITS_MAX, Bytes, END, LENGTH_MIN, Source};
use crate::PAGE_SIZE;

/// Bytes in the register of [`window`](super::window).
pub(super) const WINDOW: usize = 64;

/// Bytes of a row of its orders.
pub(super) const ROW: usize = 2 * WINDOW;

/// The row for a match at any larger offset.
pub(super) const FAR_ROW: usize = WINDOW + 1;

/// Maximum number of tokens, plus one entry after them: every token but [`END`] fills at least
/// [`LENGTH_MIN`] bytes of the page.
const TOKENS_MAX: usize = PAGE_SIZE.div_ceil(LENGTH_MIN) + 1;

/// Tokens in a register of 32-bit numbers.
const LANES: usize = 16;

/// Tokens looked up together.
const BLOCK: usize = 64;

/// How many bytes before the tokens' end [`Sequences::parse`] may read.
pub(super) const FRONT: usize = TOKENS_MAX.next_multiple_of(BLOCK);

/// How many bytes from the first extra bit it may read.
pub(super) const BACK: usize = FRONT * BITS_MAX / 8 + 2 * BLOCK;

/// Replaces the total after the last token: greater than any token's.
const STOP: i32 = 0xFFFF;

/// Bits for the place of an order: a token covers less than 10000 bytes.
const SOURCE_SHIFT: u32 = 15;

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
    /// Run plus length, and [`STOP`] after the last token, in the lower half; the sum of all
    /// previous runs in the upper one, also after the last token.
    totals: Column,
    /// The run, modulo 256, in each of four bytes.
    pub(super) run_bytes: Column,
    /// Run and length, modulo 256, in each of four bytes.
    pub(super) total_bytes: Column,
    /// In the lowest [`SOURCE_SHIFT`] bits, [`ROW`] times the offset, or times [`FAR_ROW`] if the
    /// match is far; plus the length. Above, signed, for a far match the start in the page of the
    /// [`WINDOW`] bytes that end with its source; for others 0.
    orders: Column,
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
    pub(super) in_dict: bool,
    /// Whether END follows the tokens; otherwise `bytes` is at least a page.
    pub(super) end: bool,
}

impl Sequences {
    pub(super) const fn new() -> Self {
        const NONE: Column = [0; COLUMN];
        Self { totals: NONE, run_bytes: NONE, total_bytes: NONE, orders: NONE }
    }

    /// Returns run plus length of a token, or after the last one [`STOP`]; and the sum of all
    /// previous runs.
    ///
    /// # Safety
    /// `at` is at most the number of tokens.
    #[inline(always)]
    pub(super) unsafe fn total_and_literals(&self, at: usize) -> (usize, usize) {
        // SAFETY: upheld by the caller.
        let both = unsafe { *self.totals.get_unchecked(at) } as usize;
        (both & 0xFFFF, both >> 16)
    }

    /// Returns [`ROW`] times the offset, or times [`FAR_ROW`] if the match is far, plus the length;
    /// and for a far match the start in the page of the [`WINDOW`] bytes that end with its source.
    ///
    /// # Safety
    /// `at` is below the number of tokens.
    #[inline(always)]
    pub(super) unsafe fn order_and_source(&self, at: usize) -> (usize, isize) {
        // SAFETY: upheld by the caller.
        let both = unsafe { *self.orders.get_unchecked(at) };
        ((both & ((1 << SOURCE_SHIFT) - 1)) as usize, (both as i32 >> SOURCE_SHIFT) as isize)
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
        let mut at = tokens_end;
        let mut first = 0;
        // Over all previous groups: bits, bytes and literals, and whether an offset was wrong or
        // reached before the page.
        let (mut bit, mut sums, mut wrong, mut in_dict) = (0_usize, all_to(0), 0, 0);
        let mut known = Known(all_to(1));
        loop {
            // SAFETY: each token fills LENGTH_MIN bytes of the page or stops the loop, so the loop
            // stops before TOKENS_MAX tokens, and FRONT has room for all blocks until then.
            let block = unsafe {
                at = at.sub(BLOCK);
                Block::read(fields, at)
            };
            for pair in (0..BLOCK).step_by(2 * LANES) {
                // Two groups take turns, because each of these steps waits for the one before.
                let widths = [Widths::of(&block, pair), Widths::of(&block, pair + LANES)];
                let bits_here = [bit, bit + block.bits[pair / LANES]];
                bit = bits_here[1] + block.bits[pair / LANES + 1];
                // SAFETY: fewer than FRONT tokens precede, of BITS_MAX bits each; two blocks fit
                // after them.
                let numbers = unsafe {
                    [
                        widths[0].numbers(&block, pair, bits, bits_here[0]),
                        widths[1].numbers(&block, pair + LANES, bits, bits_here[1]),
                    ]
                };
                let both_ends = [prefix_sum(numbers[0].both), prefix_sum(numbers[1].both)];
                for half in 0..2 {
                    let Numbers { length, run, total, both, offset, source, bit_starts } = numbers[half];
                    let both_ends = _mm512_add_epi32(both_ends[half], sums);
                    let both_starts = _mm512_sub_epi32(both_ends, both);
                    let byte_starts = _mm512_and_si512(both_starts, all_to(0xFFFF));
                    let group_ends = (block.ends >> (pair + half * LANES)) as u16;
                    let stops = group_ends | _mm512_cmpge_epi32_mask(byte_starts, all_to(PAGE_SIZE as i32));
                    let match_starts = _mm512_add_epi32(byte_starts, run);

                    let is_new = _mm512_cmpeq_epi32_mask(source, all_to(Source::New as i32));
                    let is_zero = _mm512_mask_testn_epi32_mask(is_new, offset, offset);
                    let offset = known.resolve(is_new, source, offset);
                    let is_in_dict = _mm512_cmpgt_epi32_mask(offset, match_starts);
                    let is_wrong =
                        is_zero | _mm512_cmpgt_epi32_mask(_mm512_sub_epi32(offset, all_to(reach as i32)), match_starts);

                    let is_far = _mm512_cmpgt_epi32_mask(offset, all_to(WINDOW as i32));
                    let row = _mm512_min_epi32(offset, all_to(FAR_ROW as i32));
                    let order = _mm512_add_epi32(_mm512_slli_epi32::<{ ROW.ilog2() }>(row), length);
                    let to_source = _mm512_sub_epi32(total, all_to(WINDOW as i32));
                    let sources = _mm512_sub_epi32(_mm512_add_epi32(byte_starts, to_source), offset);
                    let sources = _mm512_maskz_slli_epi32::<SOURCE_SHIFT>(is_far, sources);
                    let total_or_stop = _mm512_mask_mov_epi32(total, stops, all_to(STOP));
                    for (column, values) in [
                        (&mut self.totals, blend_low(both_starts, total_or_stop)),
                        (&mut self.run_bytes, spread(run)),
                        (&mut self.total_bytes, spread(total)),
                        (&mut self.orders, _mm512_or_si512(sources, order)),
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
                        let here =
                            |of| _mm512_cvtsi512_si32(_mm512_permutexvar_epi32(all_to(lane as i32), of)) as usize;
                        return Some(Sums {
                            tokens: first + lane as usize,
                            literals: here(both_starts) >> 16,
                            bytes: here(byte_starts),
                            bits: (bits_here[half] & !7) + here(bit_starts),
                            in_dict: in_dict | is_in_dict & before != 0,
                            end: here(byte_starts) < PAGE_SIZE,
                        });
                    }
                    wrong |= is_wrong;
                    in_dict |= is_in_dict;
                    sums = _mm512_permutexvar_epi32(all_to(LANES as i32 - 1), both_ends);
                    first += LANES;
                }
            }
        }
    }
}

/// The properties of 64 tokens, looked up in the tables.
struct Block {
    /// [`Tokens::fields`](super::tables::Tokens::fields) of each token.
    fields: [[u8; BLOCK]; 4],
    /// Number of extra bits of each group.
    bits: [usize; BLOCK / LANES],
    /// A bit for each token: 1 if it is END.
    ends: u64,
}

impl Block {
    /// Looks up the tokens at `tokens`, the last first.
    ///
    /// # Safety
    /// They can be read.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    #[inline]
    unsafe fn read(tables: &[Bytes; 4], tokens: *const u8) -> Self {
        // SAFETY: upheld by the caller; a table has 256 bytes.
        let tokens = unsafe {
            let reverse = _mm512_load_si512(REVERSE.0.as_ptr().cast());
            _mm512_permutexvar_epi8(reverse, _mm512_loadu_si512(tokens.cast()))
        };
        let found = tables.each_ref().map(|table| lookup(table, tokens));
        let [widths, _, _, offset_fields] = found;
        let low = |of, bits| _mm512_and_si512(of, _mm512_set1_epi8(bits));
        let bits = _mm512_add_epi8(low(widths, 15), low(_mm512_srli_epi16::<4>(widths), 15));
        let bits = _mm512_add_epi8(bits, low(offset_fields, 31));
        let bits: [u64; BLOCK / 8] = all_of(_mm512_sad_epu8(bits, _mm512_setzero_si512()));
        Self {
            fields: found.map(|field| all_of(field)),
            bits: std::array::from_fn(|group| (bits[2 * group] + bits[2 * group + 1]) as usize),
            ends: _mm512_cmpeq_epi8_mask(tokens, _mm512_set1_epi8(END as i8)),
        }
    }

    /// Returns a field of the sixteen tokens from `group` on.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn field(&self, field: usize, group: usize) -> __m512i {
        debug_assert!(group + LANES <= BLOCK);
        // SAFETY: `group` is 48 or below; the field has 64 bytes.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(self.fields[field].as_ptr().add(group).cast())) }
    }
}

/// Returns a register's bytes or numbers.
#[target_feature(enable = "avx512f")]
#[inline]
fn all_of<T: Copy + Default, const N: usize>(register: __m512i) -> [T; N] {
    const { assert!(size_of::<[T; N]>() == BLOCK) };
    let mut all = [T::default(); N];
    // SAFETY: 64 bytes are written to 64 bytes.
    unsafe { _mm512_storeu_si512(all.as_mut_ptr().cast(), register) };
    all
}

/// How many extra bits sixteen tokens have.
struct Widths {
    length: __m512i,
    run: __m512i,
    offset: __m512i,
    offset_shift: __m512i,
    /// From the token's first bit to its offset's.
    to_offset: __m512i,
    all: __m512i,
    /// From the group's first bit to the token's.
    starts: __m512i,
}

/// The values of sixteen tokens and their extra bits.
#[derive(Clone, Copy)]
struct Numbers {
    length: __m512i,
    run: __m512i,
    /// Run plus length.
    total: __m512i,
    /// The total in the lower halves, the run in the upper. In sums, neither overflows up to the
    /// lane that stops: it begins less than a token after the page's end, and a token covers less
    /// than 10000.
    both: __m512i,
    /// Of tokens with new offsets.
    offset: __m512i,
    source: __m512i,
    /// Where the token's extra bits begin, from the byte in which the group's first bit is.
    bit_starts: __m512i,
}

impl Widths {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn of(block: &Block, group: usize) -> Self {
        let widths = block.field(0, group);
        let offset_fields = block.field(3, group);
        let length = _mm512_and_si512(widths, _mm512_set1_epi32(15));
        let run = _mm512_srli_epi32::<4>(widths);
        let offset = _mm512_and_si512(offset_fields, _mm512_set1_epi32(31));
        let offset_shift = _mm512_srli_epi32::<5>(offset_fields);
        let to_offset = _mm512_add_epi32(length, run);
        let all = _mm512_add_epi32(to_offset, offset);
        let starts = _mm512_sub_epi32(prefix_sum(all), all);
        Self { length, run, offset, offset_shift, to_offset, all, starts }
    }

    /// Reads the extra bits from `bit` on.
    ///
    /// # Safety
    /// Two blocks can be read from the byte of `bits` with this bit.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    #[inline]
    unsafe fn numbers(&self, block: &Block, group: usize, bits: *const u8, bit: usize) -> Numbers {
        let all_to = |value: i32| _mm512_set1_epi32(value);
        let bit_starts = _mm512_add_epi32(self.starts, all_to((bit & 7) as i32));
        // SAFETY: upheld by the caller.
        let near = unsafe { _mm512_loadu_si512(bits.add(bit >> 3).cast()) };
        let (extra, offset_extra);
        if _mm512_cmpgt_epi32_mask(self.all, all_to(NARROW_BITS)) == 0 {
            // 7 bits plus 16 times 25 are in 51 bytes.
            extra = words_at(bit_starts, |bytes| _mm512_permutexvar_epi8(bytes, near));
            offset_extra = _mm512_srlv_epi32(extra, self.to_offset);
        } else {
            // 7 bits plus 16 times 40 are in 81 bytes.
            // SAFETY: upheld by the caller.
            let far = unsafe { _mm512_loadu_si512(bits.add((bit >> 3) + BLOCK).cast()) };
            let both = |bytes| _mm512_permutex2var_epi8(near, bytes, far);
            extra = words_at(bit_starts, both);
            offset_extra = words_at(_mm512_add_epi32(bit_starts, self.to_offset), both);
        }
        let runs_and_sources = block.field(2, group);
        let length = _mm512_add_epi32(low_bits(extra, self.length), block.field(1, group));
        let run = _mm512_add_epi32(
            low_bits(_mm512_srlv_epi32(extra, self.length), self.run),
            _mm512_and_si512(runs_and_sources, all_to(63)),
        );
        let offset = _mm512_sllv_epi32(low_bits(offset_extra, self.offset), self.offset_shift);
        let source = _mm512_srli_epi32::<6>(runs_and_sources);
        let total = _mm512_add_epi32(run, length);
        let both = _mm512_or_si512(_mm512_slli_epi32::<16>(run), total);
        Numbers { length, run, total, both, offset, source, bit_starts }
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

/// Returns the upper halves of `upper` and the lower halves of `lower`, whose upper ones are 0.
#[target_feature(enable = "avx512f")]
#[inline]
fn blend_low(upper: __m512i, lower: __m512i) -> __m512i {
    _mm512_or_si512(_mm512_andnot_si512(_mm512_set1_epi32(0xFFFF), upper), lower)
}

/// Returns the lowest `count` bits of each lane, at most 31.
#[target_feature(enable = "avx512f")]
#[inline]
fn low_bits(of: __m512i, count: __m512i) -> __m512i {
    _mm512_andnot_si512(_mm512_sllv_epi32(_mm512_set1_epi32(-1), count), of)
}

/// Copies the lowest byte of each lane to all four.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn spread(of: __m512i) -> __m512i {
    _mm512_shuffle_epi8(of, _mm512_set4_epi32(0x0C0C_0C0C, 0x0808_0808, 0x0404_0404, 0))
}

/// Returns at least [`NARROW_BITS`] bits from each position of `bit`. `fetch` maps places of bytes
/// to the bytes.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn words_at(bit: __m512i, fetch: impl Fn(__m512i) -> __m512i) -> __m512i {
    let first = spread(_mm512_srli_epi32::<3>(bit));
    let words = fetch(_mm512_add_epi32(first, _mm512_set1_epi32(0x0302_0100)));
    _mm512_srlv_epi32(words, _mm512_and_si512(bit, _mm512_set1_epi32(7)))
}

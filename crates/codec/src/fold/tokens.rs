//! Converts sequences to tokens and extra bits.
//!
//! ```text
//! for each sequence:
//!     class := by the source and the size of its offset
//!     token := the run's part in the class, and the length's
//!     extra bits := the length's, the run's, the offset's
//! ```
//!
//! AVX2 processes eight sequences at a time, AVX-512 sixteen. Their bits are joined to words of
//! four sequences, or of two or one if four have too many.
#![allow(unsafe_code)] // Whole-register loads and stores; the columns have room after the last sequence.

use core::hint::select_unpredictable;

use super::{
    compare,
    tables::{
        BEFORE, BITS_MAX, Codes, DICT, END, FAR, LAST, LENGTH_CODES, LENGTH_MIN, NEAR, NEAR_END, RUN_CODES, RUN_MAX,
        WORDS,
    },
};
use crate::{PAGE_SIZE, mem};

/// Maximum number of sequences: each is a match of at least [`LENGTH_MIN`] bytes.
const SEQUENCES_MAX: usize = PAGE_SIZE / LENGTH_MIN + 1;

/// Number of sequences converted together.
const LANES: usize = 16;

/// Room for the extra bits of all sequences and for the width of a store.
pub(super) const EXTRA_ROOM: usize = SEQUENCES_MAX * BITS_MAX / 8 + 8;

/// Room for the tokens of all sequences, END, and the width of a store.
pub(super) const TOKENS_ROOM: usize = SEQUENCES_MAX + 1 + LANES;

/// One number per sequence.
type Column = [u16; SEQUENCES_MAX + 2 * LANES];

/// The sequences of a page.
pub(super) struct Columns {
    pub(super) runs: Column,
    pub(super) lengths: Column,
    /// From index 1; index 0 is the offset before the first sequence.
    pub(super) offsets: Column,
    /// The offset before the last one.
    pub(super) befores: Column,
}

impl Columns {
    pub(super) const NEW: Self = {
        const NONE: Column = [0; SEQUENCES_MAX + 2 * LANES];
        Self { runs: NONE, lengths: NONE, offsets: NONE, befores: NONE }
    };

    /// Puts a sequence.
    ///
    /// # Safety
    /// `at` is below SEQUENCES_MAX.
    #[inline(always)]
    pub(super) unsafe fn put(&mut self, at: usize, run: usize, length: usize, offset: usize, before: usize) {
        // SAFETY: the columns have more places, as the caller says.
        unsafe {
            *self.runs.get_unchecked_mut(at) = run as u16;
            *self.lengths.get_unchecked_mut(at) = length as u16;
            *self.offsets.get_unchecked_mut(at + 1) = offset as u16;
            *self.befores.get_unchecked_mut(at) = before as u16;
        }
    }
}

/// The result of [`Emit::emit`].
pub(super) struct Emitted {
    /// Number of tokens, including END if it was requested.
    pub(super) tokens: usize,
    /// Number of bytes of extra bits.
    pub(super) extra: usize,
}

/// Converts sequences to tokens and extra bits.
pub(super) trait Emit {
    /// Converts the first `count` sequences, and adds END if `end`. The tokens end at the end of
    /// `tokens`.
    ///
    /// # Safety
    /// The sequences are valid, and the CPU has the features of this build.
    unsafe fn emit(
        columns: &Columns,
        codes: &Codes,
        count: usize,
        end: bool,
        tokens: &mut [u8; TOKENS_ROOM],
        extra: &mut [u8; EXTRA_ROOM],
    ) -> Emitted;
}

/// Maximum number of bits that [`Bits::put`] accepts.
#[cfg(target_arch = "x86_64")] // The portable build puts one sequence's bits at a time, which are fewer.
const BITS_AT_ONCE: i64 = 56;

/// The extra bits that are not written yet.
struct Bits {
    to: *mut u8,
    word: u64,
    /// Below 8.
    count: usize,
}

impl Bits {
    /// Writes `count` bits, at most 56.
    ///
    /// # Safety
    /// 8 bytes can be written.
    #[inline(always)]
    unsafe fn put(&mut self, bits: u64, count: usize) {
        self.word |= bits << (self.count & 63);
        self.count += count;
        // SAFETY: the caller lets 8 bytes be written; at most 63 bits are, so `to` moves at most to
        // their end.
        unsafe {
            mem::store64(self.to, self.word);
            self.to = self.to.add(self.count >> 3);
        }
        self.word >>= self.count & 56;
        self.count &= 7;
    }
}

/// Returns the class of a sequence.
#[inline(always)]
pub(super) fn class_of(run: usize, offset: usize, last: usize, before: usize) -> usize {
    let words = usize::from(offset.is_multiple_of(8));
    let is_dict = offset >= PAGE_SIZE;
    let class = NEAR + usize::from(offset >= NEAR_END) * (FAR - NEAR) + words * WORDS;
    let class = select_unpredictable(is_dict, DICT, class);
    let class = select_unpredictable(offset == before, BEFORE, class);
    let class = select_unpredictable(offset == last, LAST, class);
    select_unpredictable(run > RUN_MAX, select_unpredictable(is_dict, DICT, FAR), class)
}

impl Emit for compare::Words {
    /// # Safety
    /// The first `count` sequences are valid: there are not more of them, and their runs, lengths and
    /// offsets are not larger, than a page has.
    #[inline(always)]
    unsafe fn emit(
        columns: &Columns,
        codes: &Codes,
        count: usize,
        end: bool,
        tokens: &mut [u8; TOKENS_ROOM],
        extra: &mut [u8; EXTRA_ROOM],
    ) -> Emitted {
        let first = extra.as_mut_ptr();
        let mut bits = Bits { to: first, word: 0, count: 0 };
        let mut token = tokens.len();
        for at in 0..count {
            // SAFETY: `at` is below `count`, for which there are columns; a class is an index into
            // `codes`, and run and length are clamped to the tables' ends; there is room for a
            // token and the bits of each sequence.
            unsafe {
                let of = |column: &Column, at: usize| usize::from(*column.get_unchecked(at));
                let (run, length) = (of(&columns.runs, at), of(&columns.lengths, at));
                let (offset, last, before) =
                    (of(&columns.offsets, at + 1), of(&columns.offsets, at), of(&columns.befores, at));
                let class = class_of(run, offset, last, before);
                let run_code = *codes.runs.get_unchecked(class).get_unchecked(run.min(RUN_CODES - 1));
                let length_code = *codes.lengths.get_unchecked(class).get_unchecked(length.min(LENGTH_CODES - 1));
                token -= 1;
                *tokens.get_unchecked_mut(token) = (run_code + length_code) as u8;
                let [_, run_bits, run_base, offset_bits] = run_code.to_le_bytes().map(usize::from);
                let [_, length_bits, length_base, _] = length_code.to_le_bytes().map(usize::from);
                let field = (offset >> (class % 2 * 3)) as u64 & ((1 << offset_bits) - 1);
                let fields = (field << (run_bits & 63) | (run - run_base) as u64) << (length_bits & 63);
                bits.put(fields | (length - length_base) as u64, length_bits + run_bits + offset_bits);
            }
        }
        if end {
            token -= 1;
            tokens[token] = END;
        }
        let extra = bits.to.addr() - first.addr() + usize::from(bits.count > 0);
        Emitted { tokens: tokens.len() - token, extra }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;

    use super::{
        super::compare::{Avx2, Avx512},
        *,
    };

    impl Emit for Avx2 {
        /// # Safety
        /// The first `count` sequences are valid, and the CPU has AVX2, BMI1, BMI2, LZCNT and POPCNT.
        #[inline(always)]
        unsafe fn emit(
            columns: &Columns,
            codes: &Codes,
            count: usize,
            end: bool,
            tokens: &mut [u8; TOKENS_ROOM],
            extra: &mut [u8; EXTRA_ROOM],
        ) -> Emitted {
            // SAFETY: the caller vouches for the sequences and for the features of `emit_avx2`.
            unsafe { emit_avx2(columns, codes, count, end, tokens, extra) }
        }
    }

    impl Emit for Avx512 {
        /// # Safety
        /// The first `count` sequences are valid, and the CPU has those features and AVX-512 (F, BW).
        #[inline(always)]
        unsafe fn emit(
            columns: &Columns,
            codes: &Codes,
            count: usize,
            end: bool,
            tokens: &mut [u8; TOKENS_ROOM],
            extra: &mut [u8; EXTRA_ROOM],
        ) -> Emitted {
            // SAFETY: the caller vouches for the sequences and for the features of `emit_avx512`.
            unsafe { emit_avx512(columns, codes, count, end, tokens, extra) }
        }
    }

    /// Does the same as [`emit_avx512`], eight sequences together.
    ///
    /// # Safety
    /// As for [`Emit::emit`].
    #[target_feature(enable = "bmi1,bmi2,lzcnt,popcnt,avx2")]
    #[inline(never)]
    unsafe fn emit_avx2(
        columns: &Columns,
        codes: &Codes,
        count: usize,
        end: bool,
        tokens: &mut [u8; TOKENS_ROOM],
        extra: &mut [u8; EXTRA_ROOM],
    ) -> Emitted {
        const LANES: usize = 8;
        let all_to = |value: usize| _mm256_set1_epi32(value as i32);
        let byte = |of, at: usize| _mm256_and_si256(_mm256_srlv_epi32(of, all_to(8 * at)), all_to(255));
        // The lowest byte of each lane, last lane first, in each half.
        let reverse = _mm256_setr_epi32(0x0004_080C, 0, 0, 0, 0x0004_080C, 0, 0, 0);
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let first = extra.as_mut_ptr();
        let tokens = tokens.as_mut_ptr_range().end;
        let mut bits = Bits { to: first, word: 0, count: 0 };
        // SAFETY: the columns, `tokens` and `extra` have room for all sequences and for the
        // overshoot of whole-register loads and stores; a class is an index into `codes`, and run
        // and length are clamped to the tables' ends. Lanes after the last sequence read no code
        // and add no bits.
        unsafe {
            for at in (0..count).step_by(LANES) {
                let column =
                    |column: &Column, at: usize| _mm256_cvtepu16_epi32(_mm_loadu_si128(column.as_ptr().add(at).cast()));
                let (run, length) = (column(&columns.runs, at), column(&columns.lengths, at));
                let (offset, last) = (column(&columns.offsets, at + 1), column(&columns.offsets, at));
                let before = column(&columns.befores, at);
                let there = _mm256_cmpgt_epi32(all_to(count - at), lanes);
                let is_long = _mm256_cmpgt_epi32(run, all_to(RUN_MAX));
                let is_last = _mm256_cmpeq_epi32(offset, last);
                let is_known =
                    _mm256_andnot_si256(is_long, _mm256_or_si256(is_last, _mm256_cmpeq_epi32(offset, before)));
                let is_far = _mm256_or_si256(_mm256_cmpgt_epi32(offset, all_to(NEAR_END - 1)), is_long);
                let is_dict = _mm256_cmpgt_epi32(offset, all_to(PAGE_SIZE - 1));
                let in_words = _mm256_cmpeq_epi32(_mm256_and_si256(offset, all_to(7)), all_to(0));
                let not_in_words = _mm256_or_si256(_mm256_or_si256(is_long, is_known), is_dict);
                let in_words = _mm256_andnot_si256(not_in_words, in_words);
                let class = _mm256_blendv_epi8(all_to(NEAR), all_to(FAR), is_far);
                let class = _mm256_blendv_epi8(class, all_to(DICT), is_dict);
                let class = _mm256_sub_epi32(class, in_words);
                let known = _mm256_blendv_epi8(all_to(BEFORE), all_to(LAST), is_last);
                let class = _mm256_blendv_epi8(class, known, is_known);
                let run_at = _mm256_min_epi32(run, all_to(RUN_CODES - 1));
                let run_at = _mm256_add_epi32(_mm256_slli_epi32::<8>(class), run_at);
                let length_at = _mm256_min_epi32(length, all_to(LENGTH_CODES - 1));
                let length_at = _mm256_add_epi32(_mm256_slli_epi32::<7>(class), length_at);
                let zero = all_to(0);
                let run_code = _mm256_mask_i32gather_epi32::<4>(zero, codes.runs.as_ptr().cast(), run_at, there);
                let length_code =
                    _mm256_mask_i32gather_epi32::<4>(zero, codes.lengths.as_ptr().cast(), length_at, there);
                let token = _mm256_shuffle_epi8(_mm256_add_epi32(run_code, length_code), reverse);
                mem::store32(tokens.sub(at + 4), _mm256_extract_epi32::<0>(token) as u32);
                mem::store32(tokens.sub(at + 8), _mm256_extract_epi32::<4>(token) as u32);

                let (run_bits, length_bits) = (byte(run_code, 1), byte(length_code, 1));
                let run_value = _mm256_sub_epi32(run, byte(run_code, 2));
                let length_value = _mm256_sub_epi32(length, byte(length_code, 2));
                let low = _mm256_or_si256(length_value, _mm256_sllv_epi32(run_value, length_bits));
                let low = _mm256_and_si256(there, low);
                let low_bits = _mm256_add_epi32(run_bits, length_bits);
                let field = _mm256_srlv_epi32(offset, _mm256_and_si256(in_words, all_to(3)));
                let field = _mm256_andnot_si256(is_known, _mm256_and_si256(there, field));
                let counts = _mm256_add_epi32(low_bits, byte(run_code, 3));

                let even = |of| _mm256_and_si256(of, _mm256_set1_epi64x(0xFFFF_FFFF));
                let odd = |of| _mm256_srli_epi64::<32>(of);
                let even_bits = _mm256_or_si256(even(low), _mm256_sllv_epi64(even(field), even(low_bits)));
                let odd_bits = _mm256_or_si256(odd(low), _mm256_sllv_epi64(odd(field), odd(low_bits)));
                let (even_count, odd_count) = (even(counts), odd(counts));
                let pairs = _mm256_or_si256(even_bits, _mm256_sllv_epi64(odd_bits, even_count));
                let pair_counts = _mm256_add_epi64(even_count, odd_count);
                let upper = |of| _mm256_unpackhi_epi64(of, of);
                let fours = _mm256_or_si256(pairs, _mm256_sllv_epi64(upper(pairs), pair_counts));
                let four_counts = _mm256_add_epi64(pair_counts, upper(pair_counts));
                let stored = |of| {
                    let mut words = [0_u64; 4];
                    _mm256_storeu_si256(words.as_mut_ptr().cast(), of);
                    words
                };
                let too_many = |of| _mm256_movemask_epi8(_mm256_cmpgt_epi64(of, _mm256_set1_epi64x(BITS_AT_ONCE)));
                if too_many(four_counts) & 0x00FF_00FF == 0 {
                    let (words, counts) = (stored(fours), stored(four_counts));
                    for at in [0, 2] {
                        bits.put(words[at], counts[at] as usize);
                    }
                } else if too_many(pair_counts) == 0 {
                    let (words, counts) = (stored(pairs), stored(pair_counts));
                    for at in 0..4 {
                        bits.put(words[at], counts[at] as usize);
                    }
                } else {
                    let (evens, even_counts) = (stored(even_bits), stored(even_count));
                    let (odds, odd_counts) = (stored(odd_bits), stored(odd_count));
                    for at in 0..4 {
                        bits.put(evens[at], even_counts[at] as usize);
                        bits.put(odds[at], odd_counts[at] as usize);
                    }
                }
            }
            if end {
                *tokens.sub(count + 1) = END;
            }
        }
        let extra = bits.to.addr() - first.addr() + usize::from(bits.count > 0);
        Emitted { tokens: count + usize::from(end), extra }
    }

    /// 15 down to 0.
    const REVERSE: [u8; 16] = [15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0];

    /// # Safety
    /// As for [`Emit::emit`].
    #[target_feature(enable = "bmi1,bmi2,lzcnt,popcnt,avx2,avx512f,avx512bw")]
    #[inline(never)]
    unsafe fn emit_avx512(
        columns: &Columns,
        codes: &Codes,
        count: usize,
        end: bool,
        tokens: &mut [u8; TOKENS_ROOM],
        extra: &mut [u8; EXTRA_ROOM],
    ) -> Emitted {
        let all_to = |value: usize| _mm512_set1_epi32(value as i32);
        let byte = |of, at: u32| _mm512_and_si512(_mm512_srlv_epi32(of, all_to(8 * at as usize)), all_to(255));
        let first = extra.as_mut_ptr();
        let tokens = tokens.as_mut_ptr_range().end;
        let mut bits = Bits { to: first, word: 0, count: 0 };
        // SAFETY: the columns, `tokens` and `extra` have room for all sequences and for the
        // overshoot of whole-register loads and stores; a class is an index into `codes`, and run
        // and length are clamped to the tables' ends. Lanes after the last sequence read no code
        // and add no bits.
        unsafe {
            let reverse = _mm_loadu_si128(REVERSE.as_ptr().cast());
            for at in (0..count).step_by(LANES) {
                let column = |column: &Column, at: usize| {
                    _mm512_cvtepu16_epi32(_mm256_loadu_si256(column.as_ptr().add(at).cast()))
                };
                let (run, length) = (column(&columns.runs, at), column(&columns.lengths, at));
                let (offset, last) = (column(&columns.offsets, at + 1), column(&columns.offsets, at));
                let before = column(&columns.befores, at);
                let there = u32::MAX.unbounded_shr(32_u32.saturating_sub((count - at) as u32)) as u16;
                let is_long = _mm512_cmpgt_epi32_mask(run, all_to(RUN_MAX));
                let is_last = _mm512_cmpeq_epi32_mask(offset, last) & !is_long;
                let is_before = _mm512_cmpeq_epi32_mask(offset, before) & !is_long & !is_last;
                let is_new = !is_last & !is_before;
                let is_far = _mm512_cmpge_epi32_mask(offset, all_to(NEAR_END)) | is_long;
                let is_dict = _mm512_cmpge_epi32_mask(offset, all_to(PAGE_SIZE));
                let in_words = _mm512_testn_epi32_mask(offset, all_to(7)) & !is_long & is_new & !is_dict;
                let class = _mm512_mask_mov_epi32(all_to(NEAR), is_far, all_to(FAR));
                let class = _mm512_mask_mov_epi32(class, is_dict, all_to(DICT));
                let class = _mm512_mask_mov_epi32(class, is_before, all_to(BEFORE));
                let class = _mm512_mask_mov_epi32(class, is_last, all_to(LAST));
                let class = _mm512_mask_add_epi32(class, in_words, class, all_to(WORDS));
                let run_at = _mm512_min_epi32(run, all_to(RUN_CODES - 1));
                let run_at = _mm512_add_epi32(_mm512_slli_epi32::<8>(class), run_at);
                let length_at = _mm512_min_epi32(length, all_to(LENGTH_CODES - 1));
                let length_at = _mm512_add_epi32(_mm512_slli_epi32::<7>(class), length_at);
                let run_code = _mm512_mask_i32gather_epi32::<4>(all_to(0), there, run_at, codes.runs.as_ptr().cast());
                let length_code =
                    _mm512_mask_i32gather_epi32::<4>(all_to(0), there, length_at, codes.lengths.as_ptr().cast());
                let token = _mm512_cvtepi32_epi8(_mm512_add_epi32(run_code, length_code));
                _mm_storeu_si128(tokens.sub(at + LANES).cast(), _mm_shuffle_epi8(token, reverse));

                let (run_bits, length_bits) = (byte(run_code, 1), byte(length_code, 1));
                let run_value = _mm512_sub_epi32(run, byte(run_code, 2));
                let length_value = _mm512_sub_epi32(length, byte(length_code, 2));
                let low = _mm512_or_si512(length_value, _mm512_sllv_epi32(run_value, length_bits));
                let low = _mm512_maskz_mov_epi32(there, low);
                let low_bits = _mm512_add_epi32(run_bits, length_bits);
                let field = _mm512_mask_srli_epi32::<3>(offset, in_words, offset);
                let field = _mm512_maskz_mov_epi32(is_new & there, field);
                let counts = _mm512_add_epi32(low_bits, byte(run_code, 3));

                let even = |of| _mm512_and_si512(of, _mm512_set1_epi64(0xFFFF_FFFF));
                let odd = |of| _mm512_srli_epi64::<32>(of);
                let even_bits = _mm512_or_si512(even(low), _mm512_sllv_epi64(even(field), even(low_bits)));
                let odd_bits = _mm512_or_si512(odd(low), _mm512_sllv_epi64(odd(field), odd(low_bits)));
                let (even_count, odd_count) = (even(counts), odd(counts));
                let pairs = _mm512_or_si512(even_bits, _mm512_sllv_epi64(odd_bits, even_count));
                let pair_counts = _mm512_add_epi64(even_count, odd_count);
                let upper = |of| _mm512_unpackhi_epi64(of, of);
                let fours = _mm512_or_si512(pairs, _mm512_sllv_epi64(upper(pairs), pair_counts));
                let four_counts = _mm512_add_epi64(pair_counts, upper(pair_counts));
                let most = _mm512_set1_epi64(BITS_AT_ONCE);
                if _mm512_cmpgt_epi64_mask(four_counts, most) & 0x55 == 0 {
                    let (mut words, mut counts) = ([0_u64; 8], [0_u64; 8]);
                    _mm512_storeu_si512(words.as_mut_ptr().cast(), fours);
                    _mm512_storeu_si512(counts.as_mut_ptr().cast(), four_counts);
                    for at in [0, 2, 4, 6] {
                        bits.put(words[at], counts[at] as usize);
                    }
                } else if _mm512_cmpgt_epi64_mask(pair_counts, most) == 0 {
                    let (mut words, mut counts) = ([0_u64; 8], [0_u64; 8]);
                    _mm512_storeu_si512(words.as_mut_ptr().cast(), pairs);
                    _mm512_storeu_si512(counts.as_mut_ptr().cast(), pair_counts);
                    for at in 0..8 {
                        bits.put(words[at], counts[at] as usize);
                    }
                } else {
                    let (mut words, mut counts) = ([[0_u64; 8]; 2], [[0_u64; 8]; 2]);
                    _mm512_storeu_si512(words[0].as_mut_ptr().cast(), even_bits);
                    _mm512_storeu_si512(words[1].as_mut_ptr().cast(), odd_bits);
                    _mm512_storeu_si512(counts[0].as_mut_ptr().cast(), even_count);
                    _mm512_storeu_si512(counts[1].as_mut_ptr().cast(), odd_count);
                    for at in 0..8 {
                        bits.put(words[0][at], counts[0][at] as usize);
                        bits.put(words[1][at], counts[1][at] as usize);
                    }
                }
            }
            if end {
                *tokens.sub(count + 1) = END;
            }
        }
        let extra = bits.to.addr() - first.addr() + usize::from(bits.count > 0);
        Emitted { tokens: count + usize::from(end), extra }
    }
}

//! The literals' code (`docs/fold.md`, "Literals"): half a byte for each of sixteen common values,
//! five bits for each of 32 less common ones, and one or two bits per literal that say whether it
//! is one of the former, one of the latter, or neither. The tokens of pages of words are coded in
//! the same way.
//!
//! ```text
//! for each literal:
//!     if its bit is 0: it is the palette's first value for the next four bits
//!     else if its second bit is 0: it is the palette's second value for the next five bits
//!     else it is the next whole byte
//! ```
//!
//! The parts (bits, codes, whole bytes) are separate, so that many literals are merged in one step: 64
//! by AVX-512's byte expansion under a mask, or 8 by a shuffle for each of the 256 patterns of
//! eight bits.
#![allow(unsafe_code)] // Whole-register loads and stores past the ends, where both sides have room.

use super::Isa;
use crate::PAGE_SIZE;

/// Number of palettes: those of literals, and one of tokens.
pub(super) const PALETTES_COUNT: usize = 8;

/// Number of palettes that the literals of pages may use: the first ones. 0 in a header means that
/// the literals are not coded.
pub(super) const PALETTES_OF_OTHERS: usize = 7;

/// Number of palettes that the literals of pages of words may use: the first ones. The header of
/// the next one marks a page of records.
pub(super) const PALETTES_OF_WORDS: usize = 6;

/// The number of the palette, counted from 1, that codes the tokens of pages of words.
pub(super) const PALETTE_OF_TOKENS: usize = 8;

/// How many bytes past the literals of a page the functions here and the decoder's loop read and
/// write.
pub(super) const SLACK: usize = 64;

/// The values of a palette, in the order of their codes. All are different.
#[derive(Clone, Copy)]
pub(super) struct Palette {
    pub(super) first: [u8; FIRST],
    pub(super) second: [u8; SECOND],
}

/// Number of values coded in four bits, and in five.
pub(super) const FIRST: usize = 16;
pub(super) const SECOND: usize = 32;

pub(super) type Values = [Palette; PALETTES_COUNT];

impl Palette {
    const fn new(first: &[u8; FIRST], second: &[u8; SECOND]) -> Self {
        Self { first: *first, second: *second }
    }
}

/// The palettes of pages without tables, fitted to the literals of many kinds of data; the last one
/// to tokens of pages of words.
#[rustfmt::skip]
pub(super) const PALETTES: Values = [
    Palette::new(b"\x00\x01\x0f$ADHL\x83\x85\x89\x8b\x8d\xc0\xe8\xff", b"\x02\x03\x04\x05\x08\x10\x18\x1f (19=@EIMTUftu\x80\x84\xc3\xc7\xe9\xeb\xf6\xfb\xfd\xfe"),
    Palette::new(b"\x00\x01\x02\x03\x04\x05\x06\x08\x09\x11\x19!)AIi", b"\x07\x0a\x0b\x0c\x0d\x0e\x0f\x10\x1519QYaqy\x81\x89\x91\x99\xa1\xa9\xb1\xb9\xc1\xc9\xd1\xd9\xe1\xe9\xf1\xf9"),
    Palette::new(b"\x00.0123456789aeir", b"\x0a \x22,:;<=@Abcdfghklmnopstuvwxy}\x92\xb8"),
    Palette::new(b"\x00\x10 0@P`p\x80\x90\xa0\xb0\xc0\xd0\xf0\xff", b"\x01\x02\x03\x04\x05\x08\x22(123456789:Haehinrst\x7f\x88\xa8\xe0\xe5"),
    Palette::new(b"\x00\x01 acdeilnoprstu", b"\x02\x03\x04\x05\x06\x07\x08\x0a\x0c\x10.01:@AIP_`bfghmvy\x80\xa0\xc0\xe0\xff"),
    Palette::new(b"\x00 acdehilmnorstu", b"\x0a\x22,-.ABCDEILNOPRST\x5cbfgjkpqvwxyz\x80"),
    Palette::new(b" acdehilmnoprstu", b"\x00\x0a\x22(),-./0123456:<=>AST_bfgkvwxy"),
    Palette::new(b"\x00\x04\x0a\x1d #56l\x93\x98\x9d\xc5\xd0\xdb\xea", b"\x03\x07\x0e\x11\x13\x1b\x1e'+3478?Einopqs\x83\x94\x9a\xa6\xc4\xc7\xc9\xca\xe0\xe7\xec"),
];

/// The palettes, and the lookup tables to code with them.
pub(super) struct Palettes {
    pub(super) values: Values,
    codes: [Codes; PALETTES_COUNT],
    /// For each value, a byte for each palette: 2 if the value is one of its first, 1 if it is one
    /// of its second.
    scores: [u64; 256],
    #[cfg(target_arch = "x86_64")]
    rows: [x86::Rows; PALETTES_COUNT],
}

/// Each value's code in a palette: its index among the first values, or [`FIRST`] plus its index
/// among the second, or [`WHOLE`].
#[derive(Clone, Copy)]
struct Codes([u8; 256]);

/// The code of a value that is not in the palette.
const WHOLE: u8 = (FIRST + SECOND) as u8;

impl Palettes {
    pub(super) const fn new(values: Values) -> Self {
        let mut codes = [Codes([WHOLE; 256]); PALETTES_COUNT];
        let mut scores = [0; 256];
        let mut palette = 0;
        while palette < PALETTES_COUNT {
            let mut code = 0;
            while code < FIRST + SECOND {
                let Palette { first, second } = &values[palette];
                let (value, score) = if code < FIRST { (first[code], 2) } else { (second[code - FIRST], 1) };
                codes[palette].0[value as usize] = code as u8;
                scores[value as usize] |= score << (8 * palette);
                code += 1;
            }
            palette += 1;
        }
        Self {
            #[cfg(target_arch = "x86_64")]
            rows: x86::rows(&codes),
            values,
            codes,
            scores,
        }
    }

    /// Returns the palette, numbered from 1, of the first `count` that codes a sample of `literals` best, or
    /// 0 if none saves enough to be worth its time.
    pub(super) fn choose(&self, literals: &[u8], count: usize) -> usize {
        /// The scores of this many literals fit in the bytes of a word.
        const SAMPLE: usize = 127;
        /// Score per literal, in percent, above which the code saves space.
        const SCORE_PERCENT: usize = 82;
        if literals.len() < 32 {
            return 0;
        }
        let step = literals.len().div_ceil(SAMPLE);
        let mut scores = 0;
        for &literal in literals.iter().step_by(step) {
            scores += self.scores[usize::from(literal)];
        }
        let taken = literals.len().div_ceil(step);
        let scores = scores.to_le_bytes();
        let (mut best, mut most) = (0, taken * SCORE_PERCENT / 100);
        for (palette, &score) in scores.iter().enumerate().take(count) {
            if usize::from(score) > most {
                (best, most) = (palette + 1, usize::from(score));
            }
        }
        best
    }

    /// Codes the first `count` of `literals`, at most a page, with `palette`, numbered from 1. Returns the
    /// section's length in bytes.
    ///
    /// # Panics
    /// If there are less than [`SLACK`] bytes after them, or `out` has less than
    /// [`room_to_pack`].
    pub(super) fn pack(&self, isa: Isa, palette: usize, literals: &[u8], count: usize, out: &mut [u8]) -> usize {
        let palette = (palette - 1) % PALETTES_COUNT;
        let codes = &self.codes[palette];
        assert!(literals.len() >= count + SLACK && out.len() >= room_to_pack(count));
        match isa {
            // SAFETY: the stream detected the features before it selected the build. SLACK bytes
            // follow the literals, and `out` has the room.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { x86::pack_avx512(codes, literals, count, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { x86::pack_avx2(codes, &self.rows[palette], literals, count, out) },
            Isa::Portable => pack_portable(codes, literals, count, out),
        }
    }

    /// Decodes the `count` literals, at most a page, at the start of `coded`, from the code of
    /// `palette`, numbered from 1, to `out`. Returns how many bytes of `coded` they used, or `None`
    /// if it is too short or has a superfluous bit; `out` then holds unspecified bytes.
    pub(super) fn unpack(&self, isa: Isa, palette: usize, coded: &[u8], count: usize, out: &mut Room) -> Option<usize> {
        let palette = &self.values[(palette - 1) % PALETTES_COUNT];
        let (bits, body) = coded.split_at_checked(count.min(PAGE_SIZE).div_ceil(8))?;
        let body_len = match isa {
            // SAFETY: the stream detected the features before it selected the build.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { x86::unpack_avx512(palette, bits, body, count, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { x86::unpack_avx2(palette, bits, body, count, out) },
            Isa::Portable => unpack_portable(palette, bits, body, count, out),
        }?;
        Some(bits.len() + body_len)
    }
}

/// For each pattern of eight bits: which of 16 bytes become the eight literals. The first eight are
/// whole bytes, the others the palette's.
static MERGES: [[u8; 8]; 256] = {
    let mut merges = [[0; 8]; 256];
    let mut bits = 0;
    while bits < 256 {
        let (mut whole, mut common, mut at) = (0, 8, 0);
        while at < 8 {
            if bits >> at & 1 == 1 {
                merges[bits][at] = whole;
                whole += 1;
            } else {
                merges[bits][at] = common;
                common += 1;
            }
            at += 1;
        }
        bits += 1;
    }
    merges
};

/// Literals in a group: the bits of a word.
const GROUP: usize = 64;

/// Maximum bytes read for a group, whatever it holds: 32 for its halves, 8 for second bits, 40 for
/// codes of five bits, and 64 from the start of the last part.
const GROUP_READ: usize = GROUP / 2 + GROUP / 8 + 5 * GROUP / 8 + GROUP;

/// Room for a page's literals, coded or not, and for reads and writes past them.
pub(super) type Room = [u8; ROOM];

const ROOM: usize = PAGE_SIZE + PAGE_SIZE / 4 + 4 * SLACK;

pub(super) const EMPTY: Room = [0; ROOM];

/// Returns how many bytes [`Palettes::pack`] may write for `count` literals: ten bits for each,
/// three bytes for each group whose parts do not end with a byte, and the width of a store.
pub(super) const fn room_to_pack(count: usize) -> usize {
    count + count.div_ceil(4) + 3 * count.div_ceil(GROUP) + SLACK
}

const _: () = assert!(room_to_pack(PAGE_SIZE) <= ROOM);

/// Codes literals one at a time.
fn pack_portable(codes: &Codes, literals: &[u8], count: usize, out: &mut [u8]) -> usize {
    let mut end = count.div_ceil(8);
    for (group, bits) in literals[..count].chunks(GROUP).zip((0..end).step_by(8)) {
        let (mut wide, mut common, mut rare_len) = (0_u64, 0, 0);
        let mut halves = [0; GROUP / 2];
        let mut rare = [0; GROUP];
        for (at, &literal) in group.iter().enumerate() {
            let code = codes.0[usize::from(literal)];
            if code < FIRST as u8 {
                halves[common / 2] |= code << (4 * (common % 2));
                common += 1;
            } else {
                wide |= 1 << at;
                rare[rare_len] = literal;
                rare_len += 1;
            }
        }
        let bits_len = group.len().div_ceil(8);
        out[bits..bits + bits_len].copy_from_slice(&wide.to_le_bytes()[..bits_len]);
        let halves = &halves[..common.div_ceil(2)];
        out[end..end + halves.len()].copy_from_slice(halves);
        end += halves.len();
        end += pack_rare(codes, &rare[..rare_len], &mut out[end..]);
    }
    end
}

/// Codes those of a group's literals that are not among the palette's first values. Returns their
/// length in bytes.
fn pack_rare(codes: &Codes, rare: &[u8], out: &mut [u8]) -> usize {
    let mut whole = [0; GROUP];
    let (mut whole_len, mut bits) = (0, 0_u64);
    let (mut word, mut word_bits, mut end) = (0_u64, 0_usize, rare.len().div_ceil(8));
    for (at, &literal) in rare.iter().enumerate() {
        let code = codes.0[usize::from(literal)];
        let is_whole = code == WHOLE;
        bits |= u64::from(is_whole) << at;
        whole[whole_len] = literal;
        whole_len += usize::from(is_whole);
        if !is_whole {
            word |= u64::from(code - FIRST as u8) << word_bits;
            word_bits += 5;
            if word_bits == 40 {
                out[end..end + 5].copy_from_slice(&word.to_le_bytes()[..5]);
                (word, word_bits, end) = (0, 0, end + 5);
            }
        }
    }
    let bits_len = rare.len().div_ceil(8);
    out[..bits_len].copy_from_slice(&bits.to_le_bytes()[..bits_len]);
    for (at, byte) in word.to_le_bytes().into_iter().enumerate().take(word_bits.div_ceil(8)) {
        out[end + at] = byte;
    }
    end += word_bits.div_ceil(8);
    out[end..end + whole_len].copy_from_slice(&whole[..whole_len]);
    end + whole_len
}

/// Decodes a group's literals by eights, byte by byte.
fn unpack_portable(palette: &Palette, bits: &[u8], body: &[u8], count: usize, out: &mut Room) -> Option<usize> {
    groups(bits, body, count, out, |group, out| {
        let mut common = [0; GROUP];
        for (pair, half) in common.as_chunks_mut::<2>().0.iter_mut().zip(group.bytes) {
            *pair = [palette.first[usize::from(half & 15)], palette.first[usize::from(half >> 4)]];
        }
        let mut second = [0; GROUP];
        for (values, codes) in second.as_chunks_mut::<8>().0.iter_mut().zip(group.bytes[group.codes..].chunks(5)) {
            let mut word = [0; 8];
            word[..codes.len()].copy_from_slice(codes);
            let mut codes = u64::from_le_bytes(word);
            for value in values {
                *value = palette.second[(codes & 31) as usize];
                codes >>= 5;
            }
        }
        let mut rare = [0; GROUP];
        let whole = group.bytes[group.whole..].first_chunk().expect("64 bytes");
        merge(group.is_whole, whole, &second, &mut rare);
        merge(group.is_rare, &rare, &common, out);
    })
}

/// For each bit, takes the next of `ones` if it is 1, otherwise the next of `zeros`.
fn merge(bits: u64, ones: &[u8; GROUP], zeros: &[u8; GROUP], out: &mut [u8; GROUP]) {
    let (mut at_one, mut at_zero) = (0, 0);
    for (bits, out) in bits.to_le_bytes().into_iter().zip(out.as_chunks_mut::<8>().0) {
        let mut both = [0; 16];
        both[..8].copy_from_slice(&ones[at_one..at_one + 8]);
        both[8..].copy_from_slice(&zeros[at_zero..at_zero + 8]);
        *out = MERGES[usize::from(bits)].map(|from| both[usize::from(from % 16)]);
        let ones = bits.count_ones() as usize;
        at_one += ones;
        at_zero += 8 - ones;
    }
}

/// The parts of a group of literals.
struct Group<'a> {
    /// The halves and the following parts.
    bytes: &'a [u8; GROUP_READ],
    /// A bit for each literal: 1 if it is not one of the palette's first values.
    is_rare: u64,
    /// A bit for each of those: 1 if it is not one of the second values either.
    is_whole: u64,
    /// Where in `bytes` the codes of five bits begin, at most GROUP_READ - 2 * GROUP + 24; and the
    /// whole bytes, at most GROUP_READ - GROUP.
    codes: usize,
    whole: usize,
}

/// Calls `merge` for each group, with the place to write 64 literals. Returns the number of bytes
/// that the groups used.
#[inline(always)]
fn groups(
    bits: &[u8],
    body: &[u8],
    count: usize,
    out: &mut Room,
    merge: impl Fn(&Group<'_>, &mut [u8; GROUP]),
) -> Option<usize> {
    let mut at = 0;
    let mut left = count;
    for (out, bits) in out.as_chunks_mut::<GROUP>().0.iter_mut().zip(bits.chunks(8)) {
        let is_rare = match bits.first_chunk::<8>() {
            Some(word) => u64::from_le_bytes(*word),
            None => {
                let mut word = [0; 8];
                word[..bits.len()].copy_from_slice(bits);
                u64::from_le_bytes(word)
            }
        };
        let here = left.min(GROUP);
        if here < GROUP && is_rare >> here != 0 {
            return None;
        }
        let rare = is_rare.count_ones() as usize;
        let second_bits = (here - rare).div_ceil(2);
        let rest = body.get(at..)?;
        let mut padded = [0; GROUP_READ];
        let bytes = match rest.first_chunk() {
            Some(bytes) => bytes,
            None => {
                padded[..rest.len()].copy_from_slice(rest);
                &padded
            }
        };
        let codes = second_bits + rare.div_ceil(8);
        let word = u64::from_le_bytes(*bytes[second_bits..].first_chunk().expect("eight bytes"));
        // All bits in the bytes, then those that may be set.
        let word = word & u64::MAX.unbounded_shr((GROUP - rare.next_multiple_of(8)) as u32);
        let is_whole = word & u64::MAX.unbounded_shr((GROUP - rare) as u32);
        if word != is_whole {
            return None;
        }
        let whole = is_whole.count_ones() as usize;
        let group = Group { bytes, is_rare, is_whole, codes, whole: codes + (5 * (rare - whole)).div_ceil(8) };
        merge(&group, out);
        at += group.whole + whole;
        left -= here;
    }
    (at <= body.len()).then_some(at)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;

    use super::{Codes, FIRST, GROUP, MERGES, PALETTES_COUNT, Palette, Room, SECOND, WHOLE, groups, pack_rare};
    use crate::mem;

    /// The code in [`Rows`] of a value that is not among the first.
    const RARE: u8 = FIRST as u8;

    /// The codes of a palette's first values, XORed with [`RARE`], in rows. A row holds the values
    /// with its high half, indexed by the low half. 0 for other values.
    pub(super) struct Rows {
        count: usize,
        rows: [(u8, [u8; 16]); 16],
    }

    pub(super) const fn rows(codes: &[Codes; PALETTES_COUNT]) -> [Rows; PALETTES_COUNT] {
        let mut out = [const { Rows { count: 0, rows: [(0, [0; 16]); 16] } }; PALETTES_COUNT];
        let mut palette = 0;
        while palette < PALETTES_COUNT {
            let mut high = 0;
            while high < 16 {
                let (mut row, mut has_any, mut low) = ([0; 16], false, 0);
                while low < 16 {
                    let code = codes[palette].0[high * 16 + low];
                    if code < RARE {
                        row[low] = code ^ RARE;
                        has_any = true;
                    }
                    low += 1;
                }
                if has_any {
                    out[palette].rows[out[palette].count] = (high as u8, row);
                    out[palette].count += 1;
                }
                high += 1;
            }
            palette += 1;
        }
        out
    }

    /// For each pattern of eight bits, the places of the ones.
    static SPLITS: [[u8; 8]; 256] = {
        let mut out = [[0; 8]; 256];
        let mut bits = 0;
        while bits < 256 {
            let (mut at, mut count) = (0, 0);
            while at < 8 {
                if bits >> at & 1 == 1 {
                    out[bits][count] = at;
                    count += 1;
                }
                at += 1;
            }
            bits += 1;
        }
        out
    };

    /// Returns the codes of 32 literals: their indices among the first values, or [`RARE`].
    #[target_feature(enable = "avx2")]
    #[inline]
    fn codes_of(rows: &Rows, literals: __m256i) -> __m256i {
        let mut codes = _mm256_set1_epi8(RARE as i8);
        for (high, row) in &rows.rows[..rows.count] {
            // The high half becomes 7 in the row's own bytes and at least 8 elsewhere, for which
            // the shuffle gives 0.
            let at = _mm256_xor_si256(literals, _mm256_set1_epi8((high << 4) as i8));
            let at = _mm256_adds_epu8(at, _mm256_set1_epi8(0x70));
            // SAFETY: a row has 16 bytes.
            let row = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(row.as_ptr().cast()) });
            codes = _mm256_xor_si256(codes, _mm256_shuffle_epi8(row, at));
        }
        codes
    }

    /// # Safety
    /// [`SLACK`](super::SLACK) bytes follow the literals, and the output has
    /// [`room_to_pack`](super::room_to_pack).
    #[target_feature(enable = "avx2,popcnt")]
    pub(super) unsafe fn pack_avx2(
        all_codes: &Codes,
        rows: &Rows,
        literals: &[u8],
        count: usize,
        room: &mut [u8],
    ) -> usize {
        let room_len = room.len();
        let out = room.as_mut_ptr();
        let mut end = count.div_ceil(8);
        for group in (0..count).step_by(GROUP) {
            let (mut all, mut codes, mut whole) = ([0_u8; GROUP], [0_u8; GROUP + 8], [0_u8; GROUP + 8]);
            let (mut codes_len, mut whole_len) = (0, 0);
            let mut wide = 0;
            // SAFETY: all reads of literals and all writes are less than GROUP past the literals'
            // end, and past the maximum size of coded literals. In `codes` and `whole`, 8 bytes are
            // written at 56 or below.
            unsafe {
                for half in [0, 32] {
                    let here = _mm256_loadu_si256(literals.as_ptr().add(group + half).cast());
                    let found = codes_of(rows, here);
                    _mm256_storeu_si256(all.as_mut_ptr().add(half).cast(), found);
                    let is_whole = _mm256_movemask_epi8(_mm256_slli_epi16::<3>(found)) as u32;
                    wide |= u64::from(is_whole) << half;
                }
                let len = (count - group).min(GROUP);
                wide &= u64::MAX >> (GROUP - len);
                for part in (0..len).step_by(8) {
                    let bits = (wide >> part) as u8;
                    *out.add((group + part) / 8) = bits;
                    let here = _mm_loadl_epi64(literals.as_ptr().add(group + part).cast());
                    let found = _mm_loadl_epi64(all.as_ptr().add(part).cast());
                    let to_whole = _mm_loadl_epi64(SPLITS[usize::from(bits)].as_ptr().cast());
                    let to_codes = _mm_loadl_epi64(SPLITS[usize::from(!bits)].as_ptr().cast());
                    _mm_storel_epi64(whole.as_mut_ptr().add(whole_len).cast(), _mm_shuffle_epi8(here, to_whole));
                    _mm_storel_epi64(codes.as_mut_ptr().add(codes_len).cast(), _mm_shuffle_epi8(found, to_codes));
                    whole_len += bits.count_ones() as usize;
                    codes_len += 8 - bits.count_ones() as usize;
                }
                let codes_len = len - whole_len;
                mem::store64(codes.as_mut_ptr().add(codes_len), 0);
                for at in [0, 32] {
                    let pairs = _mm256_loadu_si256(codes.as_ptr().add(at).cast());
                    let pairs = _mm256_maddubs_epi16(pairs, _mm256_set1_epi16(0x1001));
                    let halves = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi16(pairs, pairs));
                    _mm_storeu_si128(out.add(end + at / 2).cast(), _mm256_castsi256_si128(halves));
                }
                end += codes_len.div_ceil(2);
                let left = core::slice::from_raw_parts_mut(out.add(end), room_len - end);
                end += pack_rare(all_codes, &whole[..whole_len], left);
            }
        }
        end
    }

    /// # Safety
    /// None beyond the CPU features.
    #[target_feature(enable = "avx2,bmi2,popcnt")]
    pub(super) unsafe fn unpack_avx2(
        palette: &Palette,
        bits: &[u8],
        body: &[u8],
        count: usize,
        out: &mut Room,
    ) -> Option<usize> {
        const { assert!(SECOND == 32) };
        // SAFETY: 16 bytes each.
        let [first, low, high] = unsafe {
            let second = palette.second.as_ptr();
            [palette.first.as_ptr(), second, second.add(16)].map(|values| _mm_loadu_si128(values.cast()))
        };
        groups(bits, body, count, out, |group, out| {
            let mut common = [0_u8; GROUP + 8];
            for at in [0, 16] {
                // SAFETY: 16 of the 32 bytes for halves are read, and 32 of 64 values written.
                unsafe {
                    let halves = _mm_loadu_si128(group.bytes.as_ptr().add(at).cast());
                    let even = _mm_and_si128(halves, _mm_set1_epi8(15));
                    let odd = _mm_and_si128(_mm_srli_epi16::<4>(halves), _mm_set1_epi8(15));
                    let (even, odd) = (_mm_shuffle_epi8(first, even), _mm_shuffle_epi8(first, odd));
                    let to = common.as_mut_ptr().add(2 * at).cast::<__m128i>();
                    _mm_storeu_si128(to, _mm_unpacklo_epi8(even, odd));
                    _mm_storeu_si128(to.add(1), _mm_unpackhi_epi8(even, odd));
                }
            }
            let (mut second, mut rare) = ([0_u8; GROUP + 8], [0_u8; GROUP + 8]);
            let rare_len = group.is_rare.count_ones() as usize;
            for at in (0..rare_len).step_by(8) {
                // SAFETY: `at` is at most 56, so at most eight bytes from 75 of GROUP_READ are
                // read.
                unsafe {
                    let codes = mem::load64(group.bytes.as_ptr().add(group.codes + at / 8 * 5));
                    let codes = _mm_cvtsi64_si128(_pdep_u64(codes, 0x1F1F_1F1F_1F1F_1F1F) as i64);
                    let is_high = _mm_cmpgt_epi8(codes, _mm_set1_epi8(15));
                    let values = _mm_blendv_epi8(_mm_shuffle_epi8(low, codes), _mm_shuffle_epi8(high, codes), is_high);
                    _mm_storel_epi64(second.as_mut_ptr().add(at).cast(), values);
                }
            }
            // SAFETY: 64 bytes can be read from `whole`, and 8 more after `rare`, `second` and
            // `common`; 64 are written.
            unsafe {
                let whole = group.bytes.as_ptr().add(group.whole);
                merge(group.is_whole, rare_len, whole, second.as_ptr(), rare.as_mut_ptr());
                merge(group.is_rare, GROUP, rare.as_ptr(), common.as_ptr(), out.as_mut_ptr());
            }
        })
    }

    /// Does the same as [`super::merge`] for the first `len` bits, rounded up to a multiple of 8.
    ///
    /// # Safety
    /// That many bytes can be written to `out` and read from each of the others.
    #[target_feature(enable = "avx2,popcnt")]
    #[inline]
    unsafe fn merge(bits: u64, len: usize, ones: *const u8, zeros: *const u8, out: *mut u8) {
        let (mut at_one, mut at_zero) = (0, 0);
        for at in (0..len).step_by(8) {
            let bits = (bits >> at) as u8;
            // SAFETY: upheld by the caller: both are at most `at`.
            unsafe {
                let one = _mm_loadl_epi64(ones.add(at_one).cast());
                let zero = _mm_loadl_epi64(zeros.add(at_zero).cast());
                let order = _mm_loadl_epi64(MERGES[usize::from(bits)].as_ptr().cast());
                let merged = _mm_shuffle_epi8(_mm_unpacklo_epi64(one, zero), order);
                _mm_storel_epi64(out.add(at).cast(), merged);
            }
            let ones = bits.count_ones() as usize;
            at_one += ones;
            at_zero += 8 - ones;
        }
    }

    /// Takes the lowest five of every eight bytes: eight codes of five bits.
    static FIVES: [u8; GROUP] = {
        let mut out = [0; GROUP];
        let mut at = 0;
        while at < GROUP {
            out[at] = (at / 5 * 8 + at % 5) as u8 % GROUP as u8;
            at += 1;
        }
        out
    };

    /// Takes eight bytes from every fifth.
    static FROM_FIVES: [u8; GROUP] = {
        let mut out = [0; GROUP];
        let mut at = 0;
        while at < GROUP {
            out[at] = (at / 8 * 5 + at % 8) as u8;
            at += 1;
        }
        out
    };

    /// # Safety
    /// [`SLACK`](super::SLACK) bytes follow the literals, and the output has
    /// [`room_to_pack`](super::room_to_pack).
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,bmi2,popcnt")]
    pub(super) unsafe fn pack_avx512(codes: &Codes, literals: &[u8], count: usize, out: &mut [u8]) -> usize {
        let table = codes.0.as_ptr();
        let out = out.as_mut_ptr();
        let mut end = count.div_ceil(8);
        // SAFETY: all reads of literals and all writes are less than GROUP past the literals' end,
        // and past the maximum size of coded literals.
        unsafe {
            let tables: [__m512i; 4] = core::array::from_fn(|at| _mm512_loadu_si512(table.add(64 * at).cast()));
            let fives = _mm512_loadu_si512(FIVES.as_ptr().cast());
            for group in (0..count).step_by(GROUP) {
                let here = _mm512_loadu_si512(literals.as_ptr().add(group).cast());
                let low = _mm512_permutex2var_epi8(tables[0], here, tables[1]);
                let high = _mm512_permutex2var_epi8(tables[2], here, tables[3]);
                let codes = _mm512_mask_blend_epi8(_mm512_movepi8_mask(here), low, high);
                let there = u64::MAX >> (64 - (count - group).min(64));
                let is_rare = _mm512_cmpge_epu8_mask(codes, _mm512_set1_epi8(FIRST as i8)) & there;
                let is_common = !is_rare & there;
                if count - group >= GROUP {
                    mem::store64(out.add(group / 8), is_rare);
                } else {
                    let bits = is_rare.to_le_bytes();
                    out.add(group / 8).copy_from_nonoverlapping(bits.as_ptr(), (count - group).div_ceil(8));
                }
                let halves = _mm512_maskz_compress_epi8(is_common, codes);
                let pairs = _mm512_maddubs_epi16(halves, _mm512_set1_epi16(0x1001));
                _mm256_storeu_si256(out.add(end).cast(), _mm512_cvtepi16_epi8(pairs));
                end += is_common.count_ones().div_ceil(2) as usize;

                let is_whole = _mm512_cmpeq_epi8_mask(codes, _mm512_set1_epi8(WHOLE as i8)) & there;
                let is_second = is_rare & !is_whole;
                mem::store64(out.add(end), _pext_u64(is_whole, is_rare));
                end += is_rare.count_ones().div_ceil(8) as usize;
                let codes = _mm512_sub_epi8(codes, _mm512_set1_epi8(FIRST as i8));
                let codes = _mm512_maskz_compress_epi8(is_second, codes);
                // Joins two codes to ten bits, four to twenty, eight to forty.
                let codes = _mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x2001));
                let codes = _mm512_madd_epi16(codes, _mm512_set1_epi32(0x0400_0001));
                let codes = _mm512_or_si512(
                    _mm512_and_si512(codes, _mm512_set1_epi64(0xF_FFFF)),
                    _mm512_and_si512(_mm512_srli_epi64::<12>(codes), _mm512_set1_epi64(0xFF_FFF0_0000)),
                );
                _mm512_storeu_si512(out.add(end).cast(), _mm512_permutexvar_epi8(fives, codes));
                end += (5 * is_second.count_ones()).div_ceil(8) as usize;
                _mm512_storeu_si512(out.add(end).cast(), _mm512_maskz_compress_epi8(is_whole, here));
                end += is_whole.count_ones() as usize;
            }
        }
        end
    }

    /// # Safety
    /// None beyond the CPU features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,bmi2,popcnt")]
    pub(super) unsafe fn unpack_avx512(
        palette: &Palette,
        bits: &[u8],
        body: &[u8],
        count: usize,
        out: &mut Room,
    ) -> Option<usize> {
        // SAFETY: the arrays have 16, 32 and 64 bytes.
        let (first, second, from_fives) = unsafe {
            let first = _mm_loadu_si128(palette.first.as_ptr().cast());
            let second = _mm256_loadu_si256(palette.second.as_ptr().cast());
            let from_fives = _mm512_loadu_si512(FROM_FIVES.as_ptr().cast());
            (_mm512_broadcast_i32x4(first), _mm512_castsi256_si512(second), from_fives)
        };
        // The places of eight codes in a word.
        let fives = _mm512_set1_epi64(0x231E_1914_0F0A_0500);
        groups(bits, body, count, out, |group, out| {
            // SAFETY: the group has 32 bytes for halves at its start, and 64 from `codes` and from
            // `whole`.
            unsafe {
                let from = group.bytes.as_ptr();
                let halves = _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.cast()));
                let halves = _mm512_or_si512(halves, _mm512_slli_epi16::<4>(halves));
                let halves = _mm512_and_si512(halves, _mm512_set1_epi8(15));
                let codes = _mm512_loadu_si512(from.add(group.codes).cast());
                let codes = _mm512_permutexvar_epi8(from_fives, codes);
                let codes = _mm512_multishift_epi64_epi8(fives, codes);
                let codes = _mm512_and_si512(codes, _mm512_set1_epi8(31));
                let second = _mm512_permutexvar_epi8(codes, second);
                let whole = _mm512_loadu_si512(from.add(group.whole).cast());
                let is_whole = _pdep_u64(group.is_whole, group.is_rare);
                let all = _mm512_maskz_expand_epi8(!group.is_rare, _mm512_shuffle_epi8(first, halves));
                let all = _mm512_mask_expand_epi8(all, group.is_rare & !is_whole, second);
                let all = _mm512_mask_expand_epi8(all, is_whole, whole);
                _mm512_storeu_si512(out.as_mut_ptr().cast(), all);
            }
        })
    }
}

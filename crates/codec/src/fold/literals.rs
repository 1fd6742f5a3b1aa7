//! The literals' code (`docs/fold.md`, "Literals"): half a byte for each of sixteen common values, and a bit for every
//! literal that says whether it is one of them.
//!
//! ```text
//! for each literal: if its bit is 1, it is the next whole byte; else the palette's value for the next four bits
//! ```
//!
//! The three parts (bits, halves, whole bytes) are apart, so that many literals are merged at once: 64 by AVX-512's
//! expansion of bytes under a mask, 8 by a shuffle for each of the 256 patterns that eight bits have.
#![allow(unsafe_code)] // Loads and stores of whole registers past the ends, where both sides have room for it.

use super::Isa;
use crate::PAGE_SIZE;

/// How many palettes there are. 0 in a header means that the literals are not coded.
pub(super) const PALETTES_COUNT: usize = 7;

/// How far past the literals of a page the functions here and the decoder's loop read and write.
pub(super) const SLACK: usize = 64;

/// Each palette's values, in the order of their codes. Fitted to the literals of heaps, binaries and text.
#[rustfmt::skip]
pub(super) static PALETTES: [[u8; 16]; PALETTES_COUNT] = [
    *b"\x00\x01\x0f$ADHL\x83\x85\x89\x8b\x8d\xc0\xe8\xff",
    *b" acdehilmnoprstu",
    *b"\x00\x01 -.0123456789\xb0",
    *b"\x00\x10 0@P`p\x80\x90\xb0\xc0\xd0\xe0\xf0\xff",
    *b"\x00-_acdeilmnoprst",
    *b"\x00 12ACEILNOPRST_",
    *b"\x00\x01\x09!)19AIai\x81\x89\xa9\xc9\xe9",
];

/// [`CODES`] of a value that is not in the palette.
const WHOLE: u8 = 16;

/// Each value's code in each palette, or [`WHOLE`].
static CODES: [[u8; 256]; PALETTES_COUNT] = {
    let mut out = [[WHOLE; 256]; PALETTES_COUNT];
    let mut palette = 0;
    while palette < PALETTES_COUNT {
        let mut code = 0;
        while code < 16 {
            out[palette][PALETTES[palette][code] as usize] = code as u8;
            code += 1;
        }
        palette += 1;
    }
    out
};

/// For each value, a byte for each palette: 1 if the value is in it.
static MEMBERS: [u64; 256] = {
    let mut out = [0; 256];
    let mut palette = 0;
    while palette < PALETTES_COUNT {
        let mut code = 0;
        while code < 16 {
            out[PALETTES[palette][code] as usize] |= 1 << (8 * palette);
            code += 1;
        }
        palette += 1;
    }
    out
};

/// For each eight bits: which of 16 bytes become the eight literals that the bits speak of. The first eight are whole
/// bytes, the others the palette's.
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

/// Literals of a group: as many as a word has bits.
const GROUP: usize = 64;

/// Most bytes that the halves and whole bytes of a group are read from, whatever it holds.
const GROUP_READ: usize = GROUP / 2 + GROUP;

/// The palette, from 1 on, that codes a sample of `literals` best, or 0 where none is worth the time it takes.
pub(super) fn choose(literals: &[u8]) -> usize {
    /// As many fit the bytes of a word.
    const SAMPLE: usize = 128;
    /// The code saves space from a quarter on.
    const SHARE_PERCENT: usize = 33;
    if literals.len() < 32 {
        return 0;
    }
    let step = literals.len().div_ceil(SAMPLE);
    let mut counts = 0;
    for &literal in literals.iter().step_by(step) {
        counts += MEMBERS[usize::from(literal)];
    }
    let taken = literals.len().div_ceil(step);
    let counts = counts.to_le_bytes();
    let (mut best, mut most) = (0, taken * SHARE_PERCENT / 100);
    for (palette, &count) in counts.iter().enumerate().take(PALETTES_COUNT) {
        if usize::from(count) > most {
            (best, most) = (palette + 1, usize::from(count));
        }
    }
    best
}

/// Room for a page's literals, coded or not, and for what is read and written past them.
pub(super) type Room = [u8; PAGE_SIZE + PAGE_SIZE / 8 + 2 * SLACK];

pub(super) const EMPTY: Room = [0; PAGE_SIZE + PAGE_SIZE / 8 + 2 * SLACK];

/// Codes the first `count` of `literals`, at most a page, with `palette`, from 1 on. Returns the section's bytes.
pub(super) fn pack(isa: Isa, palette: usize, literals: &Room, count: usize, out: &mut Room) -> usize {
    let palette = (palette - 1) % PALETTES_COUNT;
    let count = count.min(PAGE_SIZE);
    match isa {
        // SAFETY: the stream found the features before it chose the build; `count` is at most a page.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::pack_avx512(palette, literals, count, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::pack_avx2(palette, literals, count, out) },
        Isa::Portable => pack_portable(palette, literals, count, out),
    }
}

/// Codes literals one by one.
fn pack_portable(palette: usize, literals: &Room, count: usize, out: &mut Room) -> usize {
    let codes = &CODES[palette];
    let mut end = count.div_ceil(8);
    for (group, bits) in literals[..count].chunks(GROUP).zip((0..end).step_by(8)) {
        let (mut wide, mut common) = (0_u64, 0);
        let mut halves = [0; GROUP / 2];
        for (at, &literal) in group.iter().enumerate() {
            let code = codes[usize::from(literal)];
            if code == WHOLE {
                wide |= 1 << at;
            } else {
                halves[common / 2] |= code << (4 * (common % 2));
                common += 1;
            }
        }
        let bits_len = group.len().div_ceil(8);
        out[bits..bits + bits_len].copy_from_slice(&wide.to_le_bytes()[..bits_len]);
        let halves = &halves[..common.div_ceil(2)];
        out[end..end + halves.len()].copy_from_slice(halves);
        end += halves.len();
        for (at, &literal) in group.iter().enumerate() {
            out[end] = literal;
            end += (wide >> at & 1) as usize;
        }
    }
    end
}

/// Writes the `count` literals, at most a page, that begin `coded` in `palette`'s code, counted from 1, to `out`. Returns
/// how many bytes of `coded` they took, or `None` if it is too short or has a bit too much; `out` may then hold anything.
pub(super) fn unpack(isa: Isa, palette: usize, coded: &[u8], count: usize, out: &mut Room) -> Option<usize> {
    let palette = (palette - 1) % PALETTES_COUNT;
    let (bits, body) = coded.split_at_checked(count.min(PAGE_SIZE).div_ceil(8))?;
    let body_len = match isa {
        // SAFETY: the stream found the features before it chose the build.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::unpack_avx512(palette, bits, body, count, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::unpack_avx2(palette, bits, body, count, out) },
        Isa::Portable => unpack_portable(palette, bits, body, count, out),
    }?;
    Some(bits.len() + body_len)
}

/// Merges literals by eights, byte by byte.
fn unpack_portable(palette: usize, bits: &[u8], body: &[u8], count: usize, out: &mut Room) -> Option<usize> {
    let palette = &PALETTES[palette];
    groups(bits, body, count, out, |group, wide, common, out| {
        let (halves, whole) = group.split_at(common.div_ceil(2));
        let mut values = [0; GROUP];
        for (pair, half) in values.as_chunks_mut::<2>().0.iter_mut().zip(halves) {
            *pair = [palette[usize::from(half & 15)], palette[usize::from(half >> 4)]];
        }
        let (mut at_whole, mut at_common) = (0, 0);
        for (bits, out) in wide.to_le_bytes().into_iter().zip(out.as_chunks_mut::<8>().0) {
            let mut both = [0; 16];
            both[..8].copy_from_slice(&whole[at_whole..at_whole + 8]);
            both[8..].copy_from_slice(&values[at_common..at_common + 8]);
            *out = MERGES[usize::from(bits)].map(|from| both[usize::from(from % 16)]);
            let rare = bits.count_ones() as usize;
            at_whole += rare;
            at_common += 8 - rare;
        }
    })
}

/// Calls `merge` for each group with the group's halves and whole bytes (and what follows them), the word that says
/// which literals are whole, how many are not, and where to write 64 literals. Returns the bytes that the groups took.
#[inline(always)]
fn groups(
    bits: &[u8],
    body: &[u8],
    count: usize,
    out: &mut Room,
    merge: impl Fn(&[u8; GROUP_READ], u64, usize, &mut [u8; GROUP]),
) -> Option<usize> {
    let mut at = 0;
    let mut left = count;
    for (out, bits) in out.as_chunks_mut::<GROUP>().0.iter_mut().zip(bits.chunks(8)) {
        let wide = match bits.first_chunk::<8>() {
            Some(word) => u64::from_le_bytes(*word),
            None => {
                let mut word = [0; 8];
                word[..bits.len()].copy_from_slice(bits);
                u64::from_le_bytes(word)
            }
        };
        let here = left.min(GROUP);
        if here < GROUP && wide >> here != 0 {
            return None;
        }
        let whole = wide.count_ones() as usize;
        let common = here - whole;
        let rest = body.get(at..)?;
        match rest.first_chunk::<GROUP_READ>() {
            Some(group) => merge(group, wide, common, out),
            None => {
                let mut group = [0; GROUP_READ];
                group[..rest.len()].copy_from_slice(rest);
                merge(&group, wide, common, out);
            }
        }
        at += common.div_ceil(2) + whole;
        left -= here;
    }
    (at <= body.len()).then_some(at)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;

    use super::{CODES, GROUP, MERGES, PALETTES, PALETTES_COUNT, Room, WHOLE, groups};
    use crate::mem;

    /// A palette's codes, changed by [`WHOLE`], in rows: those of the values whose high half is the row's, by the low half. 0 for
    /// other values.
    struct Rows {
        count: usize,
        rows: [(u8, [u8; 16]); 16],
    }

    static ROWS: [Rows; PALETTES_COUNT] = {
        let mut out = [const { Rows { count: 0, rows: [(0, [0; 16]); 16] } }; PALETTES_COUNT];
        let mut palette = 0;
        while palette < PALETTES_COUNT {
            let mut high = 0;
            while high < 16 {
                let (mut row, mut has_any, mut low) = ([0; 16], false, 0);
                while low < 16 {
                    let code = CODES[palette][high * 16 + low];
                    row[low] = code ^ WHOLE;
                    has_any |= code != WHOLE;
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
    };

    /// For each eight bits, the places of those that are 1.
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

    /// The codes of 32 literals.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn codes_of(rows: &Rows, literals: __m256i) -> __m256i {
        let mut codes = _mm256_set1_epi8(WHOLE as i8);
        for (high, row) in &rows.rows[..rows.count] {
            // The high half becomes 7 where it is the row's, and 8 or more elsewhere, for which the shuffle gives 0.
            let at = _mm256_xor_si256(literals, _mm256_set1_epi8((high << 4) as i8));
            let at = _mm256_adds_epu8(at, _mm256_set1_epi8(0x70));
            // SAFETY: a row has 16 bytes.
            let row = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(row.as_ptr().cast()) });
            codes = _mm256_xor_si256(codes, _mm256_shuffle_epi8(row, at));
        }
        codes
    }

    /// # Safety
    /// `count` is at most a page.
    #[target_feature(enable = "avx2,popcnt")]
    pub(super) unsafe fn pack_avx2(palette: usize, literals: &Room, count: usize, out: &mut Room) -> usize {
        let rows = &ROWS[palette];
        let out = out.as_mut_ptr();
        let mut end = count.div_ceil(8);
        for group in (0..count).step_by(GROUP) {
            let (mut all, mut codes, mut whole) = ([0_u8; GROUP], [0_u8; GROUP + 8], [0_u8; GROUP + 8]);
            let (mut codes_len, mut whole_len) = (0, 0);
            let mut wide = 0;
            // SAFETY: `count` is at most a page, so all reads of literals and all writes are less than GROUP past what
            // the coded literals of a page may take. In `codes` and `whole`, 8 bytes are written at 56 or below.
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
                out.add(end).cast::<[u8; GROUP + 8]>().write(whole);
                end += whole_len;
            }
        }
        end
    }

    /// # Safety
    /// None beyond the features.
    #[target_feature(enable = "avx2,popcnt")]
    pub(super) unsafe fn unpack_avx2(
        palette: usize,
        bits: &[u8],
        body: &[u8],
        count: usize,
        out: &mut Room,
    ) -> Option<usize> {
        // SAFETY: a palette has 16 bytes.
        let palette = unsafe { _mm_loadu_si128(PALETTES[palette].as_ptr().cast()) };
        groups(bits, body, count, out, |group, wide, common, out| {
            let mut values = [0_u8; GROUP + 8];
            for at in [0, 16] {
                // SAFETY: 16 of the 32 bytes for halves are read, and 32 of 64 values written.
                unsafe {
                    let halves = _mm_loadu_si128(group.as_ptr().add(at).cast());
                    let low = _mm_and_si128(halves, _mm_set1_epi8(15));
                    let high = _mm_and_si128(_mm_srli_epi16::<4>(halves), _mm_set1_epi8(15));
                    let (low, high) = (_mm_shuffle_epi8(palette, low), _mm_shuffle_epi8(palette, high));
                    let to = values.as_mut_ptr().add(2 * at).cast::<__m128i>();
                    _mm_storeu_si128(to, _mm_unpacklo_epi8(low, high));
                    _mm_storeu_si128(to.add(1), _mm_unpackhi_epi8(low, high));
                }
            }
            let (mut whole, mut common) = (common.div_ceil(2), 0);
            for (bits, out) in wide.to_le_bytes().into_iter().zip(out.as_chunks_mut::<8>().0) {
                // SAFETY: `whole` is at most 32 + 56 there, `common` at most 56, both with 8 bytes behind them.
                unsafe {
                    let rare = _mm_loadl_epi64(group.as_ptr().add(whole).cast());
                    let frequent = _mm_loadl_epi64(values.as_ptr().add(common).cast());
                    let order = _mm_loadl_epi64(MERGES[usize::from(bits)].as_ptr().cast());
                    let merged = _mm_shuffle_epi8(_mm_unpacklo_epi64(rare, frequent), order);
                    _mm_storel_epi64(out.as_mut_ptr().cast(), merged);
                }
                let rare = bits.count_ones() as usize;
                whole += rare;
                common += 8 - rare;
            }
        })
    }

    /// # Safety
    /// `count` is at most a page.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
    pub(super) unsafe fn pack_avx512(palette: usize, literals: &Room, count: usize, out: &mut Room) -> usize {
        let table = CODES[palette].as_ptr();
        let out = out.as_mut_ptr();
        let mut end = count.div_ceil(8);
        // SAFETY: `count` is at most a page, so all reads of literals and all writes are less than GROUP past what the
        // coded literals of a page may take.
        unsafe {
            let tables: [__m512i; 4] = core::array::from_fn(|at| _mm512_loadu_si512(table.add(64 * at).cast()));
            for group in (0..count).step_by(GROUP) {
                let here = _mm512_loadu_si512(literals.as_ptr().add(group).cast());
                let low = _mm512_permutex2var_epi8(tables[0], here, tables[1]);
                let high = _mm512_permutex2var_epi8(tables[2], here, tables[3]);
                let codes = _mm512_mask_blend_epi8(_mm512_movepi8_mask(here), low, high);
                let there = u64::MAX >> (64 - (count - group).min(64));
                let wide = _mm512_test_epi8_mask(codes, _mm512_set1_epi8(WHOLE as i8)) & there;
                let common = (!wide & there).count_ones() as usize;
                if count - group >= GROUP {
                    mem::store64(out.add(group / 8), wide);
                } else {
                    let bits = wide.to_le_bytes();
                    out.add(group / 8).copy_from_nonoverlapping(bits.as_ptr(), (count - group).div_ceil(8));
                }
                let codes = _mm512_maskz_compress_epi8(!wide & there, codes);
                let pairs = _mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x1001));
                _mm256_storeu_si256(out.add(end).cast(), _mm512_cvtepi16_epi8(pairs));
                end += common.div_ceil(2);
                _mm512_storeu_si512(out.add(end).cast(), _mm512_maskz_compress_epi8(wide, here));
                end += wide.count_ones() as usize;
            }
        }
        end
    }

    /// # Safety
    /// None beyond the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
    pub(super) unsafe fn unpack_avx512(
        palette: usize,
        bits: &[u8],
        body: &[u8],
        count: usize,
        out: &mut Room,
    ) -> Option<usize> {
        // SAFETY: a palette has 16 bytes.
        let values = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(PALETTES[palette].as_ptr().cast()) });
        groups(bits, body, count, out, |group, wide, common, out| {
            // SAFETY: the group has 32 bytes for halves at its start, and 64 for whole bytes behind as many as there are.
            unsafe {
                let halves = _mm512_cvtepu8_epi16(_mm256_loadu_si256(group.as_ptr().cast()));
                let halves = _mm512_or_si512(halves, _mm512_slli_epi16::<4>(halves));
                let halves = _mm512_and_si512(halves, _mm512_set1_epi8(15));
                let frequent = _mm512_maskz_expand_epi8(!wide, _mm512_shuffle_epi8(values, halves));
                let whole = _mm512_loadu_si512(group.as_ptr().add(common.div_ceil(2)).cast());
                let rare = _mm512_maskz_expand_epi8(wide, whole);
                _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_or_si512(rare, frequent));
            }
        })
    }
}

//! The literals' code (`docs/fold.md`, "Literals"): half a byte for each of sixteen common values, and a bit for every
//! literal that says whether it is one of them.
//!
//! ```text
//! for each literal: if its bit is 1, it is the next whole byte; else the palette's value for the next four bits
//! ```
//!
//! The three parts (bits, halves, whole bytes) are apart, so that many literals are merged at once: 64 by AVX-512's
//! expansion of bytes under a mask, 8 by BMI2's deposit of bits.
#![allow(unsafe_code)] // Loads and stores of whole registers past the ends, where both sides have room for it.

use core::hint::select_unpredictable;

use super::Isa;
use crate::{PAGE_SIZE, mem};

/// How many palettes there are. 0 in a header means that the literals are not coded.
pub(super) const PALETTES_COUNT: usize = 7;

/// How far past a section, and past the room for its literals, the functions here read and write.
pub(super) const SLACK: usize = 64;

/// Each palette's values, in the order of their codes. Fitted to the literals of heaps, binaries and text.
#[rustfmt::skip]
pub(super) static PALETTES: [[u8; 16]; PALETTES_COUNT] = [
    *b"\x00\x01\x09!)19AIai\x81\x89\xa9\xc9\xe9",
    *b"\x00\x01\x0f$ADHL\x83\x85\x89\x8b\x8d\xc0\xe8\xff",
    *b"\x00 .0123456789AE_",
    *b"\x00\x10 0@P`p\x80\x90\xa0\xb0\xc0\xd0\xe0\xf0",
    *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0e\x10\xff",
    *b" \">acdeilmnorst\xd0",
    *b" _acdeilmnoprstu",
];

/// Two halves of a byte to their values, the low one first.
type Pairs = [[u8; 2]; 256];

static PAIRS: [Pairs; PALETTES_COUNT] = {
    let mut out = [[[0; 2]; 256]; PALETTES_COUNT];
    let mut palette = 0;
    while palette < PALETTES_COUNT {
        let mut byte = 0;
        while byte < 256 {
            out[palette][byte] = [PALETTES[palette][byte & 15], PALETTES[palette][byte >> 4]];
            byte += 1;
        }
        palette += 1;
    }
    out
};

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

/// Where the parts of a section of coded literals end, in bytes from its start.
#[derive(Clone, Copy)]
pub(super) struct Section {
    literals: usize,
    halves_at: usize,
    whole_at: usize,
    pub(super) len: usize,
}

impl Section {
    fn new(literals: usize, whole: usize) -> Self {
        let halves_at = literals.div_ceil(8);
        let whole_at = halves_at + (literals - whole).div_ceil(2);
        Self { literals, halves_at, whole_at, len: whole_at + whole }
    }

    /// The section at the start of `bytes`, if it is in there whole.
    pub(super) fn find(bytes: &[u8], literals: usize) -> Option<Self> {
        let bits = bytes.get(..literals.div_ceil(8))?;
        let mut whole = 0;
        let (words, last) = bits.as_chunks::<8>();
        for word in words {
            whole += u64::from_le_bytes(*word).count_ones() as usize;
        }
        for byte in last {
            whole += byte.count_ones() as usize;
        }
        // Bits past the last literal would make `whole` larger than it is.
        if !literals.is_multiple_of(8) && bits.last()? >> (literals % 8) != 0 {
            return None;
        }
        let section = Self::new(literals, whole);
        (section.len <= bytes.len()).then_some(section)
    }
}

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

/// Room for a page's literals, or for their codes, and for what is read and written past them.
pub(super) type Room = [u8; PAGE_SIZE + 2 * SLACK];

/// Coded literals on the way to an object.
pub(super) struct Packed {
    bits: [u8; PAGE_SIZE / 8 + SLACK],
    halves: [u8; PAGE_SIZE / 2 + SLACK],
    whole: Room,
    /// A byte for each code.
    codes: Room,
    section: Section,
}

impl Packed {
    pub(super) fn new() -> Self {
        let room = [0; PAGE_SIZE + 2 * SLACK];
        let (bits, halves) = ([0; PAGE_SIZE / 8 + SLACK], [0; PAGE_SIZE / 2 + SLACK]);
        Self { bits, halves, whole: room, codes: room, section: Section::new(0, 0) }
    }

    /// Codes the first `count` of `literals`, at most a page, with `palette`, from 1 on. Returns the section's bytes.
    pub(super) fn pack(&mut self, isa: Isa, palette: usize, literals: &Room, count: usize) -> usize {
        let palette = (palette - 1) % PALETTES_COUNT;
        let count = count.min(PAGE_SIZE);
        // SAFETY: the stream found the features before it chose the build; `count` is at most a page.
        let whole = unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => x86::pack_avx512(self, palette, literals, count),
                #[cfg(target_arch = "x86_64")]
                Isa::Bmi => x86::pack_bmi(self, palette, literals, count),
                Isa::Portable => pack_portable(self, palette, literals, count),
            }
        };
        self.section = Section::new(count, whole);
        self.section.len
    }

    /// The parts of the section that [`pack`](Self::pack) made last.
    pub(super) fn parts(&self) -> [&[u8]; 3] {
        let Section { halves_at, whole_at, len, .. } = self.section;
        [&self.bits[..halves_at], &self.halves[..whole_at - halves_at], &self.whole[..len - whole_at]]
    }
}

/// Codes literals one by one. Returns how many are whole.
fn pack_portable(to: &mut Packed, palette: usize, literals: &Room, count: usize) -> usize {
    let codes = &CODES[palette];
    let (mut whole, mut common) = (0, 0);
    for (group, bits) in literals[..count].chunks(8).zip(&mut to.bits) {
        *bits = 0;
        for (at, &literal) in group.iter().enumerate() {
            let code = codes[usize::from(literal)];
            let is_whole = code >> 4;
            *bits |= is_whole << at;
            to.whole[whole] = literal;
            to.codes[common] = code;
            whole += usize::from(is_whole);
            common += usize::from(1 - is_whole);
        }
    }
    to.codes[common] = 0;
    for (pair, byte) in to.codes[..common.next_multiple_of(2)].as_chunks::<2>().0.iter().zip(&mut to.halves) {
        *byte = pair[0] | pair[1] << 4;
    }
    whole
}

/// Writes the literals of `section`, which begins at `coded`, to `out`. `palette` counts from 1. `codes` is scratch.
///
/// # Safety
/// `section.len + SLACK` bytes can be read from `coded`, and `section` is what [`Section::find`] found there.
pub(super) unsafe fn unpack(
    isa: Isa,
    palette: usize,
    section: Section,
    coded: *const u8,
    out: &mut Room,
    codes: &mut Room,
) {
    let palette = (palette - 1) % PALETTES_COUNT;
    // SAFETY: the caller's; the stream found the features before it chose the build.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::unpack_avx512(palette, section, coded, out, codes),
            #[cfg(target_arch = "x86_64")]
            Isa::Bmi => x86::unpack_bmi(palette, section, coded, out, codes),
            Isa::Portable => unpack_portable(palette, section, coded, out),
        }
    }
}

/// # Safety
/// That of [`unpack`].
unsafe fn unpack_portable(palette: usize, section: Section, coded: *const u8, out: &mut Room) {
    let values = &PALETTES[palette];
    let (mut half, mut whole) = (2 * section.halves_at, section.whole_at);
    for (at, out) in out[..section.literals].iter_mut().enumerate() {
        // SAFETY: a bit, a half and a whole byte are taken no further than the section's end, and looked at in the slack.
        unsafe {
            let is_whole = *coded.add(at / 8) >> (at % 8) & 1;
            let common = values[usize::from(*coded.add(half / 2) >> (4 * (half % 2)) & 15)];
            *out = select_unpredictable(is_whole == 1, *coded.add(whole), common);
            whole += usize::from(is_whole);
            half += usize::from(1 - is_whole);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;

    use super::{CODES, PAIRS, PALETTES, Packed, Room, Section, WHOLE, mem};

    /// The lowest bit of each byte.
    const ONES: u64 = 0x0101_0101_0101_0101;

    /// # Safety
    /// `count` is at most a page.
    #[target_feature(enable = "bmi1,bmi2,popcnt")]
    pub(super) unsafe fn pack_bmi(to: &mut Packed, palette: usize, literals: &Room, count: usize) -> usize {
        let table = &CODES[palette];
        let whole_start = to.whole.as_mut_ptr();
        let codes_start = to.codes.as_mut_ptr();
        let (mut whole, mut codes) = (whole_start, codes_start);
        // SAFETY: 8 bytes are read and written at a time, at most 7 past a page, and everything has more room.
        unsafe {
            for (group, bits) in (0..count).step_by(8).zip(&mut to.bits) {
                let here = mem::load64(literals.as_ptr().add(group));
                let mut found = 0;
                for (at, literal) in here.to_le_bytes().into_iter().enumerate() {
                    found |= u64::from(table[usize::from(literal)]) << (8 * at);
                }
                let there = u64::MAX >> (64 - 8 * (count - group).min(8));
                let wide = ((found >> WHOLE.trailing_zeros()) & ONES & there) * 0xFF;
                *bits = _pext_u64(wide, ONES) as u8;
                mem::store64(whole, _pext_u64(here, wide));
                mem::store64(codes, _pext_u64(found, !wide & there));
                whole = whole.add(bits.count_ones() as usize);
                codes = codes.add(8.min(count - group) - bits.count_ones() as usize);
            }
            mem::store64(codes, 0);
            let mut from = codes_start.cast_const();
            for four in to.halves.as_chunks_mut::<4>().0 {
                if from >= codes.cast_const() {
                    break;
                }
                *four = (_pext_u64(mem::load64(from), 0x0F * ONES) as u32).to_le_bytes();
                from = from.add(8);
            }
        }
        whole.addr() - whole_start.addr()
    }

    /// # Safety
    /// That of [`unpack`](super::unpack).
    #[target_feature(enable = "bmi1,bmi2,popcnt")]
    pub(super) unsafe fn unpack_bmi(
        palette: usize,
        section: Section,
        coded: *const u8,
        out: &mut Room,
        codes: &mut Room,
    ) {
        let pairs = &PAIRS[palette];
        // SAFETY: halves are read inside the section; 8 bytes are read and written at a time, at most 7 past a page in
        // `out` and `codes`, and as far into the slack of `coded`.
        unsafe {
            for (half, pair) in (section.halves_at..section.whole_at).zip(codes.as_chunks_mut::<2>().0) {
                *pair = pairs[usize::from(*coded.add(half))];
            }
            let mut whole = coded.add(section.whole_at);
            let mut common = codes.as_ptr();
            for group in 0..section.halves_at {
                let bits = *coded.add(group);
                let wide = _pdep_u64(u64::from(bits), ONES) * 0xFF;
                let merged = _pdep_u64(mem::load64(whole), wide) | _pdep_u64(mem::load64(common), !wide);
                mem::store64(out.as_mut_ptr().add(8 * group), merged);
                whole = whole.add(bits.count_ones() as usize);
                common = common.add(bits.count_zeros() as usize);
            }
        }
    }

    /// # Safety
    /// `count` is at most a page.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
    pub(super) unsafe fn pack_avx512(to: &mut Packed, palette: usize, literals: &Room, count: usize) -> usize {
        let table = CODES[palette].as_ptr();
        let whole_start = to.whole.as_mut_ptr();
        let codes_start = to.codes.as_mut_ptr();
        let (mut whole, mut codes) = (whole_start, codes_start);
        // SAFETY: 64 bytes are read and written at a time, less than 64 past a page, and everything has more room; half
        // and an eighth of that are written to `halves` and `bits`, which have half and an eighth of a page and room.
        unsafe {
            let tables: [__m512i; 4] = core::array::from_fn(|at| _mm512_loadu_si512(table.add(64 * at).cast()));
            for group in (0..count).step_by(64) {
                let here = _mm512_loadu_si512(literals.as_ptr().add(group).cast());
                let low = _mm512_permutex2var_epi8(tables[0], here, tables[1]);
                let high = _mm512_permutex2var_epi8(tables[2], here, tables[3]);
                let found = _mm512_mask_blend_epi8(_mm512_movepi8_mask(here), low, high);
                let there = u64::MAX >> (64 - (count - group).min(64));
                let wide = _mm512_test_epi8_mask(found, _mm512_set1_epi8(WHOLE as i8)) & there;
                mem::store64(to.bits.as_mut_ptr().add(group / 8), wide);
                _mm512_storeu_si512(whole.cast(), _mm512_maskz_compress_epi8(wide, here));
                _mm512_storeu_si512(codes.cast(), _mm512_maskz_compress_epi8(!wide & there, found));
                whole = whole.add(wide.count_ones() as usize);
                codes = codes.add((!wide & there).count_ones() as usize);
            }
            let common = codes.addr() - codes_start.addr();
            for group in (0..common).step_by(64) {
                let found = _mm512_loadu_si512(codes_start.add(group).cast());
                let pairs = _mm512_maddubs_epi16(found, _mm512_set1_epi16(0x1001));
                let halves = to.halves.as_mut_ptr().add(group / 2);
                _mm256_storeu_si256(halves.cast(), _mm512_cvtepi16_epi8(pairs));
            }
        }
        whole.addr() - whole_start.addr()
    }

    /// # Safety
    /// That of [`unpack`](super::unpack).
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
    pub(super) unsafe fn unpack_avx512(
        palette: usize,
        section: Section,
        coded: *const u8,
        out: &mut Room,
        codes: &mut Room,
    ) {
        // SAFETY: 64 bytes at a time, less than 64 past a page in `out` and `codes`; of `coded`, less than 64 past the
        // section are read.
        unsafe {
            let values = _mm512_broadcast_i32x4(_mm_loadu_si128(PALETTES[palette].as_ptr().cast()));
            let mut common = codes.as_mut_ptr();
            for half in (section.halves_at..section.whole_at).step_by(32) {
                let halves = _mm512_cvtepu8_epi16(_mm256_loadu_si256(coded.add(half).cast()));
                let halves = _mm512_or_si512(halves, _mm512_slli_epi16::<4>(halves));
                let halves = _mm512_and_si512(halves, _mm512_set1_epi8(15));
                _mm512_storeu_si512(common.cast(), _mm512_shuffle_epi8(values, halves));
                common = common.add(64);
            }
            let mut whole = coded.add(section.whole_at);
            let mut common = codes.as_ptr();
            for group in (0..section.literals).step_by(64) {
                let wide = mem::load64(coded.add(group / 8));
                let there = u64::MAX >> (64 - (section.literals - group).min(64));
                let wide = wide & there;
                let rare = _mm512_maskz_expand_epi8(wide, _mm512_loadu_si512(whole.cast()));
                let frequent = _mm512_maskz_expand_epi8(!wide, _mm512_loadu_si512(common.cast()));
                _mm512_storeu_si512(out.as_mut_ptr().add(group).cast(), _mm512_or_si512(rare, frequent));
                whole = whole.add(wide.count_ones() as usize);
                common = common.add(wide.count_zeros() as usize);
            }
        }
    }
}

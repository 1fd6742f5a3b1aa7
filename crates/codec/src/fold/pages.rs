//! Pages for tests: the same on every machine, or of any content.

use std::sync::LazyLock;

use proptest::{collection::vec, prelude::*, sample::Index};

use super::{
    literals::{PALETTES, Palette},
    shared::REACH,
};
use crate::{PAGE_SIZE, Page};

/// Content that a store's pages may share: heaps, text and floats.
pub(super) static DICTIONARY: LazyLock<Vec<u8>> =
    LazyLock::new(|| (1..16).flat_map(page_of_any_kind).take(REACH).collect());

pub(super) fn page_of(bytes: impl IntoIterator<Item = u8>) -> Page {
    let mut page = [0; PAGE_SIZE];
    for (to, byte) in page.iter_mut().zip(bytes) {
        *to = byte;
    }
    page
}

/// Pseudo-random numbers that are the same on every machine and with every library version.
pub(super) struct Lcg(pub(super) u64);

impl Lcg {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Records of a counter, a type, and two pointers, as a heap has them.
pub(super) fn heap_page(seed: u64) -> Page {
    let mut random = Lcg(seed);
    let words = (0..PAGE_SIZE / 8).map(|at| match at % 6 {
        0 => 1 + random.below(3),
        1 => 0x7f31_a0c2_8000 + 64 * random.below(4),
        2 => random.below(5),
        3 | 4 => 0x7f31_9c00_0000 + 16 * random.below(1 << 16),
        _ => 0,
    });
    page_of(words.flat_map(u64::to_le_bytes).collect::<Vec<_>>())
}

pub(super) fn text_page(seed: u64) -> Page {
    let mut random = Lcg(seed);
    let words = ["page", "slot", "the", "of", "compressed", "entry", "run", "lock", "and", "object", "class"];
    let mut text = String::new();
    while text.len() < PAGE_SIZE {
        text += words[random.below(words.len() as u64) as usize];
        text += if random.below(9) == 0 { ".\n" } else { " " };
    }
    page_of(text.into_bytes())
}

/// Floats with a few digits, in records of 16 bytes if the seed is even.
pub(super) fn float_page(seed: u64) -> Page {
    let mut random = Lcg(seed);
    let floats = (0..PAGE_SIZE / 4).map(|at| match at % 4 {
        0 if seed.is_multiple_of(2) => random.below(40) as f32 * 1000.0,
        _ => (2000 + random.below(300)) as f32 / 100.0,
    });
    page_of(floats.flat_map(f32::to_le_bytes).collect::<Vec<_>>())
}

/// Records of 16 bytes whose changing bytes lie apart, so that none of four bytes repeats among the
/// literals.
pub(super) fn record_page(seed: u64) -> Page {
    let mut random = Lcg(seed);
    let byte = |at: usize| if [0, 1, 4, 8].contains(&(at % 16)) { random.below(256) } else { at as u64 % 16 + 1 };
    page_of((0..PAGE_SIZE).map(byte).map(|byte| byte as u8).collect::<Vec<_>>())
}

/// Rows of a table space like InnoDB's: headers, a rising key, a transaction, and fields of four or
/// five bytes with 40 to 80 values among random bytes.
pub(super) fn row_page(seed: u64) -> Page {
    let mut random = Lcg(seed);
    let first = random.below(1 << 24) as u32;
    let value =
        |column: u64, number: u64| ((column << 32) + number + 1).wrapping_mul(0x9E37_79B1_85EB_CA87).to_be_bytes();
    let mut bytes = Vec::new();
    for row in 0..PAGE_SIZE as u32 / 40 {
        bytes.extend([0, 0, (row >> 5) as u8, (row << 3) as u8, 0, 30 + random.below(20) as u8]);
        bytes.extend((0x8000_0000 | (first + row)).to_be_bytes());
        bytes.extend(&value(0, u64::from(first))[..6]);
        bytes.extend([0x80, 0, 0, 1, (row >> 8) as u8, row as u8]);
        bytes.extend(&value(1, random.below(60))[..4]);
        bytes.extend((0..4).map(|_| random.below(256) as u8));
        bytes.extend(&value(2, random.below(40))[..4]);
        bytes.extend((0..2).map(|_| random.below(256) as u8));
        bytes.extend(&value(3, random.below(80))[..5]);
    }
    page_of(bytes)
}

/// Rows of `fields` with `values` values each, of four or five bytes, and as many random bytes
/// between them as `gaps` says; with one more or less of them if `varies`.
pub(super) fn table_page(seed: u64, fields: u64, values: u64, gaps: u64, varies: bool) -> Page {
    let mut random = Lcg(seed);
    let mut bytes = Vec::new();
    while bytes.len() < PAGE_SIZE {
        let field = random.below(fields);
        let value = (field * values + random.below(values) + 1).wrapping_mul(0x9E37_79B1_85EB_CA87);
        bytes.extend(&value.to_be_bytes()[..4 + field as usize % 2]);
        let gap = if varies { gaps + random.below(3) } else { gaps };
        bytes.extend((0..gap).map(|_| random.below(256) as u8));
    }
    page_of(bytes)
}

/// Pages of all kinds, one after another.
pub(super) fn page_of_any_kind(seed: u64) -> Page {
    match seed % 5 {
        0 => text_page(seed),
        1 => float_page(seed / 5),
        2 => table_page(seed, 2, 20, 5, true),
        _ => heap_page(seed),
    }
}

pub(super) fn random_page(seed: u64) -> Page {
    let mut random = Lcg(seed);
    page_of((0..PAGE_SIZE).map(|_| random.below(256) as u8).collect::<Vec<_>>())
}

/// A page with literals partly from a palette, and of varying number.
pub(super) fn palette_page(palette: usize, seed: u64, share_percent: u64) -> Page {
    let mut random = Lcg(seed);
    let mut page = page_of((0..PAGE_SIZE).map(|_| {
        let any = random.below(256) as u8;
        let Palette { first, second } = &PALETTES[palette];
        match random.below(100) {
            share if share >= share_percent => any,
            share if share % 3 == 0 => second[usize::from(any & 31)],
            _ => first[usize::from(any & 15)],
        }
    }));
    // The number of remaining literals varies with this length.
    page[..random.below(PAGE_SIZE as u64) as usize].fill(7);
    page
}

/// A part of a page.
#[derive(Clone, Debug)]
enum Piece {
    Literals(Vec<u8>),
    /// A copy of this many bytes from this far back.
    Copy(usize, usize),
    /// This many bytes of [`DICTIONARY`].
    Shared(Index, usize),
}

/// Pages made of literals, of copies of earlier bytes with every length and distance that a token
/// can encode, and of parts of the dictionary.
pub(super) fn pages() -> impl Strategy<Value = Page> {
    let lengths = || prop_oneof![8 => 1..20_usize, 3 => 20..200_usize, 1 => 200..4096_usize];
    let offsets = prop_oneof![4 => 1..130_usize, 3 => (1..512_usize).prop_map(|n| 8 * n), 2 => 1..4096_usize];
    let part = prop_oneof![
        1 => vec(any::<u8>(), 0..100).prop_map(Piece::Literals),
        4 => vec(any::<u8>(), 0..4).prop_map(Piece::Literals),
        6 => (offsets, lengths()).prop_map(|(offset, length)| Piece::Copy(offset, length)),
        2 => (any::<Index>(), lengths()).prop_map(|(place, length)| Piece::Shared(place, length)),
    ];
    vec(part, 1..700).prop_map(|parts| {
        let mut page = Vec::new();
        for part in parts {
            match part {
                Piece::Literals(literals) => page.extend(literals),
                Piece::Copy(offset, length) if offset <= page.len() => {
                    for _ in 0..length.min(PAGE_SIZE) {
                        page.push(page[page.len() - offset]);
                    }
                }
                Piece::Copy(..) => {}
                Piece::Shared(place, length) => {
                    let place = place.index(DICTIONARY.len());
                    page.extend(&DICTIONARY[place..(place + length).min(DICTIONARY.len())]);
                }
            }
            if page.len() >= PAGE_SIZE {
                break;
            }
        }
        page_of(page)
    })
}

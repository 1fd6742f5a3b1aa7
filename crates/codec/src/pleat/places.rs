//! The positions of a dictionary's bytes: one read-only table that all streams share, so that
//! nothing is copied for a page.

use super::window::{PAGE_AT, Window};

/// The position for unknown words: just before the page, within reach of every page.
pub(super) const NOWHERE: u16 = PAGE_AT as u16 - 8;

/// Bits of the hash by which a position is looked up.
const HASH_BITS: u32 = 14;

/// Returns the product from which hashes are made: its highest bits hash all of `word`, those from
/// bit 47 down its low 6 bytes.
#[inline(always)]
pub(super) fn product(word: u64) -> u64 {
    // The golden ratio.
    word.wrapping_mul(0x9e37_79b1_85eb_ca87)
}

/// The index of the bytes before a page.
pub(super) trait Before {
    /// Returns a position before the page where the word with this [`product`] may be; [`NOWHERE`]
    /// if none is known.
    fn place(&self, product: u64) -> u16;
}

/// No dictionary.
pub(super) struct Nothing;

impl Before for Nothing {
    #[inline(always)]
    fn place(&self, _product: u64) -> u16 {
        NOWHERE
    }
}

/// The positions of a dictionary.
pub(super) struct Places([u16; 1 << HASH_BITS]);

impl Places {
    /// Indexes a dictionary of `dictionary_len` bytes in `window`. If two positions have the same
    /// hash, the later one wins, which has the smaller offset.
    pub(super) fn new(window: &Window, dictionary_len: usize) -> Box<Self> {
        let mut places = Box::new(Self([NOWHERE; _]));
        for at in (PAGE_AT - dictionary_len..PAGE_AT).take(dictionary_len.saturating_sub(8)) {
            places.0[slot(product(window.word(at)))] = at as u16;
        }
        places
    }
}

impl Before for Places {
    #[inline(always)]
    fn place(&self, product: u64) -> u16 {
        self.0[slot(product)]
    }
}

/// Returns the slot of a word. All eight bytes count: matches of six in a dictionary make objects 1
/// % smaller, but take 4 % more time to find.
#[inline(always)]
fn slot(product: u64) -> usize {
    (product >> (64 - HASH_BITS)) as usize
}

//! Where the bytes of a dictionary are: one table, which all streams share and only read, so that
//! nothing of it is copied for a page.

use super::window::{PAGE_AT, Window};

/// Where nothing is known to be: a position just before the page, which any page may reach.
pub(super) const NOWHERE: u16 = PAGE_AT as u16 - 8;

/// Bits of the hash that a position is looked up by.
const HASH_BITS: u32 = 14;

/// What hashes are made of: the product's highest bits hash all of `word`, those from bit 47
/// downwards its low 6 bytes.
#[inline(always)]
pub(super) fn product(word: u64) -> u64 {
    // By the golden ratio.
    word.wrapping_mul(0x9e37_79b1_85eb_ca87)
}

/// What is known of the bytes before a page.
pub(super) trait Before {
    /// A position before the page where the word with this [`product`] may be; [`NOWHERE`] if none
    /// is known.
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
    /// The positions of a dictionary of `dictionary_len` bytes in `window`. Where two have the same
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

/// The slot of a word, all eight bytes of which count: matches of six in a dictionary make objects
/// 1 % smaller, but are found in 4 % more time.
#[inline(always)]
fn slot(product: u64) -> usize {
    (product >> (64 - HASH_BITS)) as usize
}

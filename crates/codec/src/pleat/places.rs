//! The positions of a dictionary's bytes: one read-only table that all streams share, so that
//! nothing is copied for a page.

use super::window::{PAGE_AT, Window};
use crate::reuse::{SLOT_BITS, product, slot};

/// The position for unknown words: just before the page, within reach of every page.
pub(super) const NOWHERE: u16 = PAGE_AT as u16 - 8;

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
pub(super) struct Places([u16; 1 << SLOT_BITS]);

impl Places {
    /// Indexes these places of the dictionary of `dictionary_len` bytes in `window`. If two have the
    /// same slot, the later one wins, which has the smaller offset.
    pub(super) fn new(window: &Window, dictionary_len: usize, starts: &[u16]) -> Box<Self> {
        let mut places = Box::new(Self([NOWHERE; _]));
        let starts = starts.iter().map(|&start| usize::from(start)).filter(|start| start + 8 <= dictionary_len);
        for at in starts.map(|start| PAGE_AT - dictionary_len + start) {
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

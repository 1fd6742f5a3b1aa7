//! Pages of every kind that a store treats differently.

use pagefold_store::{PAGE_SIZE, Page};
use proptest::prelude::*;

/// Generates pages: zeros, one word, text-like, incompressible.
pub(crate) fn any_page() -> impl Strategy<Value = Box<Page>> {
    prop_oneof![
        Just(Box::new([0; PAGE_SIZE])),
        any::<u64>().prop_map(filled),
        any::<u64>().prop_map(|seed| mixed(seed, 0xf)),
        any::<u64>().prop_map(|seed| mixed(seed, 0x7f)),
        any::<u64>().prop_map(|seed| mixed(seed, 0xff)),
    ]
}

/// Returns a page of one repeated word.
pub(crate) fn filled(word: u64) -> Box<Page> {
    let mut page = Box::new([0; PAGE_SIZE]);
    page.as_chunks_mut::<8>().0.fill(word.to_le_bytes());
    page
}

/// Returns a page of pseudo-random bytes in which only the bits of `mask` vary.
pub(crate) fn mixed(seed: u64, mask: u8) -> Box<Page> {
    let mut state = seed | 1;
    let mut page = Box::new([0; PAGE_SIZE]);
    for byte in page.iter_mut() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 56) as u8 & mask;
    }
    page
}

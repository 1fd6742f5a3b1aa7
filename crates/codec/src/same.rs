//! Pages that are one 8-byte word again and again: zram's "same-filled" pages, stored as that word alone.

use crate::{PAGE_SIZE, Page};

/// Words looked at between two chances to stop: 256 bytes, enough for the compiler to keep several vector
/// comparisons in flight and small enough that a page which differs early costs little.
const STRIDE: usize = 32;

/// The 8-byte word (little-endian) that fills `page`, or `None` if no one word does.
///
/// Reads the page at most once. The last word is looked at first: pages that begin with zeros and carry a tail are
/// common in heaps, and are answered without a walk.
#[must_use]
pub fn same_filled(page: &Page) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let first = u64::from_le_bytes(words[0]);
    if words[words.len() - 1] != words[0] {
        return None;
    }
    for stride in words.chunks_exact(STRIDE) {
        let differs = stride.iter().fold(0, |differs, word| differs | (u64::from_le_bytes(*word) ^ first));
        if differs != 0 {
            return None;
        }
    }
    Some(first)
}

/// Fills `page` with `word`: what [`same_filled`] found, undone.
pub fn fill(page: &mut Page, word: u64) {
    let (words, _) = page.as_chunks_mut::<8>();
    words.fill(word.to_le_bytes());
}

const _: () = assert!(PAGE_SIZE.is_multiple_of(8 * STRIDE));

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn any_one_byte_changed_is_seen() {
        let mut page = [0; PAGE_SIZE];
        fill(&mut page, 0x0123_4567_89ab_cdef);
        assert_eq!(same_filled(&page), Some(0x0123_4567_89ab_cdef));
        for at in 0..PAGE_SIZE {
            page[at] ^= 0x10;
            assert_eq!(same_filled(&page), None, "byte {at}");
            page[at] ^= 0x10;
        }
    }

    proptest! {
        #[test]
        fn filled_pages_give_their_word_back(word: u64) {
            let mut page = [0; PAGE_SIZE];
            fill(&mut page, word);
            prop_assert_eq!(same_filled(&page), Some(word));
            prop_assert_eq!(&page[8..16], word.to_le_bytes());
        }

        #[test]
        fn agrees_with_the_plain_definition(pattern in prop::collection::vec(any::<u8>(), 1..=16)) {
            let page: Page = std::array::from_fn(|at| pattern[at % pattern.len()]);
            let plain = page.chunks(8).all(|word| word == &page[..8]);
            prop_assert_eq!(same_filled(&page).is_some(), plain);
        }
    }
}

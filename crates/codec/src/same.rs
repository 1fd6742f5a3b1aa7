//! Pages that repeat one 8-byte word: zram's "same-filled" pages, stored as that word alone.

use crate::{PAGE_SIZE, Page};

/// Returns the 8-byte word (little-endian) that fills `page`, or `None` if no single word does.
///
/// A page is filled with one word if it equals itself shifted by 8 bytes. One `memcmp` decides
/// that: it stops at the first difference, and the C library selects the vectors for this
/// processor. The second and the last word are checked first: most pages differ there, and pages
/// that begin with zeros and end in other data are common in heaps.
#[must_use]
pub fn same_filled(page: &Page) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let first = words[0];
    let same = words[1] == first && words[words.len() - 1] == first && page[8..] == page[..PAGE_SIZE - 8];
    same.then_some(u64::from_le_bytes(first))
}

/// Fills `page` with `word`: the inverse of [`same_filled`]. Runs at memset's speed if all bytes of
/// the word are equal, otherwise at 60 % of it (memset stores 64 bytes at a time, this loop 16).
pub fn fill(page: &mut Page, word: u64) {
    let bytes = word.to_le_bytes();
    if bytes == [bytes[0]; 8] {
        page.fill(bytes[0]);
    } else {
        let (words, _) = page.as_chunks_mut::<8>();
        words.fill(bytes);
    }
}

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

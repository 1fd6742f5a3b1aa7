//! What the objects of `fold-dict` share: bytes before every page, tokens, and palettes, all
//! trained on a store's own pages.

use std::{collections::HashMap, fmt};

use super::{
    Format,
    encode::{WORD_HASH_BITS, hash_word},
    literals::{Palettes, Values},
    tables::{Classes, KINDS, Tokens},
};
use crate::{Dictionary, Page};

/// Bytes before a page that its matches can reach: places in the window, and therefore offsets, fit
/// in 16 bits.
pub(super) const REACH: usize = (1 << 16) - crate::PAGE_SIZE;

/// The data that objects of [`FoldDict`](crate::FoldDict) share, or nothing yet.
#[derive(Default)]
pub struct FoldTables {
    trained: Option<Trained>,
}

pub(super) struct Trained {
    pub(super) format: Format,
    /// The bytes before every page, and the lookup tables for their places in the window.
    pub(super) dictionary: Option<(Dictionary, Box<Starts>)>,
    id: u32,
}

impl FoldTables {
    /// Creates tables; the dictionary has at most [`REACH`] bytes.
    pub(super) fn new(
        classes: &[Classes; KINDS],
        palettes: Values,
        dictionary: Option<(Dictionary, Box<Starts>)>,
    ) -> Self {
        let mut bytes: Vec<u8> =
            palettes.iter().flat_map(|palette| [&palette.first[..], &palette.second].concat()).collect();
        for class in classes.as_flattened() {
            for slots in [&class.runs, &class.lengths] {
                bytes.push(slots.as_slice().len() as u8);
                bytes.extend(slots.as_slice().iter().flat_map(|slot| [slot.base, slot.bits]));
            }
        }
        if let Some((dictionary, _)) = &dictionary {
            bytes.extend(dictionary.bytes());
        }
        let id = Dictionary::new(bytes).id();
        let format = Format { tokens: classes.each_ref().map(Tokens::new), palettes: Palettes::new(palettes) };
        Self { trained: Some(Trained { format, dictionary, id }) }
    }

    /// Creates tables with a dictionary of at most [`REACH`] bytes, all of which can be found, and
    /// untrained tokens and palettes.
    #[cfg(test)]
    pub(crate) fn of(dictionary: Vec<u8>) -> Self {
        let mut pages = dictionary.clone();
        pages.resize(dictionary.len().next_multiple_of(crate::PAGE_SIZE), 0);
        let starts = Starts::new(&dictionary, 6, &pages.as_chunks().0.iter().collect::<Vec<_>>());
        let classes = super::tables::PLAIN;
        Self::new(&classes, super::literals::PALETTES, Some((Dictionary::new(dictionary), starts)))
    }

    pub(super) fn trained(&self) -> Option<&Trained> {
        self.trained.as_ref()
    }

    /// Returns a hash of the content; 0 if there is none yet.
    pub fn id(&self) -> u32 {
        self.trained.as_ref().map_or(0, |trained| trained.id)
    }

    /// Returns the bytes before every page, if there are any.
    pub fn dictionary(&self) -> Option<&Dictionary> {
        Some(&self.trained.as_ref()?.dictionary.as_ref()?.0)
    }

    pub(super) fn into_dictionary(self) -> Option<(Dictionary, Box<Starts>)> {
        self.trained?.dictionary
    }

    /// Returns the heap bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.dictionary().map_or(0, |dictionary| dictionary.bytes().len() + size_of::<Starts>())
    }
}

impl fmt::Debug for FoldTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FoldTables").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// Number of sample pages in which the places of a dictionary are counted.
const COUNTED_PAGES: usize = 128;

/// Bits of the hash by which a place is looked up.
const HASH_BITS: u32 = 14;

/// The key by which a place in the dictionary is looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    slot: usize,
    /// Distinguishes most bytes with the same slot.
    tag: u8,
}

impl Key {
    /// Returns the key of the lowest bytes; `multiplier` determines how many.
    #[inline(always)]
    fn of(bytes: u64, multiplier: u64) -> Self {
        let hash = bytes.wrapping_mul(multiplier);
        Self { slot: (hash >> (64 - HASH_BITS)) as usize, tag: (hash >> (64 - HASH_BITS - 8)) as u8 }
    }
}

/// Where the bytes of a dictionary are in the window.
pub(super) struct Starts {
    /// Bits of a word that a match need not include, and the multiplier that hashes the others.
    unused: u32,
    multiplier: u64,
    /// By slot, the tag of the bytes whose place is known. Separate from the places, so that the
    /// tags stay in the L1 cache.
    tags: [u8; 1 << HASH_BITS],
    /// 0 if there is none.
    places: [u16; 1 << HASH_BITS],
    /// The initial content of the encoder's table of words for each page.
    pub(super) words: [u16; 1 << WORD_HASH_BITS],
}

impl Starts {
    pub(super) const NONE: &'static Self = &Self {
        unused: 0,
        multiplier: 0,
        tags: [0; 1 << HASH_BITS],
        places: [0; 1 << HASH_BITS],
        words: [0; 1 << WORD_HASH_BITS],
    };

    /// Indexes a dictionary of at most [`REACH`] bytes, for matches of at least `least` bytes, at
    /// most 8. If places share a slot, the one whose bytes are most common in `pages` gets it.
    pub(super) fn new(dictionary: &[u8], least: u32, pages: &[&Page]) -> Box<Self> {
        let unused = 64 - 8 * least;
        // The golden ratio; the shift drops a product's upper bits.
        let multiplier = 0x9E37_79B1_85EB_CA87 << unused;
        let mut out = Box::new(Self { unused, multiplier, ..*Self::NONE });
        let pages = &pages[..pages.len().min(COUNTED_PAGES)];
        fill(&mut out.places, dictionary, pages, 1, |word| word << unused, |word| Key::of(word, multiplier).slot);
        fill(&mut out.words, dictionary, pages, 8, |word| word >> 8, hash_word);
        for (tag, &place) in out.tags.iter_mut().zip(&out.places) {
            let at = (usize::from(place)).saturating_sub(REACH - dictionary.len());
            if let Some(bytes) = dictionary.get(at..).and_then(<[u8]>::first_chunk) {
                *tag = Key::of(u64::from_le_bytes(*bytes), multiplier).tag;
            }
        }
        out
    }

    /// Returns the bits of a word that a match need not include.
    pub(super) fn unused(&self) -> u32 {
        self.unused
    }

    /// Returns a place below REACH in the window where the lowest bytes of `here` probably are.
    #[inline(always)]
    pub(super) fn probable(&self, here: u64) -> Option<usize> {
        let key = Key::of(here, self.multiplier);
        (self.tags[key.slot] == key.tag).then(|| usize::from(self.places[key.slot]))
    }
}

/// Fills a table with places of `dictionary`. `key` extracts the significant part of a word; words
/// at multiples of `step` in a page are counted.
fn fill(
    table: &mut [u16],
    dictionary: &[u8],
    pages: &[&Page],
    step: usize,
    key: impl Fn(u64) -> u64,
    slot: impl Fn(u64) -> usize,
) {
    let first = REACH - dictionary.len();
    let words = |bytes: &'_ [u8]| -> Vec<u64> {
        bytes.windows(8).map(|word| u64::from_le_bytes(*word.first_chunk().expect("eight bytes"))).collect()
    };
    let places = words(dictionary);
    let mut counts: HashMap<u64, u32> = places.iter().map(|&word| (key(word), 0)).collect();
    for page in pages {
        for word in words(&page[..]).into_iter().step_by(step) {
            if let Some(count) = counts.get_mut(&key(word)) {
                *count += 1;
            }
        }
    }
    let mut most = vec![1; table.len()];
    for (at, &word) in places.iter().enumerate() {
        let (slot, count) = (slot(word), counts[&key(word)]);
        if count >= most[slot] {
            most[slot] = count;
            table[slot] = (first + at) as u16;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pages_have_of_a_dictionary_is_found() {
        let dictionary: Vec<u8> =
            (0..500_u32).flat_map(|number| number.wrapping_mul(0x9E37_79B1).to_le_bytes()).collect();
        let tables = FoldTables::of(dictionary.clone());
        let (_, starts) = tables.trained().and_then(|trained| trained.dictionary.as_ref()).expect("a dictionary");
        let found = dictionary.windows(8).enumerate().filter(|(at, bytes)| {
            let bytes = u64::from_le_bytes(*bytes.first_chunk().expect("eight bytes"));
            starts.probable(bytes) == Some(REACH - dictionary.len() + at)
        });
        let found = found.count();
        assert!(found > dictionary.len() * 9 / 10, "{found} places of {}", dictionary.len());
        let unknown = Starts::new(&dictionary, 6, &[]);
        assert!(unknown.places.iter().all(|&place| place == 0), "no page has any of it");
    }
}

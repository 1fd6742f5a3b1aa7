//! The data that objects of `fold-dict` share: bytes before every page, tokens, and palettes, all
//! trained on a store's own pages.

use std::{collections::HashMap, fmt};

use super::{
    Format,
    hashes::{WORD_HASH_BITS, hash_word},
    literals::{Palettes, Values},
    tables::{Classes, KINDS, Tokens},
};
use crate::{
    Dictionary, Page,
    reuse::{self, SLOT_BITS},
};

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
    /// The slots that `format` has the tokens of.
    pub(super) classes: [Classes; KINDS],
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
        Self { trained: Some(Trained { format, classes: *classes, dictionary, id }) }
    }

    /// Creates tables with a dictionary of at most [`REACH`] bytes, almost all of whose places can
    /// be found, and untrained tokens and palettes.
    #[cfg(test)]
    pub(crate) fn of(dictionary: Vec<u8>) -> Self {
        let pages = reuse::pages_with_starts(&dictionary);
        let starts = Starts::new(&dictionary, &pages.iter().collect::<Vec<_>>());
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

/// Bytes that matches at a place must have on average. With 12, objects are 1 % larger and compress
/// no faster; with 8, they are 1.4 % smaller and compress 4 % slower.
const LEAST_ON_AVERAGE: u32 = 10;

/// The key by which a place in the dictionary is looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    slot: usize,
    /// Distinguishes most words with the same slot.
    tag: u8,
}

impl Key {
    #[inline(always)]
    fn of(word: u64) -> Self {
        let product = reuse::product(word);
        Self { slot: reuse::slot(product), tag: (product >> (64 - SLOT_BITS - 8)) as u8 }
    }
}

/// The places in the window of a dictionary's bytes.
pub(super) struct Starts {
    /// By slot, the tag of the word whose place is known. Separate from the places, so that the
    /// tags stay in the L1 cache.
    tags: [u8; 1 << SLOT_BITS],
    /// 0 if there is none.
    places: [u16; 1 << SLOT_BITS],
    /// The initial content of the encoder's table of words for each page.
    pub(super) words: [u16; 1 << WORD_HASH_BITS],
}

impl Starts {
    pub(super) const NONE: &'static Self = &Self { tags: [0; _], places: [0; _], words: [0; _] };

    /// Indexes a dictionary of at most [`REACH`] bytes for pages like these. An index for no page
    /// finds nothing.
    pub(super) fn new(dictionary: &[u8], pages: &[&Page]) -> Box<Self> {
        let mut out = Box::new(Self { ..*Self::NONE });
        let first = REACH - dictionary.len();
        for (slot, place) in reuse::best_places(dictionary, pages, LEAST_ON_AVERAGE).into_iter().enumerate() {
            let Some(place) = place.map(usize::from) else { continue };
            out.places[slot] = (first + place) as u16;
            if let Some(word) = dictionary[place..].first_chunk() {
                out.tags[slot] = Key::of(u64::from_le_bytes(*word)).tag;
            }
        }
        fill_words(&mut out.words, dictionary, pages);
        out
    }

    /// Indexes these places of a dictionary of at most [`REACH`] bytes, at each of which it has
    /// eight bytes. Of several with one slot, the last is found.
    pub(super) fn of_places(dictionary: &[u8], places: &[usize], word_places: &[usize]) -> Box<Self> {
        let mut out = Box::new(Self { ..*Self::NONE });
        let first = REACH - dictionary.len();
        for (&place, word) in words_at(dictionary, places) {
            let key = Key::of(word);
            (out.places[key.slot], out.tags[key.slot]) = ((first + place) as u16, key.tag);
        }
        for (&place, word) in words_at(dictionary, word_places) {
            out.words[hash_word(word)] = (first + place) as u16;
        }
        out
    }

    /// Returns the indexed places of the dictionary, of `len` bytes.
    pub(super) fn places(&self, len: usize) -> Vec<usize> {
        places_of(&self.places, len)
    }

    /// Returns the places of the dictionary that are in the table of words.
    pub(super) fn word_places(&self, len: usize) -> Vec<usize> {
        places_of(&self.words, len)
    }

    /// Returns a place below REACH in the window where the bytes of `here` probably are.
    #[inline(always)]
    pub(super) fn probable(&self, here: u64) -> Option<usize> {
        let key = Key::of(here);
        (self.tags[key.slot] == key.tag).then(|| usize::from(self.places[key.slot]))
    }
}

/// Returns the places in a dictionary of `len` bytes that a table has.
fn places_of(table: &[u16], len: usize) -> Vec<usize> {
    let known = table.iter().filter(|&&place| place > 0);
    known.filter_map(|&place| usize::from(place).checked_sub(REACH - len)).collect()
}

/// Returns places of a dictionary, each with the word there.
fn words_at<'a>(dictionary: &[u8], places: &'a [usize]) -> impl Iterator<Item = (&'a usize, u64)> {
    places.iter().filter_map(|place| Some((place, u64::from_le_bytes(*dictionary.get(*place..)?.first_chunk()?))))
}

/// Fills a table of words with places of `dictionary`. If places share a slot, the one whose upper
/// bytes most words of `pages` have gets it.
fn fill_words(table: &mut [u16; 1 << WORD_HASH_BITS], dictionary: &[u8], pages: &[&Page]) {
    let upper = |word: &[u8; 8]| u64::from_le_bytes(*word) >> 8;
    let places = dictionary.array_windows().map(upper);
    let mut counts: HashMap<u64, u32> = places.clone().map(|word| (word, 0)).collect();
    for word in pages.iter().flat_map(|page| page.as_chunks().0).map(upper) {
        if let Some(count) = counts.get_mut(&word) {
            *count += 1;
        }
    }
    let mut most = [1; 1 << WORD_HASH_BITS];
    for (at, word) in places.enumerate() {
        let (slot, count) = (hash_word(word << 8), counts[&word]);
        if count >= most[slot] {
            most[slot] = count;
            table[slot] = (REACH - dictionary.len() + at) as u16;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_in_a_dictionary_are_found() {
        let dictionary: Vec<u8> =
            (0..500_u32).flat_map(|number| number.wrapping_mul(0x9E37_79B1).to_le_bytes()).collect();
        let tables = FoldTables::of(dictionary.clone());
        let (_, starts) = tables.trained().and_then(|trained| trained.dictionary.as_ref()).expect("a dictionary");
        let found = dictionary
            .array_windows()
            .enumerate()
            .filter(|(at, bytes)| starts.probable(u64::from_le_bytes(**bytes)) == Some(REACH - dictionary.len() + at));
        let found = found.count();
        assert!(found > dictionary.len() * 9 / 10, "{found} places of {}", dictionary.len());
        let unknown = Starts::new(&dictionary, &[]);
        assert!(unknown.places.iter().all(|&place| place == 0), "no page has any of it");
    }
}

//! Selects the places of a dictionary at which an encoder's matches should begin.

use std::array;

use crate::Page;

/// Bits of a slot in an encoder's index of its dictionary.
pub(crate) const SLOT_BITS: u32 = 14;

/// The golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b1_85eb_ca87;

/// Bytes that a match must have to be counted. An index is looked up by eight bytes.
const LEAST: usize = 8;

/// Bytes that a match in the dictionary costs, about.
const COST: u32 = 4;

/// Places with the same slot that are compared with a page.
const TRIED: usize = 32;

/// Returns the product with `word` whose upper bits are its slot. The bits from 47 down depend on
/// the lower six bytes only.
#[inline(always)]
pub(crate) fn product(word: u64) -> u64 {
    word.wrapping_mul(MULTIPLIER)
}

/// Returns the slot of a word with this [`product`].
#[inline(always)]
pub(crate) fn slot(product: u64) -> usize {
    (product >> (64 - SLOT_BITS)) as usize
}

/// Returns a word of `bytes` if eight bytes are left.
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn common_length(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The matches that begin at a place.
#[derive(Clone, Copy, Default)]
struct Matches {
    count: u32,
    bytes: u32,
}

/// Returns for each slot the place in `dictionary` whose matches save most in `pages`, among those
/// whose first eight bytes have this slot. Places where matches have less than `least` bytes on
/// average are left out: short ones save little, and each costs an encoder a mispredicted branch.
///
/// The pages are parsed greedily: at each position, what occurred before in the page is skipped,
/// and else the longest match in the dictionary is counted. Places within matches are not counted:
/// an encoder does not look them up. `dictionary` has less than 64 KiB.
pub(crate) fn best_places(dictionary: &[u8], pages: &[&Page], least: u32) -> Vec<Option<u16>> {
    let chains = Chains::new(dictionary);
    let mut matches = vec![Matches::default(); dictionary.len()];
    for page in pages {
        let mut seen = Seen::new();
        let mut at = 0;
        while let Some(here) = word(&page[..], at) {
            at += if let Some(before) = seen.replace(page, at, here) {
                common_length(&page[before..], &page[at..])
            } else if let Some((place, length)) = chains.longest(dictionary, &page[at..], here) {
                matches[place].count += 1;
                matches[place].bytes += length as u32;
                length
            } else {
                1
            };
        }
    }
    let mut best = vec![(0, None); 1 << SLOT_BITS];
    for (place, &Matches { count, bytes }) in matches.iter().enumerate() {
        let saved = bytes - COST * count;
        if bytes >= least * count
            && let Some(word) = word(dictionary, place)
            && let best = &mut best[slot(product(word))]
            && saved > best.0
        {
            *best = (saved, Some(place as u16));
        }
    }
    best.into_iter().map(|(_, place)| place).collect()
}

/// Where six bytes were last seen in a page.
struct Seen([u16; 1 << Self::BITS]);

impl Seen {
    const BITS: u32 = 12;

    fn new() -> Self {
        Self([u16::MAX; _])
    }

    /// Returns an earlier position of the lowest six bytes of `here`, which is at `at`.
    fn replace(&mut self, page: &Page, at: usize, here: u64) -> Option<usize> {
        let slot = (product(here << 16) >> (64 - Self::BITS)) as usize;
        let before = usize::from(std::mem::replace(&mut self.0[slot], at as u16));
        (word(page, before)? << 16 == here << 16).then_some(before)
    }
}

/// The places of a dictionary by slot: the last one, and for each place the one before.
struct Chains {
    last: [Option<u16>; 1 << SLOT_BITS],
    before: Vec<Option<u16>>,
}

impl Chains {
    fn new(dictionary: &[u8]) -> Box<Self> {
        let mut out = Box::new(Self { last: array::from_fn(|_| None), before: Vec::with_capacity(dictionary.len()) });
        for (place, bytes) in dictionary.array_windows().enumerate() {
            let slot = slot(product(u64::from_le_bytes(*bytes)));
            out.before.push(out.last[slot].replace(place as u16));
        }
        out
    }

    /// Returns the place and the length of the longest match of `bytes`, which begin with `here`.
    fn longest(&self, dictionary: &[u8], bytes: &[u8], here: u64) -> Option<(usize, usize)> {
        let places = std::iter::successors(self.last[slot(product(here))], |&place| self.before[usize::from(place)]);
        let lengths =
            places.take(TRIED).map(usize::from).map(|place| (place, common_length(&dictionary[place..], bytes)));
        lengths.filter(|&(_, length)| length >= LEAST).max_by_key(|&(place, length)| (length, place))
    }
}

/// Returns pages in which a match with `dictionary` begins at almost all of its places.
#[cfg(test)]
pub(crate) fn pages_with_starts(dictionary: &[u8]) -> Vec<Page> {
    const PIECE: usize = 12;
    let mut pages: Vec<u8> = Vec::new();
    for from in 0..PIECE.min(dictionary.len()) {
        // Backwards, so that no match continues in the next piece.
        pages.extend(dictionary[from..].chunks(PIECE).rev().flatten());
        pages.resize(pages.len().next_multiple_of(crate::PAGE_SIZE), 0);
    }
    pages.as_chunks().0.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes without repetitions.
    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u64).flat_map(|at| product(at + 1).to_be_bytes()).take(len).collect()
    }

    fn places(dictionary: &[u8], pages: &[Page]) -> Vec<u16> {
        let pages: Vec<&Page> = pages.iter().collect();
        let mut places: Vec<u16> = best_places(dictionary, &pages, 10).into_iter().flatten().collect();
        places.sort_unstable();
        places
    }

    /// Returns a page with these pieces, each behind a byte of its own, and zeros.
    fn page_of(pieces: &[&[u8]]) -> Page {
        let mut page = [0; crate::PAGE_SIZE];
        let all: Vec<u8> = pieces.iter().zip(1..).flat_map(|(piece, number)| [&[number], *piece].concat()).collect();
        page[..all.len()].copy_from_slice(&all);
        page
    }

    #[test]
    fn places_where_long_matches_begin_are_indexed() {
        let dictionary = bytes(1000);
        let page = page_of(&[&dictionary[100..160], &dictionary[500..512]]);
        assert_eq!(places(&dictionary, &[page]), [100, 500]);
        // Matches of 8, 8 and 13 bytes are too short on average, of 8 and 12 they are not.
        let short = page_of(&[&dictionary[300..308], &dictionary[700..708]]);
        let longer = page_of(&[&dictionary[300..313], &dictionary[700..712]]);
        assert_eq!(places(&dictionary, &[short]), []);
        assert_eq!(places(&dictionary, &[short, short, longer]), []);
        assert_eq!(places(&dictionary, &[short, longer]), [300, 700]);
    }

    #[test]
    fn repeats_within_a_page_are_not_looked_up_in_the_dictionary() {
        let dictionary = bytes(200);
        // The second piece's first eight bytes repeat the first.
        let page = page_of(&[&dictionary[50..58], &dictionary[50..90]]);
        assert_eq!(places(&dictionary, &[page]), [58]);
        let page = page_of(&[&dictionary[50..90], &dictionary[60..90]]);
        assert_eq!(places(&dictionary, &[page]), [50, 60]);
    }

    #[test]
    fn the_place_that_saves_most_gets_the_slot() {
        // The same 16 bytes twice; the bytes after the second occurrence are used more often.
        let dictionary = [&bytes(64)[..], &bytes(16), &bytes(200)[100..]].concat();
        let page = page_of(&[&dictionary[64..120]]);
        assert_eq!(places(&dictionary, &[page]), [64]);
        let other = page_of(&[&dictionary[..20]]);
        assert_eq!(places(&dictionary, &[page, other]), [64]);
    }

    #[test]
    fn almost_all_places_can_be_found() {
        let dictionary = bytes(4000);
        let found = places(&dictionary, &pages_with_starts(&dictionary)).len();
        assert!(found > 3200, "{found} of {}", dictionary.len());
        for short in 0..20 {
            let dictionary = &dictionary[..short];
            assert_eq!(places(dictionary, &pages_with_starts(dictionary)).is_empty(), short < 10, "{short}");
        }
        assert_eq!(places(&dictionary, &[]), []);
    }
}

//! The serialised form of [`FoldTables`], without data that can be derived.
//!
//! ```text
//! version: 1   id: 4   palettes: 48 each   classes: slots of runs, slots of lengths, each a count
//! and pairs of base and bits   dictionary: length (2), bytes, a bit for each place where a match
//! may begin, a bit for each place in the table of words
//! ```
//!
//! Without tables, it is empty.

use super::{
    literals::{PALETTES, Values},
    shared::{FoldTables, REACH, Starts},
    tables::{
        BEFORE, CLASSES_COUNT, Class, Classes, DICT, END, FAR, KINDS, Kind, LAST, LENGTH_CODES, LENGTH_MIN, RUN_BASES,
        RUN_MAX, SLOTS_MAX, Slot, Slots, length_min_new,
    },
};
use crate::{BadTables, Dictionary, PAGE_SIZE};

const VERSION: u8 = 1;

/// Maximum extra bits of a slot.
const BITS_MAX: u8 = 12;

const SHORT: BadTables = BadTables { what: "truncated" };

impl FoldTables {
    /// Serialises the tables to at most 80 KiB.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Some(trained) = self.trained() else { return Vec::new() };
        let mut bytes = vec![VERSION];
        bytes.extend(self.id().to_le_bytes());
        for palette in &trained.format.palettes.values {
            bytes.extend(palette.first);
            bytes.extend(palette.second);
        }
        for class in trained.classes.as_flattened() {
            for slots in [&class.runs, &class.lengths] {
                bytes.push(slots.as_slice().len() as u8);
                bytes.extend(slots.as_slice().iter().flat_map(|slot| [slot.base, slot.bits]));
            }
        }
        let (dictionary, starts) = match &trained.dictionary {
            Some((dictionary, starts)) => (dictionary.bytes(), &**starts),
            None => (&[][..], Starts::NONE),
        };
        bytes.extend((dictionary.len() as u16).to_le_bytes());
        bytes.extend(dictionary);
        for places in [starts.places(dictionary.len()), starts.word_places(dictionary.len())] {
            let mut bits = vec![0; dictionary.len().div_ceil(8)];
            places.iter().for_each(|place| bits[place / 8] |= 1 << (place % 8));
            bytes.extend(bits);
        }
        bytes
    }

    /// Deserialises the output of [`to_bytes`](Self::to_bytes). `bytes` is untrusted; tables that
    /// are accepted are safe to use, and compress like those that were serialised.
    ///
    /// # Errors
    /// The bytes are not valid tables.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadTables> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let mut rest = Rest(bytes);
        if rest.array()? != [VERSION] {
            return Err(BadTables { what: "unknown version" });
        }
        let id = u32::from_le_bytes(rest.array()?);
        let mut palettes: Values = PALETTES;
        for palette in &mut palettes {
            (palette.first, palette.second) = (rest.array()?, rest.array()?);
            let mut seen = [false; 256];
            let mut is_new = |&value: &u8| !std::mem::replace(&mut seen[usize::from(value)], true);
            if !palette.first.iter().chain(&palette.second).all(&mut is_new) {
                return Err(BadTables { what: "a palette with equal values" });
            }
        }
        let mut classes: [Classes; KINDS] = [[Class { runs: Slots::NONE, lengths: Slots::NONE }; CLASSES_COUNT]; KINDS];
        for (kind, classes) in classes.iter_mut().enumerate() {
            for (at, class) in classes.iter_mut().enumerate() {
                (class.runs, class.lengths) = (rest.slots()?, rest.slots()?);
                if !is_complete(kind, at, class) {
                    return Err(BadTables { what: "tokens that do not cover every sequence" });
                }
            }
            let count = |class: &Class| class.runs.as_slice().len() * class.lengths.as_slice().len();
            if classes.iter().map(count).sum::<usize>() > usize::from(END) {
                return Err(BadTables { what: "too many tokens" });
            }
        }
        let len = usize::from(u16::from_le_bytes(rest.array()?));
        if len > REACH {
            return Err(BadTables { what: "too long a dictionary" });
        }
        let dictionary = rest.take(len)?.to_vec();
        let [starts, words] = [rest.places(len)?, rest.places(len)?];
        if !rest.0.is_empty() {
            return Err(BadTables { what: "trailing bytes after the tables" });
        }
        let dictionary = (len > 0).then(|| {
            let starts = Starts::of_places(&dictionary, &starts, &words);
            (Dictionary::new(dictionary), starts)
        });
        let tables = Self::new(&classes, palettes, dictionary);
        // A fuzzer does not find hashes.
        if tables.id() != id && !cfg!(fuzzing) {
            return Err(BadTables { what: "the id does not match the contents" });
        }
        Ok(tables)
    }
}

/// Returns whether a class has a token for every sequence that the encoder may give it, and only
/// tokens that the decoder can use.
fn is_complete(kind: usize, at: usize, class: &Class) -> bool {
    let (runs, lengths) = (class.runs.as_slice(), class.lengths.as_slice());
    // Pages of fields have no matches in a dictionary.
    if kind == Kind::Fields as usize && at == DICT && runs.is_empty() && lengths.is_empty() {
        return true;
    }
    let least = if at == LAST || at == BEFORE { LENGTH_MIN } else { length_min_new(kind) };
    let reach = if at == FAR || at == DICT { PAGE_SIZE } else { RUN_MAX };
    covers(runs, usize::from(at == LAST), reach, RUN_BASES) && covers(lengths, least, PAGE_SIZE, LENGTH_CODES)
}

/// Returns whether slots cover all values from `first` to `reach` without a gap, with bases below
/// `bases`.
fn covers(slots: &[Slot], first: usize, reach: usize, bases: usize) -> bool {
    let mut next = first;
    for &Slot { base, bits } in slots {
        let base = usize::from(base);
        if base < first || base > next || base >= bases || bits > BITS_MAX || base + (1 << bits) <= next {
            return false;
        }
        next = base + (1 << bits);
    }
    next > reach
}

/// The bytes that are still to be read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], BadTables> {
        self.0.split_off(..len).ok_or(SHORT)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadTables> {
        self.take(N)?.try_into().map_err(|_| SHORT)
    }

    fn slots(&mut self) -> Result<Slots, BadTables> {
        let [count] = self.array()?;
        if usize::from(count) > SLOTS_MAX {
            return Err(BadTables { what: "too many slots" });
        }
        let pairs = self.take(2 * usize::from(count))?;
        Ok(pairs.as_chunks().0.iter().fold(Slots::NONE, |slots, &[base, bits]| slots.and(Slot { base, bits })))
    }

    /// Returns the places in a dictionary of `len` bytes whose bits are set.
    fn places(&mut self, len: usize) -> Result<Vec<usize>, BadTables> {
        let bits = self.take(len.div_ceil(8))?;
        let places: Vec<usize> = (0..8 * bits.len()).filter(|at| bits[at / 8] >> (at % 8) & 1 == 1).collect();
        if places.last().is_some_and(|last| last + 8 > len) {
            return Err(BadTables { what: "a place beyond the dictionary" });
        }
        Ok(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Page, Tables};

    fn pages() -> Vec<Page> {
        let words = ["alpha ", "beta=", "gamma(", "delta, ", "epsilon\n", "zeta;", "0x7f", "eta:"];
        let mut state = 7u32;
        let mut page = |_| {
            let mut text = Vec::new();
            while text.len() < PAGE_SIZE {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                text.extend(words[(state >> 20) as usize % words.len()].bytes());
                text.push((state >> 28) as u8);
            }
            *text.first_chunk().expect("a page")
        };
        (0..200).map(&mut page).collect()
    }

    #[test]
    fn tables_that_come_back_compress_alike() {
        let pages = pages();
        let sample: Vec<&Page> = pages.iter().collect();
        for dictionary in [&[][..], pages[..5].as_flattened()] {
            let tables = FoldTables::train_unjudged(&sample, dictionary);
            let bytes = tables.to_bytes();
            assert!(bytes.len() <= 80 << 10);
            let back = FoldTables::from_bytes(&bytes).expect("valid tables");
            assert_eq!((back.id(), back.to_bytes() == bytes), (tables.id(), true));
            let [tables, back] = [tables, back].map(|tables| Tables::Fold(tables.into()));
            let [mut first, mut second] = [&tables, &back].map(|tables| tables.codec().stream().expect("memory"));
            let (mut one, mut other, mut page) = ([0; PAGE_SIZE], [0; PAGE_SIZE], [0; PAGE_SIZE]);
            for original in &pages {
                let len = first.compress(original, &mut one);
                assert_eq!(len, second.compress(original, &mut other));
                let len = len.expect("text");
                assert_eq!(one[..len], other[..len]);
                second.decompress(&one[..len], &mut page).expect("an object");
                assert_eq!(page, *original);
            }
        }
    }

    #[test]
    fn cut_tables_are_refused() {
        let pages = pages();
        let bytes = FoldTables::train_unjudged(&pages.iter().collect::<Vec<_>>(), &pages[0]).to_bytes();
        for len in (0..bytes.len()).step_by(7).skip(1) {
            FoldTables::from_bytes(&bytes[..len]).expect_err("truncated");
        }
        FoldTables::from_bytes(&[&bytes[..], &[0]].concat()).expect_err("too long");
    }

    #[test]
    fn damaged_tables_with_a_right_id_are_refused_or_work() {
        let pages = pages();
        let bytes = FoldTables::train_unjudged(&pages.iter().collect::<Vec<_>>(), &pages[0]).to_bytes();
        // The id is a hash of palettes, classes and dictionary, without the dictionary's length.
        let places = PAGE_SIZE / 8;
        let dictionary_at = bytes.len() - 2 * places - PAGE_SIZE;
        let mut state = 3_u32;
        let mut random = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize
        };
        let mut accepted = 0;
        for round in 0..4000 {
            let mut changed = bytes.clone();
            for _ in 0..=round % 2 {
                let at = match round % 4 {
                    0 => 5 + random() % (dictionary_at - 7),
                    1 => dictionary_at + random() % (bytes.len() - dictionary_at),
                    // Bases and bits of slots.
                    _ => dictionary_at - 3 - random() % 700,
                };
                changed[at] = changed[at].wrapping_add([1, 255, 2, 64, 7][random() % 5]);
            }
            let content = [&changed[5..dictionary_at - 2], &changed[dictionary_at..][..PAGE_SIZE]].concat();
            changed[1..5].copy_from_slice(&Dictionary::new(content).id().to_le_bytes());
            let Ok(tables) = FoldTables::from_bytes(&changed) else { continue };
            assert!(tables.to_bytes() == changed || round % 4 == 1, "round {round}");
            accepted += 1;
            let mut stream = Tables::Fold(tables.into()).codec().stream().expect("memory");
            let (mut object, mut page) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
            for original in pages.iter().skip(round % 50).step_by(50) {
                if let Some(len) = stream.compress(original, &mut object) {
                    stream.decompress(&object[..len], &mut page).expect("an object");
                    assert_eq!(page, *original, "round {round}");
                }
            }
        }
        assert!(accepted > 500, "{accepted}");
    }
}

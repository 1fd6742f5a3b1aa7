//! What the objects of `lz4-dict` share.

use std::fmt;

use crate::{
    Dictionary, PAGE_SIZE,
    lz4::table::{AfterDictionary, DictionaryPositions},
};

/// Bytes of a dictionary that matches of a page can reach: positions in the window, and therefore
/// offsets, fit in 16 bits.
pub(crate) const REACH: usize = (1 << 16) - PAGE_SIZE;

/// What the objects of `lz4-dict` share: a dictionary and the positions of its sequences, or
/// nothing yet.
#[derive(Default)]
pub struct Lz4Tables {
    pub(crate) loaded: Option<(Dictionary, Box<DictionaryPositions>)>,
}

impl Lz4Tables {
    /// Creates tables from the last 60 KiB of `dictionary`.
    pub fn new(dictionary: Dictionary) -> Self {
        let bytes = dictionary.bytes();
        let reached = bytes[bytes.len().saturating_sub(REACH)..].to_vec();
        let positions = AfterDictionary::positions(&reached);
        Self { loaded: Some((Dictionary::new(reached), positions)) }
    }

    /// Returns the dictionary, if there is one.
    pub fn dictionary(&self) -> Option<&Dictionary> {
        self.loaded.as_ref().map(|(dictionary, _)| dictionary)
    }

    /// Returns the heap bytes.
    pub fn memory_bytes(&self) -> usize {
        let of = |dictionary: &Dictionary| dictionary.bytes().len() + size_of::<DictionaryPositions>();
        size_of::<Self>() + self.dictionary().map_or(0, of)
    }
}

impl fmt::Debug for Lz4Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lz4Tables").field("dictionary", &self.dictionary().map(Dictionary::id)).finish_non_exhaustive()
    }
}

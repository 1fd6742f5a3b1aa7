//! Data that the objects of a store share in addition to their codec: tables or a dictionary, which can be
//! trained on its pages.

use std::sync::Arc;

#[cfg(feature = "zstd")]
use crate::ZstdTables;
use crate::{CodecId, Dictionary, FoldTables, Lz4Tables, PleatTables};

/// Tables that objects share but do not name: an object must be decoded with the tables it was made
/// with. With wrong tables, decoding fails or yields a wrong page; it stays memory-safe.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Tables {
    /// The tables of `pleat`.
    Pleat(Arc<PleatTables>),
    /// The tables of `fold-dict`, or none yet.
    Fold(Arc<FoldTables>),
    /// The dictionary of `lz4-dict`, or none yet.
    Lz4(Arc<Lz4Tables>),
    /// The dictionary of `zstd-LEVEL-dict`, digested for its level, or none yet.
    #[cfg(feature = "zstd")]
    Zstd(Arc<ZstdTables>),
}

impl Tables {
    /// Returns a hash of the content: equal tables have equal ids, on every machine. Returns 0 if
    /// there is no dictionary yet.
    pub fn id(&self) -> u32 {
        match self {
            Self::Pleat(tables) => tables.id(),
            Self::Fold(tables) => tables.id(),
            Self::Lz4(_) => self.dictionary().map_or(0, Dictionary::id),
            #[cfg(feature = "zstd")]
            Self::Zstd(_) => self.dictionary().map_or(0, Dictionary::id),
        }
    }

    /// Returns the dictionary, if there is one. Returns `None` for `pleat`, whose tables contain
    /// the dictionary.
    pub fn dictionary(&self) -> Option<&Dictionary> {
        match self {
            Self::Pleat(_) => None,
            Self::Fold(tables) => tables.dictionary(),
            Self::Lz4(tables) => tables.dictionary(),
            #[cfg(feature = "zstd")]
            Self::Zstd(tables) => tables.dictionary(),
        }
    }

    /// Returns the heap bytes of the tables, including what all streams derive from them.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::Pleat(tables) => tables.memory_bytes(),
            Self::Fold(tables) => tables.memory_bytes(),
            Self::Lz4(tables) => tables.memory_bytes(),
            #[cfg(feature = "zstd")]
            Self::Zstd(tables) => tables.memory_bytes(),
        }
    }

    /// Serialises the tables to at most 120 KiB: a [`CodecId`], and what the codec needs.
    pub fn to_bytes(&self) -> Vec<u8> {
        let of_dictionary = || self.dictionary().map_or(&[][..], Dictionary::bytes);
        let (id, rest) = match self {
            Self::Pleat(tables) => (CodecId::Pleat, tables.to_bytes()),
            Self::Fold(tables) => (CodecId::Fold, tables.to_bytes()),
            Self::Lz4(_) => (CodecId::Lz4, of_dictionary().to_vec()),
            #[cfg(feature = "zstd")]
            Self::Zstd(tables) => (CodecId::Zstd, [&tables.level().to_le_bytes(), of_dictionary()].concat()),
        };
        [&[id as u8], &rest[..]].concat()
    }
}

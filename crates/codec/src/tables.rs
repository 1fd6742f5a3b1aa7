//! Data that the objects of a store share in addition to their codec: tables or a dictionary, which can be
//! trained on its pages.

use std::sync::Arc;

use crate::{
    Codec, CodecId, Dictionary, FoldDict, FoldTables, Lz4Dict, Lz4Tables, Page, Pleat, PleatTables, dictionary,
};
#[cfg(feature = "zstd")]
use crate::{Zstd, ZstdTables};

/// The bytes are not valid tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid tables of a codec: {what}")]
#[non_exhaustive]
pub struct BadTables {
    /// Their fault.
    pub what: &'static str,
}

/// Tables that objects share but do not name: an object must be decoded with the tables it was made
/// with. (Other tables give an error or another page, never anything worse.)
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Tables {
    /// Those of `pleat`.
    Pleat(Arc<PleatTables>),
    /// Those of `fold-dict`, or none yet.
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

    /// Returns the dictionary, if there is one. Returns `None` for `pleat`, whose tables include
    /// theirs.
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

    /// Returns the codec whose objects share these tables.
    pub fn codec(&self) -> Arc<dyn Codec> {
        match self {
            Self::Pleat(tables) => Arc::new(Pleat::with_tables(Arc::clone(tables))),
            Self::Fold(tables) => Arc::new(FoldDict::with_tables(Arc::clone(tables))),
            Self::Lz4(tables) => Arc::new(Lz4Dict::with_tables(Arc::clone(tables))),
            #[cfg(feature = "zstd")]
            Self::Zstd(tables) => Arc::new(Zstd::with_tables(Arc::clone(tables))),
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

    /// Deserialises the output of [`to_bytes`](Self::to_bytes). `bytes` is untrusted; tables that
    /// are accepted are safe to use.
    ///
    /// # Errors
    /// The bytes are not valid tables of a codec of this build.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadTables> {
        let (&id, rest) = bytes.split_first().ok_or(BadTables { what: "truncated" })?;
        let dictionary = |bytes: &[u8]| match bytes.len() {
            ..=dictionary::LARGEST => Ok(Dictionary::new(bytes.to_vec())),
            _ => Err(BadTables { what: "too long a dictionary" }),
        };
        Ok(match id {
            id if id == CodecId::Pleat as u8 => Self::Pleat(Arc::new(PleatTables::from_bytes(rest)?)),
            id if id == CodecId::Fold as u8 => Self::Fold(Arc::new(FoldTables::from_bytes(rest)?)),
            id if id == CodecId::Lz4 as u8 && rest.is_empty() => Self::Lz4(Arc::default()),
            id if id == CodecId::Lz4 as u8 => Self::Lz4(Arc::new(Lz4Tables::new(dictionary(rest)?))),
            #[cfg(feature = "zstd")]
            id if id == CodecId::Zstd as u8 => {
                let (level, rest) = rest.split_first_chunk().ok_or(BadTables { what: "truncated" })?;
                let none = Zstd::new(i32::from_le_bytes(*level)).ok_or(BadTables { what: "unknown level" })?;
                if rest.is_empty() {
                    return none.with_dictionaries().tables().ok_or(BadTables { what: "no tables" });
                }
                let tables = ZstdTables::new(i32::from_le_bytes(*level), dictionary(rest)?);
                Self::Zstd(Arc::new(tables.ok_or(BadTables { what: "libzstd refuses the dictionary" })?))
            }
            _ => return Err(BadTables { what: "tables of a codec that is not in this build" }),
        })
    }

    /// Trains tables of the same codec on `sample`. Takes seconds; not for the hot path. The caller
    /// should leave out same-filled pages.
    ///
    /// Returns `None` if training does not help. Every eighth page of the sample is held out to
    /// judge that: the new tables must make those pages at least 2 % smaller than `self` does.
    pub fn train_beyond(&self, sample: &[&Page]) -> Option<Self> {
        match self {
            Self::Pleat(current) => {
                PleatTables::train_beyond(current, sample).map(|tables| Self::Pleat(Arc::new(tables)))
            }
            Self::Fold(current) => FoldTables::train_beyond(current, sample).map(|tables| Self::Fold(Arc::new(tables))),
            Self::Lz4(_) => {
                Dictionary::train(sample, self, |dictionary| Some(Self::Lz4(Arc::new(Lz4Tables::new(dictionary)))))
            }
            #[cfg(feature = "zstd")]
            Self::Zstd(current) => Dictionary::train(sample, self, |dictionary| {
                ZstdTables::new(current.level(), dictionary).map(|tables| Self::Zstd(Arc::new(tables)))
            }),
        }
    }
}

/// Returns whether reducing the same pages from `before` to `bytes` justifies new tables or a
/// longer dictionary: 2 % does.
pub(crate) fn worth_it(bytes: usize, before: usize) -> bool {
    bytes * 50 <= before * 49
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fiftieth_is_worth_it() {
        assert!(worth_it(49_000, 50_000) && worth_it(0, 50_000));
        assert!(!worth_it(49_001, 50_000) && !worth_it(50_000, 50_000) && !worth_it(60_000, 50_000));
    }
}

//! Codecs and their tables: deserialisation, training, and the codec of given tables.

use std::sync::Arc;

use crate::{
    BadTables, Candidates, Codec, CodecId, Dictionary, FoldDict, FoldTables, Lz4Dict, Lz4Tables, PAGE_SIZE, Page,
    Pleat, PleatTables, Tables,
    dictionary::{self, SIZES, candidates, held_out},
};
#[cfg(feature = "zstd")]
use crate::{Zstd, ZstdTables};

impl Tables {
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
    pub fn train_further(&self, sample: &[&Page]) -> Option<Self> {
        let (held_out, _) = held_out(sample)?;
        let candidates = self.train_candidates(sample)?;
        let bytes: Option<Vec<u64>> = candidates.tables().iter().map(|tables| tables.total(&held_out)).collect();
        let chosen = candidates.choose(self.total(&held_out)?, &bytes?)?;
        Some(candidates.into_one(chosen))
    }

    /// Trains as [`train_further`](Self::train_further) does, but returns all tables from which it
    /// chooses: to forecast how a store will choose, by other pages of the same kind.
    ///
    /// Returns `None` if the sample is too small or memory runs out.
    pub fn train_candidates(&self, sample: &[&Page]) -> Option<Candidates<Self>> {
        let (held_out, training) = held_out(sample)?;
        match self {
            Self::Pleat(_) => {
                Some(PleatTables::train(&training, &held_out)?.map(|tables| Self::Pleat(Arc::new(tables))))
            }
            Self::Fold(_) => Some(FoldTables::train(&training, &held_out).map(Self::Fold)),
            Self::Lz4(_) => {
                let with = |dictionary| Some(Self::Lz4(Arc::new(Lz4Tables::new(dictionary))));
                with_dictionary(&training, &held_out, with)
            }
            #[cfg(feature = "zstd")]
            Self::Zstd(current) => with_dictionary(&training, &held_out, |dictionary| {
                ZstdTables::new(current.level(), dictionary).map(|tables| Self::Zstd(Arc::new(tables)))
            }),
        }
    }

    /// Returns the size of the objects of `pages`; `None` if memory runs out.
    fn total(&self, pages: &[&Page]) -> Option<u64> {
        let mut stream = self.codec().stream().ok()?;
        let mut out = [0; PAGE_SIZE];
        Some(pages.iter().map(|page| stream.compress(page, &mut out).unwrap_or(PAGE_SIZE) as u64).sum())
    }
}

/// Returns the tables, built by `with` from a dictionary, that make the pages of `held_out` smallest.
fn with_dictionary(
    training: &[&Page],
    held_out: &[&Page],
    with: impl Fn(Dictionary) -> Option<Tables>,
) -> Option<Candidates<Tables>> {
    let dictionaries = candidates(training, &SIZES).into_iter();
    let (_, tables) = dictionaries
        .filter_map(|bytes| {
            let tables = with(Dictionary::new(bytes))?;
            Some((tables.total(held_out)?, tables))
        })
        .min_by_key(|(bytes, _)| *bytes)?;
    Some(Candidates::new(vec![tables], [1; 2]))
}

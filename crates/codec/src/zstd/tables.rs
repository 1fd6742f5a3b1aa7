//! What the objects of `zstd-LEVEL-dict` share.

use std::sync::Arc;

use super::digested::Digested;
use crate::Dictionary;

/// What the objects of `zstd-LEVEL-dict` share: a dictionary that libzstd has digested once for all
/// streams, or nothing yet.
#[derive(Debug)]
pub struct ZstdTables {
    pub(super) level: i32,
    pub(super) digested: Option<Arc<Digested>>,
}

impl ZstdTables {
    /// Digests `dictionary` for objects of `level`. Returns `None` if there is no memory, or if the
    /// content starts like a libzstd dictionary but is not a valid one.
    pub fn new(level: i32, dictionary: Dictionary) -> Option<Self> {
        Some(Self { level, digested: Some(Arc::new(Digested::new(level, dictionary)?)) })
    }

    /// Returns the level that the dictionary was digested for.
    pub fn level(&self) -> i32 {
        self.level
    }

    /// Returns the dictionary, if there is one.
    pub fn dictionary(&self) -> Option<&Dictionary> {
        self.digested.as_ref().map(|digested| digested.dictionary())
    }

    /// Returns the heap bytes, including those of libzstd.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.digested.as_ref().map_or(0, |digested| digested.memory_bytes())
    }
}

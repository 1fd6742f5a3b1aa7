//! Memory for decoded clusters, which one image has for itself or many share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::ahead_segments::{FileId, Segments, max_bytes};
use super::buffers::{Buffers, Content};
use super::clock::{Cache, Kept};
use super::visits::Visits;
use crate::error::{Error, Result};

/// Bits of a key that are a content's length: the longest extent takes 24 of them.
const LEN_BITS: u32 = 32;

/// How far the number of an image is from an address in what stands for a cluster among visits.
const NUMBER_SHIFT: u32 = 36;

/// A bounded cache of decoded clusters that any number of open images share. A clone is the same
/// cache.
///
/// [`limit_bytes`](Self::limit_bytes) bounds the clusters that are kept and those that were decoded ahead of readers in order.
/// Each open image has up to 5 MiB of decoded indexes and directories of its own.
#[derive(Clone)]
pub struct ClusterCache {
    shared: Arc<Shared>,
}

struct Shared {
    /// By address, and by length of the content with the image's number.
    clusters: Cache<(u64, u64), Content>,
    visits: Visits,
    buffers: Buffers,
    segments: Segments,
    limit_bytes: usize,
    next_number: AtomicU32,
}

impl ClusterCache {
    /// A cache of at most `limit_bytes`, a quarter of which are for what is decoded ahead of
    /// readers in order. A single extent is decoded ahead however long it is: 12 MiB at most.
    pub fn new(limit_bytes: usize) -> Self {
        let ahead_bytes = limit_bytes / 4;
        Self::with(limit_bytes - ahead_bytes, ahead_bytes)
    }

    /// A cache for one image.
    pub(crate) fn of_one(kept_bytes: usize) -> Self {
        Self::with(kept_bytes, max_bytes() as usize)
    }

    fn with(kept_bytes: usize, ahead_bytes: usize) -> Self {
        let shared = Shared {
            clusters: Cache::new(kept_bytes),
            visits: Visits::new(),
            buffers: Buffers::new(kept_bytes, ahead_bytes),
            segments: Segments::new(ahead_bytes as u64),
            limit_bytes: kept_bytes.saturating_add(ahead_bytes),
            next_number: AtomicU32::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The most memory that it takes, but for a single long extent.
    pub fn limit_bytes(&self) -> usize {
        self.shared.limit_bytes
    }

    /// Bytes of the clusters that are kept now.
    pub fn kept_bytes(&self) -> usize {
        self.shared.clusters.bytes()
    }

    /// The part of one more image.
    pub(crate) fn join(&self) -> Result<Clusters> {
        let next = |number: u32| number.checked_add(1);
        let taken = self.shared.next_number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let number =
            taken.map_err(|_| Error::Options("too many images have used this cache: create a new one".into()))?;
        Ok(Clusters { cache: self.clone(), number: number.into() })
    }
}

/// One image's clusters in a cache.
pub(crate) struct Clusters {
    cache: ClusterCache,
    /// No other image that ever shared the cache has it.
    number: u64,
}

/// A cluster among those of all images.
type Key = (u64, u64);

impl Clusters {
    /// The length is of the key: a cluster that others share may have been decoded for a shorter
    /// extent.
    fn key(&self, pa: u64, len: u64) -> Key {
        (pa, self.number << LEN_BITS | len)
    }

    /// What stands for the cluster of a key where visits are counted. Two may share it, which only
    /// blurs the counts.
    fn visited((pa, word): Key) -> u64 {
        pa ^ (word >> LEN_BITS) << NUMBER_SHIFT
    }

    /// The content of `len` bytes of the cluster at `pa`, if it is kept.
    pub(crate) fn find(&self, pa: u64, len: u64) -> Option<Kept<Content>> {
        self.cache.shared.clusters.find(self.key(pa, len))
    }

    /// As [`Cache::get`], for the content of `len` bytes of the cluster at `pa`.
    pub(crate) fn get(
        &self,
        pa: u64,
        len: u64,
        cost: usize,
        make: impl Fn() -> Result<Content>,
    ) -> Result<Kept<Content>> {
        self.cache.shared.clusters.get(self.key(pa, len), cost, make)
    }

    /// How often the cluster was visited lately that is likely to be forgotten for this one, of
    /// `cost` bytes; `None` if there is room.
    pub(crate) fn visits_of_victim(&self, pa: u64, len: u64, cost: usize) -> Option<u64> {
        let victim = self.cache.shared.clusters.victim(self.key(pa, len), cost)?;
        Some(self.cache.shared.visits.count(Self::visited(victim)))
    }

    /// Counts a visit to the cluster at `pa`, and returns how many there were.
    pub(crate) fn visit(&self, pa: u64) -> u64 {
        self.cache.shared.visits.add(Self::visited(self.key(pa, 0)))
    }

    /// Notes a miss of the cluster at `pa`, and returns whether it was among the last already.
    pub(crate) fn missed_again(&self, pa: u64) -> bool {
        self.cache.shared.visits.missed_again(Self::visited(self.key(pa, 0)))
    }

    /// Whether room was ever more than half taken.
    pub(crate) fn is_filling(&self) -> bool {
        self.cache.shared.clusters.is_filling()
    }

    /// How often a cluster of any image was found.
    pub(crate) fn hits(&self) -> u64 {
        self.cache.shared.clusters.hits()
    }

    pub(crate) fn buffers(&self) -> &Buffers {
        &self.cache.shared.buffers
    }

    pub(crate) fn segments(&self) -> &Segments {
        &self.cache.shared.segments
    }

    /// A file of the image among those of all that share the segments.
    pub(crate) fn file(&self, nid: u64) -> FileId {
        (self.number, nid)
    }
}

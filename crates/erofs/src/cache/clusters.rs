//! Memory for decoded clusters, used by one image or shared by several.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::ahead_segments::{FileId, Segments, max_bytes};
use super::buffers::{Buffers, Content};
use super::clock::{Cache, Kept};
use super::visits::Visits;
use super::workers::Workers;
use crate::error::{Error, Result};

/// Bits of a key for the content's length; the longest extent needs 24.
const LEN_BITS: u32 = 32;

/// Visits are counted under an id that has the cluster's address in the lower bits and, from this
/// bit on, the image's number.
const NUMBER_SHIFT: u32 = 36;

/// A bounded cache of decoded clusters that any number of open images share, with the threads that
/// decode ahead of their readers. Clones share the cache.
///
/// [`limit_bytes`](Self::limit_bytes) bounds the cached clusters and the content decoded ahead of
/// sequential readers. In addition, each open image uses up to 5 MiB for decoded indexes and
/// directories.
#[derive(Clone)]
pub struct ClusterCache {
    shared: Arc<Shared>,
}

struct Shared {
    /// Keyed by address, and by image number and content length.
    clusters: Cache<(u64, u64), Content>,
    visits: Visits,
    buffers: Buffers,
    segments: Segments,
    workers: Workers,
    limit_bytes: usize,
    next_number: AtomicU32,
}

impl ClusterCache {
    /// Creates a cache of at most `limit_bytes`. A quarter is for content decoded ahead of
    /// sequential readers. A single extent is decoded ahead regardless of its length, which is at
    /// most 12 MiB.
    pub fn new(limit_bytes: usize) -> Self {
        let ahead_bytes = limit_bytes / 4;
        Self::with(limit_bytes - ahead_bytes, ahead_bytes)
    }

    /// Creates a cache for one image.
    pub(crate) fn of_one(kept_bytes: usize) -> Self {
        Self::with(kept_bytes, max_bytes() as usize)
    }

    fn with(kept_bytes: usize, ahead_bytes: usize) -> Self {
        let shared = Shared {
            clusters: Cache::new(kept_bytes),
            visits: Visits::new(),
            buffers: Buffers::new(kept_bytes, ahead_bytes),
            segments: Segments::new(ahead_bytes as u64),
            workers: Workers::default(),
            limit_bytes: kept_bytes.saturating_add(ahead_bytes),
            next_number: AtomicU32::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the memory limit in bytes, which only a single long extent can exceed.
    pub fn limit_bytes(&self) -> usize {
        self.shared.limit_bytes
    }

    /// Returns the size in bytes of all cached clusters.
    pub fn kept_bytes(&self) -> usize {
        self.shared.clusters.bytes()
    }

    /// Registers another image.
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
    /// Unique among all images that ever shared the cache.
    number: u64,
}

/// Identifies a cluster among those of all images.
type Key = (u64, u64);

impl Clusters {
    /// Returns the key of a cluster. It includes the length, because another image file that shares
    /// the cluster may have a shorter extent.
    fn key(&self, pa: u64, len: u64) -> Key {
        (pa, self.number << LEN_BITS | len)
    }

    /// Returns the id under which the visits of a cluster are counted. Collisions only blur the
    /// counts.
    fn visited((pa, word): Key) -> u64 {
        pa ^ (word >> LEN_BITS) << NUMBER_SHIFT
    }

    /// Returns the content of `len` bytes of the cluster at `pa`, if it is cached.
    pub(crate) fn find(&self, pa: u64, len: u64) -> Option<Kept<Content>> {
        self.cache.shared.clusters.find(self.key(pa, len))
    }

    /// Like [`Cache::get`], for the content of `len` bytes of the cluster at `pa`.
    pub(crate) fn get(
        &self,
        pa: u64,
        len: u64,
        cost: usize,
        make: impl Fn() -> Result<Content>,
    ) -> Result<Kept<Content>> {
        self.cache.shared.clusters.get(self.key(pa, len), cost, make)
    }

    /// Like [`Cache::put`], for the content of `len` bytes of the cluster at `pa`.
    pub(crate) fn put(&self, pa: u64, len: u64, cost: usize, content: Content) -> Kept<Content> {
        self.cache.shared.clusters.put(self.key(pa, len), cost, content)
    }

    /// Returns the recent visits of the cluster that would likely be evicted for this one, at a
    /// cost of `cost` bytes; `None` if there is room.
    pub(crate) fn visits_of_victim(&self, pa: u64, len: u64, cost: usize) -> Option<u64> {
        let victim = self.cache.shared.clusters.victim(self.key(pa, len), cost)?;
        Some(self.cache.shared.visits.count(Self::visited(victim)))
    }

    /// Counts a visit to the cluster at `pa`. Returns the new count.
    pub(crate) fn visit(&self, pa: u64) -> u64 {
        self.cache.shared.visits.add(Self::visited(self.key(pa, 0)))
    }

    /// Records a miss of the cluster at `pa`. Returns whether it was already among the last misses.
    pub(crate) fn missed_again(&self, pa: u64) -> bool {
        self.cache.shared.visits.missed_again(Self::visited(self.key(pa, 0)))
    }

    /// Returns whether the cache was ever more than half full.
    pub(crate) fn is_filling(&self) -> bool {
        self.cache.shared.clusters.is_filling()
    }

    /// Returns the number of cache hits, for all images.
    pub(crate) fn hits(&self) -> u64 {
        self.cache.shared.clusters.hits()
    }

    pub(crate) fn buffers(&self) -> &Buffers {
        &self.cache.shared.buffers
    }

    pub(crate) fn segments(&self) -> &Segments {
        &self.cache.shared.segments
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.cache.shared.workers
    }

    /// Returns the id of a file of this image among all that share the segments.
    pub(crate) fn file(&self, nid: u64) -> FileId {
        (self.number, nid)
    }
}

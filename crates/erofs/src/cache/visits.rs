//! Counts recent reads of partial clusters, to decide which clusters are worth caching.
//!
//! The policy is TinyLFU (Einziger, Friedman, Manes: *TinyLFU: A Highly Efficient Cache Admission
//! Policy*, ACM Transactions on Storage 13(4), 2017): a new cluster must have been read more often
//! than the one it evicts, and old visits count less. Instead of a sketch, there is a table in
//! which each cluster has one slot, and counts as new if another cluster takes that slot. Instead
//! of a small cache in front for immediate repeats, the addresses of the last misses are kept.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

/// The number of slots, 8 bytes each. A power of two.
const PLACES: usize = 4096;
/// Bits of a slot for the count; the others hold the address.
const COUNT_BITS: u32 = 4;
/// Further visits are not counted, so that reads of the most popular clusters write nothing.
const MOST: u64 = (1 << COUNT_BITS) - 1;
/// The number of slots that age together and share a visit counter, so that threads rarely contend
/// for one.
const PART: usize = 256;
/// The number of visits after which a part's counts are halved.
const LIFE: u64 = 16 * PART as u64;
/// The number of misses that are remembered.
const LAST: usize = 8;

/// Visit counts by cluster address.
pub(crate) struct Visits {
    parts: Box<[Shard]>,
    /// Addresses of the last misses; 0 for none.
    last: [AtomicU64; LAST],
    /// The total number of misses.
    missed: AtomicUsize,
}

struct Shard {
    places: [AtomicU64; PART],
    visits: CachePadded<AtomicU64>,
}

impl Shard {
    fn new() -> Self {
        Self { places: [const { AtomicU64::new(0) }; PART], visits: CachePadded::default() }
    }
}

impl Visits {
    pub(crate) fn new() -> Self {
        Self {
            parts: (0..PLACES / PART).map(|_| Shard::new()).collect(),
            last: Default::default(),
            missed: AtomicUsize::new(0),
        }
    }

    fn place(&self, pa: u64) -> (&Shard, &AtomicU64) {
        // Addresses have strides, so they are hashed. (Fibonacci hashing: Knuth, volume 3, section
        // 6.4.)
        let hash = pa.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let part = &self.parts[hash as usize % PLACES / PART];
        (part, &part.places[hash as usize % PART])
    }

    /// Returns the recent visits of the cluster at `pa`.
    pub(crate) fn count(&self, pa: u64) -> u64 {
        let word = self.place(pa).1.load(Ordering::Relaxed);
        if word >> COUNT_BITS == pa << COUNT_BITS >> COUNT_BITS { word & MOST } else { 0 }
    }

    /// Counts a visit and returns the new count. Concurrent calls may lose a visit.
    pub(crate) fn add(&self, pa: u64) -> u64 {
        let count = self.count(pa) + 1;
        if count > MOST {
            return MOST;
        }
        let (part, place) = self.place(pa);
        place.store(pa << COUNT_BITS | count, Ordering::Relaxed);
        if part.visits.fetch_add(1, Ordering::Relaxed) % LIFE == LIFE - 1 {
            for place in &part.places {
                let word = place.load(Ordering::Relaxed);
                place.store((word & !MOST) | ((word & MOST) / 2), Ordering::Relaxed);
            }
        }
        count
    }

    /// Records a miss of the cluster at `pa`. Returns whether it was already among the last misses.
    pub(crate) fn missed_again(&self, pa: u64) -> bool {
        if self.last.iter().any(|last| last.load(Ordering::Relaxed) == pa) {
            return true;
        }
        let place = self.missed.fetch_add(1, Ordering::Relaxed) % LAST;
        self.last[place].store(pa, Ordering::Relaxed);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visits_are_counted_and_forgotten() {
        let visits = Visits::new();
        assert_eq!((visits.count(4096), visits.add(4096), visits.add(4096), visits.count(4096)), (0, 1, 2, 2));
        assert_eq!(visits.count(8192), 0);
        for _ in 0..=MOST {
            visits.add(8192);
        }
        assert_eq!((visits.add(8192), visits.count(4096)), (MOST, 2));
        for pa in 0..2 * (PLACES / PART) as u64 * LIFE {
            visits.add(pa << 20 | 512);
        }
        assert!(visits.count(4096) <= 1 && visits.count(8192) <= MOST / 2);
        for pa in (0..1u64 << 30).step_by(4096) {
            assert!(visits.add(pa) >= 1);
        }
    }

    #[test]
    fn the_last_misses_are_known() {
        let visits = Visits::new();
        for pa in 1..=LAST as u64 {
            assert!(!visits.missed_again(pa * 4096));
        }
        assert!((1..=LAST as u64).all(|pa| visits.missed_again(pa * 4096)));
        assert!(!visits.missed_again(512) && !visits.missed_again(4096));
    }
}

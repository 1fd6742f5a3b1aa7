//! How often parts of clusters were read lately: what decides whether a cluster is worth a place in
//! the cache.
//!
//! The policy is TinyLFU's (Einziger, Friedman, Manes: *TinyLFU: A Highly Efficient Cache Admission
//! Policy*, ACM Transactions on Storage 13(4), 2017): who comes in must have been asked for more
//! often than who goes out, and old visits count for less. In place of its sketch there is a table
//! in which a cluster has one place, and may lose it to another: it then counts as new. In place of
//! the small cache in front of it, which takes what is asked for again at once, there are the
//! addresses of the last misses.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

/// Clusters that are counted, 8 bytes each. A power of two.
const PLACES: usize = 4096;
/// Bits of a place that count; the others are the address.
const COUNT_BITS: u32 = 4;
/// Further visits are not counted, so that reads of what is read most write nothing.
const MOST: u64 = (1 << COUNT_BITS) - 1;
/// Places that grow old together, and have a line for their visits, so that threads seldom write
/// the same one.
const PART: usize = 256;
/// Counted visits after which a part's counts are halved.
const LIFE: u64 = 16 * PART as u64;
/// Misses that are remembered.
const LAST: usize = 8;

/// Counts of visits by a cluster's address.
pub(crate) struct Visits {
    parts: Box<[Part]>,
    /// Addresses of the last misses; 0 for none.
    last: [AtomicU64; LAST],
    /// How many there were.
    missed: AtomicUsize,
}

struct Part {
    places: [AtomicU64; PART],
    visits: CachePadded<AtomicU64>,
}

impl Part {
    fn new() -> Self {
        Self { places: [const { AtomicU64::new(0) }; PART], visits: CachePadded::default() }
    }
}

impl Visits {
    pub(crate) fn new() -> Self {
        Self {
            parts: (0..PLACES / PART).map(|_| Part::new()).collect(),
            last: Default::default(),
            missed: AtomicUsize::new(0),
        }
    }

    fn place(&self, pa: u64) -> (&Part, &AtomicU64) {
        // Spread, since addresses have strides. (Fibonacci hashing: Knuth, volume 3, section 6.4.)
        let hash = pa.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let part = &self.parts[hash as usize % PLACES / PART];
        (part, &part.places[hash as usize % PART])
    }

    /// The visits of the cluster at `pa` that are remembered.
    pub(crate) fn count(&self, pa: u64) -> u64 {
        let word = self.place(pa).1.load(Ordering::Relaxed);
        if word >> COUNT_BITS == pa << COUNT_BITS >> COUNT_BITS { word & MOST } else { 0 }
    }

    /// Counts one more and returns how many there are. Threads that do so at once may lose one.
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

    /// Notes a miss of the cluster at `pa`, and returns whether it was among the last already.
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

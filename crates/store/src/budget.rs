//! The account of all memory that a store has taken, and its limit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagefold_codec::PAGE_SIZE;

/// The limit does not allow that much more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Bytes taken, never more than the limit. `used ≤ max ≤ limit`.
///
/// ```text
/// limit   │ objects, table, streams                     │ 1/64         │ two pages a stream │ at most 1/16    │
///         │ what a store keeps for good goes up to here │ overwriting  │ swapping           │ moving objects  │
/// ```
///
/// The last [`MOVING_BYTES`] are for those who move objects: in a full store too a segment can be emptied into another, and
/// what was free in it is then room.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicU64,
    max: AtomicU64,
    limit: AtomicU64,
    /// Streams of writers.
    streams: u64,
    #[cfg(all(test, not(loom)))]
    faults: Faults,
}

/// Four segments of the default pool; of a small limit at most a sixteenth. One is what it takes to empty another; a thread
/// that stands still between taking room and using it can keep one from being given back.
const MOVING_BYTES: u64 = 256 << 10;

/// What memory is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// What is kept once it is there, as the table and streams are: it leaves what is for overwriting and swapping alone.
    Keep,
    /// To store more.
    Store,
    /// To move objects, which then gives as much back or more; and for what a store cannot be without.
    Move,
}

/// Which calls of [`Budget::take_for`] are to fail.
#[cfg(all(test, not(loom)))]
#[derive(Debug, Default)]
struct Faults {
    calls: AtomicU64,
    first: AtomicU64,
    count: AtomicU64,
}

#[cfg(all(test, not(loom)))]
impl Faults {
    fn strikes(&self) -> bool {
        let call = self.calls.fetch_add(1, Relaxed);
        call.checked_sub(self.first.load(Relaxed)).is_some_and(|since| since < self.count.load(Relaxed))
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self::for_streams(limit, 0)
    }

    /// A budget of `limit` bytes for writers with `streams` streams.
    pub(crate) fn for_streams(limit: u64, streams: usize) -> Self {
        Self {
            used: AtomicU64::new(0),
            max: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
            streams: streams as u64,
            #[cfg(all(test, not(loom)))]
            faults: Faults::default(),
        }
    }

    /// Lets the next `after` calls of [`take_for`](Self::take_for) pass and makes the `count` after those fail.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn fail(&self, after: u64, count: u64) {
        self.faults.calls.store(0, Relaxed);
        self.faults.first.store(after, Relaxed);
        self.faults.count.store(count, Relaxed);
    }

    /// Whether a call has failed since [`fail`](Self::fail) said that some would.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_failed(&self) -> bool {
        self.faults.calls.load(Relaxed) > self.faults.first.load(Relaxed)
    }

    /// How often memory was asked for since [`fail`](Self::fail).
    #[cfg(all(test, not(loom)))]
    pub(crate) fn calls(&self) -> u64 {
        self.faults.calls.load(Relaxed)
    }

    /// Takes `bytes`, or nothing if that would go over the limit for this purpose.
    pub(crate) fn take_for(&self, purpose: Purpose, bytes: u64) -> Result<(), Full> {
        #[cfg(all(test, not(loom)))]
        if self.faults.strikes() {
            return Err(Full);
        }
        let limit = match purpose {
            Purpose::Keep => self.limit() - self.moving_bytes() - self.swap_bytes() - self.overwrite_bytes(),
            Purpose::Store => self.limit() - self.moving_bytes(),
            Purpose::Move => self.limit(),
        };
        let before = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| used.checked_add(bytes).filter(|&used| used <= limit))
            .map_err(|_| Full)?;
        self.max.fetch_max(before + bytes, Relaxed);
        Ok(())
    }

    /// Takes `bytes`, over the limit if need be.
    pub(crate) fn force(&self, bytes: u64) {
        let before = self.used.fetch_add(bytes, Relaxed);
        self.max.fetch_max(before + bytes, Relaxed);
    }

    /// Gives `bytes` that were taken back.
    pub(crate) fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    /// The part of the limit that is kept for those who put longer objects in the place of shorter ones.
    pub(crate) fn overwrite_bytes(&self) -> u64 {
        self.limit() / 64
    }

    /// The part of the limit that is kept for those who replace an object: each holder of a stream needs room for its new
    /// object before its old one is free, and a part of what is free is lost between objects.
    pub(crate) fn swap_bytes(&self) -> u64 {
        let limit = self.limit();
        (self.streams * 2 * PAGE_SIZE as u64).max(if self.streams == 0 { 0 } else { limit / 512 }).min(limit / 16)
    }

    /// The part of the limit that is kept for those who move objects.
    fn moving_bytes(&self) -> u64 {
        MOVING_BYTES.min(self.limit() / 16)
    }

    /// What may still be taken to store more.
    pub(crate) fn left(&self) -> u64 {
        self.left_with(0)
    }

    /// What could be taken to store more if `unused_bytes` of what was taken came back. Moving objects may have taken more than
    /// there is to store more, and then some of that has to come back first.
    pub(crate) fn left_with(&self, unused_bytes: u64) -> u64 {
        (self.limit() - self.moving_bytes()).saturating_add(unused_bytes).saturating_sub(self.used())
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The most that was ever taken at once.
    pub(crate) fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Changes the limit. Below what is used, nothing more is taken until enough was given back.
    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_over_the_limit() {
        let budget = Budget::new(160);
        assert_eq!(budget.take_for(Purpose::Store, 60), Ok(()));
        assert_eq!(budget.left(), 90);
        assert_eq!(budget.take_for(Purpose::Store, 91), Err(Full));
        assert_eq!(budget.take_for(Purpose::Store, u64::MAX), Err(Full));
        assert_eq!(budget.take_for(Purpose::Keep, 89), Err(Full));
        assert_eq!(budget.take_for(Purpose::Keep, 88), Ok(()));
        assert_eq!(budget.take_for(Purpose::Store, 2), Ok(()));
        assert_eq!(budget.take_for(Purpose::Move, 11), Err(Full));
        assert_eq!(budget.take_for(Purpose::Move, 10), Ok(()));
        assert_eq!(budget.left(), 0);
        budget.give(160);
        assert_eq!((budget.used(), budget.max()), (0, 160));
    }

    #[test]
    fn what_is_kept_for_good_leaves_room_to_replace_objects() {
        let limit = 64 << 20;
        let budget = Budget::for_streams(limit, 100);
        assert_eq!((budget.swap_bytes(), budget.overwrite_bytes()), (100 * 2 * PAGE_SIZE as u64, 1 << 20));
        let most = limit - MOVING_BYTES - budget.swap_bytes() - budget.overwrite_bytes();
        assert_eq!(budget.take_for(Purpose::Keep, most + 1), Err(Full));
        assert_eq!(budget.take_for(Purpose::Keep, most), Ok(()));
        assert_eq!(budget.take_for(Purpose::Store, limit - MOVING_BYTES - most), Ok(()));
    }

    #[test]
    fn what_moving_has_taken_is_not_left() {
        let budget = Budget::new(160);
        assert_eq!(budget.take_for(Purpose::Move, 155), Ok(()));
        assert_eq!((budget.left(), budget.left_with(5), budget.left_with(8)), (0, 0, 3));
    }
}

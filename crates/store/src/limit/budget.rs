//! The account of all memory that a pool has taken, its limit, and the reserves below the limit.
//!
//! ```text
//! 0                                    new        longer     stored   limit
//! │ pages, tables, trained tables, …   │ growing  │ swapping │ moving │
//! ```
//!
//! - **growing**: a page that replaces another may be longer: 1/64 of the limit. In addition, what
//!   the pool has promised to streams, one per CPU.
//! - **swapping**: a new object exists before the old one is freed, and old objects are kept
//!   briefly for readers: a fixed amount per CPU, or 1/512 of the limit if that is more, at most
//!   1/16.
//! - **moving**: a segment is emptied into another before its memory is released.
//!
//! Three rules:
//!
//! 1. Memory is taken up to `stored`; up to the limit only to *move objects*, and for a writer that
//!    has just freed at least that many bytes.
//! 2. An object is *admitted* if `bytes taken − bytes free in the heap + bytes by which it is
//!    longer than the object that it replaces` is at most `longer`, or `new` for an empty slot. An
//!    object that is not longer is always admitted. Permanent memory (tables, streams beyond those
//!    promised) is admitted like an object for an empty slot.
//! 3. Below `stored`, half of the swapping reserve is kept free: when less is left, the compactor
//!    empties segments until the whole reserve is free again. If a writer finds no room for an
//!    admitted object, it empties segments itself.
//!
//! So a full pool can be overwritten forever with similar pages: they are admitted, and the free
//! bytes in the heap suffice to make room for them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;
use pagefold_codec::PAGE_SIZE;

/// The limit does not allow the requested bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Bytes taken, never more than the limit, and bytes taken beyond it. Every write reads `used` and
/// the limit, so other fields that change often are on other cache lines.
#[derive(Debug)]
pub(crate) struct Budget {
    used: CachePadded<AtomicU64>,
    /// Bytes to which the limit does not apply. They take no room from objects: otherwise, a full
    /// pool would refuse overwrites.
    exempt: AtomicU64,
    max: CachePadded<AtomicU64>,
    limit: AtomicU64,
    /// The limit for storing, and the size of the swapping reserve.
    stored: AtomicU64,
    swapping: AtomicU64,
    /// Bytes promised to streams and not yet taken.
    promised: AtomicU64,
    /// The bytes taken that are free in the heap, as last published.
    free: CachePadded<AtomicU64>,
    cpus: u64,
    #[cfg(all(test, not(loom)))]
    faults: Faults,
}

/// Bytes reserved for moving: a segment for each thread that empties one at a time, and for the
/// background thread.
const MOVING_BYTES: u64 = 64 << 10;

/// Bytes that a CPU's thread briefly holds in addition: its new object, and replaced objects kept
/// for readers.
const SWAPPING_BYTES: u64 = 2 * PAGE_SIZE as u64 + (16 << 10);

/// The purpose for which memory is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Permanent memory.
    Keep,
    /// An object.
    Store,
    /// Memory that a pool cannot do without, or memory for moving objects: a move then frees at
    /// least as much.
    Move,
}

/// The calls of [`Budget::take_for`] that fail, for tests.
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
    /// Creates a budget of `limit` bytes for writers on `cpus` CPUs.
    pub(crate) fn new(limit: u64, cpus: usize) -> Self {
        let budget = Self {
            used: CachePadded::new(AtomicU64::new(0)),
            exempt: AtomicU64::new(0),
            max: CachePadded::new(AtomicU64::new(0)),
            limit: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            swapping: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            free: CachePadded::new(AtomicU64::new(0)),
            cpus: cpus as u64,
            #[cfg(all(test, not(loom)))]
            faults: Faults::default(),
        };
        budget.set_limit(limit);
        budget
    }

    /// Lets the next `after` calls of [`take_for`](Self::take_for) succeed and makes the `count`
    /// after those fail.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn fail(&self, after: u64, count: u64) {
        self.faults.calls.store(0, Relaxed);
        self.faults.first.store(after, Relaxed);
        self.faults.count.store(count, Relaxed);
    }

    /// Returns whether a call has failed since [`fail`](Self::fail).
    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_failed(&self) -> bool {
        self.faults.calls.load(Relaxed) > self.faults.first.load(Relaxed)
    }

    /// Returns the number of calls since [`fail`](Self::fail).
    #[cfg(all(test, not(loom)))]
    pub(crate) fn calls(&self) -> u64 {
        self.faults.calls.load(Relaxed)
    }

    /// Takes `bytes`, or nothing if that would exceed the limit for this purpose.
    pub(crate) fn take_for(&self, purpose: Purpose, bytes: u64) -> Result<(), Full> {
        #[cfg(all(test, not(loom)))]
        if self.faults.strikes() {
            return Err(Full);
        }
        if purpose == Purpose::Keep && !self.admits(bytes, true) {
            return Err(Full);
        }
        let limit = if purpose == Purpose::Move { self.limit() } else { self.stored_bytes() };
        let before = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| used.checked_add(bytes).filter(|&used| used <= limit))
            .map_err(|_| Full)?;
        self.max.fetch_max(before + bytes + self.exempt.load(Relaxed), Relaxed);
        Ok(())
    }

    /// Records that `bytes` were taken at some time.
    pub(crate) fn note_max(&self, bytes: u64) {
        self.max.fetch_max(bytes, Relaxed);
    }

    /// Takes `bytes` beyond the limit.
    pub(crate) fn take_exempt(&self, bytes: u64) {
        let before = self.exempt.fetch_add(bytes, Relaxed);
        self.max.fetch_max(self.used() + before + bytes, Relaxed);
    }

    /// Returns `bytes` that were taken beyond the limit.
    pub(crate) fn give_exempt(&self, bytes: u64) {
        self.exempt.fetch_sub(bytes, Relaxed);
    }

    /// Returns `bytes` that were taken.
    pub(crate) fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    /// Takes `bytes` of the promise. Fails if the promise or the limit for storing does not cover
    /// them.
    pub(crate) fn take_promised(&self, bytes: u64) -> Result<(), Full> {
        self.promised.fetch_update(Relaxed, Relaxed, |promised| promised.checked_sub(bytes)).map_err(|_| Full)?;
        self.take_for(Purpose::Store, bytes).inspect_err(|_| _ = self.promised.fetch_add(bytes, Relaxed))
    }

    /// Sets how many more bytes [`take_promised`](Self::take_promised) will take.
    pub(crate) fn promise(&self, bytes: u64) {
        self.promised.store(bytes, Relaxed);
    }

    /// Returns the limit for storing.
    fn stored_bytes(&self) -> u64 {
        self.stored.load(Relaxed)
    }

    /// Returns the size of the swapping reserve.
    pub(crate) fn swapping_bytes(&self) -> u64 {
        self.swapping.load(Relaxed)
    }

    fn longer_bytes(&self) -> u64 {
        self.stored_bytes().saturating_sub(self.swapping_bytes())
    }

    fn new_bytes(&self) -> u64 {
        let growing = (self.limit() / 64).saturating_add(self.promised.load(Relaxed));
        self.longer_bytes().saturating_sub(growing)
    }

    /// Publishes that the free bytes in a part of the heap changed from `before_bytes` to
    /// `now_bytes`.
    pub(crate) fn report_free(&self, before_bytes: u64, now_bytes: u64) {
        self.free.fetch_add(now_bytes.wrapping_sub(before_bytes), Relaxed);
    }

    /// Returns whether an object is admitted if it is `grows_bytes` longer than the one that it
    /// replaces, or, with `is_new`, if its slot is empty.
    #[inline]
    pub(crate) fn admits(&self, grows_bytes: u64, is_new: bool) -> bool {
        let limit = if is_new { self.new_bytes() } else { self.longer_bytes() };
        let after = self.used().saturating_add(grows_bytes);
        grows_bytes == 0 || after <= limit || after.saturating_sub(self.free.load(Relaxed)) <= limit
    }

    /// Returns how many more bytes may be taken for storing.
    pub(crate) fn left(&self) -> u64 {
        self.stored_bytes().saturating_sub(self.used())
    }

    /// Returns whether so little is left that the compactor should start.
    #[inline]
    pub(crate) fn is_low(&self) -> bool {
        self.left() < self.swapping_bytes() / 2
    }

    /// Returns whether the compactor has freed enough to stop.
    pub(crate) fn is_enough(&self) -> bool {
        self.left() >= self.swapping_bytes()
    }

    /// Returns the bytes taken within the limit.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Returns the bytes taken beyond the limit.
    pub(crate) fn exempt(&self) -> u64 {
        self.exempt.load(Relaxed)
    }

    /// Returns the most bytes taken at any time, within the limit and beyond it.
    pub(crate) fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Changes the limit. If more is in use than the new limit, nothing more is taken until enough
    /// is freed.
    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Relaxed);
        self.stored.store(limit - (MOVING_BYTES * (self.cpus + 2)).min(limit / 16), Relaxed);
        self.swapping.store((SWAPPING_BYTES * self.cpus).max(limit / 512).min(limit / 16), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_purpose_has_its_limit() {
        let budget = Budget::new(64 << 20, 2);
        let (new, longer, stored) = (budget.new_bytes(), budget.longer_bytes(), budget.stored_bytes());
        assert_eq!((new + (1 << 20), longer + (128 << 10), stored + (256 << 10)), (longer, stored, 64 << 20));
        for (purpose, limit) in [(Purpose::Keep, new), (Purpose::Store, stored), (Purpose::Move, 64 << 20)] {
            assert_eq!(budget.take_for(purpose, limit - budget.used() + 1), Err(Full));
            assert_eq!(budget.take_for(purpose, limit - budget.used()), Ok(()));
        }
        assert_eq!((budget.left(), budget.take_for(Purpose::Move, u64::MAX)), (0, Err(Full)));
        budget.give(64 << 20);
        assert_eq!((budget.used(), budget.max()), (0, 64 << 20));
    }

    #[test]
    fn what_is_free_in_the_heap_is_room_for_longer_pages() {
        let budget = Budget::new(64 << 20, 2);
        budget.take_for(Purpose::Store, budget.longer_bytes()).expect("room");
        assert!(!budget.is_low() && budget.is_enough());
        assert!(budget.admits(0, true), "it takes nothing more");
        assert!(!budget.admits(1, false) && budget.take_for(Purpose::Keep, 1).is_err());
        budget.report_free(0, 1);
        assert!(budget.admits(1, false) && !budget.admits(1, true));
        budget.report_free(1, (1 << 20) + 1);
        assert!(budget.admits(1, true) && !budget.admits(2, true));
        assert_eq!(budget.take_for(Purpose::Keep, 1), Ok(()));
    }

    #[test]
    fn what_was_promised_is_kept() {
        let budget = Budget::new(64 << 20, 2);
        let before = budget.new_bytes();
        budget.promise(1000);
        assert_eq!(budget.new_bytes(), before - 1000);
        assert_eq!(budget.take_for(Purpose::Keep, before - 1000), Ok(()));
        assert_eq!((budget.take_promised(600), budget.take_promised(401)), (Ok(()), Err(Full)));
        assert_eq!(budget.take_promised(400), Ok(()));
        assert_eq!(budget.take_for(Purpose::Keep, 1), Err(Full));
    }
}

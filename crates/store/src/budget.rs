//! The account of all memory that a pool has taken, its limit, and what of that is kept for what.
//!
//! ```text
//! 0                                    new        longer     stored   limit
//! │ pages, tables, trained tables, …   │ growing  │ swapping │ moving │
//! ```
//!
//! - **growing**: a page that replaces another may be longer: 1/64 of the limit. And what the pool
//!   has promised to streams: one a CPU.
//! - **swapping**: a new object is there before the old one goes, and what goes is kept for a
//!   moment for those who read it: so much for each CPU, or 1/512 of the limit.
//! - **moving**: a segment is emptied into another before its memory comes back.
//!
//! Three rules:
//!
//! 1. Memory is taken up to `stored`; to *move objects*, and for an object of a writer who has just
//!    brought as much together, up to the limit.
//! 2. An object is *admitted* if what is taken without what is free in the heap, with the bytes by
//!    which it is longer than the one that it replaces, stays below `longer`, or for an empty slot
//!    below `new`. One that is not longer is always admitted. What is kept for good (tables,
//!    streams beyond those promised) is admitted as an object for an empty slot is.
//! 3. Below `stored`, half of what is kept for swapping is kept free: when it is used, the
//!    compactor empties segments until all of it is free again. A writer who finds no room though
//!    his object is admitted does so himself.
//!
//! So a full pool can be overwritten for ever with pages like its own: they are admitted, and what
//! is free in the heap suffices to bring room for them together.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagefold_codec::PAGE_SIZE;

/// The limit does not allow that much more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Bytes taken, never more than the limit but by [`force`](Budget::force).
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicU64,
    max: AtomicU64,
    limit: AtomicU64,
    /// Bytes that streams will take.
    promised: AtomicU64,
    /// Of what is taken, bytes that are free in the heap, as they were a moment ago.
    free: AtomicU64,
    cpus: u64,
    #[cfg(all(test, not(loom)))]
    faults: Faults,
}

/// A segment for each thread that empties one at a time, and for the background thread.
const MOVING_BYTES: u64 = 64 << 10;

/// What a CPU's thread holds twice for a moment: its new object, and objects that it has replaced
/// and keeps for readers.
const SWAPPING_BYTES: u64 = 2 * PAGE_SIZE as u64 + (16 << 10);

/// What memory is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// What is kept once it is there.
    Keep,
    /// An object.
    Store,
    /// To move objects, which then gives as much back or more; and what a pool cannot be without.
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
    /// A budget of `limit` bytes for writers on so many CPUs.
    pub(crate) fn new(limit: u64, cpus: usize) -> Self {
        Self {
            used: AtomicU64::new(0),
            max: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
            promised: AtomicU64::new(0),
            free: AtomicU64::new(0),
            cpus: cpus as u64,
            #[cfg(all(test, not(loom)))]
            faults: Faults::default(),
        }
    }

    /// Lets the next `after` calls of [`take_for`](Self::take_for) pass and makes the `count` after
    /// those fail.
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
        if purpose == Purpose::Keep && !self.admits(bytes, true) {
            return Err(Full);
        }
        let limit = if purpose == Purpose::Move { self.limit() } else { self.stored_bytes() };
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

    /// Takes `bytes` that were promised. What is left of the promise covers them, or they are not
    /// taken.
    pub(crate) fn take_promised(&self, bytes: u64) -> Result<(), Full> {
        self.promised.fetch_update(Relaxed, Relaxed, |promised| promised.checked_sub(bytes)).map_err(|_| Full)?;
        self.take_for(Purpose::Store, bytes).inspect_err(|_| _ = self.promised.fetch_add(bytes, Relaxed))
    }

    /// Says how much more will be taken by [`take_promised`](Self::take_promised).
    pub(crate) fn promise(&self, bytes: u64) {
        self.promised.store(bytes, Relaxed);
    }

    /// Up to here what is stored may reach.
    fn stored_bytes(&self) -> u64 {
        let limit = self.limit();
        limit - (MOVING_BYTES * (self.cpus + 2)).min(limit / 16)
    }

    /// What is kept for swapping.
    pub(crate) fn swapping_bytes(&self) -> u64 {
        let limit = self.limit();
        (SWAPPING_BYTES * self.cpus).max(limit / 512).min(limit / 16)
    }

    fn longer_bytes(&self) -> u64 {
        self.stored_bytes() - self.swapping_bytes()
    }

    fn new_bytes(&self) -> u64 {
        let growing = (self.limit() / 64).saturating_add(self.promised.load(Relaxed));
        self.longer_bytes().saturating_sub(growing)
    }

    /// Says that so many bytes more, or fewer, are free in the heap.
    pub(crate) fn tell_free(&self, before_bytes: u64, now_bytes: u64) {
        self.free.fetch_add(now_bytes.wrapping_sub(before_bytes), Relaxed);
    }

    /// Whether an object that is longer by `grows_bytes` than what it replaces is admitted,
    /// `is_new` in an empty slot.
    #[inline]
    pub(crate) fn admits(&self, grows_bytes: u64, is_new: bool) -> bool {
        let limit = if is_new { self.new_bytes() } else { self.longer_bytes() };
        let after = self.used().saturating_add(grows_bytes);
        grows_bytes == 0 || after <= limit || after.saturating_sub(self.free.load(Relaxed)) <= limit
    }

    /// What may still be taken to store more.
    pub(crate) fn left(&self) -> u64 {
        self.stored_bytes().saturating_sub(self.used())
    }

    /// Whether the compactor is to bring room together.
    #[inline]
    pub(crate) fn is_low(&self) -> bool {
        self.left() < self.swapping_bytes() / 2
    }

    /// Whether it has brought enough together.
    pub(crate) fn is_enough(&self) -> bool {
        self.left() >= self.swapping_bytes()
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
        budget.tell_free(0, 1);
        assert!(budget.admits(1, false) && !budget.admits(1, true));
        budget.tell_free(1, (1 << 20) + 1);
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

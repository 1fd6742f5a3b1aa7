//! Content that was decoded for readers in order and that they have not fetched yet, of all files of an image.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::buffers::Content;

/// Bytes of an image that may wait for their readers. Where they are more, the oldest go, whose readers may have gone.
const MAX_BYTES: u64 = 32 << 20;

/// Whole extents of a file, side by side, decoded or being decoded by the one who made the segment.
pub(crate) struct Segment {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// `None`: it could not be decoded.
    pub(crate) content: OnceLock<Option<Content>>,
    /// Bytes that nobody has fetched.
    unread: AtomicU64,
}

/// Where a segment lies: the file's nid, and its start in the file.
type Place = (u64, u64);

/// The segments of an image.
///
/// Invariants: those of one file do not overlap; `bytes` is the sum of their lengths, and at most [`MAX_BYTES`], or there is one;
/// `order` has the number and the place of each, the oldest first, and of some that are gone.
#[derive(Default)]
pub(crate) struct Segments {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    segments: BTreeMap<Place, (u64, Arc<Segment>)>,
    order: VecDeque<(u64, Place)>,
    next_number: u64,
    bytes: u64,
}

/// What is known of a file from an offset on.
pub(crate) enum Found {
    /// A segment has that byte.
    Segment(Arc<Segment>),
    /// None has it, or any other byte before this offset.
    Nothing(u64),
}

impl Segments {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while the lock is held.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for the byte at `offset` of file `nid`, and if there is nothing, for the next before `end`.
    pub(crate) fn find(&self, nid: u64, offset: u64, end: u64) -> Found {
        let kept = self.lock();
        if let Some(segment) = kept.at_or_before(nid, offset).filter(|segment| segment.end > offset) {
            return Found::Segment(Arc::clone(segment));
        }
        let next = kept.segments.range((nid, offset)..(nid, end)).next();
        Found::Nothing(next.map_or(end, |((_, start), _)| *start))
    }

    /// A new segment, if none has any byte of it. Who gets it must decode it.
    pub(crate) fn add(&self, nid: u64, start: u64, end: u64) -> Option<Arc<Segment>> {
        let mut kept = self.lock();
        let before = kept.at_or_before(nid, end.checked_sub(1)?);
        if before.is_some_and(|segment| segment.end > start) {
            return None;
        }
        let len = end - start;
        while kept.bytes + len > MAX_BYTES {
            let Some((number, place)) = kept.order.pop_front() else { break };
            kept.remove(place, number);
        }
        let segment = Arc::new(Segment { start, end, content: OnceLock::new(), unread: AtomicU64::new(len) });
        kept.next_number += 1;
        let number = kept.next_number;
        kept.segments.insert((nid, start), (number, Arc::clone(&segment)));
        kept.order.push_back((number, (nid, start)));
        kept.bytes += len;
        kept.tidy();
        Some(segment)
    }

    /// Notes that `len` bytes of a segment were fetched, and forgets it when that was all.
    pub(crate) fn fetched(&self, nid: u64, segment: &Arc<Segment>, len: u64) {
        // Bytes that are fetched twice are counted twice: a segment that goes too early is decoded again.
        let before = segment.unread.fetch_sub(len.min(segment.end - segment.start), Ordering::Relaxed);
        if before <= len {
            self.forget(nid, segment);
        }
    }

    /// Forgets a segment. Who has it keeps it.
    pub(crate) fn forget(&self, nid: u64, segment: &Arc<Segment>) {
        let mut kept = self.lock();
        let place = (nid, segment.start);
        if let Some((number, there)) = kept.segments.get(&place)
            && Arc::ptr_eq(there, segment)
        {
            let number = *number;
            kept.remove(place, number);
        }
    }
}

impl Kept {
    /// The last segment of a file that starts at or before an offset.
    fn at_or_before(&self, nid: u64, offset: u64) -> Option<&Arc<Segment>> {
        self.segments.range((nid, 0)..=(nid, offset)).next_back().map(|(_, (_, segment))| segment)
    }

    fn remove(&mut self, place: Place, number: u64) {
        if self.segments.get(&place).is_some_and(|(there, _)| *there == number)
            && let Some((_, gone)) = self.segments.remove(&place)
        {
            self.bytes -= gone.end - gone.start;
        }
    }

    /// Drops what `order` says of segments that are gone, when that is most of it.
    fn tidy(&mut self) {
        if self.order.len() > 2 * self.segments.len() + 64 {
            let segments = &self.segments;
            self.order.retain(|(number, place)| segments.get(place).is_some_and(|(there, _)| there == number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_do_not_overlap_and_go_when_fetched() {
        let segments = Segments::default();
        let first = segments.add(7, 100, 200).unwrap();
        for (start, end) in [(100, 200), (0, 101), (199, 300), (50, 250), (150, 160)] {
            assert!(segments.add(7, start, end).is_none(), "{start} to {end}");
        }
        segments.add(7, 200, 300).unwrap();
        segments.add(6, 150, 160).unwrap();
        segments.add(8, 150, 160).unwrap();
        assert!(matches!(segments.find(7, 0, 1000), Found::Nothing(100)));
        assert!(matches!(segments.find(7, 0, 50), Found::Nothing(50)));
        assert!(matches!(segments.find(7, 300, 1000), Found::Nothing(1000)));
        assert!(matches!(segments.find(7, 199, 1000), Found::Segment(found) if Arc::ptr_eq(&found, &first)));
        segments.fetched(7, &first, 99);
        assert!(matches!(segments.find(7, 100, 1000), Found::Segment(_)));
        segments.fetched(7, &first, 1);
        assert!(matches!(segments.find(7, 100, 1000), Found::Nothing(200)));
        assert!(segments.add(7, 0, 200).is_some());
        segments.fetched(7, &first, 1);
        assert!(matches!(segments.find(7, 100, 1000), Found::Segment(_)), "another took its place");
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let segments = Segments::default();
        for number in 0..1000 {
            segments.add(number, 0, 1 << 20).unwrap();
            let kept = segments.lock();
            assert!(kept.bytes <= MAX_BYTES && kept.bytes == (kept.segments.len() as u64) << 20);
            assert!(kept.order.len() <= 2 * kept.segments.len() + 64);
        }
        assert!(matches!(segments.find(967, 0, 1), Found::Nothing(1)));
        assert!(matches!(segments.find(968, 0, 1), Found::Segment(_)));
        assert!(segments.add(1, 0, MAX_BYTES * 2).is_some(), "one alone may be larger");
    }
}

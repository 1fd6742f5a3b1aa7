//! Content that was decoded ahead of sequential readers and not yet read, for all files of the
//! images that share this structure.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::buffers::Content;

/// The maximum number of unread bytes, or `A_READER_BYTES` per processor if that is more. Above it,
/// the oldest segments are evicted, because their readers may have stopped.
const MAX_BYTES: u64 = 32 << 20;
/// The maximum length of an extent that the builder makes.
const A_READER_BYTES: u64 = 8 << 20;
/// The cost in bytes of a segment of zeros, so that their number is bounded too.
const ZEROS_BYTES: u64 = 4096;

/// Returns the maximum number of unread bytes of an image.
pub(crate) fn max_bytes() -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    MAX_BYTES.max(A_READER_BYTES * processors)
}

/// Adjacent whole extents of a file, decoded or being decoded by the thread that added the segment.
pub(crate) struct Segment {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Set to `None` if decoding failed.
    pub(crate) content: OnceLock<Option<Decoded>>,
    /// The number of unread bytes.
    unread: AtomicU64,
}

/// The content of a segment.
pub(crate) enum Decoded {
    Content(Content),
    /// All zeros, which use no memory.
    Zeros,
}

/// A file: the image's number among those that share the segments, and the nid.
pub(crate) type FileId = (u64, u64);

/// A segment's file and its start in the file.
type Place = (FileId, u64);

/// The segments of an image, or of all images that share a cache.
///
/// Invariants: segments of one file do not overlap. `bytes` is the sum of their costs and at most
/// `max_bytes`, unless there is only one segment. `order` lists the number and place of each
/// segment, the oldest first, and may contain some that were removed.
pub(crate) struct Segments {
    kept: Mutex<Kept>,
    max_bytes: u64,
}

#[derive(Default)]
struct Kept {
    segments: BTreeMap<Place, Entry>,
    order: VecDeque<(u64, Place)>,
    next_number: u64,
    bytes: u64,
}

struct Entry {
    number: u64,
    segment: Arc<Segment>,
    /// The cost: at most the segment's length.
    bytes: u64,
}

/// The result of a search in a file from an offset on.
pub(crate) enum SegmentSearch {
    /// A segment contains the byte at the offset.
    Segment(Arc<Segment>),
    /// No segment contains any byte before this offset.
    Nothing(u64),
}

impl Segments {
    pub(crate) fn new(max_bytes: u64) -> Self {
        Self { kept: Mutex::default(), max_bytes }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while the lock is held.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up the byte at `offset` of `file`. If no segment contains it, looks for the next
    /// segment before `end`.
    pub(crate) fn find(&self, file: FileId, offset: u64, end: u64) -> SegmentSearch {
        let kept = self.lock();
        if let Some(segment) = kept.at_or_before(file, offset).filter(|segment| segment.end > offset) {
            return SegmentSearch::Segment(Arc::clone(segment));
        }
        let next = kept.segments.range((file, offset)..(file, end)).next();
        SegmentSearch::Nothing(next.map_or(end, |((_, start), _)| *start))
    }

    /// Adds a segment and returns it for the caller to decode. Returns `None` if it would overlap
    /// another.
    pub(crate) fn add(&self, file: FileId, start: u64, end: u64) -> Option<Arc<Segment>> {
        let mut kept = self.lock();
        let before = kept.at_or_before(file, end.checked_sub(1)?);
        if before.is_some_and(|segment| segment.end > start) {
            return None;
        }
        let len = end - start;
        while kept.bytes + len > self.max_bytes {
            let Some((number, place)) = kept.order.pop_front() else { break };
            kept.remove(place, number);
        }
        let segment = Arc::new(Segment { start, end, content: OnceLock::new(), unread: AtomicU64::new(len) });
        kept.next_number += 1;
        let number = kept.next_number;
        kept.segments.insert((file, start), Entry { number, segment: Arc::clone(&segment), bytes: len });
        kept.order.push_back((number, (file, start)));
        kept.bytes += len;
        kept.tidy();
        Some(segment)
    }

    /// Records that `len` bytes of a segment were read, and removes it once all were.
    pub(crate) fn fetched(&self, file: FileId, segment: &Arc<Segment>, len: u64) {
        // Bytes read twice count twice. A segment that is removed too early is decoded again.
        let before = segment.unread.fetch_sub(len.min(segment.end - segment.start), Ordering::Relaxed);
        if before <= len {
            self.forget(file, segment);
        }
    }

    /// Removes a segment. Existing references remain valid.
    pub(crate) fn forget(&self, file: FileId, segment: &Arc<Segment>) {
        let mut kept = self.lock();
        let place = (file, segment.start);
        if let Some(Entry { number, .. }) =
            kept.segments.get(&place).filter(|entry| Arc::ptr_eq(&entry.segment, segment))
        {
            let number = *number;
            kept.remove(place, number);
        }
    }

    /// Records that a segment is all zeros, which use no memory.
    pub(crate) fn holds_zeros(&self, file: FileId, segment: &Arc<Segment>) {
        let mut kept = self.lock();
        let entry = kept.segments.get_mut(&(file, segment.start));
        if let Some(entry) = entry.filter(|entry| Arc::ptr_eq(&entry.segment, segment)) {
            let less = entry.bytes.saturating_sub(ZEROS_BYTES);
            entry.bytes -= less;
            kept.bytes -= less;
        }
    }
}

impl Kept {
    /// Returns the last segment of a file that starts at or before an offset.
    fn at_or_before(&self, file: FileId, offset: u64) -> Option<&Arc<Segment>> {
        self.segments.range((file, 0)..=(file, offset)).next_back().map(|(_, entry)| &entry.segment)
    }

    fn remove(&mut self, place: Place, number: u64) {
        if self.segments.get(&place).is_some_and(|entry| entry.number == number)
            && let Some(gone) = self.segments.remove(&place)
        {
            self.bytes -= gone.bytes;
        }
    }

    /// Removes stale items from `order` once they are the majority.
    fn tidy(&mut self) {
        if self.order.len() > 2 * self.segments.len() + 64 {
            let segments = &self.segments;
            self.order.retain(|(number, place)| segments.get(place).is_some_and(|entry| entry.number == *number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_do_not_overlap_and_go_when_fetched() {
        let segments = Segments::new(MAX_BYTES);
        let first = segments.add((0, 7), 100, 200).unwrap();
        for (start, end) in [(100, 200), (0, 101), (199, 300), (50, 250), (150, 160)] {
            assert!(segments.add((0, 7), start, end).is_none(), "{start} to {end}");
        }
        segments.add((0, 7), 200, 300).unwrap();
        segments.add((0, 6), 150, 160).unwrap();
        segments.add((0, 8), 150, 160).unwrap();
        assert!(matches!(segments.find((0, 7), 0, 1000), SegmentSearch::Nothing(100)));
        assert!(matches!(segments.find((0, 7), 0, 50), SegmentSearch::Nothing(50)));
        assert!(matches!(segments.find((0, 7), 300, 1000), SegmentSearch::Nothing(1000)));
        assert!(
            matches!(segments.find((0, 7), 199, 1000), SegmentSearch::Segment(found) if Arc::ptr_eq(&found, &first))
        );
        segments.fetched((0, 7), &first, 99);
        assert!(matches!(segments.find((0, 7), 100, 1000), SegmentSearch::Segment(_)));
        segments.fetched((0, 7), &first, 1);
        assert!(matches!(segments.find((0, 7), 100, 1000), SegmentSearch::Nothing(200)));
        assert!(segments.add((0, 7), 0, 200).is_some());
        segments.fetched((0, 7), &first, 1);
        assert!(matches!(segments.find((0, 7), 100, 1000), SegmentSearch::Segment(_)), "another took its place");
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let segments = Segments::new(MAX_BYTES);
        for number in 0..1000 {
            segments.add((0, number), 0, 1 << 20).unwrap();
            let kept = segments.lock();
            assert!(kept.bytes <= MAX_BYTES && kept.bytes == (kept.segments.len() as u64) << 20);
            assert!(kept.order.len() <= 2 * kept.segments.len() + 64);
        }
        assert!(matches!(segments.find((0, 967), 0, 1), SegmentSearch::Nothing(1)));
        assert!(matches!(segments.find((0, 968), 0, 1), SegmentSearch::Segment(_)));
        assert!(segments.add((0, 1), 0, MAX_BYTES * 2).is_some(), "one alone may be larger");
        for number in 2000..2100 {
            let zeros = segments.add((0, number), 0, 8 << 20).unwrap();
            segments.holds_zeros((0, number), &zeros);
            segments.holds_zeros((0, number), &zeros);
        }
        assert_eq!(segments.lock().bytes, 100 * ZEROS_BYTES);
        assert!((2000..2100).all(|number| matches!(segments.find((0, number), 0, 1), SegmentSearch::Segment(_))));
        for number in 3000..13_000 {
            let zeros = segments.add((0, number), 0, 8 << 20).unwrap();
            segments.holds_zeros((0, number), &zeros);
            assert!(segments.lock().segments.len() as u64 <= MAX_BYTES / ZEROS_BYTES);
        }
    }
}

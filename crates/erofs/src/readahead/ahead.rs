//! Decoding ahead of sequential readers.
//!
//! ```text
//!                 what a reader wants now         limit
//!        |-----------------------------------|- - - -|
//!     | own  | segment | segment | direct | own  | segment | segment |
//!              decoded   under way                 under way         ^ frontier
//! ```
//!
//! From the frontier on, nothing is started.
//!
//! Workers decode segments of several whole extents at the frontier while it is before the limit
//! and a processor is idle. A reader copies finished segments and decodes the rest itself: whole
//! extents straight into its buffer, and an extent of which it wants only a part as a segment, from
//! which the next read takes the other part. If a reader needs a segment that is in progress, it
//! acts as a worker until the segment is ready. So all threads stay busy regardless of their speed,
//! a reader without workers is as fast as without readahead, and nothing is decoded twice.
//!
//! Several readers may read one file sequentially in parallel; each position is a stream. Reads through
//! a kernel arrive slightly out of order, so a long read near an established stream belongs to it.

use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::cache::{Buffers, Content, Decoded, FileId, Segment, SegmentSearch, Segments, Workers, room_bytes};
use crate::error::Result;
use crate::format::{Extent, Place};
use crate::zeros::is_zeros;

/// Bytes that must be read sequentially before readahead starts.
const START_BYTES: u64 = 128 << 10;
/// The size of a segment in bytes, up to the end of its last extent.
const SEGMENT_BYTES: u64 = 128 << 10;
/// How far ahead of a reader segments may start, in bytes. The distance grows by this much for
/// every `WINDOW_IDLE` idle processors, up to `MOST_WINDOWS` times.
const WINDOW_BYTES: u64 = 1 << 20;
const WINDOW_IDLE: usize = 5;
const MOST_WINDOWS: usize = 4;
/// How far ahead of a reader is fetched from a distant source, whenever half of that is missing. It
/// is half of what was read in order, since a reader may stop anywhere.
const FETCH_BYTES: RangeInclusive<u64> = 128 << 10..=4 << 20;
/// Longer reads are split, so that workers help within them.
const PIECE_BYTES: usize = 512 << 10;
/// Segments of at least this length are checked for zeros. The longest extents are mostly zeros,
/// and with many readers such segments would evict each other.
const LONG_BYTES: usize = 1 << 20;
/// The maximum number of tracked streams of a file.
const MAX_STREAMS: usize = 64;
/// The maximum number of streams that are not yet established.
const MAX_NEW: usize = 16;
/// Reads of at least `NEAR_READ_BYTES` within `NEAR_BYTES` of a stream belong to it.
const NEAR_READ_BYTES: u64 = 32 << 10;
const NEAR_BYTES: u64 = 1 << 20;

/// Longer reads are not decoded by a thread that must not wait: that would take too long.
const READY_BYTES: usize = 16 << 10;

/// The maximum number of bytes of an extent that a stream may have read from the cache.
const SKIP_BYTES: u64 = 1 << 20;

/// Reads of at least this length count as keeping a processor busy.
const BUSY_BYTES: usize = 16 << 10;

/// How much a read that must not wait for storage may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// Copy content that is already decoded.
    Copying,
    /// Decode short clusters too.
    Decoding,
}

impl Ready {
    /// Returns how much a read of `len` bytes may do.
    pub(crate) fn of(len: usize) -> Self {
        if len <= READY_BYTES { Self::Decoding } else { Self::Copying }
    }
}

/// A compressed file that can be decoded ahead of its readers.
pub(crate) trait AheadFile: Send + Sync + 'static {
    /// Identifies the file among those that share its segments.
    fn id(&self) -> FileId;

    fn size_bytes(&self) -> u64;

    fn segments(&self) -> &Segments;

    fn buffers(&self) -> &Buffers;

    /// Returns the threads that decode ahead.
    fn workers(&self) -> &Workers;

    /// Returns whether reads may wait long for the source.
    fn is_far(&self) -> bool;

    /// Fetches what reads of a range need, from a source that is far.
    fn fetch(&self, range: Range<u64>);

    /// Returns the extent that contains the byte at `offset`, which must be within the file.
    fn extent_around(&self, offset: u64) -> Result<Extent>;

    /// Returns the start of the extent that ends at `offset`, if one does and that is known without
    /// waiting for storage.
    fn start_before(&self, offset: u64) -> Option<u64>;

    /// Fills the start of `out` from `offset` without waiting for storage. Returns how many bytes are
    /// filled.
    fn try_decode(&self, out: &mut [u8], offset: u64, ready: Ready) -> usize;

    /// Decodes `len` bytes, which must exist in the file, from `offset` to the front of `room`. All
    /// of `room` may be overwritten. If `forward`, the reader is likely to continue with the bytes
    /// that follow.
    fn decode(&self, room: &mut [u8], len: usize, offset: u64, forward: bool) -> Result<()>;
}

/// The readahead state of a file.
#[derive(Default)]
pub(crate) struct Ahead {
    streams: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    /// In order of use, the most recent last.
    streams: Vec<Stream>,
    next_id: u64,
}

struct Stream {
    id: u64,
    /// The end of its farthest read.
    next: u64,
    /// Bytes that were read sequentially.
    in_order: u64,
    /// Always the end of an extent.
    frontier: u64,
    limit: u64,
    helpers: usize,
    /// The end of what was fetched ahead, if the source is far.
    fetched: u64,
}

impl Stream {
    /// Returns the range to fetch ahead of a reader at `end`; `None` if enough is fetched already.
    fn next_fetch(&mut self, end: u64, size_bytes: u64) -> Option<Range<u64>> {
        let distance = self.far_distance();
        let (start, until) = (self.fetched.max(end), end.saturating_add(distance).min(size_bytes));
        let is_due = start < until && (start < end + distance / 2 || until == size_bytes);
        is_due.then(|| {
            self.fetched = until;
            start..until
        })
    }

    /// Returns how far ahead of its reader a distant source is fetched.
    fn far_distance(&self) -> u64 {
        (self.in_order / 2).clamp(*FETCH_BYTES.start(), *FETCH_BYTES.end())
    }

    /// Moves the stream to the end of a read of `len` bytes at `offset`.
    fn advance(&mut self, offset: u64, len: u64) {
        self.in_order += len + offset.saturating_sub(self.next);
        self.next = self.next.max(offset + len);
    }
}

impl Streams {
    /// Returns the stream that a read belongs to, and whether the read continues it or starts at
    /// the front of the file. `before` returns the start of the extent that ends at `offset`, if one
    /// does: the end of that extent may have come from the cache, which the stream does not see.
    fn meet(&mut self, offset: u64, len: u64, before: impl FnOnce() -> Option<u64>) -> (&mut Stream, bool) {
        let near = |stream: &Stream| {
            stream.in_order >= START_BYTES && len >= NEAR_READ_BYTES && stream.next.abs_diff(offset) <= NEAR_BYTES
        };
        let met = self.streams.iter().rposition(|stream| stream.next == offset);
        let met = met.or_else(|| {
            let skips = |stream: &Stream, from: u64| (from..offset).contains(&stream.next);
            self.streams.iter().find(|stream| skips(stream, offset.saturating_sub(SKIP_BYTES)))?;
            let start = before()?;
            self.streams.iter().rposition(|stream| skips(stream, start))
        });
        let stream = match met.or_else(|| self.streams.iter().rposition(near)) {
            Some(at) => self.streams.remove(at),
            None => {
                // Random reads do not evict established streams.
                let is_new = |stream: &&Stream| stream.in_order < START_BYTES;
                let new = self.streams.iter().filter(is_new).count();
                if new == MAX_NEW || self.streams.len() == MAX_STREAMS {
                    let first = self.streams.iter().position(|stream| new == 0 || is_new(&stream));
                    self.streams.remove(first.unwrap_or(0));
                }
                self.next_id += 1;
                Stream { id: self.next_id, next: offset, in_order: 0, frontier: 0, limit: 0, helpers: 0, fetched: 0 }
            }
        };
        let forward = stream.in_order > 0 || offset == 0;
        (self.streams.push_mut(stream), forward)
    }

    fn by_id(&mut self, id: u64) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.id == id)
    }
}

/// Marks a segment as failed on drop unless it was decoded, even after a panic, because a thread
/// may wait for it.
struct UnderWay<'a, F: AheadFile> {
    data: &'a F,
    segment: &'a Arc<Segment>,
}

impl<F: AheadFile> UnderWay<'_, F> {
    fn decode(&self) -> Result<()> {
        let len = (self.segment.end - self.segment.start) as usize;
        let mut content: Content = self.data.buffers().take(room_bytes(len));
        self.data.decode(content.room(), len, self.segment.start, true)?;
        let content = content.shorten(len);
        let decoded = if len >= LONG_BYTES && is_zeros(&content) {
            self.data.segments().holds_zeros(self.data.id(), self.segment);
            Decoded::Zeros
        } else {
            Decoded::Content(content)
        };
        let _ = self.segment.content.set(Some(decoded));
        Ok(())
    }
}

impl<F: AheadFile> Drop for UnderWay<'_, F> {
    fn drop(&mut self) {
        if self.segment.content.set(None).is_ok() {
            self.data.segments().forget(self.data.id(), self.segment);
        }
    }
}

impl Ahead {
    /// Reads `len` bytes, which must exist in the file, from `offset` to the front of `room`. All
    /// of `room` may be overwritten.
    pub(crate) fn read<F: AheadFile>(
        self: &Arc<Self>,
        data: &Arc<F>,
        room: &mut [u8],
        len: usize,
        offset: u64,
    ) -> Result<()> {
        // Short reads do not count unless they decode: all readers share one counter and would
        // contend.
        let _busy = (len >= BUSY_BYTES).then(|| data.workers().enter());
        if len > PIECE_BYTES && data.is_far() {
            data.fetch(offset..offset + len as u64);
        }
        for done in (0..len).step_by(PIECE_BYTES) {
            self.read_piece(data, &mut room[done..], PIECE_BYTES.min(len - done), offset + done as u64)?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_piece<F: AheadFile>(
        self: &Arc<Self>,
        data: &Arc<F>,
        room: &mut [u8],
        len: usize,
        offset: u64,
    ) -> Result<()> {
        let end = offset + len as u64;
        let mut streams = match self.streams.try_lock() {
            Ok(streams) => streams,
            // Many threads that read a page each would wait longer for the lock than they decode.
            Err(TryLockError::WouldBlock) if (len as u64) < NEAR_READ_BYTES => {
                return data.decode(room, len, offset, false);
            }
            Err(_) => self.lock(),
        };
        let (stream, forward) = streams.meet(offset, len as u64, || data.start_before(offset));
        stream.advance(offset, len as u64);
        if !forward || stream.in_order < START_BYTES {
            drop(streams);
            return data.decode(room, len, offset, forward);
        }
        if stream.frontier < end {
            stream.frontier = data.extent_around(end - 1)?.end();
        }
        let id = stream.id;
        self.spread(data, streams, id, end);
        self.fill(&**data, id, room, offset, end)
    }

    /// Makes workers decode ahead of a stream whose reader is at `end`.
    fn spread<F: AheadFile>(self: &Arc<Self>, data: &Arc<F>, mut streams: MutexGuard<'_, Streams>, id: u64, end: u64) {
        let Some(stream) = streams.by_id(id) else { return };
        let workers = data.workers();
        let idle = workers.idle_processors();
        let window = WINDOW_BYTES * (1 + idle / WINDOW_IDLE).min(MOST_WINDOWS) as u64;
        let window = if data.is_far() { window.min(stream.far_distance()) } else { window };
        stream.limit = stream.limit.max((end + window).min(data.size_bytes()));
        let fetch = if data.is_far() { stream.next_fetch(end, data.size_bytes()) } else { None };
        let wanted = stream.limit.saturating_sub(stream.frontier).div_ceil(SEGMENT_BYTES) as usize;
        let helpers = idle.min(wanted.saturating_sub(stream.helpers));
        stream.helpers += helpers;
        drop(streams);
        if let Some(range) = fetch {
            let file = Arc::clone(data);
            workers.submit_fetch(Box::new(move || file.fetch(range)));
        }
        for _ in 0..helpers {
            let (ahead, data) = (Arc::clone(self), Arc::clone(data));
            workers.submit(Box::new(move || {
                let workers = data.workers();
                let _busy = workers.enter();
                while !workers.overloaded() && ahead.help(&*data, id) {}
                if let Some(stream) = ahead.lock().by_id(id) {
                    stream.helpers -= 1;
                }
            }));
        }
    }

    /// Fills the start of `out` from `offset`, a range within the file, without waiting for storage
    /// or for another thread. Returns how many bytes are filled.
    ///
    /// Reads from the cache do not use the streams, which all readers of the file share.
    pub(crate) fn try_read<F: AheadFile>(self: &Arc<Self>, data: &Arc<F>, out: &mut [u8], offset: u64) -> usize {
        let mut done = data.try_decode(out, offset, Ready::Copying);
        if done == out.len() {
            return done;
        }
        if self.is_established(offset + done as u64) {
            while done < out.len() {
                let taken = self.try_take(data, &mut out[done..], offset + done as u64);
                if taken == 0 {
                    break;
                }
                done += taken;
            }
            return done;
        }
        if Ready::of(out.len()) == Ready::Decoding {
            let (rest, at) = (&mut out[done..], offset + done as u64);
            let decoded = data.try_decode(rest, at, Ready::Decoding);
            if decoded > 0
                && let Ok(mut streams) = self.streams.try_lock()
            {
                streams.meet(at, decoded as u64, || data.start_before(at)).0.advance(at, decoded as u64);
            }
            done += decoded;
        }
        done
    }

    /// Returns whether a read belongs to an established stream. Otherwise, counts it for its stream.
    pub(crate) fn follows<F: AheadFile>(&self, data: &F, offset: u64, len: u64) -> bool {
        let mut streams = self.lock();
        let (stream, forward) = streams.meet(offset, len, || data.start_before(offset));
        let is_established = forward && stream.in_order + len >= START_BYTES;
        if !is_established {
            stream.advance(offset, len);
        }
        is_established
    }

    /// Returns whether an established stream certainly is at `offset`.
    fn is_established(&self, offset: u64) -> bool {
        let is_there = |stream: &Stream| stream.in_order >= START_BYTES && stream.next == offset;
        self.streams.try_lock().is_ok_and(|streams| streams.streams.iter().any(is_there))
    }

    /// Fills the start of `out` from a finished segment, for an established stream at `offset`.
    /// Returns how many bytes are filled.
    fn try_take<F: AheadFile>(self: &Arc<Self>, data: &Arc<F>, out: &mut [u8], offset: u64) -> usize {
        let SegmentSearch::Segment(segment) = data.segments().find(data.id(), offset, offset + 1) else { return 0 };
        let end = segment.end.min(offset + out.len() as u64);
        let out = &mut out[..(end - offset) as usize];
        if !matches!(segment.content.get(), Some(Some(_))) || take(&**data, &segment, out, offset).is_err() {
            return 0;
        }
        if let Ok(mut streams) = self.streams.try_lock() {
            let (stream, _) = streams.meet(offset, out.len() as u64, || None);
            stream.advance(offset, out.len() as u64);
            let id = stream.id;
            if stream.frontier >= end {
                self.spread(data, streams, id, end);
            }
        }
        out.len()
    }

    /// Fills the front of `room` with the bytes from `offset` to `end`, from segments or by
    /// decoding.
    fn fill<F: AheadFile>(&self, data: &F, id: u64, mut room: &mut [u8], mut offset: u64, end: u64) -> Result<()> {
        let (file, segments) = (data.id(), data.segments());
        while offset < end {
            let mut until = match segments.find(file, offset, end) {
                SegmentSearch::Segment(segment) => {
                    while segment.content.get().is_none() && self.help(data, id) {}
                    let until = segment.end.min(end);
                    take(data, &segment, &mut room[..(until - offset) as usize], offset)?;
                    (room, offset) = (&mut room[(until - offset) as usize..], until);
                    continue;
                }
                SegmentSearch::Nothing(until) => until,
            };
            let first = data.extent_around(offset)?;
            if first.is_encoded() && (first.start < offset || first.end() > end) {
                until = first.end().min(end);
                if let Some(segment) = segments.add(file, first.start, first.end()) {
                    UnderWay { data, segment: &segment }.decode()?;
                    take(data, &segment, &mut room[..(until - offset) as usize], offset)?;
                    (room, offset) = (&mut room[(until - offset) as usize..], until);
                    continue;
                }
            } else if first.end() < until {
                let last = data.extent_around(until - 1)?;
                if last.is_encoded() && last.end() > until && last.start > offset {
                    until = last.start;
                }
            }
            let here = (until - offset) as usize;
            data.decode(room, here, offset, true)?;
            (room, offset) = (&mut room[here..], until);
        }
        Ok(())
    }

    /// Decodes the segment at a stream's frontier. Returns whether there was one.
    fn help<F: AheadFile>(&self, data: &F, id: u64) -> bool {
        let mut streams = self.lock();
        let Some(stream) = streams.by_id(id) else { return false };
        let start = stream.frontier;
        if start >= stream.limit {
            return false;
        }
        let enough = (start + SEGMENT_BYTES).min(data.size_bytes());
        let Ok(last) = data.extent_around(enough - 1) else { return false };
        // A hole may have any length and may be cut anywhere at no cost.
        let end = if last.place == Place::Hole { enough } else { last.end() };
        stream.frontier = end;
        let added = data.segments().add(data.id(), start, end);
        drop(streams);
        if let Some(segment) = added {
            // The reader of the segment reports the error.
            let _ = UnderWay { data, segment: &segment }.decode();
        }
        true
    }
}

/// Copies a part of a segment; waits if the segment is in progress.
fn take<F: AheadFile>(data: &F, segment: &Arc<Segment>, out: &mut [u8], offset: u64) -> Result<()> {
    match segment.content.wait() {
        Some(decoded) => {
            let from = (offset - segment.start) as usize;
            match decoded {
                Decoded::Content(content) => out.copy_from_slice(&content[from..from + out.len()]),
                Decoded::Zeros => out.fill(0),
            }
            data.segments().fetched(data.id(), segment, out.len() as u64);
            Ok(())
        }
        // Decode again to report the error, if there is one.
        None => data.decode(out, out.len(), offset, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `len` bytes at `offset`. Returns the stream and whether the read continues it.
    fn read(streams: &mut Streams, offset: u64, len: u64) -> (u64, bool) {
        let (stream, forward) = streams.meet(offset, len, || None);
        stream.advance(offset, len);
        (stream.id, forward)
    }

    /// A reader that stops anywhere leaves fewer bytes unused than it has read, and one that
    /// continues rarely waits.
    #[test]
    fn readahead_grows_with_sequential_reads() {
        const LEN: u64 = 128 << 10;
        const SIZE: u64 = 256 << 20;
        let (mut streams, mut fetched, mut fetches) = (Streams::default(), 0, 0);
        for at in (0..SIZE).step_by(LEN as usize) {
            let (stream, _) = streams.meet(at, LEN, || None);
            stream.advance(at, LEN);
            if let Some(range) = stream.next_fetch(at + LEN, SIZE) {
                assert!(range.start >= fetched.max(at + LEN) && !range.is_empty(), "{range:?}");
                (fetched, fetches) = (range.end, fetches + 1);
            }
            assert!(fetched.saturating_sub(at + LEN) <= (at + LEN).max(LEN), "{fetched} at {at}");
        }
        assert!(fetched == SIZE && fetches < 160, "{fetches} fetches");
    }

    #[test]
    fn streams_are_distinguished_and_outlast_random_reads() {
        let mut streams = Streams::default();
        const LEN: u64 = 128 << 10;
        assert_eq!(read(&mut streams, 0, LEN), (1, true));
        assert_eq!(read(&mut streams, 64 << 20, LEN), (2, false));
        for number in 1..20 {
            assert_eq!(read(&mut streams, number * LEN, LEN), (1, true));
            assert_eq!(read(&mut streams, (64 << 20) + number * LEN, LEN), (2, true));
            let (id, forward) = read(&mut streams, (200 << 20) + number * (7 << 20), 4096);
            assert!(id > 2 && !forward);
        }
        assert_eq!(streams.streams.len(), 2 + MAX_NEW);
        // Two requests out of order, as a kernel sends them.
        assert_eq!(read(&mut streams, 21 * LEN, LEN), (1, true));
        assert_eq!(read(&mut streams, 20 * LEN, LEN), (1, true));
        assert_eq!(read(&mut streams, 22 * LEN, LEN), (1, true));
        // A short read nearby belongs to another reader.
        assert!(!read(&mut streams, 25 * LEN, 4096).1);
    }

    #[test]
    fn a_stream_may_read_the_end_of_an_extent_from_the_cache() {
        let mut streams = Streams::default();
        const LEN: u64 = 64 << 10;
        let mut meet = |offset, start| {
            let (stream, forward) = streams.meet(offset, 4096, || start);
            stream.advance(offset, 4096);
            (stream.id, stream.in_order, forward)
        };
        assert_eq!(meet(0, None), (1, 4096, true));
        assert_eq!(meet(LEN, Some(0)), (1, LEN + 4096, true));
        assert_eq!(meet(3 * LEN, Some(2 * LEN)), (2, 4096, false), "a whole extent is missing");
        assert_eq!(meet(2 * LEN + 512, None), (3, 4096, false), "no extent ends there");
    }

    #[test]
    fn many_readers_share_a_file() {
        let mut streams = Streams::default();
        const LEN: u64 = 128 << 10;
        const READERS: u64 = 40;
        for number in 0..4 {
            for reader in 0..READERS {
                let (id, forward) = read(&mut streams, (1 + reader) * (1 << 30) + number * LEN, LEN);
                assert_eq!((id, forward), (1 + reader, number > 0));
            }
        }
        for reader in 0..1000 {
            read(&mut streams, (100 + reader) * (1 << 30), LEN);
            assert!(streams.streams.len() <= MAX_STREAMS);
        }
        for reader in 0..1000 {
            read(&mut streams, (2000 + reader) * (1 << 30), 4096);
            assert!(streams.streams.len() <= MAX_STREAMS);
        }
    }
}

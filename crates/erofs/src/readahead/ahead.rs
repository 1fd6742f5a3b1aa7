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
//! Several readers may read one file sequentially at once; each position is a stream. Reads through
//! a kernel arrive slightly out of order, so a long read near an established stream belongs to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::workers::{Busy, Workers};
use crate::cache::{Buffers, Content, Decoded, FileId, Found, Segment, Segments, room_bytes};
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

/// Reads of at least this length count as keeping a processor busy.
const BUSY_BYTES: usize = 16 << 10;

/// A compressed file that can be decoded ahead of its readers.
pub(crate) trait AheadFile: Send + Sync + 'static {
    /// Identifies the file among those that share its segments.
    fn id(&self) -> FileId;

    fn size_bytes(&self) -> u64;

    fn segments(&self) -> &Segments;

    fn buffers(&self) -> &Buffers;

    /// Returns the extent that contains the byte at `offset`, which must be within the file.
    fn extent_around(&self, offset: u64) -> Result<Extent>;

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
}

impl Streams {
    /// Returns the stream that a read belongs to, and whether the read continues it or starts at
    /// the front of the file.
    fn meet(&mut self, offset: u64, len: u64) -> (&mut Stream, bool) {
        let near = |stream: &Stream| {
            stream.in_order >= START_BYTES && len >= NEAR_READ_BYTES && stream.next.abs_diff(offset) <= NEAR_BYTES
        };
        let met = self.streams.iter().rposition(|stream| stream.next == offset);
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
                Stream { id: self.next_id, next: offset, in_order: 0, frontier: 0, limit: 0, helpers: 0 }
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
        let _busy = (len >= BUSY_BYTES).then(Busy::enter);
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
        let (stream, forward) = streams.meet(offset, len as u64);
        stream.next = stream.next.max(end);
        stream.in_order += len as u64;
        if !forward || stream.in_order < START_BYTES {
            drop(streams);
            return data.decode(room, len, offset, forward);
        }
        if stream.frontier < end {
            stream.frontier = data.extent_around(end - 1)?.end();
        }
        let workers = Workers::get();
        let idle = workers.idle_processors();
        let window = WINDOW_BYTES * (1 + idle / WINDOW_IDLE).min(MOST_WINDOWS) as u64;
        stream.limit = stream.limit.max((end + window).min(data.size_bytes()));
        let wanted = stream.limit.saturating_sub(stream.frontier).div_ceil(SEGMENT_BYTES) as usize;
        let helpers = idle.min(wanted.saturating_sub(stream.helpers));
        stream.helpers += helpers;
        let id = stream.id;
        drop(streams);
        for _ in 0..helpers {
            let (ahead, data) = (Arc::clone(self), Arc::clone(data));
            workers.submit(Box::new(move || {
                let _busy = Busy::enter();
                while !workers.overloaded() && ahead.help(&*data, id) {}
                if let Some(stream) = ahead.lock().by_id(id) {
                    stream.helpers -= 1;
                }
            }));
        }
        self.fill(&**data, id, room, offset, end)
    }

    /// Fills the front of `room` with the bytes from `offset` to `end`, from segments or by
    /// decoding.
    fn fill<F: AheadFile>(&self, data: &F, id: u64, mut room: &mut [u8], mut offset: u64, end: u64) -> Result<()> {
        let (file, segments) = (data.id(), data.segments());
        while offset < end {
            let mut until = match segments.find(file, offset, end) {
                Found::Segment(segment) => {
                    while segment.content.get().is_none() && self.help(data, id) {}
                    let until = segment.end.min(end);
                    take(data, &segment, &mut room[..(until - offset) as usize], offset)?;
                    (room, offset) = (&mut room[(until - offset) as usize..], until);
                    continue;
                }
                Found::Nothing(until) => until,
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
        let (stream, forward) = streams.meet(offset, len);
        stream.next = stream.next.max(offset + len);
        stream.in_order += len;
        (stream.id, forward)
    }

    #[test]
    fn streams_are_told_apart_and_outlast_random_reads() {
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

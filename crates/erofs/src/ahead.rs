//! Decoding ahead of a reader that goes from front to back.
//!
//! ```text
//!        what the reader wants now        limit
//!     |-----------------------------|- - - -|
//!     | segment | segment |  direct | segment | segment |
//!       decoded   under way           under way          ^ frontier: nothing is begun from here on
//! ```
//!
//! Workers take segments at the frontier, some whole extents each, as long as it is before the limit and a processor is
//! idle. A reader takes what lies before the frontier from the segments, in order, and what lies behind it, up to the end of its
//! read, for itself, decoded straight into its buffer. Where it meets a segment that is under way, it does as a worker does until
//! that is there. So all are at work, whoever is faster, and a reader whom no worker helps reads as if there were none.
//!
//! Segments lie side by side from the last read's end to the frontier. A read elsewhere forgets them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::buffers::Content;
use crate::error::Result;
use crate::file::Data;
use crate::workers::{Busy, Workers};

/// Bytes that must be read in order before anything is decoded ahead.
const START_BYTES: u64 = 128 << 10;
/// A segment's bytes, but for the rest of its last extent.
const SEGMENT_BYTES: u64 = 128 << 10;
/// How far ahead of a reader segments may start.
const WINDOW_BYTES: u64 = 1 << 20;
/// Longer reads are cut, so that workers help within them.
const PIECE_BYTES: usize = 512 << 10;
/// Bytes of an image that may wait for their readers.
const MAX_AHEAD_BYTES: u64 = 32 << 20;

/// How a file is read, and what was decoded ahead of that.
#[derive(Default)]
pub(crate) struct Ahead {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Where the last read ended.
    next: u64,
    /// Bytes that were read in order.
    in_order: u64,
    frontier: u64,
    limit: u64,
    segments: VecDeque<Arc<Segment>>,
    helpers: usize,
}

struct Segment {
    start: u64,
    end: u64,
    /// `None`: it could not be decoded.
    content: OnceLock<Option<Content>>,
    /// What it adds its bytes to while it exists.
    ahead_bytes: Arc<AtomicU64>,
}

impl Segment {
    fn len(&self) -> u64 {
        self.end - self.start
    }

    fn decode(&self, data: &Data) -> Result<Content> {
        let len = self.len() as usize;
        let mut content = data.image.buffers().take(data.room_bytes(len));
        data.read_compressed(content.room(), len, self.start, true)?;
        Ok(content.shorten(len))
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.ahead_bytes.fetch_sub(self.len(), Ordering::Relaxed);
    }
}

/// Says that a segment failed unless it was decoded, even if decoding panicked: somebody may wait for it.
struct UnderWay<'a>(&'a Segment);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let _ = self.0.content.set(None);
    }
}

impl Ahead {
    /// Fills `buf` with a file's content from `offset`, which the file has.
    pub(crate) fn read(self: &Arc<Self>, data: &Arc<Data>, buf: &mut [u8], mut offset: u64) -> Result<()> {
        let _busy = Busy::enter();
        for piece in buf.chunks_mut(PIECE_BYTES) {
            self.read_piece(data, piece, offset)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_piece(self: &Arc<Self>, data: &Arc<Data>, mut buf: &mut [u8], mut offset: u64) -> Result<()> {
        let len = buf.len();
        let end = offset + len as u64;
        let mut state = self.lock();
        let forward = state.next == offset;
        if !forward {
            *state = State { helpers: state.helpers, ..State::default() };
        }
        state.next = end;
        state.in_order += len as u64;
        if state.in_order < START_BYTES {
            drop(state);
            return data.read_compressed(buf, len, offset, forward);
        }
        while state.segments.front().is_some_and(|segment| segment.end <= offset) {
            state.segments.pop_front();
        }
        let ready: Vec<_> = state.segments.iter().take_while(|segment| segment.start < end).map(Arc::clone).collect();
        state.frontier = state.frontier.max(end);
        state.limit = (end + WINDOW_BYTES).min(data.inode.size);
        let workers = Workers::get();
        let wanted = state.limit.saturating_sub(state.frontier).div_ceil(SEGMENT_BYTES) as usize;
        let helpers = workers.idle_processors().min(wanted.saturating_sub(state.helpers));
        state.helpers += helpers;
        drop(state);
        for _ in 0..helpers {
            let (ahead, data) = (Arc::clone(self), Arc::clone(data));
            workers.submit(Box::new(move || {
                let _busy = Busy::enter();
                while !workers.overloaded() && ahead.help(&data) {}
                ahead.lock().helpers -= 1;
            }));
        }
        for segment in ready {
            let Some(from) = offset.checked_sub(segment.start) else { break };
            let here = (segment.end.min(end) - offset) as usize;
            let (out, rest) = buf.split_at_mut(here);
            while segment.content.get().is_none() && self.help(data) {}
            match segment.content.wait() {
                Some(content) => out.copy_from_slice(&content[from as usize..from as usize + here]),
                // To meet the error, if it is one.
                None => data.read_compressed(out, here, offset, true)?,
            }
            (buf, offset) = (rest, offset + here as u64);
        }
        data.read_compressed(buf, (end - offset) as usize, offset, true)
    }

    /// Decodes the segment at the frontier. Returns whether there was one.
    fn help(&self, data: &Data) -> bool {
        let mut state = self.lock();
        let start = state.frontier;
        let ahead_bytes = data.image.ahead_bytes();
        if start >= state.limit || ahead_bytes.load(Ordering::Relaxed) >= MAX_AHEAD_BYTES {
            return false;
        }
        let end = data.extent_end((start + SEGMENT_BYTES).min(data.inode.size));
        ahead_bytes.fetch_add(end - start, Ordering::Relaxed);
        let content = OnceLock::new();
        let segment = Arc::new(Segment { start, end, content, ahead_bytes: Arc::clone(ahead_bytes) });
        state.segments.push_back(Arc::clone(&segment));
        state.frontier = end;
        drop(state);
        let _under_way = UnderWay(&segment);
        let _ = segment.content.set(segment.decode(data).ok());
        true
    }
}

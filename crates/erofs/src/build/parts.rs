//! The parts of files that threads compress.
//!
//! ```text
//! whole file          | segment | segment | segment | se |
//! file with holes     hole | segment | seg | hole | segment | hole
//! ```

use std::ops::Range;
use std::sync::Arc;

use super::content::Content;
use super::holes::ReadContent;
use super::shape::Shape;
use crate::error::Result;
use crate::zeros::is_zeros;

/// A file to store.
pub(super) struct Source {
    pub(super) content: Content,
    pub(super) size: u64,
    /// Size in bytes of its inode and xattrs.
    pub(super) header_bytes: u64,
    /// Its compression: the index among the plan's choices.
    pub(super) way: usize,
    /// A multiple of the block size.
    pub(super) segment_bytes: u64,
    pub(super) packable: bool,
    pub(super) shape: Shape,
}

impl Source {
    /// Reads `len` bytes of the file into `bytes`, whose previous contents are ignored.
    pub(super) fn read(&self, offset: u64, len: u64, bytes: &mut Vec<u8>) -> Result<ReadContent> {
        let found = self.content.read(offset, len as usize, bytes).map_err(self.content.failed())?;
        let zeros = found == ReadContent::Zeros || is_zeros(bytes);
        Ok(if zeros { ReadContent::Zeros } else { ReadContent::Bytes })
    }

    /// Like [`read`](Self::read), but also stores zeros in `bytes`.
    pub(super) fn read_bytes(&self, offset: u64, len: u64, bytes: &mut Vec<u8>) -> Result<()> {
        if self.read(offset, len, bytes)? == ReadContent::Zeros {
            bytes.clear();
            bytes.resize(len as usize, 0);
        }
        Ok(())
    }
}

/// A segment of a file.
pub(super) struct FileSegment {
    pub(super) source: Arc<Source>,
    pub(super) offset: u64,
    /// 0 only for the single part of a file without data.
    pub(super) len: u64,
    /// Whether no part of the file follows. A hole may.
    pub(super) is_last: bool,
    /// Preferred starts of extents, relative to `offset`.
    pub(super) cuts: Vec<u32>,
}

impl FileSegment {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.len
    }

    pub(super) fn ends_file(&self) -> bool {
        self.end() == self.source.size
    }
}

/// Segments that one thread processes in sequence: a long one, or several within [`JOB_BYTES`] and
/// [`JOB_PARTS`], because handing over a small file takes longer than compressing it. With a single
/// thread, each segment is stored before the next is started.
pub(super) type Job = Vec<FileSegment>;

const JOB_BYTES: u64 = 256 << 10;
const JOB_PARTS: usize = 64;

/// Returns the segments of files, in order. Each file has at least one.
pub(super) fn parts(sources: &[Arc<Source>]) -> impl Iterator<Item = FileSegment> {
    sources.iter().flat_map(|source| {
        let end = source.shape.runs().map_or(source.size, |runs| runs.last().map_or(0, |run| run.end));
        let runs = source.shape.runs().unwrap_or_default().iter().cloned();
        let whole = (source.shape.runs().is_none_or(<[_]>::is_empty)).then_some(0..end);
        runs.chain(whole).flat_map(|run| segments(run, source.segment_bytes)).map(
            move |Range { start, end: part_end }| FileSegment {
                source: Arc::clone(source),
                offset: start,
                len: part_end - start,
                is_last: part_end == end,
                cuts: Vec::new(),
            },
        )
    })
}

/// Splits a run of data. An empty one becomes one segment.
fn segments(run: Range<u64>, segment_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let count = (run.end - run.start).div_ceil(segment_bytes).max(1);
    (0..count).map(move |number| {
        let start = run.start + number * segment_bytes;
        start..run.end.min(start + segment_bytes)
    })
}

/// Groups parts into jobs for `threads` threads.
pub(super) fn jobs(parts: impl Iterator<Item = FileSegment>, threads: usize) -> impl Iterator<Item = Job> {
    let most = if threads == 1 { 1 } else { JOB_PARTS };
    let mut parts = parts.peekable();
    std::iter::from_fn(move || {
        let first = parts.next()?;
        let mut bytes = first.len;
        let mut job = vec![first];
        while job.len() < most
            && let Some(next) = parts.next_if(|next| bytes + next.len <= JOB_BYTES)
        {
            bytes += next.len;
            job.push(next);
        }
        Some(job)
    })
}

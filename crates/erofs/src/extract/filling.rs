//! Writes the content of an extracted file in pieces, which any number of threads take in order.

use std::fs::File as OsFile;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagefold_codec::cluster::ClusterFormat;

use crate::cache::Content;
use crate::error::{Error, Result};
use crate::read::File;
use crate::zeros::is_zeros;

/// The size of a piece in bytes, which are written while still in the CPU cache.
const PIECE_BYTES: usize = 512 << 10;
/// The maximum size of a piece that is a single extent.
const MOST_BYTES: usize = 8 << 20;
/// The size of a huge page.
const HUGE_BYTES: usize = 2 << 20;
/// Zeros of this length and alignment are left as holes.
const HOLE_BYTES: usize = 4096;

/// A thread's buffers for filling files of one image.
#[derive(Default)]
pub(crate) struct Room {
    content: Option<Content>,
    /// The cluster of a long extent.
    cluster: Vec<u8>,
    /// A cluster that decoded to zeros only, with its format and content length. An identical
    /// cluster decodes to the same, and on disk images the zeros are often one cluster repeated.
    zeros: Option<(ClusterFormat, usize, Vec<u8>)>,
}

/// A file being filled.
pub(crate) struct Filling {
    content: File,
    out: OsFile,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// The start of the next piece.
    at: u64,
    /// The end of the last data written that is not a hole.
    written: u64,
    /// The first piece that failed, and its error. No more pieces are started.
    failed: Option<(u64, Error)>,
}

impl Progress {
    fn fail(&mut self, at: u64, error: Error) {
        if self.failed.as_ref().is_none_or(|(first, _)| at < *first) {
            self.failed = Some((at, error));
        }
    }
}

fn writing(error: io::Error) -> Error {
    Error::io("writing a file")(error)
}

impl Filling {
    /// Fills `out`, which must be empty, with `content`.
    pub(crate) fn new(content: File, out: OsFile) -> Self {
        Self { content, out, progress: Mutex::default() }
    }

    /// Returns whether the file is long enough for several threads.
    pub(crate) fn is_long(&self) -> bool {
        self.content.inode().size > 2 * PIECE_BYTES as u64
    }

    /// Returns whether there are pieces left to start.
    pub(crate) fn has_more(&self) -> bool {
        let progress = self.progress();
        progress.at < self.content.inode().size && progress.failed.is_none()
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes pieces until all are started.
    pub(crate) fn help(&self, room: &mut Room) {
        while let Some((at, len)) = self.next() {
            let written = self.write(at, len, room);
            let mut progress = self.progress();
            match written {
                Ok(end) => progress.written = progress.written.max(end),
                Err(error) => progress.fail(at, error),
            }
        }
    }

    /// Finishes a file whose started pieces are all written. After an error, truncates it at the
    /// first piece that failed.
    pub(crate) fn end(self) -> Result<OsFile> {
        let progress = self.progress.into_inner().unwrap_or_else(PoisonError::into_inner);
        let size = self.content.inode().size;
        match progress.failed {
            Some((at, error)) => {
                // The first error is reported.
                let _ = self.out.set_len(at);
                return Err(error);
            }
            None if progress.written < size => self.out.set_len(size).map_err(writing)?,
            None => {}
        }
        Ok(self.out)
    }

    /// Returns the start and length of the next piece.
    fn next(&self) -> Option<(u64, usize)> {
        let mut progress = self.progress();
        let size = self.content.inode().size;
        while progress.at < size && progress.failed.is_none() {
            let at = progress.at;
            let piece = self.content.run_at(at).and_then(|run| {
                let len = run.len.min(PIECE_BYTES as u64) as usize;
                let whole = if run.hole { None } else { Some(self.content.whole_extents(len, MOST_BYTES, at)?) };
                Ok((run.len, whole))
            });
            match piece {
                Ok((_, Some(len))) => {
                    progress.at += len as u64;
                    return Some((at, len));
                }
                Ok((hole, None)) => progress.at += hole,
                Err(error) => progress.fail(at, error),
            }
        }
        None
    }

    /// Writes a piece, with zeros as holes. Returns the end of the last data that is not a hole.
    fn write(&self, at: u64, len: usize, room: &mut Room) -> Result<u64> {
        // A longer piece is a single extent.
        let format = if len > PIECE_BYTES { self.content.cluster_of(at, len, &mut room.cluster)? } else { None };
        if let (Some(format), Some(zeros)) = (format, &room.zeros)
            && (zeros.0, zeros.1) == (format, len)
            && zeros.2 == room.cluster
        {
            return Ok(0);
        }
        let needed = match File::room_bytes(len) {
            // A multiple of huge pages.
            long if long > HUGE_BYTES => long.next_multiple_of(HUGE_BYTES),
            long if len > PIECE_BYTES => long.next_multiple_of(PIECE_BYTES / 4),
            short => short.next_power_of_two().min(File::room_bytes(PIECE_BYTES)),
        };
        let content = match &mut room.content {
            Some(content) if content.len() >= needed => content,
            content => {
                *content = None;
                content.insert(self.content.buffer(needed))
            }
        };
        let buffer = content.room();
        self.content.read_alone(buffer, len, at)?;
        let (mut done, mut written) = (0, 0);
        while done < len {
            let zeros = is_zeros(&buffer[done..(done + HOLE_BYTES).min(len)]);
            let mut end = (done + HOLE_BYTES).min(len);
            while end < len && is_zeros(&buffer[end..(end + HOLE_BYTES).min(len)]) == zeros {
                end = (end + HOLE_BYTES).min(len);
            }
            if !zeros {
                self.out.write_all_at(&buffer[done..end], at + done as u64).map_err(writing)?;
                written = at + end as u64;
            }
            done = end;
        }
        if let Some(format) = format.filter(|_| written == 0) {
            room.zeros = Some((format, len, std::mem::take(&mut room.cluster)));
        }
        Ok(written)
    }
}

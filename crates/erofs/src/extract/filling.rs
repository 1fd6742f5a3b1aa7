//! Writing the content of a file that is extracted: in pieces, which any number of threads take in
//! order.

use std::fs::File as OsFile;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagefold_codec::cluster::ClusterFormat;

use crate::cache::Content;
use crate::error::{Error, Result};
use crate::read::File;
use crate::zeros::is_zeros;

/// Bytes that are decoded and written together, while a processor's cache still has them.
const PIECE_BYTES: usize = 512 << 10;
/// And of one extent.
const MOST_BYTES: usize = 8 << 20;
/// A huge page.
const HUGE_BYTES: usize = 2 << 20;
/// Runs of zeros of this length and alignment are left as holes.
const HOLE_BYTES: usize = 4096;

/// What a thread fills files of one image with.
#[derive(Default)]
pub(crate) struct Room {
    content: Option<Content>,
    /// The cluster of a long extent.
    cluster: Vec<u8>,
    /// One that turned out to hold nothing but zeros, and how many. The same cluster holds the
    /// same, and a disk's zeros are one again and again.
    zeros: Option<(ClusterFormat, usize, Vec<u8>)>,
}

/// A file that is being filled.
pub(crate) struct Filling {
    content: File,
    out: OsFile,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// Where the next piece starts.
    at: u64,
    /// Where the last that is no hole ends, of those that are written.
    written: u64,
    /// The first piece that failed, and why. No more are begun.
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
    /// `out` is an empty file.
    pub(crate) fn new(content: File, out: OsFile) -> Self {
        Self { content, out, progress: Mutex::default() }
    }

    /// Whether there is work for several threads.
    pub(crate) fn is_long(&self) -> bool {
        self.content.inode().size > 2 * PIECE_BYTES as u64
    }

    /// Whether there are pieces that nobody has begun.
    pub(crate) fn has_more(&self) -> bool {
        let progress = self.progress();
        progress.at < self.content.inode().size && progress.failed.is_none()
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes pieces until all are begun.
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

    /// Ends a file of which all pieces are written. After an error it has what lies before the
    /// first piece that failed.
    pub(crate) fn end(self) -> Result<OsFile> {
        let progress = self.progress.into_inner().unwrap_or_else(PoisonError::into_inner);
        let size = self.content.inode().size;
        match progress.failed {
            Some((at, error)) => {
                // What went wrong first is what counts.
                let _ = self.out.set_len(at);
                return Err(error);
            }
            None if progress.written < size => self.out.set_len(size).map_err(writing)?,
            None => {}
        }
        Ok(self.out)
    }

    /// The next piece to be written: where it starts, and its bytes.
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

    /// Writes a piece, zeros as holes. Returns where what is no hole ends.
    fn write(&self, at: u64, len: usize, room: &mut Room) -> Result<u64> {
        // That is one extent.
        let format = if len > PIECE_BYTES { self.content.cluster_of(at, len, &mut room.cluster)? } else { None };
        if let (Some(format), Some(zeros)) = (format, &room.zeros)
            && (zeros.0, zeros.1) == (format, len)
            && zeros.2 == room.cluster
        {
            return Ok(0);
        }
        let needed = match File::room_bytes(len) {
            // As Linux has huge pages for.
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

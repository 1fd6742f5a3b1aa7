//! Files that may change between the scan of their directory and the end of the build.
//!
//! ```text
//! cannot be opened, nothing read yet   left out of the image
//! cannot be opened, or ends early      the rest is zeros
//! differs when the image is verified   not a difference if the file has changed since the scan
//!
//! A file that replaced the one that the scan found cannot be opened.
//! ```

use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::Statx;
use rustix::io::Errno;

use super::found::is_replaced;
use super::holes::{self, ReadContent};
use super::place::SourcePath;
use super::source_file::SourceFile;

/// A file of the operating system whose changes are recorded instead of failing the build.
#[derive(Clone, Debug)]
pub struct LiveFile {
    file: SourceFile,
    seen: Arc<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// A [`State`].
    state: AtomicU8,
    /// The time of the file's last change at the scan.
    ctime: (i64, i64),
}

/// The fate of a live file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Unread,
    Read,
    /// It could not be opened any more, and none of it was read.
    Gone,
    /// Another file was in its place, and none of it was read.
    Replaced,
    /// It ended early, and was padded with zeros.
    Shorter,
    /// It changed before it could be verified.
    Changed,
}

/// Returns whether an error affects all files because the process or the system has run out of
/// something.
pub(crate) fn is_exhaustion(error: &io::Error) -> bool {
    let all = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS];
    Errno::from_io_error(error).is_some_and(|error| all.contains(&error))
}

impl LiveFile {
    pub(crate) fn new(file: SourceFile, metadata: &Statx) -> Self {
        let changed = metadata.stx_ctime;
        let ctime = (changed.tv_sec, changed.tv_nsec.into());
        let seen = Seen { state: AtomicU8::new(State::Unread as u8), ctime };
        Self { file, seen: Arc::new(seen) }
    }

    pub(crate) fn path(&self) -> &SourcePath {
        self.file.path()
    }

    pub(crate) fn state(&self) -> State {
        let state = self.seen.state.load(Ordering::Relaxed);
        [State::Read, State::Gone, State::Replaced, State::Shorter, State::Changed]
            .into_iter()
            .find(|known| *known as u8 == state)
            .unwrap_or(State::Unread)
    }

    /// Changes the state from one of `from`. Returns whether it was one of them.
    fn turn(&self, from: &[State], to: State) -> bool {
        let turn = |from: &State| {
            self.seen.state.compare_exchange(*from as u8, to as u8, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        from.iter().any(turn)
    }

    /// Reads like [`Content::read`](super::Content::read). Content that the file lacks reads as
    /// zeros.
    pub(crate) fn read(&self, offset: u64, len: usize, bytes: &mut Vec<u8>) -> io::Result<ReadContent> {
        let file = match self.file.open() {
            Ok(file) => file,
            Err(error) if is_exhaustion(&error) => return Err(error),
            Err(error) => {
                let fate = if is_replaced(&error) { State::Replaced } else { State::Gone };
                if !self.turn(&[State::Unread], fate) {
                    self.turn(&[State::Read], State::Shorter);
                }
                return Ok(ReadContent::Zeros);
            }
        };
        let mut there = len;
        loop {
            match holes::read(&file, offset, there, bytes) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && there > 0 => {
                    self.turn(&[State::Unread, State::Read], State::Shorter);
                    // If it ends even earlier now, this is repeated.
                    let left = file.metadata()?.len().saturating_sub(offset);
                    there = left.min(there as u64 - 1) as usize;
                }
                Ok(ReadContent::Bytes) if there > 0 => {
                    self.turn(&[State::Unread], State::Read);
                    bytes.resize(len, 0);
                    return Ok(ReadContent::Bytes);
                }
                Ok(_) => {
                    self.turn(&[State::Unread], State::Read);
                    return Ok(ReadContent::Zeros);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Calls `each` with the ranges that are not holes, in order, until it breaks. A range that
    /// cannot be examined counts as data: reading it finds the fault.
    ///
    /// # Errors
    /// Those of `each`.
    pub(crate) fn each_data(
        &self,
        range: Range<u64>,
        each: &mut dyn FnMut(Range<u64>) -> io::Result<ControlFlow<()>>,
    ) -> io::Result<ControlFlow<()>> {
        let (mut at, mut is_ours) = (range.start, true);
        let mut counted = |data: Range<u64>| {
            at = data.end;
            each(data).inspect_err(|_| is_ours = false)
        };
        let done = self.file.open().and_then(|file| holes::each_data(&file, range.clone(), &mut counted));
        if done.is_err() && is_ours && at < range.end { each(at..range.end) } else { done }
    }

    /// Reads to verify what was read before.
    pub(crate) fn read_again(&self, offset: u64, len: usize, bytes: &mut Vec<u8>) -> io::Result<ReadContent> {
        holes::read(&self.file.open()?, offset, len, bytes)
    }

    /// Returns whether the file has changed since the scan, and records it.
    pub(crate) fn has_changed(&self) -> bool {
        let metadata = self.file.open().and_then(|file| file.metadata());
        let is_same = metadata.is_ok_and(|metadata| (metadata.ctime(), metadata.ctime_nsec()) == self.seen.ctime);
        if !is_same {
            self.turn(&[State::Unread, State::Read], State::Changed);
        }
        !is_same
    }
}

//! The interface of a block device.

use std::{io, sync::Arc};

use rustix::io::Errno;

use crate::Waits;

/// Why a request failed. After a failed write, each page of its range has either its old or its new
/// content.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The memory limit is reached (ENOSPC).
    #[error("no space left: the memory limit is reached")]
    NoSpace,
    /// The device is read-only (EPERM).
    #[error("the device is read-only")]
    ReadOnly,
    /// The range is not within the device (EINVAL; ENOSPC for a write, as NBD specifies).
    #[error("{len_bytes} bytes at offset {offset} are outside a device of {size_bytes} bytes")]
    OutOfRange {
        /// The first byte requested.
        offset: u64,
        /// The number of bytes requested.
        len_bytes: u64,
        /// The device's size.
        size_bytes: u64,
    },
    /// Stored data cannot be decoded (EIO).
    #[error("cannot read page {page}: {what}")]
    Corrupt {
        /// The page's number.
        page: u64,
        /// The reason.
        what: &'static str,
    },
    /// A system error (EIO).
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A range of a device whose bytes have the same status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, never 0.
    pub len_bytes: u64,
    /// Nothing is allocated here.
    pub hole: bool,
    /// Reads as zeros.
    pub zero: bool,
}

/// A range of a device that was changed as a whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Length in bytes, never 0.
    pub len_bytes: u64,
    /// Whether it was changed since the device was created.
    pub changed: bool,
}

impl Error {
    /// Returns Linux's number of the error, which transports and bindings report.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Self::NoSpace => Errno::NOSPC,
            Self::ReadOnly => Errno::PERM,
            Self::OutOfRange { .. } => Errno::INVAL,
            Self::Corrupt { .. } => Errno::IO,
            Self::Io(error) => match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => Errno::NOSPC,
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Errno::PERM,
                io::ErrorKind::OutOfMemory => Errno::NOMEM,
                io::ErrorKind::Unsupported => Errno::NOTSUP,
                _ => Errno::IO,
            },
        };
        errno.raw_os_error()
    }
}

/// One of several reads that a device receives together.
#[derive(Debug)]
pub struct Read<'a> {
    /// The first byte to be read.
    pub offset: u64,
    /// Filled from `offset`. Its content is unspecified unless `result` is `Ok`.
    pub buf: &'a mut [u8],
    /// Set by the device.
    pub result: Result<(), Error>,
}

impl<'a> Read<'a> {
    /// Creates a read that has not failed.
    pub fn new(offset: u64, buf: &'a mut [u8]) -> Self {
        Self { offset, buf, result: Ok(()) }
    }
}

/// What [`BlockDevice::write_zeroes`] may do with the range's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeroes {
    /// The range may become a hole.
    MayUnmap,
    /// The range stays allocated.
    Allocated,
}

/// A block device, addressed in bytes, that any number of threads use concurrently.
///
/// Devices below [`Checked`](crate::Checked) may assume that a range is not empty and is within
/// [`size_bytes`](Self::size_bytes), and that a read-only device gets no changes. Offsets and
/// lengths are in bytes and need no alignment. If two concurrent requests access one page, each is
/// applied to that page atomically.
///
/// A failed request returns an [`Error`]. After a failed read the content of `buf` is unspecified.
/// After a failed change, each page of its range has either its old or its new content, and the
/// device remains usable.
pub trait BlockDevice: Send + Sync {
    /// Returns the device's size. It may change while the device is in use.
    fn size_bytes(&self) -> u64;

    /// Returns whether the device rejects every change.
    fn read_only(&self) -> bool {
        false
    }

    /// Returns whether a small request can take long because it waits for storage or a network. If
    /// so, a thread that must not wait uses [`try_read`](Self::try_read) and its like, and lets
    /// another thread do the rest.
    fn may_block(&self) -> bool {
        false
    }

    /// Returns the queue in which a change that fails with [`Error::NoSpace`] waits for room to be
    /// retried, or `None` if it should fail.
    fn waits(&self) -> Option<&Arc<Waits>> {
        None
    }

    /// Fills `buf` from `offset`.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error>;

    /// Like [`read`](Self::read), but does not wait for storage. Fills `buf` from its start, and
    /// returns how many bytes are filled. The rest of `buf` is then unspecified.
    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        if self.may_block() {
            return Ok(0);
        }
        self.read(offset, buf).map(|()| buf.len())
    }

    /// Runs several reads, each as [`read`](Self::read) does, and sets their results. Data that
    /// they share is fetched once.
    fn read_together(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            read.result = self.read(read.offset, read.buf);
        }
    }

    /// Returns the length of the aligned ranges, a power of two, within which reads share data.
    fn read_unit_bytes(&self) -> u64 {
        4096
    }

    /// Writes `buf` at `offset`.
    fn write(&self, offset: u64, buf: &[u8]) -> Result<(), Error>;

    /// Like [`write`](Self::write), but does not wait for storage. Writes the start of `buf`, and
    /// returns how many bytes are written. The rest of the range is unchanged.
    fn try_write(&self, offset: u64, buf: &[u8]) -> Result<usize, Error> {
        if self.may_block() {
            return Ok(0);
        }
        self.write(offset, buf).map(|()| buf.len())
    }

    /// Makes completed writes as durable as the device can. A device without persistent storage
    /// does nothing.
    fn flush(&self) -> Result<(), Error>;

    /// Like [`flush`](Self::flush), but does not wait for storage. Returns whether it is done.
    fn try_flush(&self) -> Result<bool, Error> {
        if self.may_block() {
            return Ok(false);
        }
        self.flush().map(|()| true)
    }

    /// Frees the range's memory, page by page; the whole range reads as zeros afterwards, including
    /// partial pages.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), Error>;

    /// Like [`discard`](Self::discard), but does not wait for storage. Returns whether it is done; if
    /// not, nothing is changed.
    fn try_discard(&self, offset: u64, len_bytes: u64) -> Result<bool, Error> {
        if self.may_block() {
            return Ok(false);
        }
        self.discard(offset, len_bytes).map(|()| true)
    }

    /// Makes the range read as zeros.
    fn write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<(), Error>;

    /// Like [`write_zeroes`](Self::write_zeroes), but does not wait for storage. Returns whether it is
    /// done; if not, nothing is changed.
    fn try_write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<bool, Error> {
        if self.may_block() {
            return Ok(false);
        }
        self.write_zeroes(offset, len_bytes, zeroes).map(|()| true)
    }

    /// Passes the range's extents to `each` in order; they cover the range exactly. Adjacent
    /// extents may have the same status, so that the device examines little more than it reports.
    /// `each` returns false to stop.
    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error>;

    /// Returns whether [`changes`](Self::changes) distinguishes changed ranges from others.
    fn knows_changes(&self) -> bool {
        false
    }

    /// Passes to `each`, in order, which parts of the range were changed since the device was
    /// created; they cover the range exactly. A hole that is older may be reported as changed.
    /// Adjacent parts may have the same status. `each` returns false to stop.
    fn changes(&self, _offset: u64, len_bytes: u64, each: &mut dyn FnMut(Change) -> bool) -> Result<(), Error> {
        each(Change { len_bytes, changed: true });
        Ok(())
    }
}

//! The interface of a block device.

use std::{io, sync::Arc};

use crate::Waits;

/// Why a request failed. A failed write leaves each page of its range either as it was or as it was
/// to be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No memory is left within the limit (ENOSPC).
    #[error("no space left: the memory limit is reached")]
    NoSpace,
    /// The device only reads (EPERM).
    #[error("the device is read-only")]
    ReadOnly,
    /// The request does not lie within the device (EINVAL; ENOSPC for a write, as NBD has it).
    #[error("{len_bytes} bytes at offset {offset} lie outside a device of {size_bytes} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len_bytes: u64,
        /// The device's size.
        size_bytes: u64,
    },
    /// What is stored cannot be decoded (EIO).
    #[error("cannot read page {page}: {what}")]
    Corrupt {
        /// The page's number.
        page: u64,
        /// What was found wrong.
        what: &'static str,
    },
    /// The system could not do it (EIO).
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A stretch of a device whose bytes have the same status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes, never 0.
    pub len_bytes: u64,
    /// Nothing is allocated here.
    pub hole: bool,
    /// It reads as zeros.
    pub zero: bool,
}

/// A stretch of a device that was changed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Bytes, never 0.
    pub len_bytes: u64,
    /// It was changed since the device was made.
    pub changed: bool,
}

/// What [`BlockDevice::write_zeroes`] may do with the range's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeroes {
    /// It may become a hole.
    MayUnmap,
    /// It stays allocated.
    Allocated,
}
/// A device of bytes that any number of threads use at once.
///
/// What is below [`Checked`](crate::Checked) may assume that a range is not empty and lies within
/// [`size_bytes`](Self::size_bytes), and that a device that says it is read-only is not asked to
/// change. Offsets and lengths are in bytes and need no alignment. Of two requests that touch one
/// page at the same time, each is applied whole to that page.
///
/// A request that fails says why by an [`Error`]. After a failed read `buf` holds unspecified
/// bytes. A failed change leaves each page of its range either as it was or as it was to be, and
/// the device can be used on.
pub trait BlockDevice: Send + Sync {
    /// The device's size. It may change while the device is used.
    fn size_bytes(&self) -> u64;

    /// Whether it refuses every change.
    fn read_only(&self) -> bool {
        false
    }

    /// Whether a small request can take long (storage, network): a transport then keeps it off its
    /// fast path.
    fn may_block(&self) -> bool {
        false
    }

    /// Where a change that fails with [`Error::NoSpace`] may wait for room, to be tried again;
    /// `None`: it fails.
    fn waits(&self) -> Option<&Arc<Waits>> {
        None
    }

    /// Fills `buf` from `offset`.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error>;

    /// Stores `buf` at `offset`.
    fn write(&self, offset: u64, buf: &[u8]) -> Result<(), Error>;

    /// Makes finished writes as lasting as the device can. One that keeps nothing beyond its
    /// process does nothing.
    fn flush(&self) -> Result<(), Error>;

    /// Gives the range's memory back, page by page; all of it reads as zeros afterwards, parts of
    /// pages too.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), Error>;

    /// Makes the range read as zeros.
    fn write_zeroes(&self, offset: u64, len_bytes: u64, zeroes: Zeroes) -> Result<(), Error>;

    /// Tells `each` the range's extents in order; they cover it exactly. Neighbours may have the
    /// same status, so that little more is looked at than is told. `each` returns false to hear no
    /// more.
    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error>;

    /// Whether [`changes`](Self::changes) says more than that anything may have been changed.
    fn knows_changes(&self) -> bool {
        false
    }

    /// Tells `each` which stretches of the range were changed since the device was made, in order;
    /// they cover it exactly. Neighbours may have the same status. `each` returns false to hear no
    /// more.
    fn changes(&self, _offset: u64, len_bytes: u64, each: &mut dyn FnMut(Change) -> bool) -> Result<(), Error> {
        each(Change { len_bytes, changed: true });
        Ok(())
    }
}

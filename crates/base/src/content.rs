//! The interface common to all formats.

use pagefold_disk::{Error, Extent, Read};

/// The content of a base: bytes read by any number of threads.
///
/// Callers request ranges that are not empty and are within [`len_bytes`](Self::len_bytes).
pub(crate) trait Content: Send + Sync {
    /// Returns the length when the base was opened.
    fn len_bytes(&self) -> u64;

    /// Like [`Base::table_bytes`](crate::Base::table_bytes).
    fn table_bytes(&self) -> u64;

    /// Fills `buf` from `offset`.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error>;

    /// Like [`read`](Self::read), without waiting for storage. Returns how many bytes are filled, from
    /// the start of `buf`. An error counts as a wait.
    fn try_read(&self, _offset: u64, _buf: &mut [u8]) -> usize {
        0
    }

    /// Runs several reads, sorted by offset, and sets their results. Data that they share is
    /// fetched once.
    fn read_together(&self, reads: &mut [&mut Read<'_>]) {
        for read in reads {
            read.result = self.read(read.offset, read.buf);
        }
    }

    /// Like [`BlockDevice::read_unit_bytes`](pagefold_disk::BlockDevice::read_unit_bytes).
    fn unit_bytes(&self) -> u64 {
        4096
    }

    /// Returns how many compressed clusters were decoded.
    fn decoded_clusters(&self) -> u64 {
        0
    }

    /// Like [`BlockDevice::extents`](pagefold_disk::BlockDevice::extents).
    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error>;
}

/// Returns an extent of stored bytes.
pub(crate) fn data(len_bytes: u64) -> Extent {
    Extent { len_bytes, hole: false, zero: false }
}

/// Returns an extent of bytes that are not stored and read as zeros.
pub(crate) fn hole(len_bytes: u64) -> Extent {
    Extent { len_bytes, hole: true, zero: true }
}

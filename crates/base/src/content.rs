//! What the kinds of bases have in common.

use pagefold_disk::{Error, Extent};

/// The content of a base: some bytes, read by any number of threads.
///
/// Callers ask for ranges that are not empty and lie within [`len_bytes`](Self::len_bytes).
pub(crate) trait Content: Send + Sync {
    /// As it was when the base was opened.
    fn len_bytes(&self) -> u64;

    /// As [`Base::table_bytes`](crate::Base::table_bytes).
    fn table_bytes(&self) -> u64;

    /// Fills `buf` from `offset`.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error>;

    /// As [`BlockDevice::extents`](pagefold_disk::BlockDevice::extents).
    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error>;
}

/// Bytes that are stored.
pub(crate) fn data(len_bytes: u64) -> Extent {
    Extent { len_bytes, hole: false, zero: false }
}

/// Bytes that are not, and read as zeros.
pub(crate) fn hole(len_bytes: u64) -> Extent {
    Extent { len_bytes, hole: true, zero: true }
}

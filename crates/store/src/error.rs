//! Errors of operations on disks, and the slots that a disk can have.

use crate::limit::Full;

/// The maximum number of slots of a disk: 64 TiB.
pub(crate) const SLOTS_MAX: u64 = 1 << 34;

/// A slot's number, from 0.
pub type Slot = u64;

/// Why an operation failed. The slot is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool's memory limit is reached.
    #[error("the memory limit is reached")]
    Full,
    /// The disk's own limit is reached.
    #[error("the disk's own memory limit is reached")]
    DiskFull,
    /// The slot number is beyond the disk's end.
    #[error("slot {slot} is beyond the disk's {slots} slots")]
    NoSuchSlot {
        /// The slot asked for.
        slot: Slot,
        /// The number of slots that the disk has.
        slots: u64,
    },
    /// The slot's object cannot be decoded.
    #[error("slot {slot} is corrupt: {what}")]
    Corrupt {
        /// The slot.
        slot: Slot,
        /// The reason.
        what: &'static str,
    },
    /// The requested size exceeds the maximum of a disk.
    #[error("{} exceeds the maximum disk size of {}", size(*slots), size(SLOTS_MAX))]
    TooLarge {
        /// The requested number of slots.
        slots: u64,
    },
}

/// Shows the size of that many slots.
fn size(slots: u64) -> String {
    slots.checked_mul(4096).map_or_else(|| "16 EiB or more".to_owned(), pagefold_size::written)
}

impl From<Full> for Error {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

//! What the slots of a disk hold.

use super::{Entry, Fill};

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing; reads as zeros.
    Empty,
    /// Discarded, on a disk that is [over](crate::Pool::disk_over) something; reads as zeros.
    Hole,
    /// A page of zeros.
    Zero,
    /// A page.
    Data,
}

/// Consecutive slots with the same status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatusRun {
    /// The status of each slot.
    pub status: Status,
    /// The number of slots, at least 1.
    pub slots: u64,
}

/// Consecutive slots of which all or none were changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangedRun {
    /// Whether the slots were changed.
    pub changed: bool,
    /// The number of slots, at least 1.
    pub slots: u64,
}

impl Status {
    pub(crate) fn of(entry: Entry) -> Self {
        match entry {
            Entry::Empty => Self::Empty,
            Entry::Hole => Self::Hole,
            Entry::Same(Fill::ZERO) => Self::Zero,
            _ => Self::Data,
        }
    }
}

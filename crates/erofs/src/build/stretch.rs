//! Ranges of a content that may not be zeros.

use std::ops::Range;

/// A range of a content that may not be zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) range: Range<u64>,
    pub(crate) held: Held,
}

/// Where the bytes of a stretch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// In the source; it is not known whether they are zeros.
    Unread,
    /// In the base of an overlay, unchanged.
    Below,
    /// Changed: in the source, or zeros that are not stored, in place of bytes of an overlay's
    /// base.
    Changed,
}

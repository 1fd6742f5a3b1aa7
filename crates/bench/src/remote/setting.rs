//! What the cases of a run measure.

use std::{ops::Range, path::Path};

use super::{args::Args, disk::Disk, subjects::Away};

/// A disk that is far away, and how it is measured.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) args: &'a Args,
    pub(super) away: &'a Away<'a>,
    pub(super) disk: &'a Disk,
    /// The ranges of the disk that a guest reads when it starts Python. Empty if they are unknown.
    pub(super) reads: &'a [Range<u64>],
    pub(super) pagefold: &'a Path,
    pub(super) scratch: &'a Path,
}

//! What the cases of a run measure.

use std::{ops::Range, path::Path};

use super::{args::Args, disk::Disk, subjects::Away};

/// A disk that is far away, and how it is measured.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) args: &'a Args,
    pub(super) away: &'a Away<'a>,
    pub(super) disk: &'a Disk,
    /// What a guest reads of the disk with Python when it starts Python. Empty if that is unknown.
    pub(super) reads: &'a [Range<u64>],
    pub(super) pagefold: &'a Path,
    pub(super) scratch: &'a Path,
}

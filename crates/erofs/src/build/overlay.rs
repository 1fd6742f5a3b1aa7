//! A file of an image with changes, such as a disk above its base.
//!
//! ```text
//! base      |-- extent --|-- extent --|-- extent --|-- extent --|
//! changes         ##                        zeros
//! new image | compressed | copied     | compressed | copied     |
//! ```

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::{fmt, io, iter};

use pagefold_storage::ReadAt;

use super::base::OverlayBase;
use super::holes::ReadContent;
use super::stretch::{Held, Stretch};
use crate::error::{Error, Result};
use crate::zeros::is_zeros;

/// A range that differs, or may differ, from the content below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The offset.
    pub at: u64,
    /// The length in bytes, at least 1.
    pub len: u64,
    /// Whether the range is zeros; otherwise it is read from the source.
    pub zeros: bool,
}

impl Change {
    fn end(&self) -> u64 {
        self.at + self.len
    }
}

/// A file of an image, or zeros, with changes on top.
pub struct Overlay {
    pub(super) base: Option<Arc<dyn OverlayBase>>,
    size: u64,
    /// Sorted and disjoint.
    changes: Vec<Change>,
    source: Arc<dyn ReadAt>,
}

impl Overlay {
    /// Creates content of `size` bytes from sorted, disjoint `changes`. Changes that are not zeros
    /// are read from `source`, each at its own offset. Everything else is zeros.
    ///
    /// # Errors
    /// [`Error::Options`]: the changes are not sorted and disjoint, or exceed the size.
    pub fn new(size: u64, changes: Vec<Change>, source: Arc<dyn ReadAt>) -> Result<Self> {
        let mut at = 0;
        for change in &changes {
            let end = change.at.checked_add(change.len).filter(|end| change.len > 0 && *end <= size);
            let Some(end) = end.filter(|_| change.at >= at) else {
                return Err(Error::Options(
                    "the changed ranges of the disk are out of order or beyond its end".to_owned(),
                ));
            };
            at = end;
        }
        Ok(Self { base: None, size, changes, source })
    }

    /// Sets the base: unchanged ranges have its content, and zeros past its end.
    pub(crate) fn above(self, base: Arc<dyn OverlayBase>) -> Self {
        Self { base: Some(base), ..self }
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the changes that overlap a range.
    pub(super) fn changes(&self, range: Range<u64>) -> impl Iterator<Item = &Change> {
        let first = self.changes.partition_point(|change| change.end() <= range.start);
        self.changes[first..].iter().take_while(move |change| change.at < range.end)
    }

    /// Reads `len` bytes at `offset` into `bytes`, whose previous contents are ignored.
    pub(super) fn read(&self, offset: u64, len: usize, bytes: &mut Vec<u8>) -> io::Result<ReadContent> {
        bytes.clear();
        bytes.resize(len, 0);
        let changed = self.read_changes(offset, bytes)?;
        let below = self.read_below(offset, bytes)?;
        Ok(if changed == ReadContent::Bytes { changed } else { below })
    }

    /// Fills the changed ranges of `out`, which begins at `offset`.
    pub(super) fn read_changes(&self, offset: u64, out: &mut [u8]) -> io::Result<ReadContent> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.size);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let (mut at, mut rest, mut parts) = (offset, out, Vec::new());
        for change in self.changes(offset..end) {
            let (from, to) = (change.at.max(offset), change.end().min(end));
            let (_, behind) = rest.split_at_mut((from - at) as usize);
            let (part, behind) = behind.split_at_mut((to - from) as usize);
            (at, rest) = (to, behind);
            if change.zeros {
                part.fill(0);
            } else {
                parts.push((from, part));
            }
        }
        if parts.is_empty() {
            return Ok(ReadContent::Zeros);
        }
        self.source.read_all_at(&mut parts)?;
        Ok(ReadContent::Bytes)
    }

    /// Fills the unchanged ranges of `out`, which begins at `offset`.
    pub(super) fn read_below(&self, offset: u64, out: &mut [u8]) -> io::Result<ReadContent> {
        let end = offset + out.len() as u64;
        let (mut at, mut found) = (offset, ReadContent::Zeros);
        for range in self.changes(offset..end).map(|change| change.at..change.end()).chain(iter::once(end..end)) {
            let to = range.start.clamp(at, end);
            let part = &mut out[(at - offset) as usize..(to - offset) as usize];
            let base_bytes = self.base.as_ref().map_or(0, |base| base.size_bytes());
            let (held, beyond) = part.split_at_mut(base_bytes.saturating_sub(at).min(part.len() as u64) as usize);
            if let Some(base) = self.base.as_ref().filter(|_| !held.is_empty()) {
                base.read_below(held, at).map_err(io::Error::other)?;
                found = ReadContent::Bytes;
            }
            beyond.fill(0);
            at = range.end.min(end);
        }
        Ok(found)
    }
}

impl Overlay {
    /// Like [`Content::stretches`](super::Content::stretches).
    pub(super) fn stretches(
        &self,
        range: Range<u64>,
        each: &mut dyn FnMut(Stretch) -> io::Result<ControlFlow<()>>,
    ) -> io::Result<ControlFlow<()>> {
        let mut stored = Vec::new();
        if let Some(base) = &self.base {
            base.stored_ranges(range.clone(), &mut |range| stored.push(range)).map_err(io::Error::other)?;
        }
        let mut stored = stored.into_iter().peekable();
        let mut at = range.start;
        let changes =
            self.changes(range.clone()).map(|change| (change.at.max(range.start), change.end(), Some(change)));
        let end = iter::once((range.end, range.end, None));
        for (from, to, change) in changes.chain(end) {
            // First the unchanged part before the change, then the change.
            for (to, change) in [(from, None), (to.min(range.end), change)] {
                while at < to {
                    let below = stored.peek().filter(|below| below.start <= at).map(|below| below.end);
                    let next = below.or_else(|| stored.peek().map(|below| below.start)).map_or(to, |next| next.min(to));
                    let held = match (below, change) {
                        (Some(_), None) => Some(Held::Below),
                        (Some(_), Some(_)) => Some(Held::Changed),
                        (None, Some(Change { zeros: false, .. })) => Some(Held::Unread),
                        (None, _) => None,
                    };
                    if let Some(held) = held
                        && each(Stretch { range: at..next, held })?.is_break()
                    {
                        return Ok(ControlFlow::Break(()));
                    }
                    at = next;
                    stored.next_if(|below| below.end <= at);
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns whether the bytes of the base in a range are all zeros.
    pub(super) fn is_zeros_below(&self, range: Range<u64>) -> io::Result<bool> {
        let Some(base) = &self.base else { return Ok(false) };
        let mut bytes = vec![0; (range.end - range.start) as usize];
        base.read_below(&mut bytes, range.start).map_err(io::Error::other)?;
        Ok(is_zeros(&bytes))
    }
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay")
            .field("size", &self.size)
            .field("changes", &self.changes.len())
            .finish_non_exhaustive()
    }
}

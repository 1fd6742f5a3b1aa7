//! Writes most of a pool's stream while its disks are in use.
//!
//! ```text
//! round:   shadow ← each disk that has changed, at some instant; write what the shadows have and no
//!          earlier round has
//! finish:  no client changes the disks: write what they have and no round has, and the disks
//! ```
//!
//! All shadows stay until the end (`shadows.rs`). So parts that a round has written keep their
//! numbers and their places in the pool. A disk differs from its last shadow only by parts of the
//! layer that it got with that shadow. `finish` visits nothing else, so its time depends on these
//! parts and on the number of disks, not on the stored amount.
//!
//! Entries that rounds have written may change in two ways, which both keep their pages. An object
//! may be compressed with other tables; until the end, tables are neither added nor freed
//! (`training.rs`). Or a disk's object becomes one of the pool's own (`common.rs`), because another
//! disk has written an equal page; then the stream has that object twice.

use std::{fmt, io::Write, sync::Arc};

use super::{
    ExportError, ExportedDisk,
    export::{Export, Known, check_disks, check_notes, roots},
};
use crate::{core::Core, disk::Disk, pool::Pool};

/// A stream of a pool that is written in several rounds while the disks are in use, and then ended
/// while no client changes them. [`Pool::import`] reads it like a stream of [`Pool::export`].
///
/// Until this is dropped, the pool keeps what was written, so replacing a page takes additional
/// memory. That never causes [`Error::Full`](crate::Error::Full) or
/// [`Error::DiskFull`](crate::Error::DiskFull): a write without room ends the stream instead, and
/// the next call on the stream returns [`ExportError::Ended`]. Afterwards, at most 768 bytes stay
/// in use for each 256 KiB that a disk has changed in the meantime.
///
/// ```
/// use pagefold_store::{ExportedDisk, PAGE_SIZE, Pool, PoolConfig, Precopy};
///
/// let pool = Pool::new(PoolConfig::default())?;
/// let disk = pool.disk(1000)?;
/// disk.write(5, &[7; PAGE_SIZE])?;
/// let (mut stream, mut precopy) = (Vec::new(), Precopy::begin(&pool)?);
/// precopy.round(&[&disk], &mut stream)?;
/// disk.write(6, &[8; PAGE_SIZE])?;
/// precopy.finish(&[ExportedDisk { disk: &disk, note: b"" }], &mut stream)?;
///
/// let imported = Pool::import(PoolConfig::default(), &mut &stream[..])?;
/// let mut page = [0; PAGE_SIZE];
/// imported.disks[0].disk.read(6, &mut page)?;
/// assert_eq!(page, [8; PAGE_SIZE]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Precopy {
    core: Arc<Core>,
    stream: u64,
    known: Known,
    /// Whether the stream is complete.
    is_finished: bool,
}

impl fmt::Debug for Precopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Precopy").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Precopy {
    /// Begins a stream. A pool has at most one stream in rounds.
    ///
    /// # Errors
    /// [`ExportError::Ended`]: there is one already.
    pub fn begin(pool: &Pool) -> Result<Self, ExportError> {
        let core = Arc::clone(pool.core());
        let stream = core.begin_shadows().ok_or(ExportError::Ended)?;
        Ok(Self { known: Known::new(&core), core, stream, is_finished: false })
    }

    /// Writes what each of the disks holds at some instant during the call, without what earlier
    /// rounds have written. Returns the number of bytes written. The disks may be in use, and may
    /// differ from those of the previous round.
    ///
    /// # Errors
    /// See [`ExportError`]. After an error the stream cannot be used.
    pub fn round(&mut self, disks: &[&Disk], out: &mut dyn Write) -> Result<u64, ExportError> {
        let Self { core, stream, known, is_finished } = self;
        if *is_finished {
            return Err(ExportError::Ended);
        }
        check_disks(core, disks.iter().copied())?;
        let mut shadows = Vec::with_capacity(disks.len());
        for disk in disks {
            // A write gives a disk a new root, so nothing has changed if the stream has this one.
            if known.has(disk.tree().root().0) {
                continue;
            }
            let tree = disk.shadow().map_err(|_| ExportError::Ended)?;
            shadows.push(tree.root());
            if !core.add_shadow(*stream, tree) {
                return Err(ExportError::Ended);
            }
        }
        if !core.shadows.are_there(*stream) {
            // The numbers of parts in the stream may belong to other parts by now.
            return Err(ExportError::Ended);
        }
        let first = known.leaves_count();
        let mut export = Export::begin(core, known, Some(*stream), out)?;
        export.parts(shadows)?;
        export.hints(first)?;
        export.end_round()
    }

    /// Returns whether the stream has ended because the pool or a disk needed memory. That cannot happen
    /// while no client changes the disks.
    pub fn has_ended(&self) -> bool {
        !self.core.shadows.are_there(self.stream)
    }

    /// Ends the stream: writes what the disks have and no round has. No other thread may change the
    /// disks from before this call until it returns. Returns the number of bytes written. Dropping
    /// this value frees what was kept for the stream, which takes longer with more disks.
    ///
    /// # Errors
    /// See [`ExportError`]; [`Ended`](ExportError::Ended) also if it was called before.
    pub fn finish(&mut self, disks: &[ExportedDisk<'_>], out: &mut dyn Write) -> Result<u64, ExportError> {
        let Self { core, stream, known, is_finished } = self;
        if std::mem::replace(is_finished, true) {
            return Err(ExportError::Ended);
        }
        check_disks(core, disks.iter().map(|exported| exported.disk))?;
        check_notes(disks)?;
        let mut export = Export::begin(core, known, Some(*stream), out)?;
        export.parts(roots(disks))?;
        export.disks(disks)?;
        export.end(disks.len())
    }
}

impl Drop for Precopy {
    fn drop(&mut self) {
        self.core.end_shadows_of(self.stream);
    }
}

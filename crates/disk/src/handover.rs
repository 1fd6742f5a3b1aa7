//! RAM disks as a stream of bytes, from which another process restores them.
//!
//! The stream is that of their pool ([`Pool::export`]). Each disk's note says:
//!
//! ```text
//! size: 8 │ flags: 4 │ the disk of which it is a snapshot: 4 │ the first disk over the same base: 4
//! ```
//!
//! Numbers of disks are their places in the list plus one; 0 means none. A reader ignores what
//! follows.

use std::{
    collections::HashMap,
    fmt,
    io::{self, Read, Write},
    ptr,
    sync::{Arc, Weak},
};

use pagefold_store::{
    Disk, Error as StoreError, ExportError, ExportedDisk, ImportError, KeptDisk, Pool, PoolConfig, Precopy,
};

use crate::{
    BaseCache, BlockDevice, RamDisk,
    below::Below,
    ram::{Kept, slots_of},
};

/// The flag of a disk that was empty when it was created: its slots without content are unchanged.
const BEGAN_EMPTY: u32 = 1;

/// The flag of a snapshot, whose disk may be gone.
const SNAPSHOT: u32 = 2;

/// Writes RAM disks of `pool`, with their content, to `out`. No other thread may change them during
/// the call. Bases below disks are not written; the reader gets them in another way.
///
/// # Errors
/// See [`ExportError`]. The disks are unchanged.
pub fn export_disks(pool: &Pool, disks: &[&RamDisk], out: &mut dyn Write) -> Result<(), ExportError> {
    with_notes(disks, |exported| pool.export(exported, out))
}

/// Writes the present content of RAM disks of a pool, while they are in use ([`Precopy::round`]).
/// Returns the number of bytes written.
///
/// # Errors
/// See [`ExportError`].
pub fn precopy_disks(precopy: &mut Precopy, disks: &[&RamDisk], out: &mut dyn Write) -> Result<u64, ExportError> {
    let disks: Vec<&Disk> = disks.iter().map(|disk| disk.kept().disk).collect();
    precopy.round(&disks, out)
}

/// Like [`export_disks`], after such rounds ([`Precopy::finish`]). Returns the number of bytes written.
///
/// # Errors
/// See [`ExportError`].
pub fn finish_disks(precopy: &mut Precopy, disks: &[&RamDisk], out: &mut dyn Write) -> Result<u64, ExportError> {
    with_notes(disks, |exported| precopy.finish(exported, out))
}

/// Describes RAM disks of a pool that is [kept in a file](PoolConfig::kept_in), so that another
/// process finds them there with [`Salvage`](pagefold_store::Salvage) if this one is killed.
/// [`ImportedDisks::read`] reads the stream that it writes. Returns `None` if the pool is in
/// private memory.
pub fn kept_disks(disks: &[&RamDisk]) -> Option<Vec<KeptDisk>> {
    let parts: Vec<Kept<'_>> = disks.iter().map(|disk| disk.kept_at_least()).collect();
    let all = parts.iter().zip(notes(disks, &parts)).map(|(part, note)| {
        let mut kept = KeptDisk::of(part.disk, note)?;
        // Another thread may resize the disk, so both sizes are read at the same instant.
        kept.slots = slots_of(part.size_bytes).ok()?;
        Some(kept)
    });
    all.collect()
}

/// Passes the disks with their notes to `export`.
fn with_notes<T>(disks: &[&RamDisk], export: impl FnOnce(&[ExportedDisk<'_>]) -> T) -> T {
    let parts: Vec<Kept<'_>> = disks.iter().map(|disk| disk.kept()).collect();
    let notes = notes(disks, &parts);
    let exported: Vec<ExportedDisk<'_>> =
        parts.iter().zip(&notes).map(|(part, note)| ExportedDisk { disk: part.disk, note }).collect();
    export(&exported)
}

/// Returns the notes of disks.
fn notes(disks: &[&RamDisk], kept: &[Kept<'_>]) -> Vec<Vec<u8>> {
    let places: HashMap<*const RamDisk, u32> = disks.iter().map(|&disk| ptr::from_ref(disk)).zip(1..).collect();
    // For each base, the first disk over it.
    let mut belows: HashMap<*const Below, u32> = HashMap::new();
    for (number, Kept { below, .. }) in (1..).zip(kept) {
        if let Some(below) = below {
            belows.entry(Arc::as_ptr(below)).or_insert(number);
        }
    }
    let note = |&Kept { below, began_empty, size_bytes, snapshot_of, .. }: &Kept<'_>| {
        let flags = if began_empty { BEGAN_EMPTY } else { 0 } | if snapshot_of.is_some() { SNAPSHOT } else { 0 };
        let of = snapshot_of.and_then(|of| places.get(&of).copied()).unwrap_or(0);
        let over = below.and_then(|below| belows.get(&Arc::as_ptr(below)).copied()).unwrap_or(0);
        [&size_bytes.to_le_bytes()[..], &flags.to_le_bytes(), &of.to_le_bytes(), &over.to_le_bytes()].concat()
    };
    kept.iter().map(note).collect()
}

/// A note of a disk that was read.
#[derive(Clone, Copy, Debug)]
struct Note {
    size_bytes: u64,
    began_empty: bool,
    is_snapshot: bool,
    snapshot_of: Option<usize>,
    /// The first disk over the same base.
    over: Option<usize>,
}

impl Note {
    fn of(bytes: &[u8]) -> Option<Self> {
        let (size_bytes, rest) = bytes.split_first_chunk()?;
        let (flags, rest) = rest.split_first_chunk()?;
        let (of, rest) = rest.split_first_chunk()?;
        let (over, _) = rest.split_first_chunk()?;
        let flags = u32::from_le_bytes(*flags);
        let number = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes).checked_sub(1).map(|at| at as usize);
        Some(Self {
            size_bytes: u64::from_le_bytes(*size_bytes),
            began_empty: flags & BEGAN_EMPTY != 0,
            is_snapshot: flags & SNAPSHOT != 0,
            snapshot_of: number(of),
            over: number(over),
        })
    }
}

/// A pool that was read from a stream, and its disks, which do not yet have their bases.
#[derive(Debug)]
pub struct ImportedDisks {
    pool: Pool,
    disks: Vec<Waiting>,
}

struct Waiting {
    disk: Disk,
    note: Note,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("note", &self.note).finish_non_exhaustive()
    }
}

impl ImportedDisks {
    /// Reads what [`export_disks`] or [`finish_disks`] wrote, and makes a pool of it. `input` is
    /// untrusted. Calls `made` with the pool before any of its content is read, and fails if that
    /// fails.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn read(
        config: PoolConfig,
        input: &mut dyn Read,
        made: &mut dyn FnMut(&Pool) -> io::Result<()>,
    ) -> Result<Self, ImportError> {
        let imported = Pool::import_with(config, input, made)?;
        let disks = imported.disks.into_iter().map(|imported| {
            let note = Note::of(&imported.note)?;
            let is_valid = slots_of(note.size_bytes).is_ok_and(|slots| slots == imported.disk.slots());
            is_valid.then_some(Waiting { disk: imported.disk, note })
        });
        let disks: Option<Vec<Waiting>> = disks.collect();
        let disks = disks.ok_or(ImportError::Invalid { what: "a disk's note is wrong" })?;
        for (at, Waiting { note, .. }) in disks.iter().enumerate() {
            let is_first = |over: usize| over <= at && disks[over].note.over == Some(over);
            if note.over.is_some_and(|over| !is_first(over)) || note.snapshot_of.is_some_and(|of| of >= disks.len()) {
                return Err(ImportError::Invalid { what: "a disk's note names a wrong disk" });
            }
        }
        Ok(Self { pool: imported.pool, disks })
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Removes a disk's content beyond its end, see
    /// [`Salvage::write`](pagefold_store::Salvage::write).
    ///
    /// # Errors
    /// There is no memory to record the removal.
    pub fn cut(&self, number: usize) -> Result<(), StoreError> {
        self.disks.get(number).map_or(Ok(()), |waiting| waiting.disk.cut())
    }

    /// Makes the disks, in the order in which they were exported. `base` is called once for each
    /// base, with the number of the first disk over it, and returns that base. Its pages are kept
    /// in `cache`, the pool's, as in [`RamDisk::over_cached`].
    ///
    /// # Errors
    /// Those of `base`.
    pub fn restore<E>(
        self,
        cache: Option<&BaseCache>,
        mut base: impl FnMut(usize) -> Result<Arc<dyn BlockDevice>, E>,
    ) -> Result<Vec<Arc<RamDisk>>, E> {
        let Self { pool, disks } = self;
        let mut belows: Vec<Option<Arc<Below>>> = Vec::with_capacity(disks.len());
        for (at, Waiting { note, .. }) in disks.iter().enumerate() {
            let below = match note.over {
                None => None,
                Some(first) if first < at => belows[first].clone(),
                Some(_) => Some(Arc::new(Below::new(base(at)?, &pool, cache))),
            };
            belows.push(below);
        }
        let notes: Vec<Note> = disks.iter().map(|waiting| waiting.note).collect();
        let mut parts: Vec<_> = disks.into_iter().zip(belows).map(Some).collect();
        let mut made: Vec<Option<Arc<RamDisk>>> = vec![None; parts.len()];
        // A snapshot refers to its disk.
        for is_snapshot in [false, true] {
            for at in (0..notes.len()).filter(|&at| notes[at].is_snapshot == is_snapshot) {
                let Some((Waiting { disk, note }, below)) = parts[at].take() else { continue };
                let of = note.snapshot_of.and_then(|of| made[of].as_ref());
                let of = is_snapshot.then(|| of.map_or_else(Weak::new, Arc::downgrade));
                let Note { size_bytes, began_empty, .. } = note;
                made[at] = Some(Arc::new(RamDisk::restored(disk, below, began_empty, pool.clone(), size_bytes, of)));
            }
        }
        Ok(made.into_iter().flatten().collect())
    }
}

//! Forks, snapshots and rollbacks of a server's disks, and their changed ranges.

use std::{sync::Arc, time::Instant};

use pagefold_control::{ChangedRange, Changes, Code, Failure, Fork, snapshot_name};
use pagefold_disk::{BlockDevice, Error as BlockError, NewDiskError, RamDisk};

use super::disks::{Counted, Disk, DiskBacking, Disks, Found, Origin, RECORD_BYTES, found, socket_bytes};

/// Maximum number of ranges per answer, which is then 60 KiB long.
const MAX_RANGES: usize = 1024;

/// Maximum number of bytes of a disk to examine per answer: takes some milliseconds if every page
/// has to be examined.
const MAX_LOOKED_AT_BYTES: u64 = 1 << 30;

impl Disks {
    /// Creates disks that all have the content of another at one instant.
    pub(crate) fn fork(&self, fork: &Fork) -> Result<Vec<Found>, Failure> {
        let Fork { from, names, limit_bytes, read_only, socket } = fork;
        let source = self.lock().get(from)?.clone();
        let origin = Arc::new(Origin { name: from.clone(), base: source.base().cloned() });
        let mut rams: Vec<Arc<RamDisk>> = Vec::new();
        for _ in names {
            let ram = match (&source.kind, rams.first()) {
                (DiskBacking::Base(file), _) => file.pristine.fork().map_err(failed)?,
                // All forks have the instant at which the first was created.
                (_, Some(first)) => first.fork().map_err(failed)?,
                (DiskBacking::Ram(ram) | DiskBacking::Snapshot(ram), None) => ram.fork().map_err(failed)?,
            };
            ram.set_limit(limit_bytes.unwrap_or(u64::MAX));
            rams.push(Arc::new(ram));
        }
        let record_bytes = RECORD_BYTES + Origin::record_bytes(from) + socket_bytes(socket.as_ref());
        let records = names.iter().map(|name| Counted::record(&self.pool, name, record_bytes));
        let records = records.collect::<Result<Vec<_>, _>>()?;

        let made = Instant::now();
        let mut state = self.lock();
        if let Some(name) = names.iter().find(|name| state.has(name)) {
            return Err(Failure::name_in_use(name));
        }
        // None of these can fail after another was added: the names are free and were checked, and a
        // fork with a socket is alone.
        names
            .iter()
            .zip(rams.into_iter().zip(records))
            .map(|(name, (ram, record))| {
                let disk = Disk {
                    kind: DiskBacking::Ram(ram),
                    origin: Some(Arc::clone(&origin)),
                    made,
                    limit_bytes: *limit_bytes,
                    read_only: *read_only,
                    waits: self.new_waits(),
                    socket: None,
                    _record: record,
                };
                self.insert(&mut state, name, disk, socket.as_ref())
            })
            .collect()
    }

    /// Keeps the content of a disk at one instant under a separate name.
    pub(crate) fn snapshot(&self, name: &str, snapshot: &str) -> Result<Found, Failure> {
        let snapshot = snapshot_name(name, snapshot);
        let record = Counted::record(&self.pool, &snapshot, RECORD_BYTES + Origin::record_bytes(name))?;
        let source = self.lock().get(name)?.clone();
        let ram = source.kind.ram(name, "have snapshots")?;
        // Taking the snapshot may wait for a resize, so no lock is held.
        let kept = Arc::new(ram.snapshot().map_err(failed)?);

        let mut state = self.lock();
        let is_same = |disk: &Disk| matches!(&disk.kind, DiskBacking::Ram(same) if Arc::ptr_eq(same, ram));
        if !state.get(name).is_ok_and(is_same) {
            return Err(Failure::no_such_disk(name));
        }
        if state.has(&snapshot) {
            return Err(Failure::name_in_use(&snapshot));
        }
        let disk = Disk {
            kind: DiskBacking::Snapshot(kept),
            origin: Some(Arc::new(Origin { name: name.to_owned(), base: source.base().cloned() })),
            made: Instant::now(),
            limit_bytes: None,
            read_only: true,
            waits: None,
            socket: None,
            _record: record,
        };
        self.insert(&mut state, &snapshot, disk, None)
    }

    /// Restores a disk to one of its snapshots.
    pub(crate) fn rollback(&self, name: &str, snapshot: &str, force: bool) -> Result<Found, Failure> {
        let state = self.lock();
        let disk = state.get(name)?.clone();
        let kept = state.get(&snapshot_name(name, snapshot))?.clone();
        let snapshots = state.snapshots(name).count() as u64;
        drop(state);
        let ram = disk.kind.ram(name, "be rolled back")?;
        self.check_unused(name, force)?;
        if let DiskBacking::Snapshot(kept) = &kept.kind {
            ram.become_as(kept).map_err(failed)?;
        }
        self.signal_room();
        Ok(found(name, &disk, self.clients(name), snapshots))
    }

    /// Returns the ranges of a disk that have changed since it was created, starting at `offset`,
    /// as many as fit into one answer.
    pub(crate) fn changes(&self, name: &str, offset: u64) -> Result<Changes, Failure> {
        let disk = self.lock().get(name)?.clone();
        let (DiskBacking::Ram(ram) | DiskBacking::Snapshot(ram)) = &disk.kind else {
            let size_bytes = disk.kind.size_bytes();
            return Ok(Changes { name: name.to_owned(), size_bytes, ranges: Vec::new(), next_offset: None });
        };
        let size_bytes = ram.size_bytes();
        let end = size_bytes.min(offset.saturating_add(MAX_LOOKED_AT_BYTES));
        let mut ranges: Vec<ChangedRange> = Vec::new();
        let mut at = offset;
        if at < end {
            let each = &mut |change: pagefold_disk::Change| {
                let is_full = ranges.len() == MAX_RANGES;
                match ranges.last_mut() {
                    _ if !change.changed => {}
                    Some(last) if last.offset + last.len_bytes == at => last.len_bytes += change.len_bytes,
                    _ if is_full => return false,
                    _ => ranges.push(ChangedRange { offset: at, len_bytes: change.len_bytes }),
                }
                at += change.len_bytes;
                true
            };
            ram.changes(offset, end - offset, each).map_err(failed)?;
        }
        let next_offset = Some(at).filter(|&at| at < size_bytes);
        Ok(Changes { name: name.to_owned(), size_bytes, ranges, next_offset })
    }
}

fn failed(error: BlockError) -> Failure {
    let code = if matches!(error, BlockError::NoSpace) { Code::NoMemory } else { Code::Failed };
    Failure::new(code, error.to_string())
}

pub(super) fn not_made(error: NewDiskError) -> Failure {
    let is_full = matches!(error, NewDiskError::Store(pagefold_disk::StoreError::Full));
    Failure::new(if is_full { Code::NoMemory } else { Code::InvalidSize }, error.to_string())
}

//! Forks, snapshots and rollbacks of a server's disks, and their changed ranges.

use std::{sync::Arc, time::Instant};

use pagefold_control::{ChangedRange, Changes, DiskQuota, Failure, Fork, snapshot_name};

use crate::{
    counted::Counted,
    disk::{Disk, FoundDisk, Origin, RECORD_BYTES},
    socket,
    table::Table,
};

/// Maximum number of ranges per answer, which is then 60 KiB long.
const MAX_RANGES: usize = 1024;

/// Maximum number of bytes of a disk to examine per answer: takes some milliseconds if every page
/// has to be examined.
const MAX_LOOKED_AT_BYTES: u64 = 1 << 30;

impl Table {
    /// Creates disks that all have the content of another at one instant.
    pub(crate) fn fork(&self, fork: &Fork) -> Result<Vec<FoundDisk>, Failure> {
        let Fork { from, names, limit_bytes, read_only, socket, quota } = fork;
        let (source, origin) = self.origin(from)?;
        let backings = source.backing.forks(names.len(), *limit_bytes)?;
        let record_bytes = RECORD_BYTES + Origin::record_bytes(from) + socket::asked_bytes(socket.as_ref());
        let records = names.iter().map(|name| Counted::record(&self.pool, name, record_bytes));
        let records = records.collect::<Result<Vec<_>, _>>()?;

        let made = Instant::now();
        let mut entries = self.lock();
        names.iter().try_for_each(|name| entries.check_free(name))?;
        // This cannot fail after some forks were added: the names were checked and are free, and a
        // fork with a socket is created alone.
        names
            .iter()
            .zip(backings.into_iter().zip(records))
            .map(|(name, (backing, record))| {
                let disk = Disk {
                    backing,
                    origin: Some(Arc::clone(&origin)),
                    made,
                    limit_bytes: *limit_bytes,
                    read_only: *read_only,
                    waits: self.new_waits(),
                    socket: None,
                    _record: record,
                };
                self.insert(&mut entries, name, disk, socket.as_ref(), *quota)
            })
            .collect()
    }

    /// Returns a disk, and the origin of its forks.
    fn origin(&self, name: &str) -> Result<(Disk, Arc<Origin>), Failure> {
        // With the lock, the disk keeps its name.
        let entries = self.lock();
        let disk = entries.get(name)?.clone();
        let number = self.exports.get_numbered(name).map(|(number, _)| number);
        drop(entries);
        let origin = Origin { name: name.to_owned(), number, base: disk.base().cloned() };
        Ok((disk, Arc::new(origin)))
    }

    /// Keeps the content of a disk at one instant under a separate name.
    pub(crate) fn snapshot(&self, name: &str, snapshot: &str) -> Result<FoundDisk, Failure> {
        let snapshot = snapshot_name(name, snapshot);
        let record = Counted::record(&self.pool, &snapshot, RECORD_BYTES + Origin::record_bytes(name))?;
        let (source, origin) = self.origin(name)?;
        // Taking the snapshot may wait for a resize, so no lock is held.
        let kept = source.backing.snapshot(name)?;

        let mut entries = self.lock();
        if !entries.get(name).is_ok_and(|disk| disk.backing.is_same(&source.backing)) {
            return Err(Failure::no_such_disk(name));
        }
        entries.check_free(&snapshot)?;
        let disk = Disk { origin: Some(origin), ..Disk::read_only(kept, record) };
        self.insert(&mut entries, &snapshot, disk, None, DiskQuota::default())
    }

    /// Restores a disk to one of its snapshots.
    /// Calls `note_first` before the disk may get larger. No other thread resizes disks simultaneously.
    pub(crate) fn rollback(
        &self,
        name: &str,
        snapshot: &str,
        force: bool,
        note_first: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<FoundDisk, Failure> {
        let entries = self.lock();
        let disk = entries.get(name)?.clone();
        let kept = entries.get(&snapshot_name(name, snapshot))?.clone();
        let snapshots = entries.snapshots(name).count() as u64;
        drop(entries);
        let ram = disk.backing.ram(name, "be rolled back")?;
        self.check_unused(name, force)?;
        let (size_bytes, before_bytes) = (kept.backing.size_bytes(), disk.backing.size_bytes());
        ram.may_become(size_bytes, || {
            if size_bytes > before_bytes {
                note_first()?;
            }
            disk.backing.become_as(name, &kept.backing)
        })?;
        self.signal_room();
        Ok(disk.found(name, self.exported(name), snapshots))
    }

    /// Returns the ranges of a disk that have changed since it was created, starting at `offset`,
    /// as many as fit into one answer.
    pub(crate) fn changes(&self, name: &str, offset: u64) -> Result<Changes, Failure> {
        let backing = self.lock().get(name)?.backing.clone();
        let size_bytes = backing.size_bytes();
        // A base has no changes to look for.
        let most_bytes = if backing.as_base().is_some() { u64::MAX } else { MAX_LOOKED_AT_BYTES };
        let end = size_bytes.min(offset.saturating_add(most_bytes));
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
            backing.changes(offset, end - offset, each)?;
        }
        let next_offset = Some(at).filter(|&at| at < size_bytes);
        Ok(Changes { name: name.to_owned(), size_bytes, ranges, next_offset })
    }
}

//! The clients of disks: their number, their quota, and what was done for them.

use std::{
    thread,
    time::{Duration, Instant},
};

use pagefold_control::{Batch, BusyDisk, DiskQuota, Failure};

use crate::{
    disk::FoundDisk,
    table::{Table, of_clients},
};

/// How long a client that has just closed its connection may take to be noticed.
const LEAVE_TIME: Duration = Duration::from_secs(1);
/// Interval between two checks.
const PAUSE: Duration = Duration::from_millis(2);

impl Table {
    /// Sets what an export's clients may take.
    pub(crate) fn set_quota(&self, name: &str, quota: DiskQuota) -> Result<FoundDisk, Failure> {
        let export = self.exports.get(name).filter(|_| self.lock().has(name));
        export.ok_or_else(|| Failure::no_such_disk(name))?.set_quota(of_clients(quota));
        self.find(name)
    }

    /// Fails if a disk has clients, unless `force` is set. To be called without locks.
    pub(crate) fn check_unused(&self, name: &str, force: bool) -> Result<(), Failure> {
        if force {
            return Ok(());
        }
        let deadline = Instant::now() + LEAVE_TIME;
        loop {
            match self.clients(name) {
                0 => return Ok(()),
                clients if Instant::now() >= deadline => {
                    return Err(Failure::in_use(&format!("disk '{name}'"), clients));
                }
                _ => thread::sleep(PAUSE),
            }
        }
    }

    /// Returns the disks that are working on requests.
    pub(crate) fn busy(&self) -> Vec<BusyDisk> {
        let requests = |name: &str| self.exports.get(name).map_or(0, |export| export.requests() as u64);
        let disks = self.batch(Batch { after: None, most: usize::MAX }).into_iter();
        let busy = disks.map(|(name, disk, _)| BusyDisk {
            requests: requests(&name),
            kind: disk.backing.kind(),
            path: disk.base().and_then(|base| base.path()).map(str::to_owned),
            name,
        });
        busy.filter(|disk| disk.requests > 0).collect()
    }
}

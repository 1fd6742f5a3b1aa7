//! What the commands act on.

use std::{any::Any, time::Duration};

use crate::{
    Add, AddBase, Changes, Compacted, DiskRecord, DiskStat, Dropped, Failure, Fork, FrozenRuns, Instant, Limited,
    Renamed, Resized, ServerStat,
};

/// What lives as long as the connection that asked for it: it is dropped then.
pub type Held = Box<dyn Any + Send>;

/// Some of the disks in the order of their names.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Those whose names come after this one; `None` for those that come first.
    pub after: Option<&'a str>,
    /// So many at most.
    pub most: usize,
}

/// Disks that can be managed while they are served. Methods are called from several threads at
/// once.
///
/// Names and sizes that come here were checked by [`answer`](crate::answer); whether a disk has a
/// name was not. A method that fails has changed nothing.
pub trait Manage: Send + Sync {
    /// Disks, and where they are served; none when there are no more.
    fn list(&self, batch: Batch<'_>) -> Vec<DiskRecord>;

    /// Figures of the server.
    fn server(&self) -> ServerStat;

    /// Figures of disks; none when there are no more.
    fn stats(&self, batch: Batch<'_>) -> Vec<DiskStat>;

    /// Figures of a disk.
    fn stat(&self, name: &str) -> Result<DiskStat, Failure>;

    /// Makes an empty disk.
    fn add(&self, disk: &Add) -> Result<DiskRecord, Failure>;

    /// Serves a file as a disk that is only read.
    fn add_base(&self, base: &AddBase) -> Result<DiskRecord, Failure>;

    /// Makes disks that all hold what another does at one instant; in the order of the names.
    fn fork(&self, fork: &Fork) -> Result<Vec<DiskRecord>, Failure>;

    /// Keeps what a disk holds at one instant, as a disk that is only read.
    fn snapshot(&self, name: &str, snapshot: &str) -> Result<DiskRecord, Failure>;

    /// Makes a disk hold what a snapshot of it does.
    fn rollback(&self, name: &str, snapshot: &str) -> Result<DiskRecord, Failure>;

    /// Where a disk was changed since it was made, from `offset` on, as far as one answer has room
    /// for it.
    fn changes(&self, name: &str, offset: u64) -> Result<Changes, Failure>;

    /// Removes a disk with its contents; with its snapshots only if `snapshots` says so.
    fn drop(&self, name: &str, snapshots: bool) -> Result<Dropped, Failure>;

    /// Changes a disk's size; without `shrink`, only to a larger one.
    fn resize(&self, name: &str, size_bytes: u64, shrink: bool) -> Result<Resized, Failure>;

    /// Gives a disk another name.
    fn rename(&self, name: &str, to: &str) -> Result<Renamed, Failure>;

    /// Makes a disk read as zeros and gives its memory back.
    fn reset(&self, name: &str) -> Result<DiskRecord, Failure>;

    /// Sets a disk's limit or the server's; `None` takes it away.
    fn limit(&self, name: Option<&str>, limit_bytes: Option<u64>) -> Result<Limited, Failure>;

    /// Gives back what memory the disks' holes take, for about `time` at most.
    fn compact(&self, time: Duration) -> Result<Compacted, Failure>;

    /// Serves a disk as it is at this instant, until what comes with the record is dropped.
    fn freeze(&self, name: &str) -> Result<(Instant, Held), Failure>;

    /// Tells what lies where in an instant from a byte on: a bounded number of runs.
    fn frozen_runs(&self, export: &str, offset_bytes: u64) -> Result<FrozenRuns, Failure>;

    /// Asks the server to end, and returns at once.
    fn stop(&self);
}

//! The interface that commands act on.

use std::{any::Any, os::fd::OwnedFd, time::Duration};

use crate::{
    Add, AddBase, BindSpare, Changes, Compacted, DeviceEnding, DeviceFault, DiskRecord, DiskStat, Dropped, Failure,
    Fork, FrozenRuns, HandingOver, Instant, Limited, LimitedConnections, NewDevice, Quota, Renamed, Resize, Resized,
    ServerStat, SpareRecord, Stopping,
};

/// An object that is kept until the connection that requested it ends.
pub type Held = Box<dyn Any + Send>;

/// A batch of disks, in the order of their names.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Only disks whose names follow this one; `None` starts at the first.
    pub after: Option<&'a str>,
    /// Maximum number of disks.
    pub most: usize,
}

/// Disks that can be managed while they are served. Methods are called from several threads
/// simultaneously.
///
/// [`answer`](crate::answer) has validated the names and sizes passed in, but not whether a disk
/// with that name exists. A method that fails has changed nothing.
pub trait Manage: Send + Sync {
    /// Returns a batch of disks with their addresses; empty when there are no more.
    fn list(&self, batch: Batch<'_>) -> Vec<DiskRecord>;

    /// Returns the server's figures.
    fn server(&self) -> ServerStat;

    /// Returns the figures of a batch of disks; empty when there are no more.
    fn stats(&self, batch: Batch<'_>) -> Vec<DiskStat>;

    /// Returns a disk's figures.
    fn stat(&self, name: &str) -> Result<DiskStat, Failure>;

    /// Creates an empty disk.
    fn add(&self, disk: &Add) -> Result<DiskRecord, Failure>;

    /// Serves a file as a read-only disk.
    fn add_base(&self, base: &AddBase) -> Result<DiskRecord, Failure>;

    /// Creates disks with the content of another disk at one instant. Returns them in the order of
    /// `names`.
    fn fork(&self, fork: &Fork) -> Result<Vec<DiskRecord>, Failure>;

    /// Keeps the content of a disk at one instant as a read-only disk.
    fn snapshot(&self, name: &str, snapshot: &str) -> Result<DiskRecord, Failure>;

    /// Restores a disk to one of its snapshots. Fails if it has clients, unless `force` is set.
    fn rollback(&self, name: &str, snapshot: &str, force: bool) -> Result<DiskRecord, Failure>;

    /// Returns the ranges of a disk that have changed since it was created, starting at `offset`,
    /// as many as fit into one answer.
    fn changes(&self, name: &str, offset: u64) -> Result<Changes, Failure>;

    /// Removes a disk with its contents. Its snapshots are removed only if `snapshots` is set. Fails
    /// if any of them has clients, unless `force` is set.
    fn drop(&self, name: &str, snapshots: bool, force: bool) -> Result<Dropped, Failure>;

    /// Changes a disk's size.
    fn resize(&self, resize: &Resize) -> Result<Resized, Failure>;

    /// Renames a disk.
    fn rename(&self, name: &str, to: &str) -> Result<Renamed, Failure>;

    /// Makes a disk read as zeros and frees its memory. Fails if it has clients, unless `force` is
    /// set.
    fn reset(&self, name: &str, force: bool) -> Result<DiskRecord, Failure>;

    /// Sets a disk's limit or, without a name, the server's. `None` removes the limit.
    fn limit(&self, name: Option<&str>, limit_bytes: Option<u64>) -> Result<Limited, Failure>;

    /// Sets the maximum number of NBD connections, at least 1. Connections above it continue.
    fn limit_connections(&self, connections: u64) -> Result<LimitedConnections, Failure>;

    /// Sets the quota of all clients of a disk together. Connected clients stay.
    fn quota(&self, quota: &Quota) -> Result<DiskRecord, Failure>;

    /// Frees the memory in the holes of the disks' storage, for at most about `time`.
    fn compact(&self, time: Duration) -> Result<Compacted, Failure>;

    /// Serves a disk as it is at this instant, until the [`Held`] value is dropped.
    fn freeze(&self, name: &str) -> Result<(Instant, Held), Failure>;

    /// Returns where the data of an instant are stored, starting at a byte: a bounded number of
    /// runs.
    fn frozen_runs(&self, export: &str, offset_bytes: u64) -> Result<FrozenRuns, Failure>;

    /// Serves a disk as a block device, whose open file is `file`. The device can be started when this
    /// returns.
    fn serve_device(&self, device: &NewDevice, file: OwnedFd) -> Result<DiskRecord, Failure>;

    /// Records `why`, if given, as the reason to make no further ublk devices. Returns the last reason.
    fn device_fault(&self, why: Option<String>) -> DeviceFault;

    /// Makes requests of a block device or of a disk's file fail rather than wait for room, and
    /// closes the connections of the process that has connected the device.
    fn end_device(&self, device: &str, pid: Option<u32>) -> DeviceEnding;

    /// Creates an export without a disk. It ends with its last connection.
    fn spare(&self, size_bytes: u64) -> Result<SpareRecord, Failure>;

    /// Binds such an export to a disk.
    fn bind_spare(&self, bind: &BindSpare) -> Result<DiskRecord, Failure>;

    /// Hands everything over to the server at the other end of a socket, which continues with it.
    /// Returns before that begins. `ahead` says whether that server can read the pool while this
    /// one serves.
    fn take_over(&self, socket: OwnedFd, ahead: bool) -> Result<HandingOver, Failure>;

    /// Asks the server to exit, and returns immediately with what it waits for. With `force`, it
    /// does not wait for requests that the disks are working on.
    fn stop(&self, force: bool) -> Stopping;
}

//! Results of commands. `docs/control.md` documents the fields.

use serde::{Deserialize, Serialize};
use serde_json::Map;

/// The first line that a server sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// Name of the program.
    pub name: String,
    /// Version of the protocol. Different versions are incompatible.
    pub protocol: u64,
    /// Version of the program.
    pub version: String,
}

/// The kind of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DiskKind {
    /// Compressed pages in memory.
    #[default]
    Ram,
    /// A read-only file.
    Base,
    /// The content of a disk at one instant, read-only.
    Snapshot,
    /// A kind that only a newer server knows.
    #[serde(other)]
    Other,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    /// Name of its export.
    pub name: String,
    /// Identifies the disk among those of all servers, as long as it exists; empty from a server that
    /// does not say.
    #[serde(default)]
    pub id: String,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Maximum memory of this disk, if it has its own limit.
    pub limit_bytes: Option<u64>,
    /// Whether its clients are kept from changing it.
    pub read_only: bool,
    /// Kind of disk.
    #[serde(default)]
    pub kind: DiskKind,
    /// Path of the base's file, or of the file of the base below the disk.
    #[serde(default)]
    pub path: Option<String>,
    /// Paths or URLs of that file's devices.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Identifies that file and its devices, in the state in which the server opened them.
    #[serde(default)]
    pub identity: Option<String>,
    /// Name of the disk that it was forked from, at the time of the fork.
    #[serde(default)]
    pub from: Option<String>,
    /// The `id` of that disk, which it keeps if it gets another name; `None` from a server that does not
    /// say.
    #[serde(default)]
    pub from_id: Option<String>,
    /// Seconds since it was created.
    #[serde(default)]
    pub age_seconds: u64,
    /// Bytes of the stored pages that the disk itself has written.
    #[serde(default)]
    pub changed_bytes: u64,
    /// Memory that these pages use.
    #[serde(default)]
    pub own_bytes: u64,
    /// Number of its snapshots.
    #[serde(default)]
    pub snapshots: u64,
    /// Number of NBD connections that use it.
    pub clients: u64,
    /// Maximum number of its connections, if it has its own.
    #[serde(default)]
    pub max_connections: Option<u64>,
    /// Maximum rate of its reads and writes.
    #[serde(default)]
    pub bytes_per_second: Option<u64>,
    /// Path of the disk's own socket.
    #[serde(default)]
    pub socket: Option<String>,
    /// Path of the disk as a file, if the server has a directory of them.
    #[serde(default)]
    pub file: Option<String>,
    /// Path of the disk as a block device that the server serves.
    #[serde(default)]
    pub device: Option<String>,
    /// NBD URIs of the disk: of its own socket, then one per address of the server.
    pub uris: Vec<String>,
}

/// All disks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The disks, sorted by name.
    pub disks: Vec<DiskRecord>,
}

/// Whether the kernel's ublk driver can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFault {
    /// What has gone wrong with the driver; `None` if nothing has.
    pub why: Option<String>,
}

/// Whether a block device is about to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceEnding {
    /// Whether the server serves the device.
    pub served: bool,
}

/// An export without a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpareRecord {
    /// Its name.
    pub export: String,
}

/// The server that hands everything over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandingOver {
    /// Its process.
    pub pid: u32,
}

/// Figures by name. Values in bytes have names that end in `_bytes` or are zram's.
pub type Figures = Map<String, serde_json::Value>;

/// Figures of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStat {
    /// Name of its export.
    pub name: String,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Maximum memory of this disk, if it has its own limit.
    pub limit_bytes: Option<u64>,
    /// Kind of disk.
    #[serde(default)]
    pub kind: DiskKind,
    /// Figures of its data and memory, except for a base, and of its clients' requests.
    pub figures: Figures,
}

/// Figures of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStat {
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since the server started to listen.
    pub uptime_seconds: u64,
    /// Codec of all disks.
    pub codec: String,
    /// Number of disks.
    pub disks: u64,
    /// Maximum memory of the server, if it is limited.
    pub limit_bytes: Option<u64>,
    /// Paths of the server's own files, which no output may replace: its log, for example.
    #[serde(default)]
    pub files: Vec<String>,
    /// Figures of the data and memory of all disks together.
    pub figures: Figures,
}

/// Figures of the server and of disks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// The server's figures.
    pub server: ServerStat,
    /// The disks' figures, sorted by name.
    pub disks: Vec<DiskStat>,
}

/// A changed range of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedRange {
    /// Offset of its first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

/// The ranges of a disk that have changed since it was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Name of the disk.
    pub name: String,
    /// Size of the disk.
    pub size_bytes: u64,
    /// The ranges in ascending order. Ranges may be adjacent.
    pub ranges: Vec<ChangedRange>,
    /// Offset at which to continue; `None` at the end of the disk.
    pub next_offset: Option<u64>,
}

/// Result of removing a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// The disk as it was.
    #[serde(flatten)]
    pub disk: DiskRecord,
    /// Number of disks that still read the file of the removed base.
    #[serde(default)]
    pub file_users: u64,
}

/// Result of resizing a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    /// Name of the disk.
    pub name: String,
    /// Previous size.
    pub before_bytes: u64,
    /// New size.
    pub size_bytes: u64,
}

/// Result of renaming a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renamed {
    /// Previous name.
    pub before: String,
    /// New name.
    pub name: String,
    /// New NBD URIs.
    pub uris: Vec<String>,
}

/// Result of setting or removing a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limited {
    /// Name of the disk; `None` for the server's limit.
    pub name: Option<String>,
    /// Previous limit.
    pub before_bytes: Option<u64>,
    /// New limit.
    pub limit_bytes: Option<u64>,
    /// Memory that counts against the limit now. If it is more than the limit, data are kept, and
    /// writes that need more memory fail or wait.
    #[serde(default)]
    pub spent_bytes: u64,
    /// Why the new limit may not work as expected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Result of setting the maximum number of connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitedConnections {
    /// Previous maximum.
    pub before: u64,
    /// New maximum.
    pub connections: u64,
    /// Why not all of them may be possible.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Result of compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compacted {
    /// Memory of all disks before.
    pub before_bytes: u64,
    /// Memory of all disks afterwards. It may be larger if clients wrote in the meantime.
    pub after_bytes: u64,
    /// Whether the time ran out before everything was done.
    pub more: bool,
}

/// A disk as it was at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instant {
    /// Name of the disk.
    pub name: String,
    /// Name of the export that serves the instant until the connection that requested it ends.
    pub export: String,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Paths of the server's Unix sockets for NBD.
    pub sockets: Vec<String>,
    /// The server's TCP addresses for NBD.
    pub addresses: Vec<String>,
    /// The file below the disk, if there is one.
    #[serde(default)]
    pub base: Option<BaseRecord>,
}

/// The file below a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseRecord {
    /// Path of the file when the server opened it.
    pub path: String,
    /// Path of the file inside an EROFS image, unless it is the image's only file.
    #[serde(default)]
    pub inside: Option<String>,
    /// Paths of the files that hold data of the EROFS image at `path`.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Format of the file at `path`.
    pub format: String,
    /// Identifies the file at `path`, in the state in which the server opened it.
    pub identity: String,
}

/// The runs of stored data in an instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenRuns {
    /// Consecutive runs, starting at the requested byte.
    pub runs: Vec<FrozenRun>,
    /// Offset at which to continue; `None` if the runs reach the end of the disk.
    pub next_bytes: Option<u64>,
}

/// A run of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenRun {
    /// Length in bytes, at least 1.
    pub len_bytes: u64,
    /// Where its data are stored.
    pub stored: Stored,
}

/// The source of a run's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stored {
    /// Pages that were written.
    Own,
    /// Zeros that were written, or a discarded range.
    OwnZeros,
    /// Data of the base.
    Base,
    /// Zeros of the base, or beyond its end.
    BaseZeros,
}

/// The requests that a stopping server waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {
    /// Disks that are working on requests.
    #[serde(default)]
    pub waits_for: Vec<BusyDisk>,
}

/// A disk that is working on requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyDisk {
    /// Name of the disk.
    pub name: String,
    /// Kind of disk.
    pub kind: DiskKind,
    /// The file of the base: of this disk, or of the base below it.
    pub path: Option<String>,
    /// Number of requests.
    pub requests: u64,
}

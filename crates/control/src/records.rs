//! What commands answer. The fields are those of `docs/control.md`.

use serde::{Deserialize, Serialize};
use serde_json::Map;

/// The first line that a server sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// The program.
    pub name: String,
    /// The protocol's version: another number is another protocol.
    pub protocol: u64,
    /// The program's version.
    pub version: String,
}

/// What a disk is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DiskKind {
    /// Compressed pages in memory.
    #[default]
    Ram,
    /// A file that is only read.
    Base,
    /// What a disk held at one instant, which is only read.
    Snapshot,
    /// Something that a newer server has.
    #[serde(other)]
    Other,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    /// The name of its export.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// The most memory that it may take, if it has a limit of its own.
    pub limit_bytes: Option<u64>,
    /// Its clients may not change it.
    pub read_only: bool,
    /// What it is made of.
    #[serde(default)]
    pub kind: DiskKind,
    /// A base's file, or that of the base which lies below the disk.
    #[serde(default)]
    pub path: Option<String>,
    /// What it was forked from, as that was named then.
    #[serde(default)]
    pub from: Option<String>,
    /// Seconds since it was made.
    #[serde(default)]
    pub age_seconds: u64,
    /// Bytes of the pages that it wrote itself, as far as they are kept.
    #[serde(default)]
    pub changed_bytes: u64,
    /// Memory for these.
    #[serde(default)]
    pub own_bytes: u64,
    /// How many snapshots it has.
    #[serde(default)]
    pub snapshots: u64,
    /// NBD connections that use it.
    pub clients: u64,
    /// Where NBD clients find it, one for each address of the server.
    pub uris: Vec<String>,
}

/// All disks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// By name.
    pub disks: Vec<DiskRecord>,
}

/// Figures by name. Those that are bytes end in `_bytes` or are zram's.
pub type Figures = Map<String, serde_json::Value>;

/// Figures of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStat {
    /// The name of its export.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// The most memory that it may take, if it has a limit of its own.
    pub limit_bytes: Option<u64>,
    /// What it is made of.
    #[serde(default)]
    pub kind: DiskKind,
    /// What it holds and takes; nothing for a base.
    pub figures: Figures,
}

/// Figures of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStat {
    /// The program's version.
    pub version: String,
    /// The process.
    pub pid: u32,
    /// Seconds since the server listens.
    pub uptime_seconds: u64,
    /// The codec of all disks.
    pub codec: String,
    /// How many disks there are.
    pub disks: u64,
    /// The most memory that the server may take, if it is limited.
    pub limit_bytes: Option<u64>,
    /// What all disks together hold and take.
    pub figures: Figures,
}

/// Figures of the server and of disks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// The server's.
    pub server: ServerStat,
    /// By name.
    pub disks: Vec<DiskStat>,
}

/// A stretch of a disk that was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedRange {
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub len_bytes: u64,
}

/// Where a disk was changed since it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The disk.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// In order. One may begin where the one before ends.
    pub ranges: Vec<ChangedRange>,
    /// Where to go on; `None` when this was all.
    pub next_offset: Option<u64>,
}

/// A disk is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// As it was.
    #[serde(flatten)]
    pub disk: DiskRecord,
    /// Disks that go on reading the file of a base that was dropped.
    #[serde(default)]
    pub file_users: u64,
}

/// A disk has another size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    /// The disk.
    pub name: String,
    /// The size it had.
    pub before_bytes: u64,
    /// The size it has.
    pub size_bytes: u64,
}

/// A disk has another name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renamed {
    /// The name it had.
    pub before: String,
    /// The name it has.
    pub name: String,
    /// Where NBD clients find it now.
    pub uris: Vec<String>,
}

/// A limit is set or gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limited {
    /// The disk; the server's limit has none.
    pub name: Option<String>,
    /// The limit there was.
    pub before_bytes: Option<u64>,
    /// The limit there is.
    pub limit_bytes: Option<u64>,
}

/// What compaction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compacted {
    /// All memory of the disks before.
    pub before_bytes: u64,
    /// And afterwards; it can be more when clients wrote meanwhile.
    pub after_bytes: u64,
    /// The time was up before all was done.
    pub more: bool,
}

/// A disk as it was at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instant {
    /// The disk.
    pub name: String,
    /// The name of the export that serves the instant, until the connection that asked for it ends.
    pub export: String,
    /// Its size.
    pub size_bytes: u64,
    /// The server's Unix sockets for NBD.
    pub sockets: Vec<String>,
    /// Its TCP addresses for NBD.
    pub addresses: Vec<String>,
    /// The file below the disk, if there is one.
    #[serde(default)]
    pub base: Option<BaseRecord>,
}

/// The file below a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseRecord {
    /// Where it was when the server opened it.
    pub path: String,
    /// The path of the file in an EROFS image, unless it is the only one.
    #[serde(default)]
    pub inside: Option<String>,
    /// What the file at `path` holds.
    pub format: String,
    /// Tells whether the file at `path` is the one that the server opened, as it was then.
    pub identity: String,
}

/// What lies where in an instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenRuns {
    /// One after the other from the byte that was asked for.
    pub runs: Vec<FrozenRun>,
    /// Where to ask on; nothing if the runs reach the disk's end.
    pub next_bytes: Option<u64>,
}

/// A stretch of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenRun {
    /// Its bytes, at least 1.
    pub len_bytes: u64,
    /// What is there.
    pub stored: Stored,
}

/// What a stretch of a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stored {
    /// Pages that were written.
    Own,
    /// Zeros that were written, or what was discarded.
    OwnZeros,
    /// What the base has.
    Base,
    /// Zeros of the base, or beyond its end.
    BaseZeros,
}

/// It was done, and there is nothing to say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

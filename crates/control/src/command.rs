//! Commands to a server. `docs/control.md` documents the fields.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A command with its fields. A disk's name is the name of its NBD export. Sizes and limits are in
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Command {
    /// Lists the disks and their addresses.
    List {},
    /// Returns figures of the server and its disks, or of one disk.
    Stat {
        /// Restricts the answer to this disk.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Creates an empty disk.
    Add(Add),
    /// Serves a file on the server's machine as a read-only disk.
    AddBase(AddBase),
    /// Creates disks with the content of another.
    Fork(Fork),
    /// Keeps the current content of a disk under a name.
    Snapshot {
        /// Name of the disk.
        name: String,
        /// Name of the snapshot, unique among those of the disk.
        snapshot: String,
    },
    /// Restores a disk to one of its snapshots. Its clients stay connected.
    Rollback {
        /// Name of the disk.
        name: String,
        /// Name of the snapshot, unique among those of the disk.
        snapshot: String,
        /// Whether to do it although the disk has clients.
        #[serde(default)]
        force: bool,
    },
    /// Returns the ranges of a disk that have changed since it was created.
    Changes {
        /// Name of the disk.
        name: String,
        /// Offset at which to start.
        #[serde(default)]
        offset: u64,
    },
    /// Removes a disk with its contents. Requests of its clients fail.
    #[serde(alias = "remove")]
    Drop {
        /// Name of the disk.
        name: String,
        /// Whether to remove its snapshots too.
        #[serde(default)]
        snapshots: bool,
        /// Whether to do it although the disk has clients.
        #[serde(default)]
        force: bool,
    },
    /// Changes a disk's size.
    Resize(Resize),
    /// Renames a disk. Its clients stay connected.
    Rename {
        /// Current name.
        name: String,
        /// New name.
        to: String,
    },
    /// Makes a disk read as zeros and frees its memory.
    Reset {
        /// Name of the disk.
        name: String,
        /// Whether to do it although the disk has clients.
        #[serde(default)]
        force: bool,
    },
    /// Sets or removes a memory limit.
    Limit {
        /// Applies to this disk's limit instead of the server's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// New limit, or `null` for none. The field is mandatory.
        #[serde(deserialize_with = "Option::deserialize")]
        limit_bytes: Option<u64>,
    },
    /// Sets the maximum number of NBD connections.
    LimitConnections {
        /// The new maximum, at least 1.
        connections: u64,
    },
    /// Sets the quota of all clients of a disk together.
    Quota(Quota),
    /// Frees the memory in the holes of the disks' storage.
    Compact {
        /// Maximum duration in seconds.
        #[serde(default = "compact_seconds")]
        seconds: u64,
    },
    /// Serves a disk as it is at this instant, read-only, until the connection that requested it
    /// ends.
    Freeze {
        /// Name of the disk.
        name: String,
    },
    /// Returns which parts of such an instant are stored, and where.
    FrozenRuns {
        /// Name of the instant's export.
        export: String,
        /// Offset at which to start.
        #[serde(default)]
        offset_bytes: u64,
    },
    /// Serves a disk as a block device of the kernel's ublk driver, whose open file comes with the request.
    ServeDevice(NewDevice),
    /// Returns why no further devices of that driver should be made.
    DeviceFault {
        /// A new reason to record: what has gone wrong.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// Makes requests of a block device fail rather than wait for room, so that the kernel can end
    /// the device.
    EndDevice {
        /// The device's path, or that of the file below a loop device.
        device: String,
        /// The process that has connected it, if it is an NBD device that was not spare: its connections
        /// are closed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
    },
    /// Makes an export of this size that is not yet a disk's, so that a block device can be connected to
    /// it in advance.
    Spare {
        /// Size of the disks that it fits, a multiple of 512 and not 0.
        size_bytes: u64,
    },
    /// Binds such an export to a disk.
    BindSpare(BindSpare),
    /// Hands everything over to another server, one of whose sockets comes with the request.
    TakeOver {
        /// Whether the other server can read the pool while this one serves.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ahead: bool,
    },
    /// Stops the server in an orderly way. If it is stopping already, says what it waits for.
    Stop {
        /// Whether to end without waiting for requests that the disks are working on.
        #[serde(default)]
        force: bool,
    },
}

/// A disk to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Add {
    /// Name, not used by any other disk.
    pub name: String,
    /// Size, a multiple of 512 and not 0.
    pub size_bytes: u64,
    /// Maximum memory of the disk.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// Whether its clients are kept from changing it.
    #[serde(default)]
    pub read_only: bool,
    /// A Unix socket on which only this disk is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<DiskSocket>,
    /// The bounds for all clients of the disk together.
    #[serde(default, skip_serializing_if = "DiskQuota::is_none")]
    pub quota: DiskQuota,
}

impl Add {
    /// Describes a disk without a limit and without a quota.
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Self {
        Self {
            name: name.into(),
            size_bytes,
            limit_bytes: None,
            read_only: false,
            socket: None,
            quota: DiskQuota::default(),
        }
    }
}

/// A new size for a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Name of the disk.
    pub name: String,
    /// New size, a multiple of 512 and not 0.
    pub size_bytes: u64,
    /// Allows a smaller size. Data past the new end are lost.
    #[serde(default)]
    pub shrink: bool,
    /// Whether to shrink it although it has clients.
    #[serde(default)]
    pub force: bool,
}

/// Disks to create by forking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    /// Name of the base, disk or snapshot whose content they start with.
    pub from: String,
    /// Names of the new disks, not used by any other disk.
    pub names: Vec<String>,
    /// Maximum memory of each disk.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// Whether their clients are kept from changing them.
    #[serde(default)]
    pub read_only: bool,
    /// A Unix socket on which only the new disk is served; `names` must have one name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<DiskSocket>,
    /// The bounds for all clients of each fork together.
    #[serde(default, skip_serializing_if = "DiskQuota::is_none")]
    pub quota: DiskQuota,
}

impl Fork {
    /// Describes writable forks without a limit and without a quota.
    pub fn new<N: Into<String>>(from: impl Into<String>, names: impl IntoIterator<Item = N>) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        Self {
            from: from.into(),
            names,
            limit_bytes: None,
            read_only: false,
            socket: None,
            quota: DiskQuota::default(),
        }
    }
}

/// A base to serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddBase {
    /// Name, not used by any other disk.
    pub name: String,
    /// Absolute path of the file, or of an EROFS image that contains it.
    pub path: String,
    /// Path of the file inside the image. Without it, the image must contain a single file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<String>,
    /// Absolute paths of the files that hold data of the EROFS image at `path`, in the order of its
    /// device table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Format of the file at `path`. Without it, the format is derived from the file's content and
    /// name, which must agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// A Unix socket on which only this disk is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<DiskSocket>,
    /// The bounds for all clients of the disk together.
    #[serde(default, skip_serializing_if = "DiskQuota::is_none")]
    pub quota: DiskQuota,
}

/// A block device of the kernel's ublk driver that waits for a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewDevice {
    /// Name of the disk.
    pub name: String,
    /// The device's number.
    pub number: u32,
    /// Number of its queues.
    pub queues: u16,
    /// Requests of a queue.
    pub depth: u16,
}

/// An export to bind to a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BindSpare {
    /// Name of the export.
    pub export: String,
    /// Name of the disk, which has the export's size and is not read-only.
    pub name: String,
    /// Path of the block device that is connected to it.
    pub device: String,
}

/// The bounds for all clients of a disk together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Name of the disk.
    pub name: String,
    /// Maximum number of connections, at least 1; `null` for no maximum of its own.
    #[serde(deserialize_with = "Option::deserialize")]
    pub connections: Option<u64>,
    /// Maximum rate of reads and writes, at least 65536; `null` for none. A request counts as at least
    /// 4096 bytes.
    #[serde(deserialize_with = "Option::deserialize")]
    pub bytes_per_second: Option<u64>,
}

/// The quota that a disk has from its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskQuota {
    /// Maximum number of connections, at least 1; by default, there is no maximum of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Maximum rate of reads and writes, at least 65536; none by default. A request counts as at least
    /// 4096 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
}

impl DiskQuota {
    /// Returns whether this quota limits nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for DiskQuota {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.connections {
            None => write!(out, "any number of connections")?,
            Some(1) => write!(out, "at most 1 connection")?,
            Some(most) => write!(out, "at most {most} connections")?,
        }
        match self.bytes_per_second {
            None => write!(out, " and any rate"),
            Some(rate) => write!(out, " and {}/s", pagefold_size::written(rate)),
        }
    }
}

impl Quota {
    /// Returns the new quota without the disk's name.
    pub fn of_disk(&self) -> DiskQuota {
        DiskQuota { connections: self.connections, bytes_per_second: self.bytes_per_second }
    }
}

/// A Unix socket of one disk. It is removed with the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSocket {
    /// Absolute path.
    pub path: String,
    /// Mode of its file in octal digits; 600 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Name or number of the group of its file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// Returns the default duration of `compact`: shorter than most clients wait for an answer.
fn compact_seconds() -> u64 {
    5
}

//! What a server can be told. The fields are those of `docs/control.md`.

use serde::{Deserialize, Serialize};

/// A command with its fields. A disk's name is the name of its NBD export; sizes and limits are in
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Command {
    /// The disks, and where they are served.
    List {},
    /// Figures of the server and of its disks, or of one disk.
    Stat {
        /// The one disk.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Makes an empty disk.
    Add(Add),
    /// Serves a file of the server's machine as a disk that is only read.
    AddBase(AddBase),
    /// Makes disks that hold what another does.
    Fork(Fork),
    /// Keeps what a disk holds, under a name.
    Snapshot {
        /// The disk.
        name: String,
        /// What the snapshot is called among those of the disk.
        snapshot: String,
    },
    /// Makes a disk hold what a snapshot of it does. Its clients stay connected.
    Rollback {
        /// The disk.
        name: String,
        /// What the snapshot is called among those of the disk.
        snapshot: String,
    },
    /// Tells where a disk was changed since it was made.
    Changes {
        /// The disk.
        name: String,
        /// From this byte on.
        #[serde(default)]
        offset: u64,
    },
    /// Removes a disk with its contents. Its clients get an error.
    #[serde(alias = "remove")]
    Drop {
        /// Which.
        name: String,
        /// Its snapshots go too.
        #[serde(default)]
        snapshots: bool,
    },
    /// Changes a disk's size.
    Resize {
        /// Which.
        name: String,
        /// The new size, a multiple of 512, not 0.
        size_bytes: u64,
        /// The size may become smaller; what lies past the new end is lost.
        #[serde(default)]
        shrink: bool,
    },
    /// Gives a disk another name. Its clients stay connected.
    Rename {
        /// The name it has.
        name: String,
        /// The name it gets.
        to: String,
    },
    /// Makes a disk read as zeros and gives its memory back.
    Reset {
        /// Which.
        name: String,
    },
    /// Sets or takes away a limit of memory.
    Limit {
        /// The disk's limit instead of the server's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The limit, or none. It must be said.
        #[serde(deserialize_with = "Option::deserialize")]
        limit_bytes: Option<u64>,
    },
    /// Gives back what memory the disks' holes take.
    Compact {
        /// For how long at most.
        #[serde(default = "compact_seconds")]
        seconds: u64,
    },
    /// Serves a disk as it is at this instant, read-only, until the connection that asks for it
    /// ends.
    Freeze {
        /// Which.
        name: String,
    },
    /// Tells what of such an instant is stored, and where.
    FrozenRuns {
        /// Its export.
        export: String,
        /// From this byte on.
        #[serde(default)]
        offset_bytes: u64,
    },
    /// Ends the server, in an orderly way.
    Stop {},
}

/// A disk to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Add {
    /// Its name, which no other disk has.
    pub name: String,
    /// Its size, a multiple of 512, not 0.
    pub size_bytes: u64,
    /// The most memory that it may take.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// Its clients may not change it.
    #[serde(default)]
    pub read_only: bool,
}

/// Disks to make by forking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    /// The base, the disk or the snapshot that they begin as.
    pub from: String,
    /// Their names, which no other disks have.
    pub names: Vec<String>,
    /// The most memory that each of them may take.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// Their clients may not change them.
    #[serde(default)]
    pub read_only: bool,
}

/// A base to serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddBase {
    /// Its name, which no other disk has.
    pub name: String,
    /// The absolute path of the file, or of an EROFS image that holds it.
    pub path: String,
    /// The path of the file in the image. Without it the image holds a single file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<String>,
    /// What the file at `path` holds. Without it the content and the name of the file tell, and
    /// must agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

/// How long `compact` works if it is not said: less than most clients wait for an answer.
fn compact_seconds() -> u64 {
    5
}

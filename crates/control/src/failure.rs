//! Reasons why a command failed.

use serde::{Deserialize, Serialize};

/// A failed command: a code for programs and a message for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct Failure {
    /// Kind of error.
    pub code: Code,
    /// What is wrong, and what to do.
    pub message: String,
}

/// Kinds of errors. More may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Code {
    /// The line is not a valid request: not JSON, or a field is missing, unknown or of the wrong
    /// type.
    InvalidRequest,
    /// The line is too long or arrives too slowly. The connection ends.
    TooMuch,
    /// No command has this name.
    UnknownCommand,
    /// No disk has this name.
    NoSuchDisk,
    /// Another disk has this name.
    NameInUse,
    /// The name is too long for NBD, contains control characters or others that are not shown, or
    /// uses the reserved `@`.
    InvalidName,
    /// The size is 0, not a multiple of 512, or larger than a disk can be.
    InvalidSize,
    /// The new size is smaller, and `shrink` is not set.
    WouldShrink,
    /// The disk has snapshots, and `snapshots` is not set.
    HasSnapshots,
    /// The file cannot be opened as a base.
    InvalidBase,
    /// Clients use the disk, and `force` is not set.
    InUse,
    /// The disk is a base or a snapshot, and therefore read-only.
    ReadOnly,
    /// The disk's socket cannot be created.
    InvalidSocket,
    /// The limit is below what a single page takes.
    InvalidLimit,
    /// The system or the limit leaves too little memory.
    NoMemory,
    /// The client does not belong to the server's user. The connection ends.
    NotAllowed,
    /// Another client is already doing this, or too many clients are connected.
    Busy,
    /// Anything else.
    Failed,
    /// A code that only a newer server knows.
    #[serde(other)]
    Other,
}

impl Failure {
    /// Creates a failure of this kind.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Creates the failure for a missing disk.
    pub fn no_such_disk(name: &str) -> Self {
        Self::new(Code::NoSuchDisk, format!("no disk named '{name}'"))
    }

    /// Creates the failure for a disk, named for a person, that has this number of clients.
    pub fn in_use(disk: &str, clients: u64) -> Self {
        let (count, them) = if clients == 1 { ("1 client", "it") } else { (&*format!("{clients} clients"), "them") };
        Self::new(Code::InUse, format!("{disk} has {count}: disconnect {them} first, or set force (--force)"))
    }

    /// Creates the failure for a name that another disk has.
    pub fn name_in_use(name: &str) -> Self {
        Self::new(
            Code::NameInUse,
            format!("a disk named '{name}' already exists: choose another name, or drop that disk"),
        )
    }
}

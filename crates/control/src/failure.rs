//! Why a command was not done.

use serde::{Deserialize, Serialize};

/// A code for programs, a message for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct Failure {
    /// What kind of error it is.
    pub code: Code,
    /// What is wrong and what to do.
    pub message: String,
}

/// The kinds of errors. More may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Code {
    /// The line is not a request: not JSON, a field is missing, unknown or of the wrong kind.
    InvalidRequest,
    /// The line is too long, or comes too slowly; the connection ends.
    TooMuch,
    /// No command has this name.
    UnknownCommand,
    /// No disk has this name.
    NoSuchDisk,
    /// Another disk has this name.
    NameInUse,
    /// Too long for NBD, or with control characters.
    InvalidName,
    /// 0, not a multiple of 512, or more than a disk can have.
    InvalidSize,
    /// The size would become smaller, and `shrink` is not set.
    WouldShrink,
    /// The disk has snapshots, and `snapshots` is not set.
    HasSnapshots,
    /// The file cannot be opened as a base.
    InvalidBase,
    /// The disk is a base or a snapshot, which is only read.
    ReadOnly,
    /// Below what is needed for a page or for what is stored.
    InvalidLimit,
    /// The system or the limit leaves no memory for it.
    NoMemory,
    /// The client is not of the server's user; the connection ends.
    NotAllowed,
    /// Somebody else does it now, or too many clients are connected.
    Busy,
    /// Anything else.
    Failed,
    /// A code of a newer server.
    #[serde(other)]
    Other,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// No disk has this name.
    pub fn no_such_disk(name: &str) -> Self {
        Self::new(Code::NoSuchDisk, format!("no disk named '{name}'"))
    }

    /// Another disk has this name.
    pub fn name_in_use(name: &str) -> Self {
        Self::new(
            Code::NameInUse,
            format!("a disk named '{name}' already exists: choose another name, or drop that disk"),
        )
    }
}

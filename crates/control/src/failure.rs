//! Reasons why a command failed.

use serde::{Deserialize, Serialize};

/// A failed command: a code for programs and a message for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct Failure {
    /// Kind of error.
    pub code: Code,
    /// The fault, and what to do.
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

/// The maximum number of names that a message lists.
const NAMES: usize = 6;

/// Returns words that list names, those first that share the longest beginning with `name`.
fn among<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let alike = |other: &str| name.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let mut known: Vec<_> = known.collect();
    known.sort_by_key(|other| (std::cmp::Reverse(alike(other)), other.len()));
    let names: Vec<_> = known.iter().take(NAMES).map(|name| format!("'{name}'")).collect();
    match (names.len(), known.len().saturating_sub(NAMES)) {
        (0, _) => "; there is none".to_owned(),
        (1, 0) => format!("; there is only {}", names[0]),
        (_, 0) => format!("; there are {}", names.join(", ")),
        (_, more) => format!("; there are {} and {more} more", names.join(", ")),
    }
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

    /// Creates the failure for a missing disk, and names a few of those that exist, the most similar
    /// first.
    pub fn no_disk_among<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let failure = Self::no_such_disk(name);
        Self { message: format!("{}{}", failure.message, among(name, known)), ..failure }
    }

    /// Creates the failure for a missing snapshot of a disk, and names a few of those that exist.
    pub fn no_snapshot_among<'a>(disk: &str, snapshot: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let names = among(snapshot, known);
        Self::new(Code::NoSuchDisk, format!("disk '{disk}' has no snapshot '{snapshot}'{names}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_exist_are_named() {
        let message = |known: &[&str]| Failure::no_disk_among("job-7", known.iter().copied()).message;
        assert_eq!(message(&[]), "no disk named 'job-7'; there is none");
        assert_eq!(message(&["a"]), "no disk named 'job-7'; there is only 'a'");
        assert_eq!(message(&["a", "job-1", "jb"]), "no disk named 'job-7'; there are 'job-1', 'jb', 'a'");
        let many: Vec<_> = (0..100).map(|number| format!("disk-{number}")).collect();
        let known: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(message(&known).ends_with("'disk-5' and 94 more"), "{}", message(&known));
        let message = Failure::no_snapshot_among("a", "x", ["before"].into_iter()).message;
        assert_eq!(message, "disk 'a' has no snapshot 'x'; there is only 'before'");
    }
}

//! A pool as a stream of bytes, from which another process, possibly of another version, creates a
//! pool with the same content. The stream has objects as they are, shared parts once, and layers.
//!
//! ```text
//! stream   "pagefold", blocks: header, tables, leaves, nodes, disks, hints, end
//!          or header, tables, for each round: leaves, more, nodes, hints, round
//!             and then leaves, more, nodes, disks, end
//! block    kind: 2 │ flags: 2 │ len: 4 │ check: 4 │ len bytes
//! header   page bytes: 4 │ slots of a leaf: 4 │ mem_used_max: 8 │ trainings: 8 │ useless: 8 │
//!          gain: 8 │ age: 8 │ stride: 4 │ codec's name: length (2), text │ seeds of hints: 8, 8
//! tables   number: 1 │ bytes of the codec
//! leaves   for each: layer: 4 │ 64 tags │ for each entry:
//!            0 empty │ 1 hole │ 2 same: word (8) │ 3 object: length − 1 (2), bytes │ 4 raw: a page
//!            5 link: leaf (4) │ 6 shared: length − 1 (2), leaf (4), index (1)
//!          The upper half of an object's tag is the number of its tables.
//! more     for each: leaf: 4 │ count: 1 │ for each entry: index (1), tag (1), as in a leaf
//! nodes    for each: layer: 4 │ level: 1 │ count: 1 │ for each place: index (1), part (4)
//! disks    for each: len: 4 │ slots: 8 │ limit: 8 │ flags: 4 │ root: kind (1), level (1), node (4) │
//!          layer: 4 │ count: 4, earlier layers: 4 each │ length of the note: 4, note
//! hints    hash: 4 │ for each: bits of the hash (8), leaf (4), index (1)     may be skipped
//! round    leaves: 4 │ nodes: 4 │ objects: 8
//! end      leaves: 4 │ nodes: 4 │ disks: 4 │ objects: 8 │ mem_used_max: 8
//! ```
//!
//! Numbers are little-endian. Leaves and nodes are numbered in the order of the stream, layers in
//! the order in which they first occur; layer 0 is that of the pool's own entries (`common.rs`). A
//! node comes after the parts that it names, and names none of a higher level. Of a leaf that is in
//! no tree, a stream has only the entries that others refer to.
//!
//! **Rounds.** A stream may begin while the disks are in use ([`Precopy`]): each round has the
//! disks' parts at some instant, without those that an earlier round has written. After the rounds,
//! the stream has the disks, whose nodes name parts of all rounds. The page of a written entry does
//! not change until the end, but the entry may get other tables or become shared (`precopy.rs`). So
//! a reader takes an entry once, and a block of `more` only fills empty entries. At the end, parts
//! that belong to no disk are freed.
//!
//! **Versions.** A reader ignores what follows the fields that it knows in a header, a disk's record
//! or the end, and blocks of unknown kinds with the flag [`MAY_SKIP`]. It refuses other unknown
//! kinds.
//!
//! **Untrusted input.** The stream has no counts of references: the reader counts. It allocates
//! memory only as bytes arrive, takes the pool's memory within the limit, and checks what the trees
//! rely on (`import.rs`) before it creates a disk. The check of a block is the CRC-32C of
//! everything up to its end, so that no block can be lost or exchanged by accident. The bytes of
//! objects are checked when they are decoded, as always.

mod blocks;
mod export;
mod import;
mod precopy;
mod salvage;
mod shadows;

use std::io;

use crate::{
    disk::Disk,
    pool::{NewPoolError, Pool},
};

pub use self::{
    precopy::Precopy,
    salvage::{KeptDisk, Salvage, SalvageError},
};

/// The first bytes of a stream.
const MAGIC: [u8; 8] = *b"pagefold";

/// The kinds of blocks.
const HEADER: u16 = 1;
const TABLES: u16 = 2;
const LEAVES: u16 = 3;
const NODES: u16 = 4;
const DISKS: u16 = 5;
const HINTS: u16 = 6;
const ROUND: u16 = 7;
const MORE: u16 = 8;
const END: u16 = 0xffff;

/// The flag of a block that a reader which does not know its kind may skip.
const MAY_SKIP: u16 = 1;

/// The hash of pages in hints: the low bits of foldhash's, version 0.2.
const HASH: u32 = 1;

/// The maximum size of a note in bytes.
const NOTE_MAX: usize = 64 << 10;

/// The tags of entries.
const EMPTY: u8 = 0;
const HOLE: u8 = 1;
const SAME: u8 = 2;
const OBJECT: u8 = 3;
const RAW: u8 = 4;
const LINK: u8 = 5;
const SHARED: u8 = 6;

/// The kinds of roots, and the part of a place that is a hole.
const NO_ROOT: u8 = 0;
const HOLE_ROOT: u8 = 1;
const NODE_ROOT: u8 = 2;
const HOLE_PART: u32 = u32::MAX;

/// The flag of a disk whose discarded slots become holes.
const OVER: u32 = 1;

/// A disk to be exported.
#[derive(Clone, Copy, Debug)]
pub struct ExportedDisk<'a> {
    /// The disk.
    pub disk: &'a Disk,
    /// Data that the importer gets with the disk, at most 64 KiB.
    pub note: &'a [u8],
}

/// A disk of an imported pool.
#[derive(Debug)]
#[non_exhaustive]
pub struct ImportedDisk {
    /// The disk.
    pub disk: Disk,
    /// The note that was exported with it.
    pub note: Vec<u8>,
}

/// A pool made from a stream, and its disks, in the order in which they were exported.
#[derive(Debug)]
#[non_exhaustive]
pub struct ImportedPool {
    /// The pool.
    pub pool: Pool,
    /// All its disks.
    pub disks: Vec<ImportedDisk>,
}

/// Why a pool could not be exported. It is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The stream cannot be written.
    #[error("cannot write the stream of a pool: {0}")]
    Write(#[source] io::Error),
    /// A thread changed a disk during the export.
    #[error("the pool was changed during its export")]
    Changed,
    /// The pool needed the memory that the rounds kept, it has another [`Precopy`], or the stream
    /// is complete.
    #[error("the pool needs the memory that its stream holds")]
    Ended,
    /// A disk is of another pool, or clean.
    #[error("disk {number} of the export is of another pool, or only caches what is elsewhere")]
    NotOfPool {
        /// The index of the disk.
        number: usize,
    },
    /// A note is longer than 64 KiB.
    #[error("the note of disk {number} has {len_bytes} bytes, at most 65536 are possible")]
    LongNote {
        /// The index of the disk.
        number: usize,
        /// The length of the note.
        len_bytes: usize,
    },
}

/// Why no pool could be made from a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The stream cannot be read.
    #[error("cannot read the stream of a pool: {0}")]
    Read(#[source] io::Error),
    /// The stream is damaged, of an unknown version, or not a pool's.
    #[error("invalid stream of a pool: {what}")]
    Invalid {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The pool's objects are those of another codec.
    #[error("the pool's objects are of the codec '{stored}', not of '{asked}'")]
    OtherCodec {
        /// The codec of the objects.
        stored: String,
        /// The codec asked for.
        asked: String,
    },
    /// The pool cannot be created.
    #[error(transparent)]
    NewPool(#[from] NewPoolError),
    /// The pool needs more memory than the limit allows.
    #[error("the memory limit leaves no room for the pool's content")]
    Full,
}

impl ImportError {
    fn invalid(what: &'static str) -> Self {
        Self::Invalid { what }
    }
}

impl From<crate::limit::Full> for ImportError {
    fn from(_: crate::limit::Full) -> Self {
        Self::Full
    }
}

//! Extents of compressed files: the location of their content, and the fields of encoded extents.

use pagefold_codec::cluster::ClusterFormat;

/// The longest physical cluster.
pub(crate) const MAX_PCLUSTER_BYTES: u64 = 1 << 20;
/// The longest content of a physical cluster.
pub(crate) const MAX_EXTENT_BYTES: u64 = 12 << 20;
/// The bits of an encoded extent's `plen` that hold the cluster's length.
pub(crate) const EXTENT_PLEN_MASK: u32 = (1 << 21) - 1;
/// The extent is only a prefix of the cluster's content.
pub(crate) const EXTENT_PARTIAL: u32 = 1 << 27;
/// From this bit on: 0 for plain, else the algorithm plus one.
pub(crate) const EXTENT_FORMAT_SHIFT: u32 = 28;

/// The location of an extent's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Uncompressed bytes in one physical cluster.
    Plain {
        pa: u64,
        plen: u32,
        /// The content starts at its own offset within a block and wraps around.
        interlaced: bool,
    },
    /// Compressed bytes.
    Encoded {
        pa: u64,
        plen: u32,
        format: ClusterFormat,
        /// The extent is a prefix of the cluster's content.
        partial: bool,
    },
    /// A range of the packed inode.
    Fragment { offset: u64 },
    /// Not stored: any number of zeros.
    Hole,
}

/// A run of a file's bytes that is stored as a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Offset in the file.
    pub(crate) start: u64,
    /// The length in bytes, at least 1.
    pub(crate) len: u64,
    pub(crate) place: Place,
}

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Returns whether the content must be decoded.
    pub(crate) fn is_encoded(&self) -> bool {
        matches!(self.place, Place::Encoded { .. })
    }
}

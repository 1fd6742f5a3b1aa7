//! Extents of compressed files: where their content lies, and what encoded ones say of it.

use pagefold_codec::cluster::ClusterFormat;

/// The longest physical cluster.
pub(crate) const MAX_PCLUSTER_BYTES: u64 = 1 << 20;
/// The longest content of a physical cluster.
pub(crate) const MAX_EXTENT_BYTES: u64 = 12 << 20;
/// Bits of an encoded extent's `plen` that are the cluster's length.
pub(crate) const EXTENT_PLEN_MASK: u32 = (1 << 21) - 1;
/// Its cluster decodes to more.
pub(crate) const EXTENT_PARTIAL: u32 = 1 << 27;
/// From this bit on: 0 for plain, else the algorithm and one.
pub(crate) const EXTENT_FORMAT_SHIFT: u32 = 28;

/// Where an extent's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Bytes as they are, in one physical cluster.
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
        /// The extent is a prefix of what the cluster decodes to.
        partial: bool,
    },
    /// A range of the packed inode.
    Fragment { offset: u64 },
    /// Nowhere: zeros, any number of them.
    Hole,
}

/// A run of a file's bytes that is stored together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Its start in the file.
    pub(crate) start: u64,
    /// Its bytes, at least 1.
    pub(crate) len: u64,
    pub(crate) place: Place,
}

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Whether its content must be decoded.
    pub(crate) fn is_encoded(&self) -> bool {
        matches!(self.place, Place::Encoded { .. })
    }
}

//! Constants for an inode's fields: its format, its mode, its data layout, addresses.

/// Bit 0 of `i_format`.
pub(crate) const I_EXTENDED: u16 = 1;
/// Bit 4 of the `i_format` of a compact inode that is not a directory: the link count is 1, and
/// `i_nb` is part of an address or a count.
pub(crate) const I_NLINK_1: u16 = 0x10;
/// Bit 4 of a directory's `i_format`: it has no entry `.`.
pub(crate) const I_DOT_OMITTED: u16 = 0x10;
/// All defined bits of `i_format`.
pub(crate) const I_ALL: u16 = 0x1f;

/// The layout of an inode's data (bits 1–3 of `i_format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLayout {
    /// Consecutive blocks.
    FlatPlain,
    /// Compressed, with one 8-byte index per logical cluster.
    CompressedFull,
    /// Consecutive blocks, the last partial block after the inode.
    FlatInline,
    /// Compressed, with indexes of 4 or 2 bytes.
    CompressedCompact,
    /// Chunks of equal size, each anywhere in the image or a hole.
    ChunkBased,
}

impl DataLayout {
    pub(crate) fn decode(i_format: u16) -> Option<Self> {
        Some(match i_format >> 1 & 7 {
            0 => Self::FlatPlain,
            1 => Self::CompressedFull,
            2 => Self::FlatInline,
            3 => Self::CompressedCompact,
            4 => Self::ChunkBased,
            _ => return None,
        })
    }

    pub(crate) fn encode(self) -> u16 {
        (match self {
            Self::FlatPlain => 0,
            Self::CompressedFull => 1,
            Self::FlatInline => 2,
            Self::CompressedCompact => 3,
            Self::ChunkBased => 4,
        }) << 1
    }
}

/// Low bits of a chunk-based inode's `i_u`: log2 of the number of blocks in a chunk.
pub(crate) const CHUNK_BLKBITS: u32 = 0x1f;
/// Chunks are 8-byte indexes, not 4-byte block addresses.
pub(crate) const CHUNK_INDEXES: u32 = 0x20;
/// Indexes have 48-bit addresses.
pub(crate) const CHUNK_48BIT: u32 = 0x40;
/// The block address of a hole.
pub(crate) const NULL_ADDR: u32 = u32::MAX;
/// The 48-bit block address of a hole.
pub(crate) const NULL_ADDR_48BIT: u64 = (1 << 48) - 1;

/// The unit of nids, in bytes.
pub(crate) const SLOT: u64 = 32;
/// A nid with this bit is relative to the start of the metadata box.
pub(crate) const NID_IN_METABOX: u64 = 1 << 63;

/// Offsets from here on are relative to the start of the metadata box. Images are shorter.
pub(crate) const IN_BOX: u64 = 1 << 63;

/// The file type bits of a mode.
pub(crate) mod mode {
    pub(crate) const FORMAT: u32 = 0o170_000;
    pub(crate) const FIFO: u32 = 0o010_000;
    pub(crate) const CHARACTER: u32 = 0o020_000;
    pub(crate) const DIRECTORY: u32 = 0o040_000;
    pub(crate) const BLOCK: u32 = 0o060_000;
    pub(crate) const REGULAR: u32 = 0o100_000;
    pub(crate) const SYMLINK: u32 = 0o120_000;
    pub(crate) const SOCKET: u32 = 0o140_000;
}

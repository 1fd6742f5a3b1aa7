//! The superblock's offset, features and checksum.

pub(crate) const SUPER_OFFSET: u64 = 1024;
pub(crate) const SUPER_MAGIC: u32 = 0xE0F5_E1E2;

/// MicroLZMA's longest dictionary.
pub(crate) const MAX_LZMA_DICT_BYTES: u32 = 8 << 20;

pub(crate) mod compat {
    pub(crate) const SB_CHKSUM: u32 = 0x1;
    pub(crate) const MTIME: u32 = 0x2;
    pub(crate) const SHARED_XATTRS_IN_METABOX: u32 = 0x8;
    /// Long xattr prefixes are in the image, not in the packed inode.
    pub(crate) const PLAIN_XATTR_PREFIXES: u32 = 0x10;

    pub(crate) const NAMES: &[(u32, &str)] = &[
        (SB_CHKSUM, "checksum"),
        (MTIME, "modification times"),
        (0x4, "xattr filter"),
        (SHARED_XATTRS_IN_METABOX, "shared xattrs in the metadata box"),
        (PLAIN_XATTR_PREFIXES, "plain xattr prefixes"),
        (0x20, "digests of inodes"),
    ];
}

pub(crate) mod incompat {
    pub(crate) const ZERO_PADDING: u32 = 0x1;
    /// Also big physical clusters.
    pub(crate) const COMPR_CFGS: u32 = 0x2;
    pub(crate) const CHUNKED_FILE: u32 = 0x4;
    /// A device table, or the second algorithm of a file.
    pub(crate) const DEVICE_TABLE_OR_HEAD2: u32 = 0x8;
    pub(crate) const ZTAILPACKING: u32 = 0x10;
    /// Also deduplication.
    pub(crate) const FRAGMENTS: u32 = 0x20;
    pub(crate) const XATTR_PREFIXES: u32 = 0x40;
    /// 48-bit block addresses; also encoded extents, and directories without `.`.
    pub(crate) const ADDRESSES_48BIT: u32 = 0x80;
    /// Metadata is in a separate file, which may be compressed.
    pub(crate) const METABOX: u32 = 0x100;

    pub(crate) const SUPPORTED: u32 = ZERO_PADDING
        | COMPR_CFGS
        | CHUNKED_FILE
        | DEVICE_TABLE_OR_HEAD2
        | ZTAILPACKING
        | FRAGMENTS
        | XATTR_PREFIXES
        | ADDRESSES_48BIT
        | METABOX;

    /// Names of the features. Some bits mean two features.
    pub(crate) const NAMES: &[(u32, &str)] = &[
        (ZERO_PADDING, "lz4 padded in front"),
        (COMPR_CFGS, "codec settings or big clusters"),
        (CHUNKED_FILE, "chunks"),
        (DEVICE_TABLE_OR_HEAD2, "devices or a second algorithm"),
        (ZTAILPACKING, "ztailpacking"),
        (FRAGMENTS, "fragments or dedupe"),
        (XATTR_PREFIXES, "xattr prefixes"),
        (ADDRESSES_48BIT, "48-bit addresses"),
        (METABOX, "metadata box"),
    ];
}

/// Returns EROFS's CRC-32C: the standard one without its final complement.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    !crc32c::crc32c(bytes)
}

/// Returns the number of bytes that the checksum covers: from the superblock to the end of its
/// block.
pub(crate) fn checksummed_len(block_bytes: usize) -> usize {
    let before = SUPER_OFFSET as usize;
    if block_bytes > before { block_bytes - before } else { block_bytes }
}

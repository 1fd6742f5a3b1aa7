//! The on-disk format, all of it: structures, constants and the packing of compacted indexes,
//! encode beside decode.
//!
//! Source: the kernel's `Documentation/filesystems/erofs.rst` and the definitions of
//! `fs/erofs/erofs_fs.h`. All numbers are little-endian.
//!
//! ```text
//! | 1024 bytes | superblock | codec configurations | inodes, xattrs, directories, data, in any order ... |
//!
//! inode at 32 * nid + meta_blkaddr * block:
//! | inode (32 or 64) | xattrs | -> 8 | map header, indexes (compressed) or chunks | inline tail |
//! ```

/// A number as the format stores it.
trait Le: Sized {
    fn get(bytes: &[u8]) -> Self;
    fn put(&self, bytes: &mut [u8]);
}

macro_rules! le_integer {
    ($($integer:ty),*) => {$(
        impl Le for $integer {
            fn get(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<Self>()];
                array.copy_from_slice(bytes);
                Self::from_le_bytes(array)
            }
            fn put(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

le_integer!(u8, u16, u32, u64);

impl<const N: usize> Le for [u8; N] {
    fn get(bytes: &[u8]) -> Self {
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        array
    }
    fn put(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(self);
    }
}

/// Defines a structure of consecutive fields with its size on disk, which is asserted, and both
/// directions.
macro_rules! on_disk {
    ($(#[$doc:meta])* $name:ident: $size:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name { $($(#[$field_doc])* pub(crate) $field: $type,)* }

        #[allow(dead_code, reason = "every structure has both directions, though not all are used in both")]
        impl $name {
            /// Bytes on disk.
            pub(crate) const SIZE: usize = $size;

            pub(crate) fn decode(bytes: &[u8; $size]) -> Self {
                let rest = &bytes[..];
                $(let (field, rest) = rest.split_at(size_of::<$type>()); let $field = <$type as Le>::get(field);)*
                debug_assert!(rest.is_empty());
                Self { $($field,)* }
            }

            pub(crate) fn encode(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                let rest = &mut bytes[..];
                $(let (field, rest) = rest.split_at_mut(size_of::<$type>()); self.$field.put(field);)*
                debug_assert!(rest.is_empty());
                bytes
            }
        }

        const _: () = assert!($size == 0 $(+ size_of::<$type>())*);
    };
}

pub(crate) const SUPER_OFFSET: u64 = 1024;
pub(crate) const SUPER_MAGIC: u32 = 0xE0F5_E1E2;

on_disk! {
    /// The superblock.
    SuperBlock: 128 {
        magic: u32,
        /// CRC-32C (no final complement) from the superblock to the end of its block, with this
        /// field 0.
        checksum: u32,
        feature_compat: u32,
        blkszbits: u8,
        /// The superblock is `128 + 16 * sb_extslots` bytes long.
        sb_extslots: u8,
        /// The root's nid; where `rootnid_8b` has it, bits 32 to 47 of the number of blocks.
        rootnid_2b_or_blocks_hi: u16,
        inos: u64,
        /// What the times of compact inodes are added to, in seconds.
        epoch: u64,
        /// Their nanoseconds.
        fixed_nsec: u32,
        blocks_lo: u32,
        meta_blkaddr: u32,
        xattr_blkaddr: u32,
        uuid: [u8; 16],
        volume_name: [u8; 16],
        feature_incompat: u32,
        /// A bitmap of algorithms with `COMPR_CFGS`, else LZ4's longest offset (0: 65535).
        available_compr_algs: u16,
        extra_devices: u16,
        devt_slotoff: u16,
        dirblkbits: u8,
        xattr_prefix_count: u8,
        xattr_prefix_start: u32,
        packed_nid: u64,
        xattr_filter_reserved: u8,
        ishare_xattr_prefix_id: u8,
        reserved: [u8; 2],
        /// When the image was built: seconds after `epoch`.
        build_time: u32,
        /// With 48-bit addresses: the root's nid, unless 0.
        rootnid_8b: u64,
        reserved2: u64,
    }
}

on_disk! {
    /// The superblock's first extension slot, which lies behind it if `sb_extslots` is not 0.
    SuperBlockSlot1: 16 {
        /// The inode that holds the metadata box.
        metabox_nid: u64,
        reserved3: u64,
    }
}

on_disk! {
    /// Another device, in a table of 128-byte slots.
    DeviceSlot: 128 {
        tag: [u8; 64],
        blocks: u32,
        /// The unified address of its first block; 0: it has none.
        uniaddr: u32,
        blocks_hi: u16,
        uniaddr_hi: u16,
        reserved: [u8; 52],
    }
}

on_disk! {
    /// The 32-byte inode. Its modification time is the superblock's plus `i_mtime`.
    InodeCompact: 32 {
        i_format: u16,
        i_xattr_icount: u16,
        i_mode: u16,
        /// The number of links; with [`I_NLINK_1`] bits 32 to 47 of what `i_u` has bits 0 to 31 of.
        i_nb: u16,
        i_size: u32,
        i_mtime: u32,
        i_u: u32,
        i_ino: u32,
        i_uid: u16,
        i_gid: u16,
        i_reserved: u32,
    }
}

on_disk! {
    /// The 64-byte inode.
    InodeExtended: 64 {
        i_format: u16,
        i_xattr_icount: u16,
        i_mode: u16,
        /// Bits 32 to 47 of what `i_u` has bits 0 to 31 of.
        i_nb: u16,
        i_size: u64,
        i_u: u32,
        i_ino: u32,
        i_uid: u32,
        i_gid: u32,
        i_mtime: u64,
        i_mtime_nsec: u32,
        i_nlink: u32,
        i_reserved2: [u8; 16],
    }
}

on_disk! {
    /// The start of an inode's xattrs, followed by the ids of shared ones, then by inline entries.
    XattrHeader: 12 {
        h_name_filter: u32,
        h_shared_count: u8,
        h_reserved: [u8; 7],
    }
}

on_disk! {
    /// One xattr, followed by the name without its prefix, then by the value; entries are aligned
    /// to 4.
    XattrEntry: 4 {
        e_name_len: u8,
        e_name_index: u8,
        e_value_size: u16,
    }
}

on_disk! {
    /// One directory entry. A block begins with these; the names follow, each up to the start of
    /// the next.
    Dirent: 12 {
        nid: u64,
        nameoff: u16,
        file_type: u8,
        reserved: u8,
    }
}

on_disk! {
    /// One chunk of a chunk-based file.
    ChunkIndex: 8 {
        /// With [`CHUNK_48BIT`].
        startblk_hi: u16,
        device_id: u16,
        startblk_lo: u32,
    }
}

on_disk! {
    /// How a compressed file is mapped.
    MapHeader: 8 {
        /// The tail's offset in the packed inode (fragment), or the inline tail's length in the
        /// upper half.
        h_fragmentoff: u32,
        h_advise: u16,
        /// Bits 0–3: the algorithm of `HEAD1`; 4–7: of `HEAD2`.
        h_algorithmtype: u8,
        /// Bits 0–3: logical cluster bits less block bits; 7: the whole file is a fragment, and the
        /// other 63 bits of this header are its offset.
        h_clusterbits: u8,
    }
}

on_disk! {
    /// How a compressed file with encoded extents is mapped. Records of 4 or 8 bytes say the
    /// logical cluster in bits 0 to 3 of the last byte, as [`MapHeader`] does; longer ones are
    /// counted.
    ExtentsHeader: 8 {
        h_extents_lo: u32,
        /// [`advise::EXTENTS`], the records' length above it, and the other bits.
        h_advise: u16,
        h_extents_hi: u16,
    }
}

on_disk! {
    /// An encoded extent. Shorter records are its first 4, 8 or 16 bytes.
    EncodedExtent: 32 {
        /// Bits 0 to 20: bytes of the physical cluster, 0 for a hole; 27: the extent is a prefix of
        /// its content; 28 to 31: 0 if it is plain, else its algorithm and one. For the fragment at
        /// a file's end: bits 0 to 31 of its offset.
        plen: u32,
        /// Where the physical cluster starts, in bytes. For a fragment: bits 32 to 63 of its
        /// offset.
        pstart_lo: u32,
        pstart_hi: u32,
        /// Where the extent starts in the file.
        lstart_lo: u32,
        lstart_hi: u32,
        reserved: [u8; 12],
    }
}

on_disk! {
    /// A full index: one logical cluster. For heads `di_u` is the block address of the physical
    /// cluster; for others it is two 16-bit distances, to the head before and the head after.
    FullIndex: 8 {
        di_advise: u16,
        di_clusterofs: u16,
        di_u: u32,
    }
}

on_disk! {
    /// LZ4's configuration.
    Lz4Config: 14 {
        max_distance: u16,
        max_pclusterblks: u16,
        reserved: [u8; 10],
    }
}

on_disk! {
    /// MicroLZMA's configuration.
    LzmaConfig: 14 {
        dict_size: u32,
        format: u16,
        reserved: [u8; 8],
    }
}

on_disk! {
    /// DEFLATE's configuration.
    DeflateConfig: 6 {
        windowbits: u8,
        reserved: [u8; 5],
    }
}

on_disk! {
    /// Zstandard's configuration.
    ZstdConfig: 6 {
        format: u8,
        /// Logarithm of the window less 10.
        windowlog: u8,
        reserved: [u8; 4],
    }
}

pub(crate) mod compat {
    pub(crate) const SB_CHKSUM: u32 = 0x1;
    pub(crate) const MTIME: u32 = 0x2;
    pub(crate) const SHARED_XATTRS_IN_METABOX: u32 = 0x8;
    /// Long xattr prefixes lie in the image, not in its packed inode.
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
    /// Metadata in a file of its own, which may be compressed.
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

    /// Names of those. Some bits stand for two features.
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

/// Bit 0 of `i_format`.
pub(crate) const I_EXTENDED: u16 = 1;
/// Bit 4 of a compact inode's `i_format`, unless it is a directory's: it has one link, and `i_nb`
/// is part of an address or a count.
pub(crate) const I_NLINK_1: u16 = 0x10;
/// Bit 4 of a directory's `i_format`: it has no entry `.`.
pub(crate) const I_DOT_OMITTED: u16 = 0x10;
/// All bits of `i_format` that are defined.
pub(crate) const I_ALL: u16 = 0x1f;

/// How an inode's data is laid out (bits 1–3 of `i_format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLayout {
    /// Consecutive blocks.
    FlatPlain,
    /// Compressed, with an 8-byte index a logical cluster.
    CompressedFull,
    /// Consecutive blocks, the last partial block after the inode.
    FlatInline,
    /// Compressed, with indexes of 4 or 2 bytes.
    CompressedCompact,
    /// Chunks of equal size, each anywhere or a hole.
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

/// Low bits of a chunk-based inode's `i_u`: logarithm of the chunk's blocks.
pub(crate) const CHUNK_BLKBITS: u32 = 0x1f;
/// Chunks are 8-byte indexes, not 4-byte block addresses.
pub(crate) const CHUNK_INDEXES: u32 = 0x20;
/// Those have addresses of 48 bits.
pub(crate) const CHUNK_48BIT: u32 = 0x40;
/// The block address of a hole.
pub(crate) const NULL_ADDR: u32 = u32::MAX;
/// And of 48 bits.
pub(crate) const NULL_ADDR_48BIT: u64 = (1 << 48) - 1;

/// Bytes to which nids refer.
pub(crate) const SLOT: u64 = 32;
/// A nid with this bit counts from the start of the metadata box.
pub(crate) const NID_IN_METABOX: u64 = 1 << 63;

/// The longest file name.
pub(crate) const NAME_LEN: usize = 255;

pub(crate) const XATTR_LONG_PREFIX: u8 = 0x80;

/// Prefixes of xattr names, by `e_name_index`.
pub(crate) const XATTR_PREFIXES: &[(u8, &[u8])] = &[
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (5, b"lustre."),
    (6, b"security."),
];

/// A file's type in a directory entry (the kernel's generic `FT_*`).
pub(crate) mod file_type {
    pub(crate) fn from_mode(mode: u16) -> u8 {
        match u32::from(mode) & super::mode::FORMAT {
            super::mode::REGULAR => 1,
            super::mode::DIRECTORY => 2,
            super::mode::CHARACTER => 3,
            super::mode::BLOCK => 4,
            super::mode::FIFO => 5,
            super::mode::SOCKET => 6,
            super::mode::SYMLINK => 7,
            _ => 0,
        }
    }
}

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

/// The longest physical cluster.
pub(crate) const MAX_PCLUSTER_BYTES: u64 = 1 << 20;
/// The longest content of a physical cluster.
pub(crate) const MAX_EXTENT_BYTES: u64 = 12 << 20;
/// MicroLZMA's longest dictionary.
pub(crate) const MAX_LZMA_DICT_BYTES: u32 = 8 << 20;

pub(crate) mod advise {
    pub(crate) const COMPACTED_2B: u16 = 0x01;
    /// The same bit where the layout says full indexes: there are encoded extents in their place.
    pub(crate) const EXTENTS: u16 = 0x01;
    /// With those, bits 1 and 2: the record has `4 << n` bytes.
    pub(crate) const EXTENT_RECORD_SHIFT: u32 = 1;
    pub(crate) const EXTENT_RECORD_MASK: u16 = 3;
    pub(crate) const BIG_PCLUSTER_1: u16 = 0x02;
    pub(crate) const BIG_PCLUSTER_2: u16 = 0x04;
    pub(crate) const INLINE_PCLUSTER: u16 = 0x08;
    pub(crate) const INTERLACED_PCLUSTER: u16 = 0x10;
    pub(crate) const FRAGMENT_PCLUSTER: u16 = 0x20;
    pub(crate) const ALL: u16 = 0x3f;
}

/// Bits of an encoded extent's `plen` that are the cluster's length.
pub(crate) const EXTENT_PLEN_MASK: u32 = (1 << 21) - 1;
/// Its cluster decodes to more.
pub(crate) const EXTENT_PARTIAL: u32 = 1 << 27;
/// From this bit on: 0 for plain, else the algorithm and one.
pub(crate) const EXTENT_FORMAT_SHIFT: u32 = 28;

/// Bit 7 of `h_clusterbits`: the whole file is a fragment.
pub(crate) const FRAGMENT_INODE: u8 = 0x80;

/// What a logical cluster's index says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LclusterType {
    /// An uncompressed extent starts in it.
    Plain = 0,
    /// An extent of the first algorithm starts in it.
    Head1 = 1,
    /// No extent starts in it.
    NonHead = 2,
    /// An extent of the second algorithm starts in it.
    Head2 = 3,
}

impl LclusterType {
    pub(crate) fn decode(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::Plain,
            1 => Self::Head1,
            2 => Self::NonHead,
            _ => Self::Head2,
        }
    }
}

/// Bit 15 of a full index's `di_advise`: the extent is a prefix of its physical cluster's content.
pub(crate) const LI_PARTIAL_REF: u16 = 1 << 15;
/// In a distance: it is the number of blocks of the physical cluster, and the distance is 1.
pub(crate) const LI_CBLKCNT: u32 = 1 << 11;

/// One compacted index: the low bits (an offset or a distance) and the type above them.
///
/// A pack of `count` of them, packed without gaps from bit 0, is followed by the 32-bit block
/// address that the block addresses of its heads are derived from:
///
/// ```text
/// 4-byte indexes, a pack of 8 bytes:   | 16 bits | 16 bits | base:32 |
/// 2-byte indexes, a pack of 32 bytes:  | 14 bits | * 16    | base:32 |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackFormat {
    /// Indexes in a pack.
    pub(crate) count: usize,
    /// Bytes of a pack.
    pub(crate) bytes: usize,
    /// Bits of an index.
    bits: usize,
    /// Bits of its low part.
    low_bits: u32,
}

impl PackFormat {
    pub(crate) fn four_bytes(lclusterbits: u32) -> Self {
        Self { count: 2, bytes: 8, bits: 16, low_bits: lclusterbits.max(12) }
    }

    pub(crate) fn two_bytes(lclusterbits: u32) -> Self {
        Self { count: 16, bytes: 32, bits: 14, low_bits: lclusterbits.max(12) }
    }

    pub(crate) fn get(self, pack: &[u8], index: usize) -> (LclusterType, u32) {
        let bit = index * self.bits;
        let mut word = [0; 4];
        for (to, from) in word.iter_mut().zip(&pack[bit / 8..]) {
            *to = *from;
        }
        let value = u32::from_le_bytes(word) >> (bit % 8);
        (LclusterType::decode(value >> self.low_bits), value & ((1 << self.low_bits) - 1))
    }

    /// Sets an index of a pack that was zero.
    pub(crate) fn put(self, pack: &mut [u8], index: usize, kind: LclusterType, low: u32) {
        debug_assert!(low < 1 << self.low_bits);
        let bit = index * self.bits;
        let value = (low | (kind as u32) << self.low_bits) << (bit % 8);
        for (to, from) in pack[bit / 8..].iter_mut().zip(value.to_le_bytes()) {
            *to |= from;
        }
    }

    pub(crate) fn base(self, pack: &[u8]) -> u32 {
        u32::get(&pack[self.bytes - 4..self.bytes])
    }

    pub(crate) fn put_base(self, pack: &mut [u8], base: u32) {
        base.put(&mut pack[self.bytes - 4..self.bytes]);
    }
}

/// How a compacted file's indexes are divided: `first` of 4 bytes up to a 32-byte boundary,
/// `middle` of 2 bytes, the rest of 4 bytes. `start` is the image offset of the first, `total` the
/// file's logical clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactLayout {
    pub(crate) first: u64,
    pub(crate) middle: u64,
    pub(crate) last: u64,
}

impl CompactLayout {
    pub(crate) fn new(start: u64, total: u64, two_bytes: bool) -> Self {
        let first = (32 - start % 32) / 4 % 8;
        let (first, middle) =
            if two_bytes && first < total { (first, (total - first) / 16 * 16) } else { (first.min(total), 0) };
        Self { first, middle, last: total - first - middle }
    }

    /// Bytes of all packs. A last pack that is not full counts whole.
    pub(crate) fn bytes(self) -> u64 {
        (self.first + self.last).next_multiple_of(2) * 4 + self.middle * 2
    }
}

pub(crate) const fn align(offset: u64, to: u64) -> u64 {
    offset.next_multiple_of(to)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn structures_come_back(bytes in proptest::collection::vec(any::<u8>(), 128)) {
            macro_rules! there_and_back {
                ($($type:ident),*) => {$(
                    let mut array = [0; $type::SIZE];
                    array.copy_from_slice(&bytes[..$type::SIZE]);
                    prop_assert_eq!($type::decode(&array).encode(), array);
                )*};
            }
            there_and_back!(
                SuperBlock, DeviceSlot, InodeCompact, InodeExtended, XattrHeader, XattrEntry, Dirent, ChunkIndex, MapHeader,
                FullIndex, Lz4Config, LzmaConfig, DeflateConfig, ZstdConfig, SuperBlockSlot1, ExtentsHeader,
                EncodedExtent
            );
        }

        #[test]
        fn packed_indexes_come_back(
            entries in proptest::collection::vec((0u32..4, 0u32..4096), 16),
            base in any::<u32>(),
            two in any::<bool>(),
        ) {
            let format = if two { PackFormat::two_bytes(12) } else { PackFormat::four_bytes(12) };
            let mut pack = vec![0; format.bytes];
            for (index, &(kind, low)) in entries.iter().take(format.count).enumerate() {
                format.put(&mut pack, index, LclusterType::decode(kind), low);
            }
            format.put_base(&mut pack, base);
            for (index, &(kind, low)) in entries.iter().take(format.count).enumerate() {
                prop_assert_eq!(format.get(&pack, index), (LclusterType::decode(kind), low));
            }
            prop_assert_eq!(format.base(&pack), base);
        }

        #[test]
        fn compact_layouts_cover_every_index(start in (0u64..1 << 20).prop_map(|n| n * 8), total in 0u64..1000, two in any::<bool>()) {
            let layout = CompactLayout::new(start, total, two);
            prop_assert_eq!(layout.first + layout.middle + layout.last, total);
            prop_assert_eq!(layout.middle % 16, 0);
            if layout.middle > 0 {
                prop_assert_eq!((start + layout.first * 4) % 32, 0);
            }
        }
    }
}

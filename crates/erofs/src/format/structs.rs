//! All structures of the format: fields in on-disk order, asserted sizes, encoding beside decoding.

/// A number in its on-disk form.
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

/// Defines a structure of consecutive fields with an asserted on-disk size, `encode` and `decode`.
macro_rules! on_disk {
    ($(#[$doc:meta])* $name:ident: $size:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name { $($(#[$field_doc])* pub(crate) $field: $type,)* }

        #[allow(dead_code, reason = "every structure has both directions, though not all are used in both")]
        impl $name {
            /// The size on disk in bytes.
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
        /// The root's nid, or bits 32 to 47 of the number of blocks if `rootnid_8b` holds the nid.
        rootnid_2b_or_blocks_hi: u16,
        inos: u64,
        /// The base of compact inodes' times, in seconds.
        epoch: u64,
        /// The nanoseconds of compact inodes' times.
        fixed_nsec: u32,
        blocks_lo: u32,
        meta_blkaddr: u32,
        xattr_blkaddr: u32,
        uuid: [u8; 16],
        volume_name: [u8; 16],
        feature_incompat: u32,
        /// With `COMPR_CFGS`, a bitmap of algorithms; otherwise LZ4's longest offset (0: 65535).
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
        /// The build time: seconds after `epoch`.
        build_time: u32,
        /// With 48-bit addresses: the root's nid, unless 0.
        rootnid_8b: u64,
        reserved2: u64,
    }
}

on_disk! {
    /// The superblock's first extension slot, which follows it if `sb_extslots` is not 0.
    SuperBlockSlot1: 16 {
        /// The inode that contains the metadata box.
        metabox_nid: u64,
        reserved3: u64,
    }
}

on_disk! {
    /// Another device, as a 128-byte slot of the device table.
    DeviceSlot: 128 {
        tag: [u8; 64],
        blocks: u32,
        /// The unified address of its first block; 0 if it has none.
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
        /// The number of links or, with [`I_NLINK_1`], bits 32 to 47 of the word that starts in
        /// `i_u`.
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
        /// Bits 32 to 47 of the word that starts in `i_u`.
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
    /// One xattr, followed by the name without its prefix and the value. Entries are aligned to 4.
    XattrEntry: 4 {
        e_name_len: u8,
        e_name_index: u8,
        e_value_size: u16,
    }
}

on_disk! {
    /// One directory entry. A block begins with its entries; their names follow, each up to the
    /// start of the next.
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
        /// Used with [`CHUNK_48BIT`].
        startblk_hi: u16,
        device_id: u16,
        startblk_lo: u32,
    }
}

on_disk! {
    /// The map header of a compressed file.
    MapHeader: 8 {
        /// A fragment's offset in the packed inode, or the length of the inline tail in the upper
        /// half.
        h_fragmentoff: u32,
        h_advise: u16,
        /// Bits 0–3: the algorithm of `HEAD1`; 4–7: of `HEAD2`.
        h_algorithmtype: u8,
        /// Bits 0–3: logical cluster bits minus block bits. Bit 7: the whole file is a fragment,
        /// and the other 63 bits of this header are its offset.
        h_clusterbits: u8,
    }
}

on_disk! {
    /// The map header of a compressed file with encoded extents. With records of 4 or 8 bytes, bits
    /// 0 to 3 of the last byte hold the logical cluster size, as in [`MapHeader`]; with longer
    /// records, the header holds their count.
    ExtentsHeader: 8 {
        h_extents_lo: u32,
        /// [`advise::EXTENTS`], the record length above it, and the other bits.
        h_advise: u16,
        h_extents_hi: u16,
    }
}

on_disk! {
    /// An encoded extent. Shorter records are its first 4, 8 or 16 bytes.
    EncodedExtent: 32 {
        /// Bits 0 to 20: the length of the physical cluster in bytes, 0 for a hole. Bit 27: the
        /// extent is only a prefix of the content. Bits 28 to 31: 0 if plain, else the algorithm
        /// plus one. For the fragment at a file's end: bits 0 to 31 of its offset.
        plen: u32,
        /// The start of the physical cluster in bytes. For a fragment: bits 32 to 63 of its offset.
        pstart_lo: u32,
        pstart_hi: u32,
        /// The extent's start in the file.
        lstart_lo: u32,
        lstart_hi: u32,
        reserved: [u8; 12],
    }
}

on_disk! {
    /// A full index of one logical cluster. For heads, `di_u` is the block address of the physical
    /// cluster. For others, it is two 16-bit distances: to the previous head and to the next.
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
        /// Log2 of the window, minus 10.
        windowlog: u8,
        reserved: [u8; 4],
    }
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
    }
}

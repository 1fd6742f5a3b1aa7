//! The superblock and the structures that follow it, validated on reading.

use std::ops::Range;

use pagefold_codec::cluster::ClusterFormat;
use pagefold_storage::ReadAt;

use crate::error::{Error, Result};
use crate::format::{
    DeviceSlot, IN_BOX, Lz4Config, LzmaConfig, MAX_LZMA_DICT_BYTES, NID_IN_METABOX, SLOT, SUPER_MAGIC, SUPER_OFFSET,
    SuperBlock, SuperBlockSlot1, align, checksum, checksummed_len, compat, incompat,
};

/// The contents of an image's superblock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Superblock {
    /// Log2 of the block size, 9 to 16.
    pub blkszbits: u32,
    /// The inode number of the root directory.
    pub root_nid: u64,
    /// The number of inodes in the image.
    pub inos: u64,
    /// The build time: seconds since the epoch.
    pub build_time_s: u64,
    /// The nanoseconds of the build time, which apply to compact inodes too.
    pub build_time_nsec: u32,
    /// The number of blocks of the image, less than 2⁴⁸.
    pub blocks: u64,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The volume's name, padded with zeros.
    pub volume_name: [u8; 16],
    /// Incompatible features, as a bit mask.
    pub feature_incompat: u32,
    /// Compatible features, as a bit mask.
    pub feature_compat: u32,
    /// The inode that holds fragments.
    pub packed_nid: Option<u64>,
    /// The inode that holds the metadata box.
    pub metabox_nid: Option<u64>,
    /// The base of compact inodes' modification times: seconds since the epoch.
    pub(crate) epoch_s: u64,
    /// The number of devices with data, in addition to the image.
    pub extra_devices: u16,
    /// The byte range of the device table.
    pub(crate) device_table: Range<u64>,
    /// The end of the superblock and its extensions.
    pub(crate) end: u64,
    pub(crate) meta_offset: u64,
    pub(crate) xattr_offset: u64,
    pub(crate) xattr_prefixes: Option<(u8, u64)>,
    pub(crate) lzma_dict_bytes: u32,
    pub(crate) zstd_window_log: u32,
    algorithms: u16,
}

impl Superblock {
    pub(crate) fn read(source: &dyn ReadAt, image_len: u64) -> Result<Self> {
        let corrupt = |what| Error::corrupt(what, SUPER_OFFSET);
        let truncated = || Err(Error::Truncated { offset: SUPER_OFFSET, len_bytes: image_len });
        let mut bytes = [0; SuperBlock::SIZE];
        if image_len < SUPER_OFFSET + SuperBlock::SIZE as u64 {
            return truncated();
        }
        source.read_exact_at(&mut bytes, SUPER_OFFSET).map_err(Error::io("reading the superblock"))?;
        let raw = SuperBlock::decode(&bytes);
        if raw.magic != SUPER_MAGIC {
            return corrupt("no EROFS magic number");
        }
        let blkszbits = u32::from(raw.blkszbits);
        if !(9..=16).contains(&blkszbits) {
            return corrupt("block size is not 512 bytes to 64 KiB");
        }
        // Linux requires it to be within the first page.
        if SUPER_OFFSET + 128 + 16 * u64::from(raw.sb_extslots) > 4096 {
            return corrupt("superblock is longer than Linux reads");
        }
        let block = 1u64 << blkszbits;
        if raw.feature_compat & compat::SB_CHKSUM != 0 {
            let mut covered = vec![0; checksummed_len(block as usize)];
            if image_len < SUPER_OFFSET + covered.len() as u64 {
                return truncated();
            }
            source.read_exact_at(&mut covered, SUPER_OFFSET).map_err(Error::io("reading the superblock"))?;
            covered[4..8].fill(0);
            if checksum(&covered) != raw.checksum {
                return corrupt("superblock checksum does not match");
            }
        }
        let unknown = raw.feature_incompat & !incompat::SUPPORTED;
        if unknown != 0 {
            return Err(Error::Unsupported(format!("incompatible feature {unknown:#x} (unknown)")));
        }
        if raw.dirblkbits != 0 {
            return Err(Error::Unsupported("directory blocks larger than blocks".to_owned()));
        }
        let two_bytes = u64::from(raw.rootnid_2b_or_blocks_hi);
        let (root_nid, blocks_hi) = match raw.rootnid_8b {
            nid @ 1.. if raw.feature_incompat & incompat::ADDRESSES_48BIT != 0 => (nid, two_bytes),
            _ => (two_bytes, 0),
        };
        let metabox_nid = match raw.feature_incompat & incompat::METABOX {
            0 => None,
            _ => Some(read_metabox_nid(source, image_len, &raw)?),
        };
        // The same bit also means that files may have a second algorithm.
        let has_devices = raw.feature_incompat & incompat::DEVICE_TABLE_OR_HEAD2 != 0;
        if raw.extra_devices > 0 && !has_devices {
            return corrupt("superblock counts other devices but has no device table");
        }
        let table = u64::from(raw.devt_slotoff) * DeviceSlot::SIZE as u64;
        let mut superblock = Self {
            blkszbits,
            root_nid,
            inos: raw.inos,
            build_time_s: raw.epoch.wrapping_add(u64::from(raw.build_time)),
            build_time_nsec: raw.fixed_nsec,
            blocks: blocks_hi << 32 | u64::from(raw.blocks_lo),
            uuid: raw.uuid,
            volume_name: raw.volume_name,
            feature_incompat: raw.feature_incompat,
            feature_compat: raw.feature_compat,
            packed_nid: (raw.feature_incompat & incompat::FRAGMENTS != 0 && raw.packed_nid > 0)
                .then_some(raw.packed_nid),
            metabox_nid,
            epoch_s: raw.epoch,
            extra_devices: raw.extra_devices,
            device_table: table..table + u64::from(raw.extra_devices) * DeviceSlot::SIZE as u64,
            end: SUPER_OFFSET + 128 + 16 * u64::from(raw.sb_extslots),
            meta_offset: u64::from(raw.meta_blkaddr) << blkszbits,
            xattr_offset: u64::from(raw.xattr_blkaddr) << blkszbits,
            xattr_prefixes: (raw.feature_incompat & incompat::XATTR_PREFIXES != 0 && raw.xattr_prefix_count > 0)
                .then_some((raw.xattr_prefix_count, u64::from(raw.xattr_prefix_start) * 4)),
            lzma_dict_bytes: 0,
            zstd_window_log: 0,
            algorithms: 1,
        };
        if superblock.build_time_nsec >= 1_000_000_000 {
            return corrupt("build time has too many nanoseconds");
        }
        if raw.feature_incompat & incompat::COMPR_CFGS != 0 {
            superblock.algorithms = raw.available_compr_algs;
            superblock.end = superblock.read_configs(source, image_len, superblock.end)?;
        }
        Ok(superblock)
    }

    /// Reads the configurations of the image's algorithms: for each, a 16-bit length and that many
    /// bytes, aligned to 4. Returns their end.
    fn read_configs(&mut self, source: &dyn ReadAt, image_len: u64, mut at: u64) -> Result<u64> {
        if self.algorithms >> 4 != 0 {
            let bits = self.algorithms >> 4 << 4;
            return Err(Error::Unsupported(format!("compression algorithms {bits:#x}")));
        }
        for algorithm in (0..4).filter(|algorithm| self.algorithms >> algorithm & 1 != 0) {
            at = align(at, 4);
            let mut record = [0; 2 + 14];
            if image_len < at + record.len() as u64 {
                return Error::corrupt("compression configurations end after the image", at);
            }
            source.read_exact_at(&mut record, at).map_err(Error::io("reading compression configurations"))?;
            let [low, high, config @ ..] = record;
            let len = u64::from(u16::from_le_bytes([low, high]));
            let wanted = if algorithm < 2 { 14 } else { 6 };
            if len < wanted {
                return Error::corrupt("compression configuration is too short", at);
            }
            match algorithm {
                0 => {
                    let blocks = u64::from(Lz4Config::decode(&config).max_pclusterblks);
                    if blocks << self.blkszbits > crate::format::MAX_PCLUSTER_BYTES {
                        return Error::corrupt("lz4 clusters are longer than 1 MiB", at);
                    }
                }
                1 => {
                    let config = LzmaConfig::decode(&config);
                    if config.format != 0 {
                        return Err(Error::Unsupported(format!("lzma format {}", config.format)));
                    }
                    if !(4096..=MAX_LZMA_DICT_BYTES).contains(&config.dict_size) {
                        return Error::corrupt("lzma dictionary is not 4 KiB to 8 MiB", at);
                    }
                    self.lzma_dict_bytes = config.dict_size;
                }
                2 if config[0] > 15 => return Error::corrupt("deflate window is longer than 32 KiB", at),
                3 if config[0] != 0 => return Err(Error::Unsupported(format!("zstd format {}", config[0]))),
                3 if config[1] > 10 => return Error::corrupt("zstd window is longer than 1 MiB", at),
                3 => self.zstd_window_log = u32::from(config[1]) + 10,
                _ => {}
            }
            at += 2 + len;
        }
        Ok(at)
    }

    /// Reads the device table.
    pub(crate) fn read_devices(&self, source: &dyn ReadAt, image_len: u64) -> Result<Vec<DeviceSlot>> {
        if self.extra_devices == 0 {
            return Ok(Vec::new());
        }
        if self.device_table.end > image_len {
            return Error::corrupt("device table lies outside the image", self.device_table.start);
        }
        let mut bytes = vec![0; usize::from(self.extra_devices) * DeviceSlot::SIZE];
        source.read_exact_at(&mut bytes, self.device_table.start).map_err(Error::io("reading the device table"))?;
        Ok(bytes.as_chunks().0.iter().map(DeviceSlot::decode).collect())
    }

    /// Returns the block size in bytes.
    pub fn block_bytes(&self) -> u64 {
        1 << self.blkszbits
    }

    /// Returns the names of the features that the image declares.
    pub fn feature_names(&self) -> Vec<&'static str> {
        let of = |bits: u32, names: &[(u32, &'static str)]| -> Vec<&'static str> {
            names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect()
        };
        [of(self.feature_compat, compat::NAMES), of(self.feature_incompat, incompat::NAMES)].concat()
    }

    pub(crate) fn has(&self, feature: u32) -> bool {
        self.feature_incompat & feature != 0
    }

    pub(crate) fn has_compatible(&self, feature: u32) -> bool {
        self.feature_compat & feature != 0
    }

    /// Returns the format with the number `algorithm`, if the image declares it.
    pub(crate) fn algorithm(&self, algorithm: u8) -> Option<ClusterFormat> {
        let format = match algorithm {
            0 => ClusterFormat::Lz4,
            1 => ClusterFormat::MicroLzma,
            2 => ClusterFormat::Deflate,
            3 => ClusterFormat::Zstd,
            _ => return None,
        };
        (self.algorithms >> algorithm & 1 != 0).then_some(format)
    }

    /// Returns the compression formats that the image declares.
    pub fn formats(&self) -> Vec<ClusterFormat> {
        (0..4).filter_map(|algorithm| self.algorithm(algorithm)).collect()
    }

    /// Returns the offset of an inode in the image or, from [`IN_BOX`] on, in the metadata box;
    /// `None` past the end of the address space.
    pub(crate) fn inode_offset(&self, nid: u64) -> Option<u64> {
        let (nid, base, space) = match nid & NID_IN_METABOX {
            0 => (nid, self.meta_offset, 0),
            _ => (nid & !NID_IN_METABOX, 0, IN_BOX),
        };
        nid.checked_mul(SLOT)?.checked_add(base).filter(|offset| *offset < IN_BOX).map(|offset| offset | space)
    }
}

/// Reads the inode number of the metadata box. The inode must be outside the box.
fn read_metabox_nid(source: &dyn ReadAt, image_len: u64, raw: &SuperBlock) -> Result<u64> {
    let at = SUPER_OFFSET + SuperBlock::SIZE as u64;
    let mut bytes = [0; SuperBlockSlot1::SIZE];
    if raw.sb_extslots == 0 || image_len < at + bytes.len() as u64 {
        return Error::corrupt("superblock is too short for its metadata box", SUPER_OFFSET);
    }
    source.read_exact_at(&mut bytes, at).map_err(Error::io("reading the superblock"))?;
    let nid = SuperBlockSlot1::decode(&bytes).metabox_nid;
    if nid & NID_IN_METABOX != 0 {
        return Error::corrupt("metadata box is inside itself", at);
    }
    Ok(nid)
}

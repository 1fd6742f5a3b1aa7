//! Building an image from parts of another: a file of an image as the base of an overlay.
//!
//! Building and reading do not depend on each other. This module makes a readable file the base of
//! an overlay.

use std::fs;
use std::ops::Range;
use std::sync::Arc;

use pagefold_codec::cluster::{ClusterCodec, ClusterFormat};

use crate::build::{BaseImage, BaseSpot, BuildOptions, Device, Overlay, OverlayBase};
use crate::error::Result;
use crate::format::{Extent, Identity, Place, incompat};
use crate::read::File;

impl OverlayBase for File {
    fn size_bytes(&self) -> u64 {
        self.inode().size
    }

    fn read_below(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_apart(buf, offset)
    }

    fn mapped_extents(&self, range: Range<u64>) -> Box<dyn Iterator<Item = Result<Extent>> + '_> {
        Box::new(self.extents(range))
    }

    fn stored_ranges(&self, range: Range<u64>, each: &mut dyn FnMut(Range<u64>)) -> Result<()> {
        self.stored(range, each)
    }

    fn base_image(&self) -> BaseImage {
        let superblock = self.image().superblock();
        BaseImage {
            uuid: superblock.uuid,
            block_bytes: superblock.block_bytes(),
            is_zero_padded: superblock.has(incompat::ZERO_PADDING),
            lzma_dict_bytes: superblock.lzma_dict_bytes,
            zstd_window_log: superblock.zstd_window_log,
        }
    }

    fn devices(&self) -> Vec<Device> {
        let image = self.image();
        let superblock = image.superblock();
        let block = superblock.block_bytes();
        // The image may be at the start of a longer device.
        let len_bytes = match superblock.blocks.saturating_mul(block) {
            0 => image.len_bytes(),
            own_bytes => own_bytes.min(image.len_bytes()),
        };
        let own = (Identity::Image(superblock.uuid).tag(), len_bytes);
        let all = std::iter::once(own).chain(image.other_devices());
        all.map(|(tag, len_bytes)| Device { tag, blocks: len_bytes / block }).collect()
    }

    fn spot(&self, address: u64) -> Option<BaseSpot> {
        let spot = self.image().spot(0, address).ok()?;
        Some(BaseSpot { device: spot.device.into(), offset: spot.offset })
    }

    fn plain_spot(&self, offset: u64) -> Result<Option<(BaseSpot, u64)>> {
        let spot = self.data().plain_place(offset)?;
        Ok(spot.map(|(spot, len)| (BaseSpot { device: spot.device.into(), offset: spot.offset }, len)))
    }

    fn data_file(&self, len: u64, address: u64) -> Result<Option<&fs::File>> {
        self.image().data_file(len, address)
    }

    fn read_data(&self, buf: &mut [u8], address: u64) -> Result<()> {
        self.image().read_data(buf, address)
    }
}

impl Overlay {
    /// Sets a file of an image as the base: unchanged ranges have the file's content, and zeros
    /// past its end.
    #[must_use]
    pub fn over(self, base: File) -> Self {
        self.above(Arc::new(base))
    }
}

impl BuildOptions {
    /// Returns options for an image like that of `file`: its block size, its codec at the default
    /// level, and the length of its longest cluster. Clusters of the file can then be copied, see
    /// [`Overlay`].
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the image's extents of the file are invalid.
    pub fn like(file: &File) -> Result<Self> {
        let superblock = file.image().superblock();
        let block_bytes = superblock.block_bytes() as u32;
        let like = Self { block_bytes, codec: None, pcluster_bytes: block_bytes, ..Self::default() };
        if !file.inode().is_compressed() {
            return Ok(like);
        }
        let (mut format, mut longest) = (None, block_bytes);
        for extent in file.extents(0..file.inode().size) {
            if let Place::Encoded { plen, format: found, .. } = extent?.place {
                format.get_or_insert(found);
                longest = longest.max(plen);
            }
        }
        if format.is_none() && !superblock.has(incompat::ZERO_PADDING) {
            // Encoded extents of an image in which nothing is compressed.
            return Ok(like);
        }
        let codec = match format.unwrap_or(ClusterFormat::Lz4) {
            ClusterFormat::Lz4 => ClusterCodec::Lz4,
            ClusterFormat::MicroLzma => ClusterCodec::MicroLzma { preset: 6, dict_bytes: superblock.lzma_dict_bytes },
            ClusterFormat::Deflate => ClusterCodec::Deflate(6),
            ClusterFormat::Zstd => ClusterCodec::Zstd { level: 3, window_log: superblock.zstd_window_log },
        };
        Ok(Self {
            codec: Some(codec),
            pcluster_bytes: longest.next_multiple_of(block_bytes),
            dedupe: superblock.has(incompat::FRAGMENTS),
            ..like
        })
    }
}

//! Building an image of parts of another: a file of an image below an overlay.
//!
//! Building and reading know nothing of each other. Here a file that is read becomes what an
//! overlay lies above.

use std::fs;
use std::ops::Range;
use std::sync::Arc;

use pagefold_codec::cluster::{ClusterCodec, ClusterFormat};

use crate::build::{BaseImage, BuildOptions, Overlay, OverlayBase};
use crate::error::Result;
use crate::format::{Extent, Place, incompat};
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

    fn data_file(&self, len: u64, address: u64) -> Result<Option<&fs::File>> {
        self.image().data_file(len, address)
    }

    fn read_data(&self, buf: &mut [u8], address: u64) -> Result<()> {
        self.image().read_data(buf, address)
    }
}

impl Overlay {
    /// The same above a file of an image: what was not changed is what the file has, and zeros
    /// behind its end.
    #[must_use]
    pub fn over(self, base: File) -> Self {
        self.above(Arc::new(base))
    }
}

impl BuildOptions {
    /// Options for an image like the one that has `file`: its block, its codec at the usual level,
    /// its longest cluster. Clusters of the file can then be copied, see [`Overlay`].
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt): the image does not say where the file's content lies.
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

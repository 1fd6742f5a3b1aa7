//! What lies below an overlay: a file of an image that is there already.

use std::fs;
use std::ops::Range;

use crate::error::Result;
use crate::format::Extent;

/// A file whose clusters may be copied into the image that is built. Building knows no more of
/// other images than this.
pub(crate) trait OverlayBase: Send + Sync {
    fn size_bytes(&self) -> u64;

    /// Reads from `offset` into `buf`, and returns how many bytes the file had.
    fn read_below(&self, buf: &mut [u8], offset: u64) -> Result<usize>;

    /// The extents of a compressed file, from that which has the byte at `range.start` to that
    /// which has the last of `range` or of the file. None of a file that is not compressed.
    fn mapped_extents(&self, range: Range<u64>) -> Box<dyn Iterator<Item = Result<Extent>> + '_>;

    fn base_image(&self) -> BaseImage;

    /// The file with the image's data, each byte at its address, of which these are `len` from
    /// `address`. `None` where there is no such file, or not one.
    fn data_file(&self, len: u64, address: u64) -> Result<Option<&fs::File>>;

    /// Reads the image's data from an address.
    fn read_data(&self, buf: &mut [u8], address: u64) -> Result<()>;
}

/// What the image of a base says of its clusters.
#[derive(Clone, Copy)]
pub(crate) struct BaseImage {
    pub(crate) uuid: [u8; 16],
    pub(crate) block_bytes: u64,
    /// Zeros fill clusters in front of their bytes.
    pub(crate) is_zero_padded: bool,
    pub(crate) lzma_dict_bytes: u32,
    pub(crate) zstd_window_log: u32,
}

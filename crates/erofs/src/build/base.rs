//! The base of an overlay: a file of an existing image.

use std::fs;
use std::ops::Range;

use crate::error::Result;
use crate::format::Extent;

/// A file whose clusters may be copied into the new image. Building knows other images only through
/// this trait.
pub(crate) trait OverlayBase: Send + Sync {
    fn size_bytes(&self) -> u64;

    /// Reads from `offset` into `buf`. Returns the number of bytes read.
    fn read_below(&self, buf: &mut [u8], offset: u64) -> Result<usize>;

    /// Returns the extents of a compressed file that overlap `range`, up to the end of the file.
    /// Returns none for an uncompressed file.
    fn mapped_extents(&self, range: Range<u64>) -> Box<dyn Iterator<Item = Result<Extent>> + '_>;

    /// Calls `each` with the ranges that have stored bytes, within `range` and in order. The ranges
    /// between them, and past the end of the file, are holes.
    fn stored_ranges(&self, range: Range<u64>, each: &mut dyn FnMut(Range<u64>)) -> Result<()>;

    fn base_image(&self) -> BaseImage;

    /// Returns the base's image and the devices that it has data on.
    fn devices(&self) -> Vec<Device>;

    /// Returns the location of the data at an address of the base's image; `None` if there is none.
    fn spot(&self, address: u64) -> Option<BaseSpot>;

    /// Returns where the content at `offset` of an uncompressed file is stored, and for how many
    /// bytes; `None` for holes and for content outside of blocks.
    fn plain_spot(&self, offset: u64) -> Result<Option<(BaseSpot, u64)>>;

    /// Returns the file with the image's data if each byte is at its address in it, and checks that
    /// it has `len` bytes at `address`. Returns `None` if the data is not in one such file.
    fn data_file(&self, len: u64, address: u64) -> Result<Option<&fs::File>>;

    /// Reads the image's data at an address.
    fn read_data(&self, buf: &mut [u8], address: u64) -> Result<()>;
}

/// The image of a base, or a device with data of it.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    /// A text that identifies it, padded with zeros.
    pub(crate) tag: [u8; 64],
    pub(crate) blocks: u64,
}

/// A location in the image of a base (device 0) or on one of its devices, counted from 1.
#[derive(Clone, Copy)]
pub(crate) struct BaseSpot {
    pub(crate) device: usize,
    pub(crate) offset: u64,
}

/// The properties of a base's image that decide whether its clusters can be copied.
#[derive(Clone, Copy)]
pub(crate) struct BaseImage {
    pub(crate) uuid: [u8; 16],
    pub(crate) block_bytes: u64,
    /// Clusters are padded with zeros at the front.
    pub(crate) is_zero_padded: bool,
    pub(crate) lzma_dict_bytes: u32,
    pub(crate) zstd_window_log: u32,
}

//! Opening an image.

use std::fs::File as OsFile;
use std::path::Path;
use std::sync::Arc;

use pagefold_storage::{Forward, ReadAt};

use super::devices::Devices;
use super::image::Image;
use super::metabox::Metabox;
use super::superblock::Superblock;
use crate::cache::ClusterCache;
use crate::error::{Error, Result};
use crate::format::incompat;

impl Image {
    /// The maximum size in bytes of decoded clusters that [`open`](Self::open) caches.
    pub const DEFAULT_CACHE_BYTES: usize = 128 << 20;

    /// Opens an image file.
    pub fn open_path(path: &Path) -> Result<Self> {
        let file = OsFile::open(path).map_err(Error::io(format!("opening {}", path.display())))?;
        Self::open(file)
    }

    /// Opens the image in `source`.
    pub fn open(source: impl ReadAt + 'static) -> Result<Self> {
        Self::open_with(source, Self::DEFAULT_CACHE_BYTES)
    }

    /// Opens the image in `source` and caches at most `cache_bytes` of decoded clusters.
    pub fn open_with(source: impl ReadAt + 'static, cache_bytes: usize) -> Result<Self> {
        Self::open_with_devices(source, Vec::new(), cache_bytes)
    }

    /// Like [`open_with`](Self::open_with), for an image with data on other devices. They are given
    /// in the order of its device table: for `mkfs.erofs --blobdev=X` that is X, for `--tar=i` the
    /// archive. If none are given, devices that the table maps within the image are read there.
    ///
    /// # Errors
    /// [`Error::Devices`] if the number of devices is wrong or one is shorter than the table says,
    /// and the errors of [`open`](Self::open).
    pub fn open_with_devices(
        source: impl ReadAt + 'static,
        devices: Vec<Box<dyn ReadAt>>,
        cache_bytes: usize,
    ) -> Result<Self> {
        Self::open_sharing(source, devices, &ClusterCache::of_one(cache_bytes))
    }

    /// Like [`open_with_devices`](Self::open_with_devices), with a cache of decoded clusters that
    /// other images may share.
    ///
    /// # Errors
    /// The errors of that function, and [`Error::Options`] once more than four thousand million
    /// images have shared the cache.
    pub fn open_sharing(
        source: impl ReadAt + 'static,
        devices: Vec<Box<dyn ReadAt>>,
        cache: &ClusterCache,
    ) -> Result<Self> {
        let asking = "asking for the image's length";
        let source: Box<dyn ReadAt> = match source.is_far() {
            true => Box::new(Forward::new(source).map_err(Error::io(asking))?),
            false => Box::new(source),
        };
        let len_bytes = source.len_bytes().map_err(Error::io(asking))?;
        let superblock = Superblock::read(&*source, len_bytes)?;
        let slots = superblock.read_devices(&*source, len_bytes)?;
        let wide = superblock.has(incompat::ADDRESSES_48BIT);
        let devices = Devices::open(&slots, (superblock.block_bytes(), wide), devices, len_bytes)?;
        let mut image = Self::new(source, superblock, devices, cache, len_bytes)?;
        if let Some(nid) = image.superblock().metabox_nid {
            let metabox = Metabox::open(&image, nid)?;
            image.set_metabox(Arc::new(metabox));
        }
        let (prefixes, place) = image.read_long_prefixes()?;
        image.set_long_prefixes(prefixes, place);
        Ok(image)
    }
}

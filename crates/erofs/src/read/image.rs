//! An open image.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use pagefold_storage::ReadAt;

use super::devices::{Devices, Spot};
use super::near;
use super::superblock::Superblock;
use crate::cache::{Budget, Buffers, Cache, ClusterCache, Clusters, Content, Segments};
use crate::error::{Error, Result};
use crate::format::{IN_BOX, Lcluster, Prefix};

/// Bytes of memory for cached directory blocks.
const NAMES_CACHE_BYTES: usize = 1 << 20;
/// Bytes of memory for decoded indexes: once for those that open files keep, once for the shared
/// cache.
const INDEX_CACHE_BYTES: usize = 2 << 20;

/// The number of counter shards.
const COUNTERS: usize = 16;

/// The number of the next image to be opened.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// An EROFS image, open for reading by any number of threads. A clone is the same open image.
///
/// Nothing in it is trusted: any bytes yield data or an [`Error`], in bounded time and memory.
#[derive(Clone)]
pub struct Image {
    shared: Arc<Shared>,
    /// The image's own xattr name prefixes and their place in it.
    long_prefixes: (Arc<[Prefix]>, Range<u64>),
    /// `None` in the image through which the metadata box reads its own file.
    metabox: Option<Arc<dyn MetadataBox>>,
}

struct Shared {
    /// Unique in this process.
    number: u64,
    source: Box<dyn ReadAt>,
    is_far: bool,
    len_bytes: u64,
    devices: Devices,
    superblock: Superblock,
    /// Blocks of directories, by nid and number.
    names: Cache<(u64, u64), Content>,
    /// Decoded indexes, by nid and window number.
    windows: Cache<(u64, u64), Box<[Lcluster]>>,
    /// The budget for indexes that open files keep.
    kept_indexes: Arc<Budget>,
    clusters: Clusters,
    /// Sharded so that threads rarely contend.
    counters: [CachePadded<Counters>; COUNTERS],
}

#[derive(Default)]
struct Counters {
    in_place: AtomicU64,
    copied: AtomicU64,
}

/// Counters of an image since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadCounts {
    /// LZ4 clusters decoded in place.
    pub decoded_in_place: u64,
    /// Clusters decoded from a separate buffer: other formats, LZ4 without a sufficient margin,
    /// images in memory.
    pub decoded_by_copy: u64,
    /// Reads of partial clusters that hit the cache, for all images that share it.
    pub cache_hits: u64,
}

/// A file that contains inodes and the data that follows them ([`IN_BOX`]).
pub(super) trait MetadataBox: Send + Sync {
    fn len_bytes(&self) -> u64;

    /// Fills `buf` from offset `at` of the box. The range must be within the box.
    fn read(&self, buf: &mut [u8], at: u64) -> Result<()>;
}

impl Image {
    /// Creates an image without its metadata box and its own prefixes.
    pub(super) fn new(
        source: Box<dyn ReadAt>,
        superblock: Superblock,
        devices: Devices,
        cache: &ClusterCache,
        len_bytes: u64,
    ) -> Result<Self> {
        let shared = Shared {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            is_far: source.is_far() || devices.are_far(),
            source,
            len_bytes,
            devices,
            superblock,
            names: Cache::new(NAMES_CACHE_BYTES),
            windows: Cache::new(INDEX_CACHE_BYTES),
            kept_indexes: Arc::new(Budget::new(INDEX_CACHE_BYTES)),
            clusters: cache.join()?,
            counters: Default::default(),
        };
        Ok(Self { shared: Arc::new(shared), long_prefixes: (Arc::default(), 0..0), metabox: None })
    }

    pub(super) fn set_metabox(&mut self, metabox: Arc<dyn MetadataBox>) {
        self.metabox = Some(metabox);
    }

    pub(super) fn set_long_prefixes(&mut self, prefixes: Vec<Prefix>, place: Range<u64>) {
        self.long_prefixes = (prefixes.into(), place);
    }

    /// Returns the image's superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.shared.superblock
    }

    /// Returns the image's length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.shared.len_bytes
    }

    /// Returns the length of the units in which the image's source fetches.
    pub(super) fn unit_bytes(&self) -> u64 {
        self.shared.source.unit_bytes().max(1)
    }

    /// Returns whether [a source](ReadAt::is_far) of the image is far.
    pub(super) fn is_far(&self) -> bool {
        self.shared.is_far
    }

    /// Returns the source of a device or the image.
    pub(super) fn source_of(&self, device: u16) -> &dyn ReadAt {
        self.shared.devices.source(device).unwrap_or(&*self.shared.source)
    }

    /// Checks that the image is as long as its superblock says. Otherwise, a truncated image can be
    /// opened, and reads of the missing part fail.
    ///
    /// # Errors
    /// [`Error::TooShort`].
    pub fn check_len(&self) -> Result<()> {
        let found = self.len_bytes();
        let expected = self.superblock().blocks.saturating_mul(self.superblock().block_bytes());
        if expected > found { Err(Error::TooShort { expected, found }) } else { Ok(()) }
    }

    /// Returns the image's counters.
    pub fn counts(&self) -> ReadCounts {
        let sum = |counter: fn(&Counters) -> &AtomicU64| {
            self.shared.counters.iter().map(|counters| counter(counters).load(Ordering::Relaxed)).sum()
        };
        ReadCounts {
            decoded_in_place: sum(|counters| &counters.in_place),
            decoded_by_copy: sum(|counters| &counters.copied),
            cache_hits: self.shared.clusters.hits(),
        }
    }

    /// Reads metadata, which may be in the metadata box. If the image ends earlier, that is an
    /// error.
    pub(crate) fn read_meta(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if buf.len() <= near::SHORT_BYTES {
            return self.read_near(buf, offset);
        }
        self.check_range(buf.len() as u64, offset)?;
        if offset >= IN_BOX {
            return self.read_box(buf, offset);
        }
        self.read_source(buf, offset)
    }

    /// Like [`read_meta`](Self::read_meta), for data near previous or following reads.
    pub(crate) fn read_near(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check_range(buf.len() as u64, offset)?;
        if offset >= IN_BOX {
            return self.read_box(buf, offset);
        }
        near::read(self.shared.number, self.shared.len_bytes, buf, offset, |buf, offset| self.read_source(buf, offset))
    }

    #[cold]
    fn read_box(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.metabox.as_ref().map_or(Ok(()), |metabox| metabox.read(buf, offset - IN_BOX))
    }

    fn read_source(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let reading = |error| Error::io(format!("reading the image at {offset}"))(error);
        self.shared.source.read_exact_at(buf, offset).map_err(reading)
    }

    /// Resolves `address` on the device `number`; 0 for a unified address.
    pub(crate) fn spot(&self, number: u16, address: u64) -> Result<Spot> {
        let no_device = || Error::corrupt("data lies on a device that the image does not have", address);
        self.shared.devices.spot(number, address).map_or_else(no_device, Ok)
    }

    /// Returns the tags of the other devices with data of the image, and their lengths in bytes. If
    /// all are within the image, there are none.
    pub fn other_devices(&self) -> impl Iterator<Item = ([u8; 64], u64)> + '_ {
        self.shared.devices.others()
    }

    /// Returns the length in bytes of a device or, for 0, of the image.
    pub(crate) fn device_len(&self, device: u16) -> u64 {
        if device == 0 { self.len_bytes() } else { self.shared.devices.len_bytes(device) }
    }

    /// Checks that `len` bytes exist at a place.
    pub(crate) fn check_spot(&self, len: u64, at: Spot) -> Result<()> {
        match at.offset.checked_add(len) {
            _ if at.device == 0 => self.check_range(len, at.offset),
            Some(end) if end <= self.device_len(at.device) => Ok(()),
            _ => Error::corrupt("device ends before this structure", at.offset),
        }
    }

    /// Reads from a device or the image.
    pub(crate) fn read_spot(&self, buf: &mut [u8], at: Spot) -> Result<()> {
        let Some(source) = self.shared.devices.source(at.device) else { return self.read_meta(buf, at.offset) };
        self.check_spot(buf.len() as u64, at)?;
        let Spot { device, offset } = at;
        source
            .read_exact_at(buf, offset)
            .map_err(|error| Error::io(format!("reading device {device} at {offset}"))(error))
    }

    /// Reads from devices and the image; reads of the same one are made together.
    pub(crate) fn read_spots(&self, mut parts: Vec<(Spot, &mut [u8])>) -> Result<()> {
        if let [(at, buf)] = &mut parts[..] {
            return self.read_spot(buf, *at);
        }
        for (at, buf) in &parts {
            self.check_spot(buf.len() as u64, *at)?;
        }
        parts.sort_by_key(|(at, _)| at.device);
        for parts in parts.chunk_by_mut(|(at, _), (next, _)| at.device == next.device) {
            let device = parts.first().map_or(0, |(at, _)| at.device);
            let mut parts: Vec<_> = parts.iter_mut().map(|(at, buf)| (at.offset, &mut **buf)).collect();
            let reading = format!("reading from device {device}");
            self.source_of(device).read_all_at(&mut parts).map_err(Error::io(reading))?;
        }
        Ok(())
    }

    /// Reads data at a unified address.
    pub(crate) fn read_data(&self, buf: &mut [u8], address: u64) -> Result<()> {
        if self.shared.devices.is_empty() {
            return self.read_meta(buf, address);
        }
        self.read_spot(buf, self.spot(0, address)?)
    }

    /// Like [`read_data`](Self::read_data), without waiting for storage. Returns how many bytes are
    /// filled.
    pub(crate) fn try_read_data(&self, buf: &mut [u8], address: u64) -> usize {
        self.spot(0, address).map_or(0, |at| self.try_read_spot(buf, at))
    }

    /// Like `try_read_data`, for a device or the image. Metadata in the metadata box counts as a wait.
    pub(crate) fn try_read_spot(&self, buf: &mut [u8], at: Spot) -> usize {
        if at.offset >= IN_BOX || self.check_spot(buf.len() as u64, at).is_err() {
            return 0;
        }
        self.source_of(at.device).try_read_at(buf, at.offset)
    }

    /// Returns the file with the image's data if each byte is at its unified address in it, and
    /// checks that it has `len` bytes at `address`. Returns `None` if the data is not in one such
    /// file.
    pub(crate) fn data_file(&self, len: u64, address: u64) -> Result<Option<&std::fs::File>> {
        if !self.shared.devices.is_empty() || address >= IN_BOX {
            return Ok(None);
        }
        self.check_range(len, address)?;
        Ok(self.shared.source.file())
    }

    pub(crate) fn check_range(&self, len: u64, offset: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.shared.len_bytes => Ok(()),
            Some(end) if offset >= IN_BOX && end <= self.end_around(offset) => Ok(()),
            _ if offset >= IN_BOX => Error::corrupt("metadata box ends before this structure", offset),
            _ => Err(self.ends_before(offset)),
        }
    }

    /// Returns the error for a structure at `offset`, which is not in the image.
    pub(crate) fn ends_before(&self, offset: u64) -> Error {
        Error::Truncated { offset, len_bytes: self.shared.len_bytes }
    }

    /// Returns the end of the image or metadata box that contains `offset`.
    pub(crate) fn end_around(&self, offset: u64) -> u64 {
        match &self.metabox {
            _ if offset < IN_BOX => self.shared.len_bytes,
            Some(metabox) => IN_BOX + metabox.len_bytes(),
            None => IN_BOX,
        }
    }

    /// Returns the offset of a block with a 48-bit address; `None` if no image can contain it.
    pub(crate) fn block_offset(&self, blkaddr: u64) -> Option<u64> {
        blkaddr.checked_mul(self.superblock().block_bytes()).filter(|offset| *offset < IN_BOX)
    }

    pub(crate) fn long_prefixes(&self) -> &[Prefix] {
        &self.long_prefixes.0
    }

    /// Returns the place of the prefixes in the image; empty if they are in the packed inode.
    pub(crate) fn long_prefixes_place(&self) -> Range<u64> {
        self.long_prefixes.1.clone()
    }

    /// Returns the cache of directory blocks.
    pub(super) fn names(&self) -> &Cache<(u64, u64), Content> {
        &self.shared.names
    }

    pub(crate) fn windows(&self) -> &Cache<(u64, u64), Box<[Lcluster]>> {
        &self.shared.windows
    }

    pub(crate) fn kept_indexes(&self) -> &Arc<Budget> {
        &self.shared.kept_indexes
    }

    pub(crate) fn clusters(&self) -> &Clusters {
        &self.shared.clusters
    }

    pub(crate) fn buffers(&self) -> &Buffers {
        self.shared.clusters.buffers()
    }

    pub(crate) fn segments(&self) -> &Segments {
        self.shared.clusters.segments()
    }

    /// Returns data at a unified address in place if the source is in memory.
    pub(crate) fn bytes_at(&self, len: usize, address: u64) -> Result<Option<&[u8]>> {
        let at = self.spot(0, address)?;
        self.check_spot(len as u64, at)?;
        let source = self.source_of(at.device);
        Ok(if at.offset < IN_BOX { source.bytes_at(len, at.offset) } else { None })
    }

    /// Counts operations on a cluster at `pa`.
    pub(crate) fn count(&self, counts: &ReadCounts, pa: u64) {
        let counters = &self.shared.counters[(pa >> self.shared.superblock.blkszbits) as usize % COUNTERS];
        for (counter, count) in
            [(&counters.in_place, counts.decoded_in_place), (&counters.copied, counts.decoded_by_copy)]
        {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
    }
}

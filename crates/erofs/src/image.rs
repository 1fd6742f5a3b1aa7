//! An open image.

use std::cell::RefCell;
use std::fs::File as OsFile;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use crate::buffers::{Buffers, Content};
use crate::cache::{Cache, Kept};
use crate::clusters::{ClusterCache, Clusters};
use crate::devices::{Devices, Spot};
use crate::error::{Error, Result};
use crate::file::{Data, File};
use crate::format::incompat;
use crate::inode::{FileKind, Inode};
use crate::metabox::{IN_BOX, Metabox};
use crate::segments::Segments;
use crate::source::ReadAt;
use crate::superblock::Superblock;
use crate::xattr::Prefix;
use crate::zmap::Lcluster;

/// Memory for blocks of directories, in bytes, and what one takes besides its own.
const NAMES_CACHE_BYTES: usize = 1 << 20;
const KEPT_BYTES: usize = 128;
/// Memory for decoded indexes, in bytes: those that open files keep, and as much for those that
/// they share.
const INDEX_CACHE_BYTES: usize = 2 << 20;
/// Symbolic links that a path may pass through, as in Linux.
const MAX_LINKS: u32 = 40;

/// Parts of what is counted.
const COUNTERS: usize = 16;

/// Longer reads than this are none of inodes, headers and a few indexes.
const SHORT_BYTES: usize = 512;
/// What a thread reads at once for short reads, since what belongs to a file lies side by side, and
/// files that do.
const NEAR_BYTES: u64 = 4096;
/// And where it comes back: a walk finds inodes of a directory among those of some others.
const AREA_BYTES: u64 = 16 << 10;

/// The number of the next image that is opened.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// Areas of which a thread keeps what it read: a walk comes from a directory's names to inodes,
/// headers and back.
const AREAS: usize = 16;

thread_local! {
    static NEAR: RefCell<Option<Box<Near>>> = RefCell::default();
}

/// What a thread's last short reads came from.
struct Near {
    /// The image's number, 0 for none, and the part of the area that was read. Each area has one
    /// place.
    places: [(u64, Range<u64>); AREAS],
    /// Memory is taken as they are read.
    bytes: Vec<u8>,
}

impl Near {
    fn new() -> Box<Self> {
        Box::new(Self { places: [const { (0, 0..0) }; _], bytes: vec![0; AREAS * AREA_BYTES as usize] })
    }
}

/// An EROFS image, open for reading by any number of threads. A clone is the same open image.
///
/// Nothing in it is trusted: any bytes give data or an [`Error`], in bounded time and memory.
#[derive(Clone)]
pub struct Image {
    shared: Arc<Shared>,
    /// The image's own prefixes of xattrs' names, and where they lie in it.
    long_prefixes: (Arc<[Prefix]>, Range<u64>),
    /// The metadata box reads its own file through an image that has none.
    metabox: Option<Arc<Metabox>>,
}

struct Shared {
    /// In this process.
    number: u64,
    source: Box<dyn ReadAt>,
    len_bytes: u64,
    devices: Devices,
    superblock: Superblock,
    /// Blocks of directories, by nid and number.
    names: Cache<(u64, u64), Content>,
    /// Decoded indexes, by nid and number of the window.
    windows: Cache<(u64, u64), Box<[Lcluster]>>,
    /// What open files keep of them.
    kept_indexes: Arc<Budget>,
    clusters: Clusters,
    /// Many, so that threads seldom count in the same one.
    counters: [CachePadded<Counters>; COUNTERS],
}

/// Bytes that several may take, within a bound.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicUsize,
}

impl Budget {
    fn new(bytes: usize) -> Self {
        Self { left: AtomicUsize::new(bytes) }
    }

    /// Takes bytes, if so many are left.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    pub(crate) fn give(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Counters {
    in_place: AtomicU64,
    copied: AtomicU64,
}

/// What an image has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// LZ4 clusters decoded over their own compressed bytes.
    pub decoded_in_place: u64,
    /// Clusters decoded from elsewhere: other formats, LZ4 where the margin did not suffice, images
    /// in memory.
    pub decoded_by_copy: u64,
    /// Reads of part of a cluster that found it decoded; those of all images that share the cache.
    pub cache_hits: u64,
}

impl Image {
    /// Bytes of decoded clusters that [`open`](Self::open) keeps at most.
    pub const DEFAULT_CACHE_BYTES: usize = 128 << 20;

    /// Opens an image file.
    pub fn open_path(path: &Path) -> Result<Self> {
        let file = OsFile::open(path).map_err(Error::io(format!("opening {}", path.display())))?;
        Self::open(file)
    }

    /// Opens the image that `source` holds.
    pub fn open(source: impl ReadAt + 'static) -> Result<Self> {
        Self::open_with(source, Self::DEFAULT_CACHE_BYTES)
    }

    /// Opens the image that `source` holds, with at most `cache_bytes` of decoded clusters kept.
    pub fn open_with(source: impl ReadAt + 'static, cache_bytes: usize) -> Result<Self> {
        Self::open_with_devices(source, Vec::new(), cache_bytes)
    }

    /// As [`open_with`](Self::open_with), an image that has data on other devices, which are given
    /// in the order of its table: for `mkfs.erofs --blobdev=X` that is X, for `--tar=i` the
    /// archive. Without any, data that the table maps to blocks behind the image's own is looked
    /// for there.
    ///
    /// # Errors
    /// [`Error::Devices`] where there are not as many, or one is shorter than the table says, besides what makes [`open`](Self::open) fail.
    pub fn open_with_devices(
        source: impl ReadAt + 'static,
        devices: Vec<Box<dyn ReadAt>>,
        cache_bytes: usize,
    ) -> Result<Self> {
        Self::open_sharing(source, devices, &ClusterCache::of_one(cache_bytes))
    }

    /// As [`open_with_devices`](Self::open_with_devices), with decoded clusters kept in a cache
    /// that other images may use too.
    ///
    /// # Errors
    /// As there; and [`Error::Options`] once more than four thousand million images have shared the
    /// cache.
    pub fn open_sharing(
        source: impl ReadAt + 'static,
        devices: Vec<Box<dyn ReadAt>>,
        cache: &ClusterCache,
    ) -> Result<Self> {
        let len_bytes = source.len_bytes().map_err(Error::io("asking for the image's length"))?;
        let superblock = Superblock::read(&source, len_bytes)?;
        let slots = superblock.read_devices(&source, len_bytes)?;
        let wide = superblock.has(incompat::ADDRESSES_48BIT);
        let devices = Devices::open(&slots, (superblock.block_bytes(), wide), devices, len_bytes)?;
        let shared = Shared {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            source: Box::new(source),
            len_bytes,
            devices,
            superblock,
            names: Cache::new(NAMES_CACHE_BYTES),
            windows: Cache::new(INDEX_CACHE_BYTES),
            kept_indexes: Arc::new(Budget::new(INDEX_CACHE_BYTES)),
            clusters: cache.join()?,
            counters: Default::default(),
        };
        let mut image = Self { shared: Arc::new(shared), long_prefixes: (Arc::default(), 0..0), metabox: None };
        if let Some(nid) = image.superblock().metabox_nid {
            image.metabox = Some(Arc::new(Metabox::open(&image, nid)?));
        }
        let (prefixes, place) = image.read_long_prefixes()?;
        Ok(Self { long_prefixes: (prefixes.into(), place), ..image })
    }

    /// The image's superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.shared.superblock
    }

    /// Bytes of the image.
    pub fn len_bytes(&self) -> u64 {
        self.shared.len_bytes
    }

    /// What the image has done so far.
    pub fn counts(&self) -> Counts {
        let sum = |counter: fn(&Counters) -> &AtomicU64| {
            self.shared.counters.iter().map(|counters| counter(counters).load(Ordering::Relaxed)).sum()
        };
        Counts {
            decoded_in_place: sum(|counters| &counters.in_place),
            decoded_by_copy: sum(|counters| &counters.copied),
            cache_hits: self.shared.clusters.hits(),
        }
    }

    /// The inode `nid`.
    pub fn inode(&self, nid: u64) -> Result<Inode> {
        Inode::read(self, nid)
    }

    /// The root directory.
    pub fn root(&self) -> Result<Inode> {
        let root = self.inode(self.shared.superblock.root_nid)?;
        if root.kind == FileKind::Directory { Ok(root) } else { Error::corrupt("root is not a directory", root.offset) }
    }

    /// The inode at `path`, which is taken from the root whether or not it starts with a slash.
    /// Symbolic links on the way are followed within the image; one at the end is only if there is
    /// a slash behind it.
    pub fn resolve(&self, path: &[u8]) -> Result<Inode> {
        let not_found = || Error::NotFound(String::from_utf8_lossy(path).into_owned());
        let mut todo: Vec<Vec<u8>> = split(path);
        let mut parents: Vec<Inode> = Vec::new();
        let mut here = self.root()?;
        let mut links = 0;
        let follow_last = path.ends_with(b"/") || path.ends_with(b"/.");
        while let Some(name) = todo.pop() {
            if name == b".." {
                here = parents.pop().map_or_else(|| self.root(), Ok)?;
                continue;
            }
            if here.kind != FileKind::Directory {
                return Err(Error::NotA("directory"));
            }
            let next = self.inode(self.lookup(&here, &name)?.ok_or_else(not_found)?)?;
            if next.kind == FileKind::Symlink && (follow_last || !todo.is_empty()) {
                links += 1;
                if links > MAX_LINKS {
                    return Err(not_found());
                }
                let target = self.read_link(&next)?;
                if target.starts_with(b"/") {
                    here = self.root()?;
                    parents.clear();
                }
                todo.extend(split(&target));
                continue;
            }
            parents.push(std::mem::replace(&mut here, next));
        }
        Ok(here)
    }

    /// A symbolic link's target: 1 to 4095 bytes.
    pub fn read_link(&self, link: &Inode) -> Result<Vec<u8>> {
        if link.kind != FileKind::Symlink {
            return Err(Error::NotA("symbolic link"));
        }
        let mut target = vec![0; link.size as usize];
        self.read_exact_at(link, &mut target, 0)?;
        if target.contains(&0) {
            return Error::corrupt("symbolic link holds a NUL", link.offset);
        }
        Ok(target)
    }

    /// Opens a file, directory or symbolic link for reading.
    pub fn file(&self, inode: &Inode) -> Result<File> {
        File::open(self, inode)
    }

    /// Fills `buf` with the content of `inode` from `offset`.
    pub fn read_exact_at(&self, inode: &Inode, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = Data::open(self, inode)?.read_at(buf, offset)?;
        if len == buf.len() { Ok(()) } else { Error::corrupt("data end before the declared size", inode.offset) }
    }

    /// Reads what an image must have where it says, which may be in its metadata box.
    pub(crate) fn read_meta(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if buf.len() <= SHORT_BYTES {
            return self.read_near(buf, offset);
        }
        self.check_range(buf.len() as u64, offset)?;
        if offset >= IN_BOX {
            return self.read_box(buf, offset);
        }
        self.read_source(buf, offset)
    }

    /// As [`read_meta`](Self::read_meta), for what lies beside what was read, or will be.
    pub(crate) fn read_near(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check_range(buf.len() as u64, offset)?;
        if offset >= IN_BOX {
            return self.read_box(buf, offset);
        }
        let (area, end) = (offset / AREA_BYTES * AREA_BYTES, offset + buf.len() as u64);
        if end > area + AREA_BYTES {
            return self.read_source(buf, offset);
        }
        // Taken, not borrowed: a source may itself lie in an image.
        let mut last = NEAR.take().unwrap_or_else(Near::new);
        let number = (offset / AREA_BYTES) as usize % AREAS;
        let Near { places, bytes } = &mut *last;
        let (image, have) = &mut places[number];
        let bytes = &mut bytes[number * AREA_BYTES as usize..][..AREA_BYTES as usize];
        let within = |range: &Range<u64>| (range.start - area) as usize..(range.end - area) as usize;
        let same = *image == self.shared.number;
        if !(same && have.start <= offset && end <= have.end) {
            let comes_back = same && have.start / AREA_BYTES * AREA_BYTES == area;
            let unit = if comes_back { AREA_BYTES } else { NEAR_BYTES };
            *have = offset / unit * unit..end.next_multiple_of(unit).min(self.shared.len_bytes);
            *image = 0;
            self.read_source(&mut bytes[within(have)], have.start)?;
            *image = self.shared.number;
        }
        buf.copy_from_slice(&bytes[within(&(offset..end))]);
        NEAR.set(Some(last));
        Ok(())
    }

    #[cold]
    fn read_box(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.metabox.as_ref().map_or(Ok(()), |metabox| metabox.read(buf, offset - IN_BOX))
    }

    fn read_source(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let reading = |error| Error::io(format!("reading the image at {offset}"))(error);
        self.shared.source.read_exact_at(buf, offset).map_err(reading)
    }

    /// Where data lies that the image has at `address` of the device `number`, 0 for what names
    /// none.
    pub(crate) fn spot(&self, number: u16, address: u64) -> Result<Spot> {
        let no_device = || Error::corrupt("data lies on a device that the image does not have", address);
        self.shared.devices.spot(number, address).map_or_else(no_device, Ok)
    }

    /// Bytes of a device, or of the image.
    pub(crate) fn device_len(&self, device: u16) -> u64 {
        if device == 0 { self.len_bytes() } else { self.shared.devices.len_bytes(device) }
    }

    /// Whether there are `len` bytes from a place on.
    pub(crate) fn check_spot(&self, len: u64, at: Spot) -> Result<()> {
        match at.offset.checked_add(len) {
            _ if at.device == 0 => self.check_range(len, at.offset),
            Some(end) if end <= self.device_len(at.device) => Ok(()),
            _ => Error::corrupt("device ends before this structure", at.offset),
        }
    }

    /// Reads what lies on a device, or in the image.
    pub(crate) fn read_spot(&self, buf: &mut [u8], at: Spot) -> Result<()> {
        let Some(source) = self.shared.devices.source(at.device) else { return self.read_meta(buf, at.offset) };
        self.check_spot(buf.len() as u64, at)?;
        let Spot { device, offset } = at;
        source
            .read_exact_at(buf, offset)
            .map_err(|error| Error::io(format!("reading device {device} at {offset}"))(error))
    }

    /// Reads data from a unified address.
    pub(crate) fn read_data(&self, buf: &mut [u8], address: u64) -> Result<()> {
        if self.shared.devices.is_empty() {
            return self.read_meta(buf, address);
        }
        self.read_spot(buf, self.spot(0, address)?)
    }

    /// The file with the image's data, each byte at its unified address, of which these are `len`
    /// from `address`. `None` where there is no such file, or not one.
    pub(crate) fn data_file(&self, len: u64, address: u64) -> Result<Option<&std::fs::File>> {
        if !self.shared.devices.is_empty() || address >= IN_BOX {
            return Ok(None);
        }
        self.check_range(len, address)?;
        Ok(self.shared.source.file())
    }

    /// A block of a directory.
    pub(crate) fn names(&self, directory: &Inode, number: u64) -> Result<Kept<Content>> {
        let block_bytes = self.superblock().block_bytes();
        let at = number * block_bytes;
        let len = (directory.size - at).min(block_bytes) as usize;
        self.shared.names.get((directory.nid, number), len + KEPT_BYTES, || {
            let mut content = self.buffers().take_kept(len);
            self.read_exact_at(directory, &mut content.room()[..len], at)?;
            Ok(content)
        })
    }

    pub(crate) fn check_range(&self, len: u64, offset: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.shared.len_bytes => Ok(()),
            Some(end) if offset >= IN_BOX && end <= self.end_around(offset) => Ok(()),
            _ => Error::corrupt("image ends before this structure", offset),
        }
    }

    /// The end of what holds `offset`: of the image, or of its metadata box.
    pub(crate) fn end_around(&self, offset: u64) -> u64 {
        match &self.metabox {
            _ if offset < IN_BOX => self.shared.len_bytes,
            Some(metabox) => IN_BOX + metabox.len_bytes(),
            None => IN_BOX,
        }
    }

    /// Where a block starts whose address has 48 bits; `None` for one that no image has.
    pub(crate) fn block_offset(&self, blkaddr: u64) -> Option<u64> {
        blkaddr.checked_mul(self.superblock().block_bytes()).filter(|offset| *offset < IN_BOX)
    }

    /// Where an inode ends, with its xattrs, indexes and inline data.
    pub(crate) fn record_end(&self, inode: &Inode) -> Result<u64> {
        match inode.kind {
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => Data::open(self, inode)?.record_end(),
            _ => Ok(inode.xattr_end),
        }
    }

    pub(crate) fn long_prefixes(&self) -> &[Prefix] {
        &self.long_prefixes.0
    }

    /// Where the prefixes lie in the image, if they do not in the packed inode.
    pub(crate) fn long_prefixes_place(&self) -> Range<u64> {
        self.long_prefixes.1.clone()
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

    /// Data from a unified address that the source has in memory, if it has.
    pub(crate) fn bytes_at(&self, len: usize, address: u64) -> Result<Option<&[u8]>> {
        let at = self.spot(0, address)?;
        self.check_spot(len as u64, at)?;
        let source = self.shared.devices.source(at.device).unwrap_or(&*self.shared.source);
        Ok(if at.offset < IN_BOX { source.bytes_at(len, at.offset) } else { None })
    }

    /// Counts what was done with a cluster at `pa`.
    pub(crate) fn count(&self, counts: &Counts, pa: u64) {
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

/// The parts of a path, last first.
fn split(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
        .rev()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BuildOptions, ScanOptions, Tree, build};

    #[test]
    fn open_files_keep_indexes_within_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        let content: Vec<u8> = (0..700_000u32).flat_map(|number| format!("{number:09x} and\n").into_bytes()).collect();
        std::fs::write(tree.join("file"), &content).unwrap();
        let path = folder.path().join("image");
        let out = OsFile::create_new(&path).unwrap();
        build(&Tree::scan(&tree, &ScanOptions::default()).unwrap(), &BuildOptions::default(), &out).unwrap();

        let image = Image::open_path(&path).unwrap();
        let inode = image.resolve(b"/file").unwrap();
        let left = || image.kept_indexes().left.load(Ordering::Relaxed);
        let reads = || {
            let file = image.file(&inode).unwrap();
            let mut buf = [0; 5000];
            for at in (0..content.len() - buf.len()).step_by(77_777) {
                assert_eq!(file.read_at(&mut buf, at as u64).unwrap(), buf.len());
                assert!(buf == content[at..at + buf.len()]);
            }
            left()
        };
        let blocks = content.len().div_ceil(4096);
        assert!(blocks > 2048);
        assert_eq!((reads(), left()), (INDEX_CACHE_BYTES - blocks * 8, INDEX_CACHE_BYTES));
        // For a part of them there is room, or for none.
        assert!(image.kept_indexes().take(INDEX_CACHE_BYTES - 10_000));
        assert_eq!((reads(), left()), (10_000 - 1024 * 8, 10_000));
        assert!(image.kept_indexes().take(10_000) && !image.kept_indexes().take(1));
        assert_eq!((reads(), left()), (0, 0));
    }
}

//! An open file.

use std::ops::Range;
use std::sync::Arc;

use pagefold_codec::cluster::ClusterFormat;

use super::content::Data;
use super::image::{Image, ReadCounts};
use super::inode::Inode;
use super::together::ReadPart;
use super::zmap::CompressedMap;
use crate::cache::{Buffers, Content, FileId, Segments, Workers, room_bytes};
use crate::error::Result;
use crate::format::{Extent, IN_BOX, Place};
use crate::readahead::{Ahead, AheadFile, Ready};

/// How [`File::cluster_bytes`] samples: the number of positions, the number of places in which they
/// are, and the bytes that the source may fetch for them.
const SAMPLES: u64 = 256;
const LEAST_PLACES: u64 = 2;
const MOST_PLACES: u64 = 16;
const SAMPLED_BYTES: u64 = 1 << 20;
/// The lengths that it returns.
const LEAST_CLUSTER_BITS: u32 = 12;
const MOST_CLUSTER_BITS: u32 = 20;

/// An open file, directory or symbolic link of an [`Image`].
///
/// If a file is read sequentially, background threads of the process decode ahead while a processor
/// is idle.
///
/// Clones share the file and its position for sequential reads.
#[derive(Clone)]
pub struct File {
    data: Arc<Data>,
    ahead: Arc<Ahead>,
}

impl File {
    pub(crate) fn open(image: &Image, inode: &Inode) -> Result<Self> {
        Ok(Self { data: Arc::new(Data::open(image, inode)?), ahead: Arc::default() })
    }

    pub(crate) fn data(&self) -> &Data {
        &self.data
    }

    /// Returns the image that contains the file.
    pub fn image(&self) -> &Image {
        &self.data.image
    }

    /// Like [`read_at`](Self::read_at), but without decoding ahead and without using `buf` past the
    /// bytes read.
    pub(crate) fn read_apart(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.data.read_at(buf, offset)
    }

    /// Returns the extents of a compressed file that overlap `range`, up to the end of the file.
    /// Returns none for an uncompressed file.
    pub(crate) fn extents(&self, range: Range<u64>) -> impl Iterator<Item = Result<Extent>> {
        self.data.extents(range)
    }

    /// Returns the size in bytes that the indexes or extents of a compressed file have once all of
    /// them are decoded.
    pub fn index_bytes(&self) -> u64 {
        self.data.map.as_ref().map_or(0, CompressedMap::decoded_bytes)
    }

    /// Returns the range of the image with the file's metadata: its inode, indexes and inline data.
    /// `None` if it is in a metadata box.
    pub fn metadata_place(&self) -> Result<Option<Range<u64>>> {
        let start = self.data.inode.offset;
        Ok(if start < IN_BOX { Some(start..self.data.record_end()?) } else { None })
    }

    /// Returns the file's inode.
    pub fn inode(&self) -> &Inode {
        &self.data.inode
    }

    /// Reads from `offset` into `buf`. Returns the number of bytes read: fewer than `buf` holds
    /// only at the end of the file, and 0 past it. The rest of `buf` may be overwritten, because
    /// content is decoded in place if there is some room after it. After an error, the contents of
    /// `buf` are unspecified.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_into(buf, buf.len(), offset)
    }

    /// Like [`read_at`](Self::read_at), but does not wait for storage. Fills `buf` from its start
    /// without waiting, and returns how many bytes are filled: holes, decoded content, what the
    /// source has at hand ([`ReadAt::try_read_at`](crate::ReadAt::try_read_at)), and short LZ4
    /// clusters of that, if little is wanted. An error counts as a wait.
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        let len = self.data.clip(buf.len(), offset);
        if self.data.map.is_none() {
            return self.data.try_read_at(&mut buf[..len], offset);
        }
        self.ahead.try_read(&self.data, &mut buf[..len], offset)
    }

    /// Runs several reads and sets their results. Each cluster of which they want parts is fetched
    /// and decoded once, and clusters that are close to each other are fetched together. Sequential
    /// reads among them are served as by [`read_at`](Self::read_at).
    pub fn read_together(&self, parts: &mut [ReadPart<'_>]) {
        let mut parts: Vec<_> = parts.iter_mut().collect();
        parts.sort_unstable_by_key(|part| part.offset);
        self.data.fetch(parts.iter().map(|part| part.offset..part.offset + part.buf.len() as u64));
        if self.data.map.is_none() {
            for part in parts {
                part.result = self.data.read_at(part.buf, part.offset).map(drop);
            }
            return;
        }
        parts.retain_mut(|part| {
            let len = part.buf.len();
            let is_in_order = self.ahead.follows(&*self.data, part.offset, len as u64);
            if is_in_order {
                part.result = self.ahead.read(&self.data, part.buf, len, part.offset);
            }
            !is_in_order
        });
        self.data.read_together(&mut parts);
    }

    /// Returns the length of most clusters' content, rounded up to a power of two from 4 KiB to 1
    /// MiB: reads in a range of that length, aligned to it, usually share a cluster. Examines
    /// samples in a few windows of the indexes, however long the file is. If the image's source
    /// fetches longer units, there are fewer windows.
    pub fn cluster_bytes(&self) -> Result<u64> {
        let Some(map) = &self.data.map else { return Ok(1 << LEAST_CLUSTER_BITS) };
        if let Some(len) = map.equal_extent_bytes() {
            return Ok(len.next_power_of_two().clamp(1 << LEAST_CLUSTER_BITS, 1 << MOST_CLUSTER_BITS));
        }
        let size = self.data.inode.size;
        let places = (SAMPLED_BYTES / self.data.image.unit_bytes()).clamp(LEAST_PLACES, MOST_PLACES);
        let samples = SAMPLES / places;
        let mut counts = [0; (MOST_CLUSTER_BITS - LEAST_CLUSTER_BITS) as usize + 1];
        let mut sample = |offset: u64| {
            let extent = self.data.extent_around(offset)?;
            if extent.is_encoded() {
                let bits = extent.len.next_power_of_two().trailing_zeros();
                counts[(bits.clamp(LEAST_CLUSTER_BITS, MOST_CLUSTER_BITS) - LEAST_CLUSTER_BITS) as usize] += 1;
            }
            Ok(())
        };
        let span = map.window_span_bytes();
        let starts = (0..places).map(|place| part(size, place, places)).filter(|start| *start < size);
        self.data.fetch_indexes(&starts.map(|start| start..start + 1).collect::<Vec<_>>());
        if size <= places * span {
            (0..SAMPLES.min(size)).map(|number| part(size, number, SAMPLES)).try_for_each(sample)?;
        } else {
            for place in 0..places {
                let start = part(size, place, places);
                (0..samples).map(|number| start + part(span, number, samples)).try_for_each(&mut sample)?;
            }
        }
        let (all, mut shorter) = (counts.iter().sum::<u64>(), 0);
        let most = counts.iter().position(|count| {
            shorter += count;
            shorter * 4 >= all * 3
        });
        Ok(1 << (LEAST_CLUSTER_BITS + most.unwrap_or(0) as u32))
    }

    /// Returns the counters of the file's image.
    pub fn counts(&self) -> ReadCounts {
        self.data.image.counts()
    }

    /// Like [`read_at`](Self::read_at), for at most `len` bytes. If `room` has
    /// [`room_bytes`](Self::room_bytes), the last cluster is decoded in place too.
    pub fn read_into(&self, room: &mut [u8], len: usize, offset: u64) -> Result<usize> {
        let len = self.data.clip(len.min(room.len()), offset);
        if self.data.map.is_none() {
            return self.data.read_at(&mut room[..len], offset);
        }
        self.ahead.read(&self.data, room, len, offset)?;
        Ok(len)
    }

    /// Reads `len` bytes, which must exist in the file, from `offset` to the front of `room`, which
    /// is longer. Does not decode ahead.
    pub(crate) fn read_alone(&self, room: &mut [u8], len: usize, offset: u64) -> Result<()> {
        if self.data.map.is_some() {
            return self.data.read_compressed(room, len, offset, true);
        }
        self.data.read_at(&mut room[..len], offset).map(drop)
    }

    /// Returns the most room that a read of `len` bytes can use.
    pub fn room_bytes(len: usize) -> usize {
        room_bytes(len)
    }

    /// Returns a buffer of at least `len` bytes with arbitrary contents.
    pub(crate) fn buffer(&self, len: usize) -> Content {
        self.data.image.buffers().take(len)
    }

    /// Reads the cluster of the extent of `len` bytes at `offset` into `bytes`. Returns `None` if
    /// it is not compressed or has other bounds.
    pub(crate) fn cluster_of(&self, offset: u64, len: usize, bytes: &mut Vec<u8>) -> Result<Option<ClusterFormat>> {
        if self.data.map.is_none() {
            return Ok(None);
        }
        let extent = self.data.extent_around(offset)?;
        match extent.place {
            Place::Encoded { pa, plen, format, partial: false }
                if (extent.start, extent.len) == (offset, len as u64) =>
            {
                bytes.resize(plen as usize, 0);
                self.data.image.read_data(bytes, pa)?;
                Ok(Some(format))
            }
            _ => Ok(None),
        }
    }

    /// Returns the number of bytes from `offset`, which must be within the file, to the end of the
    /// last extent that ends within `len` bytes. If none does, returns the length of the extent
    /// that starts at `offset`, if at most `most`; otherwise `len`.
    pub(crate) fn whole_extents(&self, len: usize, most: usize, offset: u64) -> Result<usize> {
        let end = offset + len as u64;
        if self.data.map.is_none() || end >= self.data.inode.size {
            return Ok(len);
        }
        let last = self.data.extent_around(end - 1)?;
        Ok(match (last.start - offset.min(last.start)) as usize {
            0 if last.start == offset && last.len <= most as u64 => last.len as usize,
            before if last.end() > end && before > 0 => before,
            _ => len,
        })
    }
}

/// Returns `number` parts of `whole`, which has `of` parts.
fn part(whole: u64, number: u64, of: u64) -> u64 {
    (u128::from(whole) * u128::from(number) / u128::from(of)) as u64
}

impl AheadFile for Data {
    fn id(&self) -> FileId {
        self.image.clusters().file(self.inode.nid)
    }

    fn size_bytes(&self) -> u64 {
        self.inode.size
    }

    fn segments(&self) -> &Segments {
        self.image.segments()
    }

    fn buffers(&self) -> &Buffers {
        self.image.buffers()
    }

    fn workers(&self) -> &Workers {
        self.image.clusters().workers()
    }

    fn is_far(&self) -> bool {
        self.image.is_far()
    }

    fn fetch(&self, range: Range<u64>) {
        self.fetch(std::iter::once(range));
    }

    fn extent_around(&self, offset: u64) -> Result<Extent> {
        self.extent_around(offset)
    }

    fn start_before(&self, offset: u64) -> Option<u64> {
        self.loaded_start_before(offset)
    }

    fn try_decode(&self, out: &mut [u8], offset: u64, ready: Ready) -> usize {
        self.try_compressed(out, offset, ready)
    }

    fn decode(&self, room: &mut [u8], len: usize, offset: u64, forward: bool) -> Result<()> {
        self.read_compressed(room, len, offset, forward)
    }
}

impl Image {
    /// Opens a file, directory or symbolic link for reading.
    pub fn file(&self, inode: &Inode) -> Result<File> {
        File::open(self, inode)
    }
}

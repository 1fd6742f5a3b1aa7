//! Reading of file content, compressed or not.
//!
//! ```text
//! for each extent that the buffer overlaps:
//!     a hole              is zeros
//!     a fragment          is read from the packed inode
//!     interlaced          is read from the image
//!     part of a cluster   is copied out of the cluster, which is decoded whole and cached, or decoded
//!                         up to what is needed (`read_part`)
//!     whole clusters      that are adjacent in the file and in the image form a run: one read, then
//!                         each is decoded to its place in the buffer
//! ```
//!
//! A run of LZ4 clusters is read to the end of the space that its content will fill, and decoded in
//! place:
//!
//! ```text
//!     |<------------------- content of a, b and c ------------------->|margin|
//!     |                                          |   a   |   b   |   c       |
//!     |<------- content of a ------->|           . . . . |   b   |   c       |
//! ```
//!
//! A cluster is shorter than its content, because otherwise it would be stored plain. So the output
//! stays behind the input that is still to be read. The margin is what one cluster needs at the
//! end. If an image violates this, or the buffer has no room for the margin, the decoder notices:
//! that cluster is decoded from a copy, and any overwritten input is read again.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::Ordering;

use pagefold_codec::cluster::{ClusterDecoder, ClusterFormat, DecodeLimits, Portion as Wanted};
use pagefold_codec::lz4::{decompress_in_place, in_place_margin};

use super::content::Data;
use super::image::{Image, ReadCounts};
use super::inode::Inode;
use super::zmap::{CompressedMap, Cursor};
use crate::cache::{Content, Kept};
use crate::error::{Error, Result};
use crate::format::{DataLayout, Extent, MAX_EXTENT_BYTES, Place, incompat};

/// Compressed bytes that are read together, unless a single cluster is longer.
const RUN_BYTES: usize = 64 << 10;

/// A longer read may need several clusters, which are fetched together if the source is far.
const LONE_BYTES: usize = 16 << 10;

/// The maximum size of content that is decoded whole and cached on the first access, while there is
/// room.
const CHEAP_BYTES: u64 = 32 << 10;

/// The minimum size of cluster content whose decoding counts as keeping a processor busy.
const BUSY_BYTES: u64 = 16 << 10;

/// If more than 1/`LIKELY` of a file's clusters were missed, the file is likely to be read
/// completely, and most of its clusters more than once.
const LIKELY: u64 = 8;

/// The maximum content of a Zstandard block (RFC 8878, section 3.1.1.2.4).
const ZSTD_BLOCK: usize = 128 << 10;

thread_local! {
    static DECODER: RefCell<Scratch> = RefCell::default();
}

/// A thread's decoder and buffers.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) decoder: ClusterDecoder,
    /// Compressed bytes.
    pub(super) src: Vec<u8>,
    /// Content of which only a part is wanted.
    pub(super) content: Vec<u8>,
}

impl Scratch {
    /// Runs `work` with the thread's scratch. If the source is itself a file in an image, this
    /// nests, and the inner call gets a new scratch.
    pub(super) fn lend<T>(work: impl FnOnce(&mut Self) -> T) -> T {
        let mut scratch = DECODER.take();
        let result = work(&mut scratch);
        DECODER.set(scratch);
        result
    }
}

/// Extents whose clusters are adjacent.
#[derive(Default)]
struct Run {
    extents: Vec<Extent>,
}

impl Data {
    /// Reads from `offset` into `buf`. Returns the number of bytes read.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let len = self.clip(buf.len(), offset);
        let buf = &mut buf[..len];
        if buf.is_empty() {
            return Ok(0);
        }
        match self.inode.layout {
            DataLayout::FlatPlain | DataLayout::FlatInline => self.read_flat(buf, offset)?,
            DataLayout::ChunkBased => self.read_chunks(buf, offset)?,
            DataLayout::CompressedFull | DataLayout::CompressedCompact => {
                self.read_compressed(buf, len, offset, false)?;
            }
        }
        Ok(len)
    }

    /// Reads `len` bytes, which must exist in the file, from `offset` to the front of `room`. All
    /// of `room` may be overwritten. If `forward`, the reader is likely to continue with the bytes
    /// that follow.
    pub(crate) fn read_compressed(&self, room: &mut [u8], len: usize, offset: u64, forward: bool) -> Result<()> {
        let Some(map) = &self.map else { return Err(Error::NotA("compressed file")) };
        let mut cursor = Cursor::default();
        let mut run = Run::default();
        let mut found = None;
        let end = offset + len as u64;
        if len > LONE_BYTES {
            self.fetch(std::iter::once(offset..end));
        }
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let extent = match found.take() {
                Some(extent) => extent,
                None => map.extent_at(&self.image, &mut cursor, at)?,
            };
            let here = (extent.end() - at).min((len - done) as u64) as usize;
            let skipped = at - extent.start;
            let whole = skipped == 0 && here as u64 == extent.len;
            let out = &mut room[done..done + here];
            match extent.place {
                Place::Hole => out.fill(0),
                Place::Fragment { offset } => self.read_fragment(out, offset, skipped)?,
                Place::Plain { pa, plen, interlaced: true } => {
                    self.read_interlaced(out, &extent, (pa, plen), skipped)?;
                }
                Place::Plain { pa, .. } if !whole => self.image.read_data(out, pa + skipped)?,
                Place::Encoded { .. } if !whole => self.read_part(&extent, out, skipped as usize, forward)?,
                _ => {
                    found = self.gather(map, &mut cursor, extent, end, &mut run)?;
                    let content = run.content_bytes();
                    self.decode_run(&run.extents, &mut room[done..])?;
                    done += content;
                    continue;
                }
            }
            done += here;
        }
        Ok(())
    }

    /// Collects an extent and adjacent ones that end by `end` into `run`. Returns the next extent
    /// if it was looked up but does not belong to the run.
    fn gather(
        &self,
        map: &CompressedMap,
        cursor: &mut Cursor,
        first: Extent,
        end: u64,
        run: &mut Run,
    ) -> Result<Option<Extent>> {
        run.extents.clear();
        run.extents.push(first);
        let (mut last, mut stored) = (first, cluster_bytes(&first));
        while last.end() < end && stored < RUN_BYTES {
            let next = map.extent_at(&self.image, cursor, last.end())?;
            let joins = match (address(&last), address(&next)) {
                (Some(before), Some(pa)) => pa == before + cluster_bytes(&last) as u64,
                _ => false,
            };
            if !joins || next.end() > end {
                return Ok(Some(next));
            }
            stored += cluster_bytes(&next);
            run.extents.push(next);
            last = next;
        }
        Ok(None)
    }

    fn read_fragment(&self, buf: &mut [u8], offset: u64, skipped: u64) -> Result<()> {
        let at = offset.checked_add(skipped);
        match (&self.packed, at) {
            (Some(packed), Some(at)) if packed.read_at(buf, at)? == buf.len() => Ok(()),
            _ => Error::corrupt("fragment lies outside the packed inode", self.inode.offset),
        }
    }

    /// Reads an interlaced extent. Its first part, up to the end of its first block in the file, is
    /// at the end of its cluster. The rest is at the front of the cluster.
    fn read_interlaced(&self, buf: &mut [u8], extent: &Extent, (pa, plen): (u64, u32), skipped: u64) -> Result<()> {
        let [(at_end, end_pa), (at_front, front_pa)] = self.interlaced(buf, extent, (pa, plen), skipped);
        if !at_end.is_empty() {
            self.image.read_data(at_end, end_pa)?;
        }
        if at_front.is_empty() { Ok(()) } else { self.image.read_data(at_front, front_pa) }
    }

    /// Splits `buf` into the parts that are at the end and at the front of an interlaced cluster,
    /// each with its address.
    pub(super) fn interlaced<'a>(
        &self,
        buf: &'a mut [u8],
        extent: &Extent,
        (pa, plen): (u64, u32),
        skipped: u64,
    ) -> [(&'a mut [u8], u64); 2] {
        let block = self.block_bytes();
        let front = block - extent.start % block;
        let (at_end, at_front) = buf.split_at_mut(front.saturating_sub(skipped).min(buf.len() as u64) as usize);
        let end_pa = (pa + u64::from(plen)).saturating_sub(front) + skipped;
        [(at_end, end_pa), (at_front, pa + skipped.saturating_sub(front))]
    }

    /// Fills `out` from the cache, from a cluster of which only the needed front is decoded, or
    /// from one that is decoded and cached.
    fn read_part(&self, extent: &Extent, out: &mut [u8], from: usize, forward: bool) -> Result<()> {
        let Place::Encoded { pa, plen, format, .. } = extent.place else {
            return Err(Error::NotA("compressed extent"));
        };
        let to = from + out.len();
        let clusters = self.image.clusters();
        if let Some(content) = clusters.find(pa, extent.len) {
            // Visits matter only if the cache must soon evict. Until then, counting them would cost
            // one more cache line.
            if clusters.is_filling() {
                clusters.visit(pa);
            }
            content.read(from, out);
            return Ok(());
        }
        let visits = clusters.visit(pa);
        let _busy = (extent.len >= BUSY_BYTES).then(|| clusters.workers().enter());
        let misses = self.missed.fetch_add(1, Ordering::Relaxed);
        if forward || self.is_wanted(extent, (pa, format), to, visits, misses) {
            out.copy_from_slice(&self.cached(extent)?[from..to]);
            return Ok(());
        }
        Scratch::lend(|Scratch { decoder, src, content }| {
            let src = self.compressed(pa, plen as usize, src)?;
            let (len, wanted) = match front(format, to, extent.len as usize) {
                len if len as u64 == extent.len => (len, Wanted::Whole),
                len => (len, Wanted::Prefix),
            };
            if content.len() < len {
                content.resize(len, 0);
            }
            self.decode_one(extent, src, &mut content[..len], wanted, decoder)?;
            self.image.count(&ReadCounts { decoded_by_copy: 1, ..ReadCounts::default() }, pa);
            out.copy_from_slice(&content[from..to]);
            Ok(())
        })
    }

    /// Returns whether a cluster is worth caching. Parts of it were read `visits` times, this time
    /// up to `to`. Reads of its file missed the cache `misses` times.
    pub(super) fn is_wanted(
        &self,
        extent: &Extent,
        (pa, format): (u64, ClusterFormat),
        to: usize,
        visits: u64,
        misses: u64,
    ) -> bool {
        let room = extent.len as usize + self.margin(extent);
        let clusters = self.image.clusters();
        match clusters.visits_of_victim(pa, extent.len, room) {
            // One extra visit may be noise; a cluster that missed again immediately is admitted.
            Some(of_other) => visits > of_other + 1 || clusters.missed_again(pa),
            // There is room, and decoding is expensive.
            None if format != ClusterFormat::Lz4 => true,
            // LZ4 decodes fast. Decoding the rest takes time, and touching fresh memory takes about
            // as much again.
            None => {
                let likely = misses * LIKELY > self.inode.size / extent.len;
                visits > 1 || extent.len <= CHEAP_BYTES || to as u64 > extent.len / 4 * 3 || likely
            }
        }
    }

    /// Returns compressed bytes in place if the image is in memory, else reads them into `src`.
    fn compressed<'a>(&'a self, pa: u64, stored: usize, src: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        if let Some(bytes) = self.image.bytes_at(stored, pa)? {
            return Ok(bytes);
        }
        if src.len() < stored {
            src.resize(stored, 0);
        }
        self.image.read_data(&mut src[..stored], pa)?;
        Ok(&src[..stored])
    }

    /// Returns the decoded content of an extent, from the cache if it is there.
    fn cached(&self, extent: &Extent) -> Result<Kept<Content>> {
        let Place::Encoded { pa, .. } = extent.place else { return Err(Error::NotA("compressed extent")) };
        let len = extent.len as usize;
        let room = len + self.margin(extent);
        self.image.clusters().get(pa, extent.len, room, || {
            let mut content = self.image.buffers().take_kept(room);
            self.decode_run(std::slice::from_ref(extent), content.room())?;
            Ok(content.shorten(len))
        })
    }

    /// Returns the space that decoding an extent in place needs after its content.
    pub(super) fn margin(&self, extent: &Extent) -> usize {
        match extent.place {
            Place::Encoded { plen, format: ClusterFormat::Lz4, .. } => in_place_margin(plen as usize),
            _ => 0,
        }
    }

    /// Decodes extents that are adjacent in the file and in the image to the front of `room`, which
    /// must hold their content. All of `room` may be overwritten.
    pub(super) fn decode_run(&self, mut run: &[Extent], mut room: &mut [u8]) -> Result<()> {
        let mut counts = ReadCounts::default();
        let at = run.first().and_then(address).unwrap_or(0);
        let padded = self.image.superblock().has(incompat::ZERO_PADDING);
        let in_place = |extent: &Extent| match extent.place {
            Place::Encoded { format, partial, .. } => format == ClusterFormat::Lz4 && padded && !partial,
            _ => true,
        };
        let overlays = run.iter().all(in_place);
        while let Some(first) = run.first() {
            let Some(pa) = address(first) else { return Err(Error::NotA("compressed extent")) };
            let stored = read_bytes(run).sum();
            let in_memory = self.image.bytes_at(stored, pa)?.is_some();
            // Without its margin, the last extent would fail near its end and have to be decoded
            // again.
            let over = if self.has_margin(run, room.len()) { run } else { &run[..run.len() - 1] };
            let done = if overlays && stored <= room.len() && !in_memory && !over.is_empty() {
                self.decode_over_itself(over, read_bytes(over).sum(), pa, room, &mut counts)?
            } else {
                self.decode_copied(run, stored, pa, room, &mut counts)?;
                run.len()
            };
            let content: u64 = run[..done].iter().map(|extent| extent.len).sum();
            room = &mut room[content as usize..];
            run = &run[done..];
        }
        self.image.count(&counts, at);
        Ok(())
    }

    /// Returns whether `room_bytes` hold the content of the extents and the margin of the last.
    fn has_margin(&self, run: &[Extent], room_bytes: usize) -> bool {
        let content: u64 = run.iter().map(|extent| extent.len).sum();
        run.last().is_none_or(|last| content as usize + self.margin(last) <= room_bytes)
    }

    /// Decodes extents in place, at least one, until one overwrites the input of the next. Returns
    /// the number of extents decoded.
    fn decode_over_itself(
        &self,
        run: &[Extent],
        stored: usize,
        pa: u64,
        room: &mut [u8],
        counts: &mut ReadCounts,
    ) -> Result<usize> {
        let content: usize = run.iter().map(|extent| extent.len as usize).sum();
        let margin = run.last().map_or(0, |last| self.margin(last));
        let end = room.len().min((content + margin).max(stored));
        let mut from = end - stored;
        self.image.read_data(&mut room[from..end], pa)?;
        let mut out = 0;
        for (number, (extent, stored)) in run.iter().zip(read_bytes(run)).enumerate() {
            let (len, to) = (extent.len as usize, from + stored);
            match extent.place {
                Place::Encoded { pa, .. } => {
                    let start = from + self.padding(&room[from..to], pa)?;
                    let decoded = out <= start
                        && out + len <= to
                        && match decompress_in_place(&mut room[out..to], start - out..to - out, len) {
                            Ok(()) => true,
                            // The room suffices for any valid cluster.
                            Err(error) if to - out >= len + self.margin(extent) => {
                                return Err(Error::Corrupt { what: error.what, offset: pa });
                            }
                            Err(_) => false,
                        };
                    if decoded {
                        counts.decoded_in_place += 1;
                    } else {
                        let one = std::slice::from_ref(extent);
                        self.decode_copied(one, to - from, pa, &mut room[out..], counts)?;
                    }
                }
                _ => room.copy_within(from..from + len, out),
            }
            out += len;
            if out > to {
                return Ok(number + 1);
            }
            from = to;
        }
        Ok(run.len())
    }

    /// Decodes all extents from a copy of their compressed bytes, or directly from an image in
    /// memory.
    fn decode_copied(
        &self,
        run: &[Extent],
        stored: usize,
        pa: u64,
        room: &mut [u8],
        counts: &mut ReadCounts,
    ) -> Result<()> {
        Scratch::lend(|Scratch { decoder, src, .. }| {
            let mut src = self.compressed(pa, stored, src)?;
            let mut room = room;
            for (extent, stored) in run.iter().zip(read_bytes(run)) {
                let (cluster, rest) = src.split_at(stored);
                let (content, after) = room.split_at_mut(extent.len as usize);
                if matches!(extent.place, Place::Encoded { .. }) {
                    self.decode_one(extent, cluster, content, Wanted::Whole, decoder)?;
                    counts.decoded_by_copy += 1;
                } else {
                    content.copy_from_slice(&cluster[..content.len()]);
                }
                (src, room) = (rest, after);
            }
            Ok(())
        })
    }

    /// Decodes an extent or a prefix of it from its cluster.
    pub(super) fn decode_one(
        &self,
        extent: &Extent,
        cluster: &[u8],
        content: &mut [u8],
        wanted: Wanted,
        decoder: &mut ClusterDecoder,
    ) -> Result<()> {
        let Place::Encoded { pa, format, partial, .. } = extent.place else {
            return Err(Error::NotA("compressed extent"));
        };
        let padded = self.image.superblock().has(incompat::ZERO_PADDING);
        let limits = DecodeLimits {
            dict_bytes: self.image.superblock().lzma_dict_bytes,
            max_content_bytes: MAX_EXTENT_BYTES as usize,
        };
        if let Some(feature) = format.missing_feature() {
            return Err(Error::Unsupported(format!(
                "clusters in {format:?}: the feature '{feature}' is not in this build"
            )));
        }
        let skipped = if padded { self.padding(cluster, pa)? } else { 0 };
        let wanted = if partial || !padded { Wanted::Prefix } else { wanted };
        decoder
            .decode(format, &cluster[skipped..], content, wanted, limits)
            .map_err(|error| Error::Corrupt { what: error.what, offset: pa })
    }

    /// Returns the number of zeros before a cluster's compressed bytes. They end within its first
    /// block.
    fn padding(&self, src: &[u8], pa: u64) -> Result<usize> {
        let block = self.block_bytes();
        let most = (block - pa % block).min(src.len() as u64) as usize;
        match src[..most].iter().position(|byte| *byte != 0) {
            Some(zeros) => Ok(zeros),
            None => Error::corrupt("cluster starts with a block of zeros", pa),
        }
    }

    /// Returns the extents of a compressed file that overlap `range`, up to the end of the file.
    /// Returns none for an uncompressed file.
    pub(super) fn extents(&self, range: Range<u64>) -> impl Iterator<Item = Result<Extent>> {
        let (mut cursor, mut at) = (Cursor::default(), range.start);
        let end = range.end.min(self.inode.size);
        std::iter::from_fn(move || {
            let map = self.map.as_ref().filter(|_| at < end)?;
            let extent = map.extent_at(&self.image, &mut cursor, at);
            at = extent.as_ref().map_or(end, Extent::end);
            Some(extent)
        })
    }

    /// Returns the extent that contains the byte at `offset`, which must be within the file.
    pub(crate) fn extent_around(&self, offset: u64) -> Result<Extent> {
        let Some(map) = &self.map else { return Err(Error::NotA("compressed file")) };
        map.extent_at(&self.image, &mut Cursor::default(), offset)
    }
}

impl Image {
    /// Fills `buf` with the content of `inode` from `offset`.
    pub fn read_exact_at(&self, inode: &Inode, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = Data::open(self, inode)?.read_at(buf, offset)?;
        if len == buf.len() { Ok(()) } else { Error::corrupt("data ends before its declared size", inode.offset) }
    }
}

impl Run {
    fn content_bytes(&self) -> usize {
        self.extents.iter().map(|extent| extent.len as usize).sum()
    }
}

/// Returns how many bytes to decode of an extent of `len` bytes if the first `to` are wanted.
/// Zstandard decodes whole blocks, libdeflate all or nothing.
pub(super) fn front(format: ClusterFormat, to: usize, len: usize) -> usize {
    match format {
        ClusterFormat::Lz4 | ClusterFormat::MicroLzma => to,
        ClusterFormat::Zstd if to.div_ceil(ZSTD_BLOCK) < len.div_ceil(ZSTD_BLOCK) => to,
        ClusterFormat::Zstd | ClusterFormat::Deflate => len,
    }
}

/// Returns the size of an extent's cluster in bytes.
fn cluster_bytes(extent: &Extent) -> usize {
    match extent.place {
        Place::Encoded { plen, .. } | Place::Plain { plen, .. } => plen as usize,
        Place::Fragment { .. } | Place::Hole => 0,
    }
}

/// Returns the bytes to read for each cluster of a run. If the last is plain, only its content is
/// read.
fn read_bytes(run: &[Extent]) -> impl Iterator<Item = usize> {
    run.iter().enumerate().map(|(number, extent)| match extent.place {
        Place::Plain { .. } if number + 1 == run.len() => extent.len as usize,
        _ => cluster_bytes(extent),
    })
}

/// Returns the address of an extent's cluster. Returns `None` if the extent has no cluster of its
/// own or is not contiguous in it.
fn address(extent: &Extent) -> Option<u64> {
    match extent.place {
        Place::Encoded { pa, .. } | Place::Plain { pa, interlaced: false, .. } => Some(pa),
        _ => None,
    }
}

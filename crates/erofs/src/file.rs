//! A file's content: flat, chunked or compressed.

use std::cell::RefCell;
use std::sync::Arc;

use pagefold_codec::cluster::{ClusterDecoder, ClusterFormat, DecodeLimits, Extent as Wanted};
use pagefold_codec::lz4::{decompress_in_place, in_place_margin};

use crate::check::Claim;
use crate::error::{Error, Result};
use crate::format::{
    CHUNK_BLKBITS, CHUNK_INDEXES, ChunkIndex, DataLayout, MAX_EXTENT_BYTES, NULL_ADDR, align, incompat,
};
use crate::image::{Counters, Image};
use crate::inode::{FileKind, Inode};
use crate::zmap::{CompressedMap, Cursor, Extent, Place};

/// Chunk addresses that are read together.
const CHUNKS_READ: u64 = 512;

thread_local! {
    static DECODER: RefCell<(ClusterDecoder, Vec<u8>)> = RefCell::default();
}

/// An open file, directory or symbolic link of an [`Image`].
pub struct File {
    image: Image,
    inode: Inode,
    map: Option<CompressedMap>,
    /// The packed inode's file, when this one ends there.
    packed: Option<Box<File>>,
}

/// A run of a file's content and whether it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its bytes, at least 1.
    pub len: u64,
    /// Not stored: zeros.
    pub hole: bool,
}

impl File {
    pub(crate) fn open(image: &Image, inode: &Inode) -> Result<Self> {
        if !matches!(inode.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
            return Err(Error::NotA("file with content"));
        }
        let map = if inode.is_compressed() { Some(CompressedMap::open(image, inode)?) } else { None };
        let packed = match image.superblock().packed_nid {
            Some(nid) if map.as_ref().is_some_and(CompressedMap::has_fragment) => {
                let packed = image.inode(nid)?;
                if packed.kind != FileKind::Regular {
                    return Error::corrupt("packed inode is not a regular file", packed.offset);
                }
                Some(Box::new(Self::open(image, &packed)?))
            }
            _ => None,
        };
        Ok(Self { image: image.clone(), inode: inode.clone(), map, packed })
    }

    /// The file's inode.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// Reads from `offset` into `buf` and returns the bytes read: all that fit, up to the end of the file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let left = self.inode.size.saturating_sub(offset);
        let len = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        let buf = &mut buf[..len];
        if buf.is_empty() {
            return Ok(0);
        }
        match self.inode.layout {
            DataLayout::FlatPlain | DataLayout::FlatInline => self.read_flat(buf, offset)?,
            DataLayout::ChunkBased => self.read_chunks(buf, offset)?,
            DataLayout::CompressedFull | DataLayout::CompressedCompact => self.read_compressed(buf, offset)?,
        }
        Ok(len)
    }

    /// The run at `offset`, which is less than the file's size: where a reader may skip zeros.
    pub fn run_at(&self, offset: u64) -> Result<Run> {
        let left = self.inode.size - offset;
        if self.inode.layout != DataLayout::ChunkBased {
            return Ok(Run { len: left, hole: false });
        }
        let (bits, ..) = self.chunk_format()?;
        let hole = self.chunk_addresses(offset >> bits, 1)?[0].is_none();
        Ok(Run { len: ((1u64 << bits) - (offset & ((1 << bits) - 1))).min(left), hole })
    }

    /// Where the file's metadata ends: its inode, xattrs, indexes or chunks, and inline data.
    pub(crate) fn record_end(&self) -> Result<u64> {
        let inode = &self.inode;
        let end = match (&self.map, inode.layout) {
            (Some(map), _) => map.record_end(),
            (None, DataLayout::FlatInline) => inode.xattr_end + inode.size % self.block_bytes(),
            (None, DataLayout::ChunkBased) => {
                let (bits, unit, start) = self.chunk_format()?;
                inode.size.div_ceil(1 << bits).saturating_mul(unit).saturating_add(start)
            }
            _ => inode.xattr_end,
        };
        self.image.check_range(0, end)?;
        Ok(end)
    }

    /// Reads what the file is made of, and decodes each cluster for which `first_claim` says that it is the first to
    /// claim its blocks.
    pub(crate) fn check(&self, first_claim: &dyn Fn(Claim) -> bool) -> Result<()> {
        let size = self.inode.size;
        let claim = |start, len| Claim { start, end: start + len, shareable: true };
        let bits = self.image.superblock().blkszbits;
        match self.inode.layout {
            DataLayout::FlatPlain | DataLayout::FlatInline => {
                let inline = self.inode.layout == DataLayout::FlatInline;
                let in_blocks = if inline { size - size % self.block_bytes() } else { size };
                if in_blocks > 0 {
                    let start = u64::from(self.inode.raw) << bits;
                    self.image.check_range(in_blocks, start)?;
                    first_claim(claim(start, align(in_blocks, self.block_bytes())));
                }
                if inline {
                    self.read_at(&mut vec![0; (size - in_blocks) as usize], in_blocks).map(drop)
                } else {
                    Ok(())
                }
            }
            DataLayout::ChunkBased => {
                let (chunk_bits, ..) = self.chunk_format()?;
                let chunks = size.div_ceil(1 << chunk_bits);
                let mut first = 0;
                while first < chunks {
                    let count = (chunks - first).min(CHUNKS_READ);
                    for (number, address) in (first..).zip(self.chunk_addresses(first, count)?) {
                        let Some(blkaddr) = address else { continue };
                        let len = (size - (number << chunk_bits)).min(1 << chunk_bits);
                        self.image.check_range(len, u64::from(blkaddr) << bits)?;
                        first_claim(claim(u64::from(blkaddr) << bits, align(len, self.block_bytes())));
                    }
                    first += count;
                }
                Ok(())
            }
            DataLayout::CompressedFull | DataLayout::CompressedCompact => self.check_extents(first_claim),
        }
    }

    fn check_extents(&self, first_claim: &dyn Fn(Claim) -> bool) -> Result<()> {
        let Some(map) = &self.map else { return Ok(()) };
        let mut cursor = Cursor::default();
        let mut content = Vec::new();
        let mut at = 0;
        while at < self.inode.size {
            let extent = map.extent_at(&self.image, &mut cursor, at)?;
            match extent.place {
                Place::Fragment { offset } => {
                    let size = self.packed.as_ref().map_or(0, |packed| packed.inode.size);
                    if offset.checked_add(extent.len).is_none_or(|end| end > size) {
                        return Error::corrupt("fragment lies outside the packed inode", self.inode.offset);
                    }
                }
                Place::Plain { pa, .. } => {
                    self.image.check_range(extent.len, pa)?;
                    if !map.is_inline(pa) {
                        first_claim(Claim { start: pa, end: pa + self.block_bytes(), shareable: true });
                    }
                }
                Place::Encoded { pa, plen, .. } => {
                    // What lies behind indexes is part of the inode's own record.
                    let inline = map.is_inline(pa);
                    let claim = Claim { start: pa, end: pa + u64::from(plen), shareable: true };
                    if inline || first_claim(claim) {
                        content.resize(extent.len as usize + self.margin(&extent), 0);
                        self.decode(&extent, &mut content, extent.len as usize)?;
                    }
                }
            }
            at = extent.end();
        }
        Ok(())
    }

    fn block_bytes(&self) -> u64 {
        self.image.superblock().block_bytes()
    }

    fn read_data(&self, buf: &mut [u8], at: u64) -> Result<()> {
        self.image.read_meta(buf, at)
    }

    fn read_flat(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let block = self.block_bytes();
        let tail_len = self.inode.size % block;
        let inline = self.inode.layout == DataLayout::FlatInline;
        let in_blocks = if inline { self.inode.size - tail_len } else { self.inode.size };
        let (blocks, tail) = buf.split_at_mut(in_blocks.saturating_sub(offset).min(buf.len() as u64) as usize);
        if !blocks.is_empty() {
            self.read_data(blocks, (u64::from(self.inode.raw) << self.image.superblock().blkszbits) + offset)?;
        }
        if !tail.is_empty() {
            let at = self.inode.xattr_end;
            if at % block + tail_len > block {
                return Error::corrupt("inline data crosses a block boundary", at);
            }
            self.read_data(tail, at + (offset.max(in_blocks) - in_blocks))?;
        }
        Ok(())
    }

    /// The chunk's logarithm, the bytes of an index, and where the indexes start.
    fn chunk_format(&self) -> Result<(u32, u64, u64)> {
        let superblock = self.image.superblock();
        let format = self.inode.raw;
        if !superblock.has(incompat::CHUNKED_FILE) {
            return Error::corrupt("file has chunks and the image has not", self.inode.offset);
        }
        if format & !(CHUNK_BLKBITS | CHUNK_INDEXES) & 0xffff != 0 {
            return Err(Error::Unsupported(format!("chunk format {format:#x} of nid {}", self.inode.nid)));
        }
        let unit = if format & CHUNK_INDEXES != 0 { ChunkIndex::SIZE as u64 } else { 4 };
        Ok((superblock.blkszbits + (format & CHUNK_BLKBITS), unit, align(self.inode.xattr_end, unit)))
    }

    /// The block addresses of `count` chunks from chunk `first`; `None` for holes.
    fn chunk_addresses(&self, first: u64, count: u64) -> Result<Vec<Option<u32>>> {
        let (_, unit, start) = self.chunk_format()?;
        let mut bytes = vec![0; (count * unit) as usize];
        let Some(at) = first.checked_mul(unit).and_then(|at| at.checked_add(start)) else {
            return Error::corrupt("file's chunks end after the image", start);
        };
        self.image.read_meta(&mut bytes, at)?;
        let address = |blkaddr| (blkaddr != NULL_ADDR).then_some(blkaddr);
        if unit == 4 {
            return Ok(bytes.as_chunks().0.iter().map(|bytes| address(u32::from_le_bytes(*bytes))).collect());
        }
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|bytes| {
                let index = ChunkIndex::decode(bytes);
                if index.blkaddr != NULL_ADDR && index.device_id != 0 {
                    return Err(Error::Unsupported(format!("chunks on device {}", index.device_id)));
                }
                Ok(address(index.blkaddr))
            })
            .collect()
    }

    fn read_chunks(&self, mut buf: &mut [u8], mut offset: u64) -> Result<()> {
        let (bits, ..) = self.chunk_format()?;
        while !buf.is_empty() {
            let first = offset >> bits;
            let count = (((offset + buf.len() as u64 - 1) >> bits) - first + 1).min(CHUNKS_READ);
            for address in self.chunk_addresses(first, count)? {
                let in_chunk = offset & ((1 << bits) - 1);
                let len = ((1u64 << bits) - in_chunk).min(buf.len() as u64);
                let (here, rest) = buf.split_at_mut(len as usize);
                match address {
                    None => here.fill(0),
                    Some(blkaddr) => {
                        self.read_data(here, (u64::from(blkaddr) << self.image.superblock().blkszbits) + in_chunk)?;
                    }
                }
                offset += len;
                buf = rest;
            }
        }
        Ok(())
    }

    fn read_compressed(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let Some(map) = &self.map else { return Err(Error::NotA("compressed file")) };
        let mut cursor = Cursor::default();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let extent = map.extent_at(&self.image, &mut cursor, at)?;
            let len = (extent.end() - at).min((buf.len() - done) as u64) as usize;
            let skipped = at - extent.start;
            if let Place::Fragment { offset } = extent.place {
                self.read_fragment(&mut buf[done..done + len], offset, skipped)?;
            } else if let Place::Plain { pa, interlaced } = extent.place {
                self.read_plain(&mut buf[done..done + len], &extent, pa, interlaced, skipped)?;
            } else if skipped == 0 && len as u64 == extent.len {
                self.decode(&extent, &mut buf[done..], len)?;
            } else {
                let content = self.cached(&extent)?;
                let from = skipped as usize;
                let Some(content) = content.get(from..from + len) else {
                    return Error::corrupt("cluster is shorter than its extent", self.inode.offset);
                };
                buf[done..done + len].copy_from_slice(content);
            }
            done += len;
        }
        Ok(())
    }

    fn read_fragment(&self, buf: &mut [u8], offset: u64, skipped: u64) -> Result<()> {
        let at = offset.checked_add(skipped);
        match (&self.packed, at) {
            (Some(packed), Some(at)) if packed.read_at(buf, at)? == buf.len() => Ok(()),
            _ => Error::corrupt("fragment lies outside the packed inode", self.inode.offset),
        }
    }

    fn read_plain(&self, buf: &mut [u8], extent: &Extent, pa: u64, interlaced: bool, skipped: u64) -> Result<()> {
        if !interlaced {
            return self.read_data(buf, pa + skipped);
        }
        let block = self.block_bytes();
        let at = (extent.start + skipped) % block;
        let (right, left) = buf.split_at_mut((block - at).min(buf.len() as u64) as usize);
        self.read_data(right, pa + at)?;
        if left.is_empty() { Ok(()) } else { self.read_data(left, pa) }
    }

    /// The decoded content of an extent, from the cache if a reader was here before.
    fn cached(&self, extent: &Extent) -> Result<Arc<Vec<u8>>> {
        let Place::Encoded { pa, .. } = extent.place else { return Err(Error::NotA("compressed extent")) };
        let len = extent.len as usize;
        // A cluster that others share may have been decoded for a shorter extent.
        if let Some(content) = self.image.clusters().find(pa).filter(|content| content.len() >= len) {
            Counters::add(&self.image.counters().cache_hits);
            return Ok(content);
        }
        let mut content = vec![0; len + self.margin(extent)];
        self.decode(extent, &mut content, len)?;
        content.truncate(len);
        let content = Arc::new(content);
        self.image.clusters().insert(pa, Arc::clone(&content));
        Ok(content)
    }

    fn margin(&self, extent: &Extent) -> usize {
        match extent.place {
            Place::Encoded { plen, format: ClusterFormat::Lz4, .. } => in_place_margin(plen as usize),
            _ => 0,
        }
    }

    /// Decodes the `len` bytes of an extent to the front of `room`, all of which may be overwritten.
    ///
    /// LZ4 is read to the end of what decoding in place needs of `room`, or to the end of `room` if that is nearer, and
    /// decoded over itself. Only in the second case can the output run into the input; then, and for the other formats,
    /// the cluster is read elsewhere and decoded from there.
    fn decode(&self, extent: &Extent, room: &mut [u8], len: usize) -> Result<()> {
        let Place::Encoded { pa, plen, format, partial } = extent.place else {
            return Err(Error::NotA("compressed extent"));
        };
        let plen = plen as usize;
        let padded = self.image.superblock().has(incompat::ZERO_PADDING);
        let corrupt = |what| Error::Corrupt { what, offset: pa };
        let end = room.len().min(len + self.margin(extent));
        if format == ClusterFormat::Lz4 && padded && !partial && plen <= end {
            let room = &mut room[..end];
            let start = end - plen;
            self.read_data(&mut room[start..], pa)?;
            let start = start + self.padding(&room[start..], pa)?;
            match decompress_in_place(room, start..end, len) {
                Ok(()) => {
                    Counters::add(&self.image.counters().in_place);
                    return Ok(());
                }
                Err(error) if end == len + self.margin(extent) => return Err(corrupt(error.what)),
                Err(_) => {}
            }
        }
        DECODER.with_borrow_mut(|(decoder, src)| {
            src.resize(plen, 0);
            self.read_data(src, pa)?;
            let skipped = if padded { self.padding(src, pa)? } else { 0 };
            let limits = DecodeLimits {
                dict_bytes: self.image.superblock().lzma_dict_bytes,
                max_content_bytes: MAX_EXTENT_BYTES as usize,
            };
            let wanted = if partial || !padded { Wanted::Prefix } else { Wanted::Whole };
            decoder
                .decode(format, &src[skipped..], &mut room[..len], wanted, limits)
                .map_err(|error| corrupt(error.what))?;
            Counters::add(&self.image.counters().copied);
            Ok(())
        })
    }

    /// Zeros in front of a cluster's compressed bytes: at most what is left of its first block.
    fn padding(&self, src: &[u8], pa: u64) -> Result<usize> {
        let block = self.block_bytes();
        let most = (block - pa % block).min(src.len() as u64) as usize;
        match src[..most].iter().position(|byte| *byte != 0) {
            Some(zeros) => Ok(zeros),
            None => Error::corrupt("cluster starts with a block of zeros", pa),
        }
    }
}

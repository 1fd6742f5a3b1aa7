//! A file's content and its location. Flat and chunked content is read here.

use std::sync::atomic::AtomicU64;

use super::devices::Spot;
use super::image::Image;
use super::inode::{FileKind, Inode};
use super::zmap::CompressedMap;
use crate::error::{Error, Result};
use crate::format::{
    CHUNK_48BIT, CHUNK_BLKBITS, CHUNK_INDEXES, ChunkIndex, DataLayout, NULL_ADDR, NULL_ADDR_48BIT, Place, align,
};

/// The number of chunk addresses that are read together.
pub(crate) const CHUNKS_READ: u64 = 512;

/// A file's content and its location.
pub(crate) struct Data {
    pub(crate) image: Image,
    pub(crate) inode: Inode,
    pub(crate) map: Option<CompressedMap>,
    /// The number of reads of partial clusters that missed the cache.
    pub(crate) missed: AtomicU64,
    /// The packed inode's content, if this file has a fragment there.
    pub(crate) packed: Option<Box<Data>>,
}

impl Data {
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
        Ok(Self { image: image.clone(), inode: inode.clone(), map, missed: AtomicU64::new(0), packed })
    }

    /// Clips a read of `len` bytes at `offset` to the end of the file.
    pub(super) fn clip(&self, len: usize, offset: u64) -> usize {
        let left = self.inode.size.saturating_sub(offset);
        usize::try_from(left).map_or(len, |left| left.min(len))
    }

    /// Returns the end of the file's metadata: its inode, xattrs, indexes or chunks, and inline
    /// data.
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

    pub(crate) fn block_bytes(&self) -> u64 {
        self.image.superblock().block_bytes()
    }

    pub(crate) fn block_offset(&self, blkaddr: u64) -> Result<u64> {
        match self.image.block_offset(blkaddr) {
            Some(offset) => Ok(offset),
            None => Error::corrupt("file's blocks lie outside the image", self.inode.offset),
        }
    }

    pub(super) fn read_flat(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if self.inode.is_hole {
            buf.fill(0);
            return Ok(());
        }
        let block = self.block_bytes();
        let tail_len = self.inode.size % block;
        let inline = self.inode.layout == DataLayout::FlatInline;
        let in_blocks = if inline { self.inode.size - tail_len } else { self.inode.size };
        let (blocks, tail) = buf.split_at_mut(in_blocks.saturating_sub(offset).min(buf.len() as u64) as usize);
        if !blocks.is_empty() {
            self.image.read_data(blocks, self.block_offset(self.inode.raw)? + offset)?;
        }
        if !tail.is_empty() {
            let at = self.inode.xattr_end;
            if at % block + tail_len > block {
                return Error::corrupt("inline data crosses a block boundary", at);
            }
            self.image.read_near(tail, at + (offset.max(in_blocks) - in_blocks))?;
        }
        Ok(())
    }

    /// Returns log2 of the chunk size, the size of an index in bytes, and the offset of the first
    /// index.
    pub(crate) fn chunk_format(&self) -> Result<(u32, u64, u64)> {
        let superblock = self.image.superblock();
        // Images with chunks need not set the feature flag: those made from archive indexes do not.
        let format = self.inode.raw as u32;
        if format & !(CHUNK_BLKBITS | CHUNK_INDEXES | CHUNK_48BIT) & 0xffff != 0 {
            return Err(Error::Unsupported(format!("chunk format {format:#x} of nid {}", self.inode.nid)));
        }
        let unit = if format & CHUNK_INDEXES != 0 { ChunkIndex::SIZE as u64 } else { 4 };
        Ok((superblock.blkszbits + (format & CHUNK_BLKBITS), unit, align(self.inode.xattr_end, unit)))
    }

    /// Returns where the content at `offset` of an uncompressed file is stored, and for how many
    /// bytes; `None` for holes and for an inline tail.
    pub(crate) fn plain_place(&self, offset: u64) -> Result<Option<(Spot, u64)>> {
        let inode = &self.inode;
        let (start, end) = match inode.layout {
            DataLayout::FlatPlain | DataLayout::FlatInline => {
                let inline = inode.layout == DataLayout::FlatInline;
                let end = inode.size - if inline { inode.size % self.block_bytes() } else { 0 };
                let is_there = !inode.is_hole && offset < end;
                let start =
                    if is_there { Some(self.image.spot(0, self.block_offset(inode.raw)? + offset)?) } else { None };
                (start, end)
            }
            DataLayout::ChunkBased => {
                let (bits, ..) = self.chunk_format()?;
                let start = self.chunk_addresses(offset >> bits, 1)?[0];
                let within = offset & ((1 << bits) - 1);
                let start = start.map(|Spot { device, offset }| Spot { device, offset: offset + within });
                (start, (((offset >> bits) + 1) << bits).min(inode.size))
            }
            DataLayout::CompressedFull | DataLayout::CompressedCompact => {
                let extent = self.extent_around(offset)?;
                let start = match extent.place {
                    Place::Plain { pa, interlaced: false, .. } => {
                        Some(self.image.spot(0, pa.saturating_add(offset - extent.start))?)
                    }
                    _ => None,
                };
                (start, extent.end())
            }
        };
        Ok(start.map(|start| (start, end - offset)))
    }

    /// Returns the places of `count` chunks from chunk `first` on; `None` for holes.
    pub(crate) fn chunk_addresses(&self, first: u64, count: u64) -> Result<Vec<Option<Spot>>> {
        self.chunk_addresses_with(first, count, |bytes, at| self.image.read_meta(bytes, at))
    }

    /// Like `chunk_addresses`, with the addresses read by `read`.
    pub(super) fn chunk_addresses_with(
        &self,
        first: u64,
        count: u64,
        read: impl FnOnce(&mut [u8], u64) -> Result<()>,
    ) -> Result<Vec<Option<Spot>>> {
        let (_, unit, start) = self.chunk_format()?;
        let mut bytes = vec![0; (count * unit) as usize];
        let Some(at) = first.checked_mul(unit).and_then(|at| at.checked_add(start)) else {
            return Error::corrupt("file's chunks end after the image", start);
        };
        read(&mut bytes, at)?;
        let spot = |device, blkaddr| self.image.spot(device, self.block_offset(blkaddr)?);
        let address = |low| (low != NULL_ADDR).then_some(u64::from(low));
        if unit == 4 {
            let addresses = bytes.as_chunks().0.iter().map(|bytes| address(u32::from_le_bytes(*bytes)));
            return addresses.map(|address| address.map(|blkaddr| spot(0, blkaddr)).transpose()).collect();
        }
        let wide = self.inode.raw as u32 & CHUNK_48BIT != 0;
        let indexes = bytes.as_chunks().0.iter().map(ChunkIndex::decode);
        let spots = indexes.map(|index| {
            let address = if wide {
                let blkaddr = u64::from(index.startblk_hi) << 32 | u64::from(index.startblk_lo);
                (blkaddr != NULL_ADDR_48BIT).then_some(blkaddr)
            } else {
                address(index.startblk_lo)
            };
            address.map(|blkaddr| spot(index.device_id, blkaddr)).transpose()
        });
        spots.collect()
    }

    pub(super) fn read_chunks(&self, mut buf: &mut [u8], mut offset: u64) -> Result<()> {
        let (bits, ..) = self.chunk_format()?;
        while !buf.is_empty() {
            let first = offset >> bits;
            let count = (((offset + buf.len() as u64 - 1) >> bits) - first + 1).min(CHUNKS_READ);
            let mut parts = Vec::new();
            for address in self.chunk_addresses(first, count)? {
                let in_chunk = offset & ((1 << bits) - 1);
                let len = ((1u64 << bits) - in_chunk).min(buf.len() as u64);
                let (here, rest) = buf.split_at_mut(len as usize);
                match address {
                    None => here.fill(0),
                    Some(Spot { device, offset }) => {
                        let offset = offset.saturating_add(in_chunk);
                        parts.push((Spot { device, offset }, here));
                    }
                }
                offset += len;
                buf = rest;
            }
            self.image.read_spots(parts)?;
        }
        Ok(())
    }

    /// Checks that a fragment is within the packed inode.
    pub(crate) fn check_fragment(&self, offset: u64, len: u64) -> Result<()> {
        let size = self.packed.as_ref().map_or(0, |packed| packed.inode.size);
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Error::corrupt("fragment lies outside the packed inode", self.inode.offset),
        }
    }
}

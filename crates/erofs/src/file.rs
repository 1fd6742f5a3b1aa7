//! A file's content: flat, chunked or compressed.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pagefold_codec::cluster::ClusterFormat;
use pagefold_codec::lz4::in_place_margin;

use crate::ahead::Ahead;
use crate::buffers::Content;
use crate::claims::{Claim, Claims, Owner, Purpose};
use crate::devices::Spot;
use crate::error::{Error, Result};
use crate::format::{
    CHUNK_48BIT, CHUNK_BLKBITS, CHUNK_INDEXES, ChunkIndex, DataLayout, MAX_PCLUSTER_BYTES, NULL_ADDR, NULL_ADDR_48BIT,
    align,
};
use crate::image::Image;
use crate::inode::{FileKind, Inode};
use crate::zmap::{CompressedMap, Place};

/// Chunk addresses that are read together.
pub(crate) const CHUNKS_READ: u64 = 512;

/// An open file, directory or symbolic link of an [`Image`].
///
/// A file that is read from front to back is decoded ahead, by threads that the process has for it,
/// as long as a processor has nothing else to do.
///
/// A clone is the same file, and reads in order where the other left off.
#[derive(Clone)]
pub struct File {
    data: Arc<Data>,
    ahead: Arc<Ahead>,
}

/// A file's content and where it is.
pub(crate) struct Data {
    pub(crate) image: Image,
    pub(crate) inode: Inode,
    pub(crate) map: Option<CompressedMap>,
    /// Reads of parts of clusters that were not in the cache.
    pub(crate) missed: AtomicU64,
    /// The packed inode's content, when this one ends there.
    pub(crate) packed: Option<Box<Data>>,
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
        Ok(Self { data: Arc::new(Data::open(image, inode)?), ahead: Arc::default() })
    }

    pub(crate) fn data(&self) -> &Data {
        &self.data
    }

    /// The file's inode.
    pub fn inode(&self) -> &Inode {
        &self.data.inode
    }

    /// Reads from `offset` into `buf` and returns how many bytes were read: all that fit, up to the
    /// end of the file; 0 from there on. What is behind them in `buf` may be overwritten: content
    /// is decoded in place if there is some room behind it. After an error `buf` holds unspecified
    /// bytes.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_into(buf, buf.len(), offset)
    }

    /// As [`read_at`](Self::read_at), at most `len` bytes. The last cluster too is decoded in place
    /// where `room` has [`room_bytes`](Self::room_bytes).
    pub fn read_into(&self, room: &mut [u8], len: usize, offset: u64) -> Result<usize> {
        let len = self.data.clip(len.min(room.len()), offset);
        if self.data.map.is_none() {
            return self.data.read_at(&mut room[..len], offset);
        }
        self.ahead.read(&self.data, room, len, offset)?;
        Ok(len)
    }

    /// Reads `len` bytes from `offset`, which the file has, to the front of `room`, which is
    /// longer. Nothing is decoded ahead.
    pub(crate) fn read_alone(&self, room: &mut [u8], len: usize, offset: u64) -> Result<()> {
        if self.data.map.is_some() {
            return self.data.read_compressed(room, len, offset, true);
        }
        self.data.read_at(&mut room[..len], offset).map(drop)
    }

    /// What room a read of `len` bytes takes at most.
    pub fn room_bytes(len: usize) -> usize {
        len + in_place_margin(MAX_PCLUSTER_BYTES as usize)
    }

    /// A buffer of at least `len` bytes, which hold anything.
    pub(crate) fn buffer(&self, len: usize) -> Content {
        self.data.image.buffers().take(len)
    }

    /// Makes `bytes` the cluster of the extent of `len` bytes from `offset`. `None`: it is not
    /// compressed, or ends elsewhere.
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

    /// The bytes from `offset`, which the file has, to the end of the last extent that ends within
    /// `len` bytes of it. If none does, to the end of the one that starts there, at most `most`
    /// bytes; else `len`.
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

    /// The run at `offset`, which is less than the file's size: where a reader may skip zeros.
    pub fn run_at(&self, offset: u64) -> Result<Run> {
        self.data.run_at(offset)
    }
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

    /// The file among those that share segments.
    pub(crate) fn id(&self) -> (u64, u64) {
        self.image.clusters().file(self.inode.nid)
    }

    /// The bytes of a read of `len` from `offset` that the file has.
    fn clip(&self, len: usize, offset: u64) -> usize {
        let left = self.inode.size.saturating_sub(offset);
        usize::try_from(left).map_or(len, |left| left.min(len))
    }

    /// As [`File::read_at`], without anything ahead.
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

    /// As [`File::run_at`].
    fn run_at(&self, offset: u64) -> Result<Run> {
        let left = self.inode.size - offset;
        if self.inode.layout != DataLayout::ChunkBased {
            return match &self.map {
                Some(map) if map.may_have_holes() => {
                    let extent = self.extent_around(offset)?;
                    let hole = extent.place == Place::Hole;
                    Ok(Run { len: if hole { extent.end() - offset } else { left }, hole })
                }
                _ => Ok(Run { len: left, hole: self.inode.is_hole }),
            };
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

    /// Reads what the file is made of, claims its blocks, and decodes each cluster that nobody else
    /// claimed.
    pub(crate) fn check(&self, claims: &Claims, owner: Owner) -> Result<()> {
        let size = self.inode.size;
        match self.inode.layout {
            DataLayout::FlatPlain | DataLayout::FlatInline => {
                let inline = self.inode.layout == DataLayout::FlatInline;
                let in_blocks = if inline { size - size % self.block_bytes() } else { size };
                if in_blocks > 0 && !self.inode.is_hole {
                    let start = self.image.spot(0, self.block_offset(self.inode.raw)?)?;
                    self.image.check_spot(in_blocks, start)?;
                    let purpose = match self.inode.kind {
                        FileKind::Directory => Purpose::Metadata,
                        _ => Purpose::Run,
                    };
                    claims.add(Claim { start, len: in_blocks, purpose }, owner);
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
                let mut blocks = claims.joined(owner, Purpose::Blocks);
                let mut first = 0;
                while first < chunks {
                    let count = (chunks - first).min(CHUNKS_READ);
                    for (number, address) in (first..).zip(self.chunk_addresses(first, count)?) {
                        let Some(start) = address else { continue };
                        let len = (size - (number << chunk_bits)).min(1 << chunk_bits);
                        self.image.check_spot(len, start)?;
                        blocks.add(start, len);
                    }
                    first += count;
                }
                Ok(())
            }
            DataLayout::CompressedFull | DataLayout::CompressedCompact => self.check_extents(claims, owner),
        }
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

    fn read_flat(&self, buf: &mut [u8], offset: u64) -> Result<()> {
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

    /// The chunk's logarithm, the bytes of an index, and where the indexes start.
    pub(crate) fn chunk_format(&self) -> Result<(u32, u64, u64)> {
        let superblock = self.image.superblock();
        // Images with chunks need not say that they have: those made of archives' indexes do not.
        let format = self.inode.raw as u32;
        if format & !(CHUNK_BLKBITS | CHUNK_INDEXES | CHUNK_48BIT) & 0xffff != 0 {
            return Err(Error::Unsupported(format!("chunk format {format:#x} of nid {}", self.inode.nid)));
        }
        let unit = if format & CHUNK_INDEXES != 0 { ChunkIndex::SIZE as u64 } else { 4 };
        Ok((superblock.blkszbits + (format & CHUNK_BLKBITS), unit, align(self.inode.xattr_end, unit)))
    }

    /// Where `count` chunks from chunk `first` on lie; `None` for holes.
    pub(crate) fn chunk_addresses(&self, first: u64, count: u64) -> Result<Vec<Option<Spot>>> {
        let (_, unit, start) = self.chunk_format()?;
        let mut bytes = vec![0; (count * unit) as usize];
        let Some(at) = first.checked_mul(unit).and_then(|at| at.checked_add(start)) else {
            return Error::corrupt("file's chunks end after the image", start);
        };
        self.image.read_meta(&mut bytes, at)?;
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
                    Some(Spot { device, offset }) => {
                        let offset = offset.saturating_add(in_chunk);
                        self.image.read_spot(here, Spot { device, offset })?;
                    }
                }
                offset += len;
                buf = rest;
            }
        }
        Ok(())
    }
}

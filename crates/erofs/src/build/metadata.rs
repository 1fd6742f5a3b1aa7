//! Writes inodes, directories and the superblock after the data.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::Xxh3;

use super::blocks::WRITE_BYTES;
use super::data::{Data, FileData};
use super::directory::Target;
use super::extents::ExtentLog;
use super::indexes::{IndexForm, Indexes, whole_fragment};
use super::inline::inline_bytes;
use super::options::{BuildOptions, Fragments};
use super::placer::Placer;
use super::plan::{InodePlan, Plan};
use super::report::BuildReport;
use super::tree::{NodeId, NodeKind, Tree, Visit};
use crate::error::{Error, Result};
use crate::format::{
    CHUNK_INDEXES, ChunkIndex, DataLayout, DeviceSlot, I_EXTENDED, InodeCompact, InodeExtended, MapHeader, NULL_ADDR,
    SLOT, SUPER_MAGIC, SUPER_OFFSET, SuperBlock, XattrHeader, align, checksum, checksummed_len, compat, file_type,
    incompat, mode,
};

/// An inode's layout and the data that follows it, except for bytes that depend on nids.
struct Record {
    layout: DataLayout,
    size: u64,
    i_u: u32,
    /// What follows the xattrs.
    map: DataMap,
    /// The bytes after the indexes, which must not cross a block boundary. Zeros for directories,
    /// whose contents are not known yet.
    tail: Vec<u8>,
}

/// How a file's data is found.
enum DataMap {
    /// By `i_u` alone.
    None,
    Indexes(Indexes),
    /// The map header of a file that is one fragment.
    WholeFragment(u64),
    /// Addresses of chunks.
    Chunks(Vec<u32>),
    /// Addresses of chunks, with their devices.
    ChunkIndexes(Vec<u32>),
}

impl DataMap {
    fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Indexes(indexes) => indexes.len(),
            Self::WholeFragment(_) => MapHeader::SIZE as u64,
            Self::Chunks(addresses) => 4 * addresses.len() as u64,
            Self::ChunkIndexes(addresses) => ChunkIndex::SIZE as u64 * addresses.len() as u64,
        }
    }

    /// Returns the alignment: 8 for indexes. For chunks, the size of an address, because readers align
    /// the first chunk to it.
    fn align(&self) -> u64 {
        match self {
            Self::None => 1,
            Self::Chunks(_) => 4,
            Self::Indexes(_) | Self::WholeFragment(_) | Self::ChunkIndexes(_) => 8,
        }
    }

    fn write(&self, plan: &Plan, extents: &ExtentLog, sink: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Indexes(indexes) => indexes.write(extents, sink),
            Self::WholeFragment(offset) => sink(&whole_fragment(*offset)),
            Self::Chunks(addresses) => addresses.iter().try_for_each(|address| sink(&address.to_le_bytes())),
            Self::ChunkIndexes(addresses) => {
                addresses.iter().try_for_each(|address| sink(&chunk_index(plan, *address).encode()))
            }
        }
    }
}

impl Record {
    fn flat(layout: DataLayout, size: u64, i_u: u32, tail: Vec<u8>) -> Self {
        Self { layout, size, i_u, map: DataMap::None, tail }
    }

    fn bytes(&self, header_bytes: u64) -> u64 {
        align(header_bytes, self.map.align()) + self.map.len() + self.tail.len() as u64
    }

    /// Calls `sink` with an inode, its xattrs and what follows them, piece by piece.
    fn write(
        &self,
        inode: &[u8],
        xattrs: &[u8],
        plan: &Plan,
        extents: &ExtentLog,
        mut sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        sink(inode)?;
        sink(xattrs)?;
        let header_bytes = (inode.len() + xattrs.len()) as u64;
        sink(&[0; 8][..(align(header_bytes, self.map.align()) - header_bytes) as usize])?;
        self.map.write(plan, extents, &mut sink)?;
        sink(&self.tail)
    }
}

/// Writes everything except the files' data. Returns the report.
pub(crate) fn write(
    tree: &Tree,
    options: &BuildOptions,
    plan: Plan,
    mut data: Data,
    out: &File,
) -> Result<BuildReport> {
    let block = u64::from(options.block_bytes);
    let (mut chunked, mut files_with_extents) = (false, 0);
    let mut next_block = data.end_block;
    let mut records = HashMap::with_capacity(plan.visits.len());
    for visit in &plan.visits {
        let stored = data.files.remove(&visit.id);
        chunked |= matches!(stored, Some(FileData::Chunks { .. }));
        if let Some(FileData::Compressed { indexes, .. }) = &stored {
            files_with_extents += u64::from(indexes.form == IndexForm::Extents);
        }
        records.insert(visit.id, record(tree, options, &plan, visit.id, stored, &mut next_block));
    }

    let meta_start = u64::from(next_block) * block;
    let mut packed = data.packed.take().map(|(size, stored)| file_record(&plan, size, Some(stored)));
    let Places { offsets, packed_at, placed_bytes, image_bytes } =
        places(&plan, block, meta_start, &records, packed.as_ref());
    let blocks = u32::try_from(image_bytes / block).ok().filter(|blocks| *blocks <= plan.devices.limit());
    let blocks = blocks.ok_or_else(|| Error::Options("the image exceeds 2^32 blocks".to_owned()))?;

    let mut front = vec![0; plan.front_bytes as usize];
    let mut put = |offset: u64, bytes: &[u8]| front[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    if plan.plain_prefixes {
        put(plan.prefixes_at(), &plan.prefixes.table());
    }
    put(plan.devices_at(), &plan.devices.encode());
    let mut digest = Xxh3::new();
    digest.update(&data.digest.to_le_bytes());
    for visit in &plan.visits {
        let Some(record) = records.get_mut(&visit.id) else { continue };
        let bytes = match &tree.node(visit.id).kind {
            NodeKind::Directory(_) => directory_bytes(tree, visit, &plan.inodes[&visit.id], &offsets),
            NodeKind::Symlink(target) => Some(target.clone()),
            _ => None,
        };
        if let Some(bytes) = bytes {
            let (in_blocks, tail) = bytes.split_at(bytes.len() - record.tail.len());
            // Blocks of files that were dropped again may have been here, so the rest of the last
            // block is cleared.
            let mut in_blocks = in_blocks.to_vec();
            in_blocks.resize(in_blocks.len().next_multiple_of(block as usize), 0);
            digest.update(&in_blocks);
            out.write_all_at(&in_blocks, u64::from(record.i_u) * block).map_err(Error::io("writing the image"))?;
            record.tail.copy_from_slice(tail);
        }
    }
    let mut write_record = |number: Option<usize>, sink: &mut dyn FnMut(&[u8]) -> Result<()>| {
        let visit = number.map(|number| (number as u32 + 1, &plan.visits[number]));
        let record = visit.map_or_else(|| packed.take(), |(_, visit)| records.remove(&visit.id));
        let Some(record) = record else { return Ok(()) };
        let (inode, xattrs) = match visit {
            Some((ino, visit)) => (encode_inode(tree, &plan, visit, &record, ino), &plan.inodes[&visit.id].xattrs[..]),
            None => (packed_inode(&plan, &record).encode().to_vec(), &[][..]),
        };
        record.write(&inode, xattrs, &plan, &data.extents, sink)
    };
    // The records by offset; the packed inode has no visit.
    let visited = plan.visits.iter().enumerate().map(|(number, visit)| (offsets[&visit.id], Some(number)));
    let mut placed: Vec<(u64, Option<usize>)> = visited.chain(packed_at.map(|at| (at, None))).collect();
    placed.sort_unstable();
    let (in_front, in_back) = placed.split_at(placed.partition_point(|(at, _)| *at < meta_start));
    for &(at, number) in in_front {
        let mut bytes = Vec::new();
        write_record(number, &mut |more| {
            bytes.extend_from_slice(more);
            Ok(())
        })?;
        put(at, &bytes);
    }
    digest.update(&front);
    out.set_len(image_bytes).map_err(Error::io("writing the image"))?;
    let mut back = Back { out, at: meta_start, pending: Vec::new(), digest };
    back.put(&plan.shared_xattrs)?;
    for &(at, number) in in_back {
        back.skip_to(at)?;
        write_record(number, &mut |bytes| back.put(bytes))?;
    }
    back.skip_to(image_bytes)?;
    let digest = back.finish()?;
    let packed_nid = packed_at.map_or(0, |at| at / SLOT);
    let inodes = plan.visits.len() as u64 + u64::from(packed_nid > 0);
    let uuid = options.uuid.unwrap_or_else(|| derive_uuid(&digest));
    let superblock = SuperBlock {
        magic: SUPER_MAGIC,
        checksum: 0,
        feature_compat: compat::SB_CHKSUM | compat::MTIME,
        blkszbits: options.block_bits() as u8,
        sb_extslots: 0,
        rootnid_2b_or_blocks_hi: (offsets[&tree.root()] / SLOT) as u16,
        inos: inodes,
        epoch: plan.time.0.cast_unsigned(),
        fixed_nsec: plan.time.1,
        blocks_lo: blocks,
        meta_blkaddr: 0,
        xattr_blkaddr: if plan.shared_xattrs.is_empty() { 0 } else { next_block },
        uuid,
        volume_name: options.volume_name,
        feature_incompat: features(options, &plan, &data, chunked, files_with_extents > 0, packed_nid > 0),
        available_compr_algs: plan.choices.formats(),
        extra_devices: plan.devices.count(),
        devt_slotoff: if plan.devices.is_empty() { 0 } else { (plan.devices_at() / DeviceSlot::SIZE as u64) as u16 },
        dirblkbits: 0,
        xattr_prefix_count: plan.prefixes.count(),
        xattr_prefix_start: if plan.plain_prefixes { (plan.prefixes_at() / 4) as u32 } else { 0 },
        packed_nid,
        xattr_filter_reserved: 0,
        ishare_xattr_prefix_id: 0,
        reserved: [0; 2],
        build_time: 0,
        rootnid_8b: 0,
        reserved2: 0,
    };
    let mut put = |offset: u64, bytes: &[u8]| front[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    put(SUPER_OFFSET, &superblock.encode());
    put(SUPER_OFFSET + SuperBlock::SIZE as u64, &plan.configs);
    let at = SUPER_OFFSET as usize;
    let sum = checksum(&front[at..at + checksummed_len(block as usize)]);
    front[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
    out.write_all_at(&front, 0).map_err(Error::io("writing the image"))?;
    Ok(BuildReport {
        image_bytes,
        inodes,
        file_bytes: file_bytes(tree, &plan),
        data_bytes: data.data_bytes,
        inode_bytes: placed_bytes,
        shared_blocks: data.shared_blocks,
        files_with_extents,
        shares_zeros: data.shares_zeros,
    })
}

/// The image offsets of all inodes, and the length of the image.
struct Places {
    offsets: HashMap<NodeId, u64>,
    /// The offset of the packed inode.
    packed_at: Option<u64>,
    /// Bytes of all inodes but the root and the packed one, with the gaps after the data.
    placed_bytes: u64,
    image_bytes: u64,
}

/// Places each inode and the data that follows it: before the file data if there is room, otherwise
/// from `meta_start` on, after the shared xattrs.
fn places(
    plan: &Plan,
    block: u64,
    meta_start: u64,
    records: &HashMap<NodeId, Record>,
    packed: Option<&Record>,
) -> Places {
    let mut wants = plan.visits.iter().map(|visit| {
        let record = &records[&visit.id];
        (visit.id, record.bytes(plan.inodes[&visit.id].header_bytes()), record.tail.len() as u64)
    });
    let mut offsets = HashMap::with_capacity(plan.visits.len());
    // The root comes first, before the data, because the superblock has 16 bits for its number.
    let mut front = plan.root_at();
    if let Some((root, len, _)) = wants.next() {
        offsets.insert(root, front);
        front += len;
    }
    let back = align(meta_start + plan.shared_xattrs.len() as u64, SLOT);
    let mut placer = Placer::new(block, front..plan.front_bytes, back);
    let mut wants: Vec<(NodeId, u64, u64)> = wants.collect();
    let mut in_front = 0;
    placer.place_all(&mut wants, |id, at, len| {
        in_front += if at < back { align(len, SLOT) } else { 0 };
        offsets.insert(*id, at);
    });
    let placed_bytes = in_front + placer.end() - back;
    let packed_at =
        packed.map(|record| placer.place(record.bytes(InodeExtended::SIZE as u64), record.tail.len() as u64));
    Places { offsets, packed_at, placed_bytes, image_bytes: placer.end().next_multiple_of(block) }
}

/// Returns the packed inode, which no directory refers to.
fn packed_inode(plan: &Plan, record: &Record) -> InodeExtended {
    InodeExtended {
        i_format: I_EXTENDED | record.layout.encode(),
        i_xattr_icount: 0,
        i_mode: (mode::REGULAR | 0o400) as u16,
        i_nb: 0,
        i_size: record.size,
        i_u: record.i_u,
        i_ino: plan.visits.len() as u32 + 1,
        i_uid: 0,
        i_gid: 0,
        i_mtime: plan.time.0.cast_unsigned(),
        i_mtime_nsec: plan.time.1,
        i_nlink: 1,
        i_reserved2: [0; 16],
    }
}

/// The blocks after the data, which are written in order.
struct Back<'a> {
    out: &'a File,
    /// The end of `pending`.
    at: u64,
    /// Bytes that are not written yet.
    pending: Vec<u8>,
    /// A hash of everything before `at`.
    digest: Xxh3,
}

impl Back<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.pending.extend_from_slice(bytes);
        self.at += bytes.len() as u64;
        if self.pending.len() >= WRITE_BYTES { self.write() } else { Ok(()) }
    }

    /// Adds zeros up to the offset `to`.
    fn skip_to(&mut self, to: u64) -> Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        debug_assert!(self.at <= to);
        while self.at < to {
            self.put(&ZEROS[..(to - self.at).min(ZEROS.len() as u64) as usize])?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        self.digest.update(&self.pending);
        let at = self.at - self.pending.len() as u64;
        self.out.write_all_at(&self.pending, at).map_err(Error::io("writing the image"))?;
        self.pending.clear();
        Ok(())
    }

    /// Writes what is left. Returns the hash.
    fn finish(mut self) -> Result<Xxh3> {
        self.write()?;
        Ok(self.digest)
    }
}

/// Derives a version 8 UUID (RFC 9562) from a hash of everything but the superblock.
fn derive_uuid(digest: &Xxh3) -> [u8; 16] {
    let mut uuid = digest.digest128().to_be_bytes();
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

fn features(options: &BuildOptions, plan: &Plan, data: &Data, chunked: bool, extents: bool, packed: bool) -> u32 {
    let mut features = 0;
    let mut set = |bit, on| features |= if on { bit } else { 0 };
    set(incompat::ZERO_PADDING, plan.choices.any());
    set(incompat::COMPR_CFGS, plan.choices.has_configs());
    set(incompat::CHUNKED_FILE, chunked);
    set(incompat::ADDRESSES_48BIT, extents);
    set(incompat::DEVICE_TABLE_OR_HEAD2, !plan.devices.is_empty());
    set(incompat::ZTAILPACKING, options.ztailpacking);
    set(incompat::FRAGMENTS, options.dedupe || packed || options.fragments != Fragments::Off || data.shares_zeros);
    set(incompat::XATTR_PREFIXES, plan.prefixes.count() > 0);
    features
}

fn file_bytes(tree: &Tree, plan: &Plan) -> u64 {
    let size = |visit: &Visit| match tree.node(visit.id).kind {
        NodeKind::Regular { size, .. } => size,
        _ => 0,
    };
    plan.visits.iter().map(size).fold(0, u64::saturating_add)
}

/// Returns the record of a node. Reserves blocks for directories and symbolic links that do not fit
/// after their inodes.
fn record(
    tree: &Tree,
    options: &BuildOptions,
    plan: &Plan,
    id: NodeId,
    stored: Option<FileData>,
    next_block: &mut u32,
) -> Record {
    let inode = &plan.inodes[&id];
    let block = u64::from(options.block_bytes);
    match &tree.node(id).kind {
        NodeKind::Regular { size, .. } => file_record(plan, *size, stored),
        NodeKind::Directory(_) => {
            let size = inode.directory.as_ref().map_or(0, super::directory::DirShape::bytes);
            let tail = size % block;
            let fits = if id == tree.root() {
                // The root follows the superblock, in the rest of the last block before the data.
                let end = plan.root_at() + inode.header_bytes();
                end % block + tail <= block && end + tail <= plan.front_bytes
            } else {
                inline_bytes(inode.header_bytes(), size, block) == tail
            };
            if tail > 0 && fits {
                let record = Record::flat(DataLayout::FlatInline, size, *next_block, vec![0; tail as usize]);
                *next_block += (size / block) as u32;
                return record;
            }
            let record = Record::flat(DataLayout::FlatPlain, size, *next_block, Vec::new());
            *next_block += size.div_ceil(block) as u32;
            record
        }
        NodeKind::Symlink(target) => {
            let size = target.len() as u64;
            if inline_bytes(inode.header_bytes(), size, block) == size {
                return Record::flat(DataLayout::FlatInline, size, NULL_ADDR, target.clone());
            }
            let record = Record::flat(DataLayout::FlatPlain, size, *next_block, Vec::new());
            *next_block += size.div_ceil(block) as u32;
            record
        }
        NodeKind::CharDevice(major, minor) | NodeKind::BlockDevice(major, minor) => {
            let device = (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12;
            Record::flat(DataLayout::FlatPlain, 0, device, Vec::new())
        }
        NodeKind::Fifo | NodeKind::Socket => Record::flat(DataLayout::FlatPlain, 0, 0, Vec::new()),
    }
}

fn file_record(plan: &Plan, size: u64, stored: Option<FileData>) -> Record {
    match stored {
        None => Record::flat(DataLayout::FlatPlain, 0, NULL_ADDR, Vec::new()),
        Some(FileData::Flat { blkaddr, tail }) if tail.is_empty() => {
            Record::flat(DataLayout::FlatPlain, size, blkaddr, tail)
        }
        Some(FileData::Flat { blkaddr, tail }) => Record::flat(DataLayout::FlatInline, size, blkaddr, tail),
        Some(FileData::Chunks { addresses, format }) if !plan.devices.is_empty() => Record {
            map: DataMap::ChunkIndexes(addresses),
            ..Record::flat(DataLayout::ChunkBased, size, format | CHUNK_INDEXES, Vec::new())
        },
        Some(FileData::Chunks { addresses, format }) => {
            Record { map: DataMap::Chunks(addresses), ..Record::flat(DataLayout::ChunkBased, size, format, Vec::new()) }
        }
        Some(FileData::Compressed { indexes, tail, blocks }) => {
            let layout = match indexes.form {
                IndexForm::Compact => DataLayout::CompressedCompact,
                IndexForm::Full | IndexForm::Extents => DataLayout::CompressedFull,
            };
            Record { map: DataMap::Indexes(indexes), ..Record::flat(layout, size, blocks, tail) }
        }
        Some(FileData::WholeFragment(offset)) => Record {
            map: DataMap::WholeFragment(offset),
            ..Record::flat(DataLayout::CompressedFull, size, 0, Vec::new())
        },
    }
}

/// Returns the index of a chunk at `address`. It names the device, because fsck.erofs 1.9 reads
/// uncompressed chunks of other devices only by their numbers.
fn chunk_index(plan: &Plan, address: u32) -> ChunkIndex {
    let (device_id, startblk_lo) = if address == NULL_ADDR { (0, NULL_ADDR) } else { plan.devices.locate(address) };
    ChunkIndex { startblk_hi: 0, device_id, startblk_lo }
}

fn directory_bytes(tree: &Tree, visit: &Visit, inode: &InodePlan, offsets: &HashMap<NodeId, u64>) -> Option<Vec<u8>> {
    let (NodeKind::Directory(names), Some(shape)) = (&tree.node(visit.id).kind, &inode.directory) else { return None };
    let target =
        |id: NodeId| Target { nid: offsets[&id] / SLOT, file_type: file_type::from_mode(tree.node(id).mode()) };
    let names = names.iter().map(|(name, id)| (name.as_slice(), target(*id)));
    Some(shape.encode(names, target(visit.id), target(visit.parent)))
}

fn encode_inode(tree: &Tree, plan: &Plan, visit: &Visit, record: &Record, ino: u32) -> Vec<u8> {
    let node = tree.node(visit.id);
    let inode = &plan.inodes[&visit.id];
    let i_xattr_icount = match inode.xattrs.len() {
        0 => 0,
        len => ((len - XattrHeader::SIZE) / 4 + 1) as u16,
    };
    let i_format = record.layout.encode();
    if inode.extended {
        let extended = InodeExtended {
            i_format: i_format | I_EXTENDED,
            i_xattr_icount,
            i_mode: node.mode(),
            i_nb: 0,
            i_size: record.size,
            i_u: record.i_u,
            i_ino: ino,
            i_uid: node.uid,
            i_gid: node.gid,
            i_mtime: node.mtime_s.cast_unsigned(),
            i_mtime_nsec: node.mtime_nsec,
            i_nlink: visit.nlink,
            i_reserved2: [0; 16],
        };
        return extended.encode().to_vec();
    }
    let compact = InodeCompact {
        i_format,
        i_xattr_icount,
        i_mode: node.mode(),
        i_nb: visit.nlink as u16,
        i_size: record.size as u32,
        i_mtime: 0,
        i_u: record.i_u,
        i_ino: ino,
        i_uid: node.uid as u16,
        i_gid: node.gid as u16,
        i_reserved: 0,
    };
    compact.encode().to_vec()
}

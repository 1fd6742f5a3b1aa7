//! Writes inodes, directories and the superblock after the data.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::Xxh3;

use super::data::{Data, FileData};
use super::directory::Target;
use super::indexes::{IndexForm, whole_fragment};
use super::inline::inline_bytes;
use super::options::{BuildOptions, Fragments};
use super::placer::Placer;
use super::plan::{InodePlan, Plan};
use super::report::BuildReport;
use super::tree::{NodeId, NodeKind, Tree, Visit};
use crate::error::{Error, Result};
use crate::format::{
    CHUNK_INDEXES, ChunkIndex, DataLayout, DeviceSlot, I_EXTENDED, InodeCompact, InodeExtended, NULL_ADDR, SLOT,
    SUPER_MAGIC, SUPER_OFFSET, SuperBlock, XattrHeader, align, checksum, checksummed_len, compat, file_type, incompat,
    mode,
};

/// An inode's layout and the data that follows it, except for bytes that depend on nids.
struct Record {
    layout: DataLayout,
    size: u64,
    i_u: u32,
    /// The indexes or chunks after the xattrs, aligned to `indexes_align` if there are any.
    indexes: Vec<u8>,
    /// 8 for indexes. For chunks, the size of an address, because readers align the first chunk to
    /// it.
    indexes_align: u64,
    /// The bytes after the indexes, which must not cross a block boundary. Zeros for directories,
    /// whose contents are not known yet.
    tail: Vec<u8>,
}

impl Record {
    fn flat(layout: DataLayout, size: u64, i_u: u32, tail: Vec<u8>) -> Self {
        Self { layout, size, i_u, indexes: Vec::new(), indexes_align: 8, tail }
    }

    fn bytes(&self, header_bytes: u64) -> u64 {
        self.indexes_at(header_bytes) + (self.indexes.len() + self.tail.len()) as u64
    }

    fn indexes_at(&self, header_bytes: u64) -> u64 {
        if self.indexes.is_empty() { header_bytes } else { align(header_bytes, self.indexes_align) }
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
    let packed = data.packed.take().map(|(size, stored)| file_record(&plan, size, Some(stored)));
    let Places { offsets, packed_at, placed_bytes, image_bytes } =
        places(&plan, block, meta_start, &records, packed.as_ref());
    let blocks = u32::try_from(image_bytes / block).ok().filter(|blocks| *blocks <= plan.devices.limit());
    let blocks = blocks.ok_or_else(|| Error::Options("the image exceeds 2^32 blocks".to_owned()))?;

    let mut metadata = Metadata {
        front: vec![0; plan.front_bytes as usize],
        back: vec![0; (image_bytes - meta_start) as usize],
        back_start: meta_start,
    };
    if plan.plain_prefixes {
        metadata.put(plan.prefixes_at(), &plan.prefixes.table());
    }
    metadata.put(plan.devices_at(), &plan.devices.encode());
    metadata.put(meta_start, &plan.shared_xattrs);
    let mut digest = Xxh3::new();
    digest.update(&data.digest.to_le_bytes());
    for (number, visit) in plan.visits.iter().enumerate() {
        let (offset, inode) = (offsets[&visit.id], &plan.inodes[&visit.id]);
        let Some(mut record) = records.remove(&visit.id) else { continue };
        let bytes = match &tree.node(visit.id).kind {
            NodeKind::Directory(_) => directory_bytes(tree, visit, inode, &offsets),
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
        let bytes = encode_inode(tree, &plan, visit, &record, number as u32 + 1);
        metadata.put_record(offset, &bytes, &inode.xattrs, &record);
    }
    if let Some(record) = &packed {
        metadata.put_record(packed_at, &packed_inode(&plan, record).encode(), &[], record);
    }
    let packed_nid = packed_at / SLOT;
    let inodes = plan.visits.len() as u64 + u64::from(packed_nid > 0);
    let uuid = options.uuid.unwrap_or_else(|| metadata.derive_uuid(digest));
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
        feature_incompat: features(options, &plan, chunked, files_with_extents > 0, packed_nid > 0),
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
    out.set_len(image_bytes).map_err(Error::io("writing the image"))?;
    out.write_all_at(&metadata.back, meta_start).map_err(Error::io("writing the image"))?;
    metadata.put(SUPER_OFFSET, &superblock.encode());
    metadata.put(SUPER_OFFSET + SuperBlock::SIZE as u64, &plan.configs);
    let at = SUPER_OFFSET as usize;
    let sum = checksum(&metadata.front[at..at + checksummed_len(block as usize)]);
    metadata.put(SUPER_OFFSET + 4, &sum.to_le_bytes());
    out.write_all_at(&metadata.front, 0).map_err(Error::io("writing the image"))?;
    Ok(BuildReport {
        image_bytes,
        inodes,
        file_bytes: file_bytes(tree, &plan),
        data_bytes: data.data_bytes,
        inode_bytes: placed_bytes,
        shared_blocks: data.shared_blocks,
        files_with_extents,
    })
}

/// The image offsets of all inodes, and the length of the image.
struct Places {
    offsets: HashMap<NodeId, u64>,
    /// The offset of the packed inode; 0 if there is none.
    packed_at: u64,
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
        packed.map_or(0, |record| placer.place(record.bytes(InodeExtended::SIZE as u64), record.tail.len() as u64));
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

/// The blocks before and after the data.
struct Metadata {
    front: Vec<u8>,
    back: Vec<u8>,
    back_start: u64,
}

impl Metadata {
    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let (part, at) = match offset.checked_sub(self.back_start) {
            Some(at) => (&mut self.back, at as usize),
            None => (&mut self.front, offset as usize),
        };
        part[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_record(&mut self, offset: u64, inode: &[u8], xattrs: &[u8], record: &Record) {
        let header_bytes = (inode.len() + xattrs.len()) as u64;
        let indexes_at = offset + record.indexes_at(header_bytes);
        self.put(offset, inode);
        self.put(offset + inode.len() as u64, xattrs);
        self.put(indexes_at, &record.indexes);
        self.put(indexes_at + record.indexes.len() as u64, &record.tail);
    }

    /// Derives a version 8 UUID (RFC 9562) from the metadata and `sum`, a hash of everything else.
    fn derive_uuid(&self, mut sum: Xxh3) -> [u8; 16] {
        sum.update(&self.front);
        sum.update(&self.back);
        let mut uuid = sum.digest128().to_be_bytes();
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        uuid
    }
}

fn features(options: &BuildOptions, plan: &Plan, chunked: bool, extents: bool, packed: bool) -> u32 {
    let mut features = 0;
    let mut set = |bit, on| features |= if on { bit } else { 0 };
    set(incompat::ZERO_PADDING, plan.choices.any());
    set(incompat::COMPR_CFGS, plan.choices.has_configs());
    set(incompat::CHUNKED_FILE, chunked);
    set(incompat::ADDRESSES_48BIT, extents);
    set(incompat::DEVICE_TABLE_OR_HEAD2, !plan.devices.is_empty());
    set(incompat::ZTAILPACKING, options.ztailpacking);
    set(incompat::FRAGMENTS, options.dedupe || packed || options.fragments != Fragments::Off);
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
            indexes: addresses.iter().flat_map(|address| chunk_index(plan, *address).encode()).collect(),
            ..Record::flat(DataLayout::ChunkBased, size, format | CHUNK_INDEXES, Vec::new())
        },
        Some(FileData::Chunks { addresses, format }) => Record {
            indexes: addresses.iter().flat_map(|blkaddr| blkaddr.to_le_bytes()).collect(),
            indexes_align: 4,
            ..Record::flat(DataLayout::ChunkBased, size, format, Vec::new())
        },
        Some(FileData::Compressed { indexes, tail, blocks }) => {
            let layout = match indexes.form {
                IndexForm::Compact => DataLayout::CompressedCompact,
                IndexForm::Full | IndexForm::Extents => DataLayout::CompressedFull,
            };
            Record { indexes: indexes.bytes, ..Record::flat(layout, size, blocks, tail) }
        }
        Some(FileData::WholeFragment(offset)) => Record {
            indexes: whole_fragment(offset).to_vec(),
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

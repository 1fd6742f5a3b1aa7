//! The plan of an image before its data is written: the order of the inodes and their sizes, except
//! for data.

use std::collections::{BTreeMap, HashMap};

use super::choices::Choices;
use super::directory::DirShape;
use super::indexes::IndexStyle;
use super::options::{BuildOptions, Fragments, Indexes};
use super::prefixes::Prefixes;
use super::tree::{NodeId, NodeKind, Tree, Visit};
use crate::error::{Error, Result};
use crate::format::{
    InodeCompact, InodeExtended, SLOT, SUPER_OFFSET, SuperBlock, Xattr, XattrEntry, XattrHeader, align,
};

/// The number of nodes with an xattr from which on it is shared.
const SHARED_BY: usize = 2;
/// The maximum device numbers: 12 and 20 bits.
const MAX_MAJOR: u32 = (1 << 12) - 1;
const MAX_MINOR: u32 = (1 << 20) - 1;

/// The plan of an image.
pub(crate) struct Plan {
    pub(crate) visits: Vec<Visit>,
    pub(crate) inodes: HashMap<NodeId, InodePlan>,
    /// The most frequent modification time, which compact inodes inherit from the superblock.
    pub(crate) time: (i64, u32),
    /// Encoded shared xattrs.
    pub(crate) shared_xattrs: Vec<u8>,
    pub(crate) choices: Choices,
    /// Configurations that follow the superblock.
    pub(crate) configs: Vec<u8>,
    pub(crate) prefixes: Prefixes,
    /// The prefix table follows the configurations; otherwise, it is at the start of the packed
    /// inode.
    pub(crate) plain_prefixes: bool,
    /// The size in bytes of everything before the data: the superblock and the root, in whole
    /// blocks.
    pub(crate) front_bytes: u64,
    block_bits: u32,
}

/// The plan of an inode.
pub(crate) struct InodePlan {
    pub(crate) extended: bool,
    /// The encoded xattrs that follow the inode.
    pub(crate) xattrs: Vec<u8>,
    pub(crate) directory: Option<DirShape>,
}

impl InodePlan {
    /// Returns the size of the inode and its xattrs in bytes.
    pub(crate) fn header_bytes(&self) -> u64 {
        (if self.extended { InodeExtended::SIZE } else { InodeCompact::SIZE } + self.xattrs.len()) as u64
    }
}

impl Plan {
    pub(crate) fn new(tree: &Tree, options: &BuildOptions) -> Result<Self> {
        let visits = tree.walk();
        let time = most_frequent_time(tree, &visits);
        let all_xattrs = visits.iter().flat_map(|visit| &tree.node(visit.id).xattrs);
        let prefixes = Prefixes::new(&options.xattr_prefixes, all_xattrs);
        let (shared_xattrs, ids) = share_xattrs(tree, &visits, &prefixes);
        let mut inodes = HashMap::with_capacity(visits.len());
        for visit in &visits {
            let node = tree.node(visit.id);
            let directory = match &node.kind {
                NodeKind::Directory(names) => Some(DirShape::new(names.keys(), options.block_bytes as usize)),
                _ => None,
            };
            let size = match &node.kind {
                NodeKind::Regular { size, .. } => *size,
                _ => directory.as_ref().map_or(0, DirShape::bytes),
            };
            let extended = (node.mtime_s, node.mtime_nsec) != time
                || node.uid > u32::from(u16::MAX)
                || node.gid > u32::from(u16::MAX)
                || visit.nlink > u32::from(u16::MAX)
                || size > u64::from(u32::MAX);
            let refuse = |what| Error::Source { path: tree.name_of(visit.id), what };
            if let NodeKind::CharDevice(major, minor) | NodeKind::BlockDevice(major, minor) = node.kind
                && (major > MAX_MAJOR || minor > MAX_MINOR)
            {
                return Err(refuse(format!(
                    "the device number {major}:{minor} is beyond EROFS's {MAX_MAJOR}:{MAX_MINOR}"
                )));
            }
            let xattrs = encode_xattrs(&node.xattrs, &ids, &prefixes).map_err(refuse)?;
            inodes.insert(visit.id, InodePlan { extended, xattrs, directory });
        }
        let choices = Choices::new(tree, options);
        let configs = choices.configs();
        let root_bytes = inodes[&tree.root()].header_bytes();
        let mut plan = Self {
            visits,
            inodes,
            time,
            shared_xattrs,
            choices,
            configs,
            prefixes,
            plain_prefixes: options.fragments == Fragments::Off,
            front_bytes: 0,
            block_bits: options.block_bits(),
        };
        plan.front_bytes = (plan.root_at() + root_bytes).next_multiple_of(u64::from(options.block_bytes));
        Ok(plan)
    }

    /// Returns the offset of the prefix table, if it is not in the packed inode.
    pub(crate) fn prefixes_at(&self) -> u64 {
        align(SUPER_OFFSET + SuperBlock::SIZE as u64 + self.configs.len() as u64, 4)
    }

    /// Returns the offset of the root's inode.
    pub(crate) fn root_at(&self) -> u64 {
        let table_bytes = if self.plain_prefixes { self.prefixes.table().len() as u64 } else { 0 };
        align(self.prefixes_at() + table_bytes, SLOT)
    }

    /// Returns the bytes at the start of the packed inode.
    pub(crate) fn packed_front(&self) -> Vec<u8> {
        if self.plain_prefixes { Vec::new() } else { self.prefixes.table() }
    }

    pub(crate) fn first_data_block(&self) -> u32 {
        (self.front_bytes >> self.block_bits) as u32
    }

    /// Returns the regular files in order, each with the size of its inode and xattrs in bytes.
    pub(crate) fn regular_files<'a>(&'a self, tree: &'a Tree) -> impl Iterator<Item = (NodeId, u64)> + 'a {
        self.visits
            .iter()
            .filter(|visit| matches!(tree.node(visit.id).kind, NodeKind::Regular { .. }))
            .map(|visit| (visit.id, self.inodes[&visit.id].header_bytes()))
    }

    pub(crate) fn index_style(&self, options: &BuildOptions) -> IndexStyle {
        IndexStyle {
            block_bits: options.block_bits(),
            big: self.choices.big(),
            compact: options.indexes != Indexes::Full,
        }
    }
}

/// Returns the most frequent modification time; the earliest if there are several.
fn most_frequent_time(tree: &Tree, visits: &[Visit]) -> (i64, u32) {
    let mut counts: BTreeMap<(i64, u32), usize> = BTreeMap::new();
    for visit in visits {
        let node = tree.node(visit.id);
        *counts.entry((node.mtime_s, node.mtime_nsec)).or_default() += 1;
    }
    counts
        .iter()
        .max_by_key(|((s, nsec), count)| (**count, std::cmp::Reverse((*s, *nsec))))
        .map_or((0, 0), |(time, _)| *time)
}

/// Encodes the xattrs that several nodes have, in order. The id of each is its offset in units of 4
/// bytes.
fn share_xattrs<'a>(tree: &'a Tree, visits: &[Visit], prefixes: &Prefixes) -> (Vec<u8>, HashMap<&'a Xattr, u32>) {
    let mut counts: BTreeMap<&Xattr, usize> = BTreeMap::new();
    for visit in visits {
        for xattr in &tree.node(visit.id).xattrs {
            *counts.entry(xattr).or_default() += 1;
        }
    }
    let mut bytes = Vec::new();
    let mut ids = HashMap::new();
    for (xattr, count) in counts {
        if count >= SHARED_BY
            && let Some(entry) = encode_xattr(xattr, prefixes)
        {
            ids.insert(xattr, (bytes.len() / 4) as u32);
            bytes.extend_from_slice(&entry);
        }
    }
    (bytes, ids)
}

/// Encodes an entry, padded to 4 bytes; `None` if the format cannot represent it.
fn encode_xattr(xattr: &Xattr, prefixes: &Prefixes) -> Option<Vec<u8>> {
    let (index, suffix) = prefixes.split(&xattr.name)?;
    let entry = XattrEntry {
        e_name_len: u8::try_from(suffix.len()).ok()?,
        e_name_index: index,
        e_value_size: u16::try_from(xattr.value.len()).ok()?,
    };
    let mut bytes = [&entry.encode()[..], suffix, &xattr.value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    Some(bytes)
}

fn encode_xattrs(
    xattrs: &[Xattr],
    ids: &HashMap<&Xattr, u32>,
    prefixes: &Prefixes,
) -> std::result::Result<Vec<u8>, String> {
    if xattrs.is_empty() {
        return Ok(Vec::new());
    }
    let mut shared = Vec::new();
    let mut inline = Vec::new();
    for xattr in xattrs {
        match ids.get(xattr) {
            Some(id) if shared.len() < 4 * usize::from(u8::MAX) => shared.extend_from_slice(&id.to_le_bytes()),
            _ => {
                let entry = encode_xattr(xattr, prefixes).ok_or_else(|| {
                    let name = String::from_utf8_lossy(&xattr.name);
                    format!("its xattr {name} has a name or value that EROFS cannot store")
                })?;
                inline.extend_from_slice(&entry);
            }
        }
    }
    let header =
        XattrHeader { h_name_filter: 0, h_shared_count: (shared.len() / 4) as u8, h_reserved: [0; 7] }.encode();
    let bytes = [&header[..], &shared, &inline].concat();
    if (bytes.len() - XattrHeader::SIZE) / 4 >= usize::from(u16::MAX) {
        return Err("it has more than 256 KiB of xattrs".to_owned());
    }
    Ok(bytes)
}

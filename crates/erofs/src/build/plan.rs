//! The plan of an image before its data is written: the order of the inodes and their sizes, except
//! for data.

use std::collections::{HashMap, HashSet};

use super::choices::Choices;
use super::devices::Devices;
use super::directory::DirShape;
use super::indexes::IndexStyle;
use super::inode_times::{InodeNumbers, InodeTimes};
use super::options::{BuildOptions, Fragments, Indexes};
use super::prefixes::Prefixes;
use super::tree::{NodeId, NodeKind, Tree, Visit};
use super::xattrs::{encode_xattrs, share_xattrs};
use crate::error::{Error, Result};
use crate::format::{DeviceSlot, InodeCompact, InodeExtended, SLOT, SUPER_OFFSET, SuperBlock, align};

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
    /// The devices that the image refers to. Their table follows the prefixes.
    pub(crate) devices: Devices,
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
        let all_xattrs = visits.iter().flat_map(|visit| &tree.node(visit.id).xattrs);
        let prefixes = Prefixes::new(&options.xattr_prefixes, all_xattrs);
        let (shared_xattrs, ids) = share_xattrs(tree, &visits, &prefixes);
        let mut inodes = HashMap::with_capacity(visits.len());
        let mut times = InodeTimes::default();
        for visit in &visits {
            let node = tree.node(visit.id);
            let directory = match &node.kind {
                NodeKind::Directory(names) => {
                    Some(DirShape::new(names.keys().map(Vec::as_slice), options.block_bytes as usize))
                }
                _ => None,
            };
            let size = match &node.kind {
                NodeKind::Regular { size, .. } => *size,
                _ => directory.as_ref().map_or(0, DirShape::bytes),
            };
            let are_compact = InodeNumbers { uid: node.uid, gid: node.gid, nlink: visit.nlink, size }.are_compact();
            times.add((node.mtime_s, node.mtime_nsec), are_compact);
            let refuse = |what| Error::Source { path: tree.name_of(visit.id), what };
            if let NodeKind::CharDevice(major, minor) | NodeKind::BlockDevice(major, minor) = node.kind
                && (major > MAX_MAJOR || minor > MAX_MINOR)
            {
                return Err(refuse(format!(
                    "the device number {major}:{minor} is beyond EROFS's {MAX_MAJOR}:{MAX_MINOR}"
                )));
            }
            let xattrs = encode_xattrs(&node.xattrs, &ids, &prefixes).map_err(refuse)?;
            inodes.insert(visit.id, InodePlan { extended: !are_compact, xattrs, directory });
        }
        let time = times.of_image();
        for (id, inode) in &mut inodes {
            let node = tree.node(*id);
            inode.extended |= (node.mtime_s, node.mtime_nsec) != time;
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
            devices: Devices::of(tree, options)?,
            front_bytes: 0,
            block_bits: options.block_bits(),
        };
        if plan.root_at() / SLOT > u64::from(u16::MAX) {
            return Err(Error::Options("the base has too many devices".to_owned()));
        }
        plan.front_bytes = (plan.root_at() + root_bytes).next_multiple_of(u64::from(options.block_bytes));
        Ok(plan)
    }

    /// Removes nodes after the data was written. `tree` no longer has their names. The plans of all
    /// other files stay unchanged, since their data was stored accordingly.
    pub(crate) fn leave_out(&mut self, tree: &Tree, gone: &HashSet<NodeId>, options: &BuildOptions) {
        self.visits.retain(|visit| !gone.contains(&visit.id));
        self.inodes.retain(|id, _| !gone.contains(id));
        for (id, inode) in &mut self.inodes {
            if let NodeKind::Directory(names) = &tree.node(*id).kind {
                inode.directory = Some(DirShape::new(names.keys().map(Vec::as_slice), options.block_bytes as usize));
            }
        }
    }

    /// Returns the offset of the prefix table, if it is not in the packed inode.
    pub(crate) fn prefixes_at(&self) -> u64 {
        align(SUPER_OFFSET + SuperBlock::SIZE as u64 + self.configs.len() as u64, 4)
    }

    /// Returns the offset of the root's inode.
    pub(crate) fn root_at(&self) -> u64 {
        match self.devices.count() {
            0 => align(self.prefixes_end(), SLOT),
            count => self.devices_at() + u64::from(count) * DeviceSlot::SIZE as u64,
        }
    }

    fn prefixes_end(&self) -> u64 {
        let table_bytes = if self.plain_prefixes { self.prefixes.table().len() as u64 } else { 0 };
        self.prefixes_at() + table_bytes
    }

    /// Returns the offset of the device table, if there are devices.
    pub(crate) fn devices_at(&self) -> u64 {
        align(self.prefixes_end(), DeviceSlot::SIZE as u64)
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

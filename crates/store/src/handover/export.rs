//! Writes a pool as a stream.
//!
//! ```text
//! from each disk's root: number nodes after what is below them, and leaves as they are found
//! write the leaves in that order; a link leads to further leaves, which get the next numbers
//! write the nodes, the disks
//! ```
//!
//! An entry is locked while it is copied, so threads that use the disks in spite of the contract get
//! an error or a stream that cannot be imported, and never anything worse.

use std::{collections::HashMap, io::Write, sync::Arc};

use pagefold_codec::PAGE_SIZE;

use super::{
    DISKS, EMPTY, END, ExportError, ExportedDisk, HASH, HEADER, HINTS, HOLE, HOLE_PART, HOLE_ROOT, LEAVES, LINK,
    NO_ROOT, NODE_ROOT, NODES, NOTE_MAX, OBJECT, OVER, RAW, SAME, SHARED, TABLES, blocks::BlockWriter,
};
use crate::{
    core::Core,
    entry::{Entry, LayerId, Locked},
    equal::{Equals, Seeds},
    heap::Owner,
    pool::Pool,
    streams::Training,
    sync::Ordering::Acquire,
    tree::{HOLE as HOLE_PLACE, LEAF_SLOTS, NOTHING, PartId, PartStorage as Leaves, names_part},
};

impl Pool {
    /// Writes the disks and what they hold to `out`, from which [`import`](Self::import) makes
    /// another pool, also in a program of another version. Objects are copied as they are, and what
    /// disks share is written once. Other disks, and clean ones, are left out.
    ///
    /// No other thread may change the disks during the call. The pool is unchanged, so its use can go on
    /// afterwards.
    ///
    /// # Errors
    /// See [`ExportError`]. `out` may have part of a stream.
    pub fn export(&self, disks: &[ExportedDisk<'_>], out: &mut dyn Write) -> Result<(), ExportError> {
        let core = self.core();
        for (number, ExportedDisk { disk, note }) in disks.iter().enumerate() {
            if !disk.is_of(core) {
                return Err(ExportError::NotOfPool { number });
            }
            if note.len() > NOTE_MAX {
                return Err(ExportError::LongNote { number, len_bytes: note.len() });
            }
        }
        let paused = core.pause();
        // Entries of dropped disks that nothing refers to are not to be found by links to others.
        while core.free_left(&paused) {}
        drop(paused);
        let mut export = Export::new(core, BlockWriter::begin(out, HEADER)?);
        export.header()?;
        for ExportedDisk { disk, .. } in disks {
            let (name, level) = disk.tree().root();
            if names_part(name) {
                export.number_node(PartId::of(name).number(), level);
            }
        }
        export.leaves()?;
        export.nodes()?;
        for disk in disks {
            export.disk(disk)?;
        }
        export.hints()?;
        export.end(disks.len())
    }
}

/// The numbers in the stream of parts of one kind.
struct Numbers {
    /// By the number in the pool, the number plus one; 0 if it has none.
    of: Vec<u32>,
    count: u32,
}

impl Numbers {
    fn new() -> Self {
        Self { of: Vec::new(), count: 0 }
    }

    fn get(&self, part: u32) -> Option<u32> {
        self.of.get(part as usize).copied().unwrap_or(0).checked_sub(1)
    }

    /// Gives the part the next number.
    fn add(&mut self, part: u32) -> u32 {
        if self.of.len() <= part as usize {
            self.of.resize(part as usize + 1, 0);
        }
        self.count += 1;
        self.of[part as usize] = self.count;
        self.count - 1
    }
}

/// An export in progress.
struct Export<'a> {
    core: &'a Arc<Core>,
    writer: BlockWriter<'a>,
    layers: HashMap<u32, u32>,
    leaf_numbers: Numbers,
    /// The leaves in the order of their numbers.
    found: Vec<Owner>,
    node_numbers: Numbers,
    /// The nodes in the order of their numbers, each with its level.
    nodes: Vec<(u32, u32)>,
    objects: u64,
}

impl<'a> Export<'a> {
    fn new(core: &'a Arc<Core>, writer: BlockWriter<'a>) -> Self {
        Self {
            core,
            writer,
            layers: HashMap::from([(core.common.layer().number(), 0)]),
            leaf_numbers: Numbers::new(),
            found: Vec::new(),
            node_numbers: Numbers::new(),
            nodes: Vec::new(),
            objects: 0,
        }
    }

    /// Returns the layer's number in the stream.
    fn layer(&mut self, layer: LayerId) -> u32 {
        let next = self.layers.len() as u32;
        *self.layers.entry(layer.number()).or_insert(next)
    }

    /// Returns the leaf's number in the stream.
    fn leaf(&mut self, leaf: Owner) -> u32 {
        self.leaf_numbers.get(leaf).unwrap_or_else(|| {
            self.found.push(leaf);
            self.leaf_numbers.add(leaf)
        })
    }

    /// Numbers a node after what is below it.
    fn number_node(&mut self, node: u32, level: u32) {
        if self.node_numbers.get(node).is_some() {
            return;
        }
        let core = self.core;
        for place in core.leaves.node(node) {
            let name = place.load(Acquire);
            if !names_part(name) {
                continue;
            }
            let part = PartId::of(name).number();
            if level == 1 {
                self.leaf(part);
            } else {
                self.number_node(part, level - 1);
            }
        }
        self.node_numbers.add(node);
        self.nodes.push((node, level));
    }

    fn header(&mut self) -> Result<(), ExportError> {
        let core = self.core;
        let history = core.training.as_ref().map(Training::history).unwrap_or_default();
        let name = core.streams.codec().name();
        let record = self.writer.record(HEADER)?;
        record.extend((PAGE_SIZE as u32).to_le_bytes());
        record.extend((LEAF_SLOTS as u32).to_le_bytes());
        for figure in [core.budget.max(), history.trainings, history.useless, history.gain_permille, history.age_s] {
            record.extend(figure.to_le_bytes());
        }
        record.extend(history.stride.to_le_bytes());
        record.extend((name.len() as u16).to_le_bytes());
        record.extend(name.as_bytes());
        let Seeds(seeds) = core.equals.as_ref().map_or(Seeds([0; 2]), Equals::seeds);
        record.extend(seeds.iter().flat_map(|seed| seed.to_le_bytes()));
        let untrained = || core.streams.codec().tables().map(|tables| (0, tables)).into_iter().collect();
        for (number, tables) in core.training.as_ref().map_or_else(untrained, Training::numbered) {
            // Each in a block of its own.
            self.writer.end_block()?;
            let record = self.writer.record(TABLES)?;
            record.push(number);
            record.extend(tables.to_bytes());
        }
        Ok(())
    }

    fn leaves(&mut self) -> Result<(), ExportError> {
        let mut at = 0;
        while let Some(&leaf) = self.found.get(at) {
            at += 1;
            self.leaf_record(leaf)?;
        }
        Ok(())
    }

    fn leaf_record(&mut self, leaf: Owner) -> Result<(), ExportError> {
        let core = self.core;
        let layer = self.layer(core.leaves.layer(leaf));
        let start = {
            let record = self.writer.record(LEAVES)?;
            record.extend(layer.to_le_bytes());
            let start = record.len();
            record.extend([EMPTY; LEAF_SLOTS]);
            start
        };
        for (index, word) in core.leaves.words(leaf).iter().enumerate() {
            let locked = Locked::lock(word).ok_or(ExportError::Changed)?;
            let entry = locked.entry();
            let to = match entry {
                Entry::Link(to) => self.leaf(to),
                Entry::Shared { number, .. } => self.leaf(Leaves::leaf_of(number).0),
                _ => 0,
            };
            let record = self.writer.same_record();
            let tag = match entry {
                Entry::Empty => EMPTY,
                Entry::Hole => HOLE,
                Entry::Link(_) => {
                    record.extend(to.to_le_bytes());
                    LINK
                }
                Entry::Shared { number, len_bytes } => {
                    record.extend((len_bytes as u16 - 1).to_le_bytes());
                    record.extend(to.to_le_bytes());
                    record.push(Leaves::leaf_of(number).1 as u8);
                    SHARED
                }
                Entry::Same(fill) => {
                    record.extend(fill.word().to_le_bytes());
                    SAME
                }
                Entry::Object { tables, len_bytes, .. } => {
                    record.extend((len_bytes as u16 - 1).to_le_bytes());
                    core.append_object(&locked, record);
                    OBJECT | tables << 4
                }
                Entry::Raw { .. } => {
                    core.append_object(&locked, record);
                    RAW
                }
            };
            record[start + index] = tag;
            self.objects += u64::from(entry.object().is_some());
        }
        Ok(())
    }

    fn nodes(&mut self) -> Result<(), ExportError> {
        for (node, level) in std::mem::take(&mut self.nodes) {
            let layer = self.layer(self.core.leaves.node_layer(node));
            let record = self.writer.record(NODES)?;
            record.extend(layer.to_le_bytes());
            record.extend([level as u8, 0]);
            let count_at = record.len() - 1;
            let numbers = if level == 1 { &self.leaf_numbers } else { &self.node_numbers };
            for (index, place) in self.core.leaves.node(node).iter().enumerate() {
                let part = match place.load(Acquire) {
                    NOTHING => continue,
                    HOLE_PLACE => HOLE_PART,
                    name => numbers.get(PartId::of(name).number()).ok_or(ExportError::Changed)?,
                };
                record.push(index as u8);
                record.extend(part.to_le_bytes());
                record[count_at] += 1;
            }
        }
        Ok(())
    }

    fn disk(&mut self, exported: &ExportedDisk<'_>) -> Result<(), ExportError> {
        let ExportedDisk { disk, note } = exported;
        let (name, level) = disk.tree().root();
        let (kind, node) = match name {
            NOTHING => (NO_ROOT, 0),
            HOLE_PLACE => (HOLE_ROOT, 0),
            name => (NODE_ROOT, self.node_numbers.get(PartId::of(name).number()).ok_or(ExportError::Changed)?),
        };
        let mut layers = disk.tree().layers();
        let Some(own) = layers.pop() else { unreachable!("a disk has a layer") };
        // In the order of the record, as a reader takes the next number for a new layer.
        let own = self.layer(own);
        let layers: Vec<u32> = layers.into_iter().map(|layer| self.layer(layer)).collect();
        let record = self.writer.record(DISKS)?;
        let start = record.len();
        record.extend([0; 4]);
        record.extend(disk.slots().to_le_bytes());
        record.extend(disk.limit().to_le_bytes());
        record.extend(if disk.is_over() { OVER } else { 0 }.to_le_bytes());
        record.extend([kind, level as u8]);
        record.extend(node.to_le_bytes());
        record.extend(own.to_le_bytes());
        record.extend((layers.len() as u32).to_le_bytes());
        record.extend(layers.iter().flat_map(|layer| layer.to_le_bytes()));
        record.extend((note.len() as u32).to_le_bytes());
        record.extend(*note);
        let len = (record.len() - start - 4) as u32;
        record[start..start + 4].copy_from_slice(&len.to_le_bytes());
        Ok(())
    }

    fn hints(&mut self) -> Result<(), ExportError> {
        let core = self.core;
        let mut last = usize::MAX;
        for (sum, number) in core.equals.iter().flat_map(Equals::hints) {
            let (leaf, index) = Leaves::leaf_of(number);
            let Some(leaf) = self.leaf_numbers.get(leaf) else { continue };
            let record = self.writer.record(HINTS)?;
            // Each block says which hash it is.
            if record.len() < last {
                record.extend(HASH.to_le_bytes());
            }
            record.extend(sum.bits().to_le_bytes());
            record.extend(leaf.to_le_bytes());
            record.push(index as u8);
            last = record.len();
        }
        Ok(())
    }

    fn end(mut self, disks: usize) -> Result<(), ExportError> {
        let record = self.writer.record(END)?;
        for count in [self.leaf_numbers.count, self.node_numbers.count, disks as u32] {
            record.extend(count.to_le_bytes());
        }
        record.extend(self.objects.to_le_bytes());
        self.writer.end()
    }
}

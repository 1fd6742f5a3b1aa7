//! Writes a pool as a stream.
//!
//! ```text
//! from each disk's root: number nodes after what is below them, and leaves as they are found
//! write the leaves in that order; a link or a sharer needs an entry of another leaf, which gets the
//! next number if it has none
//! write the nodes, the disks
//! ```
//!
//! Every entry of a leaf in a tree is written. Of other leaves, only entries that others refer to
//! are written; nothing frees these. Further entries of a leaf that was written before
//! (`precopy.rs`) are written later.
//!
//! An entry is locked while it is copied, so threads that use the disks despite the contract cause
//! at worst an error or a stream that cannot be imported.

use std::{collections::HashMap, io::Write, sync::Arc};

use pagefold_codec::PAGE_SIZE;

use super::{
    DISKS, EMPTY, END, ExportError, ExportedDisk, HASH, HEADER, HINTS, HOLE, HOLE_PART, HOLE_ROOT, LEAVES, LINK, MORE,
    NO_ROOT, NODE_ROOT, NODES, NOTE_MAX, OBJECT, OVER, RAW, ROUND, SAME, SHARED, TABLES, blocks::BlockWriter,
};
use crate::{
    core::Core,
    disk::Disk,
    entry::{Entry, LayerId, Locked},
    equal::{Equals, Seeds},
    heap::Owner,
    pool::Pool,
    streams::Training,
    sync::Ordering::Acquire,
    tree::{HOLE as HOLE_PLACE, LEAF_SLOTS, NOTHING, PartId, PartStorage, names_part},
};

/// All entries of a leaf, a bit for each.
const ALL: u64 = u64::MAX >> (u64::BITS as usize - LEAF_SLOTS);

impl Pool {
    /// Writes the disks and their content to `out`, from which [`import`](Self::import) makes
    /// another pool, also in a program of another version. Objects are copied as they are, and
    /// shared parts are written once. Other disks, and clean ones, are left out.
    ///
    /// No other thread may change the disks during the call. The pool is unchanged and can still be
    /// used afterwards. [`Precopy`](crate::Precopy) writes most of the stream while they are in
    /// use.
    ///
    /// # Errors
    /// See [`ExportError`]. `out` may have part of a stream.
    pub fn export(&self, disks: &[ExportedDisk<'_>], out: &mut dyn Write) -> Result<(), ExportError> {
        let core = self.core();
        check_disks(core, disks.iter().map(|exported| exported.disk))?;
        check_notes(disks)?;
        let mut known = Known::new(core);
        let mut export = Export::begin(core, &mut known, None, out)?;
        export.parts(roots(disks))?;
        export.disks(disks)?;
        export.hints(0)?;
        export.end(disks.len()).map(drop)
    }
}

/// Checks that notes are not too long.
pub(super) fn check_notes(disks: &[ExportedDisk<'_>]) -> Result<(), ExportError> {
    let long = disks.iter().enumerate().find(|(_, exported)| exported.note.len() > NOTE_MAX);
    long.map_or(Ok(()), |(number, exported)| Err(ExportError::LongNote { number, len_bytes: exported.note.len() }))
}

/// Checks that disks are the pool's.
pub(super) fn check_disks<'a>(core: &Arc<Core>, mut disks: impl Iterator<Item = &'a Disk>) -> Result<(), ExportError> {
    disks.position(|disk| !disk.is_of(core)).map_or(Ok(()), |number| Err(ExportError::NotOfPool { number }))
}

/// Returns the places and levels of the topmost parts.
pub(super) fn roots(disks: &[ExportedDisk<'_>]) -> Vec<(u64, u32)> {
    disks.iter().map(|exported| exported.disk.tree().root()).collect()
}

/// The numbers in the stream of parts of one kind.
struct Numbers {
    /// Maps a part's number in the pool to its number in the stream plus one, or 0 if it has none.
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

/// A leaf of the stream, with bits for the entries that were written and that are to be written.
struct Found {
    leaf: Owner,
    wanted: u64,
    written: u64,
}

/// The state of a stream that is being written.
pub(super) struct Known {
    /// The check of the bytes so far, if the stream has begun.
    check: Option<u32>,
    layers: HashMap<u32, u32>,
    leaf_numbers: Numbers,
    /// The leaves in the order of their numbers.
    found: Vec<Found>,
    node_numbers: Numbers,
    objects: u64,
}

impl Known {
    pub(super) fn new(core: &Core) -> Self {
        Self {
            check: None,
            layers: HashMap::from([(core.common.layer().number(), 0)]),
            leaf_numbers: Numbers::new(),
            found: Vec::new(),
            node_numbers: Numbers::new(),
            objects: 0,
        }
    }

    /// Returns whether the stream has what is below a place of a disk's root.
    pub(super) fn has(&self, name: u64) -> bool {
        !names_part(name) || self.node_numbers.get(PartId::of(name).number()).is_some()
    }

    pub(super) fn leaves_count(&self) -> u32 {
        self.leaf_numbers.count
    }
}

/// A part of a stream being written: a round, or the rest.
pub(super) struct Export<'a> {
    core: &'a Arc<Core>,
    writer: BlockWriter<'a>,
    known: &'a mut Known,
    /// The stream that has shadows.
    stream: Option<u64>,
    /// The next leaf to be written, and those before it of which more entries are wanted.
    next: usize,
    late: Vec<u32>,
    /// The new nodes in the order of their numbers, each with its level.
    nodes: Vec<(u32, u32)>,
}

impl<'a> Export<'a> {
    /// Begins a part of a stream.
    pub(super) fn begin(
        core: &'a Arc<Core>,
        known: &'a mut Known,
        stream: Option<u64>,
        out: &'a mut dyn Write,
    ) -> Result<Self, ExportError> {
        let writer = BlockWriter::begin(out, known.check)?;
        let next = known.found.len();
        let has_begun = known.check.is_some();
        let mut export = Self { core, writer, known, stream, next, late: Vec::new(), nodes: Vec::new() };
        if !has_begun {
            export.header()?;
        }
        Ok(export)
    }

    /// Fails if the values that were just loaded may come from freed parts.
    fn check_shadows(&self) -> Result<(), ExportError> {
        match self.stream {
            Some(stream) if !self.core.shadows.are_there(stream) => Err(ExportError::Ended),
            _ => Ok(()),
        }
    }

    /// Writes the parts below these places that the stream does not have yet.
    pub(super) fn parts(&mut self, roots: Vec<(u64, u32)>) -> Result<(), ExportError> {
        for (name, level) in roots {
            if names_part(name) {
                self.check_shadows()?;
                self.number_node(PartId::of(name).number(), level)?;
            }
        }
        self.leaves()?;
        self.nodes()
    }

    /// Returns the layer's number in the stream.
    fn layer(&mut self, layer: LayerId) -> u32 {
        let next = self.known.layers.len() as u32;
        *self.known.layers.entry(layer.number()).or_insert(next)
    }

    /// Returns the leaf's number in the stream, to which these entries of it will be written.
    fn leaf(&mut self, leaf: Owner, entries: u64) -> u32 {
        let known = &mut *self.known;
        let number = known.leaf_numbers.get(leaf).unwrap_or_else(|| {
            known.found.push(Found { leaf, wanted: 0, written: 0 });
            known.leaf_numbers.add(leaf)
        });
        let found = &mut known.found[number as usize];
        if entries & !found.wanted != 0 {
            if (number as usize) < self.next && found.wanted == found.written {
                self.late.push(number);
            }
            found.wanted |= entries;
        }
        number
    }

    /// Numbers a node after what is below it.
    fn number_node(&mut self, node: u32, level: u32) -> Result<(), ExportError> {
        if self.known.node_numbers.get(node).is_some() {
            return Ok(());
        }
        let core = self.core;
        let places: [u64; LEAF_SLOTS] = std::array::from_fn(|at| core.storage.node(node)[at].load(Acquire));
        self.check_shadows()?;
        for name in places.into_iter().filter(|&name| names_part(name)) {
            let part = PartId::of(name).number();
            if level == 1 {
                self.leaf(part, ALL);
            } else {
                self.number_node(part, level - 1)?;
            }
        }
        self.known.node_numbers.add(node);
        self.nodes.push((node, level));
        Ok(())
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
            // Each disk is in a separate block.
            self.writer.end_block()?;
            let record = self.writer.record(TABLES)?;
            record.push(number);
            record.extend(tables.to_bytes());
        }
        Ok(())
    }

    fn leaves(&mut self) -> Result<(), ExportError> {
        loop {
            if self.next < self.known.found.len() {
                self.next += 1;
                self.leaf_record(self.next - 1)?;
            } else if let Some(number) = self.late.pop() {
                self.more_record(number)?;
            } else {
                return Ok(());
            }
        }
    }

    /// Returns a leaf and its entries that are to be written now, and counts these as written.
    fn begin_leaf(&mut self, number: usize) -> (Owner, impl Iterator<Item = usize> + use<>) {
        let found = &mut self.known.found[number];
        let entries = found.wanted & !found.written;
        found.written = found.wanted;
        (found.leaf, (0..LEAF_SLOTS).filter(move |&index| entries >> index & 1 != 0))
    }

    fn leaf_record(&mut self, number: usize) -> Result<(), ExportError> {
        let (leaf, entries) = self.begin_leaf(number);
        let layer = self.layer(self.core.storage.layer(leaf));
        let record = self.writer.record(LEAVES)?;
        record.extend(layer.to_le_bytes());
        let start = record.len();
        record.extend([EMPTY; LEAF_SLOTS]);
        for index in entries {
            self.entry(leaf, index, start + index)?;
        }
        Ok(())
    }

    fn more_record(&mut self, number: u32) -> Result<(), ExportError> {
        let (leaf, entries) = self.begin_leaf(number as usize);
        let entries: Vec<usize> = entries.collect();
        let record = self.writer.record(MORE)?;
        record.extend(number.to_le_bytes());
        record.push(entries.len() as u8);
        for index in entries {
            let record = self.writer.same_record();
            record.extend([index as u8, EMPTY]);
            let tag_at = record.len() - 1;
            self.entry(leaf, index, tag_at)?;
        }
        Ok(())
    }

    /// Appends an entry to the current record, and stores its tag there.
    fn entry(&mut self, leaf: Owner, index: usize, tag_at: usize) -> Result<(), ExportError> {
        let core = self.core;
        let locked = Locked::lock(&core.storage.words(leaf)[index]);
        self.check_shadows()?;
        let locked = locked.ok_or(ExportError::Changed)?;
        let entry = locked.entry();
        let to = match entry {
            Entry::Link(to) => self.leaf(to, 1 << index),
            Entry::Shared { number, .. } => {
                let (to, index) = PartStorage::leaf_of(number);
                self.leaf(to, 1 << index)
            }
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
                record.push(PartStorage::leaf_of(number).1 as u8);
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
        record[tag_at] = tag;
        self.known.objects += u64::from(entry.object().is_some());
        Ok(())
    }

    fn nodes(&mut self) -> Result<(), ExportError> {
        for (node, level) in std::mem::take(&mut self.nodes) {
            let layer = self.layer(self.core.storage.node_layer(node));
            let record = self.writer.record(NODES)?;
            record.extend(layer.to_le_bytes());
            record.extend([level as u8, 0]);
            let count_at = record.len() - 1;
            let numbers = if level == 1 { &self.known.leaf_numbers } else { &self.known.node_numbers };
            for (index, place) in self.core.storage.node(node).iter().enumerate() {
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
        self.check_shadows()
    }

    /// Writes the disks, whose parts are in the stream.
    pub(super) fn disks(&mut self, disks: &[ExportedDisk<'_>]) -> Result<(), ExportError> {
        disks.iter().try_for_each(|disk| self.disk(disk))
    }

    fn disk(&mut self, exported: &ExportedDisk<'_>) -> Result<(), ExportError> {
        let ExportedDisk { disk, note } = exported;
        let (name, level) = disk.tree().root();
        let (kind, node) = match name {
            NOTHING => (NO_ROOT, 0),
            HOLE_PLACE => (HOLE_ROOT, 0),
            name => (NODE_ROOT, self.known.node_numbers.get(PartId::of(name).number()).ok_or(ExportError::Changed)?),
        };
        let mut layers = disk.tree().layers();
        let Some(own) = layers.pop() else { unreachable!("a disk has a layer") };
        // In the order of the record, because a reader gives a new layer the next number.
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

    /// Writes the hints to leaves from this number on.
    pub(super) fn hints(&mut self, first: u32) -> Result<(), ExportError> {
        let core = self.core;
        let mut last = usize::MAX;
        for (sum, number) in core.equals.iter().flat_map(Equals::hints) {
            let (leaf, index) = PartStorage::leaf_of(number);
            let Some(leaf) = self.known.leaf_numbers.get(leaf).filter(|&leaf| leaf >= first) else { continue };
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

    /// Ends a round. Returns its bytes.
    pub(super) fn end_round(mut self) -> Result<u64, ExportError> {
        let record = self.writer.record(ROUND)?;
        for count in [self.known.leaf_numbers.count, self.known.node_numbers.count] {
            record.extend(count.to_le_bytes());
        }
        record.extend(self.known.objects.to_le_bytes());
        let (check, written_bytes) = self.writer.end()?;
        self.known.check = Some(check);
        Ok(written_bytes)
    }

    /// Ends the stream. Returns the bytes of its last part.
    pub(super) fn end(mut self, disks: usize) -> Result<u64, ExportError> {
        let record = self.writer.record(END)?;
        for count in [self.known.leaf_numbers.count, self.known.node_numbers.count, disks as u32] {
            record.extend(count.to_le_bytes());
        }
        record.extend(self.known.objects.to_le_bytes());
        record.extend(self.core.budget.max().to_le_bytes());
        Ok(self.writer.end()?.1)
    }
}

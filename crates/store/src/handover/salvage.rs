//! Writes a pool whose process was killed as a stream, from the file in memory that contains it
//! (`tree/kept.rs`).
//!
//! ```text
//! from each disk's row: number nodes after what is below them, and leaves as they are found
//! entries of these lead to entries of other leaves, which are needed too, and those lead on once
//! write the leaves, the nodes, the disks
//! ```
//!
//! No thread changes the file any more. It has what every thread had stored when it ended: each
//! page as it was before or after a write, never in between. Only what the disks' rows lead to is
//! read, so room that was taken but not used is lost with the file.
//!
//! The file is untrusted: numbers are checked before they are used, and the reader of the stream
//! checks it again (`import.rs`). Objects are checked when they are decoded, as always.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
};

use pagefold_codec::PAGE_SIZE;
use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};

use super::{
    DISKS, EMPTY, END, ExportError, HEADER, HOLE, HOLE_PART, HOLE_ROOT, LEAVES, LINK, NO_ROOT, NODE_ROOT, NODES,
    NOTE_MAX, OBJECT, OVER, RAW, SAME, SHARED, TABLES, blocks::BlockWriter,
};
use crate::{
    disk::Disk,
    entry::{Entry, MARKS},
    error::SLOTS_MAX,
    heap::{Location, Owner, read_object},
    streams::{NUMBERS, Plan},
    tree::{
        HEAD_BYTES, HOLE as HOLE_PLACE, Head, KEY, LEAF_BYTES, LEAF_SLOTS, NOTE_BYTES, NOTHING, OF_LEAF_BYTES,
        OF_NODE_BYTES, PartStorage, ROOT, ROW_WORDS, TABLES_BYTES, Written, levels, names_part, read_checked, span,
        split,
    },
};

/// All entries of a leaf, a bit for each.
const ALL: u64 = u64::MAX >> (u64::BITS as usize - LEAF_SLOTS);

/// Bytes that are recorded for each leaf and for each node found. While a list or a map grows, a
/// second one of twice its length exists too.
const LEAF_WORK_BYTES: u64 = 3 * (size_of::<FoundLeaf>() + size_of::<[u32; 2]>() + 1) as u64;
const NODE_WORK_BYTES: u64 = 3 * (size_of::<FoundNode>() + size_of::<[u32; 2]>() + 1) as u64;

/// Identifies a disk in a pool's [file](crate::PoolConfig::kept_in).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptDisk {
    /// Identifies the disk in the file.
    pub key: u64,
    /// Its size in slots.
    pub slots: u64,
    /// Its own limit; `u64::MAX` if it has none.
    pub limit_bytes: u64,
    /// Whether its discarded slots become holes.
    pub is_over: bool,
    /// Data that the importer gets with the disk, at most 64 KiB.
    pub note: Vec<u8>,
}

impl KeptDisk {
    /// Describes a disk, from the fields of an earlier description.
    pub fn new(key: u64, slots: u64, limit_bytes: u64, is_over: bool, note: Vec<u8>) -> Self {
        Self { key, slots, limit_bytes, is_over, note }
    }

    /// Describes a disk of a pool that is kept in a file; `None` if the pool is not.
    pub fn of(disk: &Disk, note: Vec<u8>) -> Option<Self> {
        let key = disk.tree().row()?.key();
        Some(Self { key, slots: disk.slots(), limit_bytes: disk.limit(), is_over: disk.is_over(), note })
    }
}

/// Why a file cannot be read or written as a stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SalvageError {
    /// The file cannot be read.
    #[error("cannot read the memory of the pool: {0}")]
    Read(#[from] io::Error),
    /// The memory is not a pool's, or it is damaged.
    #[error("the memory of the pool is not sound: {what}")]
    Invalid {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The stream cannot be written.
    #[error(transparent)]
    Write(#[from] ExportError),
}

fn invalid<T>(what: &'static str) -> Result<T, SalvageError> {
    Err(SalvageError::Invalid { what })
}

/// The file of a pool whose process has ended, see [`PoolConfig::kept_in`](crate::PoolConfig::kept_in).
#[derive(Debug)]
pub struct Salvage {
    file: File,
    head: Head,
    codec: String,
}

/// A leaf of the stream. Its entries are read when they are needed: there may be many leaves.
#[derive(Clone, Copy)]
struct FoundLeaf {
    part: Owner,
    layer: u32,
    /// A bit for each entry that is needed.
    wanted: u64,
    /// Whether a tree has it.
    in_tree: bool,
}

/// A node of the stream.
struct FoundNode {
    layer: u32,
    level: u32,
    places: [u64; LEAF_SLOTS],
}

/// The parts to which the rows lead.
struct Walk<'a> {
    salvage: &'a Salvage,
    /// Numbers in the stream by those in the file.
    leaf_numbers: HashMap<u32, u32>,
    node_numbers: HashMap<u32, u32>,
    leaves: Vec<FoundLeaf>,
    nodes: Vec<FoundNode>,
}

impl Salvage {
    /// Opens the file. No process changes it.
    ///
    /// # Errors
    /// It cannot be read, or is not a pool's.
    pub fn open(file: File) -> Result<Self, SalvageError> {
        let mut bytes = [0; HEAD_BYTES];
        file.read_exact_at(&mut bytes, 0)?;
        let len_bytes = file.metadata()?.len();
        let (head, codec) = Head::decode(&bytes, len_bytes, NUMBERS).map_err(|what| SalvageError::Invalid { what })?;
        Ok(Self { file, head, codec })
    }

    /// Returns the last [note](crate::Pool::keep_note); `None` if there was none.
    ///
    /// # Errors
    /// The file cannot be read, or has notes but no intact one.
    pub fn note(&self) -> Result<Option<Vec<u8>>, SalvageError> {
        let read = |which: u64| read_checked(&self.file, self.head.notes_at + which * NOTE_BYTES, NOTE_BYTES);
        match (read(0)?, read(1)?) {
            (Written::Whole(first, note), Written::Whole(second, other)) => {
                Ok(Some(if first > second { note } else { other }))
            }
            (Written::Whole(_, note), _) | (_, Written::Whole(_, note)) => Ok(Some(note)),
            (Written::Nothing, Written::Nothing) => Ok(None),
            _ => invalid("none of its notes is whole"),
        }
    }

    /// Returns the most bytes of memory that [`write`](Self::write) takes, however many disks it writes. No
    /// pool's limit counts them.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn work_bytes(&self) -> io::Result<u64> {
        let Head { words_at, nodes_at, parts, .. } = self.head;
        let [leaves, nodes] = [words_at, nodes_at].map(|at| self.data_bytes(at, parts * LEAF_BYTES as u64));
        Ok((leaves? * LEAF_WORK_BYTES + nodes? * NODE_WORK_BYTES) / LEAF_BYTES as u64)
    }

    /// Returns how many bytes of a range of the file are in memory.
    fn data_bytes(&self, start: u64, len_bytes: u64) -> io::Result<u64> {
        let (mut at, end, mut found) = (start, start + len_bytes, 0);
        while at < end {
            let data = match seek(&self.file, SeekFrom::Data(at)) {
                // No data follow up to the end of the file.
                Err(Errno::NXIO) => break,
                result => result?.min(end),
            };
            at = seek(&self.file, SeekFrom::Hole(data))?.min(end);
            found += at - data;
        }
        Ok(found)
    }

    /// Returns whether the disk existed when the process ended.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn has(&self, disk: &KeptDisk) -> Result<bool, SalvageError> {
        Ok(self.root(disk.key)?.is_some())
    }

    /// Writes these disks, and what they hold, to `out`, from which
    /// [`Pool::import`](crate::Pool::import) makes a pool. A disk that no longer existed is empty.
    /// Returns the numbers of those that have content beyond their end, which [`Disk::cut`]
    /// removes.
    ///
    /// # Errors
    /// See [`SalvageError`]. `out` may have part of a stream.
    pub fn write(&self, disks: &[KeptDisk], out: &mut dyn Write) -> Result<Vec<usize>, SalvageError> {
        let (leaf_numbers, node_numbers) = (HashMap::new(), HashMap::new());
        let mut walk = Walk { salvage: self, leaf_numbers, node_numbers, leaves: Vec::new(), nodes: Vec::new() };
        let mut roots = Vec::with_capacity(disks.len());
        for disk in disks {
            if disk.note.len() > NOTE_MAX || disk.slots > SLOTS_MAX {
                return invalid("a disk is too large, or its note is too long");
            }
            let (name, level) = split(self.root(disk.key)?.unwrap_or(NOTHING));
            if names_part(name) {
                walk.node(name, level)?;
            }
            roots.push((name, level));
        }
        walk.follow()?;
        walk.write(disks, &roots, out)?;
        let mut beyond = Vec::new();
        for (number, (disk, &(name, level))) in disks.iter().zip(&roots).enumerate() {
            if names_part(name) && walk.has_from(name, level, disk.slots)? {
                beyond.push(number);
            }
        }
        Ok(beyond)
    }

    fn words<const N: usize>(&self, at: u64) -> io::Result<[u64; N]> {
        let mut bytes = [0; 8 * LEAF_SLOTS];
        let bytes = &mut bytes[..8 * N];
        self.file.read_exact_at(bytes, at)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(std::array::from_fn(|index| u64::from_le_bytes(words[index])))
    }

    /// Returns the entries of a leaf, without lock bits.
    fn entries(&self, leaf: Owner) -> io::Result<[u64; LEAF_SLOTS]> {
        let words: [u64; LEAF_SLOTS] = self.words(self.head.words_at + u64::from(leaf) * LEAF_BYTES as u64)?;
        Ok(words.map(|word| word & !MARKS))
    }

    fn word32(&self, at: u64) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Returns the root of a disk; `None` if there is no such disk.
    fn root(&self, key: u64) -> Result<Option<u64>, SalvageError> {
        let Some(number) = (key as u32).checked_sub(1).filter(|&number| u64::from(number) < self.head.rows) else {
            return invalid("a disk without a row");
        };
        let row: [u64; 2] = self.words(self.head.rows_at + u64::from(number) * (8 * ROW_WORDS as u64))?;
        Ok((row[KEY] == key).then_some(row[ROOT]))
    }

    /// Appends an object.
    fn object(&self, at: Location, len_bytes: usize, out: &mut Vec<u8>) -> Result<(), SalvageError> {
        let span = 1 << self.head.span_bits;
        let (shard, body) = (at.get() / span, at.get() % span);
        let start = self.head.heap_at + shard * span;
        let read = |at: u32, bytes: &mut [u8]| self.file.read_exact_at(bytes, start + u64::from(at));
        if shard >= self.head.shards || !read_object(&read, span, body as u32, len_bytes, out)? {
            return invalid("an entry names an object that does not exist");
        }
        Ok(())
    }
}

impl Walk<'_> {
    fn part(&self, name: u64) -> Result<u32, SalvageError> {
        match (name as u32).checked_sub(1) {
            Some(number) if u64::from(number) < self.salvage.head.parts => Ok(number),
            _ => invalid("a place names a part that does not exist"),
        }
    }

    /// Numbers a node after what is below it.
    fn node(&mut self, name: u64, level: u32) -> Result<(), SalvageError> {
        let part = self.part(name)?;
        if let Some(&number) = self.node_numbers.get(&part) {
            return if self.nodes[number as usize].level == level { Ok(()) } else { invalid("a node of two levels") };
        }
        if !(1..=levels(SLOTS_MAX)).contains(&level) {
            return invalid("a node of an impossible level");
        }
        let Salvage { head, .. } = self.salvage;
        let places = self.salvage.words(head.nodes_at + u64::from(part) * LEAF_BYTES as u64)?;
        let layer = self.salvage.word32(head.inner_at + u64::from(part) * OF_NODE_BYTES)?;
        for name in places.into_iter().filter(|&name| names_part(name)) {
            if level == 1 {
                let part = self.part(name)?;
                let leaf = self.leaf(part)?;
                (leaf.in_tree, leaf.wanted) = (true, ALL);
            } else {
                self.node(name, level - 1)?;
            }
        }
        self.node_numbers.insert(part, self.nodes.len() as u32);
        self.nodes.push(FoundNode { layer, level, places });
        Ok(())
    }

    /// Returns a leaf, which gets the next number if it has none.
    fn leaf(&mut self, part: Owner) -> Result<&mut FoundLeaf, SalvageError> {
        let Salvage { head, .. } = self.salvage;
        let number = match self.leaf_numbers.get(&part) {
            Some(&number) => number,
            None if u64::from(part) < head.parts => {
                let layer = self.salvage.word32(head.leaves_at + u64::from(part) * OF_LEAF_BYTES)?;
                let number = self.leaves.len() as u32;
                self.leaf_numbers.insert(part, number);
                self.leaves.push(FoundLeaf { part, layer, wanted: 0, in_tree: false });
                number
            }
            None => return invalid("an entry leads to a leaf that does not exist"),
        };
        Ok(&mut self.leaves[number as usize])
    }

    /// Returns whether any slot below a node, from `first` on, holds something.
    fn has_from(&self, node: u64, level: u32, first: u64) -> Result<bool, SalvageError> {
        let each = span(level - 1);
        let FoundNode { places, .. } = &self.nodes[self.node_numbers[&self.part(node)?] as usize];
        let whole = usize::try_from(first.div_ceil(each)).unwrap_or(LEAF_SLOTS).min(LEAF_SLOTS);
        if places[whole..].iter().any(|&name| names_part(name)) {
            return Ok(true);
        }
        let cut = usize::try_from(first / each).ok().and_then(|at| places.get(at));
        let Some(&name) = cut.filter(|&&name| !first.is_multiple_of(each) && names_part(name)) else {
            return Ok(false);
        };
        if level > 1 {
            return self.has_from(name, level - 1, first % each);
        }
        let words = self.salvage.entries(self.part(name)?)?;
        let mut beyond = words[(first % each) as usize..].iter();
        Ok(beyond.any(|&word| !matches!(Entry::decode(word), Entry::Empty | Entry::Hole)))
    }

    /// Follows entries of trees to the entries that they lead to: in another leaf, and from there
    /// in a leaf of the pool's own.
    fn follow(&mut self) -> Result<(), SalvageError> {
        let mut from: Vec<(usize, u64)> = (0..self.leaves.len()).map(|leaf| (leaf, ALL)).collect();
        while let Some((leaf, entries)) = from.pop() {
            let FoundLeaf { part, in_tree, .. } = self.leaves[leaf];
            let words = self.salvage.entries(part)?;
            for index in (0..LEAF_SLOTS).filter(|index| entries >> index & 1 != 0) {
                let (to, index) = match Entry::decode(words[index]) {
                    Entry::Link(_) if !in_tree => return invalid("a link that leads to a link"),
                    Entry::Link(to) => (to, index),
                    Entry::Shared { number, .. } => PartStorage::leaf_of(number),
                    _ => continue,
                };
                let found = self.leaf(to)?;
                if found.wanted >> index & 1 == 0 {
                    found.wanted |= 1 << index;
                    from.push((self.leaf_numbers[&to] as usize, 1 << index));
                }
            }
        }
        Ok(())
    }

    fn write(&self, disks: &[KeptDisk], roots: &[(u64, u32)], out: &mut dyn Write) -> Result<(), SalvageError> {
        let Salvage { head, .. } = self.salvage;
        let mut writer = BlockWriter::begin(out, None)?;
        self.write_head(&mut writer)?;
        // In the stream, layers are numbered in the order in which they first occur.
        let mut layers = HashMap::from([(head.common_layer as u32, 0)]);
        let mut layer_number = |layer: u32| {
            let next = layers.len() as u32;
            *layers.entry(layer).or_insert(next)
        };
        let mut objects = 0;
        for leaf in &self.leaves {
            let record = writer.record(LEAVES)?;
            record.extend(layer_number(leaf.layer).to_le_bytes());
            let start = record.len();
            let words = self.salvage.entries(leaf.part)?;
            record.extend([EMPTY; LEAF_SLOTS]);
            for index in (0..LEAF_SLOTS).filter(|index| leaf.wanted >> index & 1 != 0) {
                let entry = words[index];
                let tag = self.entry(entry, record)?;
                record[start + index] = tag;
                objects += u64::from(Entry::decode(entry).object().is_some());
            }
        }
        for FoundNode { layer, level, places } in &self.nodes {
            let record = writer.record(NODES)?;
            record.extend(layer_number(*layer).to_le_bytes());
            record.extend([*level as u8, 0]);
            let count_at = record.len() - 1;
            let numbers = if *level == 1 { &self.leaf_numbers } else { &self.node_numbers };
            for (index, &place) in places.iter().enumerate() {
                let part = match place {
                    NOTHING => continue,
                    HOLE_PLACE => HOLE_PART,
                    name => numbers[&self.part(name)?],
                };
                record.push(index as u8);
                record.extend(part.to_le_bytes());
                record[count_at] += 1;
            }
        }
        // The layers that each disk had, by its row.
        let mut owned = HashMap::<u32, Vec<u32>>::new();
        let mut next = layers.len() as u32;
        for (&layer, &number) in layers.iter().filter(|&(_, &number)| number != 0) {
            if u64::from(layer) >= head.rows {
                return invalid("a part has an impossible layer");
            }
            let row = self.salvage.word32(head.owners_at + u64::from(layer) * 4)?;
            owned.entry(row).or_default().push(number);
        }
        for (disk, &(name, level)) in disks.iter().zip(roots) {
            let (kind, node) = match name {
                NOTHING => (NO_ROOT, 0),
                HOLE_PLACE => (HOLE_ROOT, 0),
                name => (NODE_ROOT, self.node_numbers[&self.part(name)?]),
            };
            let exists = self.salvage.has(disk)?;
            let mut earlier = owned.remove(&(disk.key as u32)).filter(|_| exists).unwrap_or_default();
            earlier.sort_unstable();
            let record = writer.record(DISKS)?;
            let start = record.len();
            record.extend([0; 4]);
            record.extend(disk.slots.to_le_bytes());
            record.extend(disk.limit_bytes.to_le_bytes());
            record.extend(if disk.is_over { OVER } else { 0 }.to_le_bytes());
            record.extend([kind, level as u8]);
            record.extend(node.to_le_bytes());
            // Its disk writes to a new layer from now on, because the file has no counts of uses.
            record.extend(next.to_le_bytes());
            next += 1;
            record.extend((earlier.len() as u32).to_le_bytes());
            record.extend(earlier.iter().flat_map(|layer| layer.to_le_bytes()));
            record.extend((disk.note.len() as u32).to_le_bytes());
            record.extend(&disk.note);
            let len = (record.len() - start - 4) as u32;
            record[start..start + 4].copy_from_slice(&len.to_le_bytes());
        }
        let record = writer.record(END)?;
        for count in [self.leaves.len(), self.nodes.len(), disks.len()] {
            record.extend((count as u32).to_le_bytes());
        }
        record.extend(u64::to_le_bytes(objects));
        record.extend(0_u64.to_le_bytes());
        writer.end()?;
        Ok(())
    }

    fn write_head(&self, writer: &mut BlockWriter<'_>) -> Result<(), SalvageError> {
        let Salvage { head, file, codec } = self.salvage;
        let record = writer.record(HEADER)?;
        record.extend((PAGE_SIZE as u32).to_le_bytes());
        record.extend((LEAF_SLOTS as u32).to_le_bytes());
        // Figures of the pool, and of its training.
        record.extend([0; 5 * 8]);
        record.extend(Plan::USUAL.stride.to_le_bytes());
        record.extend((codec.len() as u16).to_le_bytes());
        record.extend(codec.as_bytes());
        let mut tables = Vec::new();
        for number in 0..NUMBERS {
            let found = read_checked(file, head.tables_at + number as u64 * TABLES_BYTES, TABLES_BYTES)?;
            if let Written::Whole(order, bytes) = found {
                tables.push((order, number as u8, bytes));
            }
        }
        tables.sort_unstable();
        for (_, number, bytes) in tables {
            writer.end_block()?;
            let record = writer.record(TABLES)?;
            record.push(number);
            record.extend(bytes);
        }
        Ok(())
    }

    /// Appends an entry, and returns its tag.
    fn entry(&self, word: u64, record: &mut Vec<u8>) -> Result<u8, SalvageError> {
        if word == 0 {
            return invalid("a leaf that was freed is in use");
        }
        Ok(match Entry::decode(word) {
            Entry::Empty => EMPTY,
            Entry::Hole => HOLE,
            Entry::Link(to) => {
                record.extend(self.leaf_numbers[&to].to_le_bytes());
                LINK
            }
            Entry::Shared { number, len_bytes } => {
                let (to, index) = PartStorage::leaf_of(number);
                record.extend((len_bytes as u16 - 1).to_le_bytes());
                record.extend(self.leaf_numbers[&to].to_le_bytes());
                record.push(index as u8);
                SHARED
            }
            Entry::Same(fill) => {
                let fill = fill.checked().ok_or(SalvageError::Invalid { what: "an entry of unknown form" })?;
                record.extend(fill.word().to_le_bytes());
                SAME
            }
            Entry::Object { tables, len_bytes, at } => {
                record.extend((len_bytes as u16 - 1).to_le_bytes());
                self.salvage.object(at, len_bytes, record)?;
                OBJECT | tables << 4
            }
            Entry::Raw { at } => {
                self.salvage.object(at, PAGE_SIZE, record)?;
                RAW
            }
        })
    }
}

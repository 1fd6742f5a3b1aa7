//! Makes a pool from a stream.
//!
//! ```text
//! header, tables   make the pool
//! leaves, more     take each leaf; allocate and copy the objects; count the entries in the layer
//! nodes            take each; count a use of each part that it names
//! round            compare the totals; count the links and sharers of its entries; free entries of
//!                  the pool's own that have none
//! disks            keep what they say; count a use of each root
//! end              as a round; check the layers; free parts without uses; make the disks
//! ```
//!
//! A new pool numbers its leaves and nodes in the order in which they are taken, so the numbers in
//! the stream are those in the pool. The time that the end takes depends on the parts after the
//! last round and on the number of disks, apart from a check of each part's uses.
//!
//! What trees rely on, besides valid references:
//!
//! - a link leads to an entry that is neither empty nor a link, of a leaf that no disk changes;
//! - an entry that shares an object leads to one of the pool's own, which has an object;
//! - a part of the layer that a disk writes to has one use: by a part of that layer, or as the
//!   disk's root. All parts of that layer come after the last round;
//! - no layer belongs to two disks.
//!
//! No disk is created before all of this is checked, so after an error the pool is simply dropped.

use std::{
    io::{self, Read},
    sync::Arc,
};

use pagefold_codec::{PAGE_SIZE, Tables};

use super::{
    DISKS, EMPTY, END, HASH, HEADER, HINTS, HOLE, HOLE_PART, HOLE_ROOT, ImportError, ImportedDisk, ImportedPool,
    LEAVES, LINK, MORE, NO_ROOT, NODE_ROOT, NODES, NOTE_MAX, OBJECT, OVER, RAW, ROUND, SAME, SHARED, TABLES,
    blocks::{BlockReader, Fields},
};
use crate::{
    core::Core,
    disk::Disk,
    entry::{Entry, Fill, LayerId},
    equal::{Seeds, Sum},
    error::SLOTS_MAX,
    heap::Owner,
    limit::Purpose,
    pool::{Pool, PoolConfig},
    streams::{History, NUMBERS},
    sync::Ordering::{Relaxed, Release},
    tree::{HOLE as HOLE_PLACE, LEAF_SLOTS, NOTHING, PartId, PartStorage, Tree, Unused, levels, names_part},
};

/// The maximum number of leaves: an entry has 24 bits for a leaf's number.
const LEAVES_MAX: u32 = 1 << 24;

/// The contents of the header and the tables.
struct Head {
    history: History,
    max_bytes: u64,
    codec_name: String,
    seeds: Seeds,
    /// The tables with their numbers, in the order in which they were trained.
    tables: Vec<(u8, Tables)>,
}

/// A layer of the stream.
struct Layer {
    id: LayerId,
    /// Whether a disk has it.
    is_held: bool,
    /// Whether it is the one that a disk writes to.
    is_top: bool,
    /// Whether a part of a round belongs to it.
    is_old: bool,
}

/// A disk's record.
struct Record {
    slots: u64,
    limit_bytes: u64,
    is_over: bool,
    /// A place, and the level of the part that it names.
    root: (u64, u32),
    layer: u32,
    earlier: Vec<u32>,
    note: Vec<u8>,
}

/// A pool in the making.
struct Import<'a> {
    core: &'a Arc<Core>,
    /// By number in the stream. The first is the layer of the pool's own entries.
    layers: Vec<Layer>,
    /// The leaves and the nodes, with the numbers of their layers; the levels of nodes.
    leaves: Vec<(PartId, u32)>,
    nodes: Vec<(PartId, u32, u32)>,
    /// The leaves and the nodes of ended rounds.
    old_leaves: usize,
    old_nodes: usize,
    /// Entries that were added to leaves of earlier rounds since the last round.
    grown: Vec<u64>,
    /// Leaves of the pool's own in which no entry was shared at the end of a round.
    bare: Vec<Owner>,
    /// By number, whether the pool has tables.
    has_tables: [bool; NUMBERS],
    disks: Vec<Record>,
    objects: u64,
}

impl Pool {
    /// Makes a pool from the stream that [`export`](Self::export) wrote, with its disks. The codec
    /// must be that pool's, and the memory limit must have room for its content.
    ///
    /// `input` is untrusted. Nothing after the end of the stream is read.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import(config: PoolConfig, input: &mut dyn Read) -> Result<ImportedPool, ImportError> {
        import(config, input, &mut |_| Ok(()))
    }

    /// Like [`import`](Self::import), but calls `made` with the pool before any of its content is
    /// read. If `made` fails, so does the import.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import_with(
        config: PoolConfig,
        input: &mut dyn Read,
        made: &mut dyn FnMut(&Self) -> io::Result<()>,
    ) -> Result<ImportedPool, ImportError> {
        import(config, input, made)
    }
}

/// See [`Pool::import`].
fn import(
    config: PoolConfig,
    input: &mut dyn Read,
    made: &mut dyn FnMut(&Pool) -> io::Result<()>,
) -> Result<ImportedPool, ImportError> {
    let mut reader = BlockReader::begin(input)?;
    let mut head = read_header(&mut reader)?;
    let asked = config.codec_name();
    if asked != head.codec_name {
        return Err(ImportError::OtherCodec { stored: head.codec_name, asked });
    }
    let mut known = &[TABLES, LEAVES, NODES, DISKS, ROUND, END][..];
    let (mut kind, mut fields) = reader.next(known)?;
    while kind == TABLES {
        head.add_tables(fields)?;
        (kind, fields) = reader.next(known)?;
    }
    let pool = head.make_pool(config)?;
    made(&pool).map_err(ImportError::Read)?;
    let mut import = Import::new(pool.core(), &head);
    loop {
        known = match kind {
            LEAVES => {
                import.add_leaves(fields)?;
                &[LEAVES, MORE, NODES, HINTS, ROUND, DISKS, END]
            }
            MORE => {
                import.add_more(fields)?;
                &[LEAVES, MORE, NODES, HINTS, ROUND, DISKS, END]
            }
            NODES => {
                import.add_nodes(fields)?;
                &[NODES, HINTS, ROUND, DISKS, END]
            }
            HINTS if import.disks.is_empty() => {
                import.add_hints(fields)?;
                &[HINTS, ROUND, END]
            }
            ROUND => {
                import.check_round(&mut fields, &[])?;
                import.end_round()?;
                &[LEAVES, MORE, NODES, HINTS, ROUND, DISKS, END]
            }
            DISKS => {
                import.add_disks(fields)?;
                &[DISKS, HINTS, END]
            }
            HINTS => {
                import.add_hints(fields)?;
                &[HINTS, END]
            }
            _ => {
                let disks = import.disks.len();
                import.check_round(&mut fields, &[disks])?;
                head.max_bytes = head.max_bytes.max(fields.u64().unwrap_or(0));
                break;
            }
        };
        (kind, fields) = reader.next(known)?;
    }
    let disks = import.finish()?;
    pool.core().budget.note_max(head.max_bytes);
    Ok(ImportedPool { pool, disks })
}

fn invalid<T>(what: &'static str) -> Result<T, ImportError> {
    Err(ImportError::invalid(what))
}

fn read_header(reader: &mut BlockReader<'_>) -> Result<Head, ImportError> {
    let (_, mut fields) = reader.next(&[HEADER])?;
    if fields.u32()? as usize != PAGE_SIZE || fields.u32()? as usize != LEAF_SLOTS {
        return invalid("its pages or leaves have another size");
    }
    let max_bytes = fields.u64()?;
    let (trainings, useless) = (fields.u64()?, fields.u64()?);
    let (gain_permille, age_s, stride) = (fields.u64()?, fields.u64()?, fields.u32()?);
    let len = usize::from(fields.u16()?);
    let codec_name = str::from_utf8(fields.bytes(len)?).or(invalid("the codec's name is not text"))?.to_owned();
    // A stream without hints may end before the seeds.
    let seeds = Seeds([fields.u64().unwrap_or(0), fields.u64().unwrap_or(0)]);
    let history = History { trainings, useless, gain_permille, age_s, stride };
    Ok(Head { history, max_bytes, codec_name, seeds, tables: Vec::new() })
}

impl Head {
    fn add_tables(&mut self, mut fields: Fields<'_>) -> Result<(), ImportError> {
        let number = fields.u8()?;
        let is_expected = match self.tables.first() {
            None => number == 0,
            Some(_) => usize::from(number) < NUMBERS && self.tables.iter().all(|&(other, _)| other != number),
        };
        if !is_expected {
            return invalid("tables with a wrong number");
        }
        let tables = Tables::from_bytes(fields.rest()).map_err(|bad| ImportError::invalid(bad.what))?;
        if tables.codec().name() != self.codec_name {
            return invalid("tables of another codec");
        }
        self.tables.push((number, tables));
        Ok(())
    }

    /// Makes an empty pool with the tables.
    fn make_pool(&self, mut config: PoolConfig) -> Result<Pool, ImportError> {
        if let Some((_, first)) = self.tables.first() {
            // Built-in tables of another version are kept like trained ones.
            config = config.codec(first.codec());
            if self.tables.len() > 1 {
                config = config.train(true);
            }
        }
        if self.seeds != Seeds([0; 2]) {
            config = config.seeds(self.seeds);
        }
        let pool = Pool::new(config)?;
        let core = pool.core();
        // A full pool could not be read without a compression stream, so one is created first.
        core.streams.take(0, &core.budget)?;
        match &core.training {
            Some(training) => training.restore(&self.tables[..], &self.history, &core.budget)?,
            None if self.tables.len() > 1 => return invalid("tables of a codec that has none"),
            None => {}
        }
        Ok(pool)
    }
}

impl<'a> Import<'a> {
    fn new(core: &'a Arc<Core>, head: &Head) -> Self {
        let common = Layer { id: core.common.layer(), is_held: true, is_top: false, is_old: false };
        let mut has_tables = [false; NUMBERS];
        // Objects of a codec without tables have number 0.
        has_tables[0] = true;
        head.tables.iter().for_each(|&(number, _)| has_tables[usize::from(number)] = true);
        Self {
            core,
            layers: vec![common],
            leaves: Vec::new(),
            nodes: Vec::new(),
            old_leaves: 0,
            old_nodes: 0,
            grown: Vec::new(),
            bare: Vec::new(),
            has_tables,
            disks: Vec::new(),
            objects: 0,
        }
    }

    /// Returns a layer, and takes it if it is named for the first time.
    fn layer(&mut self, number: u32) -> Result<&mut Layer, ImportError> {
        let at = number as usize;
        if at == self.layers.len() {
            let id = self.core.layers.take(&self.core.budget)?;
            self.layers.push(Layer { id, is_held: false, is_top: false, is_old: false });
        }
        self.layers.get_mut(at).ok_or(ImportError::invalid("a layer without a number"))
    }

    fn add_leaves(&mut self, mut fields: Fields<'_>) -> Result<(), ImportError> {
        while !fields.is_empty() {
            self.add_leaf(&mut fields)?;
        }
        Ok(())
    }

    fn add_leaf(&mut self, fields: &mut Fields<'_>) -> Result<(), ImportError> {
        let core = self.core;
        let layer = fields.u32()?;
        let id = self.layer(layer)?.id;
        let tags = fields.bytes(LEAF_SLOTS)?;
        let leaf = core.storage.take(id, Entry::Empty, Purpose::Move, &core.budget)?;
        core.layers.hold(id);
        if leaf.number() as usize != self.leaves.len() {
            unreachable!("a new pool gives its numbers in order");
        }
        self.leaves.push((leaf, layer));
        // The pool itself uses its own leaves.
        core.storage.uses(leaf.number()).store(u32::from(layer == 0), Relaxed);
        for (index, &tag) in tags.iter().enumerate() {
            self.add_entry(tag, fields, (leaf, layer), index)?;
        }
        Ok(())
    }

    /// Fills empty entries of leaves.
    fn add_more(&mut self, mut fields: Fields<'_>) -> Result<(), ImportError> {
        while !fields.is_empty() {
            let number = fields.u32()? as usize;
            let &of = self.leaves.get(number).ok_or(ImportError::invalid("more of a leaf that does not exist"))?;
            for _ in 0..fields.u8()? {
                let (index, tag) = (usize::from(fields.u8()?), fields.u8()?);
                let word = self.core.storage.words(of.0.number()).get(index);
                if word.is_none_or(|word| Entry::decode(word.load(Relaxed)) != Entry::Empty) {
                    return invalid("more of an entry that has a page, or does not exist");
                }
                let is_filled = self.add_entry(tag, &mut fields, of, index)?;
                if is_filled && number < self.old_leaves {
                    self.grown.push(PartStorage::entry_number(of.0.number(), index));
                }
            }
        }
        Ok(())
    }

    /// Adds an entry to a leaf of that layer of the stream. Returns false if it is empty.
    fn add_entry(
        &mut self,
        tag: u8,
        fields: &mut Fields<'_>,
        (leaf, layer): (PartId, u32),
        index: usize,
    ) -> Result<bool, ImportError> {
        let core = self.core;
        let entry = self.entry(tag, fields, leaf.number())?;
        if layer == 0 && entry != Entry::Empty && entry.object().is_none() {
            return invalid("an entry of the pool's own without an object");
        }
        core.count(core.storage.layer(leaf.number()), 0, Entry::Empty, entry);
        self.objects += u64::from(entry.object().is_some());
        core.storage.words(leaf.number())[index].store(entry.encode(), Release);
        Ok(entry != Entry::Empty)
    }

    /// Reads an entry from the stream, and stores its object.
    fn entry(&mut self, tag: u8, fields: &mut Fields<'_>, leaf: Owner) -> Result<Entry, ImportError> {
        let leaf_number = |number: u32| match number {
            ..LEAVES_MAX => Ok(number),
            _ => invalid("a leaf that does not exist"),
        };
        let (kind, tables) = (tag & 0xf, tag >> 4);
        if tables != 0 && kind != OBJECT {
            return invalid("an entry of an unknown kind");
        }
        Ok(match kind {
            EMPTY => Entry::Empty,
            HOLE => Entry::Hole,
            SAME => Entry::Same(Fill::new(fields.u64()?).ok_or(ImportError::invalid("an invalid same-filled word"))?),
            OBJECT => {
                let len_bytes = usize::from(fields.u16()?) + 1;
                if len_bytes > PAGE_SIZE || !self.has_tables.get(usize::from(tables)).copied().unwrap_or(false) {
                    return invalid("an object that is too long, or uses tables that are not there");
                }
                let at = self.core.put_object(fields.bytes(len_bytes)?, leaf)?;
                Entry::Object { tables, len_bytes, at }
            }
            RAW => Entry::Raw { at: self.core.put_object(fields.bytes(PAGE_SIZE)?, leaf)? },
            LINK => Entry::Link(leaf_number(fields.u32()?)?),
            SHARED => {
                let len_bytes = usize::from(fields.u16()?) + 1;
                let (leaf, index) = (leaf_number(fields.u32()?)?, usize::from(fields.u8()?));
                if len_bytes > PAGE_SIZE || index >= LEAF_SLOTS {
                    return invalid("an impossible shared object");
                }
                Entry::Shared { number: PartStorage::entry_number(leaf, index), len_bytes }
            }
            _ => return invalid("an entry of an unknown kind"),
        })
    }

    fn add_nodes(&mut self, mut fields: Fields<'_>) -> Result<(), ImportError> {
        while !fields.is_empty() {
            self.add_node(&mut fields)?;
        }
        Ok(())
    }

    fn add_node(&mut self, fields: &mut Fields<'_>) -> Result<(), ImportError> {
        let core = self.core;
        let (layer, level, count) = (fields.u32()?, u32::from(fields.u8()?), fields.u8()?);
        if layer == 0 || !(1..=levels(SLOTS_MAX)).contains(&level) {
            return invalid("a node of an invalid level or layer");
        }
        let id = self.layer(layer)?.id;
        let node = core.storage.take_node(id, NOTHING, Purpose::Move, &core.budget)?;
        core.layers.hold(id);
        core.storage.node_uses(node.number()).store(0, Relaxed);
        let mut next = 0;
        for _ in 0..count {
            let (index, number) = (usize::from(fields.u8()?), fields.u32()?);
            if index < next {
                return invalid("places of a node out of order");
            }
            next = index + 1;
            let place = core.storage.node(node.number()).get(index).ok_or(ImportError::invalid("a place too many"))?;
            let name = match number {
                HOLE_PART => HOLE_PLACE,
                _ => self.use_part(number, level - 1)?.word(),
            };
            place.store(name, Release);
        }
        // A node cannot name itself, because it is added last.
        self.nodes.push((node, layer, level));
        Ok(())
    }

    /// Counts a use of a part.
    fn use_part(&mut self, number: u32, level: u32) -> Result<PartId, ImportError> {
        let storage = &self.core.storage;
        if level == 0 {
            let &(leaf, layer) =
                self.leaves.get(number as usize).ok_or(ImportError::invalid("a leaf that does not exist"))?;
            if layer == 0 {
                return invalid("a leaf of the pool's own in a tree");
            }
            storage.uses(leaf.number()).fetch_add(1, Relaxed);
            return Ok(leaf);
        }
        match self.nodes.get(number as usize) {
            Some(&(node, _, of)) if of == level => {
                storage.node_uses(node.number()).fetch_add(1, Relaxed);
                Ok(node)
            }
            _ => invalid("a node that does not exist or has another level"),
        }
    }

    fn add_disks(&mut self, mut fields: Fields<'_>) -> Result<(), ImportError> {
        while !fields.is_empty() {
            let len = fields.u32()? as usize;
            let record = fields.part(len)?;
            self.add_disk(record)?;
        }
        Ok(())
    }

    fn add_disk(&mut self, mut fields: Fields<'_>) -> Result<(), ImportError> {
        let (slots, limit_bytes, flags) = (fields.u64()?, fields.u64()?, fields.u32()?);
        if slots > SLOTS_MAX {
            return invalid("a disk that is too large");
        }
        let (kind, level, node) = (fields.u8()?, u32::from(fields.u8()?), fields.u32()?);
        let root = match kind {
            NO_ROOT => (NOTHING, 0),
            HOLE_ROOT => (HOLE_PLACE, 0),
            NODE_ROOT if level > 0 => (self.use_part(node, level)?.word(), level),
            _ => return invalid("a disk without a root"),
        };
        let layer = fields.u32()?;
        self.hold_layer(layer)?.is_top = true;
        let count = fields.u32()?;
        let mut layers = fields.part(usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(4))?;
        let mut earlier = Vec::new();
        while !layers.is_empty() {
            let layer = layers.u32()?;
            self.hold_layer(layer)?;
            earlier.push(layer);
        }
        let len = fields.u32()? as usize;
        if len > NOTE_MAX {
            return invalid("a note that is too long");
        }
        let note = fields.bytes(len)?.to_vec();
        self.disks.push(Record { slots, limit_bytes, is_over: flags & OVER != 0, root, layer, earlier, note });
        Ok(())
    }

    /// Gives a layer to a disk.
    fn hold_layer(&mut self, number: u32) -> Result<&mut Layer, ImportError> {
        let layer = self.layer(number)?;
        if layer.is_held {
            return invalid("a layer of two disks");
        }
        layer.is_held = true;
        Ok(layer)
    }

    /// Stores hints. They may be wrong: pages are compared before they are shared.
    fn add_hints(&self, mut fields: Fields<'_>) -> Result<(), ImportError> {
        let Some(equals) = self.core.equals.as_ref().filter(|_| fields.u32().is_ok_and(|hash| hash == HASH)) else {
            return Ok(());
        };
        while !fields.is_empty() {
            let (bits, leaf, index) = (fields.u64()?, fields.u32()?, usize::from(fields.u8()?));
            if leaf as usize >= self.leaves.len() || index >= LEAF_SLOTS {
                return invalid("a hint to a leaf that does not exist");
            }
            equals.put(Sum::of_bits(bits), PartStorage::entry_number(leaf, index), &self.core.budget);
        }
        Ok(())
    }

    /// Compares the totals: leaves, nodes, then `others`, then objects.
    fn check_round(&self, fields: &mut Fields<'_>, others: &[usize]) -> Result<(), ImportError> {
        for count in [self.leaves.len(), self.nodes.len()].iter().chain(others) {
            if fields.u32()? as usize != *count {
                return invalid("some of its parts are missing");
            }
        }
        if fields.u64()? != self.objects { invalid("some of its objects are missing") } else { Ok(()) }
    }

    /// Ends a round.
    fn end_round(&mut self) -> Result<(), ImportError> {
        self.count_references()?;
        self.layers.iter_mut().for_each(|layer| layer.is_old = true);
        (self.old_leaves, self.old_nodes) = (self.leaves.len(), self.nodes.len());
        Ok(())
    }

    /// Completes the counts, checks everything, and makes the disks.
    fn finish(mut self) -> Result<Vec<ImportedDisk>, ImportError> {
        self.count_references()?;
        self.check_layers()?;
        self.drop_unused();
        let Self { core, layers, disks, .. } = self;
        // Layers that no disk has live as long as their parts.
        for layer in layers.iter().filter(|layer| !layer.is_held) {
            core.layers.give(layer.id, &core.budget);
        }
        let disk = |record: Record| {
            let Record { slots, limit_bytes, is_over, root, layer, earlier, note } = record;
            let id = |number: u32| layers[number as usize].id;
            let tree = Tree::restored(root, id(layer), earlier.into_iter().map(id).collect());
            let disk = Disk::restored(Arc::clone(core), tree, slots, is_over, limit_bytes);
            Ok(ImportedDisk { disk: disk.map_err(|_| ImportError::Full)?, note })
        };
        disks.into_iter().map(disk).collect()
    }

    /// Counts the links and sharers of the entries since the last round. The pool's own entries
    /// that have none by then never get any.
    fn count_references(&mut self) -> Result<(), ImportError> {
        let grown = std::mem::take(&mut self.grown);
        let new = self.leaves[self.old_leaves..].iter().map(|(leaf, _)| leaf.number());
        let new_entries =
            new.clone().flat_map(|leaf| (0..LEAF_SLOTS).map(move |at| PartStorage::entry_number(leaf, at)));
        for number in grown.iter().copied().chain(new_entries) {
            self.count_reference(number)?;
        }
        let mut changed: Vec<Owner> = grown.iter().map(|&number| PartStorage::leaf_of(number).0).chain(new).collect();
        changed.dedup();
        for leaf in changed {
            if self.leaves[leaf as usize].1 == 0 {
                self.drop_unshared(leaf);
            }
        }
        Ok(())
    }

    /// Counts what an entry leads to.
    fn count_reference(&self, number: u64) -> Result<(), ImportError> {
        let Core { storage, budget, .. } = &**self.core;
        let entry = Entry::decode(storage.word(number).load(Relaxed));
        let (to, index) = match entry {
            Entry::Link(to) => (to, PartStorage::leaf_of(number).1),
            Entry::Shared { number, .. } => PartStorage::leaf_of(number),
            _ => return Ok(()),
        };
        match self.leaves.get(to as usize) {
            Some(&(_, layer)) if (layer == 0) == entry.is_shared() => {}
            _ => return invalid("a link to a leaf that does not exist, or a shared object of one"),
        }
        match Entry::decode(storage.words(to)[index].load(Relaxed)) {
            Entry::Empty | Entry::Link(_) => return invalid("an entry that leads to one that is empty, or leads on"),
            _ => {}
        }
        storage.make_counts(to, Purpose::Move, budget)?;
        self.core.parts().link(to, index);
        Ok(())
    }

    /// Frees the objects of a leaf of the pool's own that no entry shares, and prepares it for more.
    fn drop_unshared(&mut self, leaf: Owner) {
        let Core { storage, common, .. } = &**self.core;
        let layer = storage.layer(leaf);
        for (index, word) in storage.words(leaf).iter().enumerate() {
            if storage.counts(leaf).is_none_or(|counts| counts[index].load(Relaxed) == 0) {
                let entry = Entry::decode(word.load(Relaxed));
                word.store(Entry::Empty.encode(), Release);
                self.core.count(layer, 0, entry, Entry::Empty);
                self.core.free(entry);
            }
        }
        let is_empty = |word: &crate::sync::AtomicU64| Entry::decode(word.load(Relaxed)) == Entry::Empty;
        if storage.words(leaf).iter().any(is_empty) {
            common.roomy().insert(leaf);
        } else {
            common.roomy().remove(&leaf);
        }
        if storage.lives(leaf).load(Relaxed) == 1 {
            self.bare.push(leaf);
        }
    }

    /// Frees parts that belong to no disk: parts of rounds, and the pool's own leaves without
    /// objects.
    fn drop_unused(&self) {
        let Core { storage, common, .. } = &**self.core;
        let mut unused = Unused::default();
        for &(leaf, _) in self.leaves.iter().filter(|&&(_, layer)| layer != 0) {
            if storage.uses(leaf.number()).load(Relaxed) == 0 {
                unused.add(leaf.number(), 0);
            }
        }
        for &(node, _, level) in &self.nodes {
            if storage.node_uses(node.number()).load(Relaxed) == 0 {
                unused.add(node.number(), level);
            }
        }
        for &leaf in self.bare.iter().filter(|&&leaf| storage.lives(leaf).load(Relaxed) == 1) {
            common.roomy().remove(&leaf);
            storage.uses(leaf).store(0, Relaxed);
            self.core.parts().drop_life(leaf);
        }
        self.core.leave(unused);
    }

    /// Checks that only one disk can change a part.
    fn check_layers(&self) -> Result<(), ImportError> {
        let storage = &self.core.storage;
        let is_top = |layer: u32| self.layers[layer as usize].is_top;
        let is_others = |layer: u32, own: u32| layer != own && is_top(layer);
        if self.layers.iter().any(|layer| layer.is_top && layer.is_old) {
            return invalid("a round has parts of a disk's topmost layer");
        }
        for (leaf, _) in self.leaves[self.old_leaves..].iter().filter(|&&(_, layer)| is_top(layer)) {
            let counts = [storage.uses(leaf.number()), storage.lives(leaf.number())];
            if counts.map(|count| count.load(Relaxed)) != [1, 1] {
                return invalid("a leaf that only its disk may use has other users, or none");
            }
        }
        for &(node, layer, level) in &self.nodes[self.old_nodes..] {
            if is_top(layer) && storage.node_uses(node.number()).load(Relaxed) != 1 {
                return invalid("a node that only its disk may use has other users, or none");
            }
            for place in storage.node(node.number()) {
                let name = place.load(Relaxed);
                if names_part(name) && is_others(self.layer_of(name, level - 1), layer) {
                    return invalid("a part of a disk's topmost layer below one of another layer");
                }
            }
        }
        for Record { root: (name, level), layer, .. } in &self.disks {
            if names_part(*name) && is_others(self.layer_of(*name, *level), *layer) {
                return invalid("a root of another disk's own");
            }
        }
        Ok(())
    }

    /// Returns the layer, in the stream, of the part that a place names.
    fn layer_of(&self, name: u64, level: u32) -> u32 {
        let number = PartId::of(name).number() as usize;
        if level == 0 { self.leaves[number].1 } else { self.nodes[number].1 }
    }
}

//! Makes a pool from a stream.
//!
//! ```text
//! header, tables   make the pool
//! leaves           take each; allocate and copy its objects; count its entries in its layer
//! nodes            take each; count a use of each part that it names
//! disks            keep what they say; count a use of each root
//! end              compare the totals; count links and sharers; free entries that nothing refers
//!                  to; check the layers; make the disks
//! ```
//!
//! A new pool numbers its leaves and nodes in the order in which they are taken, so the numbers in
//! the stream are those in the pool.
//!
//! What trees rely on, beyond references to what exists:
//!
//! - a link leads to an entry that is neither empty nor a link, of a leaf that no disk changes;
//! - an entry that shares an object leads to one of the pool's own, which has an object;
//! - a part of the layer that a disk writes to has one use: by a part of that layer, or as the
//!   disk's root;
//! - no layer belongs to two disks.
//!
//! Until all of that is known no disk exists, so after an error the pool is dropped as it is.

use std::{io::Read, sync::Arc};

use pagefold_codec::{PAGE_SIZE, Tables};

use super::{
    DISKS, EMPTY, END, HASH, HEADER, HINTS, HOLE, HOLE_PART, HOLE_ROOT, ImportError, ImportedDisk, ImportedPool,
    LEAVES, LINK, NO_ROOT, NODE_ROOT, NODES, NOTE_MAX, OBJECT, OVER, RAW, SAME, SHARED, TABLES,
    blocks::{BlockReader, Fields},
};
use crate::{
    core::Core,
    disk::{Disk, SLOTS_MAX},
    entry::{Entry, Fill, LayerId},
    equal::{Seeds, Sum},
    heap::Owner,
    limit::Purpose,
    pool::{Pool, PoolConfig},
    streams::{History, NUMBERS},
    sync::Ordering::{Relaxed, Release},
    tree::{HOLE as HOLE_PLACE, LEAF_SLOTS, NOTHING, PartId, PartStorage as Leaves, Tree, levels, names_part},
};

/// The most leaves: an entry has 24 bits for the number of one.
const LEAVES_MAX: u32 = 1 << 24;

/// What the header and the tables say.
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
    /// By number, whether the pool has tables.
    has_tables: [bool; NUMBERS],
    disks: Vec<Record>,
    objects: u64,
}

impl Pool {
    /// Makes a pool from the stream that [`export`](Self::export) wrote, with its disks. The codec
    /// must be the one of that pool, and the memory limit leave room for all that it holds.
    ///
    /// `input` is untrusted. Nothing after the end of the stream is read.
    ///
    /// # Errors
    /// See [`ImportError`].
    pub fn import(config: PoolConfig, input: &mut dyn Read) -> Result<ImportedPool, ImportError> {
        import(config, input)
    }
}

/// See [`Pool::import`].
fn import(config: PoolConfig, input: &mut dyn Read) -> Result<ImportedPool, ImportError> {
    let mut reader = BlockReader::begin(input)?;
    let mut head = read_header(&mut reader)?;
    let asked = config.codec_name();
    if asked != head.codec_name {
        return Err(ImportError::OtherCodec { stored: head.codec_name, asked });
    }
    let mut known = &[TABLES, LEAVES, NODES, DISKS, END][..];
    let (mut kind, mut fields) = reader.next(known)?;
    while kind == TABLES {
        head.add_tables(fields)?;
        (kind, fields) = reader.next(known)?;
    }
    let pool = head.make_pool(config)?;
    let mut import = Import::new(pool.core(), &head);
    loop {
        known = match kind {
            LEAVES => {
                import.add_leaves(fields)?;
                &[LEAVES, NODES, DISKS, END]
            }
            NODES => {
                import.add_nodes(fields)?;
                &[NODES, DISKS, END]
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
                import.check_end(fields)?;
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
    // A stream without hints may end before.
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
            // Tables that another version has built in are kept like trained ones.
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
        // Without a stream nothing could be read from a full pool.
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
        let common = Layer { id: core.common.layer(), is_held: true, is_top: false };
        let mut has_tables = [false; NUMBERS];
        // Objects of a codec without tables have number 0.
        has_tables[0] = true;
        head.tables.iter().for_each(|&(number, _)| has_tables[usize::from(number)] = true);
        Self {
            core,
            layers: vec![common],
            leaves: Vec::new(),
            nodes: Vec::new(),
            has_tables,
            disks: Vec::new(),
            objects: 0,
        }
    }

    /// Returns a layer, which is taken when it is first named.
    fn layer(&mut self, number: u32) -> Result<&mut Layer, ImportError> {
        let at = number as usize;
        if at == self.layers.len() {
            let id = self.core.layers.take(&self.core.budget)?;
            self.layers.push(Layer { id, is_held: false, is_top: false });
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
        let leaf = core.leaves.take(id, Entry::Empty, Purpose::Move, &core.budget)?;
        core.layers.hold(id);
        if leaf.number() as usize != self.leaves.len() {
            unreachable!("a new pool gives its numbers in order");
        }
        self.leaves.push((leaf, layer));
        core.leaves.uses(leaf.number()).store(0, Relaxed);
        for (&tag, word) in tags.iter().zip(core.leaves.words(leaf.number())) {
            let entry = self.entry(tag, fields, leaf.number())?;
            core.count(id, 0, Entry::Empty, entry);
            self.objects += u64::from(entry.object().is_some());
            word.store(entry.encode(), Release);
        }
        Ok(())
    }

    /// Reads an entry, and stores its object.
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
            SAME => Entry::Same(Fill::new(fields.u64()?).ok_or(ImportError::invalid("a word without a short form"))?),
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
                    return invalid("a shared object that cannot exist");
                }
                Entry::Shared { number: Leaves::entry_number(leaf, index), len_bytes }
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
            return invalid("a node of a level or a layer that cannot be");
        }
        let id = self.layer(layer)?.id;
        let node = core.leaves.take_node(id, NOTHING, Purpose::Move, &core.budget)?;
        core.layers.hold(id);
        core.leaves.node_uses(node.number()).store(0, Relaxed);
        let mut next = 0;
        for _ in 0..count {
            let (index, number) = (usize::from(fields.u8()?), fields.u32()?);
            if index < next {
                return invalid("places of a node out of order");
            }
            next = index + 1;
            let place = core.leaves.node(node.number()).get(index).ok_or(ImportError::invalid("a place too many"))?;
            let name = match number {
                HOLE_PART => HOLE_PLACE,
                _ => self.use_part(number, level - 1)?.word(),
            };
            place.store(name, Release);
        }
        // A node does not name itself, as it is added last.
        self.nodes.push((node, layer, level));
        Ok(())
    }

    /// Counts a use of a part.
    fn use_part(&mut self, number: u32, level: u32) -> Result<PartId, ImportError> {
        let leaves = &self.core.leaves;
        if level == 0 {
            let &(leaf, layer) =
                self.leaves.get(number as usize).ok_or(ImportError::invalid("a leaf that does not exist"))?;
            if layer == 0 {
                return invalid("a leaf of the pool's own in a tree");
            }
            leaves.uses(leaf.number()).fetch_add(1, Relaxed);
            return Ok(leaf);
        }
        match self.nodes.get(number as usize) {
            Some(&(node, _, of)) if of == level => {
                leaves.node_uses(node.number()).fetch_add(1, Relaxed);
                Ok(node)
            }
            _ => invalid("a node that does not exist, or is of another level"),
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

    /// Stores hints. They may be wrong: what they lead to is compared.
    fn add_hints(&self, mut fields: Fields<'_>) -> Result<(), ImportError> {
        let Some(equals) = self.core.equals.as_ref().filter(|_| fields.u32().is_ok_and(|hash| hash == HASH)) else {
            return Ok(());
        };
        while !fields.is_empty() {
            let (bits, leaf, index) = (fields.u64()?, fields.u32()?, usize::from(fields.u8()?));
            if leaf as usize >= self.leaves.len() || index >= LEAF_SLOTS {
                return invalid("a hint to a leaf that does not exist");
            }
            equals.put(Sum::of_bits(bits), Leaves::entry_number(leaf, index), &self.core.budget);
        }
        Ok(())
    }

    fn check_end(&self, mut fields: Fields<'_>) -> Result<(), ImportError> {
        let counts = [self.leaves.len(), self.nodes.len(), self.disks.len()];
        for count in counts {
            if fields.u32()? as usize != count {
                return invalid("parts of it are missing");
            }
        }
        if fields.u64()? != self.objects { invalid("objects of it are missing") } else { Ok(()) }
    }

    /// Completes the counts, checks everything, and makes the disks.
    fn finish(self) -> Result<Vec<ImportedDisk>, ImportError> {
        self.count_links()?;
        self.drop_unused_leaves();
        self.count_sharers()?;
        self.drop_unshared();
        self.check_layers()?;
        let Self { core, layers, disks, .. } = self;
        // Layers that no disk has live as long as their parts.
        for layer in layers.iter().filter(|layer| !layer.is_held) {
            core.layers.give(layer.id, &core.budget);
        }
        let disk = |record: Record| {
            let Record { slots, limit_bytes, is_over, root, layer, earlier, note } = record;
            let id = |number: u32| layers[number as usize].id;
            let tree = Tree::restored(root, id(layer), earlier.into_iter().map(id).collect());
            ImportedDisk { disk: Disk::restored(Arc::clone(core), tree, slots, is_over, limit_bytes), note }
        };
        Ok(disks.into_iter().map(disk).collect())
    }

    /// Returns the leaves that places of nodes name, or else those that none does; the pool's own
    /// are neither.
    fn leaves_of_trees(&self, used: bool) -> impl Iterator<Item = Owner> + '_ {
        let leaves = self.leaves.iter().filter(|&&(_, layer)| layer != 0).map(|&(leaf, _)| leaf.number());
        leaves.filter(move |&leaf| (self.core.leaves.uses(leaf).load(Relaxed) > 0) == used)
    }

    /// Returns the leaves of the pool's own entries.
    fn own_leaves(&self) -> impl Iterator<Item = Owner> + '_ {
        self.leaves.iter().filter(|&&(_, layer)| layer == 0).map(|&(leaf, _)| leaf.number())
    }

    /// Counts the links of the leaves in trees. A leaf in no tree has no links that are needed: an
    /// entry that a link leads to is not a link.
    fn count_links(&self) -> Result<(), ImportError> {
        let Core { leaves, budget, .. } = &**self.core;
        for leaf in self.leaves_of_trees(true) {
            for (index, word) in leaves.words(leaf).iter().enumerate() {
                let Entry::Link(to) = Entry::decode(word.load(Relaxed)) else { continue };
                match self.leaves.get(to as usize) {
                    Some(&(_, layer)) if layer != 0 => {}
                    _ => return invalid("a link to a leaf that does not exist"),
                }
                if matches!(Entry::decode(leaves.words(to)[index].load(Relaxed)), Entry::Empty | Entry::Link(_)) {
                    return invalid("a link to an entry that is empty or a link");
                }
                leaves.make_counts(to, Purpose::Move, budget)?;
                self.core.parts().link(to, index);
            }
        }
        Ok(())
    }

    /// Frees entries that nothing refers to, of leaves in no tree, and those leaves that have no
    /// other. The others live by links alone.
    fn drop_unused_leaves(&self) {
        for leaf in self.leaves_of_trees(false) {
            self.drop_unlinked(leaf);
            self.core.parts().drop_life(leaf);
        }
    }

    /// Empties the entries of a leaf that have no links.
    fn drop_unlinked(&self, leaf: Owner) {
        let Core { leaves, .. } = &**self.core;
        let layer = leaves.layer(leaf);
        for (index, word) in leaves.words(leaf).iter().enumerate() {
            if leaves.counts(leaf).is_none_or(|counts| counts[index].load(Relaxed) == 0) {
                let entry = Entry::decode(word.load(Relaxed));
                word.store(Entry::Empty.encode(), Release);
                self.core.count(layer, 0, entry, Entry::Empty);
                self.core.free(entry);
            }
        }
    }

    /// Counts the sharers of the pool's own objects.
    fn count_sharers(&self) -> Result<(), ImportError> {
        let Core { leaves, budget, .. } = &**self.core;
        for leaf in self.leaves_of_trees(true).chain(self.leaves_of_trees(false)) {
            for word in leaves.words(leaf) {
                let Entry::Shared { number, .. } = Entry::decode(word.load(Relaxed)) else { continue };
                let (to, index) = Leaves::leaf_of(number);
                match self.leaves.get(to as usize) {
                    Some(&(_, 0)) if Entry::decode(leaves.word(number).load(Relaxed)).object().is_some() => {}
                    _ => return invalid("a shared object that does not exist"),
                }
                leaves.make_counts(to, Purpose::Move, budget)?;
                self.core.parts().link(to, index);
            }
        }
        Ok(())
    }

    /// Frees the pool's own objects that no entry shares, and prepares the others for more.
    fn drop_unshared(&self) {
        let Core { leaves, common, .. } = &**self.core;
        for leaf in self.own_leaves() {
            self.drop_unlinked(leaf);
            if leaves.lives(leaf).load(Relaxed) == 1 {
                self.core.parts().drop_life(leaf);
                continue;
            }
            leaves.uses(leaf).store(1, Relaxed);
            if leaves.words(leaf).iter().any(|word| Entry::decode(word.load(Relaxed)) == Entry::Empty) {
                common.roomy().insert(leaf);
            }
        }
    }

    /// Checks that only one disk can change a part.
    fn check_layers(&self) -> Result<(), ImportError> {
        let leaves = &self.core.leaves;
        let is_top = |layer: u32| self.layers[layer as usize].is_top;
        let is_others = |layer: u32, own: u32| layer != own && is_top(layer);
        for (leaf, _) in self.leaves.iter().filter(|&&(_, layer)| is_top(layer)) {
            let counts = [leaves.uses(leaf.number()), leaves.lives(leaf.number())];
            if counts.map(|count| count.load(Relaxed)) != [1, 1] {
                return invalid("a leaf of a disk's own with other users, or without one");
            }
        }
        for &(node, layer, level) in &self.nodes {
            let uses = leaves.node_uses(node.number()).load(Relaxed);
            if uses == 0 || is_top(layer) && uses != 1 {
                return invalid("a node without a user, or one of a disk's own with others");
            }
            for place in leaves.node(node.number()) {
                let name = place.load(Relaxed);
                if names_part(name) && is_others(self.layer_of(name, level - 1), layer) {
                    return invalid("a part of a disk's own below one that is not");
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

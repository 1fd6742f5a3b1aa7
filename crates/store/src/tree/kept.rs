//! The data in a pool's file in memory other than its parts and objects. From the file, another
//! process can restore the disks if this one is killed (`handover/salvage.rs`).
//!
//! ```text
//! head where everything is; the codec; written last tables for each number: order (8), length (8),
//! check (4), the codec's bytes notes twice: generation (8), length (8), check (4), data of the
//! pool's user rows for each disk: key, root 128 bytes each owners for each layer: the row of its
//! disk plus one, or 0 words, leaves, nodes, inner `storage.rs` heap the shards `heap/mod.rs`
//! ```
//!
//! A process can be killed between any two stores, so what rows lead to must be complete at each
//! moment:
//!
//! - A row gets a root before the disk does, and its key is cleared before the disk's parts are freed.
//! - A place names a part, and an entry an object, only after these are complete. Nothing is freed
//!   while something names it: late accesses of threads rely on that too.
//! - Lock bits of entries are ignored: the threads that held them are gone.
//! - Counts, free lists and bins are in private memory; the reader counts again.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Relaxed, Release},
        },
    },
};

use pagefold_codec::PAGE_SIZE;

use super::storage::{LEAF_BYTES, LEAF_SLOTS};
use crate::{
    entry::LayerId,
    limit::{Budget, Full, Purpose},
    memory::{MemoryFile, Reserved, Slab},
};

/// The first bytes of a file, which include the version of its format.
const MAGIC: [u8; 8] = *b"PFpool\0\0";
const VERSION: u64 = 1;

/// Bytes of the head: [`MAGIC`], numbers, and the codec's name.
pub(crate) const HEAD_BYTES: usize = 512;

/// Bytes for the tables of one number. They have at most 120 KiB.
pub(crate) const TABLES_BYTES: u64 = 256 << 10;

/// Bytes for each of the two notes.
pub(crate) const NOTE_BYTES: u64 = 256 << 20;

/// Bytes before tables or a note: order or generation, length, check.
const BEFORE_BYTES: usize = 20;

/// Bytes written per call: a call locks the file, and threads that free memory wait for that lock.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes of the metadata of a leaf, and of a node. Both begin with the layer.
pub(crate) const OF_LEAF_BYTES: u64 = 16;
pub(crate) const OF_NODE_BYTES: u64 = 8;

/// Words of a row: one for its key, one for its root. A slab has at most 32 parts per page.
pub(crate) const ROW_WORDS: usize = 16;
pub(crate) const KEY: usize = 0;
pub(crate) const ROOT: usize = 1;

/// The maximum numbers of rows and of layers.
const ROWS_MAX: usize = 1 << 20;

/// The numbers of the head, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) tables_at: u64,
    pub(crate) notes_at: u64,
    pub(crate) rows_at: u64,
    pub(crate) rows: u64,
    pub(crate) owners_at: u64,
    /// The number of leaves and of nodes, and where their rows are.
    pub(crate) parts: u64,
    pub(crate) words_at: u64,
    pub(crate) leaves_at: u64,
    pub(crate) nodes_at: u64,
    pub(crate) inner_at: u64,
    pub(crate) heap_at: u64,
    pub(crate) shards: u64,
    pub(crate) span_bits: u64,
    /// The layer of the pool's own entries.
    pub(crate) common_layer: u64,
}

impl Head {
    /// Returns the head's bytes.
    pub(crate) fn encode(&self, codec: &str) -> Vec<u8> {
        let Self { tables_at, notes_at, rows_at, rows, owners_at, parts, words_at, leaves_at, .. } = *self;
        let Self { nodes_at, inner_at, heap_at, shards, span_bits, common_layer, .. } = *self;
        let mut bytes = MAGIC.to_vec();
        let sizes = [VERSION, PAGE_SIZE as u64, LEAF_SLOTS as u64];
        let first = [tables_at, notes_at, rows_at, rows, owners_at, parts, words_at, leaves_at];
        let rest = [nodes_at, inner_at, heap_at, shards, span_bits, common_layer, codec.len() as u64];
        for number in sizes.into_iter().chain(first).chain(rest) {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(codec.as_bytes());
        bytes
    }

    /// Returns the head of a file of `len_bytes` that begins with these bytes and has tables of
    /// `numbers` numbers, and the codec's name. Fails, with the reason, if this program cannot read
    /// them.
    pub(crate) fn decode(
        bytes: &[u8; HEAD_BYTES],
        len_bytes: u64,
        numbers: usize,
    ) -> Result<(Self, String), &'static str> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or("it does not begin like a pool")?;
        let (words, _) = rest.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next().unwrap_or(0);
        if next() != VERSION {
            return Err("it is of another version");
        }
        if (next(), next()) != (PAGE_SIZE as u64, LEAF_SLOTS as u64) {
            return Err("its pages or leaves have another size");
        }
        let [tables_at, notes_at, rows_at, rows, owners_at, parts, words_at, leaves_at] = [(); 8].map(|()| next());
        let [nodes_at, inner_at, heap_at, shards, span_bits, common_layer, len] = [(); 7].map(|()| next());
        let head = Self {
            tables_at,
            notes_at,
            rows_at,
            rows,
            owners_at,
            parts,
            words_at,
            leaves_at,
            nodes_at,
            inner_at,
            heap_at,
            shards,
            span_bits,
            common_layer,
        };
        let before = MAGIC.len() + 18 * size_of::<u64>();
        let name = usize::try_from(len).ok().and_then(|len| bytes.get(before..before.checked_add(len)?));
        let name = name.and_then(|name| str::from_utf8(name).ok()).ok_or("its codec has no name")?;
        if head.parts > 1 << 24 || head.rows > ROWS_MAX as u64 || head.span_bits > 32 {
            return Err("its sizes are impossible");
        }
        if !head.is_within(len_bytes, numbers) || head.common_layer >= head.rows {
            return Err("its parts lie beyond its end");
        }
        Ok((head, name.to_owned()))
    }

    /// Returns whether all of it is within a file of `len_bytes`. The file has tables for `numbers`
    /// numbers.
    fn is_within(&self, len_bytes: u64, numbers: usize) -> bool {
        let Self { tables_at, notes_at, rows_at, rows, owners_at, parts, words_at, leaves_at, .. } = *self;
        let Self { nodes_at, inner_at, heap_at, shards, span_bits, .. } = *self;
        let all = [
            (tables_at, numbers as u64, TABLES_BYTES),
            (notes_at, 2, NOTE_BYTES),
            (rows_at, rows, 8 * ROW_WORDS as u64),
            (owners_at, rows, 4),
            (words_at, parts, LEAF_BYTES as u64),
            (leaves_at, parts, OF_LEAF_BYTES),
            (nodes_at, parts, LEAF_BYTES as u64),
            (inner_at, parts, OF_NODE_BYTES),
            (heap_at, shards, 1 << span_bits),
        ];
        all.into_iter().all(|(at, count, each_bytes)| {
            let end = each_bytes.checked_mul(count).and_then(|bytes| at.checked_add(bytes));
            end.is_some_and(|end| end <= len_bytes)
        })
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct KeptFile {
    file: Arc<MemoryFile>,
    head: Head,
    rows: Reserved<[AtomicU64; ROW_WORDS]>,
    slab: Slab,
    owners: Reserved<AtomicU32>,
    births: AtomicU32,
    /// The generation of the last note.
    note: Mutex<u64>,
}

impl KeptFile {
    /// Takes the front of an empty file, without writing a head yet.
    ///
    /// # Errors
    /// The process cannot reserve the address space, or the file cannot be that long.
    pub(crate) fn new(file: Arc<MemoryFile>, numbers: usize) -> io::Result<Self> {
        file.reserve(HEAD_BYTES as u64)?;
        let tables_at = file.reserve(TABLES_BYTES * numbers as u64)?;
        let notes_at = file.reserve(2 * NOTE_BYTES)?;
        let rows = Reserved::new_in(Some(&file), ROWS_MAX)?;
        let owners = Reserved::new_in(Some(&file), ROWS_MAX)?;
        // Memory of a file costs nothing before its use.
        rows.enable(ROWS_MAX)?;
        owners.enable(ROWS_MAX)?;
        let (rows_at, owners_at) = (rows.in_file(), owners.in_file());
        let head = Head { tables_at, notes_at, rows_at, rows: ROWS_MAX as u64, owners_at, ..Head::default() };
        let slab = Slab::new(rows.count(), ROW_WORDS * size_of::<u64>(), 0);
        Ok(Self { file, head, rows, slab, owners, births: AtomicU32::new(1), note: Mutex::new(0) })
    }

    /// Writes the head: from now on, another process can read the pool. `parts` and `heap` describe
    /// the rest of the file.
    pub(crate) fn begin(
        &mut self,
        codec: &str,
        common: LayerId,
        parts: (u64, [u64; 4]),
        heap: [u64; 3],
    ) -> io::Result<()> {
        let (count, [words_at, leaves_at, nodes_at, inner_at]) = parts;
        let [heap_at, shards, span_bits] = heap;
        let rows = Head { parts: count, words_at, leaves_at, nodes_at, inner_at, ..self.head };
        self.head = Head { heap_at, shards, span_bits, common_layer: common.number().into(), ..rows };
        let bytes = self.head.encode(codec);
        if bytes.len() > HEAD_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the codec's name is too long"));
        }
        self.file.file().write_all_at(&bytes, 0)
    }

    /// Returns the file.
    pub(crate) fn file(&self) -> &File {
        self.file.file()
    }

    /// Stores tables under a number that no object has yet; `order` grows with each call. Returns
    /// false if they cannot be kept.
    pub(crate) fn keep_tables(&self, number: u8, order: u64, bytes: &[u8]) -> bool {
        let room = TABLES_BYTES as usize - BEFORE_BYTES;
        let at = self.head.tables_at + u64::from(number) * TABLES_BYTES;
        bytes.len() <= room && self.put(at, order, bytes).is_ok()
    }

    /// Replaces the note. At each moment, the file has either the old or the new one.
    ///
    /// # Errors
    /// It is too long, or there is no memory.
    pub(crate) fn keep_note(&self, note: &[u8]) -> io::Result<()> {
        if note.len() as u64 > NOTE_BYTES - BEFORE_BYTES as u64 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut generation = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        // If this fails, the next attempt uses the same place, because the other has the last note.
        let next = *generation + 1;
        self.put(self.head.notes_at + next % 2 * NOTE_BYTES, next, note)?;
        *generation = next;
        Ok(())
    }

    /// Writes bytes, and then their header in front of them.
    fn put(&self, at: u64, order: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.file.file();
        let mut to = at + BEFORE_BYTES as u64;
        for piece in bytes.chunks(PIECE_BYTES) {
            file.write_all_at(piece, to)?;
            to += piece.len() as u64;
        }
        file.write_all_at(&before(order, bytes), at)
    }

    /// Takes a row for a disk with this root, which writes to `layer`.
    fn take(self: &Arc<Self>, root: u64, layers: &[LayerId], budget: &Budget) -> Result<Row, Full> {
        let number = self.slab.take(Purpose::Keep, budget, |_| Ok(()))?;
        let birth = self.births.fetch_add(1, Relaxed);
        let row = Row { kept: Arc::clone(self), number, key: u64::from(birth) << 32 | (u64::from(number) + 1) };
        row.set_root(root);
        layers.iter().for_each(|&layer| row.owns(layer));
        row.word(KEY).store(row.key, Release);
        Ok(row)
    }

    /// Returns all memory that the rows take.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.slab.held_bytes()
    }
}

/// Returns the header of some bytes: their order, their length, and a check of all.
fn before(order: u64, bytes: &[u8]) -> [u8; BEFORE_BYTES] {
    let mut before = [0; BEFORE_BYTES];
    before[..8].copy_from_slice(&order.to_le_bytes());
    before[8..16].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    let check = crc32c::crc32c_append(crc32c::crc32c(&before[..16]), bytes);
    before[16..].copy_from_slice(&check.to_le_bytes());
    before
}

/// Tables or a note, as read from the file.
#[derive(Debug)]
pub(crate) enum Written {
    Nothing,
    /// It is incomplete.
    Part,
    /// The order, and the bytes.
    Whole(u64, Vec<u8>),
}

/// Reads the bytes at an offset, of which there are at most `most`, and their order.
pub(crate) fn read_checked(file: &File, at: u64, most: u64) -> io::Result<Written> {
    let mut head = [0; BEFORE_BYTES];
    file.read_exact_at(&mut head, at)?;
    let word = |at: usize| head[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let (order, len) = (word(0), word(8));
    if head == [0; BEFORE_BYTES] {
        return Ok(Written::Nothing);
    }
    if len > most - BEFORE_BYTES as u64 {
        return Ok(Written::Part);
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, at + BEFORE_BYTES as u64)?;
    Ok(if head == before(order, &bytes) { Written::Whole(order, bytes) } else { Written::Part })
}

/// A disk's row.
#[derive(Debug)]
pub(crate) struct Row {
    kept: Arc<KeptFile>,
    number: u32,
    key: u64,
}

impl Row {
    /// Takes a row for a tree with this root and these layers.
    pub(super) fn take(kept: &Arc<KeptFile>, root: u64, layers: &[LayerId], budget: &Budget) -> Result<Self, Full> {
        kept.take(root, layers, budget)
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        &self.kept.rows.all()[self.number as usize][word]
    }

    /// Returns the disk's unique key.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Records the root, before the disk gets it.
    pub(super) fn set_root(&self, root: u64) {
        self.word(ROOT).store(root, Release);
    }

    /// Records that the disk has a layer, before any part belongs to it.
    pub(super) fn owns(&self, layer: LayerId) {
        self.kept.owners.all()[layer.number() as usize].store(self.number + 1, Release);
    }

    /// Records that the disk no longer exists.
    pub(super) fn ends(&self, layers: &[LayerId]) {
        self.word(KEY).store(0, Release);
        layers.iter().for_each(|layer| self.kept.owners.all()[layer.number() as usize].store(0, Relaxed));
    }

    /// Frees the row, after the disk's parts were freed.
    pub(super) fn give(&self, budget: &Budget) {
        let rows = &self.kept.rows;
        self.kept.slab.give(self.number, budget, |first, count| rows.give_back(first, count));
    }
}

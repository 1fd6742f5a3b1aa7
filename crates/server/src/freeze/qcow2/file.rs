//! A qcow2 file (version 3), written sequentially. QEMU's `docs/interop/qcow2.txt` defines the
//! format.
//!
//! ```text
//! | header | first table | content, second table | content, second table | ...
//! | reference table | reference counts |
//! ```
//!
//! Each part begins at a cluster boundary of the file. A second table follows the content that it
//! refers to. Compressed clusters are packed byte by byte into clusters of the file. The header is
//! written last: until then, the file is not a valid qcow2 image.
//!
//! ```text
//! entry of a second table, bits 63 to 0
//! nothing is here     0
//! zeros               0 ... 0 1
//! plain               1 0 offset, a multiple of the cluster
//! compressed          0 1 sectors after the first: 8 bits, offset in bytes: 54 bits
//! ```

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

/// Bytes per cluster; the default of `qemu-img`.
pub(super) const CLUSTER_BYTES: u64 = 1 << CLUSTER_BITS;

const CLUSTER_BITS: u32 = 16;

/// Entries of a table per cluster.
const TABLE_ENTRIES: u64 = CLUSTER_BYTES / 8;

/// 16-bit reference counts per cluster.
const COUNTS: usize = CLUSTER_BYTES as usize / 2;

/// Maximum number of entries in the first table that QEMU accepts: 2 PiB.
const MOST_TABLES: u64 = 1 << 22;

/// Unit of a compressed cluster's length.
pub(super) const SECTOR_BYTES: u64 = 512;
const HEADER_BYTES: usize = 104;
const BACKING_FORMAT: u32 = 0xe279_2aca;

/// Maximum length of a backing file's name.
const MOST_NAME_BYTES: usize = 1023;

/// Set in an entry if its target has a reference count of one.
const ALONE: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
const ZEROS: u64 = 1;

/// The file below an image, which provides all clusters that the image lacks.
pub(in crate::freeze) struct Backing<'a> {
    pub(in crate::freeze) path: &'a str,
    pub(in crate::freeze) format: &'a str,
}

/// The content of a cluster.
pub(super) enum Cluster {
    Zeros,
    /// Uncompressed data.
    Plain(Vec<u8>),
    /// Raw DEFLATE with a window of at most 4 KiB, shorter than a cluster.
    Compressed(Vec<u8>),
}

/// A file that is being written. Clusters are added in the order of the disk.
pub(super) struct ImageFile<'a> {
    out: &'a File,
    size_bytes: u64,
    backing: Option<Backing<'a>>,
    tables: Vec<u64>,
    /// The current second table.
    table: Vec<u64>,
    table_number: u64,
    /// Whether the table is needed: without it, the image would have other content.
    is_needed: bool,
    /// Reference count of each cluster of the file.
    counts: Vec<u16>,
    /// Where the next compressed cluster may begin.
    packed_end: u64,
}

impl<'a> ImageFile<'a> {
    /// Creates an image of `size_bytes` in `out`, which is empty.
    ///
    /// # Errors
    /// The format does not support this size or this backing file.
    pub(super) fn new(out: &'a File, size_bytes: u64, backing: Option<Backing<'a>>) -> io::Result<Self> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what);
        let tables = size_bytes.div_ceil(CLUSTER_BYTES * TABLE_ENTRIES);
        if tables > MOST_TABLES {
            return Err(invalid("a qcow2 image has at most 2 PiB: choose another format"));
        }
        if backing.as_ref().is_some_and(|backing| backing.path.len() > MOST_NAME_BYTES) {
            return Err(invalid("the base's path is longer than the 1023 bytes that a qcow2 image has for it"));
        }
        let mut file = Self {
            out,
            size_bytes,
            backing,
            tables: vec![0; tables as usize],
            table: vec![0; TABLE_ENTRIES as usize],
            table_number: 0,
            is_needed: false,
            counts: Vec::new(),
            packed_end: 0,
        };
        file.take(1 + tables.div_ceil(TABLE_ENTRIES));
        Ok(file)
    }

    /// Allocates clusters at the end of the file and returns their offset.
    fn take(&mut self, clusters: u64) -> u64 {
        let at = self.counts.len();
        self.counts.resize(at + clusters as usize, 1);
        at as u64 * CLUSTER_BYTES
    }

    /// Adds clusters of zeros.
    pub(super) fn put_zeros(&mut self, clusters: Range<u64>) -> io::Result<()> {
        let mut at = clusters.start;
        while at < clusters.end {
            self.turn_to(at)?;
            let end = clusters.end.min((self.table_number + 1) * TABLE_ENTRIES);
            let first = (at % TABLE_ENTRIES) as usize;
            self.table[first..first + (end - at) as usize].fill(ZEROS);
            // Without a table, everything reads as zeros too, unless there is a backing file.
            self.is_needed |= self.backing.is_some();
            at = end;
        }
        Ok(())
    }

    /// Adds the disk's cluster `number`.
    pub(super) fn put(&mut self, number: u64, cluster: &Cluster) -> io::Result<()> {
        let entry = match cluster {
            Cluster::Zeros => return self.put_zeros(number..number + 1),
            Cluster::Plain(bytes) => {
                self.turn_to(number)?;
                let at = self.take(1);
                self.out.write_all_at(bytes, at)?;
                at | ALONE
            }
            Cluster::Compressed(bytes) => {
                self.turn_to(number)?;
                let at = self.place(bytes.len() as u64);
                self.out.write_all_at(bytes, at)?;
                let sectors = (at + bytes.len() as u64 - 1) / SECTOR_BYTES - at / SECTOR_BYTES;
                at | sectors << (62 - (CLUSTER_BITS - 8)) | COMPRESSED
            }
        };
        self.table[(number % TABLE_ENTRIES) as usize] = entry;
        self.is_needed = true;
        Ok(())
    }

    /// Allocates space for a compressed cluster, which may cross into the next cluster of the file.
    fn place(&mut self, len_bytes: u64) -> u64 {
        let left_bytes = self.packed_end.next_multiple_of(CLUSTER_BYTES) - self.packed_end;
        let end = self.counts.len() as u64 * CLUSTER_BYTES;
        if len_bytes > left_bytes && self.packed_end + left_bytes != end {
            self.packed_end = end;
        }
        let at = self.packed_end;
        self.packed_end += len_bytes;
        let last = ((self.packed_end - 1) / CLUSTER_BYTES) as usize;
        self.counts.resize(self.counts.len().max(last + 1), 0);
        for count in &mut self.counts[(at / CLUSTER_BYTES) as usize..=last] {
            *count += 1;
        }
        at
    }

    /// Makes the second table of cluster `number` current, and writes the previous one.
    fn turn_to(&mut self, number: u64) -> io::Result<()> {
        let table_number = number / TABLE_ENTRIES;
        if table_number != self.table_number {
            self.end_table()?;
            self.table_number = table_number;
        }
        Ok(())
    }

    fn end_table(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_needed) {
            let at = self.take(1);
            self.out.write_all_at(&words(&self.table), at)?;
            self.tables[self.table_number as usize] = at | ALONE;
        }
        self.table.fill(0);
        Ok(())
    }

    /// Writes the remaining metadata, which completes the image.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.end_table()?;
        self.out.write_all_at(&words(&self.tables), CLUSTER_BYTES)?;
        // The reference counts include their own clusters and those of their table.
        let (mut blocks, mut table_clusters) = (0, 0);
        loop {
            let needed = (self.counts.len() + blocks + table_clusters).div_ceil(COUNTS);
            if needed == blocks {
                break;
            }
            (blocks, table_clusters) = (needed, needed.div_ceil(TABLE_ENTRIES as usize));
        }
        let table_at = self.take(table_clusters as u64);
        let blocks_at = self.take(blocks as u64);
        let places: Vec<u64> = (0..blocks as u64).map(|number| blocks_at + number * CLUSTER_BYTES).collect();
        self.out.write_all_at(&words(&places), table_at)?;
        self.counts.resize(blocks * COUNTS, 0);
        for (counts, at) in self.counts.chunks(COUNTS).zip(places) {
            let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_be_bytes()).collect();
            self.out.write_all_at(&bytes, at)?;
        }
        self.out.write_all_at(&self.header(table_at, table_clusters as u32), 0)
    }

    fn header(&self, counts_at: u64, counts_clusters: u32) -> Vec<u8> {
        let mut extensions = Vec::new();
        if let Some(Backing { format, .. }) = self.backing {
            extensions.extend(BACKING_FORMAT.to_be_bytes());
            extensions.extend((format.len() as u32).to_be_bytes());
            extensions.extend(format.as_bytes());
            extensions.resize(extensions.len().next_multiple_of(8), 0);
        }
        // The end marker.
        extensions.extend([0; 8]);
        let name = self.backing.as_ref().map_or("", |backing| backing.path);
        let name_at = if name.is_empty() { 0 } else { HEADER_BYTES + extensions.len() };
        let mut header = Vec::from(*b"QFI\xfb");
        let mut field = |bytes: &[u8]| header.extend(bytes);
        field(&3u32.to_be_bytes());
        field(&(name_at as u64).to_be_bytes());
        field(&(name.len() as u32).to_be_bytes());
        field(&CLUSTER_BITS.to_be_bytes());
        field(&self.size_bytes.to_be_bytes());
        // Not encrypted.
        field(&0u32.to_be_bytes());
        field(&(self.tables.len() as u32).to_be_bytes());
        field(&CLUSTER_BYTES.to_be_bytes());
        field(&counts_at.to_be_bytes());
        field(&counts_clusters.to_be_bytes());
        // No snapshots; the offset of their table is 0.
        field(&[0; 4 + 8]);
        // No incompatible, compatible or autoclear features.
        field(&[0; 3 * 8]);
        // A count has 1 << 4 bits.
        field(&4u32.to_be_bytes());
        field(&(HEADER_BYTES as u32).to_be_bytes());
        field(&extensions);
        field(name.as_bytes());
        header
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

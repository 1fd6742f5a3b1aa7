//! The image's data: blocks in the order in which files are stored, and tables of blocks that later
//! files may share.
//!
//! A block that an index, an inode or the tables below refer to never moves or changes. Only the
//! blocks of the current file may be dropped again, from any block to the last
//! ([`Blocks::rewind`]), which also removes them from the tables. Once a run of blocks is
//! completely stored, it is entered into the tables or replaced by an equal run:
//!
//! ```text
//! plain file    | whole block | whole block | ... | tail block, padded |
//!               ^ i_u
//! ```
//!
//! A tail block exists only if the tail is not inline. The file is one run: shared as a whole or
//! not at all.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use pagefold_codec::cluster::ClusterFormat;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::base::OverlayBase;
use super::copies;
use crate::error::{Error, Result};

/// Bytes of blocks that are buffered before they are written.
const PENDING_BYTES: usize = 1 << 20;

/// The maximum size of a write in bytes. For longer writes, Linux's page cache allocates larger
/// folios. In a virtual machine, the host often has not backed these with memory yet, and one write
/// of 1 MiB took 3 to 4 times as long as four of this size.
pub(super) const WRITE_BYTES: usize = 256 << 10;

/// The maximum number of gaps that are kept for chunks. The longest ones are kept. Each chunk scans
/// all of them.
const MOST_GAPS: usize = 64;

/// The identity of a cluster: the hash and length of its bytes, and the format that decodes them
/// (`None`: uncompressed).
type ClusterKey = (u128, usize, Option<ClusterFormat>);

/// The data area of an image under construction.
///
/// Invariants: the blocks before `next` are in `out` or, for the last ones, in `pending`. Every
/// address in `clusters` and `runs` is below `next`, including all of its blocks. Nothing refers to
/// the blocks in `gaps`, which are zeros and in `out`, not in `pending`. Blocks of a file that has
/// created a gap or uses one are never dropped.
pub(super) struct Blocks<'a> {
    out: &'a File,
    block_bits: u32,
    next: u32,
    /// No block of the image is at or after this address.
    limit: u32,
    pending: Vec<u8>,
    clusters: HashMap<ClusterKey, u32>,
    /// The addresses of clusters that the current file has copied, by address in their source image
    /// and length in bytes.
    copies: HashMap<(u64, usize), u32>,
    /// Keys in `clusters` that the current file has added.
    clusters_here: Vec<ClusterKey>,
    /// The addresses of plain files' runs, by hash and number of blocks.
    runs: HashMap<(u128, u32), u32>,
    /// Free blocks before aligned chunks, the longest first.
    gaps: Vec<Range<u32>>,
    shared: u64,
    digest: Xxh3,
}

impl<'a> Blocks<'a> {
    /// Creates a data area whose first block is `range.start`, and that ends before `range.end`.
    pub(super) fn new(out: &'a File, block_bits: u32, range: Range<u32>) -> Self {
        Self {
            out,
            block_bits,
            next: range.start,
            limit: range.end,
            pending: Vec::new(),
            clusters: HashMap::new(),
            copies: HashMap::new(),
            clusters_here: Vec::new(),
            runs: HashMap::new(),
            gaps: Vec::new(),
            shared: 0,
            digest: Xxh3::new(),
        }
    }

    /// Returns the address of the next block.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Returns the number of blocks that were not stored because an equal one exists.
    pub(super) fn shared(&self) -> u64 {
        self.shared
    }

    /// Starts a file: everything stored so far is final. Returns the address of the file's first
    /// block.
    pub(super) fn begin_file(&mut self) -> u32 {
        self.clusters_here.clear();
        self.copies.clear();
        self.next
    }

    /// Adds bytes that are not stored in blocks to [`digest`](Self::digest).
    pub(super) fn digest_more(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    /// Returns a hash of everything stored.
    pub(super) fn digest(&self) -> u128 {
        self.digest.digest128()
    }

    /// Appends whole blocks. Returns the address of the first.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<u32> {
        let (blkaddr, next) = (self.next, self.after(bytes.len())?);
        self.digest.update(bytes);
        if bytes.len() >= PENDING_BYTES / 4 {
            self.flush()?;
            self.write_at(bytes, blkaddr)?;
            self.next = next;
            return Ok(blkaddr);
        }
        self.pending.extend_from_slice(bytes);
        self.next = next;
        if self.pending.len() >= PENDING_BYTES {
            self.flush()?;
        }
        Ok(blkaddr)
    }

    /// Returns the address of the next block after `len_bytes` more.
    fn after(&self, len_bytes: usize) -> Result<u32> {
        debug_assert!(len_bytes.is_multiple_of(1 << self.block_bits));
        let blocks = u32::try_from(len_bytes >> self.block_bits).ok();
        let next = blocks.and_then(|blocks| self.next.checked_add(blocks)).filter(|next| *next < self.limit);
        next.ok_or_else(|| Error::Options("the image exceeds 2^32 blocks".to_owned()))
    }

    /// Appends whole blocks from address `from` of another image. Returns the address of the first.
    /// The digest covers their origin, not their content, because the file system may copy them
    /// without a read.
    pub(super) fn copy(&mut self, base: &dyn OverlayBase, from: u64, len_bytes: usize) -> Result<u32> {
        let (blkaddr, next) = (self.next, self.after(len_bytes)?);
        self.flush()?;
        copies::transfer(base, from, len_bytes as u64, self.out, u64::from(blkaddr) << self.block_bits)?;
        self.digest_origin(base, from, len_bytes);
        self.next = next;
        Ok(blkaddr)
    }

    /// Appends bytes, filled up with zeros to a whole block. If `leaves_gap`, leaves a block unused
    /// before it.
    pub(super) fn append_padded(&mut self, bytes: &[u8], leaves_gap: bool) -> Result<u32> {
        let block = 1 << self.block_bits;
        if leaves_gap {
            self.append(&vec![0; block])?;
        }
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(block), 0);
        self.append(&padded)
    }

    /// Adds the origin of blocks of another image to [`digest`](Self::digest).
    pub(super) fn digest_origin(&mut self, base: &dyn OverlayBase, from: u64, len_bytes: usize) {
        self.digest.update(&base.base_image().uuid);
        self.digest.update(&from.to_le_bytes());
        self.digest.update(&(len_bytes as u64).to_le_bytes());
    }

    /// Like [`copy`](Self::copy), for a cluster that the current file may already have copied.
    pub(super) fn copy_once(&mut self, base: &dyn OverlayBase, from: u64, len_bytes: usize) -> Result<u32> {
        if let Some(&blkaddr) = self.copies.get(&(from, len_bytes)) {
            self.shared += (len_bytes >> self.block_bits) as u64;
            return Ok(blkaddr);
        }
        let blkaddr = self.copy(base, from, len_bytes)?;
        self.copies.insert((from, len_bytes), blkaddr);
        Ok(blkaddr)
    }

    /// Returns the address of a cluster of whole blocks. Appends it unless it is already stored.
    pub(super) fn add_cluster(&mut self, bytes: &[u8], format: Option<ClusterFormat>) -> Result<u32> {
        self.add_as(bytes, format, Self::append)
    }

    /// Like [`add_cluster`](Self::add_cluster), for a chunk of a file whose blocks are never dropped.
    /// A chunk of `unit` blocks or more starts at a multiple of `unit` blocks; a shorter one may
    /// fill the gap before such a chunk.
    pub(super) fn add_chunk(&mut self, bytes: &[u8], unit: u32) -> Result<u32> {
        let blocks = (bytes.len() >> self.block_bits) as u32;
        let blkaddr = self.add_as(bytes, None, |this, bytes| {
            if blocks >= unit {
                this.align(unit)?;
            } else if let Some(gap) = this.gaps.iter_mut().rev().find(|gap| gap.len() >= blocks as usize) {
                let blkaddr = gap.start;
                gap.start += blocks;
                this.digest.update(bytes);
                this.write_at(bytes, blkaddr)?;
                this.sort_gaps();
                return Ok(blkaddr);
            }
            this.append(bytes)
        })?;
        self.clusters_here.clear();
        Ok(blkaddr)
    }

    fn add_as(
        &mut self,
        bytes: &[u8],
        format: Option<ClusterFormat>,
        store: impl FnOnce(&mut Self, &[u8]) -> Result<u32>,
    ) -> Result<u32> {
        let key = (xxh3_128(bytes), bytes.len(), format);
        if let Some(&blkaddr) = self.clusters.get(&key)
            && self.holds(blkaddr, bytes)?
        {
            self.shared += (bytes.len() >> self.block_bits) as u64;
            return Ok(blkaddr);
        }
        let blkaddr = store(self, bytes)?;
        self.clusters.insert(key, blkaddr);
        self.clusters_here.push(key);
        Ok(blkaddr)
    }

    /// Appends zeros up to a multiple of `unit` blocks.
    fn align(&mut self, unit: u32) -> Result<()> {
        let start = self.next;
        let zeros = self.next.checked_next_multiple_of(unit).map_or(0, |next| next - start);
        if zeros > 0 {
            self.append(&vec![0; (zeros as usize) << self.block_bits])?;
            self.flush()?;
            self.gaps.push(start..self.next);
            self.sort_gaps();
        }
        Ok(())
    }

    fn sort_gaps(&mut self) {
        self.gaps.sort_unstable_by_key(|gap| (Reverse(gap.len()), gap.start));
        self.gaps.truncate(MOST_GAPS);
    }

    /// Returns the address of blocks equal to those from `first` to the last, which are all blocks
    /// of a plain file. If an earlier plain file has the same blocks, drops the new ones. The first
    /// `whole` blocks are full, and other files may share these without the rest.
    pub(super) fn share_run(&mut self, first: u32, whole: u32) -> Result<u32> {
        let blocks = self.next - first;
        if blocks == 0 {
            return Ok(first);
        }
        self.flush()?;
        let whole_bytes = u64::from(whole) << self.block_bits;
        let mut sum = Xxh3::new();
        let mut whole_sum = None;
        self.read_back(first, blocks, |at, bytes| {
            if let Some(rest) = whole_bytes.checked_sub(at).filter(|rest| *rest < bytes.len() as u64) {
                let (front, tail) = bytes.split_at(rest as usize);
                sum.update(front);
                whole_sum = Some(sum.digest128());
                sum.update(tail);
            } else {
                sum.update(bytes);
            }
            Ok(true)
        })?;
        let key = (sum.digest128(), blocks);
        match self.runs.entry(key) {
            Entry::Vacant(unknown) => {
                unknown.insert(first);
                if whole > 0
                    && whole < blocks
                    && let Some(whole_sum) = whole_sum
                {
                    self.runs.entry((whole_sum, whole)).or_insert(first);
                }
                Ok(first)
            }
            Entry::Occupied(known) => {
                let known = *known.get();
                if !self.same(known, first, blocks)? {
                    return Ok(first);
                }
                self.rewind(first)?;
                self.shared += u64::from(blocks);
                Ok(known)
            }
        }
    }

    /// Drops the blocks from `block` on, which must all belong to the current file, and removes all
    /// of its clusters from the tables.
    pub(super) fn rewind(&mut self, block: u32) -> Result<()> {
        let bytes = ((self.next - block) as usize) << self.block_bits;
        match self.pending.len().checked_sub(bytes) {
            Some(kept) => self.pending.truncate(kept),
            None => self.flush()?,
        }
        self.next = block;
        self.copies.clear();
        for key in self.clusters_here.drain(..) {
            self.clusters.remove(&key);
        }
        Ok(())
    }

    /// Writes everything appended so far.
    pub(super) fn flush(&mut self) -> Result<()> {
        let first = self.next - (self.pending.len() >> self.block_bits) as u32;
        self.write_at(&self.pending, first)?;
        self.pending.clear();
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], block: u32) -> Result<()> {
        let at = u64::from(block) << self.block_bits;
        let mut parts = bytes.chunks(WRITE_BYTES).zip((at..).step_by(WRITE_BYTES));
        let written = parts.try_for_each(|(part, at)| self.out.write_all_at(part, at));
        written.map_err(Error::io("writing the image"))
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        self.out.read_exact_at(bytes, at).map_err(Error::io("reading the image back"))
    }

    /// Returns whether the blocks at `blkaddr` have these bytes: hashes can collide.
    fn holds(&mut self, blkaddr: u32, bytes: &[u8]) -> Result<bool> {
        self.flush()?;
        let mut there = vec![0; bytes.len()];
        self.read_at(&mut there, u64::from(blkaddr) << self.block_bits)?;
        Ok(there == bytes)
    }

    /// Returns whether two runs of written blocks are equal.
    fn same(&self, known: u32, first: u32, blocks: u32) -> Result<bool> {
        let mut there = Vec::new();
        self.read_back(first, blocks, |at, bytes| {
            there.resize(bytes.len(), 0);
            self.read_at(&mut there, (u64::from(known) << self.block_bits) + at)?;
            Ok(there == bytes)
        })
    }

    /// Reads written blocks and passes each piece and its offset from the first block to `show`
    /// until that returns `false`. Returns whether `show` always returned `true`.
    fn read_back(&self, first: u32, blocks: u32, mut show: impl FnMut(u64, &[u8]) -> Result<bool>) -> Result<bool> {
        let start = u64::from(first) << self.block_bits;
        let len = u64::from(blocks) << self.block_bits;
        let mut bytes = vec![0; len.min(PENDING_BYTES as u64) as usize];
        let mut at = 0;
        while at < len {
            bytes.truncate((len - at).min(PENDING_BYTES as u64) as usize);
            self.read_at(&mut bytes, start + at)?;
            if !show(at, &bytes)? {
                return Ok(false);
            }
            at += bytes.len() as u64;
        }
        Ok(true)
    }
}

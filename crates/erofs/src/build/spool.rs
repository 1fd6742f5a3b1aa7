//! Fragments: ends of files, and whole files, that form the content of the packed inode.

use std::collections::HashMap;
use std::env::temp_dir;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::xxh3_128;

use crate::error::{Error, Result};
use crate::format::MAX_EXTENT_BYTES;

/// The minimum common end of files in blocks for sharing it. The part before it then takes separate
/// whole blocks, half a block more than in a fragment.
const SHARED_END_BLOCKS: usize = 4;

/// A temporary file that collects fragments.
pub(super) struct Spool {
    file: File,
    block_bytes: usize,
    len: u64,
    /// Offsets of fragments, by hash and length.
    known: HashMap<(u128, usize), u64>,
    /// Ranges of longer fragments, by the hash of their last [`SHARED_END_BLOCKS`].
    ends: HashMap<u128, Range<u64>>,
}

/// The location of a fragment.
pub(super) struct Fragment {
    /// The number of leading bytes, in whole blocks, that are not in the fragment and must be
    /// stored before it.
    pub(super) head_len: usize,
    /// The offset of the remaining bytes in the packed inode.
    pub(super) offset: u64,
}

fn failed(error: io::Error) -> Error {
    Error::io(format!("gathering fragments in {} (TMPDIR)", temp_dir().display()))(error)
}

impl Spool {
    pub(super) fn new(block_bytes: u32) -> Result<Self> {
        let file = tempfile::tempfile().map_err(failed)?;
        let block_bytes = block_bytes as usize;
        Ok(Self { file, block_bytes, len: 0, known: HashMap::new(), ends: HashMap::new() })
    }

    /// Creates a spool with `front` before all fragments; `None` if that is empty.
    pub(super) fn beginning_with(front: &[u8], block_bytes: u32) -> Result<Option<Self>> {
        if front.is_empty() {
            return Ok(None);
        }
        let mut spool = Self::new(block_bytes)?;
        spool.add(front, false)?;
        Ok(Some(spool))
    }

    /// Returns the file with all fragments, and its length.
    pub(super) fn into_file(self) -> (File, u64) {
        (self.file, self.len)
    }

    /// Adds a fragment, unless an existing one is equal or has the same end. Only if `may_split`
    /// may leading bytes be left out of it.
    pub(super) fn add(&mut self, bytes: &[u8], may_split: bool) -> Result<Fragment> {
        let block = self.block_bytes;
        let key = (xxh3_128(bytes), bytes.len());
        if let Some(&offset) = self.known.get(&key) {
            let mut there = vec![0; bytes.len()];
            self.file.read_exact_at(&mut there, offset).map_err(failed)?;
            if there == bytes {
                return Ok(Fragment { head_len: 0, offset });
            }
        }
        let end = bytes.len().checked_sub(SHARED_END_BLOCKS * block).map(|from| xxh3_128(&bytes[from..]));
        if let Some(known) = end.and_then(|end| self.ends.get(&end)) {
            let from = known.start.max(known.end.saturating_sub(bytes.len() as u64));
            let mut there = vec![0; (known.end - from) as usize];
            self.file.read_exact_at(&mut there, from).map_err(failed)?;
            let pairs = bytes.iter().rev().zip(there.iter().rev());
            let shared = pairs.take_while(|(here, there)| here == there).count();
            let mut head_len = (bytes.len() - shared).next_multiple_of(block);
            if head_len > 0 {
                // A part of a file is an extent, so it must not be longer than one.
                head_len = head_len.max(bytes.len().saturating_sub(MAX_EXTENT_BYTES as usize).next_multiple_of(block));
            }
            if head_len + SHARED_END_BLOCKS * block <= bytes.len() && (may_split || head_len == 0) {
                return Ok(Fragment { head_len, offset: known.end - (bytes.len() - head_len) as u64 });
            }
        }
        self.file.write_all_at(bytes, self.len).map_err(failed)?;
        let offset = self.len;
        self.len += bytes.len() as u64;
        self.known.insert(key, offset);
        if let Some(end) = end {
            self.ends.entry(end).or_insert(offset..self.len);
        }
        Ok(Fragment { head_len: 0, offset })
    }
}

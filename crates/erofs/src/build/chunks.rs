//! Plain files in chunks of equal length. Equal chunks are stored once, and chunks of zeros are
//! holes.
//!
//! A chunk takes whole blocks, and no tail is inline, so that a mount with DAX can map all of a
//! file in place. The last chunk of a file may be shorter, and zeros fill its last block. Only
//! chunks that equal it including this padding share it, because a mapping exposes the rest of the
//! block past a file's end, which must not be another file's data.

use std::borrow::Cow;
use std::ops::Range;

use super::blocks::Blocks;
use super::options::BuildOptions;
use super::segment::SEGMENT_BYTES;
use crate::error::{Error, Result};
use crate::format::NULL_ADDR;
use crate::zeros::is_zeros;

/// The huge page size of most machines. Chunks of at least this size are aligned to it in the
/// image, as in their file, because huge page mappings require it.
const HUGE_PAGE_BYTES: u32 = 2 << 20;

/// The longest chunk that consists of a hole. In bytes, its number of bits fits any Linux.
const MAX_HOLE_BYTES: u32 = 1 << 31;

/// The parameters for splitting files into chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunking {
    chunk_bytes: u32,
    block_bytes: u32,
    /// Long chunks begin at multiples of this many bytes in the image.
    aligned_bytes: u32,
}

impl Chunking {
    /// Returns the parameters if the options ask for chunks.
    pub(super) fn of(options: &BuildOptions) -> Option<Self> {
        let block_bytes = options.block_bytes;
        options.chunk_bytes.map(|chunk_bytes| Self { chunk_bytes, block_bytes, aligned_bytes: HUGE_PAGE_BYTES })
    }

    /// Returns the parameters for chunks of a block.
    pub(super) fn of_blocks(block_bytes: u32) -> Self {
        Self { chunk_bytes: block_bytes, block_bytes, aligned_bytes: block_bytes }
    }

    /// Returns the parameters with which the addresses of a file of `size` bytes and the chunks
    /// that overlap its `runs` of data take the fewest bytes.
    pub(super) fn fitting(size: u64, runs: &[Range<u64>], block_bytes: u32) -> Self {
        let longest = if runs.is_empty() { MAX_HOLE_BYTES } else { SEGMENT_BYTES as u32 };
        let of = |bits: u32| Self { chunk_bytes: 1 << bits, block_bytes, aligned_bytes: block_bytes };
        let all = (block_bytes.ilog2()..=longest.ilog2()).map(of);
        all.min_by_key(|chunking| chunking.cost_bytes(size, runs)).unwrap_or(of(block_bytes.ilog2()))
    }

    /// Returns the number of chunks of a file of `size` bytes.
    pub(super) fn count(self, size: u64) -> u64 {
        size.div_ceil(self.chunk_bytes.into())
    }

    /// Returns the bytes that the addresses of a file of `size` bytes and the chunks that overlap
    /// its `runs` take.
    pub(super) fn cost_bytes(self, size: u64, runs: &[Range<u64>]) -> u64 {
        let stored: u64 = self.whole(runs, size).iter().map(|run| run.end - run.start).sum();
        stored + 4 * self.count(size)
    }

    /// Returns the runs of whole chunks, up to the end of the file, that overlap `runs`.
    pub(super) fn whole(self, runs: &[Range<u64>], size: u64) -> Vec<Range<u64>> {
        let chunk_bytes = u64::from(self.chunk_bytes);
        let mut whole: Vec<Range<u64>> = Vec::new();
        for run in runs {
            let (start, end) = (run.start - run.start % chunk_bytes, run.end.next_multiple_of(chunk_bytes).min(size));
            match whole.last_mut() {
                Some(last) if start <= last.end => last.end = end,
                _ => whole.push(start..end),
            }
        }
        whole
    }

    pub(super) fn check(self) -> Result<()> {
        let Self { chunk_bytes, block_bytes, .. } = self;
        if !chunk_bytes.is_power_of_two() || chunk_bytes < block_bytes || u64::from(chunk_bytes) > SEGMENT_BYTES {
            let most = SEGMENT_BYTES >> 20;
            return Err(Error::Options(format!(
                "the chunk size must be a power of two from the block size to {most} MiB"
            )));
        }
        Ok(())
    }

    pub(super) fn chunk_bytes(self) -> u64 {
        self.chunk_bytes.into()
    }

    /// Returns the inode's field for the chunk size: log2 of its blocks.
    pub(super) fn format(self) -> u32 {
        self.blocks().trailing_zeros()
    }

    /// Returns the number of blocks in a chunk.
    pub(super) fn blocks(self) -> u32 {
        self.chunk_bytes / self.block_bytes
    }

    /// Adds the chunks of a segment to the file's addresses. The segment must consist of whole
    /// chunks or be the file's last.
    pub(super) fn add(self, segment: &[u8], blocks: &mut Blocks, addresses: &mut Vec<u32>) -> Result<()> {
        let unit = if self.chunk_bytes >= self.aligned_bytes { self.aligned_bytes / self.block_bytes } else { 1 };
        for chunk in segment.chunks(self.chunk_bytes as usize) {
            if is_zeros(chunk) {
                addresses.push(NULL_ADDR);
                continue;
            }
            let padded = chunk.len().next_multiple_of(self.block_bytes as usize);
            let mut chunk = Cow::Borrowed(chunk);
            if padded > chunk.len() {
                chunk.to_mut().resize(padded, 0);
            }
            addresses.push(blocks.add_chunk(&chunk, unit)?);
        }
        Ok(())
    }

    /// Adds the chunks of a segment of `len` zeros.
    pub(super) fn add_zeros(self, len: u64, addresses: &mut Vec<u32>) {
        let chunks = len.div_ceil(u64::from(self.chunk_bytes)) as usize;
        addresses.resize(addresses.len() + chunks, NULL_ADDR);
    }
}

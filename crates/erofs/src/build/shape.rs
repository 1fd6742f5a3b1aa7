//! How a file is mapped: by indexes of its logical clusters, by encoded extents, or by long chunks.
//!
//! Indexes and chunks of a block take 0.05 to 0.2 % of a file's length, and zeros without a hole as
//! much again. Files that are almost only zeros have another shape:
//!
//! ```text
//! compressed      encoded extents: a record for each cluster and each hole (Linux 6.15). The last
//!                 bytes are stored, because fsck.erofs 1.9 does not extract a hole at the end
//! uncompressed    chunks as long as it takes to keep their addresses and their padding small; if these
//!                 take much even so, encoded extents of plain blocks
//! without data    chunks of up to 2 GiB, all holes
//! ```
//!
//! The shape depends only on the content, not on which of its zeros are holes of the source.

use std::ops::Range;

use super::chunks::Chunking;
use super::content::Content;
use super::options::{BuildOptions, Compression, Fragments, Indexes};
use super::runs;
use super::segment::SEGMENT_BYTES;
use crate::error::{Error, Result};

/// Shorter files always have indexes, which every Linux reads. Their zeros take at most 4.5 MiB.
pub const LONG_FILE_BYTES: u64 = 1 << 30;

/// A long file has indexes unless at most one part in this many is data. With so little data, zeros
/// would take more than a tenth of the image, and reading the file twice costs little.
pub const LONG_FILE_DATA_PARTS: u64 = 16;

/// The bytes at the end of a file that are never a hole among encoded extents.
const END_BYTES: u64 = 4096;

/// Addresses and padding of chunks may take this much, or a sixteenth of the data. Every Linux that
/// mounts encoded extents mounts chunks too, but the reverse is not true.
const MOST_CHUNK_BYTES: u64 = 512 << 10;

/// The maximum number of chunk addresses in a file that is too long for chunks of a block.
const MOST_CHUNKS: u64 = 1 << 24;

/// The longest file: Linux has signed positions.
const MAX_BYTES: u64 = i64::MAX as u64;

/// The mapping of a file, with its runs of data if it has holes.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// Everything is stored. Uncompressed files may have chunks anyway.
    Whole,
    /// Encoded extents. Only these runs are stored.
    Extents(Vec<Range<u64>>),
    /// Chunks. Only those in these runs are stored, which consist of whole chunks.
    Chunks(Chunking, Vec<Range<u64>>),
}

impl Shape {
    /// Chooses the shape of a file of `size` bytes. Reads it until that is decided.
    pub(super) fn of(
        content: &Content,
        size: u64,
        compression: Option<Compression>,
        options: &BuildOptions,
    ) -> Result<Self> {
        let refuse = |what: &str| Err(Error::Source { path: content.name(), what: what.to_owned() });
        if size > MAX_BYTES {
            return refuse("it is longer than 2^63 bytes");
        }
        // Logical clusters and blocks have numbers of 32 bits.
        let is_indexable = size >> options.block_bits() < u64::from(u32::MAX);
        let is_compressed = compression.is_some();
        let may_have_holes = match options.indexes {
            Indexes::Auto => size >= LONG_FILE_BYTES,
            Indexes::Compact | Indexes::Full => !is_compressed && size >= LONG_FILE_BYTES,
            Indexes::Extents if is_compressed => !(options.fragments == Fragments::All && size <= SEGMENT_BYTES),
            Indexes::Extents => size >= LONG_FILE_BYTES,
        };
        let is_wanted = !is_indexable || (is_compressed && options.indexes == Indexes::Extents);
        let most = if is_wanted { size } else { size / LONG_FILE_DATA_PARTS };
        let found = if may_have_holes { runs::find(content, size, options.block_bytes, most)? } else { None };
        let too_long = || refuse("it is longer than 2^32 blocks");
        match found {
            None if is_indexable => Ok(Self::Whole),
            None => too_long(),
            Some(runs) if is_compressed && (!runs.is_empty() || !is_indexable) => Ok(Self::Extents(ending(runs, size))),
            Some(runs) => {
                let asked = Chunking::of(options).filter(|_| !is_compressed);
                let chunking = asked.unwrap_or_else(|| Chunking::fitting(size, &runs, options.block_bytes));
                let data_bytes: u64 = runs.iter().map(|run| run.end - run.start).sum();
                let more_bytes = chunking.cost_bytes(size, &runs).saturating_sub(data_bytes);
                let may_have_extents = matches!(options.indexes, Indexes::Auto | Indexes::Extents) && asked.is_none();
                if may_have_extents
                    && !runs.is_empty()
                    && more_bytes > MOST_CHUNK_BYTES.max(data_bytes / LONG_FILE_DATA_PARTS)
                {
                    return Ok(Self::Extents(ending(runs, size)));
                }
                if !is_indexable && chunking.count(size) > MOST_CHUNKS {
                    return too_long();
                }
                let runs = chunking.whole(&runs, size);
                Ok(Self::Chunks(chunking, runs))
            }
        }
    }

    /// Returns the shape of a file that has chunks of a block.
    pub(super) fn of_blocks(size: u64, block_bytes: u32) -> Self {
        Self::Chunks(Chunking::of_blocks(block_bytes), std::iter::once(0..size).collect())
    }

    /// Returns whether zeros between extents are holes.
    pub(super) fn has_holes(&self) -> bool {
        matches!(self, Self::Extents(_))
    }

    /// Returns the chunks of a file that has them because of its shape.
    pub(super) fn chunking(&self) -> Option<Chunking> {
        match self {
            Self::Chunks(chunking, _) => Some(*chunking),
            _ => None,
        }
    }

    /// Returns the runs that are stored; `None` if everything is.
    pub(super) fn runs(&self) -> Option<&[Range<u64>]> {
        match self {
            Self::Whole => None,
            Self::Extents(runs) | Self::Chunks(_, runs) => Some(runs),
        }
    }
}

/// Adds the end of a file of `size` bytes to its runs of data.
fn ending(mut runs: Vec<Range<u64>>, size: u64) -> Vec<Range<u64>> {
    let start = (size - 1) / END_BYTES * END_BYTES;
    match runs.last_mut() {
        Some(last) if last.end >= start => last.end = size,
        _ => runs.push(start..size),
    }
    runs
}

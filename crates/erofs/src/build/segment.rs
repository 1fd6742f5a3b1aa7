//! Compresses one segment of a file into physical clusters.
//!
//! ```text
//! until the segment is empty:
//!     fill a cluster with as much of the segment as fits (at most 4 MiB or 8 MiB of it)
//!     blocks := the number of blocks for the compressed bytes
//!     if that saves a block: a compressed extent, padded with zeros at the front
//!     else: plain extents of one block each, uncompressed: an eighth of a cluster, or a quarter of
//!         the incompressible run so far, if that is more; at most a cluster
//! ```
//!
//! Zeros at the end of a segment, except those in the last cluster with data, are left to the
//! writer. It joins them with those of the following segments and stores all of them as clusters of
//! equal length (`zero_clusters.rs`). Otherwise, each segment would end in a truncated cluster of
//! zeros. Long zeros between data are left to the writer as well, because compressing them takes time.
//!
//! Trying a cluster takes as long as compressing a whole one even if the result is discarded. So
//! the longer nothing compresses, the less often clusters are tried.
//!
//! Except for the segment's last, no extent has fewer bytes than a block, and segments start at
//! block boundaries. So at most one extent starts in any logical cluster, as the indexes require.
//! Where repeated content begins (`repeats.rs`), a new extent begins if possible: the previous
//! extent may be shortened so that it starts in an earlier block.

use std::ops::Range;

use pagefold_codec::cluster::{ClusterCodec, ClusterEncoder, ClusterFormat, Filled};

use super::options::{BuildOptions, Compression, Fragments};
use crate::error::{Error, Result};
use crate::zeros::is_zeros;

/// The size of a segment in bytes: long enough that the truncated cluster at its end costs little
/// (half a block on average), short enough that the segments in flight take bounded memory. A
/// multiple of every block size.
pub(crate) const SEGMENT_BYTES: u64 = 16 << 20;

/// The size of a segment for LZ4, in bytes. LZ4 is so fast that with longer segments, the writer
/// would wait for the last thread. Shorter segments cost 0.1 % of the size, as much as these
/// clusters gain over those of liblz4.
pub(crate) const FAST_SEGMENT_BYTES: u64 = 4 << 20;

/// The maximum content of a cluster of zeros, as in `mkfs.erofs`. Linux accepts up to 12 MiB.
pub(super) const MAX_ZEROS: usize = 8 << 20;

/// The maximum content of a cluster with data, of which a random read decodes half. Longer ones
/// save 0.1 %. LZ4 and DEFLATE use this limit for zeros too: their clusters of zeros already have
/// several blocks, so a higher limit saves none.
const MAX_CONTENT: usize = 4 << 20;

/// At the end of a run, recompression with more effort is tried if a block can be saved by
/// shrinking the recompressed bytes by at most 1/`SQUEEZED`.
const SQUEEZED: usize = 20;

/// The maximum size in bytes of the clusters to recompress.
const MOST_SQUEEZED: usize = 16 << 10;

/// Zeros of this length between data are left to the writer too. They take no time then, and at most
/// a block more than at the end of a cluster with data.
const LONG_ZEROS: usize = 2 << 20;

/// The zeros that are left to the writer start at a multiple of this size, so that there are few
/// different lengths. A multiple of every block size.
pub(super) const ZEROS_STEP: usize = 64 << 10;

/// A run of bytes that is stored as a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The number of bytes of the file.
    pub(crate) len: u32,
    /// The number of blocks.
    pub(crate) blocks: u32,
    pub(crate) compressed: bool,
    /// The address in the image that it is copied from; if `None`, it is the next of the segment's
    /// blocks.
    pub(crate) from: Option<u64>,
}

/// Returns how many pieces from the first on are contiguous in their source image or among their
/// segment's blocks.
pub(crate) fn side_by_side(pieces: &[Piece], block: usize) -> usize {
    let follows = |pair: &[Piece]| match (pair[0].from, pair[1].from) {
        (Some(from), Some(next)) => from + u64::from(pair[0].blocks) * block as u64 == next,
        (None, None) => true,
        _ => false,
    };
    pieces.windows(2).take_while(|pair| follows(pair)).count() + usize::from(!pieces.is_empty())
}

/// The end of a file, if it is not a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// A cluster for the place after the inode, and the number of bytes of the file in it.
    Inline { bytes: Vec<u8>, len: u32, compressed: bool },
    /// Bytes for the packed inode.
    Fragment(Vec<u8>),
}

/// A segment's clusters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segment {
    pub(crate) pieces: Vec<Piece>,
    /// The blocks of the pieces that are not copied, in sequence.
    pub(crate) blocks: Vec<u8>,
    /// The number of zeros after the pieces that no piece covers.
    pub(crate) zeros: u64,
    pub(crate) tail: Option<Tail>,
}

impl Segment {
    /// Returns a segment of these bytes, uncompressed, for which it uses the memory of `blocks`.
    pub(crate) fn plain(bytes: &[u8], block: usize, mut blocks: Vec<u8>) -> Self {
        blocks.clear();
        let mut segment = Self { blocks, ..Self::default() };
        segment.add_plain(bytes, block);
        segment
    }

    /// Returns the number of bytes of the file in the pieces.
    pub(crate) fn content_bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len as usize).sum()
    }

    /// Returns the content of the last piece, if that is shorter than a `block` and stored
    /// uncompressed among the blocks.
    pub(crate) fn plain_end(&self, block: usize) -> &[u8] {
        match self.pieces.last() {
            Some(piece) if !piece.compressed && piece.from.is_none() && (piece.len as usize) < block => {
                &self.blocks[self.blocks.len() - block..][..piece.len as usize]
            }
            _ => &[],
        }
    }

    /// Adds a cluster with `len` bytes of content. Returns `len`.
    fn add_cluster(&mut self, cluster: &[u8], len: usize, block: usize) -> usize {
        let blocks = cluster.len().div_ceil(block);
        self.pieces.push(Piece { len: len as u32, blocks: blocks as u32, compressed: true, from: None });
        self.blocks.resize(self.blocks.len() + blocks * block - cluster.len(), 0);
        self.blocks.extend_from_slice(cluster);
        len
    }

    /// Adds uncompressed bytes, one block per piece. Returns their number.
    fn add_plain(&mut self, bytes: &[u8], block: usize) -> usize {
        for plain in bytes.chunks(block) {
            self.pieces.push(Piece { len: plain.len() as u32, blocks: 1, compressed: false, from: None });
            self.blocks.extend_from_slice(plain);
            self.blocks.resize(self.blocks.len().next_multiple_of(block), 0);
        }
        bytes.len()
    }
}

/// The content that follows the bytes to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The end of the file.
    File,
    /// Another segment, which starts at a block boundary.
    Segment,
    /// An extent that begins anywhere in a block; no other extent may begin in that block.
    Extent,
}

/// A thread's compressor of segments.
pub(crate) struct Compressor {
    encoder: Box<dyn ClusterEncoder>,
    cluster: Vec<u8>,
    format: ClusterFormat,
}

impl Compressor {
    pub(crate) fn new(codec: ClusterCodec) -> Result<Self> {
        let encoder = codec.encoder().map_err(|error| Error::Options(error.to_string()))?;
        Ok(Self { encoder, cluster: Vec::new(), format: codec.format() })
    }

    /// Compresses `src`, the end of its file if `last`. Reuses the memory of `blocks`, whose
    /// contents are ignored. Extents begin at `cuts`, which must ascend, where the indexes allow
    /// it; from a cut on, they do not depend on anything before it.
    pub(crate) fn compress(
        &mut self,
        src: &[u8],
        cuts: &[u32],
        last: bool,
        options: &SegmentOptions,
        blocks: Vec<u8>,
    ) -> Segment {
        let end = if last { End::File } else { End::Segment };
        self.compress_stretch(src, 0, cuts, end, options, blocks)
    }

    /// Like [`compress`](Self::compress), in parts: zeros of [`LONG_ZEROS`] or more that are not at the
    /// end of the file are left to the writer.
    pub(crate) fn compress_parts(
        &mut self,
        src: &[u8],
        cuts: &[u32],
        last: bool,
        options: &SegmentOptions,
        mut blocks: Vec<u8>,
    ) -> Vec<Segment> {
        let (mut parts, mut from, mut cuts) = (Vec::new(), 0, cuts);
        for zeros in long_zeros(src, last) {
            let (before, after) = cuts.split_at(cuts.partition_point(|cut| (*cut as usize) < zeros.start));
            cuts = &after[after.partition_point(|cut| (*cut as usize) < zeros.end)..];
            let data = &src[..zeros.start];
            let blocks = std::mem::take(&mut blocks);
            let mut part = self.compress_stretch(data, from, before, End::Segment, options, blocks);
            part.zeros += zeros.len() as u64;
            parts.push(part);
            from = zeros.end;
        }
        if from < src.len() {
            let end = if last { End::File } else { End::Segment };
            parts.push(self.compress_stretch(src, from, cuts, end, options, blocks));
        }
        parts
    }

    /// Like [`compress`](Self::compress), for the bytes of `src` from `from` on; `src` is the front
    /// of a segment. If an extent would have to begin in the block in which the extent after `src`
    /// begins, the rest is left out.
    pub(crate) fn compress_stretch(
        &mut self,
        src: &[u8],
        from: usize,
        cuts: &[u32],
        end: End,
        options: &SegmentOptions,
        mut blocks: Vec<u8>,
    ) -> Segment {
        let block = options.block_bytes;
        blocks.clear();
        self.cluster.resize(options.pcluster_bytes, 0);
        let mut segment = Segment { blocks, ..Segment::default() };
        let zeros_from = if end == End::Segment { zeros_from(src) } else { src.len() };
        let mut at = from;
        let mut cuts = cuts.iter().map(|cut| *cut as usize).peekable();
        // From one cut to the next, or to the end.
        while at < src.len() {
            self.encoder.restart();
            let mut plain_run = 0;
            let run = segment.pieces.len();
            while at < src.len() {
                if end == End::Extent && at / block == src.len() / block {
                    return segment;
                }
                if at >= zeros_from && at.is_multiple_of(ZEROS_STEP) {
                    segment.zeros = (src.len() - at) as u64;
                    return segment;
                }
                // At most one extent starts in a logical cluster.
                while cuts.next_if(|cut| *cut < src.len() && cut / block == at / block && *cut != at).is_some() {}
                if cuts.next_if(|cut| *cut == at).is_some() {
                    break;
                }
                let stop = cuts.peek().map_or(src.len(), |cut| *cut);
                let rest = &src[at..stop];
                let ends_file = end == End::File && stop == src.len();
                let is_cut = end == End::Extent || stop < src.len();
                let mut filled = self.fill(rest, at, is_cut, ends_file, options);
                if let Some(end) = filled.map(|filled| at + filled.consumed)
                    && end > zeros_from
                    && end - end % ZEROS_STEP > at
                    && !end.is_multiple_of(ZEROS_STEP)
                {
                    filled = self.encoder.fill(&rest[..end - end % ZEROS_STEP - at], &mut self.cluster);
                }
                let takes_all = filled.map_or(rest.len() <= block, |filled| filled.consumed == rest.len());
                if ends_file
                    && takes_all
                    && let Some(tail) = tail(rest, filled.map(|filled| &self.cluster[..filled.written]), options)
                {
                    segment.tail = Some(tail);
                    return segment;
                }
                if takes_all && self.squeeze(&mut segment, run, &src[..stop], at, filled, options) {
                    at = stop;
                    continue;
                }
                at += match filled {
                    Some(filled) if filled.written.next_multiple_of(block) < filled.consumed => {
                        plain_run = 0;
                        segment.add_cluster(&self.cluster[..filled.written], filled.consumed, block)
                    }
                    _ => {
                        let most = self.cluster.len().max(block);
                        let step = (plain_run / 4).max(most / 8).clamp(block, most);
                        let mut len = rest.len().min(step - step % block);
                        if len == rest.len() && is_cut {
                            // If the last extent began in the cut's block, no extent could begin at
                            // the cut.
                            let last_start = (len - 1) / block * block;
                            if (at + last_start) / block == stop / block {
                                len = last_start;
                            }
                        }
                        plain_run += len;
                        segment.add_plain(&rest[..len], block)
                    }
                };
            }
        }
        segment
    }

    /// Fills the cluster from the front of `rest`, which begins at `at` in the segment and extends
    /// to a `cut` or to the segment's end.
    fn fill(&mut self, rest: &[u8], at: usize, cut: bool, ends_file: bool, options: &SegmentOptions) -> Option<Filled> {
        let block = options.block_bytes;
        if rest.len() <= block && !(ends_file && options.ztailpacking) {
            return None;
        }
        let most = rest.len().min(MAX_CONTENT);
        let filled = self.fill_blocks(&rest[..most], most < rest.len(), block)?;
        let cut_block = (at + rest.len()) / block;
        if cut && filled.consumed < rest.len() && (at + filled.consumed) / block == cut_block {
            // The next extent would begin in the block of the cut, where another begins. End this
            // one so that the next begins before that block.
            let before = cut_block * block - 1;
            if before / block > at / block {
                return self.encoder.fill(&rest[..before - at], &mut self.cluster);
            }
        }
        Some(filled)
    }

    /// Fills the cluster from the front of `src`. If `more` content follows, and all of `src` takes
    /// less than the cluster, the cluster is cut to whole blocks, if this gives more content per
    /// block.
    fn fill_blocks(&mut self, src: &[u8], more: bool, block: usize) -> Option<Filled> {
        let filled = self.encoder.fill(src, &mut self.cluster)?;
        let whole = filled.written / block;
        if !more || filled.consumed < src.len() || whole == 0 || filled.written == whole * block {
            return Some(filled);
        }
        let fewer = self.encoder.fill(src, &mut self.cluster[..whole * block]);
        if fewer.is_some_and(|fewer| fewer.consumed * (whole + 1) > filled.consumed * whole) {
            return fewer;
        }
        self.encoder.fill(src, &mut self.cluster)
    }

    /// Tries to store the end of `src` in one block less than with a last cluster of `filled`,
    /// using more effort. Recompresses from `at` on, or from the start of one of the last clusters
    /// of the segment's `run`, if the saving is within reach. Returns whether it succeeded.
    fn squeeze(
        &mut self,
        segment: &mut Segment,
        run: usize,
        src: &[u8],
        at: usize,
        filled: Option<Filled>,
        options: &SegmentOptions,
    ) -> bool {
        let (block, cluster) = (options.block_bytes, options.pcluster_bytes);
        let rest = src.len() - at;
        let before = segment.pieces[run..].iter().rev();
        let before = before.take_while(|piece| piece.compressed && piece.blocks as usize * block == cluster);
        // In compressed bytes.
        let last = match (filled, before.clone().next()) {
            (Some(filled), _) => filled.written,
            (None, Some(piece)) => rest * cluster / piece.len as usize,
            (None, None) => return false,
        };
        let blocks = last.div_ceil(block).max(1);
        let over = last - (blocks - 1) * block;
        let Some(others) = MOST_SQUEEZED.checked_sub(last) else { return false };
        let mut counts = usize::from(blocks == 1)..=before.count().min(others / cluster);
        let Some(clusters) = counts.find(|count| over * SQUEEZED <= count * cluster + last) else { return false };
        let kept = segment.pieces.len() - clusters;
        let mut from = at - segment.pieces[kept..].iter().map(|piece| piece.len as usize).sum::<usize>();
        let mut room = (clusters * cluster / block + blocks - 1) * block;
        let mut squeezed = Segment::default();
        let mut dst = vec![0; cluster.min(room)];
        while from < src.len() {
            let bytes = cluster.min(room);
            let Some(filled) = self.encoder.fill_harder(&src[from..], &mut dst[..bytes]) else { return false };
            let used = filled.written.next_multiple_of(block);
            // Each must contain more than a block, so that the next begins in another block.
            if used >= filled.consumed {
                return false;
            }
            room -= used;
            from += squeezed.add_cluster(&dst[..filled.written], filled.consumed, block);
        }
        segment.pieces.truncate(kept);
        segment.blocks.truncate(segment.blocks.len() - clusters * cluster);
        segment.pieces.append(&mut squeezed.pieces);
        segment.blocks.append(&mut squeezed.blocks);
        true
    }

    /// Compresses one cluster from the front of `zeros`. If `more` follow, the cluster can be
    /// repeated: it has whole blocks, and its content is rounded so that there are few possible
    /// lengths of the rest.
    pub(super) fn compress_zeros(&mut self, zeros: &[u8], more: bool, options: &SegmentOptions) -> Segment {
        let block = options.block_bytes;
        self.cluster.resize(options.pcluster_bytes, 0);
        self.encoder.restart();
        let most = zeros.len().min(match self.format {
            ClusterFormat::Lz4 | ClusterFormat::Deflate => MAX_CONTENT,
            ClusterFormat::MicroLzma | ClusterFormat::Zstd => MAX_ZEROS,
        });
        let mut filled = self.fill_blocks(&zeros[..most], more || most < zeros.len(), block);
        if let Some(Filled { consumed, .. }) = filled
            && more
            && consumed < zeros.len()
            && let Some(step) = (consumed / 64).checked_ilog2()
        {
            let round = consumed - consumed % (1 << step).clamp(block, ZEROS_STEP);
            // If the next LZ4 extent begins within the same block, Linux knows the extent's length.
            // Otherwise, it decodes piecewise and copies the end of a long match byte by byte.
            let round = round - usize::from(self.format == ClusterFormat::Lz4);
            filled = self.encoder.fill(&zeros[..round], &mut self.cluster);
        }
        let mut segment = Segment::default();
        match filled {
            Some(filled) if filled.written.next_multiple_of(block) < filled.consumed => {
                segment.add_cluster(&self.cluster[..filled.written], filled.consumed, block)
            }
            _ => segment.add_plain(&zeros[..zeros.len().min(block)], block),
        };
        segment
    }
}

/// Returns the ranges of [`LONG_ZEROS`] or more, in whole [`ZEROS_STEP`]s, except for one at the end of
/// the file.
fn long_zeros(src: &[u8], last: bool) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (at, step) in (0..).step_by(ZEROS_STEP).zip(src.chunks_exact(ZEROS_STEP)) {
        match found.last_mut() {
            _ if !is_zeros(step) => {}
            Some(zeros) if zeros.end == at => zeros.end += ZEROS_STEP,
            _ => found.push(at..at + ZEROS_STEP),
        }
    }
    found.retain(|zeros| zeros.len() >= LONG_ZEROS && !(last && zeros.end + ZEROS_STEP > src.len()));
    found
}

/// Returns where the zeros at the end of `src` begin, rounded up to a multiple of [`ZEROS_STEP`],
/// or the end.
fn zeros_from(src: &[u8]) -> usize {
    let mut from = src.len();
    while from > 0 {
        let before = (from - 1) / ZEROS_STEP * ZEROS_STEP;
        if !is_zeros(&src[before..from]) {
            break;
        }
        from = before;
    }
    from
}

/// The build options that affect segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentOptions {
    pub(crate) block_bytes: usize,
    /// The maximum size of a cluster in bytes.
    pub(crate) pcluster_bytes: usize,
    pub(crate) ztailpacking: bool,
    pub(crate) fragments: bool,
}

impl SegmentOptions {
    pub(crate) fn new(options: &BuildOptions, compression: Compression, packable: bool) -> Self {
        Self {
            block_bytes: options.block_bytes as usize,
            pcluster_bytes: compression.pcluster_bytes as usize,
            ztailpacking: packable && options.ztailpacking,
            fragments: packable && options.fragments != Fragments::Off,
        }
    }
}

/// Returns the packed end of a file that fits into one cluster: inline if it fits, otherwise as a
/// fragment if the options permit. Returns `None` if it is not packed.
fn tail(rest: &[u8], cluster: Option<&[u8]>, options: &SegmentOptions) -> Option<Tail> {
    let (bytes, compressed) = match cluster {
        Some(cluster) => (cluster, true),
        None => (rest, false),
    };
    // The block also contains the inode and the indexes.
    let room = options.block_bytes - (64 + 8 + 8 + 8);
    if options.ztailpacking && bytes.len() <= room {
        return Some(Tail::Inline { bytes: bytes.to_vec(), len: rest.len() as u32, compressed });
    }
    options.fragments.then(|| Tail::Fragment(rest.to_vec()))
}

#[cfg(test)]
mod tests {
    use pagefold_codec::cluster::{ClusterDecoder, DecodeLimits, Portion};
    use proptest::prelude::*;

    use super::*;

    /// Distinct lines that LZ4 compresses by half.
    fn text(len: usize) -> Vec<u8> {
        let line = |n: u32| format!("{:x} of {} were here\n", n.wrapping_mul(0x9E37_79B1), n % 61).into_bytes();
        (0..).flat_map(line).take(len).collect()
    }

    fn content(segment: &Segment, block: usize) -> Vec<u8> {
        let limits = DecodeLimits { dict_bytes: 0, max_content_bytes: 1 << 20 };
        let (mut content, mut at) = (Vec::new(), 0);
        for piece in &segment.pieces {
            let stored = &segment.blocks[at..at + piece.blocks as usize * block];
            at += stored.len();
            let mut bytes = stored[..(piece.len as usize).min(stored.len())].to_vec();
            if piece.compressed {
                let from = stored.iter().position(|byte| *byte != 0).unwrap();
                bytes.resize(piece.len as usize, 0);
                let mut decoder = ClusterDecoder::default();
                decoder.decode(ClusterFormat::Lz4, &stored[from..], &mut bytes, Portion::Whole, limits).unwrap();
            }
            content.extend_from_slice(&bytes);
        }
        content
    }

    #[test]
    fn an_end_that_is_nearly_a_block_shorter_is_and_holds_the_same() {
        for pcluster_bytes in [4096, 65536] {
            let options = SegmentOptions { block_bytes: 4096, pcluster_bytes, ztailpacking: false, fragments: false };
            let mut compressor = Compressor::new(ClusterCodec::Lz4).unwrap();
            let (mut fewer, mut encoder) = (0, ClusterCodec::Lz4.encoder().unwrap());
            for len in (4100..40_000).step_by(97) {
                let src = text(len);
                let segment = compressor.compress(&src, &[], true, &options, Vec::new());
                assert!(content(&segment, 4096) == src, "{len} in {pcluster_bytes}");
                encoder.restart();
                let (mut at, mut blocks, mut cluster) = (0, 0, vec![0; pcluster_bytes]);
                while at < len {
                    let filled = encoder.fill(&src[at..], &mut cluster).filter(|filled| filled.consumed > 4096);
                    let (consumed, written) = filled.map_or((4096, 4096), |filled| (filled.consumed, filled.written));
                    (at, blocks) = (at + consumed, blocks + written.div_ceil(4096));
                }
                let squeezed = segment.blocks.len() / 4096;
                assert!(squeezed <= blocks, "{len} in {pcluster_bytes}");
                fewer += blocks - squeezed;
            }
            assert!((5..100).contains(&fewer), "{fewer} of 371 in {pcluster_bytes}");
        }
    }

    proptest! {
        #[test]
        fn pieces_cover_the_segment_and_start_in_different_blocks(
            runs in proptest::collection::vec((0usize..9000, any::<bool>()), 0..20),
            pcluster in prop_oneof![Just(4096usize), Just(65536)],
            cuts in proptest::collection::btree_set(0u32..60_000, 0..6),
            last in any::<bool>(),
            ztailpacking in any::<bool>(),
        ) {
            let mut src = Vec::new();
            for (number, (len, noisy)) in runs.into_iter().enumerate() {
                let mut state = number as u32 + 1;
                src.extend((0..len).map(|at| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    if noisy { (state >> 24) as u8 } else { (at % 7) as u8 }
                }));
            }
            let options =
                SegmentOptions { block_bytes: 4096, pcluster_bytes: pcluster, ztailpacking, fragments: false };
            let mut compressor = Compressor::new(ClusterCodec::Lz4).unwrap();
            let cuts: Vec<_> = cuts.into_iter().filter(|cut| *cut as usize <= src.len()).collect();
            let segment = compressor.compress(&src, &cuts, last, &options, vec![1; 77]);
            let mut at = 0u64;
            let mut last_cluster = None;
            let tail = match &segment.tail {
                Some(Tail::Inline { len, .. }) => Some(*len),
                _ => None,
            };
            for len in segment.pieces.iter().map(|piece| piece.len).chain(tail) {
                prop_assert!(last_cluster.is_none_or(|before| before < at / 4096));
                last_cluster = Some(at / 4096);
                at += u64::from(len);
            }
            prop_assert_eq!(at, src.len() as u64);
            let blocks: u32 = segment.pieces.iter().map(|piece| piece.blocks).sum();
            prop_assert_eq!(segment.blocks.len(), blocks as usize * 4096);
        }
    }
}

//! Clusters of another image, copied as they are.
//!
//! ```text
//! extents := those of the base that begin in the segment
//! an extent is kept if its cluster can be one of the new image, all of it lies in the segment, and nothing of it has changed
//! for each run of extents:
//!     kept        their clusters are copied
//!     others      their content is compressed anew, up to the next extent that is kept
//! ```
//!
//! One extent begins in a block. What is compressed anew in front of a kept extent must not need one that begins in that one's block;
//! if it would, the kept extent is compressed too. At the segment's end, which is a block's boundary, it never would.
//!
//! Whether an extent has changed depends on its content alone, so that equal disks above a base become equal images.

use std::io;
use std::ops::Range;

use pagefold_codec::cluster::{ClusterCodec, ClusterFormat};

use super::overlay::{Change, Overlay};
use super::segment::{Compressor, End, Piece, Segment, SegmentOptions};
use super::{BuildOptions, Compression};
use crate::error::Result;
use crate::file::File;
use crate::format::incompat;
use crate::zmap::{Cursor, Extent, Place};

/// A segment of an overlay.
pub(super) struct Stretch {
    pub(super) range: Range<u64>,
    pub(super) ends_file: bool,
}

/// Memory for a segment, which may hold anything.
pub(super) struct Room<'a> {
    pub(super) input: &'a mut Vec<u8>,
    pub(super) blocks: Vec<u8>,
}

/// A part of a segment that is stored in one way.
struct Part {
    range: Range<u64>,
    /// Where its cluster lies, if it is kept.
    kept: Option<Kept>,
}

#[derive(Clone, Copy)]
struct Kept {
    pa: u64,
    stored_bytes: u32,
    compressed: bool,
}

/// Options that make an image like the one that has `file`: its block, its codec with the usual level, its longest cluster.
///
/// # Errors
/// The image does not say where the file's content lies.
pub(super) fn options_like(file: &File) -> Result<BuildOptions> {
    let data = file.data();
    let superblock = data.image.superblock();
    let block_bytes = superblock.block_bytes() as u32;
    let like = BuildOptions { block_bytes, codec: None, pcluster_bytes: block_bytes, ..BuildOptions::default() };
    let Some(map) = &data.map else { return Ok(like) };
    let (mut format, mut longest) = (None, block_bytes);
    let (mut cursor, mut at) = (Cursor::default(), 0);
    while at < data.inode.size {
        let extent = map.extent_at(&data.image, &mut cursor, at)?;
        if let Place::Encoded { plen, format: found, .. } = extent.place {
            format.get_or_insert(found);
            longest = longest.max(plen);
        }
        at = extent.end();
    }
    let codec = match format.unwrap_or(ClusterFormat::Lz4) {
        ClusterFormat::Lz4 => ClusterCodec::Lz4,
        ClusterFormat::MicroLzma => ClusterCodec::MicroLzma { preset: 6, dict_bytes: superblock.lzma_dict_bytes },
        ClusterFormat::Deflate => ClusterCodec::Deflate(6),
        ClusterFormat::Zstd => ClusterCodec::Zstd { level: 3, window_log: superblock.zstd_window_log },
    };
    Ok(BuildOptions {
        codec: Some(codec),
        pcluster_bytes: longest.next_multiple_of(block_bytes),
        dedupe: superblock.has(incompat::FRAGMENTS),
        ..like
    })
}

/// Stores a segment of `overlay`, which lies above `base`.
pub(super) fn segment(
    overlay: &Overlay,
    base: &File,
    stretch: Stretch,
    compression: Compression,
    options: &BuildOptions,
    compressor: &mut Compressor,
    Room { input, blocks }: Room<'_>,
) -> io::Result<Segment> {
    let parts = parts(overlay, base, &stretch.range, compression, options).map_err(io::Error::other)?;
    let Range { start, end } = stretch.range;
    let segment_options = SegmentOptions::new(options, compression, false);
    let block = u64::from(options.block_bytes);
    input.resize((end - start) as usize, 0);
    let mut segment = Segment { blocks, ..Segment::default() };
    segment.blocks.clear();
    let mut number = 0;
    while let Some(part) = parts.get(number) {
        let next = parts[number..].iter().position(|other| other.kept.is_some() != part.kept.is_some());
        let mut next = next.map_or(parts.len(), |count| number + count);
        if part.kept.is_some() {
            copy(base, &parts[number..next], block, &mut segment).map_err(io::Error::other)?;
            number = next;
            continue;
        }
        let from = (part.range.start - start) as usize;
        let mut read_to = from;
        loop {
            let to = (parts[next - 1].range.end - start) as usize;
            input[read_to..to].fill(0);
            overlay.read_to(start + read_to as u64, &mut input[read_to..to])?;
            read_to = to;
            let how = match () {
                () if start + to as u64 != end => End::Extent,
                () if stretch.ends_file => End::File,
                () => End::Segment,
            };
            let mut made = compressor.compress_stretch(&input[..to], from, &[], how, &segment_options, Vec::new());
            if (made.content_bytes() as u64 + made.zeros) as usize == to - from {
                segment.pieces.append(&mut made.pieces);
                segment.blocks.append(&mut made.blocks);
                segment.zeros = made.zeros;
                break;
            }
            // The next is kept, and what follows it may not be.
            next += 1;
            while parts.get(next).is_some_and(|part| part.kept.is_none()) {
                next += 1;
            }
        }
        number = next;
    }
    Ok(segment)
}

/// What the segment is made of.
fn parts(
    overlay: &Overlay,
    base: &File,
    segment: &Range<u64>,
    compression: Compression,
    options: &BuildOptions,
) -> Result<Vec<Part>> {
    let data = base.data();
    let block = u64::from(options.block_bytes);
    let (mut parts, mut cursor) = (Vec::<Part>::new(), Cursor::default());
    let mut at = segment.start;
    while at < segment.end {
        let extent = match &data.map {
            Some(map) if at < data.inode.size => map.extent_at(&data.image, &mut cursor, at)?,
            _ => Extent { start: at, len: segment.end - at, place: Place::Hole },
        };
        let range = at..extent.end().min(segment.end);
        let is_whole = extent.start == at && extent.end() <= segment.end;
        let mut kept = if is_whole { place(base, &extent, compression, options) } else { None };
        // What no index could say: two begin in one block.
        if let Some(before) = parts.last_mut()
            && before.range.start / block == at / block
        {
            before.kept = None;
            kept = None;
        }
        let kept = kept.filter(|_| is_unchanged(overlay, base, &range));
        at = range.end;
        parts.push(Part { range, kept });
    }
    Ok(parts)
}

/// Where the cluster of an extent lies, if it can be copied.
fn place(base: &File, extent: &Extent, compression: Compression, options: &BuildOptions) -> Option<Kept> {
    let data = base.data();
    let superblock = data.image.superblock();
    let block = options.block_bytes;
    let in_blocks = |pa: u64, plen: u32| pa.is_multiple_of(block.into()) && plen.is_multiple_of(block);
    if superblock.block_bytes() != u64::from(block) || !superblock.has(incompat::ZERO_PADDING) {
        return None;
    }
    match extent.place {
        Place::Plain { pa, plen, interlaced: false } if plen == block && in_blocks(pa, plen) => {
            Some(Kept { pa, stored_bytes: plen, compressed: false })
        }
        Place::Encoded { pa, plen, format, partial: false } => {
            let decodes = match compression.codec {
                ClusterCodec::MicroLzma { dict_bytes, .. } => superblock.lzma_dict_bytes <= dict_bytes,
                ClusterCodec::Zstd { window_log, .. } => superblock.zstd_window_log <= window_log,
                ClusterCodec::Lz4 | ClusterCodec::Lz4Hc(_) | ClusterCodec::Deflate(_) => true,
            };
            // Clusters longer than what they hold would make the image as large as its base says.
            let gains = u64::from(plen) < extent.len && plen <= compression.pcluster_bytes;
            let fits = format == compression.codec.format() && decodes && gains;
            (fits && in_blocks(pa, plen)).then_some(Kept { pa, stored_bytes: plen, compressed: true })
        }
        _ => None,
    }
}

/// Whether a range holds what the base has there.
fn is_unchanged(overlay: &Overlay, base: &File, range: &Range<u64>) -> bool {
    let mut changes = overlay.changes(range.clone()).peekable();
    if changes.peek().is_none() {
        return range.end <= overlay.size();
    }
    let len = (range.end - range.start) as usize;
    let mut below = vec![0; len];
    // What cannot be read is told where it is needed.
    if !base.data().read_at(&mut below, range.start).is_ok_and(|read| read == len) {
        return false;
    }
    let mut part = Vec::new();
    changes.all(|change: &Change| {
        let (from, to) = (change.at.max(range.start), (change.at + change.len).min(range.end));
        let known = &below[(from - range.start) as usize..(to - range.start) as usize];
        overlay.read(from, known.len(), &mut part).is_ok() && part == known
    })
}

/// Copies the clusters of parts that are kept.
fn copy(base: &File, parts: &[Part], block: u64, segment: &mut Segment) -> Result<()> {
    let image = &base.data().image;
    let mut clusters = parts.iter().filter_map(|part| Some((part, part.kept?))).peekable();
    while let Some((part, first)) = clusters.next() {
        let piece = |part: &Part, kept: Kept| Piece {
            len: (part.range.end - part.range.start) as u32,
            blocks: kept.stored_bytes / block as u32,
            compressed: kept.compressed,
        };
        segment.pieces.push(piece(part, first));
        // Those that lie side by side are read together.
        let mut stored = u64::from(first.stored_bytes);
        while let Some((part, kept)) = clusters.next_if(|(_, kept)| kept.pa == first.pa + stored) {
            segment.pieces.push(piece(part, kept));
            stored += u64::from(kept.stored_bytes);
        }
        let at = segment.blocks.len();
        segment.blocks.resize(at + stored as usize, 0);
        image.read_data(&mut segment.blocks[at..], first.pa)?;
    }
    Ok(())
}

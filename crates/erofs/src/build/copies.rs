//! Verbatim copies of another image's clusters.
//!
//! ```text
//! extents := those of the base that begin in the segment
//! an extent is kept if its cluster is valid in the new image, all of it is in the segment, and its
//!     content has not changed
//! for each run of extents:
//!     kept        their clusters are copied
//!     others      their content is recompressed, up to the next kept extent
//! ```
//!
//! At most one extent may begin in a block. So if recompressed content before a kept extent needed
//! an extent that begins in the same block, the kept extent is recompressed too. This cannot happen
//! at the segment's end, which is a block boundary.
//!
//! Whether an extent has changed depends only on its content, so that equal disks above a base
//! become equal images.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::{fs, io};

use pagefold_codec::cluster::ClusterCodec;
use rustix::fs::copy_file_range;
use rustix::io::Errno;

use super::base::OverlayBase;
use super::options::{BuildOptions, Compression};
use super::overlay::Overlay;
use super::segment::{Compressor, End, Piece, Segment, SegmentOptions};
use crate::error::{Error, Result};
use crate::format::{Extent, Place};

/// The range of an overlay's segment.
pub(super) struct Stretch {
    pub(super) range: Range<u64>,
    pub(super) ends_file: bool,
}

/// Buffers for a segment, with arbitrary contents.
pub(super) struct Room<'a> {
    pub(super) input: &'a mut Vec<u8>,
    pub(super) blocks: Vec<u8>,
}

/// A part of a segment that is either kept or recompressed.
struct SegmentPart {
    range: Range<u64>,
    /// The location of its cluster, if it is kept.
    kept: Option<Kept>,
    /// Whether the segment's input contains all of its content.
    is_read: bool,
}

#[derive(Clone, Copy)]
struct Kept {
    pa: u64,
    stored_bytes: u32,
    compressed: bool,
}

/// Stores a segment of `overlay` above `base`.
pub(super) fn segment(
    overlay: &Overlay,
    base: &dyn OverlayBase,
    stretch: Stretch,
    compression: Compression,
    options: &BuildOptions,
    compressor: &mut Compressor,
    Room { input, blocks }: Room<'_>,
) -> io::Result<Segment> {
    let Range { start, end } = stretch.range;
    let len = (end - start) as usize;
    if input.len() < len {
        // A fresh allocation faults in only the pages with changes.
        *input = vec![0; len];
    }
    let input = &mut input[..len];
    overlay.read_changes(start, input)?;
    let parts = parts(overlay, base, &stretch.range, compression, options, input).map_err(io::Error::other)?;
    let segment_options = SegmentOptions::new(options, compression, false);
    let block = u64::from(options.block_bytes);
    let mut segment = Segment { blocks, ..Segment::default() };
    segment.blocks.clear();
    let mut number = 0;
    while let Some(part) = parts.get(number) {
        let next = parts[number..].iter().position(|other| other.kept.is_some() != part.kept.is_some());
        let mut next = next.map_or(parts.len(), |count| number + count);
        if part.kept.is_some() {
            keep(&parts[number..next], block, &mut segment);
            number = next;
            continue;
        }
        let from = (part.range.start - start) as usize;
        let mut read = number;
        loop {
            let to = (parts[next - 1].range.end - start) as usize;
            read_parts(overlay, &parts[read..next], start, input)?;
            read = next;
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
            // The next part is kept; later parts may not be.
            next += 1;
            while parts.get(next).is_some_and(|part| part.kept.is_none()) {
                next += 1;
            }
        }
        number = next;
    }
    Ok(segment)
}

/// Splits a segment into parts. `input` contains the changes; on return, it also contains the
/// complete content of parts that could have been kept but changed.
fn parts(
    overlay: &Overlay,
    base: &dyn OverlayBase,
    segment: &Range<u64>,
    compression: Compression,
    options: &BuildOptions,
    input: &mut [u8],
) -> Result<Vec<SegmentPart>> {
    let block = u64::from(options.block_bytes);
    let (mut parts, mut extents, mut below) =
        (Vec::<SegmentPart>::new(), base.mapped_extents(segment.clone()), Vec::new());
    let mut at = segment.start;
    while at < segment.end {
        let behind = Extent { start: at, len: segment.end - at, place: Place::Hole };
        let extent = extents.next().transpose()?.unwrap_or(behind);
        let range = at..extent.end().min(segment.end);
        let is_whole = extent.start == at && extent.end() <= segment.end;
        let mut kept = if is_whole { place(base, &extent, compression, options) } else { None };
        // Two extents begin in one block, which no index can express.
        if let Some(before) = parts.last_mut()
            && before.range.start / block == at / block
        {
            before.kept = None;
            kept = None;
        }
        let content = &mut input[(range.start - segment.start) as usize..(range.end - segment.start) as usize];
        let look = if kept.is_some() { look(overlay, base, &range, content, &mut below) } else { Look::Unread };
        at = range.end;
        parts.push(SegmentPart {
            range,
            kept: kept.filter(|_| look == Look::Unchanged),
            is_read: look == Look::Changed,
        });
    }
    Ok(parts)
}

/// Returns the location of an extent's cluster if it can be copied.
fn place(base: &dyn OverlayBase, extent: &Extent, compression: Compression, options: &BuildOptions) -> Option<Kept> {
    let image = base.base_image();
    let block = options.block_bytes;
    let in_blocks = |pa: u64, plen: u32| pa.is_multiple_of(block.into()) && plen.is_multiple_of(block);
    if image.block_bytes != u64::from(block) || !image.is_zero_padded {
        return None;
    }
    match extent.place {
        Place::Plain { pa, plen, interlaced: false } if plen == block && in_blocks(pa, plen) => {
            Some(Kept { pa, stored_bytes: plen, compressed: false })
        }
        Place::Encoded { pa, plen, format, partial: false } => {
            let decodes = match compression.codec {
                ClusterCodec::MicroLzma { dict_bytes, .. } => image.lzma_dict_bytes <= dict_bytes,
                ClusterCodec::Zstd { window_log, .. } => image.zstd_window_log <= window_log,
                ClusterCodec::Lz4 | ClusterCodec::Lz4Hc(_) | ClusterCodec::Deflate(_) => true,
            };
            // Clusters at least as long as their content could make the image as large as the base
            // claims.
            let gains = u64::from(plen) < extent.len && plen <= compression.pcluster_bytes;
            let fits = format == compression.codec.format() && decodes && gains;
            (fits && in_blocks(pa, plen)).then_some(Kept { pa, stored_bytes: plen, compressed: true })
        }
        _ => None,
    }
}

/// The result of comparing a range with the base.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// The range has the base's content.
    Unchanged,
    /// It differs, and all of its content was read.
    Changed,
    /// Not all of its content was read.
    Unread,
}

/// Compares a range with the base. `content` contains the changes; if they differ from the base, it
/// contains the whole range on return.
fn look(
    overlay: &Overlay,
    base: &dyn OverlayBase,
    range: &Range<u64>,
    content: &mut [u8],
    below: &mut Vec<u8>,
) -> Look {
    let mut changes = overlay.changes(range.clone()).peekable();
    if changes.peek().is_none() {
        return Look::Unchanged;
    }
    below.resize(content.len(), 0);
    // Read errors are reported where the data is needed.
    if !base.read_below(below, range.start).is_ok_and(|read| read == content.len()) {
        return Look::Unread;
    }
    let mut is_changed = false;
    for change in changes {
        let from = change.at.max(range.start) - range.start;
        let to = (change.at + change.len).min(range.end) - range.start;
        let (before, now) = (&mut below[from as usize..to as usize], &content[from as usize..to as usize]);
        if before != now {
            before.copy_from_slice(now);
            is_changed = true;
        }
    }
    if !is_changed {
        return Look::Unchanged;
    }
    content.copy_from_slice(below);
    Look::Changed
}

/// Reads content that is not in `input` yet. The segment begins at `start`.
fn read_parts(overlay: &Overlay, parts: &[SegmentPart], start: u64, input: &mut [u8]) -> io::Result<()> {
    for unread in parts.chunk_by(|one, next| one.is_read == next.is_read).filter(|parts| !parts[0].is_read) {
        let (from, to) = (unread[0].range.start, unread[unread.len() - 1].range.end);
        overlay.read_below(from, &mut input[(from - start) as usize..(to - start) as usize])?;
    }
    Ok(())
}

/// Adds the clusters of kept parts.
fn keep(parts: &[SegmentPart], block: u64, segment: &mut Segment) {
    segment.pieces.extend(parts.iter().filter_map(|part| {
        let kept = part.kept?;
        Some(Piece {
            len: (part.range.end - part.range.start) as u32,
            blocks: kept.stored_bytes / block as u32,
            compressed: kept.compressed,
            from: Some(kept.pa),
        })
    }));
}

/// Bytes that are read and written together if the system cannot copy.
const TRANSFER_BYTES: u64 = 256 << 10;

/// Copies `len` bytes at address `from` of a base's image to `at` in `out`. If both are in one file
/// system that shares blocks, no data is copied.
pub(super) fn transfer(base: &dyn OverlayBase, from: u64, len: u64, out: &fs::File, at: u64) -> Result<()> {
    let mut done = 0;
    if let Some(file) = base.data_file(len, from)? {
        while done < len {
            let (mut source, mut target) = (from + done, at + done);
            let most = (len - done).min(1 << 30) as usize;
            match copy_file_range(file, Some(&mut source), out, Some(&mut target), most) {
                Err(Errno::INTR) => {}
                // The system does not copy between these files, or there is an error, which reading
                // or writing will report.
                Ok(0) | Err(_) => break,
                Ok(copied) => done += copied as u64,
            }
        }
    }
    let mut bytes = vec![0; (len - done).min(TRANSFER_BYTES) as usize];
    while done < len {
        bytes.truncate((len - done).min(TRANSFER_BYTES) as usize);
        base.read_data(&mut bytes, from + done)?;
        out.write_all_at(&bytes, at + done).map_err(Error::io("writing the image"))?;
        done += bytes.len() as u64;
    }
    Ok(())
}

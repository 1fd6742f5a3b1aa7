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
//! One extent begins in a block. What is compressed anew in front of a kept extent must not need
//! one that begins in that one's block; if it would, the kept extent is compressed too. At the
//! segment's end, which is a block's boundary, it never would.
//!
//! Whether an extent has changed depends on its content alone, so that equal disks above a base
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
    /// Whether all of its content is in the segment's input.
    is_read: bool,
}

#[derive(Clone, Copy)]
struct Kept {
    pa: u64,
    stored_bytes: u32,
    compressed: bool,
}

/// Stores a segment of `overlay`, which lies above `base`.
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
        // Taken anew, its pages are there only once they are used, which is where something has
        // changed.
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

/// What the segment is made of. `input` has its changes, and then all of the parts that could be
/// kept without them.
fn parts(
    overlay: &Overlay,
    base: &dyn OverlayBase,
    segment: &Range<u64>,
    compression: Compression,
    options: &BuildOptions,
    input: &mut [u8],
) -> Result<Vec<Part>> {
    let block = u64::from(options.block_bytes);
    let (mut parts, mut extents, mut below) = (Vec::<Part>::new(), base.mapped_extents(segment.clone()), Vec::new());
    let mut at = segment.start;
    while at < segment.end {
        let behind = Extent { start: at, len: segment.end - at, place: Place::Hole };
        let extent = extents.next().transpose()?.unwrap_or(behind);
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
        let content = &mut input[(range.start - segment.start) as usize..(range.end - segment.start) as usize];
        let look = if kept.is_some() { look(overlay, base, &range, content, &mut below) } else { Look::Unread };
        at = range.end;
        parts.push(Part { range, kept: kept.filter(|_| look == Look::Unchanged), is_read: look == Look::Changed });
    }
    Ok(parts)
}

/// Where the cluster of an extent lies, if it can be copied.
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
            // Clusters longer than what they hold would make the image as large as its base says.
            let gains = u64::from(plen) < extent.len && plen <= compression.pcluster_bytes;
            let fits = format == compression.codec.format() && decodes && gains;
            (fits && in_blocks(pa, plen)).then_some(Kept { pa, stored_bytes: plen, compressed: true })
        }
        _ => None,
    }
}

/// What is known of a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// It holds what the base has there.
    Unchanged,
    /// It does not, and all that it holds was read.
    Changed,
    /// Not all of it was read.
    Unread,
}

/// Looks whether a range holds what the base has there. `content` has its changes; if they differ,
/// it has all of the range then.
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
    // What cannot be read is told where it is needed.
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

/// Reads what is not in `input` yet, the content of a segment that begins at `start`.
fn read_parts(overlay: &Overlay, parts: &[Part], start: u64, input: &mut [u8]) -> io::Result<()> {
    for unread in parts.chunk_by(|one, next| one.is_read == next.is_read).filter(|parts| !parts[0].is_read) {
        let (from, to) = (unread[0].range.start, unread[unread.len() - 1].range.end);
        overlay.read_below(from, &mut input[(from - start) as usize..(to - start) as usize])?;
    }
    Ok(())
}

/// Adds the clusters of parts that are kept.
fn keep(parts: &[Part], block: u64, segment: &mut Segment) {
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

/// Bytes that are read and written at once where the system does not copy.
const TRANSFER_BYTES: u64 = 256 << 10;

/// Copies `len` bytes of the data of a base's image to `at` in `out`. Where both lie in one file system that
/// shares blocks, none is copied.
pub(super) fn transfer(base: &dyn OverlayBase, from: u64, len: u64, out: &fs::File, at: u64) -> Result<()> {
    let mut done = 0;
    if let Some(file) = base.data_file(len, from)? {
        while done < len {
            let (mut source, mut target) = (from + done, at + done);
            let most = (len - done).min(1 << 30) as usize;
            match copy_file_range(file, Some(&mut source), out, Some(&mut target), most) {
                Err(Errno::INTR) => {}
                // The system does not copy between these files, or something is wrong, which
                // reading or writing tells.
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

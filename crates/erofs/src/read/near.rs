//! Short metadata reads: each thread caches the surroundings of its last ones.

use std::cell::RefCell;
use std::ops::Range;

use crate::error::Result;

/// Reads of inodes, headers and a few indexes are never longer than this.
pub(super) const SHORT_BYTES: usize = 512;
/// Bytes that a thread reads together for a short read, because a file's metadata is contiguous, and
/// the files of a directory are adjacent.
const NEAR_BYTES: u64 = 4096;
/// Bytes read if the thread returns to an area: in a walk, a directory's inodes alternate with
/// others.
const AREA_BYTES: u64 = 16 << 10;

/// The number of areas that a thread caches: a walk alternates between directory names, inodes and
/// headers.
const AREAS: usize = 16;

thread_local! {
    static NEAR: RefCell<Option<Box<Near>>> = RefCell::default();
}

/// A thread's cached areas.
struct Near {
    /// The image's number (0 for none) and the range of the area that was read. Each area maps to
    /// one slot.
    places: [(u64, Range<u64>); AREAS],
    /// Untouched parts use no memory.
    bytes: Vec<u8>,
}

impl Near {
    fn new() -> Box<Self> {
        Box::new(Self { places: [const { (0, 0..0) }; _], bytes: vec![0; AREAS * AREA_BYTES as usize] })
    }
}

/// Fills `buf` from `offset` of the image `number`, which is `image_bytes` long and is read with
/// `read`.
pub(super) fn read(
    number: u64,
    image_bytes: u64,
    buf: &mut [u8],
    offset: u64,
    read: impl Fn(&mut [u8], u64) -> Result<()>,
) -> Result<()> {
    let (area, end) = (offset / AREA_BYTES * AREA_BYTES, offset + buf.len() as u64);
    if end > area + AREA_BYTES {
        return read(buf, offset);
    }
    // The areas are taken, not borrowed, because a source may itself be in an image, so `read` may
    // nest.
    let mut last = NEAR.take().unwrap_or_else(Near::new);
    let place = (offset / AREA_BYTES) as usize % AREAS;
    let Near { places, bytes } = &mut *last;
    let (image, have) = &mut places[place];
    let bytes = &mut bytes[place * AREA_BYTES as usize..][..AREA_BYTES as usize];
    let within = |range: &Range<u64>| (range.start - area) as usize..(range.end - area) as usize;
    let same = *image == number;
    if !(same && have.start <= offset && end <= have.end) {
        let comes_back = same && have.start / AREA_BYTES * AREA_BYTES == area;
        let unit = if comes_back { AREA_BYTES } else { NEAR_BYTES };
        *have = offset / unit * unit..end.next_multiple_of(unit).min(image_bytes);
        *image = 0;
        read(&mut bytes[within(have)], have.start)?;
        *image = number;
    }
    buf.copy_from_slice(&bytes[within(&(offset..end))]);
    NEAR.set(Some(last));
    Ok(())
}

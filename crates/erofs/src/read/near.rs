//! Short reads of metadata: each thread keeps what it read around its last ones.

use std::cell::RefCell;
use std::ops::Range;

use crate::error::Result;

/// Longer reads than this are none of inodes, headers and a few indexes.
pub(super) const SHORT_BYTES: usize = 512;
/// What a thread reads at once for short reads, since what belongs to a file lies side by side, and
/// files that do.
const NEAR_BYTES: u64 = 4096;
/// And where it comes back: a walk finds inodes of a directory among those of some others.
const AREA_BYTES: u64 = 16 << 10;

/// Areas of which a thread keeps what it read: a walk comes from a directory's names to inodes,
/// headers and back.
const AREAS: usize = 16;

thread_local! {
    static NEAR: RefCell<Option<Box<Near>>> = RefCell::default();
}

/// What a thread's last short reads came from.
struct Near {
    /// The image's number, 0 for none, and the part of the area that was read. Each area has one
    /// place.
    places: [(u64, Range<u64>); AREAS],
    /// Memory is taken as they are read.
    bytes: Vec<u8>,
}

impl Near {
    fn new() -> Box<Self> {
        Box::new(Self { places: [const { (0, 0..0) }; _], bytes: vec![0; AREAS * AREA_BYTES as usize] })
    }
}

/// Fills `buf` from `offset` of the image `number`, which has `image_bytes` and is read by `read`.
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
    // Taken, not borrowed: a source may itself lie in an image.
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

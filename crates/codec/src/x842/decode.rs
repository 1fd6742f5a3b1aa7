//! The decoder.

use super::{
    bits::BitReader,
    crc::crc32,
    format::{
        BLOCK, END, INDEX2_BITS, INDEX4_BITS, INDEX8_BITS, REPEAT, REPEAT_BITS, RING2, RING4, RING8, SUM_BITS, TAIL,
        TAIL_BITS, TEMPLATE_BITS, WHOLE, ZEROS,
    },
};
use crate::{Corrupt, PAGE_SIZE, Page};

const TOO_LONG: Corrupt = Corrupt { what: "842 stream is longer than a page" };
const TOO_FAR: Corrupt = Corrupt { what: "842 index refers to data not yet decoded" };

/// Decodes `object` to exactly one page. After an error `page` holds the bytes decoded so far.
pub(super) fn decode(object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
    let mut reader = BitReader::new(object);
    let mut at = 0;
    loop {
        let template = reader.read(TEMPLATE_BITS)?;
        let block = match template {
            0..WHOLE => {
                let high = half(&mut reader, template / 5, page, at)?;
                high << 32 | half(&mut reader, template % 5, page, at)?
            }
            WHOLE => u64::from_be_bytes(phrase::<8, RING8>(reader.read(INDEX8_BITS)?, page, at)?),
            REPEAT => {
                let count = reader.read(REPEAT_BITS)? as usize + 1;
                let last = at.checked_sub(BLOCK).ok_or(TOO_FAR)?;
                let (done, rest) = page.split_at_mut(at);
                let last = done[last..].first_chunk::<BLOCK>().ok_or(TOO_FAR)?;
                let (blocks, _) = rest.as_chunks_mut::<BLOCK>();
                blocks.get_mut(..count).ok_or(TOO_LONG)?.fill(*last);
                at += count * BLOCK;
                continue;
            }
            ZEROS => 0,
            TAIL => {
                for _ in 0..reader.read(TAIL_BITS)? {
                    *page.get_mut(at).ok_or(TOO_LONG)? = reader.read(8)? as u8;
                    at += 1;
                }
                continue;
            }
            END => break,
            _ => return Err(Corrupt { what: "unknown 842 template" }),
        };
        *page.get_mut(at..).and_then(|rest| rest.first_chunk_mut()).ok_or(TOO_LONG)? = block.to_be_bytes();
        at += BLOCK;
    }
    if reader.read(SUM_BITS)? != u64::from(crc32(&page[..at])) {
        return Err(Corrupt { what: "842 checksum mismatch" });
    }
    if !reader.is_at_end() {
        return Err(Corrupt { what: "bytes after the end of an 842 stream" });
    }
    if at != PAGE_SIZE {
        return Err(Corrupt { what: "842 stream is shorter than a page" });
    }
    Ok(())
}

/// Decodes half a block in one of the five ways; the block begins at `at`.
#[inline(always)]
fn half(reader: &mut BitReader, way: u64, page: &Page, at: usize) -> Result<u64, Corrupt> {
    let two = |index| phrase::<2, RING2>(index, page, at).map(|bytes| u64::from(u16::from_be_bytes(bytes)));
    Ok(match way {
        0 => reader.read(32)?,
        1 => reader.read(16)? << 16 | two(reader.read(INDEX2_BITS)?)?,
        2 => two(reader.read(INDEX2_BITS)?)? << 16 | reader.read(16)?,
        3 => two(reader.read(INDEX2_BITS)?)? << 16 | two(reader.read(INDEX2_BITS)?)?,
        _ => u64::from(u32::from_be_bytes(phrase::<4, RING4>(reader.read(INDEX4_BITS)?, page, at)?)),
    })
}

/// Returns the phrase of `N` bytes at place `index` of a ring of `RING` bytes when `at` bytes are
/// decoded.
#[inline(always)]
fn phrase<const N: usize, const RING: usize>(index: u64, page: &Page, at: usize) -> Result<[u8; N], Corrupt> {
    // Rings wrap at each multiple of their size. Blocks begin at multiples of 8, except those after
    // a tail.
    let decoded = at / BLOCK * BLOCK;
    let round = decoded / RING * RING;
    let place = round + index as usize * N;
    let from = if place < decoded { place } else { place.checked_sub(RING).ok_or(TOO_FAR)? };
    page.get(from..).and_then(|rest| rest.first_chunk()).copied().ok_or(TOO_FAR)
}

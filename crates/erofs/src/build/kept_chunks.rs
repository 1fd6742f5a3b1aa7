//! Chunks of an uncompressed file that stay in its base's image.
//!
//! ```text
//! base      | chunk | chunk | hole  | chunk |
//! changes              ##
//! new file  | base  | own   | hole  | base  |
//! ```
//!
//! Whether a chunk has changed depends only on its content, so that equal disks above a base become
//! equal images.

use std::io;
use std::ops::Range;

use super::base::OverlayBase;
use super::devices::Devices;
use super::overlay::Overlay;
use crate::error::Result;

/// The chunks of a part of a file.
pub(super) struct KeptChunks {
    /// The address of each chunk that stays in the base's image; `None` for the others.
    pub(super) addresses: Vec<Option<u32>>,
    /// The bytes of the others, in order.
    pub(super) own: Vec<u8>,
}

/// Finds the chunks of `range` that stay in the image of `base`, and reads the others.
pub(super) fn find(
    (overlay, base, devices): (&Overlay, &dyn OverlayBase, &Devices),
    range: Range<u64>,
    chunk_bytes: u64,
) -> io::Result<KeptChunks> {
    let mut found = KeptChunks { addresses: Vec::new(), own: Vec::new() };
    let (mut bytes, mut below) = (Vec::new(), Vec::new());
    for start in range.clone().step_by(chunk_bytes as usize) {
        let chunk = start..range.end.min(start + chunk_bytes);
        // Errors of the base are reported where its data is needed.
        let address = address(overlay, base, devices, &chunk).unwrap_or_default();
        let is_changed = overlay.changes(chunk.clone()).next().is_some();
        if address.is_some() && !is_changed {
            found.addresses.push(address);
            continue;
        }
        let len = (chunk.end - chunk.start) as usize;
        overlay.read(start, len, &mut bytes)?;
        if address.is_some() {
            below.resize(len, 0);
            if base.read_below(&mut below, start).is_ok_and(|read| read == len) && below == bytes {
                found.addresses.push(address);
                continue;
            }
        }
        found.addresses.push(None);
        found.own.extend_from_slice(&bytes);
    }
    Ok(found)
}

/// Returns the address of a chunk of the base; `None` unless the base stores all of it in sequence.
fn address(overlay: &Overlay, base: &dyn OverlayBase, devices: &Devices, chunk: &Range<u64>) -> Result<Option<u32>> {
    let block_bytes = base.base_image().block_bytes;
    let ends_both = chunk.end == overlay.size() && chunk.end == base.size_bytes();
    if chunk.end > base.size_bytes() || !(chunk.end.is_multiple_of(block_bytes) || ends_both) {
        return Ok(None);
    }
    let Some((first, mut len)) = base.plain_spot(chunk.start)? else { return Ok(None) };
    while len < chunk.end - chunk.start {
        match base.plain_spot(chunk.start + len)? {
            Some((next, more)) if next.device == first.device && next.offset == first.offset + len => len += more,
            _ => return Ok(None),
        }
    }
    Ok(devices.address(first, (chunk.end - chunk.start).next_multiple_of(block_bytes)))
}

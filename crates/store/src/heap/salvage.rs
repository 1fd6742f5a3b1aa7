//! Objects in the file of a heap whose process has ended (`block.rs` draws the blocks).

use std::io;

use super::block::{BlockKind, Blocks, HEADER_BYTES};

/// Bytes of a header, and of the link after it.
const FRONT_BYTES: usize = HEADER_BYTES as usize + size_of::<u32>();

/// Appends the object whose body begins at `body` in a shard of `span` bytes to `out`. `read` reads bytes of
/// the shard. Returns false if there is no such object.
pub(crate) fn read_object(
    read: &dyn Fn(u32, &mut [u8]) -> io::Result<()>,
    span: u64,
    body: u32,
    len_bytes: usize,
    out: &mut Vec<u8>,
) -> io::Result<bool> {
    let is_within = |at: u32, len: usize| u64::from(at) + len as u64 <= span;
    let Some(first) = body.checked_sub(HEADER_BYTES).filter(|&at| is_within(at, FRONT_BYTES)) else { return Ok(false) };
    let mut front = [0; FRONT_BYTES];
    read(first, &mut front)?;
    let (kind, len, link) = block(&front);
    let start = out.len();
    out.resize(start + len_bytes, 0);
    match kind {
        BlockKind::Whole if len >= Blocks::whole_len(len_bytes as u32) && is_within(body, len_bytes) => {
            read(body, &mut out[start..]).map(|()| true)
        }
        BlockKind::First if len as usize > FRONT_BYTES && is_within(link, FRONT_BYTES) => {
            let mut of_second = [0; FRONT_BYTES];
            read(link, &mut of_second)?;
            let (kind, second_len, back) = block(&of_second);
            let room = (Blocks::first_room(len) as usize).min(len_bytes);
            let rest_bytes = len_bytes - room;
            let is_whole = kind == BlockKind::Second
                && back == first
                && second_len >= Blocks::second_len(rest_bytes as u32)
                && is_within(first, len as usize)
                && is_within(link, second_len as usize);
            if is_whole {
                let (to_front, to_rest) = out[start..].split_at_mut(room);
                read(first + FRONT_BYTES as u32, to_front)?;
                read(link + FRONT_BYTES as u32, to_rest)?;
            }
            Ok(is_whole)
        }
        _ => Ok(false),
    }
}

/// Returns the kind, the length and the link of a live block.
fn block(front: &[u8; FRONT_BYTES]) -> (BlockKind, u32, u32) {
    let (kind, len) = Blocks::live(front[0], front[1]);
    let [.., a, b, c, d] = *front;
    (kind, len, u32::from_le_bytes([a, b, c, d]))
}

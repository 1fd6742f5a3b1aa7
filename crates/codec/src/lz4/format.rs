//! What LZ4 and its variant with dynamic offsets differ in.
#![allow(unsafe_code)] // Unaligned loads and stores; the codecs check their bounds once a sequence.

use crate::mem::store16;

/// A format of blocks: sequences of a token, literals, offset and match.
pub(crate) trait Format {
    /// Bytes of the shortest match that can be written.
    const MIN_MATCH: usize;

    /// The furthest that an offset reaches back.
    const MAX_OFFSET: usize;

    /// The last match starts at least this many bytes before the end of the block.
    const LAST_START: usize;

    /// At least this many bytes at the end are literals. If 0, a block may end after a match.
    const LAST_LITERALS: usize;

    /// Bytes that `offset` takes.
    fn offset_bytes(offset: usize) -> usize;

    /// Writes `offset`, 1 to [`Format::MAX_OFFSET`], in its [`Format::offset_bytes`], and may overwrite the rest of 2 bytes.
    ///
    /// # Safety
    /// 2 bytes from `p` can be written.
    unsafe fn put_offset(p: *mut u8, offset: usize);

    /// The offset that begins at the lowest byte of `bytes`, and the bytes it takes.
    fn offset(bytes: u32) -> (usize, usize);
}

/// LZ4's block format.
pub(crate) struct Plain;

impl Format for Plain {
    const MIN_MATCH: usize = 4;
    const MAX_OFFSET: usize = 0xFFFF;
    const LAST_START: usize = 12;
    const LAST_LITERALS: usize = 5;

    #[inline(always)]
    fn offset_bytes(_offset: usize) -> usize {
        2
    }

    #[inline(always)]
    unsafe fn put_offset(p: *mut u8, offset: usize) {
        // SAFETY: the caller's.
        unsafe { store16(p, offset as u16) }
    }

    #[inline(always)]
    fn offset(bytes: u32) -> (usize, usize) {
        (bytes as u16 as usize, 2)
    }
}

/// LZ4 with dynamic offsets; see `docs/lz4dyn.md`.
pub(crate) struct Dynamic;

impl Format for Dynamic {
    const MIN_MATCH: usize = 3;
    const MAX_OFFSET: usize = 0x7FFF;
    const LAST_START: usize = 8;
    const LAST_LITERALS: usize = 0;

    #[inline(always)]
    fn offset_bytes(offset: usize) -> usize {
        1 + usize::from(offset > 0x7F)
    }

    #[inline(always)]
    unsafe fn put_offset(p: *mut u8, offset: usize) {
        let long = 0x80 | offset & 0x7F | (offset & 0x7F80) << 1;
        let bytes = std::hint::select_unpredictable(offset > 0x7F, long, offset);
        // SAFETY: the caller's.
        unsafe { store16(p, bytes as u16) }
    }

    #[inline(always)]
    fn offset(bytes: u32) -> (usize, usize) {
        let long = bytes >> 7 & 1;
        // All ones if the second byte belongs to the offset.
        let mask = long.wrapping_neg();
        let offset = bytes & 0x7F | (bytes & 0xFF00) >> 1 & mask;
        (offset as usize, 1 + long as usize)
    }
}

//! What LZ4 and its variant with dynamic offsets differ in.

/// A format of blocks: sequences of a token, literals, offset and match.
pub(crate) trait Format {
    /// Bytes of the shortest match that can be written.
    const MIN_MATCH: usize;

    /// The last match starts at least this many bytes before the end of the block.
    const LAST_START: usize;

    /// At least this many bytes at the end are literals. If 0, a block may end after a match.
    const LAST_LITERALS: usize;

    /// Where the offset lies: after the token, or after the literals.
    const OFFSET_FIRST: bool;

    /// Bytes that `offset` takes.
    fn offset_bytes(offset: usize) -> usize;

    /// The low [`Format::offset_bytes`] bytes of the result are what stands for `offset`, from 1 on.
    fn offset_bits(offset: usize) -> u16;
}

/// LZ4's block format.
pub(crate) struct Plain;

impl Format for Plain {
    const MIN_MATCH: usize = 4;
    const LAST_START: usize = 12;
    const LAST_LITERALS: usize = 5;
    const OFFSET_FIRST: bool = false;

    #[inline(always)]
    fn offset_bytes(_offset: usize) -> usize {
        2
    }

    #[inline(always)]
    fn offset_bits(offset: usize) -> u16 {
        offset as u16
    }
}

/// LZ4 with dynamic offsets, of up to 32 KiB, which is also the longest input; see `docs/lz4dyn.md`.
pub(crate) struct Dynamic;

impl Format for Dynamic {
    const MIN_MATCH: usize = 3;
    const LAST_START: usize = 8;
    const LAST_LITERALS: usize = 0;
    const OFFSET_FIRST: bool = true;

    #[inline(always)]
    fn offset_bytes(offset: usize) -> usize {
        1 + usize::from(offset > 0x7F)
    }

    #[inline(always)]
    fn offset_bits(offset: usize) -> u16 {
        (offset << 1) as u16 | u16::from(offset > 0x7F)
    }
}

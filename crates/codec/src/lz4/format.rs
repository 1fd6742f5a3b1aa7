//! The differences between LZ4 and its variant with dynamic offsets.

/// A block format: sequences of a token, literals, offset and match.
pub(crate) trait Format: Copy {
    /// Length of the shortest match that can be encoded.
    const MIN_MATCH: usize;

    /// The last match starts at least this many bytes before the end of the block.
    const LAST_START: usize;

    /// At least this many bytes at the end are literals. If 0, a block may end with a match.
    const LAST_LITERALS: usize;

    /// Whether an offset has one byte or two and precedes the literals.
    const DYNAMIC: bool;
}

/// LZ4's block format.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Format for Plain {
    const MIN_MATCH: usize = 4;
    const LAST_START: usize = 12;
    const LAST_LITERALS: usize = 5;
    const DYNAMIC: bool = false;
}

/// LZ4 with dynamic offsets of up to 32 KiB, which also limits the input; see `docs/lz4dyn.md`.
#[derive(Clone, Copy)]
pub(crate) struct Dynamic;

impl Format for Dynamic {
    const MIN_MATCH: usize = 4;
    const LAST_START: usize = 8;
    const LAST_LITERALS: usize = 0;
    const DYNAMIC: bool = true;
}

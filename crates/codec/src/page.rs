//! A page and its object: formats, and why one cannot be made or read.

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;

/// One page.
pub type Page = [u8; PAGE_SIZE];

/// The format of an object's bytes. A number never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum CodecId {
    /// LZ4 block format.
    Lz4 = 0,
    /// A Zstandard frame without its magic number.
    Zstd = 1,
    /// LZ4 with dynamic offsets; see `docs/lz4dyn.md`.
    Lz4Dyn = 2,
    /// The fast page codec of pagefold; see `docs/fold.md`.
    Fold = 3,
    /// `pleat`, the dense page codec.
    Pleat = 4,
    /// LZO1X, bitstream version 0.
    Lzo = 5,
    /// LZO1X with runs of zeros, bitstream version 1. Its decoder also reads version 0.
    LzoRle = 6,
    /// A raw DEFLATE stream.
    Deflate = 7,
    /// IBM's 842.
    X842 = 8,
}

/// An object that its codec cannot have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("corrupt object: {what}")]
#[non_exhaustive]
pub struct Corrupt {
    /// What is wrong with it.
    pub what: &'static str,
}

impl Corrupt {
    /// Returns the error for an object in which `what` is wrong.
    pub const fn new(what: &'static str) -> Self {
        Self { what }
    }
}

/// A stream could not be created: out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory for a {codec} stream")]
#[non_exhaustive]
pub struct StreamError {
    /// The codec's name.
    pub codec: &'static str,
}

impl StreamError {
    /// Returns the error for a stream of `codec`.
    pub const fn new(codec: &'static str) -> Self {
        Self { codec }
    }
}

/// The bytes are not valid tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid tables of a codec: {what}")]
#[non_exhaustive]
pub struct BadTables {
    /// What is wrong with them.
    pub what: &'static str,
}

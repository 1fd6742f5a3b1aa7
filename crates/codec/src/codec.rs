//! The interface of every page codec.

use std::fmt;

use crate::Tables;

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
    /// Its fault.
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

/// A page codec: an immutable description that any number of threads share.
pub trait Codec: Send + Sync + fmt::Debug {
    /// Returns the format of its objects. Every stream of a codec with this id (and these tables)
    /// decodes them.
    fn id(&self) -> CodecId;

    /// Returns the name that [`by_name`](crate::by_name) accepts, parameters included: `lz4`,
    /// `zstd-3`.
    fn name(&self) -> String;

    /// Returns whether a page takes more than about 50 µs, so that a thread with other work should
    /// not wait for it.
    fn is_slow(&self) -> bool {
        false
    }

    /// Returns the tables that its objects share, if tables trained on a store's own pages can
    /// replace them.
    fn tables(&self) -> Option<Tables> {
        None
    }

    /// Creates a working state. Allocates; call it outside the hot path and keep the result.
    fn stream(&self) -> Result<Box<dyn Stream>, StreamError>;
}

/// Returns a stream of `codec` for each build of its hot loops that this CPU can run, for tests and
/// fuzzing. All builds give the same results.
#[cfg(any(test, fuzzing))]
pub fn streams_of_every_build(codec: &dyn Codec) -> Result<Vec<Box<dyn Stream>>, StreamError> {
    Ok(match (codec.id(), codec.tables()) {
        (_, Some(Tables::Fold(tables))) => crate::fold::streams_of_every_build_with(&tables),
        (CodecId::Fold, None) => crate::fold::streams_of_every_build(),
        (_, Some(Tables::Pleat(tables))) => crate::pleat::streams_of_every_build(&tables),
        _ => vec![codec.stream()?],
    })
}

/// The working state of a [`Codec`] for one thread.
pub trait Stream: Send {
    /// Compresses `page` into the front of `out` and returns the length of the object, at most
    /// `out.len()`. If the object does not fit, returns `None` and `out` holds unspecified bytes.
    /// `out` may have any length, including 0.
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize>;

    /// Decodes `object` to exactly one page. `object` is untrusted: any bytes give a page or
    /// [`Corrupt`] in bounded time, and no access goes outside the two buffers. After an error
    /// `page` holds unspecified bytes (never uninitialised memory).
    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt>;

    /// Switches to other tables of its codec, for both directions. Does not allocate; copies a
    /// dictionary, at most 60 KiB, now or at the next page. Does nothing if the codec has no
    /// [tables](Codec::tables) or the tables are of another kind.
    fn set_tables(&mut self, _tables: &Tables) {}

    /// Returns the heap bytes that this stream uses, for the store's accounting.
    fn memory_bytes(&self) -> usize;
}

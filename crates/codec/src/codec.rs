//! The interface every page codec has.

use std::fmt;

use crate::Tables;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;

/// One page.
pub type Page = [u8; PAGE_SIZE];

/// Which format an object's bytes have. A number, once given, keeps its meaning.
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
    /// LZO1X with runs of zeros, bitstream version 1; decodes version 0 too.
    LzoRle = 6,
    /// A raw DEFLATE stream.
    Deflate = 7,
    /// IBM's 842.
    X842 = 8,
}

/// An object that is not what its codec writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("corrupt object: {what}")]
#[non_exhaustive]
pub struct Corrupt {
    /// What was found wrong.
    pub what: &'static str,
}

impl Corrupt {
    /// An object in which `what` was found wrong.
    pub const fn new(what: &'static str) -> Self {
        Self { what }
    }
}

/// A stream could not be made, for want of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory for a {codec} stream")]
#[non_exhaustive]
pub struct StreamError {
    /// The codec's name.
    pub codec: &'static str,
}

impl StreamError {
    /// No memory for a stream of `codec`.
    pub const fn new(codec: &'static str) -> Self {
        Self { codec }
    }
}

/// A page codec: an immutable description that any number of threads share.
pub trait Codec: Send + Sync + fmt::Debug {
    /// The format of the objects it makes. Every stream of a codec with this id (and these tables)
    /// decodes them.
    fn id(&self) -> CodecId;

    /// The name that [`by_name`](crate::by_name) takes, parameters included: `lz4`, `zstd-3`.
    fn name(&self) -> String;

    /// Whether a page takes it more than about 50 µs, so that whoever has other things to do should
    /// not wait for it.
    fn is_slow(&self) -> bool {
        false
    }

    /// The tables that its objects share, if they can be replaced by others that were trained on a
    /// store's own pages.
    fn tables(&self) -> Option<Tables> {
        None
    }

    /// A new working state. Allocates; call it outside the hot path and keep the result.
    fn stream(&self) -> Result<Box<dyn Stream>, StreamError>;
}

/// For tests and fuzzing: a stream of `codec` for each build of its hot loops that this CPU can
/// run. All give the same results.
#[cfg(any(test, fuzzing))]
pub fn streams_of_every_build(codec: &dyn Codec) -> Result<Vec<Box<dyn Stream>>, StreamError> {
    Ok(match (codec.id(), codec.tables()) {
        (_, Some(Tables::Fold(tables))) => crate::fold::streams_of_every_build_with(&tables),
        (CodecId::Fold, None) => crate::fold::streams_of_every_build(),
        (_, Some(Tables::Pleat(tables))) => crate::pleat::streams_of_every_build(&tables),
        _ => vec![codec.stream()?],
    })
}

/// One thread's working state of a [`Codec`].
pub trait Stream: Send {
    /// Compresses `page` into the front of `out` and returns the length of the object, at most
    /// `out.len()`. `None`: the object would not fit, and `out` holds unspecified bytes. `out` may
    /// have any length, 0 included.
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize>;

    /// Decodes `object` to exactly one page. `object` is untrusted: any bytes give a page or
    /// [`Corrupt`], in bounded time, with nothing read or written outside the two buffers. After an
    /// error `page` holds unspecified bytes (never uninitialised memory).
    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt>;

    /// Works with other tables of its codec from now on, both ways. Takes no memory; copies a
    /// dictionary, at most 60 KiB, now or at the next page. A stream of a codec without
    /// [tables](Codec::tables), or with those of another kind, does nothing.
    fn set_tables(&mut self, _tables: &Tables) {}

    /// Heap bytes that this stream holds, for the store's accounts.
    fn memory_bytes(&self) -> usize;
}

//! The interface of every page codec.

use std::fmt;

use crate::{CodecId, Corrupt, Page, StreamError, Tables};

/// A page codec: an immutable description that any number of threads share.
pub trait Codec: Send + Sync + fmt::Debug {
    /// Returns the format of its objects. Every stream of a codec with this id (and these tables)
    /// decodes them.
    fn id(&self) -> CodecId;

    /// Returns the name that [`by_name`](crate::by_name) accepts, parameters included: `lz4`,
    /// `zstd-3`.
    fn name(&self) -> String;

    /// Returns whether a page takes so long (above about 50 µs) that a thread with other work
    /// should not wait for it.
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

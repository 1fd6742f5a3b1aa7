//! Reusable buffers for decoded content. They save an allocation and zeroed pages from the kernel
//! for each cluster, which took as long as decoding it. Buffers come from two [`Arena`]s, one of
//! which is for cached content.

use std::ops::{Deref, DerefMut, RangeInclusive};

use memmap2::{MmapMut, MmapOptions};
use pagefold_arena::{Arena, Piece};
use pagefold_codec::lz4::in_place_margin;

use crate::format::MAX_PCLUSTER_BYTES;

/// Buffers of these lengths that no arena has room for are mapped with all pages present
/// (`MAP_POPULATE`), which takes two thirds of the time of individual page faults. The claimed
/// length of longer ones may be bogus, so they fault pages in as they fill, as huge pages if
/// available.
const MAPPED_BYTES: RangeInclusive<usize> = 64 << 10..=2 << 20;

/// The part of a copy's source that is prefetched explicitly, in bytes. After that, the hardware
/// prefetcher keeps up.
const FETCHED_BYTES: usize = 16 << 10;

/// Returns the most room in bytes that a read of `len` bytes can use: with it, the last cluster is
/// decoded in place.
pub(crate) fn room_bytes(len: usize) -> usize {
    len + in_place_margin(MAX_PCLUSTER_BYTES as usize)
}

/// The source of buffers.
pub(crate) struct Buffers {
    passing: Arena,
    kept: Arena,
}

/// Memory that was zeroed when new.
enum Buffer {
    Heap(Vec<u8>),
    Mapped(MmapMut),
    Lent(Piece),
}

impl Buffer {
    fn new(len: usize) -> Self {
        let mapped = if MAPPED_BYTES.contains(&len) {
            MmapOptions::new().len(len).populate().map_anon().ok()
        } else if len > *MAPPED_BYTES.end() {
            let mapped = MmapOptions::new().len(len).map_anon().ok();
            #[cfg(target_os = "linux")]
            if let Some(mapped) = &mapped {
                // Has no effect if huge pages are not available.
                let _ = mapped.advise(memmap2::Advice::HugePage);
            }
            mapped
        } else {
            None
        };
        mapped.map_or_else(|| Self::Heap(vec![0; len]), Self::Mapped)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
            Self::Lent(bytes) => bytes,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
            Self::Lent(bytes) => bytes,
        }
    }
}

impl Buffers {
    /// Creates buffers with arenas of `kept_bytes` for cached content and `passing_bytes` for the
    /// rest.
    pub(crate) fn new(kept_bytes: usize, passing_bytes: usize) -> Self {
        Self { passing: Arena::packed(passing_bytes), kept: Arena::new(kept_bytes) }
    }

    /// Returns a buffer of `len` bytes with arbitrary contents.
    pub(crate) fn take(&self, len: usize) -> Content {
        Content { bytes: self.passing.take(len).map_or_else(|| Buffer::new(len), Buffer::Lent), len }
    }

    /// Like [`take`](Self::take), for content to be cached. If the arena has no contiguous room,
    /// falls back to `take`.
    pub(crate) fn take_kept(&self, len: usize) -> Content {
        match self.kept.take(len) {
            Some(piece) => Content { bytes: Buffer::Lent(piece), len },
            None => self.take(len),
        }
    }
}

/// Decoded content in a buffer that is returned to its source on drop.
pub(crate) struct Content {
    bytes: Buffer,
    len: usize,
}

impl Content {
    /// Returns the whole buffer.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Copies content from `from` on, assuming that it is not in the CPU cache.
    pub(crate) fn read(&self, from: usize, out: &mut [u8]) {
        let bytes = &self[from..from + out.len()];
        pagefold_arena::fetch(&bytes[..bytes.len().min(FETCHED_BYTES)]);
        out.copy_from_slice(bytes);
    }

    /// Limits the content to the buffer's first `len` bytes.
    pub(crate) fn shorten(mut self, len: usize) -> Self {
        self.len = len.min(self.bytes.len());
        self
    }
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again() {
        let buffers = Buffers::new(1 << 20, 32 << 20);
        let mut content = buffers.take(100_000);
        content.room()[0] = 7;
        let address = content.as_ptr();
        drop(content);
        let again = buffers.take(60_000).shorten(10);
        assert_eq!((again.as_ptr(), again.len(), again[0]), (address, 10, 7));
        assert_ne!(buffers.take(60_000).as_ptr(), address);
        // More than the arena has room for, and longer ones.
        let many: Vec<_> = [0, 1, 100_000, 2 << 20, 40 << 20]
            .into_iter()
            .cycle()
            .take(100)
            .map(|len| (buffers.take(len), len))
            .collect();
        assert!(many.into_iter().all(|(mut content, len)| content.len() == len && content.room().len() == len));
        assert!((0..20).all(|_| buffers.take_kept(1 << 20).room().len() == 1 << 20));
    }
}

//! Buffers for decoded content that are used again, so that a cluster costs neither an allocation nor new zeroed pages
//! from the kernel, which took as long as decoding it. New pages of large buffers are asked for all at once (`MAP_POPULATE`),
//! which takes two thirds of the time of a fault for each. What the cache keeps lies in an [`Arena`], whose pages are huge.

use std::ops::{Deref, DerefMut, RangeInclusive};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::{MmapMut, MmapOptions};
use pagefold_arena::{Arena, Piece};

/// Buffers that wait for their next use.
const MAX_FREE: usize = 32;
/// And their bytes: two of the longest contents that are built, 8 MiB of zeros, or one of the longest that are read.
const MAX_FREE_BYTES: usize = 17 << 20;

/// Buffers of such lengths have pages of their own. The length of longer ones may be a lie: they get pages as they fill, huge ones where there are.
const MAPPED_BYTES: RangeInclusive<usize> = 64 << 10..=2 << 20;

/// So much of a copy's source is fetched before it begins; by then the processor fetches ahead itself.
const FETCHED_BYTES: usize = 16 << 10;

/// Buffers that wait for their next use, and the memory of what the cache keeps.
pub(crate) struct Buffers {
    free: Mutex<Vec<Buffer>>,
    kept: Arena,
}

/// Memory that was zeros when it was new.
enum Buffer {
    Heap(Vec<u8>),
    Mapped(MmapMut),
    Kept(Piece),
}

impl Buffer {
    fn new(len: usize) -> Self {
        let mapped = if MAPPED_BYTES.contains(&len) {
            MmapOptions::new().len(len).populate().map_anon().ok()
        } else if len > *MAPPED_BYTES.end() {
            let mapped = MmapOptions::new().len(len).map_anon().ok();
            #[cfg(target_os = "linux")]
            if let Some(mapped) = &mapped {
                // Where there are none it is without effect.
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
            Self::Kept(bytes) => bytes,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
            Self::Kept(bytes) => bytes,
        }
    }
}

impl Buffers {
    /// `kept_bytes` are for what is kept.
    pub(crate) fn new(kept_bytes: usize) -> Self {
        Self { free: Mutex::default(), kept: Arena::new(kept_bytes) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Buffer>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of at least `len` bytes, which hold anything, and of less than twice as many if it was used before.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Content {
        let mut free = self.lock();
        let fits = |buffer: &Buffer| (len..=2 * len).contains(&buffer.len());
        let found = free.iter().rposition(fits).map(|at| free.swap_remove(at));
        drop(free);
        Content { bytes: found.unwrap_or_else(|| Buffer::new(len)), len, home: Some(Arc::clone(self)) }
    }

    /// As [`take`](Self::take), for content that is kept. What there is no room for in one piece comes from elsewhere.
    pub(crate) fn take_kept(self: &Arc<Self>, len: usize) -> Content {
        match self.kept.take(len) {
            Some(piece) => Content { bytes: Buffer::Kept(piece), len, home: None },
            None => self.take(len),
        }
    }

    fn give(&self, buffer: Buffer) {
        if buffer.len() > MAX_FREE_BYTES {
            return;
        }
        let mut free = self.lock();
        // The oldest go first: what is in use now says best what will be.
        let mut bytes: usize = free.iter().map(|buffer| buffer.len()).sum::<usize>() + buffer.len();
        while bytes > MAX_FREE_BYTES || free.len() >= MAX_FREE {
            bytes -= free.remove(0).len();
        }
        free.push(buffer);
    }
}

/// Decoded content, in a buffer that goes back to where it came from.
pub(crate) struct Content {
    bytes: Buffer,
    len: usize,
    /// `None`: it knows itself.
    home: Option<Arc<Buffers>>,
}

impl Content {
    /// The whole buffer.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Copies what lies from `from`, which nobody used lately.
    pub(crate) fn read(&self, from: usize, out: &mut [u8]) {
        let bytes = &self[from..from + out.len()];
        pagefold_arena::fetch(&bytes[..bytes.len().min(FETCHED_BYTES)]);
        out.copy_from_slice(bytes);
    }

    /// Says that the content is the buffer's first `len` bytes.
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

impl Drop for Content {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.give(std::mem::replace(&mut self.bytes, Buffer::Heap(Vec::new())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_within_bounds() {
        let buffers = Arc::new(Buffers::new(1 << 20));
        let mut content = buffers.take(1000);
        content.room()[0] = 7;
        let address = content.as_ptr();
        drop(content);
        let again = buffers.take(600).shorten(10);
        assert_eq!((again.as_ptr(), again.len(), again[0]), (address, 10, 7));
        assert_ne!(buffers.take(600).as_ptr(), address);
        drop(again);
        assert_ne!(buffers.take(400).as_ptr(), address, "a small content would hold a large buffer");
        let many: Vec<_> = (0..100).map(|_| buffers.take(1 << 20)).collect();
        drop(many);
        let free = buffers.lock();
        assert!(free.len() <= MAX_FREE && free.iter().map(|buffer| buffer.len()).sum::<usize>() <= MAX_FREE_BYTES);
    }
}

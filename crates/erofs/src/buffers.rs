//! Buffers for decoded content that are used again, so that a cluster costs neither an allocation nor new zeroed pages
//! from the kernel, which took as long as decoding it.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Buffers that wait for their next use.
const MAX_FREE: usize = 32;
/// And their bytes.
const MAX_FREE_BYTES: usize = 8 << 20;

/// Buffers that wait for their next use.
#[derive(Default)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of at least `len` bytes, which hold anything, and of less than twice as many if it was used before.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Content {
        let mut free = self.lock();
        let fits = |buffer: &Vec<u8>| (len..=2 * len).contains(&buffer.len());
        let found = free.iter().rposition(fits).map(|at| free.swap_remove(at));
        drop(free);
        Content { bytes: found.unwrap_or_else(|| vec![0; len]), len, home: Arc::clone(self) }
    }

    fn give(&self, buffer: Vec<u8>) {
        let mut free = self.lock();
        if buffer.len() > MAX_FREE_BYTES / 4 {
            return;
        }
        // The oldest go first: what is in use now says best what will be.
        let mut bytes: usize = free.iter().map(Vec::len).sum::<usize>() + buffer.len();
        while bytes > MAX_FREE_BYTES || free.len() >= MAX_FREE {
            bytes -= free.remove(0).len();
        }
        free.push(buffer);
    }
}

/// Decoded content, in a buffer that goes back to where it came from.
pub(crate) struct Content {
    bytes: Vec<u8>,
    len: usize,
    home: Arc<Buffers>,
}

impl Content {
    /// The whole buffer.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
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
        self.home.give(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_within_bounds() {
        let buffers = Arc::new(Buffers::default());
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
        assert!(free.len() <= MAX_FREE && free.iter().map(Vec::len).sum::<usize>() <= MAX_FREE_BYTES);
    }
}

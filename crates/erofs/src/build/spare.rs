//! Reusable buffers of a build.

use std::sync::{Mutex, PoisonError};

/// Buffers that wait for reuse, because the kernel must clear fresh memory first.
#[derive(Default)]
pub(crate) struct Spare {
    buffers: Mutex<Vec<Vec<u8>>>,
    /// Shorter buffers are allocated each time if there are several threads.
    least_bytes: usize,
}

impl Spare {
    pub(crate) fn new(threads: usize) -> Self {
        Self { buffers: Mutex::default(), least_bytes: if threads == 1 { 1 } else { 1 << 20 } }
    }

    pub(crate) fn take(&self, len: u64) -> Vec<u8> {
        if len < self.least_bytes as u64 {
            return Vec::new();
        }
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    pub(crate) fn give(&self, bytes: Vec<u8>) {
        if bytes.capacity() >= self.least_bytes {
            self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        }
    }
}

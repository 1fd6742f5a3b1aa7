//! A base as a part of the blob that it becomes in a registry.

use std::{fs::File, io, ops::Range, sync::Arc};

use pagefold_storage::{ReadAt, Storage};

/// A device with which a blob begins.
pub(super) struct OfBlob {
    pub(super) device: Arc<dyn Storage>,
    /// The blob's sum.
    pub(super) sum: [u8; 32],
}

impl ReadAt for OfBlob {
    fn len_bytes(&self) -> io::Result<u64> {
        self.device.len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.device.read_exact_at(buf, offset)
    }

    fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        self.device.read_all_at(parts)
    }

    fn unit_bytes(&self) -> u64 {
        self.device.unit_bytes()
    }

    fn is_far(&self) -> bool {
        self.device.is_far()
    }

    fn fetch(&self, ranges: &[Range<u64>]) {
        self.device.fetch(ranges);
    }

    fn file(&self) -> Option<&File> {
        self.device.file()
    }

    fn blob_sha256(&self) -> Option<[u8; 32]> {
        Some(self.sum)
    }
}

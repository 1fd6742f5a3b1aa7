//! An image whose devices the user names.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::{ReadAt, Storage, Stretch};

/// A storage with an EROFS image, and the storages that hold the rest of the image's data.
pub struct WithDevices {
    storage: Arc<dyn Storage>,
    devices: Vec<Arc<dyn Storage>>,
    identity: String,
}

impl WithDevices {
    /// Adds `devices`, in the order of the image's device table. Without any, the storage stays as it
    /// is.
    pub fn over(storage: Arc<dyn Storage>, devices: Vec<Arc<dyn Storage>>) -> Arc<dyn Storage> {
        if devices.is_empty() {
            return storage;
        }
        let mut identity = storage.identity().to_owned();
        for device in &devices {
            identity.push('+');
            identity.push_str(device.identity());
        }
        Arc::new(Self { storage, devices, identity })
    }

    fn all(&self) -> impl Iterator<Item = &Arc<dyn Storage>> {
        std::iter::once(&self.storage).chain(&self.devices)
    }
}

impl ReadAt for WithDevices {
    fn len_bytes(&self) -> io::Result<u64> {
        self.storage.len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.storage.read_exact_at(buf, offset)
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        self.storage.try_read_at(buf, offset)
    }

    fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        self.storage.read_all_at(parts)
    }

    fn unit_bytes(&self) -> u64 {
        self.storage.unit_bytes()
    }

    fn is_far(&self) -> bool {
        self.storage.is_far()
    }

    fn fetch(&self, ranges: &[Range<u64>]) {
        self.storage.fetch(ranges);
    }

    fn bytes_at(&self, len: usize, offset: u64) -> Option<&[u8]> {
        self.storage.bytes_at(len, offset)
    }

    fn file(&self) -> Option<&File> {
        self.storage.file()
    }

    fn blob_sha256(&self) -> Option<[u8; 32]> {
        self.storage.blob_sha256()
    }
}

impl Storage for WithDevices {
    fn identity(&self) -> &str {
        &self.identity
    }

    fn is_changed(&self) -> bool {
        self.all().any(|storage| storage.is_changed())
    }

    fn is_changed_now(&self) -> bool {
        self.all().any(|storage| storage.is_changed_now())
    }

    fn stretch_at(&self, at: u64) -> Stretch {
        self.storage.stretch_at(at)
    }

    fn extension(&self) -> Option<&str> {
        self.storage.extension()
    }

    fn devices(&self) -> io::Result<Vec<Arc<dyn Storage>>> {
        Ok(self.devices.clone())
    }
}

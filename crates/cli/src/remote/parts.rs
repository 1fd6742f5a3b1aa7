//! The parts of images in a registry.

use std::{
    any::Any,
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, anyhow};
use pagefold_erofs::{Error, Image, ReadAt};
use pagefold_remote::{Clusters, Part, Remote, Sum};
use pagefold_storage::Storage;

use crate::{
    image,
    storage::{self, RemoteArgs},
};

/// An image, and the devices with the rest of its data.
pub(crate) struct Opened {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) devices: Vec<Arc<dyn Storage>>,
    pub(crate) clusters: Clusters,
    tags: Vec<[u8; 64]>,
}

impl Opened {
    /// Opens the image of this name. Without `devices`, uses those that come with it.
    pub(crate) fn open(name: &Path, devices: &[PathBuf], remote: &RemoteArgs) -> anyhow::Result<Self> {
        let shown = || pagefold_storage::shown(name);
        let storage = storage::open(name, remote).with_context(shown)?;
        image::check(name, &*storage, 0)?;
        let devices = match devices {
            [] => storage.devices().with_context(shown)?,
            given => {
                let open = |name: &PathBuf| storage::open(name, remote).with_context(|| pagefold_storage::shown(name));
                given.iter().map(open).collect::<anyhow::Result<_>>()?
            }
        };
        let boxed = devices.iter().map(|device| Box::new(Arc::clone(device)) as Box<dyn ReadAt>).collect();
        let image = opened(&storage, boxed).map_err(|error| match error {
            Error::Devices(_) => {
                anyhow!("{}: {error} (give each device with --device, in the order of the image's table)", shown())
            }
            error => anyhow::Error::new(error).context(shown()),
        })?;
        let tags = image.other_devices().map(|(tag, _)| tag).collect();
        Ok(Self { storage, devices, clusters: Clusters::of(&image), tags })
    }

    /// Returns the image as a part.
    pub(crate) fn part(&self) -> anyhow::Result<Part> {
        match of_registry(&self.storage) {
            Some(part) => Ok(part),
            None => Ok(Part::of_image(Arc::clone(&self.storage) as Arc<dyn ReadAt>, &self.clusters)?),
        }
    }

    /// Returns its devices as parts.
    pub(crate) fn devices(&self) -> anyhow::Result<Vec<Part>> {
        devices(&self.devices, &self.tags)
    }
}

/// Returns devices as parts. `tags` are those of an image's device table, which has the devices of its
/// base after the base. Each device is summed once.
pub(crate) fn devices(devices: &[Arc<dyn Storage>], tags: &[[u8; 64]]) -> anyhow::Result<Vec<Part>> {
    let mut parts = Vec::with_capacity(devices.len());
    let mut below: VecDeque<Summed> = VecDeque::with_capacity(devices.len());
    for (number, device) in devices.iter().enumerate().rev() {
        let tag = tags.get(number).unwrap_or(&[0; 64]);
        let reading = || format!("cannot read device {}", number + 1);
        let part = part(device, tag, &below).with_context(reading)?;
        below.push_front(Summed { storage: Arc::clone(device), sum: part.sum_of_bytes() });
        parts.push(part);
    }
    parts.reverse();
    Ok(parts)
}

/// Returns a device as a part. `below` may hold data of it.
fn part(device: &Arc<dyn Storage>, tag: &[u8; 64], below: &VecDeque<Summed>) -> anyhow::Result<Part> {
    if let Some(part) = of_registry(device) {
        return Ok(part);
    }
    let below = || below.iter().map(|device| Box::new(device.clone()) as Box<dyn ReadAt>).collect();
    let image = opened(device, Vec::new()).or_else(|_| opened(device, below()));
    // A device need not be an image.
    let clusters = image.map(|image| Clusters::of(&image)).unwrap_or_default();
    Ok(Part::of_device(Arc::clone(device) as Arc<dyn ReadAt>, tag, &clusters)?)
}

/// A device whose sum is known, so that it is not read as a whole again.
#[derive(Clone)]
struct Summed {
    storage: Arc<dyn Storage>,
    sum: Option<Sum>,
}

impl ReadAt for Summed {
    fn len_bytes(&self) -> io::Result<u64> {
        self.storage.len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.storage.read_exact_at(buf, offset)
    }

    fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        self.storage.read_all_at(parts)
    }

    fn unit_bytes(&self) -> u64 {
        self.storage.unit_bytes()
    }

    fn blob_sha256(&self) -> Option<[u8; 32]> {
        self.storage.blob_sha256().or_else(|| self.sum.map(Into::into))
    }
}

/// Returns the layer of a registry that the storage reads, if it is one.
fn of_registry(storage: &Arc<dyn Storage>) -> Option<Part> {
    let storage: &dyn Any = &**storage;
    Part::of_remote(storage.downcast_ref::<Remote>()?)
}

fn opened(storage: &Arc<dyn Storage>, devices: Vec<Box<dyn ReadAt>>) -> Result<Image, Error> {
    Image::open_with_devices(Arc::clone(storage), devices, Image::DEFAULT_CACHE_BYTES)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    /// A file of zeros that counts the bytes that are read.
    struct Counted(Arc<AtomicU64>);

    impl ReadAt for Counted {
        fn len_bytes(&self) -> io::Result<u64> {
            Ok(1 << 20)
        }

        fn read_exact_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<()> {
            self.0.fetch_add(buf.len() as u64, Relaxed);
            buf.fill(0);
            Ok(())
        }
    }

    impl Storage for Counted {
        fn identity(&self) -> &str {
            "counted"
        }
    }

    /// A device whose checksum is known passes it on to the devices above it.
    #[test]
    fn sums_are_made_once() {
        let read = Arc::<AtomicU64>::default();
        let device = Arc::new(Counted(Arc::clone(&read))) as Arc<dyn Storage>;
        let sum: [u8; 32] = Sum::of(&vec![0; 1 << 20]).into();
        let tag: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        let tag: [u8; 64] = tag.as_bytes().try_into().expect("64 digits");
        let named = part(&device, &tag, &VecDeque::new()).expect("a part");
        let summed = |part: Part| Summed { storage: Arc::clone(&device), sum: part.sum_of_bytes() };
        assert_eq!(summed(named).blob_sha256(), Some(sum));
        // With an index at its end, it would be another blob.
        let appended = part(&device, &[0; 64], &VecDeque::new()).expect("a part");
        assert_eq!(summed(appended).blob_sha256(), None);
        read.store(0, Relaxed);
        assert_eq!(devices(&vec![Arc::clone(&device); 20], &[tag; 20]).expect("parts").len(), 20);
        assert!(read.load(Relaxed) <= 21 << 20, "{read:?}");
    }
}

//! What images consist of in a registry.

use std::{any::Any, path::Path, path::PathBuf, sync::Arc};

use anyhow::{Context, anyhow};
use pagefold_erofs::{Error, Image, ReadAt};
use pagefold_remote::{Clusters, Part, Remote};
use pagefold_storage::Storage;

use crate::storage::{self, RemoteArgs};

/// An image, and what holds the rest of its data.
pub(crate) struct Opened {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) devices: Vec<Arc<dyn Storage>>,
    pub(crate) clusters: Clusters,
    tags: Vec<[u8; 64]>,
}

impl Opened {
    /// Opens the image of this name. Without `devices`, those that come with it are taken.
    pub(crate) fn open(name: &Path, devices: &[PathBuf], remote: &RemoteArgs) -> anyhow::Result<Self> {
        let shown = || pagefold_storage::shown(name);
        let storage = storage::open(name, remote).with_context(shown)?;
        let devices = match devices {
            [] => storage.devices().with_context(shown)?,
            given => {
                let open = |name: &PathBuf| storage::open(name, remote).with_context(|| pagefold_storage::shown(name));
                given.iter().map(open).collect::<anyhow::Result<_>>()?
            }
        };
        let image = image(&storage, &devices).map_err(|error| match error {
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

/// Returns devices as parts. `tags` are those of an image's device table.
pub(crate) fn devices(devices: &[Arc<dyn Storage>], tags: &[[u8; 64]]) -> anyhow::Result<Vec<Part>> {
    let mut parts = Vec::with_capacity(devices.len());
    for (number, device) in devices.iter().enumerate() {
        let tag = tags.get(number).unwrap_or(&[0; 64]);
        let reading = || format!("cannot read device {}", number + 1);
        parts.push(part(device, tag, &devices[number + 1..]).with_context(reading)?);
    }
    Ok(parts)
}

/// Returns a device as a part. `below` may hold data of it: an image's device table has the devices of
/// its base after the base.
pub(crate) fn part(device: &Arc<dyn Storage>, tag: &[u8; 64], below: &[Arc<dyn Storage>]) -> anyhow::Result<Part> {
    if let Some(part) = of_registry(device) {
        return Ok(part);
    }
    let image = image(device, &[]).or_else(|_| image(device, below));
    // A device need not be an image.
    let clusters = image.map(|image| Clusters::of(&image)).unwrap_or_default();
    Ok(Part::of_device(Arc::clone(device) as Arc<dyn ReadAt>, tag, &clusters)?)
}

/// Returns the layer that a storage is in a registry.
fn of_registry(storage: &Arc<dyn Storage>) -> Option<Part> {
    let storage: &dyn Any = &**storage;
    Part::of_remote(storage.downcast_ref::<Remote>()?)
}

fn image(storage: &Arc<dyn Storage>, devices: &[Arc<dyn Storage>]) -> Result<Image, Error> {
    let devices = devices.iter().map(|device| Box::new(Arc::clone(device)) as Box<dyn ReadAt>).collect();
    Image::open_with_devices(Arc::clone(storage), devices, Image::DEFAULT_CACHE_BYTES)
}

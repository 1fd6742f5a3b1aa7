//! The base below a frozen disk, as the process that writes an image sees it.

use std::{
    fmt,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use pagefold_control::BaseRecord;
use pagefold_erofs::{BuildOptions, Image, ReadAt};
use pagefold_storage::{Location, Open, Storage, WithDevices};

use super::error::{FreezeError, Result, Within, ensure, refuse};

/// A base that is the backing file of an image.
pub(super) struct BackingFile<'a> {
    pub(super) path: &'a str,
    pub(super) format: &'a str,
    identity: &'a str,
}

impl<'a> BackingFile<'a> {
    /// Returns the base of the disk `name` as the backing file of a qcow2 image.
    ///
    /// # Errors
    /// There is none, QEMU cannot read it, or it differs from the server's.
    pub(super) fn of(base: Option<&'a BaseRecord>, name: &str) -> Result<Self> {
        let Some(BaseRecord { path, format, identity, .. }) = base else {
            refuse!("disk '{name}' has no base: leave out --backing to write all of it")
        };
        ensure!(
            format == "raw" || format == "qcow2",
            "the base {path} is an EROFS image, which QEMU cannot read: leave out --backing to write all of the disk"
        );
        ensure!(
            !Location::of(path.as_ref()).is_url(),
            "the base {path} is not a local file, as a backing file must be: leave out --backing to write all of the disk"
        );
        let backing = Self { path, format, identity };
        backing.check_unchanged()?;
        Ok(backing)
    }

    /// Checks that the path still leads to the unchanged file that the server has.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let failed = || format!("the base {} cannot be the backing file", self.path);
        let found = File::open(self.path).and_then(|file| pagefold_storage::identity_of(&file)).within(failed)?;
        let is_same = found == self.identity;
        ensure!(is_same, "{}: it was changed or replaced since the server opened it", failed());
        Ok(())
    }
}

/// The EROFS image that contains a base.
pub struct BaseImage {
    path: PathBuf,
    storage: Arc<dyn Storage>,
    /// The files that hold the image's data: the image, then its devices.
    parts: Vec<Arc<dyn Storage>>,
    content: pagefold_erofs::File,
}

impl fmt::Debug for BaseImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BaseImage").field("path", &self.path).finish_non_exhaustive()
    }
}

impl BaseImage {
    /// Opens the image that contains a base.
    pub(super) fn open(base: &BaseRecord, open: &Open) -> Result<Self> {
        let path = Path::new(&base.path);
        let devices = base.devices.iter().map(|device| open(Path::new(device))).collect::<std::io::Result<_>>()?;
        let own = open(path)?;
        let storage = WithDevices::over(Arc::clone(&own), devices);
        ensure!(storage.identity() == base.identity, "it was changed or replaced since the server opened it");
        let devices = storage.devices()?;
        let parts = [&[own], &devices[..]].concat();
        let devices = devices.into_iter().map(|device| Box::new(device) as Box<dyn ReadAt>).collect();
        let image = Image::open_with_devices(Arc::clone(&storage), devices, Image::DEFAULT_CACHE_BYTES)?;
        let content = pagefold_base::image_file(path, &image, base.inside.as_deref().map(str::as_bytes))?;
        Ok(Self { path: path.into(), storage, parts, content })
    }

    /// Returns the options with which the base was packed.
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn options(&self) -> Result<BuildOptions, FreezeError> {
        Ok(BuildOptions::like(&self.content)?)
    }

    /// Returns the file in it that is the base.
    pub(super) fn content(&self) -> pagefold_erofs::File {
        self.content.clone()
    }

    /// Returns the files that hold the image's data: the image, then its devices in the order of
    /// its device table.
    pub fn parts(&self) -> &[Arc<dyn Storage>] {
        &self.parts
    }

    /// Returns the tags of the devices, in the same order.
    pub fn device_tags(&self) -> Vec<[u8; 64]> {
        self.content.image().other_devices().map(|(tag, _)| tag).collect()
    }

    /// Checks that the image has not changed since it was opened.
    ///
    /// # Errors
    /// It has changed: data copied from it are not reliable.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        ensure!(
            !self.storage.is_changed_now(),
            "the base {} was changed while the disk was written out: nothing is written",
            self.path.display()
        );
        Ok(())
    }
}

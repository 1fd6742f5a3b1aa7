//! Saves a disk as a raw, qcow2 or EROFS image, in the server's own process or in another one.

mod base;
mod blob;
mod error;
mod frozen;
mod qcow2;
mod raw;
mod reader;

use std::{fmt, fs::File, sync::Arc};

use pagefold_erofs::{BuildOptions, BuildReport, Content, Image, Node, NodeKind, Overlay, ReadAt, Tree, build_watched};
use pagefold_storage::{Open, Storage};

use self::{
    base::BackingFile,
    blob::OfBlob,
    error::{Result, Within},
    frozen::Wanted,
};
pub use self::{base::BaseImage, error::FreezeError, frozen::Frozen};

/// Receives the bytes that are done, and those of the whole work.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// How a qcow2 image is written. Start from [`Qcow2Options::default`] and change fields.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Qcow2Options {
    /// Level of DEFLATE, 1 to 9; `None` for no compression.
    pub level: Option<u32>,
    /// Number of threads; 0 means one per processor.
    pub threads: usize,
    /// Whether to write only the changes since the base. The base must be a qcow2 or raw file; it
    /// becomes the image's backing file.
    pub backing: bool,
}

/// An EROFS image that was written.
#[non_exhaustive]
pub struct ErofsImage {
    /// What the image holds.
    pub tree: Tree,
    /// Its sizes.
    pub report: BuildReport,
    /// Its devices, in the order of its device table.
    devices: Vec<Arc<dyn Storage>>,
    base_sha256: Option<[u8; 32]>,
}

impl ErofsImage {
    /// Opens the image that was written to `file`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(&self, file: impl ReadAt + 'static) -> Result<Image, FreezeError> {
        // The base need not be the blob with this sum: it must only begin with the same bytes.
        let sums = std::iter::once(self.base_sha256).chain(std::iter::repeat(None));
        let devices = self.devices.iter().zip(sums).map(|(device, sum)| {
            let device = Arc::clone(device);
            match sum {
                Some(sum) => Box::new(OfBlob { device, sum }) as Box<dyn ReadAt>,
                None => Box::new(device),
            }
        });
        Ok(Image::open_with_devices(file, devices.collect(), Image::DEFAULT_CACHE_BYTES)?)
    }
}

impl fmt::Debug for ErofsImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErofsImage").field("report", &self.report).finish_non_exhaustive()
    }
}

impl Frozen {
    /// Writes the disk to `out`, an empty file, as a raw disk with holes for zeros.
    ///
    /// # Errors
    /// The disk cannot be read, or the file cannot be written.
    pub fn write_raw(&self, out: &File, progress: Progress<'_>) -> Result<(), FreezeError> {
        raw::write(self, out, progress)
    }

    /// Writes the disk to `out`, an empty file, as a qcow2 image.
    ///
    /// # Errors
    /// The disk cannot be read, the file cannot be written, or there is no base that can be the
    /// backing file.
    pub fn write_qcow2(&self, out: &File, options: Qcow2Options, progress: Progress<'_>) -> Result<(), FreezeError> {
        let Qcow2Options { level, threads, backing } = options;
        let backing = if backing { Some(BackingFile::of(self.base(), self.name())?) } else { None };
        let wanted = if backing.is_some() { Wanted::AboveBase } else { Wanted::BytesAndZeros };
        let source = qcow2::Qcow2Source {
            size_bytes: self.size_bytes(),
            changes: self.changes(wanted)?,
            reader: &*self.reader(),
            backing: backing.as_ref().map(|BackingFile { path, format, .. }| qcow2::Backing { path, format }),
        };
        let threads = BuildOptions { threads, ..BuildOptions::default() }.thread_count();
        qcow2::write(source, out, level, threads, progress)?;
        backing.map_or(Ok(()), |backing| backing.check_unchanged())
    }

    /// Opens the EROFS image below the disk with `open`, if there is one, so that its unchanged
    /// clusters are copied.
    ///
    /// # Errors
    /// This process cannot read it, or its path leads to another file than the server has.
    pub fn base_image(&self, open: &Open) -> Result<Option<BaseImage>, FreezeError> {
        let base = self.base().filter(|base| base.format == "erofs");
        base.map(|base| BaseImage::open(base, open).within(|| format!("cannot reuse the base {}", base.path)))
            .transpose()
    }

    /// Writes the disk to `out`, an empty file, as the only file of an EROFS image, `disk.img`. If
    /// the `options` match those of `base`, copies its unchanged clusters or refers to them.
    ///
    /// # Errors
    /// The disk cannot be read, the file cannot be written, or the base was changed.
    pub fn write_erofs(
        &self,
        out: &File,
        options: &BuildOptions,
        base: Option<&BaseImage>,
        progress: Progress<'_>,
    ) -> Result<ErofsImage, FreezeError> {
        let changes = self.changes(if base.is_some() { Wanted::AboveBase } else { Wanted::Bytes })?;
        let overlay = Overlay::new(self.size_bytes(), changes, self.reader())?;
        let overlay = Arc::new(match base {
            Some(base) => overlay.over(base.content()),
            None => overlay,
        });
        let tree = tree_of(overlay)?;
        let report = build_watched(&tree, options, out, &mut |done| progress(done.done_bytes, done.total_bytes))?;
        base.map_or(Ok(()), BaseImage::check_unchanged)?;
        let devices = base.filter(|_| options.base_is_device).map_or_else(Vec::new, |base| base.parts().to_vec());
        Ok(ErofsImage { tree, report, devices, base_sha256: options.base_sha256 })
    }
}

/// Returns the tree of an image with a single file. Its metadata are the same for all disks, so
/// equal content gives equal images.
fn tree_of(overlay: Arc<Overlay>) -> Result<Tree> {
    let node =
        |kind, permissions| Node { kind, permissions, uid: 0, gid: 0, mtime_s: 0, mtime_nsec: 0, xattrs: Vec::new() };
    let size = overlay.size();
    let mut tree = Tree::new(node(NodeKind::Fifo, 0o755));
    let root = tree.root();
    tree.add(root, b"disk.img", node(NodeKind::Regular { content: Content::Overlay(overlay), size }, 0o644))?;
    Ok(tree)
}

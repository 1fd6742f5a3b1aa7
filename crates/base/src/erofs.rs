//! A file in an EROFS image.

use std::{io, ops::ControlFlow, path::Path, sync::Arc};

use pagefold_disk::{Error, Extent, Read};
use pagefold_erofs::{File, FileKind, Image, Inode, ReadAt, ReadPart};
use pagefold_storage::Storage;

use crate::{
    OpenError,
    cache::Leased,
    content::{Content, data, hole},
    inside,
};

/// An image keeps decoded indexes of up to 4 MiB, and blocks of the directories that lead to the
/// file.
const MOST_INDEX_BYTES: u64 = 4 << 20;
const DIRECTORY_BYTES: u64 = 64 << 10;

/// A file in an EROFS image, read through a shared cache.
pub(crate) struct ErofsFile {
    file: File,
    unit_bytes: u64,
    /// Clusters that were decoded to open the file.
    decoded_before: u64,
    _cache: Arc<Leased>,
}

impl ErofsFile {
    /// Opens the file at `inside`, or the image's only file. Metadata that locates its content is
    /// read and verified when it is needed. A file whose content is not a raw disk is refused, unless
    /// it `is_wanted` whatever it is.
    pub(crate) fn open(
        path: &Path,
        storage: Arc<dyn Storage>,
        inside: Option<&[u8]>,
        is_wanted: bool,
        cache: Arc<Leased>,
    ) -> Result<Self, OpenError> {
        let wrong = |source| OpenError::Erofs { path: path.into(), source };
        let is_far = storage.is_far();
        let devices = storage.devices().map_err(|source| OpenError::of_storage(path, source))?;
        let devices = devices.into_iter().map(|device| Box::new(device) as Box<dyn ReadAt>).collect();
        let image = Image::open_sharing(storage, devices, &cache.clusters).map_err(wrong)?;
        // Otherwise, only reads of the missing part would fail.
        image.check_len().map_err(wrong)?;
        let (name, file) = named_file(path, &image, inside)?;
        let unit_bytes = file.cluster_bytes().map_err(wrong)?;
        if !is_wanted {
            inside::check(path, &name, &file, is_far)?;
        }
        let decoded_before = decoded(&file);
        Ok(Self { file, unit_bytes, decoded_before, _cache: cache })
    }
}

/// Returns the file at `inside` in the image at `path`, or the image's only file.
///
/// # Errors
/// [`OpenError::Erofs`], and [`OpenError::Unfit`] if it is not a regular file, or not the only one.
pub fn image_file(path: &Path, image: &Image, inside: Option<&[u8]>) -> Result<File, OpenError> {
    named_file(path, image, inside).map(|(_, file)| file)
}

/// Like [`image_file`], with the file's name or path.
fn named_file(path: &Path, image: &Image, inside: Option<&[u8]>) -> Result<(Vec<u8>, File), OpenError> {
    let wrong = |source| OpenError::Erofs { path: path.into(), source };
    let (name, inode) = match inside {
        // With a trailing slash, a symbolic link is followed.
        Some(inside) => (inside.to_vec(), image.resolve(&[inside, b"/"].concat()).map_err(wrong)?),
        None => only_file(path, image)?,
    };
    if inode.kind != FileKind::Regular {
        let what = format!("{} in it is not a regular file", String::from_utf8_lossy(inside.unwrap_or_default()));
        return Err(OpenError::Unfit { path: path.into(), what });
    }
    Ok((name, image.file(&inode).map_err(wrong)?))
}

/// Returns the regular file that is the only entry of the root directory, and its name.
fn only_file(path: &Path, image: &Image) -> Result<(Vec<u8>, Inode), OpenError> {
    let wrong = |source| OpenError::Erofs { path: path.into(), source };
    let root = image.root().map_err(wrong)?;
    let mut found = Vec::new();
    image
        .for_each_entry_from(&root, 0, |entry, _| {
            if !matches!(&*entry.name, b"." | b"..") {
                found.push((entry.name.to_vec(), entry.nid));
            }
            if found.len() > 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .map_err(wrong)?;
    let only = match (found.pop(), found.pop()) {
        (Some((name, nid)), None) => Some((name, image.inode(nid).map_err(wrong)?)),
        _ => None,
    };
    only.filter(|(_, inode)| inode.kind == FileKind::Regular).ok_or_else(|| {
        let path = path.to_path_buf();
        let what = format!("the image is a tree of files: select a disk in it with {0}:/PATH, or mount the tree with 'pagefold mount {0} DIR'", path.display());
        OpenError::Unfit { path, what }
    })
}

/// Returns how many clusters were decoded for the file's image.
fn decoded(file: &File) -> u64 {
    let counts = file.counts();
    counts.decoded_in_place + counts.decoded_by_copy
}

impl Content for ErofsFile {
    fn len_bytes(&self) -> u64 {
        self.file.inode().size
    }

    fn table_bytes(&self) -> u64 {
        let index_bytes = self.file.index_bytes().min(MOST_INDEX_BYTES);
        index_bytes + DIRECTORY_BYTES
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        match self.file.read_at(buf, offset) {
            Ok(len) if len == buf.len() => Ok(()),
            Ok(_) => Err(Error::Io(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(Error::Io(io::Error::other(error))),
        }
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> usize {
        self.file.try_read_at(buf, offset)
    }

    fn read_together(&self, reads: &mut [&mut Read<'_>]) {
        let parts = reads.iter_mut().map(|read| ReadPart { offset: read.offset, buf: &mut *read.buf, result: Ok(()) });
        let mut parts: Vec<_> = parts.collect();
        self.file.read_together(&mut parts);
        let results: Vec<_> = parts.into_iter().map(|part| part.result).collect();
        for (read, result) in reads.iter_mut().zip(results) {
            read.result = result.map_err(|error| Error::Io(io::Error::other(error)));
        }
    }

    fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    fn decoded_clusters(&self) -> u64 {
        decoded(&self.file) - self.decoded_before
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        let runs = self
            .file
            .runs(offset..offset + len_bytes, &mut |run| each(if run.hole { hole(run.len) } else { data(run.len) }));
        runs.map_err(|error| Error::Io(io::Error::other(error)))
    }
}

//! A single disk or other file, which becomes the only file of an image.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagefold_base::{Base, Cache, Format, Options};
use pagefold_erofs::{Change, Content, FileKind, Image, Node, NodeKind, Overlay, ReadAt, ScanOptions, Tree};
use pagefold_storage::{Storage, StoredFile};
use rustix::fs::{FsWord, PROC_SUPER_MAGIC, fstatfs};

use crate::{
    Result, Warn,
    error::{Within, refuse},
};

/// Memory for decoded content of an EROFS image.
const CACHE_BYTES: usize = 32 << 20;

/// File systems of the kernel whose files have content and a length of 0 (`linux/magic.h`): procfs, both versions
/// of control groups, tracefs, debugfs. They are not read to find out: `/proc/kmsg` waits, and forgets what was read.
const WITHOUT_LENGTHS: [FsWord; 5] = [PROC_SUPER_MAGIC, 0x0027_e0eb, 0x6367_7270, 0x7472_6163, 0x6462_6720];

/// A disk in a file.
pub(crate) struct Disk {
    name: Vec<u8>,
    content: Content,
    size: u64,
    /// The source's metadata, for owner, mode and time.
    metadata: Metadata,
}

/// A file that contains a disk.
pub(crate) struct DiskFile {
    pub(crate) file: File,
    /// The file's path, without what a compressor added to it.
    pub(crate) path: PathBuf,
    /// Whether the file itself has that path.
    pub(crate) is_there: bool,
    /// The source's metadata.
    pub(crate) metadata: Metadata,
}

impl Disk {
    /// Opens the disk in a file of this format. `None`: content and name determine it, and must
    /// agree, and a file in an EROFS image must be a raw disk. `warn` receives later events of the
    /// file.
    pub(crate) fn open(disk: DiskFile, given: Option<Format>, warn: &Warn) -> Result<Self> {
        let DiskFile { file, path, is_there, metadata } = disk;
        let shown = || path.display().to_string();
        let open = if is_there { Some(file.try_clone().within(shown)?) } else { None };
        let storage: Arc<dyn Storage> = Arc::new(StoredFile::new(file).within(shown)?);
        let format = given.map_or_else(|| Format::of(&path, &*storage), Ok)?;
        let Some(file_name) = path.file_name() else { refuse!("{} has no name", shown()) };
        if format == Format::Raw {
            let size = storage.len_bytes().within(shown)?;
            if let Some(file) = open {
                if size == 0 && metadata.file_type().is_block_device() {
                    refuse!("{} is a device of no length", shown());
                }
                if size == 0 && WITHOUT_LENGTHS.contains(&fstatfs(&file).map_err(io::Error::from).within(shown)?.f_type)
                {
                    refuse!("{} has no length, as files of procfs: copy it, and pack the copy", shown());
                }
                let content = Content::Open(Arc::new(file), (&path).into());
                return Ok(Self { name: file_name.as_bytes().to_vec(), content, size, metadata });
            }
            // An empty file is not a disk, but can be packed.
            if size == 0 {
                let content = Content::Bytes(Vec::new().into());
                return Ok(Self { name: file_name.as_bytes().to_vec(), content, size, metadata });
            }
        }
        let name = match format {
            Format::Erofs => only_name(&path, &storage)?,
            Format::Qcow2 if path.extension().is_some_and(|end| end.eq_ignore_ascii_case(format.name())) => {
                Path::new(file_name).with_extension("img").into_os_string().into_vec()
            }
            _ => file_name.as_bytes().to_vec(),
        };
        let mut options = Options::default();
        options.format = given;
        let warn = Arc::clone(warn);
        let base = Base::of(storage, &path, &options, &Cache::new(CACHE_BYTES), move |line| warn(line))?;
        let changes = base.data().map_err(std::io::Error::other).within(shown)?;
        let changes =
            changes.into_iter().map(|range| Change { at: range.start, len: range.end - range.start, zeros: false });
        let size = base.len_bytes().within(shown)?;
        let overlay = Overlay::new(size, changes.collect(), Arc::new(base))?;
        Ok(Self { name, content: Content::Overlay(Arc::new(overlay)), size, metadata })
    }

    /// Returns the tree of which the disk is the only file.
    pub(crate) fn into_tree(self, options: &ScanOptions) -> Result<Tree> {
        let Self { name, content, size, metadata } = self;
        let mut tree = Tree::new(node_of(&metadata, options, NodeKind::Fifo, 0o755));
        let permissions = (metadata.mode() & 0o777) as u16;
        let node = node_of(&metadata, options, NodeKind::Regular { content, size }, permissions);
        tree.add(tree.root(), &name, node)?;
        Ok(tree)
    }
}

/// Returns the name of the only file in an EROFS image.
fn only_name(path: &Path, storage: &Arc<dyn Storage>) -> Result<Vec<u8>> {
    let shown = || path.display().to_string();
    let image = match Image::open(Arc::clone(storage)) {
        Err(pagefold_erofs::Error::Devices(what)) => refuse!(
            "{0}: {what}: 'pagefold serve --device DEVICE {0}' serves the disk in it, and 'pagefold freeze' packs all of it",
            shown()
        ),
        image => image.within(shown)?,
    };
    let root = image.root().within(shown)?;
    let mut entries =
        image.read_dir(&root).within(shown)?.into_iter().filter(|entry| !matches!(&*entry.name, b"." | b".."));
    match (entries.next(), entries.next()) {
        (Some(entry), None) if image.inode(entry.nid).within(shown)?.kind == FileKind::Regular => {
            Ok(entry.name.to_vec())
        }
        _ => refuse!(
            "{0} is an EROFS image already, and does not contain a single disk: 'pagefold extract {0} -C DIRECTORY' extracts its \
             files, and --format raw packs the image itself",
            shown()
        ),
    }
}

fn node_of(metadata: &Metadata, options: &ScanOptions, kind: NodeKind, permissions: u16) -> Node {
    Node {
        kind,
        permissions,
        uid: options.uid.unwrap_or_else(|| options.uid_map.apply(metadata.uid())),
        gid: options.gid.unwrap_or_else(|| options.gid_map.apply(metadata.gid())),
        mtime_s: options.mtime_s.unwrap_or(metadata.mtime()),
        mtime_nsec: if options.mtime_s.is_some() { 0 } else { metadata.mtime_nsec() as u32 },
        xattrs: Vec::new(),
    }
}

//! Scans a directory of the operating system into a tree.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Statx, openat, readlinkat};
use rustix::io::Errno;

use super::content::Content;
use super::found::{Found, device_of, is_replaced, kind_of, metadata, metadata_at};
use super::layer::Layer;
use super::live::{LiveFile, is_exhaustion};
use super::place::SourcePath;
use super::reach::{Reached, STEP};
use super::scan_options::{ScanOptions, Verdict};
use super::source_file::SourceFile;
use super::tree::{Node, NodeId, NodeKind, Origin, Tree};
use super::warnings::{WarningKind, Warnings};
use super::xattrs::unstorable;
use crate::error::{Error, Result};
use crate::format::Xattr;

impl Tree {
    /// Scans the tree under `root`. Hard links within it are preserved
    /// ([`separate_links`](Self::separate_links) makes them files of their own). Other file systems
    /// mounted in it are included, unless the options say otherwise.
    ///
    /// # Errors
    /// [`Error::Io`] for the first file that cannot be read, unless unreadable files are skipped.
    pub fn scan(root: &Path, options: &ScanOptions) -> Result<Self> {
        Layer::scan(root, options)?.into_tree()
    }
}

impl Layer {
    /// Scans the tree under `root` like [`Tree::scan`], to be stacked on others.
    ///
    /// # Errors
    /// The errors of [`Tree::scan`].
    pub fn scan(root: &Path, options: &ScanOptions) -> Result<Self> {
        let metadata = metadata(root).map_err(Error::io(root.display().to_string()))?;
        if kind_of(&metadata) != FileType::Directory {
            return Err(Error::Source { path: root.to_owned(), what: "not a directory".to_owned() });
        }
        let mut scanner = Scanner::new(root, &metadata, options);
        let found = PendingDirectory::root(root, &metadata);
        let here = scanner.enter(&found)?;
        let top = scanner.node_of(&found.place, &here, ROOT.as_ref(), &metadata)?;
        let mut layer = Self::new(Tree::of_origin(top, Origin::Directory(root.to_owned())));
        let top = layer.tree.root();
        layer.take_in(top, options);
        let mut stack = vec![PendingDirectory { id: top, ..found }];
        while let Some(found) = stack.pop() {
            let listed = scanner.enter(&found).and_then(|here| Ok((here.names(&found.place)?, here)));
            match listed {
                Ok((names, here)) => scanner.add(&mut layer, &found, &here, names, &mut stack)?,
                Err(error) => match &found.parent {
                    Some((parent, name)) if scanner.skips(&error) => {
                        if let Some(names) = layer.tree.names_mut(*parent) {
                            names.remove(name);
                        }
                    }
                    _ => return Err(error),
                },
            }
        }
        layer.tree.warnings_mut().append(scanner.warnings);
        Ok(layer)
    }
}

/// A directory to be listed.
struct PendingDirectory {
    place: SourcePath,
    found: Found,
    id: NodeId,
    /// The number of names below the root.
    depth: usize,
    /// The parent and the name in it.
    parent: Option<(NodeId, Vec<u8>)>,
}

impl PendingDirectory {
    fn root(path: &Path, metadata: &Statx) -> Self {
        Self { place: path.into(), found: Found::of(metadata), id: NodeId(0), depth: 0, parent: None }
    }
}

/// A directory that a scan has found, opened.
struct OpenDirectory {
    directory: OwnedFd,
    path: Reached,
}

impl OpenDirectory {
    /// Returns the names in it.
    fn names(&self, place: &SourcePath) -> Result<Vec<OsString>> {
        let mut buf = Vec::with_capacity(LISTING_BYTES);
        let mut entries = RawDir::new(&self.directory, buf.spare_capacity_mut());
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|error| listing(place, error.into()))?;
            let name = entry.file_name().to_bytes();
            if ![b".", &b".."[..]].contains(&name) {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }
}

/// The memory for a part of a directory's names, in bytes. The same as in libc.
const LISTING_BYTES: usize = 32 << 10;

/// The root directory's name in itself.
const ROOT: &str = ".";

/// The text before the path in an error of listing a directory.
const LISTING: &str = "listing ";
const XATTRS: &str = "xattrs of ";

impl Error {
    /// Returns whether [`ScanOptions::skip_unreadable`] would leave out the file that had this error
    /// while the `source`, a directory, was listed.
    pub fn is_of_unreadable(&self, source: &Path) -> bool {
        let Self::Io { what, source: error } = self else { return false };
        let path = what.strip_prefix(LISTING).or_else(|| what.strip_prefix(XATTRS)).unwrap_or(what);
        let is_below = Path::new(path).strip_prefix(source).is_ok_and(|below| !below.as_os_str().is_empty());
        is_below && Errno::from_io_error(error).is_some() && !is_exhaustion(error)
    }
}

/// The maximum number of directories that are kept open for the paths below them.
const MOST_ANCHORS: u32 = 64;
/// The maximum number of directories that are kept open because others may be in them.
const MOST_RECENT: usize = 16;

fn listing(place: &SourcePath, error: io::Error) -> Error {
    Error::io(format!("{LISTING}{}", place.to_path_buf().display()))(error)
}

struct Scanner<'a> {
    root: &'a Path,
    /// The device of the root.
    device: u64,
    options: &'a ScanOptions,
    warnings: Warnings,
    /// The number of directories that are kept open for the paths below them.
    anchors: u32,
    /// The last directories with long paths.
    recent: VecDeque<(NodeId, Arc<OwnedFd>)>,
    /// Files with several links, by device and inode.
    links: HashMap<(u64, u64), NodeId>,
}

impl<'a> Scanner<'a> {
    fn new(root: &'a Path, metadata: &Statx, options: &'a ScanOptions) -> Self {
        Self {
            root,
            device: device_of(metadata),
            options,
            warnings: Warnings::default(),
            anchors: 0,
            recent: VecDeque::new(),
            links: HashMap::new(),
        }
    }

    /// Returns whether to skip a file after this error. Adds a warning if so.
    fn skips(&mut self, error: &Error) -> bool {
        let Error::Io { what, source } = error else { return false };
        if !self.options.skip_unreadable || is_exhaustion(source) {
            return false;
        }
        let kind = match Errno::from_io_error(source) {
            _ if is_replaced(source) => WarningKind::Replaced,
            Some(Errno::NOENT | Errno::STALE) => WarningKind::Vanished,
            Some(_) => {
                self.warnings.add(WarningKind::Unreadable, || format!("{what}: {source}"));
                return true;
            }
            None => return false,
        };
        self.warnings.add(kind, || what.strip_prefix(LISTING).unwrap_or(what).to_owned());
        true
    }

    /// Opens a directory: by its path or, if that is long, from its parent.
    fn enter(&mut self, found: &PendingDirectory) -> Result<OpenDirectory> {
        let place = &found.place;
        if place.is_far() && self.anchors < MOST_ANCHORS {
            self.anchors += 1;
            // Without this descriptor, longer paths take more steps.
            let _ = place.set_anchor();
        }
        let open = |recent: &mut VecDeque<(NodeId, Arc<OwnedFd>)>| {
            if !place.is_long() {
                return place.reach();
            }
            let parent = found.parent.as_ref().and_then(|(parent, name)| {
                let (_, directory) = recent.iter().rfind(|(id, _)| id == parent)?;
                Some((directory, name))
            });
            let directory = match parent {
                Some((parent, name)) => {
                    openat(parent, OsStr::from_bytes(name), STEP | OFlags::NOFOLLOW, Mode::empty())?
                }
                None => place.reach()?.open_directory()?,
            };
            let directory = Arc::new(directory);
            if recent.len() == MOST_RECENT {
                recent.pop_front();
            }
            recent.push_back((found.id, Arc::clone(&directory)));
            Ok(Reached::directory(directory))
        };
        let opened = open(&mut self.recent).and_then(|path| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = openat(CWD, path.as_ref(), flags, Mode::empty())?;
            found.found.expect(&directory, FileType::Directory)?;
            Ok(OpenDirectory { directory, path })
        });
        opened.map_err(|error| listing(place, error))
    }

    /// Adds a directory's entries. Pushes subdirectories to `stack`.
    fn add(
        &mut self,
        layer: &mut Layer,
        found: &PendingDirectory,
        here: &OpenDirectory,
        names: Vec<OsString>,
        stack: &mut Vec<PendingDirectory>,
    ) -> Result<()> {
        for name in names {
            let below = || {
                let path = found.place.join(name.clone()).to_path_buf();
                path.strip_prefix(self.root).unwrap_or(&path).as_os_str().as_bytes().to_vec()
            };
            if self.options.excludes_at(found.depth + 1, name.as_bytes(), below) {
                continue;
            }
            match self.add_file(layer, found, here, name) {
                Ok(directory) => stack.extend(directory),
                Err(error) if self.skips(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Adds a file. Returns it if it is a directory.
    fn add_file(
        &mut self,
        layer: &mut Layer,
        above: &PendingDirectory,
        here: &OpenDirectory,
        name: OsString,
    ) -> Result<Option<PendingDirectory>> {
        let shown = || above.place.join(name.clone()).to_path_buf();
        let with_path = |error| Error::io(shown().display().to_string())(error);
        let metadata = metadata_at(&here.directory, Path::new(&name), AtFlags::SYMLINK_NOFOLLOW).map_err(with_path)?;
        let (kind, identity) = (kind_of(&metadata), Found::of(&metadata));
        if let Some(image) = &self.options.image {
            match image.verdict(&here.directory, &name, &metadata).map_err(with_path)? {
                Verdict::Take => {}
                Verdict::Skip => return Ok(None),
                Verdict::Refuse => {
                    let what = "it is the output under another name, and an image cannot replace its own source";
                    return Err(Error::Source { path: shown(), what: what.to_owned() });
                }
            }
        }
        let shared = metadata.stx_nlink > 1 && kind != FileType::Directory;
        let inode = (device_of(&metadata), metadata.stx_ino);
        if let Some(node) = self.links.get(&inode).filter(|_| shared) {
            layer.tree.link(above.id, name.as_bytes(), *node)?;
            return Ok(None);
        }
        if self.options.skip_unreadable && kind == FileType::RegularFile {
            identity.open(&here.directory, Path::new(&name)).map_err(with_path)?;
        }
        let place = above.place.join(name.clone());
        let node = self.node_of(&place, here, Path::new(&name), &metadata)?;
        let id = layer.tree.add(above.id, name.as_bytes(), node)?;
        layer.take_in(id, self.options);
        if shared {
            self.links.insert(inode, id);
        }
        let is_listed = kind == FileType::Directory && (!self.options.one_file_system || inode.0 == self.device);
        Ok(is_listed.then(|| PendingDirectory {
            place,
            found: identity,
            id,
            depth: above.depth + 1,
            parent: Some((above.id, name.into_vec())),
        }))
    }

    /// Builds the node of the file at `path`, which is `name` in a directory.
    fn node_of(&mut self, path: &SourcePath, here: &OpenDirectory, name: &Path, metadata: &Statx) -> Result<Node> {
        let device = (metadata.stx_rdev_major, metadata.stx_rdev_minor);
        let kind = match kind_of(metadata) {
            FileType::Directory => NodeKind::Directory(Default::default()),
            FileType::RegularFile => {
                let file = SourceFile::new(path.clone(), Found::of(metadata));
                let content = match self.options.skip_unreadable {
                    true => Content::Live(LiveFile::new(file, metadata)),
                    false => Content::Path(file),
                };
                NodeKind::Regular { content, size: metadata.stx_size }
            }
            FileType::Symlink => {
                let target = readlinkat(&here.directory, name, Vec::new())
                    .map_err(|error| Error::io(path.to_path_buf().display().to_string())(error.into()))?;
                NodeKind::Symlink(target.into_bytes())
            }
            FileType::CharacterDevice => NodeKind::CharDevice(device.0, device.1),
            FileType::BlockDevice => NodeKind::BlockDevice(device.0, device.1),
            FileType::Fifo => NodeKind::Fifo,
            _ => NodeKind::Socket,
        };
        Ok(Node {
            kind,
            permissions: metadata.stx_mode & 0o7777,
            uid: metadata.stx_uid,
            gid: metadata.stx_gid,
            mtime_s: metadata.stx_mtime.tv_sec,
            mtime_nsec: metadata.stx_mtime.tv_nsec,
            xattrs: self
                .xattrs_of(path, here, name, metadata)
                .map_err(|error| Error::io(format!("{XATTRS}{}", path.to_path_buf().display()))(error))?,
        })
    }

    /// Reads a file's xattrs whose names have a prefix that EROFS supports. Others, which only
    /// their own file system understands, are skipped with a warning.
    fn xattrs_of(
        &mut self,
        path: &SourcePath,
        here: &OpenDirectory,
        name: &Path,
        metadata: &Statx,
    ) -> io::Result<Vec<Xattr>> {
        // Most files have none, whatever is at the path now.
        match rustix::fs::llistxattr_query(here.path.as_ref().join(name)) {
            Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let file = openat(&here.directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        Found::of(metadata).expect(&file, kind_of(metadata))?;
        let reached = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let mut xattrs = Vec::new();
        for name in sized(|buf| rustix::fs::listxattr(&reached, buf))?.split(|byte| *byte == 0) {
            if name.is_empty() {
                continue;
            }
            if let Some(kind) = unstorable(name) {
                if !self.options.no_xattrs {
                    let path = path.to_path_buf();
                    let example = || format!("{} of {}", String::from_utf8_lossy(name), path.display());
                    self.warnings.add(kind, example);
                }
                continue;
            }
            let value = sized(|buf| rustix::fs::getxattr(&reached, OsStr::from_bytes(name), buf))?;
            xattrs.push(Xattr { name: name.to_vec(), value });
        }
        Ok(xattrs)
    }
}

/// Calls `fill` with increasing buffers until the result fits. Linux limits both kinds of results
/// to 64 KiB.
fn sized(mut fill: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buf = vec![0; 256];
    loop {
        match fill(&mut buf) {
            Ok(len) => {
                buf.truncate(len);
                return Ok(buf);
            }
            Err(Errno::RANGE) if buf.len() < 1 << 16 => buf.resize(buf.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Files and directories that vanish after their names were read.
    #[test]
    fn files_that_vanish_during_the_scan_are_left_out() {
        for skip_unreadable in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path();
            for name in ["stays", "vanishes"] {
                fs::write(root.join(name), name).unwrap();
                fs::create_dir(root.join(format!("{name}-directory"))).unwrap();
            }
            let options = ScanOptions { skip_unreadable, ..ScanOptions::default() };
            let metadata = metadata(root).unwrap();
            let mut scanner = Scanner::new(root, &metadata, &options);
            let found = PendingDirectory::root(root, &metadata);
            let here = scanner.enter(&found).unwrap();
            let top = scanner.node_of(&found.place, &here, ROOT.as_ref(), &metadata).unwrap();
            let mut layer = Layer::new(Tree::of_origin(top, Origin::None));
            let entries = here.names(&found.place).unwrap();
            fs::remove_file(root.join("vanishes")).unwrap();
            fs::remove_dir(root.join("vanishes-directory")).unwrap();
            let mut stack = Vec::new();
            let added = scanner.add(&mut layer, &found, &here, entries, &mut stack);
            if !skip_unreadable {
                assert!(matches!(added, Err(Error::Io { .. })), "{added:?}");
                continue;
            }
            added.unwrap();
            assert_eq!(layer.tree.walk().len(), 3);
            let [warning] = &scanner.warnings.list()[..] else { panic!("{:?}", scanner.warnings) };
            assert_eq!((warning.kind, warning.count), (WarningKind::Vanished, 2));
            // One that vanishes before it is listed.
            fs::remove_dir(root.join("stays-directory")).unwrap();
            let error = scanner.enter(&stack[0]).err().unwrap();
            assert!(scanner.skips(&error));
            let named = scanner.warnings.list()[0].examples.last().cloned();
            assert_eq!(named, Some(root.join("stays-directory").display().to_string()));
        }
    }

    /// A directory that is replaced by a link, or by another directory, before it is listed.
    #[test]
    fn the_scan_lists_no_directory_that_replaced_another() {
        for is_link in [true, false] {
            for skip_unreadable in [true, false] {
                let folder = tempfile::tempdir().unwrap();
                let (root, secret) = (folder.path().join("tree"), folder.path().join("secret"));
                for directory in [&root.join("one"), &secret] {
                    fs::create_dir_all(directory).unwrap();
                }
                fs::write(secret.join("file"), "secret").unwrap();
                let options = ScanOptions { skip_unreadable, ..ScanOptions::default() };
                let metadata = metadata(&root).unwrap();
                let mut scanner = Scanner::new(&root, &metadata, &options);
                let top = PendingDirectory::root(&root, &metadata);
                let here = scanner.enter(&top).unwrap();
                let mut layer = Layer::new(Tree::of_origin(
                    scanner.node_of(&top.place, &here, ROOT.as_ref(), &metadata).unwrap(),
                    Origin::None,
                ));
                let mut stack = Vec::new();
                let names = here.names(&top.place).unwrap();
                scanner.add(&mut layer, &top, &here, names, &mut stack).unwrap();
                fs::rename(root.join("one"), folder.path().join("moved")).unwrap();
                if is_link {
                    std::os::unix::fs::symlink(&secret, root.join("one")).unwrap();
                } else {
                    fs::rename(&secret, root.join("one")).unwrap();
                }
                let error = scanner.enter(&stack[0]).err().unwrap();
                let name = root.join("one").display().to_string();
                assert_eq!(error.to_string(), format!("listing {name}: was replaced while it was packed"));
                assert_eq!(scanner.skips(&error), skip_unreadable);
                let named = scanner.warnings.list().pop().map(|warning| (warning.kind, warning.examples));
                assert_eq!(named, skip_unreadable.then(|| (WarningKind::Replaced, vec![name])));
            }
        }
    }
}

//! Scans a directory of the operating system into a tree.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, DirEntry, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, openat};

use super::content::Content;
use super::layer::Layer;
use super::live::{LiveFile, is_exhaustion};
use super::place::SourcePath;
use super::reach::{Reached, STEP};
use super::scan_options::{ScanOptions, Verdict};
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
        let metadata = fs::metadata(root).map_err(Error::io(root.display().to_string()))?;
        if !metadata.is_dir() {
            return Err(Error::Source { path: root.to_owned(), what: "not a directory".to_owned() });
        }
        let place = SourcePath::from(root);
        let device = metadata.dev();
        let mut scanner = Scanner {
            root,
            device,
            options,
            warnings: Warnings::default(),
            anchors: 0,
            recent: VecDeque::new(),
            links: HashMap::new(),
        };
        let top = scanner.node_of(&place, root, &metadata)?;
        let mut layer = Self::new(Tree::of_origin(top, Origin::Directory(root.to_owned())));
        let top = layer.tree.root();
        layer.take_in(top, options);
        let mut stack = vec![PendingDirectory { place, id: top, depth: 0, parent: None }];
        while let Some(found) = stack.pop() {
            let listed = scanner.enter(&found).and_then(|here| Ok((scanner.list(&found.place, &here)?, here)));
            match listed {
                Ok((entries, here)) => scanner.add(&mut layer, &found, &here, entries, &mut stack)?,
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
    id: NodeId,
    /// The number of names below the root.
    depth: usize,
    /// The parent and the name in it.
    parent: Option<(NodeId, Vec<u8>)>,
}

/// The text before the path in an error of listing a directory.
const LISTING: &str = "listing ";

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

impl Scanner<'_> {
    /// Returns whether to skip a file after this error. Adds a warning if so.
    fn skips(&mut self, error: &Error) -> bool {
        use rustix::io::Errno;
        let Error::Io { what, source } = error else { return false };
        let Some(errno) = Errno::from_io_error(source) else { return false };
        if !self.options.skip_unreadable || is_exhaustion(source) {
            return false;
        }
        if matches!(errno, Errno::NOENT | Errno::STALE) {
            self.warnings.add(WarningKind::Vanished, || what.strip_prefix(LISTING).unwrap_or(what).to_owned());
        } else {
            self.warnings.add(WarningKind::Unreadable, || format!("{what}: {source}"));
        }
        true
    }

    /// Makes a directory accessible: by its path or, if that is long, from its parent.
    fn enter(&mut self, found: &PendingDirectory) -> Result<Reached> {
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
        open(&mut self.recent).map_err(|error| listing(place, error))
    }

    /// Lists a directory.
    fn list(&self, place: &SourcePath, here: &Reached) -> Result<Vec<DirEntry>> {
        fs::read_dir(here).and_then(Iterator::collect).map_err(|error| listing(place, error))
    }

    /// Adds a directory's entries. Pushes subdirectories to `stack`.
    fn add(
        &mut self,
        layer: &mut Layer,
        found: &PendingDirectory,
        here: &Reached,
        entries: Vec<DirEntry>,
        stack: &mut Vec<PendingDirectory>,
    ) -> Result<()> {
        for entry in entries {
            let name = entry.file_name();
            let below = || {
                let path = found.place.join(name.clone()).to_path_buf();
                path.strip_prefix(self.root).unwrap_or(&path).as_os_str().as_bytes().to_vec()
            };
            if self.options.excludes_at(found.depth + 1, name.as_bytes(), below) {
                continue;
            }
            match self.add_file(layer, found, here.as_ref(), &entry) {
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
        reached: &Path,
        entry: &DirEntry,
    ) -> Result<Option<PendingDirectory>> {
        let name = entry.file_name();
        let shown = || above.place.join(name.clone()).to_path_buf();
        let with_path = |error| Error::io(shown().display().to_string())(error);
        let (above_reached, reached) = (reached, reached.join(&name));
        let metadata = entry.metadata().map_err(with_path)?;
        if let Some(image) = &self.options.image {
            match image.verdict(above_reached, &name, &metadata).map_err(with_path)? {
                Verdict::Take => {}
                Verdict::Skip => return Ok(None),
                Verdict::Refuse => {
                    let what = "it is the output under another name, and an image cannot replace its own source";
                    return Err(Error::Source { path: shown(), what: what.to_owned() });
                }
            }
        }
        let shared = metadata.nlink() > 1 && !metadata.is_dir();
        let inode = (metadata.dev(), metadata.ino());
        if let Some(node) = self.links.get(&inode).filter(|_| shared) {
            layer.tree.link(above.id, name.as_bytes(), *node)?;
            return Ok(None);
        }
        if self.options.skip_unreadable && metadata.is_file() {
            File::open(&reached).map_err(with_path)?;
        }
        let place = above.place.join(name.clone());
        let node = self.node_of(&place, &reached, &metadata)?;
        let id = layer.tree.add(above.id, name.as_bytes(), node)?;
        layer.take_in(id, self.options);
        if shared {
            self.links.insert(inode, id);
        }
        let is_listed = metadata.is_dir() && (!self.options.one_file_system || metadata.dev() == self.device);
        Ok(is_listed.then(|| PendingDirectory {
            place,
            id,
            depth: above.depth + 1,
            parent: Some((above.id, name.into_vec())),
        }))
    }

    /// Builds the node of the file at `path`, which the system finds at `reached`.
    fn node_of(&mut self, path: &SourcePath, reached: &Path, metadata: &Metadata) -> Result<Node> {
        let kind = metadata.file_type();
        let device = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        let kind = if kind.is_dir() {
            NodeKind::Directory(Default::default())
        } else if kind.is_file() {
            let content = match self.options.skip_unreadable {
                true => Content::Live(LiveFile::new(path.clone(), metadata)),
                false => Content::Path(path.clone()),
            };
            NodeKind::Regular { content, size: metadata.size() }
        } else if kind.is_symlink() {
            let target =
                fs::read_link(reached).map_err(|error| Error::io(path.to_path_buf().display().to_string())(error))?;
            NodeKind::Symlink(target.into_os_string().into_vec())
        } else if kind.is_char_device() {
            NodeKind::CharDevice(device.0, device.1)
        } else if kind.is_block_device() {
            NodeKind::BlockDevice(device.0, device.1)
        } else if kind.is_fifo() {
            NodeKind::Fifo
        } else {
            NodeKind::Socket
        };
        Ok(Node {
            kind,
            permissions: (metadata.mode() & 0o7777) as u16,
            uid: metadata.uid(),
            gid: metadata.gid(),
            mtime_s: metadata.mtime(),
            mtime_nsec: metadata.mtime_nsec() as u32,
            xattrs: self.xattrs_of(path, reached)?,
        })
    }

    /// Reads a file's xattrs whose names have a prefix that EROFS supports. Others, which only
    /// their own file system understands, are skipped with a warning.
    fn xattrs_of(&mut self, path: &SourcePath, reached: &Path) -> Result<Vec<Xattr>> {
        let failed =
            |error: rustix::io::Errno| Error::io(format!("xattrs of {}", path.to_path_buf().display()))(error.into());
        let names = match sized(|buf| rustix::fs::llistxattr(reached, buf)) {
            Ok(names) => names,
            Err(rustix::io::Errno::NOTSUP) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut xattrs = Vec::new();
        for name in names.split(|byte| *byte == 0) {
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
            let value = sized(|buf| rustix::fs::lgetxattr(reached, OsStr::from_bytes(name), buf)).map_err(failed)?;
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
            Err(rustix::io::Errno::RANGE) if buf.len() < 1 << 16 => buf.resize(buf.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
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
            let metadata = fs::metadata(root).unwrap();
            let mut scanner = Scanner {
                root,
                device: metadata.dev(),
                options: &options,
                warnings: Warnings::default(),
                anchors: 0,
                recent: VecDeque::new(),
                links: HashMap::new(),
            };
            let place = SourcePath::from(root);
            let top = scanner.node_of(&place, root, &metadata).unwrap();
            let mut layer = Layer::new(Tree::of_origin(top, Origin::None));
            let found = PendingDirectory { place, id: layer.tree.root(), depth: 0, parent: None };
            let here = scanner.enter(&found).unwrap();
            let entries = scanner.list(&found.place, &here).unwrap();
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
            let error = scanner.list(&stack[0].place, &stack[0].place.reach().unwrap()).unwrap_err();
            assert!(scanner.skips(&error));
            let named = scanner.warnings.list()[0].examples.last().cloned();
            assert_eq!(named, Some(root.join("stays-directory").display().to_string()));
        }
    }
}

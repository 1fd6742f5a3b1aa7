//! Compares a case with its image, as this project's reader shows it, and with a directory, as the
//! system shows it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use pagefold_erofs::{FileKind, Image, Inode};

use crate::choices::Numbers;
use crate::expected::Expected;
use crate::shown::{DIRECTORY, SYMLINK, Shown, same_bytes};

/// The number of partial reads of each file.
const PARTIAL_READS: usize = 6;

/// The properties that a copy of an image preserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keeps {
    /// Hard links and link counts.
    pub links: bool,
    /// Extended attributes.
    pub xattrs: bool,
    /// Modification times of directories.
    pub directory_times: bool,
    /// Permissions of symbolic links.
    pub link_modes: bool,
    /// Link counts of directories: some file systems always report 1.
    pub directory_links: bool,
}

impl Keeps {
    /// Everything, as with a mount.
    pub const ALL: Self =
        Self { links: true, xattrs: true, directory_times: true, link_modes: true, directory_links: true };

    /// Everything that a copy on another file system preserves.
    pub const COPY: Self = Self { directory_links: false, ..Self::ALL };
}

/// A comparison in progress, which counts the paths found.
struct Comparison<'a> {
    expected: &'a Expected,
    keeps: Keeps,
    /// The entry of each inode found.
    inodes: HashMap<u64, Option<usize>>,
    found: usize,
}

impl<'a> Comparison<'a> {
    fn new(expected: &'a Expected, keeps: Keeps) -> Self {
        Self { expected, keeps, inodes: HashMap::new(), found: 0 }
    }

    fn check(&mut self, path: &[u8], inode: u64, mut shown: Shown) -> Result<(), String> {
        let failed = |what: String| format!("/{}: {what}", path.escape_ascii());
        let named = self.expected.paths.get(path).ok_or_else(|| failed("is not in the tree".to_owned()))?;
        let mut wanted = &named.shown;
        let lenient;
        if self.keeps != Keeps::ALL {
            let mut other = Shown::clone(wanted);
            if !self.keeps.links || (!self.keeps.directory_links && other.kind() == DIRECTORY) {
                other.links = shown.links;
            }
            if !self.keeps.xattrs {
                other.xattrs.clear();
                shown.xattrs.clear();
            }
            if !self.keeps.directory_times && other.kind() == DIRECTORY {
                other.mtime = shown.mtime;
            }
            if !self.keeps.link_modes && other.kind() == SYMLINK {
                other.mode = shown.mode;
            }
            lenient = Arc::new(other);
            wanted = &lenient;
        }
        shown.compare(wanted).map_err(failed)?;
        if self.keeps.links && *self.inodes.entry(inode).or_insert(named.inode) != named.inode {
            return Err(failed("is a hard link to another file, but should be a separate file".to_owned()));
        }
        self.found += 1;
        Ok(())
    }

    fn end(self) -> Result<(), String> {
        let expected = self.expected.paths.len();
        if self.found != expected {
            return Err(format!("{} names, not {expected}", self.found));
        }
        Ok(())
    }
}

/// Joins a path and a name.
fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

impl Expected {
    /// Compares everything with an image as this project's reader shows it: metadata, complete
    /// contents, parts of them at offsets that depend on `seed`, and holes.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare_image(&self, image: &Image, seed: u64) -> Result<(), String> {
        let mut comparison = Comparison::new(self, Keeps::ALL);
        let mut numbers = Numbers(seed);
        let root = image.root().map_err(|error| error.to_string())?;
        let mut pending = vec![(Vec::new(), root)];
        while let Some((path, inode)) = pending.pop() {
            let at = |error: pagefold_erofs::Error| format!("/{}: {error}", path.escape_ascii());
            let shown = shown_by_image(image, &inode).map_err(at)?;
            let content = Arc::clone(&shown.content);
            comparison.check(&path, inode.nid, shown)?;
            match inode.kind {
                FileKind::Regular => read_parts(image, &inode, &content, &mut numbers)
                    .map_err(|what| format!("/{}: {what}", path.escape_ascii()))?,
                FileKind::Directory => {
                    for entry in image.read_dir(&inode).map_err(at)? {
                        if image.lookup(&inode, &entry.name).map_err(at)? != Some(entry.nid) {
                            return Err(format!(
                                "/{}: not found by its name",
                                below(&path, &entry.name).escape_ascii()
                            ));
                        }
                        pending.push((below(&path, &entry.name), image.inode(entry.nid).map_err(at)?));
                    }
                }
                _ => {}
            }
        }
        comparison.end()
    }

    /// Compares the properties selected by `keeps` with a directory, as the system shows it.
    ///
    /// # Errors
    /// The first difference or read error.
    pub fn compare_directory(&self, root: &Path, keeps: Keeps) -> Result<(), String> {
        let mut comparison = Comparison::new(self, keeps);
        let mut pending = vec![Vec::new()];
        while let Some(path) = pending.pop() {
            let here = root.join(OsStr::from_bytes(&path));
            let at = |error: &dyn Display| format!("/{}: {error}", path.escape_ascii());
            let (inode, shown) = shown_by_system(&here, keeps).map_err(|error| at(&error))?;
            let is_directory = shown.kind() == DIRECTORY;
            comparison.check(&path, inode, shown)?;
            if is_directory {
                for entry in fs::read_dir(&here).map_err(|error| at(&error))? {
                    let name = entry.map_err(|error| at(&error))?.file_name();
                    pending.push(below(&path, name.as_bytes()));
                }
            }
        }
        comparison.end()
    }
}

fn shown_by_image(image: &Image, inode: &Inode) -> pagefold_erofs::Result<Shown> {
    let mut content = Vec::new();
    match inode.kind {
        FileKind::Symlink => content = image.read_link(inode)?,
        FileKind::Regular => {
            content.resize(inode.size as usize, 0);
            image.read_exact_at(inode, &mut content, 0)?;
        }
        _ => {}
    }
    Ok(Shown {
        mode: u32::from(inode.mode),
        owner: (inode.uid, inode.gid),
        mtime: (inode.mtime_s, inode.mtime_nsec),
        links: inode.nlink,
        device: inode.device(),
        xattrs: image.xattrs(inode)?.into_iter().map(|xattr| (xattr.name, xattr.value)).collect(),
        content: content.into(),
    })
}

/// Reads parts of the file and walks its runs.
fn read_parts(image: &Image, inode: &Inode, content: &[u8], numbers: &mut Numbers) -> Result<(), String> {
    let file = image.file(inode).map_err(|error| error.to_string())?;
    let size = content.len() as u64;
    let mut bytes = Vec::new();
    for _ in 0..PARTIAL_READS {
        // Includes reads across and past the end.
        let offset = numbers.below(size + 2);
        let longest = [64, 5000, 70_000, size + 100][numbers.below(4) as usize];
        let len = numbers.below(longest) as usize;
        let expected = &content[offset.min(size) as usize..(offset + len as u64).min(size) as usize];
        bytes.clear();
        bytes.resize(len, 0x5a);
        let read = file.read_at(&mut bytes, offset).map_err(|error| format!("{len} bytes at {offset}: {error}"))?;
        if read != expected.len() {
            return Err(format!("{read} bytes were read at {offset}, not {}", expected.len()));
        }
        same_bytes(&bytes[..read], expected).map_err(|what| format!("read at {offset}: {what}"))?;
    }
    let mut at = 0;
    while at < size {
        let run = file.run_at(at).map_err(|error| format!("run at {at}: {error}"))?;
        let end = at.checked_add(run.len).filter(|end| run.len > 0 && *end <= size);
        let Some(end) = end else { return Err(format!("run of {} bytes at {at} of {size}", run.len)) };
        if run.hole && content[at as usize..end as usize].iter().any(|byte| *byte != 0) {
            return Err(format!("data is reported as a hole at {at}"));
        }
        at = end;
    }
    Ok(())
}

fn shown_by_system(path: &Path, keeps: Keeps) -> std::io::Result<(u64, Shown)> {
    let metadata = fs::symlink_metadata(path)?;
    let kind = metadata.file_type();
    let content = if kind.is_file() {
        fs::read(path)?
    } else if kind.is_symlink() {
        fs::read_link(path)?.into_os_string().into_vec()
    } else {
        Vec::new()
    };
    let is_device = kind.is_char_device() || kind.is_block_device();
    let device = is_device.then(|| (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev())));
    let shown = Shown {
        mode: metadata.mode(),
        owner: (metadata.uid(), metadata.gid()),
        mtime: (metadata.mtime(), metadata.mtime_nsec() as u32),
        links: metadata.nlink() as u32,
        device,
        xattrs: if keeps.xattrs { xattrs_of(path)? } else { BTreeMap::new() },
        content: content.into(),
    };
    Ok((metadata.ino(), shown))
}

fn xattrs_of(path: &Path) -> std::io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut names[..])?;
    let mut xattrs = BTreeMap::new();
    let mut value = vec![0; 1 << 16];
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..])?;
        xattrs.insert(name.to_vec(), value[..len].to_vec());
    }
    Ok(xattrs)
}

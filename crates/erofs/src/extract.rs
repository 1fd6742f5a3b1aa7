//! Extracting an image into a directory.
//!
//! ```text
//! 1. walk        directories are made, empty and for the owner alone; files are listed, by directory
//! 2. files       threads make and fill files, links and devices, a batch of one directory at a time, while the walk goes on
//! 3. hard links  further names of files
//! 4. directories owners, modes, xattrs, times, the deepest first
//! ```
//!
//! Nothing is written outside the target: every directory is one that step 1 made (an existing name is an error) and is
//! opened name by name from the target without following links; names have no slash and are not `..`.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File as OsFile;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};

use crate::build::is_zeros;
use crate::check::Problem;
use crate::directory::DirEntry;
use crate::error::{Error, Result};
use crate::file::File;
use crate::image::Image;
use crate::inode::{FileKind, Inode};
use crate::walk::{PathId, Paths, Step, Visitor, walk};
use crate::work::{Work, thread_count};

/// Files that a thread takes together.
const BATCH: usize = 64;
/// Batches that wait for a thread; the walk does further ones itself.
const MAX_WAITING: usize = 256;
/// Bytes that are decoded and written together, while a processor's cache still has them.
const WRITE_BYTES: usize = 512 << 10;
/// And of one extent.
const MOST_BYTES: usize = 8 << 20;
/// Runs of zeros of this length and alignment are left as holes.
const HOLE_BYTES: usize = 4096;
/// Longer paths are not taken by a system call.
const PATH_BYTES: usize = 4096;
/// Problems that a report holds.
const MAX_PROBLEMS: usize = 1000;

/// How an image is extracted.
#[derive(Clone, Debug)]
pub struct ExtractOptions {
    /// Threads, at most 1024; 0 for one a processor.
    pub threads: usize,
    /// Set owners, and make device files, which are left out otherwise. Needs root.
    pub owners: bool,
    /// Set extended attributes.
    pub xattrs: bool,
    /// Bytes of content after which nothing more is extracted, against images made to fill disks.
    pub max_bytes: Option<u64>,
}

impl Default for ExtractOptions {
    fn default() -> Self {
        Self { threads: 0, owners: rustix::process::geteuid().is_root(), xattrs: true, max_bytes: None }
    }
}

/// What was extracted.
#[derive(Debug, Default)]
pub struct ExtractReport {
    /// Names made.
    pub names: u64,
    /// Bytes of regular files.
    pub file_bytes: u64,
    /// What could not be extracted: the first thousand.
    pub problems: Vec<Problem>,
    /// Problems beyond those.
    pub more_problems: u64,
}

struct Listed {
    path: PathId,
    name: Vec<u8>,
    inode: Inode,
}

/// Files of one directory.
struct Batch {
    parent: PathId,
    /// The directory's path in the target.
    place: Vec<u8>,
    files: Vec<Listed>,
}

/// Where and how an image is extracted: what threads share.
struct Target<'a> {
    image: &'a Image,
    root: OwnedFd,
    options: &'a ExtractOptions,
    made: Made,
    /// Bytes of content that may still come.
    left: AtomicU64,
    batches: Work<Batch>,
    filled: Mutex<Filled>,
}

/// What came of the batches.
#[derive(Default)]
struct Filled {
    names: u64,
    file_bytes: u64,
    problems: Vec<(PathId, Error)>,
}

/// The walk through an image that is extracted.
struct Extraction<'a> {
    target: &'a Target<'a>,
    directories: Vec<(PathId, Inode)>,
    /// Files of the directory that the walk is in.
    batch: Option<Batch>,
    /// Those whose paths are too long to be told a thread.
    deep: Vec<Batch>,
    /// The first path of each file, and further ones.
    first_path: HashMap<u64, PathId>,
    links: Vec<(PathId, PathId)>,
    report: ExtractReport,
    /// The directory whose children are being made.
    open: Option<(PathId, OwnedFd)>,
    /// Content on its way.
    buffer: Vec<u8>,
}

/// What files in the target are when they have just been made, so that only what is otherwise needs a call.
struct Made {
    /// Owner and group, if they are certain.
    owner: Option<(u32, u32)>,
    /// Bits that a mode asked for may lose.
    lost_mode: u16,
}

impl Made {
    /// Directories in the target are made by us and get what it gives to what is made in it.
    fn in_directory(root: &OwnedFd) -> Self {
        let ours = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        // Whether a group comes from the process or from the directory is then the same.
        let certain = |stat: &rustix::fs::Stat| {
            (stat.st_uid, stat.st_gid) == ours && !Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID)
        };
        let owner = rustix::fs::fstat(root).ok().filter(certain).map(|_| ours);
        // An ACL for new files takes the place of the mask.
        let acl = rustix::fs::fgetxattr(root, "system.posix_acl_default", &mut [0; 0]).is_ok();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| u16::from_str_radix(line.strip_prefix("Umask:")?.trim(), 8).ok());
        Self { owner, lost_mode: if acl { 0o7777 } else { mask.unwrap_or(0o777) | 0o7000 } }
    }

    fn has_owner(&self, inode: &Inode) -> bool {
        self.owner == Some((inode.uid, inode.gid))
    }

    /// The mode to make a file with: its own, if it is certain to get it.
    fn mode(&self, inode: &Inode) -> Option<Mode> {
        let mode = inode.permissions();
        (mode & self.lost_mode == 0).then(|| Mode::from_raw_mode(mode.into()))
    }
}

fn failed(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |error| Error::io(what)(error.into())
}

fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

/// Opens a directory below `root`: by one call where the system has one that follows no links on the way, else name by
/// name.
fn open_directory(root: &OwnedFd, names: &[&[u8]]) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = names.join(&b'/');
    if (1..PATH_BYTES).contains(&path.len()) {
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        // What was wrong is found again below.
        if let Ok(directory) = rustix::fs::openat2(root, os(&path), flags, Mode::empty(), within) {
            return Ok(directory);
        }
    }
    let mut here = root.try_clone().map_err(Error::io("opening the target"))?;
    for name in names {
        here = rustix::fs::openat(&here, os(name), flags, Mode::empty()).map_err(failed("opening a directory"))?;
    }
    Ok(here)
}

impl Image {
    /// Extracts the whole tree into `target`, which is made if it does not exist. Files that cannot be extracted are
    /// reported and the rest goes on; an error means that there was nothing to go on with.
    pub fn extract(&self, target: &Path, options: &ExtractOptions) -> Result<ExtractReport> {
        match rustix::fs::mkdir(target, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(failed("making the target")(error)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, target, flags, Mode::empty()).map_err(failed("opening the target"))?;
        let target = Target {
            image: self,
            made: Made::in_directory(&root),
            root,
            options,
            left: AtomicU64::new(options.max_bytes.unwrap_or(u64::MAX)),
            batches: Work::new(),
            filled: Mutex::default(),
        };
        let mut extraction = Extraction {
            target: &target,
            directories: Vec::new(),
            batch: None,
            deep: Vec::new(),
            first_path: HashMap::new(),
            links: Vec::new(),
            report: ExtractReport::default(),
            open: None,
            buffer: Vec::new(),
        };
        let paths = std::thread::scope(|scope| {
            let finder = target.batches.finder();
            // The system may allow fewer.
            let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, || target.fill()).is_ok();
            let _ = (1..thread_count(options.threads)).all(spawn);
            let paths = walk(self, &mut extraction)?;
            extraction.end_batch();
            drop(finder);
            target.fill();
            Ok(paths)
        })?;
        extraction.end_files(&paths);
        extraction.link(&paths);
        extraction.finish_directories(&paths);
        extraction.report.problems.sort_by(|left, right| left.path.cmp(&right.path));
        Ok(extraction.report)
    }
}

impl Visitor for Extraction<'_> {
    fn visit(&mut self, paths: &Paths, step: &Step) -> bool {
        let Some((parent, name)) = paths.parent(step.path) else {
            self.directories.push((step.path, step.inode.clone()));
            return true;
        };
        let device = matches!(step.inode.kind, FileKind::CharDevice | FileKind::BlockDevice);
        if device && !self.target.options.owners {
            return true;
        }
        if step.inode.kind != FileKind::Directory {
            if step.inode.nlink > 1 {
                if let Some(first) = self.first_path.get(&step.inode.nid) {
                    self.links.push((*first, step.path));
                    return false;
                }
                self.first_path.insert(step.inode.nid, step.path);
            }
            let listed = Listed { path: step.path, name: name.to_vec(), inode: step.inode.clone() };
            self.list(paths, parent, listed);
            return true;
        }
        match self.make_directory(paths, parent, name) {
            Ok(()) => {
                self.directories.push((step.path, step.inode.clone()));
                self.report.names += 1;
                true
            }
            Err(error) => {
                self.failed(paths, step.path, error);
                false
            }
        }
    }

    fn entry(&mut self, _: &Paths, _: &Step, _: &DirEntry, _: Option<&Inode>) {}

    fn failed(&mut self, paths: &Paths, path: PathId, error: Error) {
        self.report.add(paths, path, error);
    }
}

impl ExtractReport {
    fn add(&mut self, paths: &Paths, path: PathId, error: Error) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem { path: paths.display(path), error });
        } else {
            self.more_problems += 1;
        }
    }
}

impl Extraction<'_> {
    fn make_directory(&mut self, paths: &Paths, parent: PathId, name: &[u8]) -> Result<()> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != parent) {
            self.open = Some((parent, open_directory(&self.target.root, &paths.names(parent))?));
        }
        match &self.open {
            Some((_, parent)) => {
                rustix::fs::mkdirat(parent, os(name), Mode::RWXU).map_err(failed("making a directory"))
            }
            None => Ok(()),
        }
    }

    /// Puts a file into the batch of its directory.
    fn list(&mut self, paths: &Paths, parent: PathId, file: Listed) {
        if self.batch.as_ref().is_none_or(|batch| batch.parent != parent || batch.files.len() == BATCH) {
            self.end_batch();
            self.batch = Some(Batch { parent, place: paths.names(parent).join(&b'/'), files: Vec::new() });
        }
        if let Some(batch) = &mut self.batch {
            batch.files.push(file);
        }
    }

    /// Hands over the files that are listed.
    fn end_batch(&mut self) {
        let Some(mut batch) = self.batch.take() else { return };
        if batch.place.len() >= PATH_BYTES {
            // Paths get as long as an image likes, and there may be as many.
            batch.place = Vec::new();
            self.deep.push(batch);
        } else if let Some(batch) = self.target.batches.offer(batch, MAX_WAITING) {
            self.target.fill_batch(&batch, &mut self.buffer);
        }
    }

    /// Makes the files that no thread was told of, and reports on all.
    fn end_files(&mut self, paths: &Paths) {
        for batch in std::mem::take(&mut self.deep) {
            let directory = open_directory(&self.target.root, &paths.names(batch.parent));
            self.target.fill_directory(batch.parent, directory, &batch.files, &mut self.buffer);
        }
        let filled = std::mem::take(&mut *self.target.filled());
        self.report.names += filled.names;
        self.report.file_bytes += filled.file_bytes;
        for (path, error) in filled.problems {
            self.report.add(paths, path, error);
        }
    }

    /// Gives files their further names.
    fn link(&mut self, paths: &Paths) {
        for (first, further) in std::mem::take(&mut self.links) {
            if let Err(error) = self.link_one(paths, first, further) {
                self.report.add(paths, further, error);
            } else {
                self.report.names += 1;
            }
        }
    }

    fn link_one(&self, paths: &Paths, first: PathId, further: PathId) -> Result<()> {
        let (Some((old_parent, old_name)), Some((new_parent, new_name))) = (paths.parent(first), paths.parent(further))
        else {
            return Err(Error::NotA("file below the root"));
        };
        let old = open_directory(&self.target.root, &paths.names(old_parent))?;
        let new = open_directory(&self.target.root, &paths.names(new_parent))?;
        rustix::fs::linkat(&old, os(old_name), &new, os(new_name), AtFlags::empty())
            .map_err(failed("making a hard link"))
    }

    fn finish_directories(&mut self, paths: &Paths) {
        for (path, inode) in std::mem::take(&mut self.directories).into_iter().rev() {
            let finished = open_directory(&self.target.root, &paths.names(path))
                .and_then(|directory| self.target.finish(&inode, &OsFile::from(directory), false));
            if let Err(error) = finished {
                self.report.add(paths, path, error);
            }
        }
    }
}

impl Target<'_> {
    fn filled(&self) -> MutexGuard<'_, Filled> {
        self.filled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes and fills files until there are no more batches.
    fn fill(&self) {
        let mut buffer = Vec::new();
        while let Some(batch) = self.batches.next() {
            self.fill_batch(&batch, &mut buffer);
        }
    }

    fn fill_batch(&self, batch: &Batch, buffer: &mut Vec<u8>) {
        let names: Vec<&[u8]> = batch.place.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        self.fill_directory(batch.parent, open_directory(&self.root, &names), &batch.files, buffer);
    }

    fn fill_directory(&self, parent: PathId, directory: Result<OwnedFd>, files: &[Listed], buffer: &mut Vec<u8>) {
        let mut filled = Filled::default();
        match directory {
            Ok(directory) => {
                for file in files {
                    match self.make_file(&directory, file, buffer) {
                        Ok(len) => (filled.names, filled.file_bytes) = (filled.names + 1, filled.file_bytes + len),
                        Err(error) => filled.problems.push((file.path, error)),
                    }
                }
            }
            Err(error) => filled.problems.push((parent, error)),
        }
        let mut all = self.filled();
        all.names += filled.names;
        all.file_bytes += filled.file_bytes;
        all.problems.append(&mut filled.problems);
    }

    /// Makes a file that is not a directory and returns the bytes of its content.
    fn make_file(&self, directory: &OwnedFd, file: &Listed, buffer: &mut Vec<u8>) -> Result<u64> {
        let name = os(&file.name);
        let inode = &file.inode;
        let kind = match inode.kind {
            FileKind::Regular => return self.make_regular(directory, file, buffer),
            FileKind::Directory => return Err(Error::NotA("file")),
            FileKind::Symlink => None,
            FileKind::CharDevice => Some(FileType::CharacterDevice),
            FileKind::BlockDevice => Some(FileType::BlockDevice),
            FileKind::Fifo => Some(FileType::Fifo),
            FileKind::Socket => Some(FileType::Socket),
        };
        match kind {
            None => {
                let target = self.image.read_link(inode)?;
                rustix::fs::symlinkat(os(&target), directory, name).map_err(failed("making a symbolic link"))?;
            }
            Some(kind) => {
                let (major, minor) = inode.device().unwrap_or_default();
                let device = rustix::fs::makedev(major, minor);
                let mode = Mode::from_raw_mode(u32::from(inode.permissions()));
                rustix::fs::mknodat(directory, name, kind, mode, device).map_err(failed("making a device or pipe"))?;
            }
        }
        if self.options.owners && !self.made.has_owner(inode) {
            let (uid, gid) = owner(inode);
            rustix::fs::chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed("setting the owner"))?;
        }
        if kind.is_some() && self.made.mode(inode).is_none() {
            let mode = Mode::from_raw_mode(u32::from(inode.permissions()));
            rustix::fs::chmodat(directory, name, mode, AtFlags::empty()).map_err(failed("setting the mode"))?;
        }
        if self.options.xattrs {
            // There is no call that takes a directory and a name; the descriptor's link in /proc stands for it.
            let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
            for xattr in self.image.xattrs(inode)? {
                rustix::fs::lsetxattr(&path, os(&xattr.name), &xattr.value, XattrFlags::empty())
                    .map_err(failed("setting an xattr"))?;
            }
        }
        rustix::fs::utimensat(directory, name, &times(inode), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("setting the time"))?;
        Ok(0)
    }

    fn make_regular(&self, directory: &OwnedFd, file: &Listed, buffer: &mut Vec<u8>) -> Result<u64> {
        let inode = &file.inode;
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(inode.size));
        if taken.is_err() {
            let allowed = self.options.max_bytes.unwrap_or(u64::MAX);
            return Err(Error::TooMuch { needed: inode.size, allowed });
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Nobody else gets here before the directories get their modes.
        let mode = self.made.mode(inode);
        let out = rustix::fs::openat(directory, os(&file.name), flags, mode.unwrap_or(Mode::RUSR | Mode::WUSR))
            .map_err(failed("making a file"))?;
        let out = OsFile::from(out);
        self.copy(inode, &out, buffer)?;
        self.finish(inode, &out, mode.is_some())?;
        Ok(inode.size)
    }

    /// Writes a file's content, zeros as holes.
    fn copy(&self, inode: &Inode, out: &OsFile, buffer: &mut Vec<u8>) -> Result<()> {
        let writing = |error: io::Error| Error::io("writing a file")(error);
        let file = self.image.file(inode)?;
        let (mut at, mut written) = (0, 0);
        while at < inode.size {
            let run = file.run_at(at)?;
            if run.hole {
                at += run.len;
                continue;
            }
            let len = file.whole_extents(run.len.min(WRITE_BYTES as u64) as usize, MOST_BYTES, at)?;
            let room = File::room_bytes(len).next_power_of_two();
            if buffer.len() < room {
                *buffer = vec![0; room];
            }
            if len > WRITE_BYTES {
                file.read_alone(buffer, len, at)?;
            } else {
                file.read_into(buffer, len, at)?;
            }
            let mut done = 0;
            while done < len {
                let zeros = is_zeros(&buffer[done..(done + HOLE_BYTES).min(len)]);
                let mut end = (done + HOLE_BYTES).min(len);
                while end < len && is_zeros(&buffer[end..(end + HOLE_BYTES).min(len)]) == zeros {
                    end = (end + HOLE_BYTES).min(len);
                }
                if !zeros {
                    out.write_all_at(&buffer[done..end], at + done as u64).map_err(writing)?;
                    written = at + end as u64;
                }
                done = end;
            }
            at += len as u64;
        }
        if written < inode.size { out.set_len(inode.size).map_err(writing) } else { Ok(()) }
    }

    /// Sets what an open file or directory has besides content. The owner first, which clears bits of the mode.
    fn finish(&self, inode: &Inode, file: &OsFile, has_mode: bool) -> Result<()> {
        let file = file.as_fd();
        if self.options.owners && !self.made.has_owner(inode) {
            let (uid, gid) = owner(inode);
            rustix::fs::fchown(file, uid, gid).map_err(failed("setting the owner"))?;
        }
        if !has_mode {
            let mode = Mode::from_raw_mode(u32::from(inode.permissions()));
            rustix::fs::fchmod(file, mode).map_err(failed("setting the mode"))?;
        }
        if self.options.xattrs {
            for xattr in self.image.xattrs(inode)? {
                rustix::fs::fsetxattr(file, os(&xattr.name), &xattr.value, XattrFlags::empty())
                    .map_err(failed("setting an xattr"))?;
            }
        }
        rustix::fs::futimens(file, &times(inode)).map_err(failed("setting the time"))
    }
}

fn owner(inode: &Inode) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(inode.uid)), Some(Gid::from_raw(inode.gid)))
}

fn times(inode: &Inode) -> Timestamps {
    let time = Timespec { tv_sec: inode.mtime_s, tv_nsec: i64::from(inode.mtime_nsec) };
    Timestamps { last_access: time, last_modification: time }
}

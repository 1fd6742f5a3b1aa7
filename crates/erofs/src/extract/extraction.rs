//! Extracts an image into a directory.
//!
//! ```text
//! 1. walk        creates directories, those directly in the target accessible to the owner only;
//!                lists files by directory
//! 2. files       threads create and fill files, links and devices in batches of one directory, while
//!                the walk continues; all idle threads fill a long file together; if there is only
//!                one thread, it creates them during the walk
//! 3. hard links  further names of files
//! 4. directories owners, modes, xattrs, times; the deepest first
//! ```
//!
//! No other user can access a file before it is complete: a directory in the target gets its mode
//! last and denies access until then. Deeper directories get their mode at creation, so most of
//! them need only a time at the end, set by name.
//!
//! Nothing is written outside the target. Every directory was created by step 1 (an existing name
//! is an error) and is opened name by name from the target without following links. Names contain
//! no slash and are not `..`.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File as OsFile;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};

use super::filling::{Filling, Room};
use crate::error::{Error, Result};
use crate::read::{
    DirEntry, FileKind, Image, Inode, Notice, Notices, PathId, Paths, Problem, Step, Visitor, Xattrs, walk_from,
};
use crate::work::{Work, thread_count};

/// The number of files that a thread processes as a unit.
const BATCH: usize = 64;
/// The maximum number of queued batches; the walk processes further ones itself.
const MAX_WAITING: usize = 256;
/// System calls reject paths of this length or more.
const PATH_BYTES: usize = 4096;
/// The maximum number of directories kept open, besides the target.
const MAX_OPEN: usize = 8;
/// The flags for opening directories.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// The maximum number of problems in a report.
const MAX_PROBLEMS: usize = 1000;

/// Options for extracting an image.
#[derive(Clone, Debug)]
pub struct ExtractOptions {
    /// Number of threads, at most 1024; 0 for one per processor.
    pub threads: usize,
    /// Sets owners and creates device files, which are skipped otherwise. Needs root.
    pub owners: bool,
    /// Sets modes as in the image. Otherwise, no program gains extra privileges, and modes are
    /// those of new files: set-id and sticky bits and the bits in the process's umask are cleared,
    /// and `security.capability` is not set.
    pub permissions: bool,
    /// Sets extended attributes.
    pub xattrs: bool,
    /// The maximum number of bytes of content to extract, against images made to fill disks.
    pub max_bytes: Option<u64>,
}

impl Default for ExtractOptions {
    fn default() -> Self {
        let owners = rustix::process::geteuid().is_root();
        Self { threads: 0, owners, permissions: true, xattrs: true, max_bytes: None }
    }
}

/// The result of an extraction.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ExtractReport {
    /// Names created.
    pub names: u64,
    /// Bytes of regular files.
    pub file_bytes: u64,
    /// The first thousand files that could not be extracted.
    pub problems: Vec<Problem>,
    /// The number of further problems.
    pub more_problems: u64,
    /// Notices of what was skipped, as Linux does: the first hundred. They are not problems.
    pub warnings: Vec<Notice>,
    /// The number of further warnings.
    pub more_warnings: u64,
    /// The target accepts no more data: it is full, over a quota, or read-only. Extraction stopped
    /// there; the last problem says where.
    pub stopped: bool,
}

#[derive(Clone)]
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

/// A long file that idle threads fill together. The last one finishes it.
struct Shared {
    file: Listed,
    filling: Filling,
    has_mode: bool,
}

/// A task for a thread.
enum Job {
    Batch(Batch),
    /// Helps to fill a file that is not finished yet.
    Help(Weak<Shared>),
}

/// The target and options of an extraction, shared by the threads.
struct Target<'a> {
    image: &'a Image,
    root: OwnedFd,
    options: &'a ExtractOptions,
    threads: usize,
    made: Made,
    /// The remaining limit on bytes of content.
    left: AtomicU64,
    jobs: Work<Job>,
    filled: Mutex<Filled>,
    warnings: Mutex<Vec<(PathId, String)>>,
    /// Set by the first error that would affect all further files.
    stopped: AtomicBool,
    stopped_by: Mutex<Option<(PathId, Error)>>,
}

/// The results of the batches.
#[derive(Default)]
struct Filled {
    names: u64,
    file_bytes: u64,
    problems: Vec<(PathId, Error)>,
}

/// A directory that was created.
struct Directory {
    path: PathId,
    inode: Inode,
    has_mode: bool,
}

/// The state of the walk.
struct Extraction<'a> {
    target: &'a Target<'a>,
    directories: Vec<Directory>,
    /// Files of the directory that is being walked.
    batch: Option<Batch>,
    /// Batches whose path is too long for a system call.
    deep: Vec<Batch>,
    /// The first path of each file with several links, then its further paths.
    first_path: HashMap<u64, PathId>,
    links: Vec<(PathId, PathId)>,
    report: ExtractReport,
    /// Recently used directories and some of their parents, the most recent last.
    open: Vec<(PathId, OwnedFd)>,
    /// Buffers for content.
    room: Room,
}

/// The properties of files just created in the target, so that only deviations need a system call.
struct Made {
    /// Owner and group, if known for certain.
    owner: Option<(u32, u32)>,
    /// The mode bits that are kept: all, or those of new files.
    kept_mode: u16,
    /// The mode bits that may be lost at creation.
    lost_mode: u16,
    /// New directories may inherit a bit that is not in their mode (`S_ISGID`).
    passes_group_on: bool,
}

impl Made {
    /// Determines the properties. Directories in the target are created by this process and inherit
    /// from the target.
    fn in_directory(root: &OwnedFd, options: &ExtractOptions) -> Self {
        let ours = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        // The group is then the same, whether it comes from the process or from the directory.
        let certain = |stat: &rustix::fs::Stat| {
            (stat.st_uid, stat.st_gid) == ours && !Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID)
        };
        let stat = rustix::fs::fstat(root).ok();
        let owner = stat.filter(certain).map(|_| ours);
        let passes_group_on = stat.is_none_or(|stat| Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID));
        // A default ACL replaces the umask.
        let acl = rustix::fs::fgetxattr(root, "system.posix_acl_default", &mut [0; 0]).is_ok();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| u16::from_str_radix(line.strip_prefix("Umask:")?.trim(), 8).ok());
        Self {
            owner,
            // If the system does not report the umask (Linux before 4.7), only the owner gets
            // access.
            kept_mode: if options.permissions { 0o7777 } else { 0o777 & !mask.unwrap_or(0o077) },
            lost_mode: if acl { 0o7777 } else { mask.unwrap_or(0o777) | 0o7000 },
            passes_group_on,
        }
    }

    fn has_owner(&self, inode: &Inode) -> bool {
        self.owner == Some((inode.uid, inode.gid))
    }

    /// Returns the mode that a file should end up with.
    fn final_mode(&self, inode: &Inode) -> Mode {
        Mode::from_raw_mode((inode.permissions() & self.kept_mode).into())
    }

    /// Returns the mode for creating a file: its final mode, if the file is certain to get and keep
    /// it. An ACL among its xattrs could restore cleared bits.
    fn mode(&self, inode: &Inode) -> Option<Mode> {
        let mode = self.final_mode(inode);
        let keeps = self.kept_mode == 0o7777 || inode.xattr_start == inode.xattr_end;
        (keeps && mode.as_raw_mode() & u32::from(self.lost_mode) == 0).then_some(mode)
    }

    /// As [`mode`](Self::mode), for a directory in which files are created.
    fn directory_mode(&self, inode: &Inode) -> Option<Mode> {
        self.mode(inode).filter(|mode| !self.passes_group_on && mode.contains(Mode::RWXU))
    }
}

fn failed(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |error| Error::io(what)(error.into())
}

/// Builds the error for an xattr. Space for xattrs is limited per file, so `ENOSPC` says nothing
/// about other files.
fn no_xattr(name: &[u8], error: rustix::io::Errno) -> Error {
    let source = match error {
        rustix::io::Errno::NOSPC => std::io::Error::new(ErrorKind::StorageFull, "the file system has no room for it"),
        error => error.into(),
    };
    Error::io(format!("setting the xattr {}", String::from_utf8_lossy(name)))(source)
}

fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

/// Opens a directory below `root` without following links: with one `openat2` if available, else
/// name by name.
fn open_directory(root: &OwnedFd, names: &[&[u8]]) -> Result<OwnedFd> {
    let path = names.join(&b'/');
    if (1..PATH_BYTES).contains(&path.len()) {
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        // Errors are found again below.
        if let Ok(directory) = rustix::fs::openat2(root, os(&path), DIRECTORY, Mode::empty(), within) {
            return Ok(directory);
        }
    }
    let mut here = root.try_clone().map_err(Error::io("opening the target"))?;
    for name in names {
        here = open_in(&here, name)?;
    }
    Ok(here)
}

fn open_in(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
    rustix::fs::openat(directory, os(name), DIRECTORY, Mode::empty()).map_err(failed("opening a directory"))
}

impl Image {
    /// Extracts the whole tree into `target`, which is created if it does not exist. Files that
    /// cannot be extracted are reported, and extraction continues unless the target accepts no more
    /// data. An error means that extraction could not start.
    pub fn extract(&self, target: &Path, options: &ExtractOptions) -> Result<ExtractReport> {
        self.extract_below(&self.root()?, target, options)
    }

    /// As [`extract`](Self::extract), for the contents of the directory `start`. The report's paths
    /// are relative to it. `target` gets its metadata.
    pub fn extract_below(&self, start: &Inode, target: &Path, options: &ExtractOptions) -> Result<ExtractReport> {
        if start.kind != FileKind::Directory {
            return Err(Error::NotA("directory"));
        }
        match rustix::fs::mkdir(target, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(failed("making the target")(error)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, target, flags, Mode::empty()).map_err(failed("opening the target"))?;
        let target = Target {
            image: self,
            made: Made::in_directory(&root, options),
            root,
            options,
            threads: thread_count(options.threads),
            left: AtomicU64::new(options.max_bytes.unwrap_or(u64::MAX)),
            jobs: Work::new(),
            filled: Mutex::default(),
            warnings: Mutex::default(),
            stopped: AtomicBool::new(false),
            stopped_by: Mutex::default(),
        };
        let mut extraction = Extraction {
            target: &target,
            directories: Vec::new(),
            batch: None,
            deep: Vec::new(),
            first_path: HashMap::new(),
            links: Vec::new(),
            report: ExtractReport::default(),
            open: Vec::new(),
            room: Room::default(),
        };
        let paths = std::thread::scope(|scope| {
            let finder = target.jobs.finder();
            // The system may allow fewer threads.
            let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, || target.fill()).is_ok();
            let _ = (1..target.threads).all(spawn);
            let paths = walk_from(self, Step { path: 0, parent_nid: None, inode: start.clone() }, &mut extraction);
            extraction.end_batch(&paths);
            drop(finder);
            target.fill();
            paths
        });
        extraction.end_files(&paths);
        extraction.link(&paths);
        extraction.finish_directories(&paths);
        let mut report = extraction.report;
        let mut warnings = Notices::default();
        for (path, what) in target.warnings.into_inner().unwrap_or_else(PoisonError::into_inner) {
            warnings.add(|| paths.display(path), what);
        }
        (report.warnings, report.more_warnings) = warnings.take();
        report.problems.sort_by(|left, right| left.path.cmp(&right.path));
        if let Some((path, error)) = target.stopped_by.into_inner().unwrap_or_else(PoisonError::into_inner) {
            report.problems.push(Problem { path: paths.display(path), error, other: None });
            report.stopped = true;
        }
        Ok(report)
    }
}

impl Visitor for Extraction<'_> {
    fn visit(&mut self, paths: &Paths, step: &Step) -> bool {
        if self.target.is_stopped() {
            return false;
        }
        if step.inode.kind == FileKind::Directory {
            // Now, while its parent is open.
            self.end_batch(paths);
        }
        let Some((parent, name)) = paths.parent(step.path) else {
            self.directories.push(Directory { path: step.path, inode: step.inode.clone(), has_mode: false });
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
        }
        true
    }

    fn found(&mut self, paths: &Paths, step: &Step) -> bool {
        let Some((parent, name)) = paths.parent(step.path).filter(|_| !self.target.is_stopped()) else { return false };
        match self.make_directory(paths, parent, name, &step.inode) {
            Ok(has_mode) => {
                self.directories.push(Directory { path: step.path, inode: step.inode.clone(), has_mode });
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
        if let Some(error) = self.target.unless_stopped_by(path, error) {
            self.report.add(paths, path, error);
        }
    }
}

impl ExtractReport {
    fn add(&mut self, paths: &Paths, path: PathId, error: Error) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem { path: paths.display(path), error, other: None });
        } else {
            self.more_problems += 1;
        }
    }
}

impl Extraction<'_> {
    /// Returns an open directory, from the recently used ones if possible.
    fn directory(&mut self, paths: &Paths, path: PathId) -> Result<&OwnedFd> {
        let kept = |path: PathId| self.open.iter().rposition(|(open, _)| *open == path);
        let directory = match (kept(path), paths.parent(path)) {
            (Some(at), _) => self.open.remove(at),
            (None, Some((parent, name))) if let Some(at) = kept(parent) => {
                let parent = self.open.remove(at);
                let directory = open_in(&parent.1, name);
                self.open.push(parent);
                (path, directory?)
            }
            _ => (path, open_directory(&self.target.root, &paths.names(path))?),
        };
        if self.open.len() == MAX_OPEN {
            self.open.remove(0);
        }
        Ok(&self.open.push_mut(directory).1)
    }

    /// Creates a directory. Returns whether it has its final mode.
    fn make_directory(&mut self, paths: &Paths, parent: PathId, name: &[u8], inode: &Inode) -> Result<bool> {
        let mode = if parent == 0 { None } else { self.target.made.directory_mode(inode) };
        let parent = self.directory(paths, parent)?;
        rustix::fs::mkdirat(parent, os(name), mode.unwrap_or(Mode::RWXU)).map_err(failed("making a directory"))?;
        Ok(mode.is_some())
    }

    /// Adds a file to the batch of its directory.
    fn list(&mut self, paths: &Paths, parent: PathId, file: Listed) {
        if self.batch.as_ref().is_none_or(|batch| batch.parent != parent || batch.files.len() == BATCH) {
            self.end_batch(paths);
            self.batch = Some(Batch { parent, place: Vec::new(), files: Vec::new() });
        }
        if let Some(batch) = &mut self.batch {
            batch.files.push(file);
        }
    }

    /// Processes the current batch or queues it.
    fn end_batch(&mut self, paths: &Paths) {
        let Some(mut batch) = self.batch.take() else { return };
        let target = self.target;
        if target.threads == 1 {
            let mut room = std::mem::take(&mut self.room);
            target.fill_directory(batch.parent, self.directory(paths, batch.parent), &batch.files, &mut room);
            self.room = room;
            return;
        }
        batch.place = paths.names(batch.parent).join(&b'/');
        if batch.place.len() >= PATH_BYTES {
            // An image can contain any number of paths of any length, so do not store them.
            batch.place = Vec::new();
            self.deep.push(batch);
        } else if let Some(Job::Batch(batch)) = target.jobs.offer(Job::Batch(batch), MAX_WAITING) {
            target.fill_batch(&batch, &mut self.room);
        }
    }

    /// Processes the batches with long paths, then collects all results.
    fn end_files(&mut self, paths: &Paths) {
        for batch in std::mem::take(&mut self.deep) {
            let directory = open_directory(&self.target.root, &paths.names(batch.parent));
            self.target.fill_directory(batch.parent, directory, &batch.files, &mut self.room);
        }
        let filled = std::mem::take(&mut *self.target.filled());
        self.report.names += filled.names;
        self.report.file_bytes += filled.file_bytes;
        for (path, error) in filled.problems {
            self.failed(paths, path, error);
        }
    }

    /// Creates further names of files.
    fn link(&mut self, paths: &Paths) {
        for (first, further) in std::mem::take(&mut self.links) {
            if self.target.is_stopped() {
                return;
            }
            if let Err(error) = self.link_one(paths, first, further) {
                self.failed(paths, further, error);
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
        for directory in std::mem::take(&mut self.directories).into_iter().rev() {
            if let Err(error) = self.finish_directory(paths, &directory) {
                self.failed(paths, directory.path, error);
            }
        }
    }

    fn finish_directory(&mut self, paths: &Paths, directory: &Directory) -> Result<()> {
        let Directory { path, inode, has_mode } = directory;
        let target = self.target;
        let open = match paths.parent(*path) {
            Some((parent, name)) => {
                let parent = self.directory(paths, parent)?;
                if *has_mode && (!target.options.xattrs || inode.xattr_start == inode.xattr_end) {
                    target.set_owner(inode, parent, name)?;
                    return set_times(inode, parent, name);
                }
                open_in(parent, name)?
            }
            None => target.root.try_clone().map_err(Error::io("opening the target"))?,
        };
        target.finish(*path, inode, &OsFile::from(open), *has_mode)
    }
}

impl Target<'_> {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Returns the error, unless it would affect all further files: the first such error is
    /// recorded and stops the extraction.
    fn unless_stopped_by(&self, path: PathId, error: Error) -> Option<Error> {
        if !error.takes_no_more() {
            return Some(error);
        }
        self.stopped.store(true, Ordering::Relaxed);
        self.stopped_by.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((path, error));
        None
    }

    fn filled(&self) -> MutexGuard<'_, Filled> {
        self.filled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes jobs until none are left.
    fn fill(&self) {
        let mut room = Room::default();
        while let Some((job, _finder)) = self.jobs.next_of_finder() {
            match job {
                Job::Batch(batch) => self.fill_batch(&batch, &mut room),
                Job::Help(shared) => {
                    let Some(shared) = shared.upgrade() else { continue };
                    let mut filled = Filled::default();
                    self.fill_shared(shared, &mut room, &mut filled);
                    self.report(filled);
                }
            }
        }
    }

    fn fill_batch(&self, batch: &Batch, room: &mut Room) {
        let names: Vec<&[u8]> = batch.place.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        self.fill_directory(batch.parent, open_directory(&self.root, &names), &batch.files, room);
    }

    fn fill_directory(
        &self,
        parent: PathId,
        directory: Result<impl Borrow<OwnedFd>>,
        files: &[Listed],
        room: &mut Room,
    ) {
        let mut filled = Filled::default();
        match directory {
            Ok(directory) => {
                let directory = directory.borrow();
                for file in files {
                    if self.is_stopped() {
                        break;
                    }
                    match file.inode.kind {
                        FileKind::Regular => self.make_regular(directory, file, room, &mut filled),
                        _ => self.add(&mut filled, file.path, self.make_other(directory, file).map(|()| 0)),
                    }
                }
            }
            Err(error) => self.add(&mut filled, parent, Err(error)),
        }
        self.report(filled);
    }

    /// Records a file: its size, or the error.
    fn add(&self, filled: &mut Filled, path: PathId, made: Result<u64>) {
        match made {
            Ok(len) => (filled.names, filled.file_bytes) = (filled.names + 1, filled.file_bytes + len),
            Err(error) => filled.problems.extend(self.unless_stopped_by(path, error).map(|error| (path, error))),
        }
    }

    fn report(&self, mut filled: Filled) {
        let mut all = self.filled();
        all.names += filled.names;
        all.file_bytes += filled.file_bytes;
        all.problems.append(&mut filled.problems);
    }

    /// Creates a link, device, pipe or socket.
    fn make_other(&self, directory: &OwnedFd, file: &Listed) -> Result<()> {
        let name = os(&file.name);
        let inode = &file.inode;
        let kind = match inode.kind {
            FileKind::Regular | FileKind::Directory => return Err(Error::NotA("link, device or pipe")),
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
                let mode = self.made.final_mode(inode);
                rustix::fs::mknodat(directory, name, kind, mode, device).map_err(failed("making a device or pipe"))?;
            }
        }
        self.set_owner(inode, directory, &file.name)?;
        // No system call takes a directory and a name for this, so use the descriptor's link in
        // /proc.
        let path = || PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
        let xattrs = self.set_xattrs(file.path, inode, |name, value| {
            rustix::fs::lsetxattr(path(), name, value, XattrFlags::empty())
        });
        if kind.is_some() && self.made.mode(inode).is_none() {
            rustix::fs::chmodat(directory, name, self.made.final_mode(inode), AtFlags::empty())
                .map_err(failed("setting the mode"))?;
        }
        set_times(inode, directory, &file.name)?;
        xattrs
    }

    /// Sets the owner by name, unless the file already has it.
    fn set_owner(&self, inode: &Inode, directory: &OwnedFd, name: &[u8]) -> Result<()> {
        if !self.options.owners || self.made.has_owner(inode) {
            return Ok(());
        }
        let (uid, gid) = owner(inode);
        rustix::fs::chownat(directory, os(name), uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("setting the owner"))
    }

    /// Sets all xattrs that can be set. Returns the first error.
    fn set_xattrs(
        &self,
        path: PathId,
        inode: &Inode,
        set: impl Fn(&OsStr, &[u8]) -> rustix::io::Result<()>,
    ) -> Result<()> {
        let xattrs = if self.options.xattrs { self.image.all_xattrs(inode)? } else { Xattrs::default() };
        if !xattrs.unknown.is_empty() {
            let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
            warnings.extend(xattrs.warnings().map(|what| (path, what)));
        }
        let mut xattrs = xattrs.known;
        xattrs.retain(|xattr| self.options.permissions || xattr.name != b"security.capability");
        let done =
            xattrs.iter().map(|xattr| set(os(&xattr.name), &xattr.value).map_err(|error| no_xattr(&xattr.name, error)));
        done.fold(Ok(()), Result::and)
    }

    /// Creates and fills a file, together with other threads if it is long.
    fn make_regular(&self, directory: &OwnedFd, file: &Listed, room: &mut Room, filled: &mut Filled) {
        match self.open_regular(directory, file) {
            Err(error) => self.add(filled, file.path, Err(error)),
            Ok((filling, has_mode)) if self.threads > 1 && filling.is_long() => {
                let shared = Arc::new(Shared { file: file.clone(), filling, has_mode });
                self.fill_shared(shared, room, filled);
            }
            Ok((filling, has_mode)) => {
                filling.help(room);
                self.add(filled, file.path, self.end_regular(file, filling, has_mode));
            }
        }
    }

    /// Creates a file. Returns whether it has its final mode.
    fn open_regular(&self, directory: &OwnedFd, file: &Listed) -> Result<(Filling, bool)> {
        let inode = &file.inode;
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(inode.size));
        if taken.is_err() {
            let allowed = self.options.max_bytes.unwrap_or(u64::MAX);
            return Err(Error::TooMuch { needed: inode.size, allowed });
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // No other user can get here before the directories get their modes. Without root, setting
        // xattrs needs write permission on the file.
        let can_set_xattrs = |mode: &Mode| mode.contains(Mode::WUSR) || inode.xattr_start == inode.xattr_end;
        let mode = self.made.mode(inode).filter(can_set_xattrs);
        let out = rustix::fs::openat(directory, os(&file.name), flags, mode.unwrap_or(Mode::RUSR | Mode::WUSR))
            .map_err(failed("making a file"))?;
        Ok((Filling::new(self.image.file(inode)?, out.into()), mode.is_some()))
    }

    /// Helps to fill a file, queues more help, and finishes the file if this thread is the last.
    fn fill_shared(&self, shared: Arc<Shared>, room: &mut Room, filled: &mut Filled) {
        if shared.filling.has_more() {
            self.jobs.push_first(Job::Help(Arc::downgrade(&shared)));
        }
        shared.filling.help(room);
        if let Some(Shared { file, filling, has_mode }) = Arc::into_inner(shared) {
            self.add(filled, file.path, self.end_regular(&file, filling, has_mode));
        }
    }

    /// Finishes a file. Returns the size of its content in bytes.
    fn end_regular(&self, file: &Listed, filling: Filling, has_mode: bool) -> Result<u64> {
        self.finish(file.path, &file.inode, &filling.end()?, has_mode)?;
        Ok(file.inode.size)
    }

    /// Sets the metadata of an open file or directory. The owner comes first because changing it
    /// clears mode bits. The mode comes after the xattrs because it may forbid setting them.
    fn finish(&self, path: PathId, inode: &Inode, file: &OsFile, has_mode: bool) -> Result<()> {
        let file = file.as_fd();
        if self.options.owners && !self.made.has_owner(inode) {
            let (uid, gid) = owner(inode);
            rustix::fs::fchown(file, uid, gid).map_err(failed("setting the owner"))?;
        }
        let xattrs =
            self.set_xattrs(path, inode, |name, value| rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()));
        if !has_mode {
            rustix::fs::fchmod(file, self.made.final_mode(inode)).map_err(failed("setting the mode"))?;
        }
        rustix::fs::futimens(file, &times(inode)).map_err(failed("setting the time"))?;
        xattrs
    }
}

fn owner(inode: &Inode) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(inode.uid)), Some(Gid::from_raw(inode.gid)))
}

fn set_times(inode: &Inode, directory: &OwnedFd, name: &[u8]) -> Result<()> {
    rustix::fs::utimensat(directory, os(name), &times(inode), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(failed("setting the time"))
}

fn times(inode: &Inode) -> Timestamps {
    let time = Timespec { tv_sec: inode.mtime_s, tv_nsec: i64::from(inode.mtime_nsec) };
    Timestamps { last_access: time, last_modification: time }
}

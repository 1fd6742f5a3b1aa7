//! Extracting an image into a directory.
//!
//! ```text
//! 1. walk        directories are made, those in the target for the owner alone; files are listed, by directory
//! 2. files       threads make and fill files, links and devices, a batch of one directory at a time, while the walk goes on;
//!                a long file is filled by all who have nothing else to do; one thread alone makes them during the walk
//! 3. hard links  further names of files
//! 4. directories owners, modes, xattrs, times, the deepest first
//! ```
//!
//! Nobody else gets to what is made before all in it is as it should be: a directory in the target
//! gets its mode last, and keeps others out until then. What is further below has its own mode from
//! the start, so that most directories need no more than a time, by name.
//!
//! Nothing is written outside the target: every directory is one that step 1 made (an existing name
//! is an error) and is opened name by name from the target without following links; names have no
//! slash and are not `..`.

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

/// Files that a thread takes together.
const BATCH: usize = 64;
/// Batches that wait for a thread; the walk does further ones itself.
const MAX_WAITING: usize = 256;
/// Longer paths are not taken by a system call.
const PATH_BYTES: usize = 4096;
/// Directories that are kept open, besides the target.
const MAX_OPEN: usize = 8;
/// How directories are opened.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Problems that a report holds.
const MAX_PROBLEMS: usize = 1000;

/// How an image is extracted.
#[derive(Clone, Debug)]
pub struct ExtractOptions {
    /// Threads, at most 1024; 0 for one a processor.
    pub threads: usize,
    /// Set owners, and make device files, which are left out otherwise. Needs root.
    pub owners: bool,
    /// Set modes as the image has them. Otherwise programs gain no rights of others, and modes are
    /// those of new files: without set-id and sticky bits and what the process's umask takes, and
    /// `security.capability` is not set.
    pub permissions: bool,
    /// Set extended attributes.
    pub xattrs: bool,
    /// Bytes of content after which nothing more is extracted, against images made to fill disks.
    pub max_bytes: Option<u64>,
}

impl Default for ExtractOptions {
    fn default() -> Self {
        let owners = rustix::process::geteuid().is_root();
        Self { threads: 0, owners, permissions: true, xattrs: true, max_bytes: None }
    }
}

/// What was extracted.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ExtractReport {
    /// Names made.
    pub names: u64,
    /// Bytes of regular files.
    pub file_bytes: u64,
    /// What could not be extracted: the first thousand.
    pub problems: Vec<Problem>,
    /// Problems beyond those.
    pub more_problems: u64,
    /// What this crate left out, as Linux does: the first hundred. They are no problems.
    pub warnings: Vec<Notice>,
    /// Notices beyond those.
    pub more_warnings: u64,
    /// The target took no more: it is full, over a quota, or read-only. What was left was not
    /// tried, and the last problem says where that was.
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

/// A long file that is filled by all who have nothing else to do. The last of them ends it.
struct Shared {
    file: Listed,
    filling: Filling,
    has_mode: bool,
}

/// What a thread may do.
enum Job {
    Batch(Batch),
    /// Unless it has ended.
    Help(Weak<Shared>),
}

/// Where and how an image is extracted: what threads share.
struct Target<'a> {
    image: &'a Image,
    root: OwnedFd,
    options: &'a ExtractOptions,
    threads: usize,
    made: Made,
    /// Bytes of content that may still come.
    left: AtomicU64,
    jobs: Work<Job>,
    filled: Mutex<Filled>,
    warnings: Mutex<Vec<(PathId, String)>>,
    /// Set with the first error that each further file would meet.
    stopped: AtomicBool,
    stopped_by: Mutex<Option<(PathId, Error)>>,
}

/// What came of the batches.
#[derive(Default)]
struct Filled {
    names: u64,
    file_bytes: u64,
    problems: Vec<(PathId, Error)>,
}

/// A directory that was made.
struct Directory {
    path: PathId,
    inode: Inode,
    has_mode: bool,
}

/// The walk through an image that is extracted.
struct Extraction<'a> {
    target: &'a Target<'a>,
    directories: Vec<Directory>,
    /// Files of the directory that the walk is in.
    batch: Option<Batch>,
    /// Those whose paths are too long to be told a thread.
    deep: Vec<Batch>,
    /// The first path of each file, and further ones.
    first_path: HashMap<u64, PathId>,
    links: Vec<(PathId, PathId)>,
    report: ExtractReport,
    /// Directories whose children are being made or finished, and some that these are in. The one
    /// used last is the last.
    open: Vec<(PathId, OwnedFd)>,
    /// For content on its way.
    room: Room,
}

/// What files in the target are when they have just been made, so that only what is otherwise needs
/// a call.
struct Made {
    /// Owner and group, if they are certain.
    owner: Option<(u32, u32)>,
    /// Bits of modes that are kept: all, or those that new files have.
    kept_mode: u16,
    /// Bits that a mode asked for may lose.
    lost_mode: u16,
    /// Directories get a bit that their modes may not have (`S_ISGID`).
    passes_group_on: bool,
}

impl Made {
    /// Directories in the target are made by us and get what it gives to what is made in it.
    fn in_directory(root: &OwnedFd, options: &ExtractOptions) -> Self {
        let ours = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        // Whether a group comes from the process or from the directory is then the same.
        let certain = |stat: &rustix::fs::Stat| {
            (stat.st_uid, stat.st_gid) == ours && !Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID)
        };
        let stat = rustix::fs::fstat(root).ok();
        let owner = stat.filter(certain).map(|_| ours);
        let passes_group_on = stat.is_none_or(|stat| Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID));
        // An ACL for new files takes the place of the mask.
        let acl = rustix::fs::fgetxattr(root, "system.posix_acl_default", &mut [0; 0]).is_ok();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| u16::from_str_radix(line.strip_prefix("Umask:")?.trim(), 8).ok());
        Self {
            owner,
            // A system that does not tell its mask (Linux before 4.7) leaves all to the owner.
            kept_mode: if options.permissions { 0o7777 } else { 0o777 & !mask.unwrap_or(0o077) },
            lost_mode: if acl { 0o7777 } else { mask.unwrap_or(0o777) | 0o7000 },
            passes_group_on,
        }
    }

    fn has_owner(&self, inode: &Inode) -> bool {
        self.owner == Some((inode.uid, inode.gid))
    }

    /// The mode that a file is to have.
    fn final_mode(&self, inode: &Inode) -> Mode {
        Mode::from_raw_mode((inode.permissions() & self.kept_mode).into())
    }

    /// The mode to make a file with: its final one, if it is certain to get and to keep it. An ACL
    /// among its xattrs would bring back what is not kept.
    fn mode(&self, inode: &Inode) -> Option<Mode> {
        let mode = self.final_mode(inode);
        let keeps = self.kept_mode == 0o7777 || inode.xattr_start == inode.xattr_end;
        (keeps && mode.as_raw_mode() & u32::from(self.lost_mode) == 0).then_some(mode)
    }

    /// As [`mode`](Self::mode), for a directory in which we make files.
    fn directory_mode(&self, inode: &Inode) -> Option<Mode> {
        self.mode(inode).filter(|mode| !self.passes_group_on && mode.contains(Mode::RWXU))
    }
}

fn failed(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |error| Error::io(what)(error.into())
}

/// A file's xattrs have a room of their own. That it is full says nothing of other files.
fn no_xattr(name: &[u8], error: rustix::io::Errno) -> Error {
    let source = match error {
        rustix::io::Errno::NOSPC => std::io::Error::new(ErrorKind::StorageFull, "no room for it"),
        error => error.into(),
    };
    Error::io(format!("setting the xattr {}", String::from_utf8_lossy(name)))(source)
}

fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

/// Opens a directory below `root`: by one call where the system has one that follows no links on
/// the way, else name by name.
fn open_directory(root: &OwnedFd, names: &[&[u8]]) -> Result<OwnedFd> {
    let path = names.join(&b'/');
    if (1..PATH_BYTES).contains(&path.len()) {
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        // What was wrong is found again below.
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
    /// Extracts the whole tree into `target`, which is made if it does not exist. Files that cannot
    /// be extracted are reported and the rest goes on, unless the target takes nothing more; an
    /// error means that there was nothing to go on with.
    pub fn extract(&self, target: &Path, options: &ExtractOptions) -> Result<ExtractReport> {
        self.extract_below(&self.root()?, target, options)
    }

    /// As [`extract`](Self::extract), what is in the directory `start`, from which the report's
    /// paths begin. `target` becomes as it is.
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
            // The system may allow fewer.
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
            // While its parent is open.
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
    /// An open directory: some that were asked for lately are kept.
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

    /// Makes a directory, and says whether it has its mode.
    fn make_directory(&mut self, paths: &Paths, parent: PathId, name: &[u8], inode: &Inode) -> Result<bool> {
        let mode = if parent == 0 { None } else { self.target.made.directory_mode(inode) };
        let parent = self.directory(paths, parent)?;
        rustix::fs::mkdirat(parent, os(name), mode.unwrap_or(Mode::RWXU)).map_err(failed("making a directory"))?;
        Ok(mode.is_some())
    }

    /// Puts a file into the batch of its directory.
    fn list(&mut self, paths: &Paths, parent: PathId, file: Listed) {
        if self.batch.as_ref().is_none_or(|batch| batch.parent != parent || batch.files.len() == BATCH) {
            self.end_batch(paths);
            self.batch = Some(Batch { parent, place: Vec::new(), files: Vec::new() });
        }
        if let Some(batch) = &mut self.batch {
            batch.files.push(file);
        }
    }

    /// Makes the files that are listed, or hands them over.
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
            // Paths get as long as an image likes, and there may be as many.
            batch.place = Vec::new();
            self.deep.push(batch);
        } else if let Some(Job::Batch(batch)) = target.jobs.offer(Job::Batch(batch), MAX_WAITING) {
            target.fill_batch(&batch, &mut self.room);
        }
    }

    /// Makes the files that no thread was told of, and reports on all.
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

    /// Gives files their further names.
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

    /// The error, unless it is one that each further file would meet: the first of these is kept,
    /// and stops everything.
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

    /// Makes and fills files until there is nothing more to do.
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

    /// Adds a file, of so many bytes if it could be extracted.
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

    /// Makes a link, device or pipe.
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
        // There is no call that takes a directory and a name; the descriptor's link in /proc stands
        // for it.
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

    /// Sets the owner of what has a name, unless it was made so.
    fn set_owner(&self, inode: &Inode, directory: &OwnedFd, name: &[u8]) -> Result<()> {
        if !self.options.owners || self.made.has_owner(inode) {
            return Ok(());
        }
        let (uid, gid) = owner(inode);
        rustix::fs::chownat(directory, os(name), uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("setting the owner"))
    }

    /// Sets all xattrs that can be set, and says why the first of the others could not.
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

    /// Makes and fills a file, together with others if it is long.
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

    /// Makes a file, and says whether it has its mode.
    fn open_regular(&self, directory: &OwnedFd, file: &Listed) -> Result<(Filling, bool)> {
        let inode = &file.inode;
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(inode.size));
        if taken.is_err() {
            let allowed = self.options.max_bytes.unwrap_or(u64::MAX);
            return Err(Error::TooMuch { needed: inode.size, allowed });
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Nobody else gets here before the directories get their modes. Who is not root sets xattrs
        // of what it may write to.
        let can_set_xattrs = |mode: &Mode| mode.contains(Mode::WUSR) || inode.xattr_start == inode.xattr_end;
        let mode = self.made.mode(inode).filter(can_set_xattrs);
        let out = rustix::fs::openat(directory, os(&file.name), flags, mode.unwrap_or(Mode::RUSR | Mode::WUSR))
            .map_err(failed("making a file"))?;
        Ok((Filling::new(self.image.file(inode)?, out.into()), mode.is_some()))
    }

    /// Helps to fill a file, for which others are called, and ends it if this is the last to do so.
    fn fill_shared(&self, shared: Arc<Shared>, room: &mut Room, filled: &mut Filled) {
        if shared.filling.has_more() {
            self.jobs.push_first(Job::Help(Arc::downgrade(&shared)));
        }
        shared.filling.help(room);
        if let Some(Shared { file, filling, has_mode }) = Arc::into_inner(shared) {
            self.add(filled, file.path, self.end_regular(&file, filling, has_mode));
        }
    }

    /// Ends a file and returns the bytes of its content.
    fn end_regular(&self, file: &Listed, filling: Filling, has_mode: bool) -> Result<u64> {
        self.finish(file.path, &file.inode, &filling.end()?, has_mode)?;
        Ok(file.inode.size)
    }

    /// Sets what an open file or directory has besides content. The owner first, which clears bits
    /// of the mode; the mode after the xattrs, which it may forbid to set.
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

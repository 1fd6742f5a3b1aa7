//! Creates files in the target.

use std::ffi::OsStr;
use std::fs::File as OsFile;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, XattrFlags};
use rustix::io::Errno;

use super::filling::{Filling, Room};
use super::made::{Creator, Within};
use super::options::{Existing, ExtractOptions};
use super::report::{Findings, LeftOut};
use super::times;
use crate::error::{Error, Result};
use crate::read::{FileKind, Image, Inode, PathId, Xattrs};
use crate::work::Work;

/// The number of temporary names to try.
const MAX_TRIES: usize = 100;

/// A file to create.
#[derive(Clone)]
pub(super) struct Listed {
    pub(super) path: PathId,
    pub(super) name: Vec<u8>,
    pub(super) inode: Inode,
}

/// Files of one directory.
pub(super) struct Batch {
    pub(super) directory: Arc<OwnedFd>,
    pub(super) within: Within,
    pub(super) files: Vec<Listed>,
}

/// A long file that idle threads fill together. The last one finishes it.
pub(super) struct Shared {
    file: Listed,
    new: NewFile,
}

/// A regular file that was created but not filled yet.
struct NewFile {
    filling: Filling,
    has_mode: bool,
    within: Within,
    name: NewName,
}

/// The name under which a file was created.
struct NewName {
    directory: Arc<OwnedFd>,
    /// The name until the file is complete, if it replaces another one.
    temporary: Option<String>,
}

/// A new file, or the existing one that is kept.
enum MadeOrKept<T> {
    New(T, NewName),
    Kept(Stat),
}

/// A task for a thread.
pub(super) enum Job {
    Batch(Batch),
    /// Helps to fill a file that is not finished yet.
    Help(Weak<Shared>),
}

/// The target and options of an extraction, shared by the threads.
pub(super) struct Target<'a> {
    pub(super) image: &'a Image,
    pub(super) root: Arc<OwnedFd>,
    pub(super) options: &'a ExtractOptions,
    pub(super) creator: Creator,
    pub(super) threads: usize,
    pub(super) jobs: Work<Job>,
    /// The remaining limit on bytes of content.
    left: AtomicU64,
    findings: Mutex<Findings>,
    warnings: Mutex<Vec<(PathId, String)>>,
    /// Set by the first error that would affect all further files.
    stopped: AtomicBool,
    stopped_by: Mutex<Option<(PathId, Error)>>,
    /// Makes temporary names differ.
    number: AtomicU64,
}

fn failed(what: &'static str) -> impl FnOnce(Errno) -> Error {
    move |error| if error == Errno::EXIST { Error::Exists } else { Error::io(what)(error.into()) }
}

fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

/// Returns a path of a name in a directory, for system calls that do not take a directory.
fn path_in(directory: &OwnedFd, name: &[u8]) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(os(name))
}

/// The result of giving a file a further name.
pub(super) enum Linked {
    New,
    /// It had the name before.
    Kept,
    /// Another file has the name, and was kept.
    KeptOther,
}

impl NewName {
    fn current<'a>(&'a self, name: &'a [u8]) -> &'a [u8] {
        self.temporary.as_ref().map_or(name, |temporary| temporary.as_bytes())
    }

    /// Gives a complete file its name. A file that could not be completed is removed if it has a
    /// temporary name.
    fn settle<T>(&self, name: &[u8], made: Result<T>) -> Result<T> {
        let Some(temporary) = &self.temporary else { return made };
        let named = made.and_then(|made| {
            rustix::fs::renameat(&self.directory, temporary, &self.directory, os(name))
                .map_err(failed("replacing a file"))?;
            Ok(made)
        });
        // Between two names of the same file, renaming does nothing.
        let _ = rustix::fs::unlinkat(&self.directory, temporary, AtFlags::empty());
        named
    }
}

impl<'a> Target<'a> {
    pub(super) fn new(image: &'a Image, root: OwnedFd, options: &'a ExtractOptions, threads: usize) -> Self {
        Self {
            image,
            root: Arc::new(root),
            options,
            creator: Creator::new(options),
            threads,
            jobs: Work::new(),
            left: AtomicU64::new(options.max_bytes.unwrap_or(u64::MAX)),
            findings: Mutex::default(),
            warnings: Mutex::default(),
            stopped: AtomicBool::new(false),
            stopped_by: Mutex::default(),
            number: AtomicU64::new(0),
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(super) fn stopped_by(&self) -> Option<(PathId, Error)> {
        self.stopped_by.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn warnings(&self) -> Vec<(PathId, String)> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn findings(&self) -> MutexGuard<'_, Findings> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an error of `count` files, of which the first is at `path`. An error that would affect
    /// all further files stops the extraction instead.
    pub(super) fn failed(&self, found: &mut Findings, path: PathId, count: u64, error: Error, extracted: bool) {
        if matches!(error, Error::IsInput) {
            found.kept_input(path);
        }
        if error.takes_no_more() {
            // Files found before the limit are still extracted.
            self.stopped.fetch_or(!matches!(error, Error::TooManyFiles { .. }), Ordering::Relaxed);
            self.stopped_by.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((path, error));
        } else {
            found.failed(path, count, error, extracted);
        }
    }

    /// Records the error of an attribute of a file that is otherwise complete.
    fn check(&self, found: &mut Findings, path: PathId, set: Result<()>) {
        if let Err(error) = set {
            self.failed(found, path, 1, error, true);
        }
    }

    /// Processes jobs until none are left.
    pub(super) fn fill(&self) {
        let mut room = Room::default();
        while let Some((job, _finder)) = self.jobs.next_of_finder() {
            match job {
                Job::Batch(batch) => self.fill_batch(&batch, &mut room),
                Job::Help(shared) => {
                    let Some(shared) = shared.upgrade() else { continue };
                    let mut found = Findings::default();
                    self.fill_shared(shared, &mut room, &mut found);
                    self.findings().append(found);
                }
            }
        }
    }

    pub(super) fn fill_batch(&self, batch: &Batch, room: &mut Room) {
        let mut found = Findings::default();
        for file in &batch.files {
            if self.is_stopped() {
                break;
            }
            match file.inode.kind {
                FileKind::Regular => self.make_regular(batch, file, room, &mut found),
                _ => self.make_other(batch, file, &mut found),
            }
        }
        self.findings().append(found);
    }

    /// Creates a file with `make` under its name, or another one if it will replace a file.
    fn make<T>(
        &self,
        directory: &Arc<OwnedFd>,
        name: &[u8],
        what: &'static str,
        make: impl Fn(&OsStr) -> rustix::io::Result<T>,
    ) -> Result<MadeOrKept<T>> {
        let new = |temporary| NewName { directory: Arc::clone(directory), temporary };
        match make(os(name)) {
            Ok(made) => return Ok(MadeOrKept::New(made, new(None))),
            Err(Errno::EXIST) if self.options.existing != Existing::Refuse => {}
            Err(error) => return Err(failed(what)(error)),
        }
        let existing = rustix::fs::statat(directory, os(name), AtFlags::SYMLINK_NOFOLLOW).map_err(failed(what))?;
        if self.options.existing == Existing::Keep {
            return Ok(MadeOrKept::Kept(existing));
        }
        self.check_replaced(&existing)?;
        if FileType::from_raw_mode(existing.st_mode) == FileType::Directory {
            let what = "a directory has this name: move it away first";
            return Err(Error::io("replacing a file")(io::Error::new(ErrorKind::IsADirectory, what)));
        }
        for _ in 0..MAX_TRIES {
            let number = self.number.fetch_add(1, Ordering::Relaxed);
            let temporary = format!(".pagefold-{}-{number}", std::process::id());
            match make(OsStr::new(&temporary)) {
                Err(Errno::EXIST) => {}
                made => return Ok(MadeOrKept::New(made.map_err(failed(what))?, new(Some(temporary)))),
            }
        }
        Err(Error::Exists)
    }

    /// Checks that a file may be replaced. One name of an input is kept even if it has others: those
    /// may be replaced too.
    fn check_replaced(&self, existing: &Stat) -> Result<()> {
        let is_input = self.options.inputs.contains(&(existing.st_dev, existing.st_ino));
        if is_input { Err(Error::IsInput) } else { Ok(()) }
    }

    /// Creates and fills a file, together with other threads if it is long.
    fn make_regular(&self, batch: &Batch, file: &Listed, room: &mut Room, found: &mut Findings) {
        match self.open_regular(batch, file) {
            Err(error) => self.failed(found, file.path, 1, error, false),
            Ok(MadeOrKept::Kept(existing)) => self.keep(file, &existing, found),
            Ok(MadeOrKept::New((filling, has_mode), name)) => {
                let new = NewFile { filling, has_mode, within: batch.within.clone(), name };
                if self.threads > 1 && new.filling.is_long() {
                    self.fill_shared(Arc::new(Shared { file: file.clone(), new }), room, found);
                } else {
                    new.filling.help(room);
                    self.end_regular(file, new, found);
                }
            }
        }
    }

    /// Creates a file. Returns whether it has its final mode.
    fn open_regular(&self, batch: &Batch, file: &Listed) -> Result<MadeOrKept<(Filling, bool)>> {
        let inode = &file.inode;
        let content = self.image.file(inode)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Without root, setting xattrs needs write permission on the file.
        let can_set_xattrs = |mode: &Mode| mode.contains(Mode::WUSR) || inode.xattr_start == inode.xattr_end;
        let mode = batch.within.mode(inode).filter(can_set_xattrs);
        let first = mode.unwrap_or(Mode::RUSR | Mode::WUSR);
        let take = || {
            let taken =
                self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(inode.size));
            let allowed = self.options.max_bytes.unwrap_or(u64::MAX);
            taken.map(drop).map_err(|_| Error::TooMuch { needed: inode.size, allowed })
        };
        // With a limit, files that are kept do not count.
        let keeps = self.options.existing == Existing::Keep;
        if !keeps {
            take()?;
        }
        let made = self.make(&batch.directory, &file.name, "making a file", |name| {
            rustix::fs::openat(&batch.directory, name, flags, first)
        })?;
        Ok(match made {
            MadeOrKept::Kept(existing) => MadeOrKept::Kept(existing),
            MadeOrKept::New(out, name) => {
                if keeps && let Err(error) = take() {
                    let _ = rustix::fs::unlinkat(&batch.directory, os(&file.name), AtFlags::empty());
                    return Err(error);
                }
                MadeOrKept::New((Filling::new(content, out.into()), mode.is_some()), name)
            }
        })
    }

    /// Helps to fill a file, queues more help, and finishes the file if this thread is the last.
    fn fill_shared(&self, shared: Arc<Shared>, room: &mut Room, found: &mut Findings) {
        if shared.new.filling.has_more() {
            self.jobs.push_first(Job::Help(Arc::downgrade(&shared)));
        }
        shared.new.filling.help(room);
        if let Some(Shared { file, new }) = Arc::into_inner(shared) {
            self.end_regular(&file, new, found);
        }
    }

    /// Finishes a file whose content is written.
    fn end_regular(&self, file: &Listed, new: NewFile, found: &mut Findings) {
        let NewFile { filling, has_mode, within, name } = new;
        let ended = filling.end().map(|out| {
            let owner = !within.has_owner(&file.inode);
            let mode = (!has_mode).then(|| within.final_mode(&file.inode));
            self.finish(file.path, &file.inode, &out, owner, mode, found);
        });
        match name.settle(&file.name, ended) {
            Ok(()) => {
                found.names += 1;
                found.file_bytes += file.inode.size;
            }
            Err(error) => self.failed(found, file.path, 1, error, false),
        }
    }

    /// Sets the metadata of an open file or directory. The owner comes first because changing it
    /// clears mode bits. The mode comes after the xattrs because it may forbid setting them.
    pub(super) fn finish(
        &self,
        path: PathId,
        inode: &Inode,
        file: &OsFile,
        owner: bool,
        mode: Option<Mode>,
        found: &mut Findings,
    ) {
        let file = file.as_fd();
        if self.options.owners && owner {
            let (uid, gid) = owner_of(inode);
            self.check(found, path, rustix::fs::fchown(file, uid, gid).map_err(failed("setting the owner")));
        }
        self.set_xattrs(path, inode, found, |name, value| {
            rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())
        });
        if let Some(mode) = mode {
            self.check(found, path, rustix::fs::fchmod(file, mode).map_err(failed("setting the mode")));
        }
        let set = times::set(inode, file, &mut found.left_out).map_err(failed("setting the time"));
        self.check(found, path, set);
    }

    /// Creates a link, device, pipe or socket.
    fn make_other(&self, batch: &Batch, file: &Listed, found: &mut Findings) {
        let made = self.make_node(batch, file);
        let (kind, name) = match made {
            Ok(MadeOrKept::New(kind, name)) => (kind, name),
            Ok(MadeOrKept::Kept(existing)) => return self.keep(file, &existing, found),
            Err(Error::Io { source, .. }) if is_device(&file.inode) && source.kind() == ErrorKind::PermissionDenied => {
                found.left_out.devices += 1;
                return;
            }
            Err(error) => return self.failed(found, file.path, 1, error, false),
        };
        let Listed { path, inode, .. } = file;
        let current = name.current(&file.name);
        if !batch.within.has_owner(inode) {
            self.check(found, *path, self.set_owner(inode, &batch.directory, current));
        }
        self.set_xattrs(*path, inode, found, |xattr, value| {
            rustix::fs::lsetxattr(path_in(&batch.directory, current), xattr, value, XattrFlags::empty())
        });
        if let Some(kind) = kind
            && batch.within.mode(inode).is_none()
        {
            self.check(found, *path, set_mode(&batch.directory, current, kind, batch.within.final_mode(inode)));
        }
        let set = set_times(inode, &batch.directory, current, &mut found.left_out);
        self.check(found, *path, set);
        match name.settle(&file.name, Ok(())) {
            Ok(()) => found.names += 1,
            Err(error) => self.failed(found, *path, 1, error, false),
        }
    }

    /// Creates a link, device, pipe or socket, without its metadata. Returns its type, `None` for a
    /// link.
    fn make_node(&self, batch: &Batch, file: &Listed) -> Result<MadeOrKept<Option<FileType>>> {
        let inode = &file.inode;
        let kind = match inode.kind {
            FileKind::Regular | FileKind::Directory => return Err(Error::NotA("link, device or pipe")),
            FileKind::Symlink => {
                let target = self.image.read_link(inode)?;
                return self.make(&batch.directory, &file.name, "making a symbolic link", |name| {
                    rustix::fs::symlinkat(os(&target), &batch.directory, name).map(|()| None)
                });
            }
            FileKind::CharDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
        };
        let (major, minor) = inode.device().unwrap_or_default();
        let device = rustix::fs::makedev(major, minor);
        let mode = batch.within.mode(inode).unwrap_or(Mode::RUSR | Mode::WUSR);
        self.make(&batch.directory, &file.name, "making a device or pipe", |name| {
            rustix::fs::mknodat(&batch.directory, name, kind, mode, device).map(|()| Some(kind))
        })
    }

    /// Records an existing file that is kept, and whether it may be the image's.
    fn keep(&self, file: &Listed, existing: &Stat, found: &mut Findings) {
        let inode = &file.inode;
        let kind = FileType::from_raw_mode(existing.st_mode);
        let expected = match inode.kind {
            FileKind::Regular => FileType::RegularFile,
            FileKind::Directory => FileType::Directory,
            FileKind::Symlink => FileType::Symlink,
            FileKind::CharDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
        };
        let has_content = matches!(inode.kind, FileKind::Regular | FileKind::Symlink);
        let is_equal = kind == expected
            && (!has_content || existing.st_size.cast_unsigned() == inode.size)
            && times::may_be_of(inode, existing);
        found.kept(file.path, is_equal, inode.nlink > 1);
    }

    /// Sets the owner by name.
    pub(super) fn set_owner(&self, inode: &Inode, directory: &OwnedFd, name: &[u8]) -> Result<()> {
        if !self.options.owners {
            return Ok(());
        }
        let (uid, gid) = owner_of(inode);
        rustix::fs::chownat(directory, os(name), uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("setting the owner"))
    }

    /// Sets all xattrs that can be set, and records the others.
    fn set_xattrs(
        &self,
        path: PathId,
        inode: &Inode,
        found: &mut Findings,
        set: impl Fn(&OsStr, &[u8]) -> rustix::io::Result<()>,
    ) {
        if !self.options.xattrs {
            return;
        }
        let xattrs = match self.image.all_xattrs(inode) {
            Ok(xattrs) => xattrs,
            Err(error) => {
                self.failed(found, path, 1, error, true);
                Xattrs::default()
            }
        };
        if !xattrs.unknown.is_empty() {
            let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
            warnings.extend(xattrs.warnings().map(|what| (path, what)));
        }
        for xattr in xattrs.known {
            if !self.options.permissions && xattr.name == b"security.capability" {
                continue;
            }
            match set(os(&xattr.name), &xattr.value) {
                Ok(()) => {}
                Err(Errno::PERM) if needs_privilege(&xattr.name) => found.left_out.add_xattr(&xattr.name, 1),
                Err(error) => self.check(found, path, Err(no_xattr(&xattr.name, error))),
            }
        }
    }

    /// Gives a file a further name.
    pub(super) fn link(&self, old: (&OwnedFd, &[u8]), new: (&Arc<OwnedFd>, &[u8])) -> Result<Linked> {
        let made = self.make(new.0, new.1, "making a hard link", |name| {
            rustix::fs::linkat(old.0, os(old.1), new.0, name, AtFlags::empty())
        })?;
        match made {
            MadeOrKept::New((), name) => name.settle(new.1, Ok(Linked::New)),
            MadeOrKept::Kept(existing) => {
                let first = rustix::fs::statat(old.0, os(old.1), AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(failed("making a hard link"))?;
                let same = (first.st_dev, first.st_ino) == (existing.st_dev, existing.st_ino);
                Ok(if same { Linked::Kept } else { Linked::KeptOther })
            }
        }
    }

    /// Removes a file that is in the place of a directory.
    pub(super) fn remove(&self, directory: &OwnedFd, name: &[u8]) -> Result<()> {
        let existing =
            rustix::fs::statat(directory, os(name), AtFlags::SYMLINK_NOFOLLOW).map_err(failed("replacing a file"))?;
        self.check_replaced(&existing)?;
        rustix::fs::unlinkat(directory, os(name), AtFlags::empty()).map_err(failed("replacing a file"))
    }
}

fn is_device(inode: &Inode) -> bool {
    matches!(inode.kind, FileKind::CharDevice | FileKind::BlockDevice)
}

/// Returns whether only a privileged process may set an xattr on its own files.
fn needs_privilege(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

/// Builds the error for an xattr. Space for xattrs is limited per file, so `ENOSPC` says nothing
/// about other files.
fn no_xattr(name: &[u8], error: Errno) -> Error {
    let source = match error {
        Errno::NOSPC => io::Error::new(ErrorKind::StorageFull, "the file system has no room for it"),
        error => error.into(),
    };
    Error::io(format!("setting the xattr {}", String::from_utf8_lossy(name)))(source)
}

/// Sets the mode of a device, pipe or socket that was just created. If it was replaced since, by a
/// link for example, nothing is changed.
fn set_mode(directory: &OwnedFd, name: &[u8], kind: FileType, mode: Mode) -> Result<()> {
    let set = || {
        let file =
            rustix::fs::openat(directory, os(name), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != kind || stat.st_nlink > 1 {
            return Err(Errno::STALE);
        }
        rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)
    };
    set().map_err(failed("setting the mode"))
}

fn owner_of(inode: &Inode) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(inode.uid)), Some(Gid::from_raw(inode.gid)))
}

/// Sets the times by name.
pub(super) fn set_times(inode: &Inode, directory: &OwnedFd, name: &[u8], left_out: &mut LeftOut) -> Result<()> {
    times::set_at(inode, directory, name, left_out).map_err(failed("setting the time"))
}

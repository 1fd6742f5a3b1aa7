//! Walks an image and extracts it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File as OsFile;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Resource;

use super::filling::Room;
use super::made::Within;
use super::options::{Existing, ExtractOptions};
use super::places::{Places, open_in};
use super::report::{ExtractProblem, ExtractReport, Findings};
use super::target::{Batch, Job, Linked, Listed, Target, set_times};
use crate::error::{Error, Result};
use crate::read::{DirEntry, FileKind, Image, Inode, Notices, PathId, Paths, Step, Visitor, walk_from};
use crate::work::thread_count;

/// The number of files that a thread processes as a unit.
const BATCH: usize = 64;
/// The maximum number of queued batches; the walk processes further ones itself.
const MAX_WAITING: u64 = 128;

/// A directory of the target that is to get its metadata.
struct Directory {
    path: PathId,
    inode: Inode,
    /// The attributes of files created in its parent directory or, if it existed before, in itself.
    within: Within,
    has_mode: bool,
}

/// A directory that the walk enters.
enum Entered {
    New {
        has_mode: bool,
    },
    /// The directory existed before. Files created in it have these attributes.
    Existing(Within),
}

/// The state of the walk.
struct Extraction<'a> {
    target: &'a Target<'a>,
    places: Places,
    directories: Vec<Directory>,
    /// The attributes of files created in the directory that is being walked.
    within: Within,
    /// The same for directories that will be walked.
    withins: HashMap<PathId, Within>,
    /// Files of the directory that is being walked.
    batch: Vec<Listed>,
    batch_parent: PathId,
    max_waiting: usize,
    /// The first path of each file with several links, then its further paths.
    first_path: HashMap<u64, PathId>,
    links: Vec<(PathId, PathId)>,
    /// The remaining limit on names.
    names_left: u64,
    is_at_limit: bool,
    found: Findings,
    /// Buffers for content.
    room: Room,
}

impl Image {
    /// Extracts the whole tree into `target`, which is created if it does not exist. Files that
    /// cannot be extracted are reported, and extraction continues unless the target accepts no more
    /// data. An error means that extraction could not start.
    pub fn extract(&self, target: &Path, options: &ExtractOptions) -> Result<ExtractReport> {
        self.extract_below(&self.root()?, target, options)
    }

    /// Like [`extract`](Self::extract), for the contents of the directory `start`. The report's paths
    /// are relative to it. `target` gets its metadata.
    pub fn extract_below(&self, start: &Inode, target: &Path, options: &ExtractOptions) -> Result<ExtractReport> {
        if start.kind != FileKind::Directory {
            return Err(Error::NotA("directory"));
        }
        let failed = |what: &'static str| move |error: Errno| Error::io(what)(error.into());
        match rustix::fs::mkdir(target, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("making the target")(error)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, target, flags, Mode::empty()).map_err(failed("opening the target"))?;
        if options.existing != Existing::Refuse {
            give_access(&root);
        }
        let target = Target::new(self, root, options, thread_count(options.threads));
        // Each queued batch keeps its directory open.
        let most_files = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let mut extraction = Extraction {
            target: &target,
            places: Places::new(Arc::clone(&target.root)),
            directories: Vec::new(),
            within: target.creator.in_open(&target.root),
            withins: HashMap::new(),
            batch: Vec::new(),
            batch_parent: 0,
            max_waiting: (most_files / 8).min(MAX_WAITING) as usize,
            first_path: HashMap::new(),
            links: Vec::new(),
            names_left: options.max_files.unwrap_or(u64::MAX),
            is_at_limit: false,
            found: Findings::default(),
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
        extraction.found.append(std::mem::take(&mut *target.findings()));
        extraction.link(&paths);
        extraction.finish_directories(&paths);
        let mut report = extraction.found.into_report(&paths);
        let mut warnings = Notices::default();
        for (path, what) in target.warnings() {
            warnings.add(|| paths.display(path), what);
        }
        (report.warnings, report.more_warnings) = warnings.take();
        if let Some((path, error)) = target.stopped_by() {
            report.problems.push(ExtractProblem { path: paths.display(path), error, count: 1, extracted: false });
            report.stopped = true;
        }
        Ok(report)
    }
}

impl Visitor for Extraction<'_> {
    fn visit(&mut self, paths: &Paths, step: &Step) -> bool {
        if self.target.is_stopped() || self.is_at_limit {
            return false;
        }
        if step.inode.kind == FileKind::Directory {
            // Set now, while the directory is open.
            self.end_batch(paths);
            if let Some(within) = self.withins.remove(&step.path) {
                self.within = within;
            }
        }
        if !self.target.options.owners && !self.target.creator.owns(&step.inode) {
            self.found.left_out.owners += 1;
        }
        let Some((parent, name)) = paths.parent(step.path) else {
            let within = self.within.clone();
            self.directories.push(Directory { path: step.path, inode: step.inode.clone(), within, has_mode: false });
            return true;
        };
        if step.inode.kind == FileKind::Directory {
            return true;
        }
        let device = matches!(step.inode.kind, FileKind::CharDevice | FileKind::BlockDevice);
        if device && !self.target.options.owners {
            self.found.left_out.devices += 1;
            return true;
        }
        if !self.takes_name(step.path) {
            return false;
        }
        if step.inode.nlink > 1 {
            if let Some(first) = self.first_path.get(&step.inode.nid) {
                self.links.push((*first, step.path));
                return false;
            }
            self.first_path.insert(step.inode.nid, step.path);
        }
        let listed = Listed { path: step.path, name: name.to_vec(), inode: step.inode.clone() };
        self.list(paths, parent, listed);
        true
    }

    fn found(&mut self, paths: &Paths, step: &Step) -> bool {
        let Some((parent, name)) = paths.parent(step.path) else { return false };
        if self.target.is_stopped() || self.is_at_limit || !self.takes_name(step.path) {
            return false;
        }
        let inode = &step.inode;
        match self.make_directory(paths, parent, name, inode) {
            Ok(Entered::New { has_mode }) => {
                let within = self.within.clone();
                self.withins.insert(step.path, within.created());
                self.directories.push(Directory { path: step.path, inode: inode.clone(), within, has_mode });
                self.found.names += 1;
                true
            }
            Ok(Entered::Existing(within)) => {
                self.withins.insert(step.path, within.clone());
                self.directories.push(Directory { path: step.path, inode: inode.clone(), within, has_mode: false });
                true
            }
            Err(error) => {
                self.target.failed(&mut self.found, step.path, 1, error, false);
                false
            }
        }
    }

    fn entry(&mut self, _: &Paths, _: &Step, _: &DirEntry, _: Option<&Inode>) {}

    fn failed(&mut self, _: &Paths, path: PathId, error: Error) {
        self.target.failed(&mut self.found, path, 1, error, false);
    }
}

impl Extraction<'_> {
    /// Counts a name. At the limit, stops the extraction and returns `false`.
    fn takes_name(&mut self, path: PathId) -> bool {
        if let Some(left) = self.names_left.checked_sub(1) {
            self.names_left = left;
            return true;
        }
        self.is_at_limit = true;
        let allowed = self.target.options.max_files.unwrap_or(u64::MAX);
        self.target.failed(&mut self.found, path, 1, Error::TooManyFiles { allowed }, false);
        false
    }

    /// Creates a directory, or enters an existing one.
    fn make_directory(&mut self, paths: &Paths, parent: PathId, name: &[u8], inode: &Inode) -> Result<Entered> {
        let target = self.target;
        let mode = self.within.directory_mode(inode);
        let parent = self.places.go(paths, parent)?;
        let make = || match rustix::fs::mkdirat(parent, OsStr::from_bytes(name), mode.unwrap_or(Mode::RWXU)) {
            Ok(()) => Ok(Entered::New { has_mode: mode.is_some() }),
            Err(Errno::EXIST) => Err(Error::DirectoryExists),
            Err(error) => Err(Error::io("making a directory, so nothing in it was extracted")(error.into())),
        };
        match make() {
            Err(Error::DirectoryExists) if target.options.existing != Existing::Refuse => {}
            made => return made,
        }
        match open_in(parent, name) {
            Ok(directory) => {
                give_access(&directory);
                Ok(Entered::Existing(target.creator.in_open(&directory)))
            }
            Err(error) if target.options.existing == Existing::Keep => Err(match is_directory(parent, name) {
                true => error,
                false => Error::KeptInPlace,
            }),
            Err(_) => {
                target.remove(parent, name)?;
                make()
            }
        }
    }

    /// Adds a file to the batch of its directory.
    fn list(&mut self, paths: &Paths, parent: PathId, file: Listed) {
        if self.batch_parent != parent || self.batch.len() == BATCH {
            self.end_batch(paths);
            self.batch_parent = parent;
        }
        self.batch.push(file);
    }

    /// Processes the current batch or queues it.
    fn end_batch(&mut self, paths: &Paths) {
        let files = std::mem::take(&mut self.batch);
        if files.is_empty() {
            return;
        }
        let directory = match self.places.go(paths, self.batch_parent) {
            Ok(directory) => Arc::clone(directory),
            Err(error) => {
                let first = files.first().map_or(self.batch_parent, |file| file.path);
                return self.target.failed(&mut self.found, first, files.len() as u64, error, false);
            }
        };
        let batch = Batch { directory, within: self.within.clone(), files };
        let batch = match self.target.threads {
            1 => Some(Job::Batch(batch)),
            _ => self.target.jobs.offer(Job::Batch(batch), self.max_waiting),
        };
        if let Some(Job::Batch(batch)) = batch {
            self.target.fill_batch(&batch, &mut self.room);
        }
    }

    /// Creates further names of files. They are ordered so that consecutive links have their first
    /// names, and their further names, in directories near each other.
    fn link(&mut self, paths: &Paths) {
        let mut links = std::mem::take(&mut self.links);
        links.sort_by_cached_key(|(first, further)| z_order(*first, *further));
        let mut firsts = Places::new(Arc::clone(&self.target.root));
        for (first, further) in links {
            if self.target.is_stopped() {
                return;
            }
            match self.link_one(paths, &mut firsts, first, further) {
                Ok(Linked::New) => self.found.names += 1,
                Ok(Linked::Kept) => self.found.kept(further, true, false),
                Ok(Linked::KeptOther) => self.found.kept(further, false, false),
                Err(error) => self.target.failed(&mut self.found, further, 1, error, false),
            }
        }
    }

    fn link_one(&mut self, paths: &Paths, firsts: &mut Places, first: PathId, further: PathId) -> Result<Linked> {
        let (Some((old_parent, old_name)), Some((new_parent, new_name))) = (paths.parent(first), paths.parent(further))
        else {
            return Err(Error::NotA("file below the root"));
        };
        if self.found.is_other_file(first) {
            return Err(Error::OtherFile(paths.display(first)));
        }
        let old = firsts.go(paths, old_parent)?;
        let new = self.places.go(paths, new_parent)?;
        self.target.link((old, old_name), (new, new_name))
    }

    fn finish_directories(&mut self, paths: &Paths) {
        for directory in std::mem::take(&mut self.directories).into_iter().rev() {
            if let Err(error) = self.finish_directory(paths, &directory) {
                self.target.failed(&mut self.found, directory.path, 1, error, true);
            }
        }
    }

    fn finish_directory(&mut self, paths: &Paths, directory: &Directory) -> Result<()> {
        let Directory { path, inode, within, has_mode } = directory;
        let target = self.target;
        let has_owner = within.has_owner(inode);
        let open = match paths.parent(*path) {
            Some((parent, name)) => {
                let parent = self.places.go(paths, parent)?;
                if *has_mode && (!target.options.xattrs || inode.xattr_start == inode.xattr_end) {
                    if !has_owner {
                        target.set_owner(inode, parent, name)?;
                    }
                    return set_times(inode, parent, name, &mut self.found.left_out);
                }
                open_in(parent, name)?
            }
            None => target.root.try_clone().map_err(Error::io("opening the target"))?,
        };
        let mode = (!has_mode).then(|| within.final_mode(inode));
        target.finish(*path, inode, &OsFile::from(open), !has_owner, mode, &mut self.found);
        Ok(())
    }
}

/// Returns whether a name is that of a directory, and not of a link to one.
fn is_directory(parent: &OwnedFd, name: &[u8]) -> bool {
    let found = rustix::fs::statat(parent, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Lets the owner of an existing directory create files in it, until it gets its final mode. Whether
/// that succeeds shows when a file is created.
fn give_access(directory: &OwnedFd) {
    let Ok(stat) = rustix::fs::fstat(directory) else { return };
    let mode = Mode::from_raw_mode(stat.st_mode);
    if !mode.contains(Mode::RWXU) {
        let _ = rustix::fs::fchmod(directory, mode | Mode::RWXU);
    }
}

/// Interleaves the bits of two numbers. In the order of the results, neighbors are near each other
/// in both numbers.
fn z_order(left: PathId, right: PathId) -> u128 {
    let bit = |number: PathId, at: u32| u128::from(number as u64 >> at & 1);
    (0..u64::BITS).fold(0, |all, at| all | bit(left, at) << (2 * at) | bit(right, at) << (2 * at + 1))
}

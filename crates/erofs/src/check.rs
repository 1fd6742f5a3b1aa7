//! Checking an image: its structure, and that every cluster decodes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::directory::DirEntry;
use crate::error::Error;
use crate::file::Data;
use crate::format::{SUPER_OFFSET, file_type};
use crate::image::Image;
use crate::inode::{FileKind, Inode};
use crate::walk::{PathId, Paths, Step, Visitor, walk};

/// Problems that a report holds; further ones are counted.
const MAX_PROBLEMS: usize = 1000;

/// Something wrong with an image.
#[derive(Debug)]
pub struct Problem {
    /// The path of the file that has it, from the root; at most the last 4 KiB.
    pub path: Vec<u8>,
    /// What is wrong.
    pub error: Error,
}

/// What a check found.
#[derive(Debug, Default)]
pub struct CheckReport {
    /// Inodes reached.
    pub inodes: u64,
    /// Those that are directories.
    pub directories: u64,
    /// Bytes of regular files.
    pub file_bytes: u64,
    /// The first thousand problems.
    pub problems: Vec<Problem>,
    /// Problems beyond those.
    pub more_problems: u64,
}

impl CheckReport {
    fn add(&mut self, path: Vec<u8>, error: Error) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem { path, error });
        } else {
            self.more_problems += 1;
        }
    }
}

/// A part of the image and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Claim {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Data: another file may claim it from the same start.
    pub(crate) shareable: bool,
}

struct Checker<'a> {
    image: &'a Image,
    report: CheckReport,
    /// Regular files and directories, to be read.
    files: Vec<(PathId, Inode)>,
    /// Names, and names said, of each inode that is not a directory.
    names: HashMap<u64, (u32, u32, PathId)>,
    /// Ranges of inodes with what follows them, by their starts.
    records: BTreeMap<u64, u64>,
    /// The directory being listed: subdirectories, and whether `.` and `..` were seen.
    listing: Listing,
}

#[derive(Default)]
struct Listing {
    directory: Option<(PathId, u64, u32)>,
    subdirectories: u32,
    dots: u32,
}

impl Checker<'_> {
    fn problem(&mut self, paths: &Paths, path: PathId, what: &'static str, offset: u64) {
        self.report.add(paths.display(path), Error::Corrupt { what, offset });
    }

    /// Claims an inode's bytes and what follows it. Two inodes in one place are how a short image would have endless
    /// content; the second is not read.
    fn claim_record(&mut self, inode: &Inode) -> Result<(), Error> {
        let end = self.image.record_end(inode)?;
        let before = self.records.range(..end).next_back();
        if before.is_some_and(|(_, before_end)| *before_end > inode.offset) {
            return Err(Error::Corrupt { what: "inode overlaps another", offset: inode.offset });
        }
        self.records.insert(inode.offset, end);
        Ok(())
    }

    fn end_listing(&mut self, paths: &Paths) {
        let listing = std::mem::take(&mut self.listing);
        let Some((path, offset, nlink)) = listing.directory else { return };
        if listing.dots != 2 {
            self.problem(paths, path, "directory lacks . or ..", offset);
        }
        if nlink != listing.subdirectories + 2 {
            self.problem(paths, path, "directory has a wrong number of links", offset);
        }
    }
}

impl Visitor for Checker<'_> {
    fn visit(&mut self, paths: &Paths, step: &Step) -> bool {
        self.end_listing(paths);
        let inode = &step.inode;
        if inode.kind != FileKind::Directory {
            let (names, _, _) = self.names.entry(inode.nid).or_insert((0, inode.nlink, step.path));
            *names += 1;
            if *names > 1 {
                return false;
            }
        }
        self.report.inodes += 1;
        if let Err(error) = self.claim_record(inode) {
            self.report.add(paths.display(step.path), error);
            return false;
        }
        if let Err(error) = self.image.xattrs(inode) {
            self.report.add(paths.display(step.path), error);
        }
        match inode.kind {
            FileKind::Directory => {
                self.report.directories += 1;
                self.listing.directory = Some((step.path, inode.offset, inode.nlink));
                self.files.push((step.path, inode.clone()));
            }
            FileKind::Regular => {
                self.report.file_bytes = self.report.file_bytes.saturating_add(inode.size);
                self.files.push((step.path, inode.clone()));
            }
            FileKind::Symlink => {
                if let Err(error) = self.image.read_link(inode) {
                    self.report.add(paths.display(step.path), error);
                }
            }
            _ => {}
        }
        true
    }

    fn entry(&mut self, paths: &Paths, directory: &Step, entry: &DirEntry) {
        let expected = match &entry.name[..] {
            b"." => Some(directory.inode.nid),
            b".." => Some(directory.parent_nid),
            _ => None,
        };
        if let Some(nid) = expected {
            self.listing.dots += 1;
            if entry.nid != nid {
                self.problem(paths, directory.path, ". or .. names another directory", directory.inode.offset);
            }
            return;
        }
        let Ok(inode) = self.image.inode(entry.nid) else { return };
        self.listing.subdirectories += u32::from(inode.kind == FileKind::Directory);
        if entry.file_type != 0 && entry.file_type != file_type::from_mode(inode.mode) {
            self.problem(paths, directory.path, "directory entry has another type than its inode", inode.offset);
        }
    }

    fn failed(&mut self, paths: &Paths, path: PathId, error: Error) {
        self.report.add(paths.display(path), error);
    }
}

impl Image {
    /// Checks the whole tree: every inode, name, link count, xattr and index; that nothing lies in two places at once,
    /// or behind the blocks that the superblock counts; and that every cluster decodes, for the first extent that has it, in `threads` threads.
    ///
    /// Time and memory are bounded by the image's length, not by the sizes that it claims: inodes may not overlap, so
    /// that the image pays for every index, and a cluster that many extents share is decoded once.
    pub fn check(&self, threads: usize) -> CheckReport {
        let mut checker = Checker {
            image: self,
            report: CheckReport::default(),
            files: Vec::new(),
            names: HashMap::new(),
            records: BTreeMap::new(),
            listing: Listing::default(),
        };
        let paths = match walk(self, &mut checker) {
            Ok(paths) => paths,
            Err(error) => {
                checker.report.add(b"/".to_vec(), error);
                return checker.report;
            }
        };
        checker.end_listing(&paths);
        for (names, nlink, path) in std::mem::take(&mut checker.names).into_values() {
            if names != nlink {
                checker.problem(&paths, path, "file has a wrong number of links", 0);
            }
        }
        if let Some(nid) = self.superblock().packed_nid {
            let packed = self.inode(nid).and_then(|inode| checker.claim_record(&inode).map(|()| inode));
            match packed {
                Ok(inode) => checker.files.push((0, inode)),
                Err(error) => checker.report.add(b"packed inode".to_vec(), error),
            }
        }
        let claims = self.check_files(&paths, &mut checker, threads.max(1));
        let records = checker.records.iter().map(|(&start, &end)| Claim { start, end, shareable: false });
        let mut claims: Vec<_> = claims.into_iter().chain(records).collect();
        claims.sort_unstable();
        let mut reach = Claim { start: 0, end: 0, shareable: false };
        for claim in claims {
            let shared = claim.shareable && reach.shareable && claim.start == reach.start;
            if claim.start < reach.end && !shared {
                let what = "two things lie in the same place";
                checker.report.add(b"/".to_vec(), Error::Corrupt { what, offset: claim.start });
            }
            if claim.end > reach.end {
                reach = claim;
            }
        }
        let said_end = u64::from(self.superblock().blocks) << self.superblock().blkszbits;
        let blocks = match () {
            () if said_end > self.len_bytes() => Some("image is shorter than its superblock says"),
            () if said_end < reach.end => Some("image has more blocks than its superblock says"),
            () => None,
        };
        if let Some(what) = blocks {
            checker.report.add(b"/".to_vec(), Error::Corrupt { what, offset: SUPER_OFFSET });
        }
        checker.report.problems.sort_by(|left, right| left.path.cmp(&right.path));
        checker.report
    }

    /// Reads all files and returns the blocks that they claim.
    fn check_files(&self, paths: &Paths, checker: &mut Checker<'_>, threads: usize) -> HashSet<Claim> {
        let next = AtomicUsize::new(0);
        let claims = Mutex::new(HashSet::new());
        let report = Mutex::new(std::mem::take(&mut checker.report));
        let files = &checker.files;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some((path, inode)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let first_claim = |claim| claims.lock().unwrap_or_else(PoisonError::into_inner).insert(claim);
                        if let Err(error) = Data::open(self, inode).and_then(|data| data.check(&first_claim)) {
                            let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                            report.add(paths.display(*path), error);
                        }
                    }
                });
            }
        });
        checker.report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
        claims.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

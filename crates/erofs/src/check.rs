//! Checking an image: its structure, and that every cluster decodes.
//!
//! One thread walks the tree, others read the files that it has come to. What is found, and in which order it is told, does not depend on
//! the threads: problems are sorted, and a cluster that many files share is decoded for one of them and told of each.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::directory::DirEntry;
use crate::error::{Error, Result};
use crate::file::Data;
use crate::format::{SUPER_OFFSET, file_type};
use crate::image::Image;
use crate::inode::{FileKind, Inode};
use crate::metabox::IN_BOX;
use crate::walk::{PathId, Paths, Step, Visitor, walk, walk_from};
use crate::work::{Work, thread_count};

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
    /// Takes a problem. Those that stay are the first by path and text, in whatever order they come.
    fn add(&mut self, path: Vec<u8>, error: Error) {
        self.problems.push(Problem { path, error });
        if self.problems.len() >= 2 * MAX_PROBLEMS {
            self.sort();
        }
    }

    fn sort(&mut self) {
        self.problems.sort_by_cached_key(|problem| (problem.path.clone(), problem.error.to_string()));
        self.more_problems += self.problems.len().saturating_sub(MAX_PROBLEMS) as u64;
        self.problems.truncate(MAX_PROBLEMS);
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

/// What is claimed by what was read so far.
#[derive(Default)]
pub(crate) struct Claims {
    claims: Mutex<HashMap<Claim, Arc<OnceLock<Verdict>>>>,
}

/// What the first who claimed a cluster found.
enum Verdict {
    Sound,
    Corrupt {
        what: &'static str,
        offset: u64,
    },
    /// The image could not be read, which says nothing about the cluster.
    Unknown,
}

impl Claims {
    /// Claims blocks that need no decoding.
    pub(crate) fn add(&self, claim: Claim) {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).entry(claim).or_default();
    }

    /// Claims a cluster, and decodes it unless somebody did.
    pub(crate) fn decode(&self, claim: Claim, decode: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let verdict = Arc::clone(self.claims.lock().unwrap_or_else(PoisonError::into_inner).entry(claim).or_default());
        let mut failed = None;
        let found = verdict.get_or_init(|| match decode() {
            Ok(()) => Verdict::Sound,
            Err(Error::Corrupt { what, offset }) => Verdict::Corrupt { what, offset },
            Err(error) => {
                failed = Some(error);
                Verdict::Unknown
            }
        });
        match (failed, found) {
            (Some(error), _) => Err(error),
            (None, Verdict::Sound) => Ok(()),
            (None, Verdict::Corrupt { what, offset }) => Err(Error::Corrupt { what, offset: *offset }),
            (None, Verdict::Unknown) => decode(),
        }
    }
}

struct Checker<'a> {
    image: &'a Image,
    report: CheckReport,
    /// Regular files and directories, to be read.
    files: &'a Work<(PathId, Inode)>,
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
    fn claim_record(&mut self, inode: &Inode) -> Result<()> {
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
        match listing.dots {
            0 | 1 => self.problem(paths, path, "directory lacks . or ..", offset),
            2 => {}
            _ => self.problem(paths, path, "directory has . twice", offset),
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

    fn entry(&mut self, paths: &Paths, directory: &Step, entry: &DirEntry, inode: Option<&Inode>) {
        let expected = match &entry.name[..] {
            b"." => Some(Some(directory.inode.nid)),
            b".." => Some(directory.parent_nid),
            _ => None,
        };
        if let Some(nid) = expected {
            self.listing.dots += 1;
            if nid.is_some_and(|nid| entry.nid != nid) {
                self.problem(paths, directory.path, ". or .. names another directory", directory.inode.offset);
            }
            if entry.file_type != 0 && entry.file_type != file_type::from_mode(directory.inode.mode) {
                self.problem(
                    paths,
                    directory.path,
                    ". or .. has another type than a directory",
                    directory.inode.offset,
                );
            }
            return;
        }
        let Some(inode) = inode else { return };
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
    /// or behind the blocks that the superblock counts; and that every cluster decodes, for the first extent that has it, in `threads` threads, at most 1024; 0 for one a
    /// processor.
    ///
    /// Time and memory are bounded by the image's length, not by the sizes that it claims: inodes may not overlap, so
    /// that the image pays for every index, and a cluster that many extents share is decoded once.
    pub fn check(&self, threads: usize) -> CheckReport {
        self.check_from(None, threads)
    }

    /// As [`check`](Self::check), of one file, or of a directory and what is below it; paths in the report begin there. What only the
    /// whole tree shows is not looked at: links from elsewhere, and what the superblock counts. Fragments are
    /// decoded all, wherever they belong.
    pub fn check_below(&self, start: &Inode, threads: usize) -> CheckReport {
        self.check_from(Some(start), threads)
    }

    fn check_from(&self, start: Option<&Inode>, threads: usize) -> CheckReport {
        let (files, claims, failed) = (Work::new(), Claims::default(), Mutex::new(Vec::new()));
        let read = || {
            while let Some((path, inode)) = files.next() {
                if let Err(error) = Data::open(self, &inode).and_then(|data| data.check(&claims)) {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push((path, error));
                }
            }
        };
        let mut checker = Checker {
            image: self,
            report: CheckReport::default(),
            files: &files,
            names: HashMap::new(),
            records: BTreeMap::new(),
            listing: Listing::default(),
        };
        let paths = std::thread::scope(|scope| {
            let finder = files.finder();
            // The system may allow fewer.
            let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, read).is_ok();
            let _ = (1..thread_count(threads)).all(spawn);
            let paths = match start {
                Some(start) => walk_from(self, Step { path: 0, parent_nid: None, inode: start.clone() }, &mut checker),
                None => walk(self, &mut checker)?,
            };
            checker.end_listing(&paths);
            let superblock = self.superblock();
            for (nid, name) in [(superblock.packed_nid, "packed inode"), (superblock.metabox_nid, "metadata box")] {
                let Some(nid) = nid else { continue };
                match self.inode(nid).and_then(|inode| checker.claim_record(&inode).map(|()| inode)) {
                    Ok(inode) => files.push((0, inode)),
                    Err(error) => checker.report.add(name.into(), error),
                }
            }
            drop(finder);
            read();
            Ok(paths)
        });
        let paths = match paths {
            Ok(paths) => paths,
            Err(error) => {
                checker.report.add(b"/".to_vec(), error);
                return checker.report;
            }
        };
        for (path, error) in failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            checker.report.add(paths.display(path), error);
        }
        for (names, nlink, path) in std::mem::take(&mut checker.names).into_values() {
            if start.is_none() && names != nlink {
                checker.problem(&paths, path, "file has a wrong number of links", 0);
            }
        }
        let claims = claims.claims.into_inner().unwrap_or_else(PoisonError::into_inner);
        let records = checker.records.iter().map(|(&start, &end)| Claim { start, end, shareable: false });
        // Those in the metadata box were held against each other when they were claimed.
        let in_image = |claim: &Claim| claim.start < IN_BOX;
        let mut claims: Vec<_> = claims.into_keys().chain(records).filter(in_image).collect();
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
        if start.is_some() {
            checker.report.sort();
            return checker.report;
        }
        let said_end = self.superblock().blocks.saturating_mul(self.superblock().block_bytes());
        let blocks = match () {
            () if said_end > self.len_bytes() => Some("image is shorter than its superblock says"),
            () if said_end < reach.end => Some("image has more blocks than its superblock says"),
            () => None,
        };
        if let Some(what) = blocks {
            checker.report.add(b"/".to_vec(), Error::Corrupt { what, offset: SUPER_OFFSET });
        }
        checker.report.sort();
        checker.report
    }
}

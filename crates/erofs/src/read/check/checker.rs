//! Checks an image: its structure, and that every cluster decodes.
//!
//! One thread walks the tree while others read the files that it finds. The findings and their
//! order do not depend on the number of threads: problems are sorted, and a cluster that several
//! files share is decoded once and reported for each of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use super::claims::{Claim, Claims, Overlap, Owner, Purpose};
use super::report::{CheckReport, Notices, Problem};
use crate::error::{Error, Result};
use crate::format::{SUPER_OFFSET, file_type};
use crate::read::content::Data;
use crate::read::devices::Spot;
use crate::read::directory::DirEntry;
use crate::read::image::Image;
use crate::read::inode::{FileKind, Inode};
use crate::read::paths::{PathId, Paths};
use crate::read::walk::{Step, Visitor, walk, walk_from};
use crate::work::{Work, thread_count};

struct Checker<'a> {
    image: &'a Image,
    report: CheckReport,
    /// Regular files, directories and symbolic links to read.
    files: &'a Work<(Owner, Inode)>,
    /// For each inode that is not a directory: the names found, its link count, and its first path.
    names: HashMap<u64, (u32, u32, PathId)>,
    /// The ranges of inodes and the data that follows them, by start: their end and owner.
    records: BTreeMap<u64, (u64, Owner)>,
    /// Shared xattrs, by start: their length and first owner.
    xattrs: BTreeMap<u64, (u64, Owner)>,
    warnings: Notices,
    /// The directory being listed.
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

    /// Claims the bytes of an inode and the data that follows it. Overlapping inodes would let a
    /// short image have endless content, so the second is reported and not read. Returns whether
    /// this one may be read.
    fn claim_record(&mut self, paths: &Paths, owner: Owner, inode: &Inode) -> bool {
        let end = match self.image.record_end(inode) {
            Ok(end) => end,
            Err(error) => {
                self.report.add(owner.show(paths), error);
                return false;
            }
        };
        let before = self.records.range(..end).next_back().map(|(_, before)| *before);
        if let Some((_, other)) = before.filter(|(before_end, _)| *before_end > inode.offset) {
            let overlap = Overlap { what: "inode overlaps another", offset: inode.offset, owner, other };
            self.overlap(paths, &overlap);
            return false;
        }
        self.records.insert(inode.offset, (end, owner));
        true
    }

    fn overlap(&mut self, paths: &Paths, overlap: &Overlap) {
        let Overlap { what, offset, owner, other } = *overlap;
        let (path, other) = (owner.show(paths), Some(other.show(paths)));
        self.report.add_problem(Problem { path, error: Error::Corrupt { what, offset }, other });
    }

    /// Reads an inode's xattrs and records the places of shared ones.
    fn check_xattrs(&mut self, paths: &Paths, step: &Step) {
        match self.image.all_xattrs(&step.inode) {
            Ok(xattrs) => {
                for what in xattrs.warnings() {
                    self.warnings.add(|| paths.display(step.path), what);
                }
                for place in xattrs.shared {
                    let claim = (place.end - place.start, Owner::File(step.path));
                    self.xattrs.entry(place.start).or_insert(claim);
                }
            }
            Err(error) => self.report.add(paths.display(step.path), error),
        }
    }

    /// Claims metadata: the recorded inodes and xattrs, and the superblock's own structures.
    fn claim_metadata(&self, claims: &Claims) {
        let superblock = self.image.superblock();
        let claim = |offset, len, owner| {
            if len > 0 {
                claims.add(Claim { start: Spot { device: 0, offset }, len, purpose: Purpose::Metadata }, owner);
            }
        };
        let (devices, prefixes) = (&superblock.device_table, self.image.long_prefixes_place());
        for place in [SUPER_OFFSET..superblock.end, devices.clone(), prefixes] {
            claim(place.start, place.end - place.start, Owner::Superblock);
        }
        for (&start, &(end, owner)) in &self.records {
            claim(start, end - start, owner);
        }
        for (&start, &(len, owner)) in &self.xattrs {
            claim(start, len, owner);
        }
    }

    fn end_listing(&mut self, paths: &Paths) {
        let listing = std::mem::take(&mut self.listing);
        let Some((path, offset, nlink)) = listing.directory else { return };
        match listing.dots {
            0 | 1 => self.problem(paths, path, "directory lacks . or ..", offset),
            2 => {}
            _ => self.problem(paths, path, "directory has . or .. twice", offset),
        }
        // A link count of 1 means that the actual number does not fit.
        let too_many = nlink == 1 && listing.subdirectories + 2 > u32::from(u16::MAX);
        if nlink != listing.subdirectories + 2 && !too_many {
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
        let owner = Owner::File(step.path);
        if !self.claim_record(paths, owner, inode) {
            return false;
        }
        self.check_xattrs(paths, step);
        match inode.kind {
            FileKind::Directory => {
                self.report.directories += 1;
                self.listing.directory = Some((step.path, inode.offset, inode.nlink));
                self.files.push((owner, inode.clone()));
            }
            FileKind::Regular => {
                self.report.file_bytes = self.report.file_bytes.saturating_add(inode.size);
                self.files.push((owner, inode.clone()));
            }
            FileKind::Symlink => {
                match self.image.read_link(inode) {
                    // Its blocks, if it has any, are claimed when it is read.
                    Ok(_) => self.files.push((owner, inode.clone())),
                    Err(error) => self.report.add(paths.display(step.path), error),
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
                self.problem(paths, directory.path, ". or .. is not marked as a directory", directory.inode.offset);
            }
            return;
        }
        let Some(inode) = inode else { return };
        self.listing.subdirectories += u32::from(inode.kind == FileKind::Directory);
        if entry.file_type != 0 && entry.file_type != file_type::from_mode(inode.mode) {
            self.problem(paths, directory.path, "directory entry and its inode differ in type", inode.offset);
        }
    }

    fn failed(&mut self, paths: &Paths, path: PathId, error: Error) {
        self.report.add(paths.display(path), error);
    }
}

impl Image {
    /// Returns the end of an inode, including its xattrs, indexes and inline data.
    fn record_end(&self, inode: &Inode) -> Result<u64> {
        match inode.kind {
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => Data::open(self, inode)?.record_end(),
            _ => Ok(inode.xattr_end),
        }
    }

    /// Checks the whole tree: every inode, name, link count, xattr and index. No two structures may
    /// overlap, except clusters or blocks that files share, and none may extend beyond the blocks
    /// that the superblock counts. Every cluster must decode, for the first extent that refers to
    /// it. Uses `threads` threads, at most 1024; 0 for one per processor.
    ///
    /// Time and memory are bounded by the image's length, not by the sizes that it claims: inodes
    /// may not overlap, so every index takes up space in the image, and a cluster that many extents
    /// share is decoded once.
    pub fn check(&self, threads: usize) -> CheckReport {
        self.check_from(None, threads)
    }

    /// Like [`check`](Self::check), for one file, or for a directory and everything below it. Paths
    /// in the report are relative to it. Checks that need the whole tree are skipped: link counts,
    /// and the superblock's block count. All fragments are decoded, whichever file they belong to.
    pub fn check_below(&self, start: &Inode, threads: usize) -> CheckReport {
        self.check_from(Some(start), threads)
    }

    fn check_from(&self, start: Option<&Inode>, threads: usize) -> CheckReport {
        let (files, claims, failed) = (Work::new(), Claims::default(), Mutex::new(Vec::new()));
        let read = || {
            while let Some((owner, inode)) = files.next() {
                if let Err(error) = Data::open(self, &inode).and_then(|data| data.check(&claims, owner)) {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push((owner, error));
                }
            }
        };
        let mut checker = Checker {
            image: self,
            report: CheckReport::default(),
            files: &files,
            names: HashMap::new(),
            records: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            warnings: Notices::default(),
            listing: Listing::default(),
        };
        let paths = std::thread::scope(|scope| {
            let finder = files.finder();
            // The system may allow fewer threads.
            let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, read).is_ok();
            let _ = (1..thread_count(threads)).all(spawn);
            let paths = match start {
                Some(start) => walk_from(self, Step { path: 0, parent_nid: None, inode: start.clone() }, &mut checker),
                None => walk(self, &mut checker)?,
            };
            checker.end_listing(&paths);
            let superblock = self.superblock();
            for (nid, owner) in [(superblock.packed_nid, Owner::Packed), (superblock.metabox_nid, Owner::Metabox)] {
                let Some(nid) = nid else { continue };
                match self.inode(nid) {
                    Ok(inode) if checker.claim_record(&paths, owner, &inode) => files.push((owner, inode)),
                    Ok(_) => {}
                    Err(error) => checker.report.add(owner.show(&paths), error),
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
        for (owner, error) in failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            checker.report.add(owner.show(&paths), error);
        }
        for (names, nlink, path) in std::mem::take(&mut checker.names).into_values() {
            if start.is_none() && names != nlink {
                checker.problem(&paths, path, "file has a wrong number of links", 0);
            }
        }
        checker.claim_metadata(&claims);
        let claims = claims.sorted();
        for overlap in &claims.overlaps(self) {
            checker.overlap(&paths, overlap);
        }
        let said_end = self.superblock().blocks.saturating_mul(self.superblock().block_bytes());
        // If a file could not be read, its blocks would look unused.
        if start.is_none()
            && checker.report.problems.is_empty()
            && let Some((offset, count)) = claims.nobodys(self, said_end.min(self.len_bytes()))
        {
            let what = match count {
                1 => format!("1 block at byte {offset} contains data but belongs to no file"),
                _ => format!("{count} blocks from byte {offset} on contain data but belong to no file"),
            };
            checker.warnings.add(|| b"/".to_vec(), what);
        }
        let mut report = checker.report;
        (report.warnings, report.more_warnings) = checker.warnings.take();
        if start.is_some() {
            report.sort();
            return report;
        }
        if let Err(error) = self.check_len() {
            report.add(b"/".to_vec(), error);
        } else if said_end < claims.end(self) {
            let what = "image has more blocks than its superblock says";
            report.add(b"/".to_vec(), Error::Corrupt { what, offset: SUPER_OFFSET });
        }
        report.sort();
        report
    }
}

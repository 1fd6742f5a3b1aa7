//! The directory: names, numbers and attributes of files, derived from the present exports.
//!
//! A file's number follows from its export's, which is never used again. So the kernel never
//! mistakes a file for an earlier one of the same name.

use std::{
    ffi::OsStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use fuser::{FileAttr, FileType, INodeNo};
use pagefold_executor::{Export, Exports};
use pagefold_mount::Log;
use rustix::process::geteuid;

use crate::name;

/// Numbers up to this are reserved: no file, and the directory.
const RESERVED: u64 = INodeNo::ROOT.0;
/// Positions of `.`, of `..`, and of the export with the number 0 in the directory.
const POSITIONS: [u64; 3] = [1, 2, 3];
/// Exports that are listed under one lock.
const BATCH: usize = 64;
/// Size of a sector, in which Linux counts a file's blocks.
const SECTOR_BYTES: u64 = 512;
/// The number of bytes that programs should read and write at a time.
const BLOCK_BYTES: u32 = 4096;

/// The exports as a directory.
pub(crate) struct Tree {
    exports: Exports,
    /// Permissions of files that can be written.
    mode: u16,
    uid: u32,
    gid: u32,
    /// The time of all files.
    made: SystemTime,
    log: Log,
    /// Exports without a file and with smaller numbers were logged.
    logged: AtomicU64,
}

impl Tree {
    pub(crate) fn new(exports: Exports, mode: u32, group: u32, made: SystemTime, log: Log) -> Self {
        Self {
            exports,
            mode: (mode & 0o666) as u16,
            uid: geteuid().as_raw(),
            gid: group,
            made,
            log,
            logged: AtomicU64::new(0),
        }
    }

    /// Returns the export whose file has this number, unless it was removed.
    pub(crate) fn export(&self, file: INodeNo) -> Option<Arc<Export>> {
        export(&self.exports, file)
    }

    /// Returns the attributes of the directory.
    pub(crate) fn directory(&self) -> FileAttr {
        // Users who may use the files may also find them.
        let group = if self.mode & 0o060 == 0 { 0 } else { 0o050 };
        let others = if self.mode & 0o006 == 0 { 0 } else { 0o005 };
        let perm = 0o700 | group | others;
        FileAttr { kind: FileType::Directory, perm, nlink: 2, ..self.blank(INodeNo::ROOT, 0) }
    }

    /// Returns the attributes of a file, unless its export was removed.
    pub(crate) fn file(&self, file: INodeNo) -> Option<FileAttr> {
        self.attributes(file, &*self.export(file)?)
    }

    /// Returns the attributes of the file with this name.
    pub(crate) fn find(&self, name: &OsStr) -> Option<FileAttr> {
        let (file, export) = find(&self.exports, name)?;
        self.attributes(file, &export)
    }

    fn attributes(&self, file: INodeNo, export: &Export) -> Option<FileAttr> {
        let writable = if export.is_read_only() { 0 } else { 0o222 };
        let perm = self.mode & (0o444 | writable);
        Some(FileAttr { perm, ..self.blank(file, export.size_bytes()?) })
    }

    fn blank(&self, ino: INodeNo, size: u64) -> FileAttr {
        FileAttr {
            ino,
            size,
            // One less than the size needs: the allocated length is unknown, and programs look for
            // holes only in files that seem to have some.
            blocks: (size / SECTOR_BYTES).saturating_sub(1),
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            crtime: self.made,
            kind: FileType::RegularFile,
            perm: 0,
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        }
    }

    /// Passes the names after `position` to `each`, with their attributes and positions, until it
    /// returns false.
    pub(crate) fn list(&self, position: u64, mut each: impl FnMut(&OsStr, u64, &FileAttr) -> bool) {
        let directory = self.directory();
        for (name, own) in [".", ".."].into_iter().zip(POSITIONS) {
            if position < own && !each(OsStr::new(name), own, &directory) {
                return;
            }
        }
        let mut after = position.checked_sub(POSITIONS[2]);
        loop {
            let exports = self.exports.list_after(after, BATCH);
            let Some((last, _)) = exports.last() else { return };
            after = Some(*last);
            for (number, export) in exports {
                let shown = export.name();
                let Some(name) = name::of_export(&shown) else {
                    self.log_hidden(number, &shown);
                    continue;
                };
                let Some(attributes) = self.attributes(inode(number), &export) else { continue };
                if !each(OsStr::new(&*name), number + POSITIONS[2], &attributes) {
                    return;
                }
            }
        }
    }

    /// Logs that an export has no file, once.
    fn log_hidden(&self, number: u64, name: &str) {
        if self.logged.fetch_max(number + 1, Relaxed) <= number {
            self.log.line(&format!("disk '{name}' has no file: its name is too long for one; 'pagefold rename' helps"));
        }
    }

    /// Returns the number of files and their total size.
    pub(crate) fn sums(&self) -> (u64, u64) {
        let (mut files, mut bytes) = (0_u64, 0_u64);
        self.list(POSITIONS[1], |_, _, attributes| {
            files += 1;
            bytes = bytes.saturating_add(attributes.size);
            true
        });
        (files, bytes)
    }
}

/// Returns the export whose file has this number, unless it was removed.
pub(crate) fn export(exports: &Exports, file: INodeNo) -> Option<Arc<Export>> {
    exports.numbered(file.0.checked_sub(RESERVED + 1)?).filter(|export| !export.is_hidden())
}

/// Returns the export whose file has this name, and the file's number.
pub(crate) fn find(exports: &Exports, name: &OsStr) -> Option<(INodeNo, Arc<Export>)> {
    let (number, export) = exports.get_numbered(&name::to_export(name)?)?;
    (!export.is_hidden()).then_some((inode(number), export))
}

/// Returns the number of the file of the export with this number.
fn inode(number: u64) -> INodeNo {
    INodeNo(number + RESERVED + 1)
}

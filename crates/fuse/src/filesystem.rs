//! Answers requests of the kernel from an image.
//!
//! No state is kept for the kernel: an inode number encodes the inode's place in the image, and a
//! directory position encodes the block and entry that follow it. So a client or a hostile image
//! may ask for any number and any position, and the image's own checks apply. Images never change,
//! so the kernel may cache names, attributes, links and pages indefinitely, and need not report
//! opening or closing a file.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyXattr, Request,
};
use pagefold_erofs::{Error, File, FileKind, Image, Inode};
use pagefold_mount::{Log, Poller};

use crate::attributes;

/// How long the kernel may cache replies: practically forever.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// The maximum length of a read in bytes, which is also the most that Linux asks for.
const MAX_READ_BYTES: u32 = 1 << 20;
/// The maximum number of open files. A file is opened by its first read; at the limit, all are
/// closed.
const MAX_OPEN: usize = 1024;
/// The maximum number of background (readahead) requests in flight.
const MAX_BACKGROUND: u16 = 64;

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

pub(crate) struct ImageFilesystem {
    image: Image,
    log: Log,
    open: RwLock<HashMap<u64, Arc<File>>>,
    /// Read buffers. The last one used is taken first, because it is in the CPU cache.
    buffers: Mutex<Vec<Vec<u8>>>,
    poller: Arc<Poller>,
    /// Whether the kernel can do without open requests, then without opendir requests.
    no_open: bool,
    no_opendir: bool,
}

impl ImageFilesystem {
    pub(crate) fn new(image: Image, log: Log, poller: Arc<Poller>) -> Self {
        Self {
            image,
            log,
            poller,
            open: RwLock::default(),
            buffers: Mutex::default(),
            no_open: false,
            no_opendir: false,
        }
    }

    fn root_nid(&self) -> u64 {
        self.image.superblock().root_nid
    }

    fn inode(&self, number: INodeNo) -> Result<Inode, Error> {
        self.image.inode(attributes::nid(self.root_nid(), number))
    }

    fn attributes(&self, inode: &Inode) -> FileAttr {
        attributes::of(self.image.superblock(), inode)
    }

    /// Converts an error to the result of a system call. Errors due to the image are logged.
    fn errno(&self, what: &str, number: INodeNo, error: &Error) -> Errno {
        match error {
            Error::NotFound(_) => Errno::ENOENT,
            Error::NotA("directory") => Errno::ENOTDIR,
            Error::NotA(_) => Errno::EINVAL,
            _ => {
                self.log.line(&format!("{what} of inode {number}: {error}"));
                if matches!(error, Error::Unsupported(_)) { Errno::EOPNOTSUPP } else { Errno::EIO }
            }
        }
    }

    /// Returns the attributes of a name, or those of no file, which the kernel may cache too.
    fn find(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Error> {
        match self.image.lookup(&self.inode(parent)?, name.as_bytes())? {
            Some(nid) => Ok(self.attributes(&self.image.inode(nid)?)),
            None => Ok(FileAttr { ino: INodeNo(0), ..attributes::unknown(self.root_nid(), 0, None) }),
        }
    }

    /// Returns the file for a read of `len` bytes at `offset`.
    fn file(&self, number: INodeNo, len: u64, offset: u64) -> Result<Arc<File>, Error> {
        let known = self.open.read().unwrap_or_else(PoisonError::into_inner).get(&number.0).map(Arc::clone);
        if let Some(file) = known {
            return Ok(file);
        }
        let file = Arc::new(self.image.file(&self.inode(number)?)?);
        // If a file is read completely in one request, the kernel caches it.
        if offset == 0 && len >= file.inode().size {
            return Ok(file);
        }
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MAX_OPEN {
            open.clear();
        }
        open.insert(number.0, Arc::clone(&file));
        Ok(file)
    }

    /// Returns the first offset from `offset` on that is a hole, or that is not. The end of a file
    /// counts as a hole.
    fn seek(&self, number: INodeNo, offset: i64, hole: bool) -> Result<Option<i64>, Error> {
        let file = self.file(number, 0, 0)?;
        let size = file.inode().size;
        let Some(mut at) = u64::try_from(offset).ok().filter(|at| *at < size) else { return Ok(None) };
        while at < size {
            let run = file.run_at(at)?;
            if run.hole == hole {
                return Ok(Some(at.cast_signed()));
            }
            at += run.len;
        }
        Ok(hole.then_some(size.cast_signed()))
    }

    /// Returns the value of an xattr, or all names, each followed by a NUL.
    fn xattr(&self, number: INodeNo, name: Option<&OsStr>) -> Result<Option<Vec<u8>>, Error> {
        let xattrs = self.image.xattrs(&self.inode(number)?)?;
        Ok(match name {
            Some(name) => xattrs.into_iter().find(|xattr| xattr.name == name.as_bytes()).map(|xattr| xattr.value),
            None => Some(xattrs.iter().flat_map(|xattr| [&xattr.name[..], b"\0"]).flatten().copied().collect()),
        })
    }

    fn reply_xattr(&self, number: INodeNo, name: Option<&OsStr>, room: u32, reply: ReplyXattr) {
        match self.xattr(number, name) {
            Ok(Some(bytes)) if room == 0 => reply.size(bytes.len() as u32),
            Ok(Some(bytes)) if bytes.len() <= room as usize => reply.data(&bytes),
            Ok(Some(_)) => reply.error(Errno::ERANGE),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(error) => reply.error(self.errno("xattrs", number, &error)),
        }
    }
}

impl Filesystem for ImageFilesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Features that an older kernel lacks are not used.
        let mut has = |flag| config.add_capabilities(flag).is_ok();
        for flag in [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            // The kernel then also enforces ACLs, which it reads as xattrs.
            InitFlags::FUSE_POSIX_ACL,
        ] {
            has(flag);
        }
        self.no_open = has(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.no_opendir = has(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        // The kernel clips larger numbers to its own limits.
        if let Err(most) = config.set_max_readahead(MAX_READ_BYTES) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_write(MAX_READ_BYTES);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.poller.answer(|| match self.find(parent, name) {
            Ok(attributes) => reply.entry(&FOR_EVER, &attributes, Generation(0)),
            Err(error) => reply.error(self.errno(&format!("looking up {name:?}"), parent, &error)),
        });
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.poller.answer(|| match self.inode(number) {
            Ok(inode) => reply.attr(&FOR_EVER, &self.attributes(&inode)),
            Err(error) => reply.error(self.errno("attributes", number, &error)),
        });
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        self.poller.answer(|| match self.inode(number).and_then(|inode| self.image.read_link(&inode)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.errno("target", number, &error)),
        });
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.no_open {
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut buffer = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        self.poller.answer(|| {
            let len = size.min(MAX_READ_BYTES) as usize;
            let room = File::room_bytes(len);
            if buffer.len() < room {
                buffer.resize(room, 0);
            }
            match self.file(number, len as u64, offset).and_then(|file| file.read_into(&mut buffer, len, offset)) {
                Ok(len) => reply.data(&buffer[..len]),
                Err(error) => reply.error(self.errno(&format!("data at {offset}"), number, &error)),
            }
        });
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }

    fn lseek(&self, _: &Request, number: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.poller.answer(|| {
            if whence != SEEK_DATA && whence != SEEK_HOLE {
                return reply.error(Errno::EINVAL);
            }
            match self.seek(number, offset, whence == SEEK_HOLE) {
                Ok(Some(found)) => reply.offset(found),
                Ok(None) => reply.error(Errno::ENXIO),
                Err(error) => reply.error(self.errno("holes", number, &error)),
            }
        });
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.no_opendir {
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
        }
    }

    fn readdir(&self, _: &Request, number: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.poller.answer(|| {
            let listed = self.inode(number).and_then(|directory| {
                self.image.for_each_entry_from(&directory, offset, |entry, next| {
                    let kind = entry.kind().or_else(|| self.image.inode(entry.nid).ok().map(|inode| inode.kind));
                    let kind = attributes::file_type(kind.unwrap_or(FileKind::Regular));
                    let number = attributes::number(self.root_nid(), entry.nid);
                    if reply.add(number, next, kind, OsStr::from_bytes(&entry.name)) {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                })
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(self.errno("names", number, &error)),
            }
        });
    }

    fn readdirplus(&self, _: &Request, number: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.poller.answer(|| {
            let listed = self.inode(number).and_then(|directory| {
                self.image.for_each_entry_from(&directory, offset, |entry, next| {
                    let (attributes, ttl) = match self.image.inode(entry.nid) {
                        Ok(inode) => (self.attributes(&inode), FOR_EVER),
                        // An explicit lookup reports the error.
                        Err(_) => (attributes::unknown(self.root_nid(), entry.nid, entry.kind()), Duration::ZERO),
                    };
                    let name = OsStr::from_bytes(&entry.name);
                    if reply.add(attributes.ino, next, name, &ttl, &attributes, Generation(0)) {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                })
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(self.errno("names", number, &error)),
            }
        });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let superblock = self.image.superblock();
        let block = superblock.block_bytes() as u32;
        reply.statfs(superblock.blocks, 0, 0, superblock.inos, 0, block, 255, block);
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.poller.answer(|| {
            self.reply_xattr(number, Some(name), size, reply);
        });
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        self.poller.answer(|| {
            self.reply_xattr(number, None, size, reply);
        });
    }
}

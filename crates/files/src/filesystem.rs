//! Answers requests of the kernel from the exports.
//!
//! The thread that received a request runs the part that need not wait for storage. A thread of the
//! executor does the rest and replies. Changes that wait for room occupy no thread.
//!
//! No state is kept for the kernel except open files: numbers of files and positions in the
//! directory follow from those of the exports. The kernel may not keep names and attributes, since
//! exports come, go and change their size without it.

use std::{ffi::OsStr, io, sync::Arc, time::Duration};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use pagefold_disk::{BlockDevice, Zeroes};
use pagefold_executor::{Attempt, Change, Completion, Keep, Operation, Scratch, Storage};
use pagefold_mount::Poller;
use rustix::fs::{FallocateFlags, OFlags};

use crate::{
    answer::{Answer, Reply},
    open::{OpenFile, OpenFiles},
    read::{Buffers, errno, within},
    seek::Search,
    tree::Tree,
};

/// How long the kernel may keep names and sizes: not at all.
const NOT_KEPT: Duration = Duration::ZERO;
/// How long it may keep the attributes of the directory, which never change.
const KEPT: Duration = Duration::from_secs(365 * 24 * 3600);
/// The maximum number of background requests (readahead, asynchronous direct I/O) in flight, of all
/// files together. A base that hangs rarely uses up all of them.
const MAX_BACKGROUND: u16 = 1024;
/// A longer change runs in a thread of the executor. All writes are shorter.
const INLINE_BYTES: u64 = 4 << 20;

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The file system of a mount.
pub(crate) struct ExportFilesystem {
    pub(crate) tree: Tree,
    pub(crate) open: Arc<OpenFiles>,
    pub(crate) buffers: Arc<Buffers>,
    /// The longest read and write.
    pub(crate) request_bytes: u32,
    pub(crate) poller: Arc<Poller>,
}

impl ExportFilesystem {
    /// Calls `answer` with an open file and the reply. If the file is not open, `refuse` sends why.
    fn with_file<R>(
        &self,
        handle: FileHandle,
        reply: R,
        refuse: impl FnOnce(R, Errno),
        answer: impl FnOnce(Arc<OpenFile>, R),
    ) {
        self.poller.answer(|| match self.open.get(handle) {
            Ok(file) => answer(file, reply),
            Err(errno) => refuse(reply, errno),
        });
    }
}

/// Writes the part of `data` that is within the device. The file cannot grow: a write at or past
/// its end fails with EFBIG.
fn write(file: &Arc<OpenFile>, offset: u64, data: &[u8], syncs: bool, reply: ReplyWrite) {
    let len = match file.device() {
        Ok(device) => within(&device, offset, data.len()),
        Err(errno) => return reply.error(errno),
    };
    if len == 0 && !data.is_empty() {
        return reply.error(Errno::EFBIG);
    }
    let data = &data[..len];
    let answer = Answer::new(file, Operation::Write, len as u64, Reply::Written(reply, len as u32)).synced(syncs);
    let Some(start) = file.client.access().rate.begin(len as u64) else {
        return run(file, Change::write(offset, data), answer);
    };
    match data.keep(file.client.share()) {
        Ok(payload) => file.run_at(start, move || Change::write(offset, payload).finish(answer)),
        Err(data) => {
            file.pace(start);
            run(file, Change::write(offset, data), answer);
        }
    }
}

/// Runs a change: a short one on this thread until it would wait for storage, any other on the
/// executor.
fn run(file: &Arc<OpenFile>, mut change: Change<&[u8]>, mut answer: Answer) {
    if change.left_bytes() <= INLINE_BYTES
        && let Attempt::Done(result) = change.attempt(file.client.device().as_deref(), Storage::DoNotWait)
    {
        return answer.done(result);
    }
    match change.keep(file.client.share()) {
        Ok(change) => file.hand_on(move |_| change.finish(answer)),
        // Without memory for a copy of the data, this thread waits.
        Err(change) => change.finish(answer),
    }
}

/// Discards or zeroes the part of a range that is within the device. Room cannot be reserved, so
/// other modes are not supported.
fn allocate(file: &Arc<OpenFile>, offset: u64, len: u64, mode: FallocateFlags, reply: ReplyEmpty) {
    let size = match file.device() {
        Ok(device) => device.size_bytes(),
        Err(errno) => return reply.error(errno),
    };
    let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
    let end = offset.saturating_add(len);
    let len = end.min(size).saturating_sub(offset);
    let (operation, asked) = if mode == FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE {
        (Operation::Discard, Change::discard(offset, len))
    } else if mode - FallocateFlags::KEEP_SIZE == FallocateFlags::ZERO_RANGE {
        (Operation::WriteZeroes, Change::write_zeroes(offset, len, Zeroes::Allocated))
    } else {
        return reply.error(Errno::EOPNOTSUPP);
    };
    if end > size && !keeps_size {
        return reply.error(Errno::EFBIG);
    }
    if len == 0 {
        return reply.ok();
    }
    run(file, asked, Answer::new(file, operation, len, Reply::Empty(reply)));
}

/// Flushes the device, in a thread of the executor if that takes long.
fn flush(file: &Arc<OpenFile>, reply: ReplyEmpty) {
    let started = file.client.access().activity.begin(Operation::Flush, 0);
    let flushing = Arc::clone(file);
    let send = move |flushed: Result<(), Errno>| {
        flushing.client.access().activity.end(started, flushed.is_ok());
        Reply::Empty(reply).send(flushed);
    };
    let tried = file.device().and_then(|device| device.try_flush().map_err(|error| errno(&error)));
    match tried {
        Ok(true) => return send(Ok(())),
        Ok(false) => {}
        Err(errno) => return send(Err(errno)),
    }
    let flushing = Arc::clone(file);
    let work = move |_: &mut Scratch| {
        send(flushing.device().and_then(|device| device.flush().map_err(|error| errno(&error))));
    };
    file.hand_on(work);
}

impl Filesystem for ExportFilesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Features that an older kernel lacks are not used.
        for flag in [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ] {
            let _ = config.add_capabilities(flag);
        }
        // The kernel clips larger numbers to its own limits.
        if let Err(most) = config.set_max_readahead(self.request_bytes) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_write(self.request_bytes);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.poller.answer(|| match self.tree.find(name) {
            Some(attributes) => reply.entry(&NOT_KEPT, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        });
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.poller.answer(|| match (number, self.tree.file(number)) {
            (INodeNo::ROOT, _) => reply.attr(&KEPT, &self.tree.directory()),
            (_, Some(attributes)) => reply.attr(&NOT_KEPT, &attributes),
            (_, None) => reply.error(Errno::ESTALE),
        });
    }

    /// Accepts the size that a file has already; nothing can be changed here.
    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<std::time::SystemTime>,
        _: Option<FileHandle>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.poller.answer(|| match self.tree.file(number) {
            Some(attributes) if size == Some(attributes.size) && mode.is_none() && uid.is_none() && gid.is_none() => {
                reply.attr(&NOT_KEPT, &attributes);
            }
            Some(_) => reply.error(Errno::EPERM),
            None if number == INodeNo::ROOT => reply.error(Errno::EPERM),
            None => reply.error(Errno::ESTALE),
        });
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.poller.answer(|| {
            let Some(export) = self.tree.export(number) else { return reply.error(Errno::ESTALE) };
            let empties = has(flags, OFlags::TRUNC);
            let read_only = export.is_read_only();
            if read_only && (empties || flags.acc_mode() != OpenAccMode::O_RDONLY) {
                return reply.error(Errno::EROFS);
            }
            let (handle, file) = match self.open.open(number, &export) {
                Ok(opened) => opened,
                Err(errno) => return reply.error(errno),
            };
            let flags = if export.never_changes() {
                FopenFlags::FOPEN_KEEP_CACHE
            } else {
                FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            };
            let size = file.device().map_or(0, |device| device.size_bytes());
            if empties && size > 0 {
                let reply = Reply::Opened(reply, handle, flags, Arc::clone(&self.open));
                return run(&file, Change::discard(0, size), Answer::new(&file, Operation::Discard, size, reply));
            }
            reply.opened(handle, flags);
        });
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.poller.answer(|| {
            self.open.close(handle);
            reply.ok();
        });
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.with_file(handle, reply, ReplyData::error, |file, reply| self.buffers.read(&file, offset, size, reply));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let syncs = has(flags, OFlags::DSYNC);
        self.with_file(handle, reply, ReplyWrite::error, |file, reply| write(&file, offset, data, syncs, reply));
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        self.with_file(handle, reply, ReplyEmpty::error, |file, reply| flush(&file, reply));
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        self.with_file(handle, reply, ReplyEmpty::error, |file, reply| allocate(&file, offset, len, mode, reply));
    }

    fn lseek(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.with_file(handle, reply, ReplyLseek::error, |file, reply| match (whence, u64::try_from(offset)) {
            (SEEK_DATA | SEEK_HOLE, Ok(from)) => Search { file, from, hole: whence == SEEK_HOLE, reply }.run(),
            (SEEK_DATA | SEEK_HOLE, Err(_)) => reply.error(Errno::ENXIO),
            _ => reply.error(Errno::EINVAL),
        });
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, position: u64, mut reply: ReplyDirectory) {
        self.poller.answer(|| {
            self.tree.list(position, |name, position, file| !reply.add(file.ino, position, file.kind, name));
            reply.ok();
        });
    }

    fn readdirplus(&self, _: &Request, _: INodeNo, _: FileHandle, position: u64, mut reply: ReplyDirectoryPlus) {
        self.poller.answer(|| {
            self.tree.list(position, |name, position, file| {
                !reply.add(file.ino, position, name, &NOT_KEPT, file, Generation(0))
            });
            reply.ok();
        });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.poller.answer(|| {
            let (files, bytes) = self.tree.sums();
            reply.statfs(bytes / 4096, 0, 0, files, 0, 4096, 255, 4096);
        });
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(&self, _: &Request, _: INodeNo, _: &OsStr, _: INodeNo, _: &OsStr, _: RenameFlags, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    // After ENOSYS, the kernel sends no more such requests, and reports EOPNOTSUPP.

    fn setxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: &[u8], _: i32, _: u32, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}

fn has(flags: OpenFlags, flag: OFlags) -> bool {
    OFlags::from_bits_retain(flags.0.cast_unsigned()).contains(flag)
}

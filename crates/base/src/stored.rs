//! An open file, parts of which may be in the system's page cache.

use std::{
    fs::File,
    io::{self, IoSliceMut},
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use pagefold_erofs::ReadAt;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// The file of a base.
pub(crate) struct Stored {
    file: File,
    /// Whether the file system cannot say what it would have to wait for.
    always_waits: AtomicBool,
}

impl Stored {
    pub(crate) fn new(file: File) -> Self {
        Self { file, always_waits: AtomicBool::new(false) }
    }
}

impl AsFd for Stored {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl ReadAt for Stored {
    fn len_bytes(&self) -> io::Result<u64> {
        self.file.len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        if self.always_waits.load(Relaxed) {
            return 0;
        }
        match preadv2(&self.file, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT) {
            Ok(filled) => filled,
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.always_waits.store(true, Relaxed);
                0
            }
            Err(_) => 0,
        }
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_at_hand_is_read_and_the_rest_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.img");
        fs::write(&path, [7; 10_000]).expect("a file");
        let stored = Stored::new(File::open(&path).expect("a file"));
        let mut buf = [0; 4096];
        // A file system may lack support, and the page cache may be short of memory.
        let filled = stored.try_read_at(&mut buf, 4096);
        assert!(buf[..filled].iter().all(|&byte| byte == 7));
        assert!(stored.try_read_at(&mut buf, 8192) <= 1808, "never more than the file has");
        assert_eq!(stored.try_read_at(&mut buf, 20_000), 0);
    }
}

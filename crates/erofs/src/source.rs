//! Where an image's bytes come from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes that any number of threads read at any position.
pub trait ReadAt: Send + Sync {
    /// How many bytes there are. Asked once, when an image is opened.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset`. Fewer bytes than that are an error.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// The bytes themselves, where they are in memory: clusters are then decoded from there. `None` if they are not,
    /// or not all of them are.
    ///
    /// A file that is mapped into memory is no such source unless nobody can shorten it: who touches what
    /// is gone is killed (`SIGBUS`). A [`File`] is read instead, and what is gone is an error.
    fn bytes_at(&self, _len: usize, _offset: u64) -> Option<&[u8]> {
        None
    }
}

impl ReadAt for File {
    fn len_bytes(&self) -> io::Result<u64> {
        let metadata = self.metadata()?;
        if metadata.is_file() {
            Ok(metadata.len())
        } else {
            rustix::fs::seek(self, rustix::fs::SeekFrom::End(0)).map_err(Into::into)
        }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        // Nearly always at once, and without what a C library does for threads that can be cancelled.
        match rustix::io::pread(self, &mut *buf, offset) {
            Ok(len) if len == buf.len() => Ok(()),
            _ => FileExt::read_exact_at(self, buf, offset),
        }
    }
}

impl ReadAt for [u8] {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        buf.copy_from_slice(self.bytes_at(buf.len(), offset).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn bytes_at(&self, len: usize, offset: u64) -> Option<&[u8]> {
        self.get(usize::try_from(offset).ok()?..)?.get(..len)
    }
}

impl ReadAt for Vec<u8> {
    fn len_bytes(&self) -> io::Result<u64> {
        self.as_slice().len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.as_slice().read_exact_at(buf, offset)
    }

    fn bytes_at(&self, len: usize, offset: u64) -> Option<&[u8]> {
        self.as_slice().bytes_at(len, offset)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Arc<T> {
    fn len_bytes(&self) -> io::Result<u64> {
        (**self).len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_exact_at(buf, offset)
    }

    fn bytes_at(&self, len: usize, offset: u64) -> Option<&[u8]> {
        (**self).bytes_at(len, offset)
    }
}

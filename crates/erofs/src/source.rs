//! Where an image's bytes come from.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes that any number of threads read at any position.
pub trait ReadAt: Send + Sync {
    /// How many bytes there are. Asked once, when an image is opened.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset`. Fewer bytes than that are an error.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills `bufs`, one after the other, from consecutive bytes at `offset`.
    fn read_exact_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], mut offset: u64) -> io::Result<()> {
        for buf in bufs {
            self.read_exact_at(buf, offset)?;
            offset += buf.len() as u64;
        }
        Ok(())
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
        FileExt::read_exact_at(self, buf, offset)
    }

    fn read_exact_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], mut offset: u64) -> io::Result<()> {
        let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut got = rustix::io::preadv(self, bufs, offset)?;
        if got == wanted {
            return Ok(());
        }
        // A short read: finish each buffer on its own.
        for buf in bufs {
            let here = got.min(buf.len());
            got -= here;
            FileExt::read_exact_at(self, &mut buf[here..], offset + here as u64)?;
            offset += buf.len() as u64;
        }
        Ok(())
    }
}

impl ReadAt for [u8] {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).ok().and_then(|at| self.get(at..)?.get(..buf.len()));
        buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl ReadAt for Vec<u8> {
    fn len_bytes(&self) -> io::Result<u64> {
        self.as_slice().len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.as_slice().read_exact_at(buf, offset)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Arc<T> {
    fn len_bytes(&self) -> io::Result<u64> {
        (**self).len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_exact_at(buf, offset)
    }

    fn read_exact_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        (**self).read_exact_vectored_at(bufs, offset)
    }
}

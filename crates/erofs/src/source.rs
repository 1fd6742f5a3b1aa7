//! The sources that an image's bytes come from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes that any number of threads can read at any position.
pub trait ReadAt: Send + Sync {
    /// Returns the length in bytes. Called once, when an image is opened.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset`. If the source ends earlier, that is an error.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// As [`read_exact_at`](Self::read_exact_at), but does not wait for storage. Fills `buf` from its
    /// start, and returns how many bytes are filled. The rest of `buf` is then unspecified. An error
    /// counts as a wait.
    fn try_read_at(&self, _buf: &mut [u8], _offset: u64) -> usize {
        0
    }

    /// Fills each buffer from its offset. Meant for sources with high latency that can serve
    /// several requests at once.
    fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        parts.iter_mut().try_for_each(|(offset, buf)| self.read_exact_at(buf, *offset))
    }

    /// Returns the bytes themselves if all of them are in memory, so that clusters are decoded
    /// directly from there. Otherwise returns `None`.
    ///
    /// Implement this for a memory-mapped file only if nobody can truncate it: touching a page
    /// beyond the new end kills the process (`SIGBUS`). A [`File`] is read instead, and a truncated
    /// one returns an error.
    fn bytes_at(&self, _len: usize, _offset: u64) -> Option<&[u8]> {
        None
    }

    /// Returns the file if the source is a file with each byte at the same offset. Parts of it are
    /// then copied without passing through this process.
    fn file(&self) -> Option<&File> {
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
        // One `pread` nearly always suffices. This call also skips the C library's bookkeeping for
        // thread cancellation.
        match rustix::io::pread(self, &mut *buf, offset) {
            Ok(len) if len == buf.len() => Ok(()),
            _ => FileExt::read_exact_at(self, buf, offset).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => ends_before(offset.saturating_add(buf.len() as u64)),
                _ => error,
            }),
        }
    }

    fn file(&self) -> Option<&File> {
        Some(self)
    }
}

/// Returns the error of a file that lacks bytes before `end`.
fn ends_before(end: u64) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("the file ends before byte {end}"))
}

impl ReadAt for [u8] {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        buf.copy_from_slice(self.bytes_at(buf.len(), offset).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        self.read_exact_at(buf, offset).map_or(0, |()| buf.len())
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

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        self.as_slice().try_read_at(buf, offset)
    }

    fn bytes_at(&self, len: usize, offset: u64) -> Option<&[u8]> {
        self.as_slice().bytes_at(len, offset)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Arc<T> {
    fn len_bytes(&self) -> io::Result<u64> {
        (**self).len_bytes()
    }

    fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        (**self).read_all_at(parts)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_exact_at(buf, offset)
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        (**self).try_read_at(buf, offset)
    }

    fn bytes_at(&self, len: usize, offset: u64) -> Option<&[u8]> {
        (**self).bytes_at(len, offset)
    }

    fn file(&self) -> Option<&File> {
        (**self).file()
    }
}

/// An image embedded in a larger source, from a given byte to the source's end.
///
/// Positions in the image, including those in [`Error::Corrupt`](crate::Error::Corrupt), are
/// relative to that byte.
#[derive(Clone, Debug)]
pub struct Embedded<S> {
    source: S,
    start_bytes: u64,
    len_bytes: u64,
}

impl<S: ReadAt> Embedded<S> {
    /// Returns the image that `source` holds from `start_bytes` to its end.
    ///
    /// # Errors
    /// The source cannot say its length, or ends before `start_bytes`
    /// ([`UnexpectedEof`](io::ErrorKind::UnexpectedEof)).
    pub fn new(source: S, start_bytes: u64) -> io::Result<Self> {
        let source_bytes = source.len_bytes()?;
        let Some(len_bytes) = source_bytes.checked_sub(start_bytes) else {
            let what = format!("byte {start_bytes} is past the end: there are {source_bytes} bytes");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        };
        Ok(Self { source, start_bytes, len_bytes })
    }
}

impl<S: ReadAt> ReadAt for Embedded<S> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len_bytes)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let offset = offset.checked_add(self.start_bytes).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.source.read_exact_at(buf, offset)
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        offset.checked_add(self.start_bytes).map_or(0, |offset| self.source.try_read_at(buf, offset))
    }

    fn bytes_at(&self, len: usize, offset: u64) -> Option<&[u8]> {
        self.source.bytes_at(len, offset.checked_add(self.start_bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedded_source_begins_and_ends_where_it_should() {
        let bytes: Vec<u8> = (0..100).collect();
        let embedded = Embedded::new(bytes.clone(), 30).unwrap();
        assert_eq!(embedded.len_bytes().unwrap(), 70);
        let mut two = [0; 2];
        embedded.read_exact_at(&mut two, 68).unwrap();
        assert_eq!(two, [98, 99]);
        assert_eq!(embedded.bytes_at(2, 0), Some(&[30, 31][..]));
        for offset in [69, 70, u64::MAX - 30, u64::MAX] {
            assert!(embedded.read_exact_at(&mut two, offset).is_err(), "{offset}");
            assert_eq!(embedded.bytes_at(2, offset), None, "{offset}");
        }
        assert_eq!(Embedded::new(bytes.clone(), 100).unwrap().len_bytes().unwrap(), 0);
        for start in [101, u64::MAX] {
            let error = Embedded::new(bytes.clone(), start).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            assert!(error.to_string().contains("there are 100 bytes"), "{error}");
        }
    }
}

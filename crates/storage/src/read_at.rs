//! Positioned, batched reads.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The length of the units of a source that is near, where the cost of reading one does not matter.
const NEAR_UNIT_BYTES: u64 = 4096;

/// Bytes that any number of threads can read at any position.
pub trait ReadAt: Send + Sync {
    /// Returns the length in bytes. Called once, when an image is opened.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset`. If the source ends earlier, that is an error.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Like [`read_exact_at`](Self::read_exact_at), but does not wait for storage. Fills `buf` from its
    /// start, and returns how many bytes are filled. The rest of `buf` is then unspecified. An error
    /// counts as a wait.
    fn try_read_at(&self, _buf: &mut [u8], _offset: u64) -> usize {
        0
    }

    /// Fills each buffer from its offset. Ranges that are adjacent or fetched concurrently cost one
    /// wait, where waits are long. After an error, any of the buffers may be filled.
    fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        parts.iter_mut().try_for_each(|(offset, buf)| self.read_exact_at(buf, *offset))
    }

    /// Returns the length of the aligned units in which the source fetches, a power of two of at
    /// least 4096. Once a byte of a unit was read, its other bytes cost little.
    fn unit_bytes(&self) -> u64 {
        NEAR_UNIT_BYTES
    }

    /// Returns whether fetching a unit takes long, so that it pays to find out which units are
    /// needed and to fetch these together.
    fn is_far(&self) -> bool {
        self.unit_bytes() > NEAR_UNIT_BYTES
    }

    /// Fetches the units of these ranges, which must exist, together, so that reads of them soon
    /// after need not wait. Does nothing unless the source [is far](Self::is_far). Reads report
    /// what cannot be fetched.
    fn fetch(&self, ranges: &[Range<u64>]) {
        if !self.is_far() {
            return;
        }
        let unit_bytes = self.unit_bytes();
        let units = |range: &Range<u64>| range.start / unit_bytes..range.end.div_ceil(unit_bytes);
        let mut starts: Vec<_> =
            ranges.iter().filter(|range| !range.is_empty()).flat_map(units).map(|unit| unit * unit_bytes).collect();
        starts.sort_unstable();
        starts.dedup();
        // Reading a byte of a unit makes the source fetch the unit.
        let mut bytes = vec![0; starts.len()];
        let mut parts: Vec<_> = starts.into_iter().zip(bytes.chunks_mut(1)).collect();
        if !parts.is_empty() {
            let _ = self.read_all_at(&mut parts);
        }
    }

    /// Returns the bytes themselves if all of them are in memory, so that clusters are decoded
    /// directly from there. Otherwise returns `None`.
    ///
    /// Implement this for a memory-mapped file only if no program can truncate it: touching a page
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

    /// Returns the SHA-256 sum of the blob that begins with these bytes, if a trusted source, such
    /// as a verified manifest, states it.
    fn blob_sha256(&self) -> Option<[u8; 32]> {
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

    fn unit_bytes(&self) -> u64 {
        (**self).unit_bytes()
    }

    fn is_far(&self) -> bool {
        (**self).is_far()
    }

    fn fetch(&self, ranges: &[Range<u64>]) {
        (**self).fetch(ranges);
    }

    fn bytes_at(&self, len: usize, offset: u64) -> Option<&[u8]> {
        (**self).bytes_at(len, offset)
    }

    fn file(&self) -> Option<&File> {
        (**self).file()
    }

    fn blob_sha256(&self) -> Option<[u8; 32]> {
        (**self).blob_sha256()
    }
}

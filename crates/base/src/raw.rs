//! A raw file or a block device.

use std::{
    fs::File,
    io::{self, IoSliceMut},
};

use pagefold_disk::{Error, Extent, Read};
use pagefold_erofs::ReadAt;
use rustix::{
    fs::{SeekFrom, seek},
    io::{Errno, preadv},
};

use crate::{
    content::{Content, data, hole},
    stored::Stored,
};

/// The most adjacent reads that become one.
const READS_AT_ONCE: usize = 64;

/// The plain bytes of a file.
pub(crate) struct Raw {
    file: Stored,
    len_bytes: u64,
}

impl Raw {
    pub(crate) fn new(file: File, len_bytes: u64) -> Self {
        Self { file: Stored::new(file), len_bytes }
    }

    /// Seeks to data or a hole at or after `at`, and returns its position.
    fn seek(&self, to: SeekFrom, at: u64) -> Result<u64, Errno> {
        // Nothing uses the file's position, so threads may set it concurrently.
        seek(&self.file, to).map(|found| found.max(at))
    }

    /// Returns where the data or hole at `at` ends, and whether it is a hole.
    fn run(&self, at: u64) -> (u64, bool) {
        let len_bytes = self.len_bytes;
        match self.seek(SeekFrom::Data(at), at) {
            Ok(start) if start > at => (start.min(len_bytes), true),
            Ok(_) => (self.seek(SeekFrom::Hole(at), at).map_or(len_bytes, |end| end.min(len_bytes)), false),
            // No data from here on: a hole, unless the file was truncated.
            Err(Errno::NXIO) => (len_bytes, seek(&self.file, SeekFrom::End(0)).is_ok_and(|end| end >= len_bytes)),
            // A device, or a file system that does not report holes.
            Err(_) => (len_bytes, false),
        }
    }
}

impl Content for Raw {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn table_bytes(&self) -> u64 {
        0
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        ReadAt::read_exact_at(&self.file, buf, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let (len, asked) = (self.len_bytes, buf.len());
                let what = format!(
                    "the file ends before byte {}; it had {len} bytes when it was opened",
                    offset + asked as u64
                );
                Error::Io(io::Error::new(io::ErrorKind::UnexpectedEof, what))
            }
            _ => Error::Io(error),
        })
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> usize {
        self.file.try_read_at(buf, offset)
    }

    fn read_together(&self, reads: &mut [&mut Read<'_>]) {
        let is_next =
            |before: &&mut Read<'_>, after: &&mut Read<'_>| before.offset + before.buf.len() as u64 == after.offset;
        for adjacent in reads.chunk_by_mut(is_next).flat_map(|adjacent| adjacent.chunks_mut(READS_AT_ONCE)) {
            let len: usize = adjacent.iter().map(|read| read.buf.len()).sum();
            let offset = adjacent.first().map_or(0, |read| read.offset);
            let mut slices: Vec<_> = adjacent.iter_mut().map(|read| IoSliceMut::new(read.buf)).collect();
            if slices.len() > 1 && preadv(&self.file, &mut slices, offset).is_ok_and(|filled| filled == len) {
                continue;
            }
            for read in adjacent {
                read.result = self.read(read.offset, read.buf);
            }
        }
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        let end = offset + len_bytes;
        let mut at = offset;
        while at < end {
            let (stop, is_hole) = self.run(at);
            // A file that changes during the query must not stall the loop.
            let stop = if stop > at { stop.min(end) } else { end };
            if !each(if is_hole { hole(stop - at) } else { data(stop - at) }) {
                return Ok(());
            }
            at = stop;
        }
        Ok(())
    }
}

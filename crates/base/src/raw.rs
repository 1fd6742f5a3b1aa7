//! A raw disk: a file, a block device or a blob.

use std::{io, sync::Arc};

use pagefold_disk::{Error, Extent, Read};
use pagefold_storage::{Forward, ReadAt, Storage, Stretch};

use crate::content::{Content, data, hole};

/// The plain bytes of a storage.
pub(crate) struct Raw {
    storage: Arc<dyn Storage>,
    reads: Box<dyn ReadAt>,
    len_bytes: u64,
}

impl Raw {
    pub(crate) fn open(storage: Arc<dyn Storage>) -> io::Result<Self> {
        let reads: Box<dyn ReadAt> = match storage.is_far() {
            true => Box::new(Forward::new(Arc::clone(&storage))?),
            false => Box::new(Arc::clone(&storage)),
        };
        Ok(Self { len_bytes: storage.len_bytes()?, storage, reads })
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
        self.reads.read_exact_at(buf, offset).map_err(|error| match error.kind() {
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
        self.reads.try_read_at(buf, offset)
    }

    fn read_together(&self, reads: &mut [&mut Read<'_>]) {
        let mut parts: Vec<_> = reads.iter_mut().map(|read| (read.offset, &mut *read.buf)).collect();
        if self.reads.read_all_at(&mut parts).is_ok() {
            return;
        }
        // Each is read by itself, because only some may fail.
        for read in reads {
            read.result = self.read(read.offset, read.buf);
        }
    }

    fn unit_bytes(&self) -> u64 {
        self.storage.unit_bytes()
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        let end = offset + len_bytes;
        let mut at = offset;
        while at < end {
            let Stretch { end: stop, is_hole } = self.storage.stretch_at(at);
            // A storage that changes during the query must not stall the loop.
            let stop = if stop > at { stop.min(end) } else { end };
            if !each(if is_hole { hole(stop - at) } else { data(stop - at) }) {
                return Ok(());
            }
            at = stop;
        }
        Ok(())
    }
}

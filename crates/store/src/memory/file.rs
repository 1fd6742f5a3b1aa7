//! A file in memory that contains regions, one after another, so that their content outlives the
//! process.

use std::{
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use rustix::process::{Resource, getrlimit};

/// Regions begin at multiples of this: the largest huge page of any Linux's usual page sizes.
const ALIGN: u64 = 2 << 20;

/// See the module documentation. The file is sparse: unused parts take no memory.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    file: Arc<File>,
    /// Where the next region begins.
    end: AtomicU64,
}

impl MemoryFile {
    /// Uses an empty file.
    pub(crate) fn new(file: Arc<File>) -> Self {
        Self { file, end: AtomicU64::new(0) }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Reserves a part of the file, and returns where it begins. No other thread does that
    /// simultaneously.
    ///
    /// # Errors
    /// The file cannot be that long (`ulimit -f`).
    pub(crate) fn reserve(&self, len_bytes: u64) -> io::Result<u64> {
        let start = self.end.load(Relaxed);
        let end = start.checked_add(len_bytes.next_multiple_of(ALIGN)).ok_or(io::ErrorKind::FileTooLarge)?;
        // Otherwise, the system would end the process.
        if getrlimit(Resource::Fsize).current.is_some_and(|most| most < end) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.set_len(end)?;
        self.end.store(end, Relaxed);
        Ok(start)
    }
}

//! Detection of changes to an open file by others.

use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
};

use rustix::time::{ClockId, clock_gettime};

/// A file that nobody should change while it is in use.
pub(crate) struct Watched {
    file: File,
    first: FileState,
    /// The second of the last check.
    looked_s: AtomicI64,
    changed: AtomicBool,
}

/// The state that reveals a change: size and modification time.
type FileState = (u64, (i64, i64));

fn state(file: &File) -> io::Result<FileState> {
    let metadata = file.metadata()?;
    Ok((metadata.size(), (metadata.mtime(), metadata.mtime_nsec())))
}

/// Returns seconds from a clock that is cheaper than a cache lookup.
fn now_s() -> i64 {
    clock_gettime(ClockId::MonotonicCoarse).tv_sec
}

/// Returns a text that distinguishes a file from all others, and from its own state after a change.
pub fn identity(file: &File) -> io::Result<String> {
    let metadata = file.metadata()?;
    let (size, (s, ns)) = state(file)?;
    Ok(format!("{:x}:{}:{size}:{s}.{ns}", metadata.dev(), metadata.ino()))
}

impl Watched {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let first = state(&file)?;
        Ok(Self { file, first, looked_s: AtomicI64::new(now_s()), changed: AtomicBool::new(false) })
    }

    /// Checks once per second. Returns true the first time that the file is found changed.
    pub(crate) fn found_changed(&self) -> bool {
        let now_s = now_s();
        if self.looked_s.load(Relaxed) == now_s || self.looked_s.swap(now_s, Relaxed) == now_s {
            return false;
        }
        self.look()
    }

    /// Checks now. Returns true the first time that the file is found changed.
    pub(crate) fn look(&self) -> bool {
        let changed = !state(&self.file).is_ok_and(|state| state == self.first);
        changed && !self.changed.swap(true, Relaxed)
    }
}

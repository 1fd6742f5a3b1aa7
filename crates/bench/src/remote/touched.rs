//! Which bytes of a packed disk are needed for given reads, without any read ahead.

use std::{
    io,
    ops::Range,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use pagefold_base::{Base, Cache, Options};
use pagefold_disk::BlockDevice;
use pagefold_storage::{ReadAt, Storage, StoredFile};

/// A file that records which ranges are read.
struct Noted {
    file: StoredFile,
    reads: Arc<Mutex<Vec<Range<u64>>>>,
}

impl Noted {
    fn note(&self, at: u64, len: usize) {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).push(at..at + len as u64);
    }
}

impl ReadAt for Noted {
    fn len_bytes(&self) -> io::Result<u64> {
        self.file.len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.note(offset, buf.len());
        self.file.read_exact_at(buf, offset)
    }
}

impl Storage for Noted {
    fn identity(&self) -> &str {
        self.file.identity()
    }
}

/// Returns the bytes of the packed disk that these reads of the disk touch.
pub(super) fn bytes(packed: &Path, reads: &[Range<u64>]) -> anyhow::Result<u64> {
    let noted = Arc::<Mutex<Vec<Range<u64>>>>::default();
    let storage = Arc::new(Noted { file: StoredFile::open(packed)?, reads: Arc::clone(&noted) });
    // Each cluster is read once if the cache holds all.
    let base = Base::of(storage, packed, &Options::default(), &Cache::new(1 << 30), |line| eprintln!("{line}"))?;
    let mut buf = Vec::new();
    for read in reads {
        buf.resize((read.end - read.start) as usize, 0);
        base.read(read.start, &mut buf)?;
    }
    drop(base);
    let all = std::mem::take(&mut *noted.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(union_bytes(all))
}

/// Returns the bytes that are in at least one range.
pub(super) fn union_bytes(mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut bytes, mut at) = (0, 0);
    for range in ranges {
        bytes += range.end.saturating_sub(range.start.max(at));
        at = at.max(range.end);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_ranges_that_overlap_count_once() {
        assert_eq!(union_bytes(vec![5..10, 0..3, 7..12, 8..9, 12..12]), 10);
    }
}

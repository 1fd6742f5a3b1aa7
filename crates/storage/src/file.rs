//! A file, parts of which may be in the system's page cache.

use std::{
    fs::{File, OpenOptions},
    io::{self, IoSliceMut},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
};

use rustix::{
    fs::{FlockOperation, OFlags, SeekFrom, flock, seek},
    io::{Errno, ReadWriteFlags, preadv, preadv2},
    time::{ClockId, clock_gettime},
};

use crate::{ReadAt, Storage, Stretch};

/// The maximum number of adjacent parts that one call reads.
const PARTS_AT_ONCE: usize = 64;

/// A file or a block device. It stays open, so its path may lead to another file.
#[derive(Debug)]
pub struct StoredFile {
    file: File,
    identity: String,
    first: FileState,
    /// The second of the last check for changes.
    looked_s: AtomicI64,
    changed: AtomicBool,
    /// Whether the file system does not support reads that do not wait.
    always_waits: AtomicBool,
}

/// The state that reveals a change.
#[derive(Debug, PartialEq, Eq)]
struct FileState {
    size_bytes: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl FileState {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let (modified_s, modified_ns) = (metadata.mtime(), metadata.mtime_nsec());
        Ok(Self { size_bytes: metadata.size(), modified_s, modified_ns })
    }
}

/// Returns a text that distinguishes a file from all others, and from its own state after a change.
///
/// # Errors
/// The file's metadata cannot be read.
pub fn identity_of(file: &File) -> io::Result<String> {
    let metadata = file.metadata()?;
    let FileState { size_bytes, modified_s, modified_ns } = FileState::of(file)?;
    Ok(format!("{:x}:{}:{size_bytes}:{modified_s}.{modified_ns}", metadata.dev(), metadata.ino()))
}

/// Returns the device and inode numbers in the identity of a storage that consists of files.
pub fn files_of(identity: &str) -> Vec<(u64, u64)> {
    let file = |part: &str| {
        let mut numbers = part.split(':');
        let (device, inode) = (numbers.next()?, numbers.next()?);
        Some((u64::from_str_radix(device, 16).ok()?, inode.parse().ok()?))
    };
    identity.split('+').filter_map(file).collect()
}

/// Returns seconds from a clock that is cheaper than a cache lookup.
fn now_s() -> i64 {
    clock_gettime(ClockId::MonotonicCoarse).tv_sec
}

impl StoredFile {
    /// Opens the file or block device at `path`.
    ///
    /// # Errors
    /// It cannot be opened, or it is neither ([`InvalidInput`](io::ErrorKind::InvalidInput)).
    pub fn open(path: &Path) -> io::Result<Self> {
        // Opening a pipe would wait for its writer.
        let flags = OFlags::NONBLOCK.bits() as i32;
        Self::new(OpenOptions::new().read(true).custom_flags(flags).open(path)?)
    }

    /// Takes an open file or block device.
    ///
    /// # Errors
    /// It is neither ([`InvalidInput`](io::ErrorKind::InvalidInput)), or its metadata cannot be read.
    pub fn new(file: File) -> io::Result<Self> {
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file or a block device"));
        }
        if kind.is_block_device() {
            // Programs that lock devices too do not write to it while it is open.
            let _ = flock(&file, FlockOperation::NonBlockingLockShared);
        }
        Ok(Self {
            identity: identity_of(&file)?,
            first: FileState::of(&file)?,
            looked_s: AtomicI64::new(now_s()),
            changed: AtomicBool::new(false),
            always_waits: AtomicBool::new(false),
            file,
        })
    }

    /// Seeks to data or a hole at or after `at`, and returns its position.
    fn seek(&self, to: SeekFrom, at: u64) -> Result<u64, Errno> {
        // Nothing uses the file's position, so threads may set it concurrently.
        seek(&self.file, to).map(|found| found.max(at))
    }
}

impl ReadAt for StoredFile {
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

    /// Adjacent parts become one call.
    fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        let is_next = |before: &(u64, &mut [u8]), after: &(u64, &mut [u8])| {
            before.0.checked_add(before.1.len() as u64) == Some(after.0)
        };
        for adjacent in parts.chunk_by_mut(is_next).flat_map(|adjacent| adjacent.chunks_mut(PARTS_AT_ONCE)) {
            let len: usize = adjacent.iter().map(|(_, buf)| buf.len()).sum();
            let offset = adjacent.first().map_or(0, |(offset, _)| *offset);
            if let [(offset, buf)] = adjacent {
                self.read_exact_at(buf, *offset)?;
                continue;
            }
            let mut slices: Vec<_> = adjacent.iter_mut().map(|(_, buf)| IoSliceMut::new(buf)).collect();
            if preadv(&self.file, &mut slices, offset).is_ok_and(|filled| filled == len) {
                continue;
            }
            adjacent.iter_mut().try_for_each(|(offset, buf)| self.read_exact_at(buf, *offset))?;
        }
        Ok(())
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

impl StoredFile {
    /// Checks the file, unless that was done in this second already.
    fn is_changed_at(&self, now_s: i64) -> bool {
        if self.looked_s.load(Relaxed) == now_s || self.looked_s.swap(now_s, Relaxed) == now_s {
            return self.changed.load(Relaxed);
        }
        self.is_changed_now()
    }
}

impl Storage for StoredFile {
    fn identity(&self) -> &str {
        &self.identity
    }

    fn is_changed(&self) -> bool {
        self.is_changed_at(now_s())
    }

    fn is_changed_now(&self) -> bool {
        if !FileState::of(&self.file).is_ok_and(|state| state == self.first) {
            self.changed.store(true, Relaxed);
        }
        self.changed.load(Relaxed)
    }

    fn stretch_at(&self, at: u64) -> Stretch {
        match self.seek(SeekFrom::Data(at), at) {
            Ok(start) if start > at => Stretch { end: start, is_hole: true },
            Ok(_) => Stretch { end: self.seek(SeekFrom::Hole(at), at).unwrap_or(u64::MAX), is_hole: false },
            // No data from here on: a hole up to the end, which a truncation may have moved.
            Err(Errno::NXIO) => match seek(&self.file, SeekFrom::End(0)) {
                Ok(end) if end > at => Stretch { end, is_hole: true },
                _ => Stretch { end: u64::MAX, is_hole: false },
            },
            // A device, or a file system that does not report holes.
            Err(_) => Stretch { end: u64::MAX, is_hole: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::FileExt};

    use super::*;

    #[test]
    fn cached_bytes_are_read_without_waiting_for_the_rest() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.img");
        fs::write(&path, [7; 10_000]).expect("a file");
        let stored = StoredFile::open(&path).expect("a file");
        let mut buf = [0; 4096];
        // A file system may lack support, and the page cache may be short of memory.
        let filled = stored.try_read_at(&mut buf, 4096);
        assert!(buf[..filled].iter().all(|&byte| byte == 7));
        assert!(stored.try_read_at(&mut buf, 8192) <= 1808, "never more than the file has");
        assert_eq!(stored.try_read_at(&mut buf, 20_000), 0);
    }

    #[test]
    fn parts_are_read_wherever_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.img");
        let content: Vec<u8> = (0..100_000u32).map(|at| (at / 7) as u8).collect();
        fs::write(&path, &content).expect("a file");
        let stored = StoredFile::open(&path).expect("a file");
        // Adjacent, apart, backwards, empty, and more adjacent ones than a call takes.
        let mut ranges = vec![(10, 20), (30, 5000), (5030, 1), (6000, 10), (100, 10), (110, 0), (110, 4)];
        ranges.extend((0..200).map(|number| (20_000 + number * 300, 300)));
        let mut bufs: Vec<Vec<u8>> = ranges.iter().map(|&(_, len)| vec![0; len]).collect();
        let mut parts: Vec<_> = ranges.iter().zip(&mut bufs).map(|(&(at, _), buf)| (at as u64, &mut buf[..])).collect();
        stored.read_all_at(&mut parts).expect("bytes");
        for (&(at, len), buf) in ranges.iter().zip(&bufs) {
            assert!(buf[..] == content[at..at + len], "{len} bytes at {at}");
        }
        let (mut one, mut two) = ([0; 10], [0; 10]);
        let error = stored.read_all_at(&mut [(99_985, &mut one), (99_995, &mut two)]).expect_err("too few bytes");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn stretches_cover_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.img");
        let file = File::create(&path).expect("a file");
        file.set_len(3 << 20).expect("a size");
        file.write_all_at(&[1; 4096], 1 << 20).expect("data");
        let stored = StoredFile::open(&path).expect("a file");
        let (mut at, mut data_bytes) = (0, 0);
        while at < 3 << 20 {
            let Stretch { end, is_hole } = stored.stretch_at(at);
            assert!(end > at, "{at}");
            assert!(!is_hole || !(at..end).contains(&(1 << 20)));
            data_bytes += if is_hole { 0 } else { end.min(3 << 20) - at };
            at = end.min(3 << 20);
        }
        assert!(data_bytes >= 4096);
        // A part that was cut off is not a hole.
        file.set_len(1 << 20).expect("a size");
        assert!(!stored.stretch_at(2 << 20).is_hole);
    }

    #[test]
    fn a_change_is_seen_and_stays_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.img");
        fs::write(&path, [7; 1000]).expect("a file");
        let stored = StoredFile::open(&path).expect("a file");
        assert!(!stored.is_changed() && !stored.is_changed_now());
        assert_eq!(stored.identity(), identity_of(&File::open(&path).expect("a file")).expect("a state"));
        let metadata = std::fs::metadata(&path).expect("a file");
        let both = format!("{}+sha256:00+{}", stored.identity(), stored.identity());
        assert_eq!(files_of(&both), [(metadata.dev(), metadata.ino()); 2]);
        let file = File::options().write(true).open(&path).expect("a file");
        file.set_len(500).expect("a size");
        assert!(stored.is_changed_now() && stored.is_changed());
        assert_ne!(stored.identity(), identity_of(&file).expect("a state"));
    }

    #[test]
    fn a_file_is_examined_once_a_second() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.img");
        fs::write(&path, [7; 1000]).expect("a file");
        let stored = StoredFile::open(&path).expect("a file");
        assert!(!stored.is_changed_at(1));
        File::options().write(true).open(&path).expect("a file").set_len(500).expect("a size");
        assert_eq!([1, 1, 2, 2, 3].map(|now_s| stored.is_changed_at(now_s)), [false, false, true, true, true]);
    }

    #[test]
    fn only_files_and_block_devices_are_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        for path in [folder.path(), "/dev/null".as_ref()] {
            let error = StoredFile::open(path).expect_err("neither");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        }
        let error = StoredFile::open(&folder.path().join("none")).expect_err("no file");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

//! Reads files without their holes.

use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Holes are not looked for in shorter reads, where that does not pay off.
const LEAST_BYTES: usize = 64 << 10;

/// After this many holes in one read, the rest is read without looking for holes.
const MOST_HOLES: usize = 4096;

/// The result of reading a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadContent {
    /// Bytes, in the buffer.
    Bytes,
    /// Only zeros. The buffer's contents are unspecified.
    Zeros,
}

/// Reads `len` bytes at `offset` into `bytes`, whose previous contents are ignored. Skips holes.
/// Moves the file position.
///
/// If others modify the file during a read, each byte has a value that it had at some time during the
/// call. A file that ends early returns `UnexpectedEof`.
pub(crate) fn read(file: &File, offset: u64, len: usize, bytes: &mut Vec<u8>) -> io::Result<ReadContent> {
    let end = offset.checked_add(len as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut next = if len < LEAST_BYTES { offset } else { data_from(file, offset).min(end) };
    if next == end && len > 0 {
        return check_len(file, end).map(|()| ReadContent::Zeros);
    }
    bytes.resize(len, 0);
    let mut at = offset;
    let mut holes = 0;
    let range = |from: u64, to: u64| (from - offset) as usize..(to - offset) as usize;
    while at < end {
        bytes[range(at, next)].fill(0);
        let stop = if len < LEAST_BYTES || holes == MOST_HOLES { end } else { hole_from(file, next).min(end) };
        file.read_exact_at(&mut bytes[range(next, stop)], next)?;
        at = stop;
        if at < end {
            holes += 1;
            next = data_from(file, at).min(end);
        }
    }
    if holes > 0 {
        check_len(file, end)?;
    }
    Ok(ReadContent::Bytes)
}

/// Calls `each` with the ranges of data within a range, in order, until it breaks. Moves the file
/// position. A file that ends within the range returns `UnexpectedEof`.
pub(crate) fn each_data(
    file: &File,
    range: Range<u64>,
    each: &mut dyn FnMut(Range<u64>) -> io::Result<ControlFlow<()>>,
) -> io::Result<ControlFlow<()>> {
    let (mut at, mut holes) = (range.start, false);
    while at < range.end {
        let data = data_from(file, at).min(range.end);
        holes |= data > at;
        if data < range.end {
            at = hole_from(file, data).min(range.end);
            if each(data..at)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        } else {
            at = data;
        }
    }
    if holes {
        check_len(file, range.end)?;
    }
    Ok(ControlFlow::Continue(()))
}

/// Returns the start of the first data at or after `at`. If the file system does not report holes,
/// everything is data.
fn data_from(file: &File, at: u64) -> u64 {
    match seek(file, SeekFrom::Data(at)) {
        Ok(data) => data.max(at),
        Err(Errno::NXIO) => u64::MAX,
        Err(_) => at,
    }
}

/// Returns the start of the first hole after `at`, which is in data.
fn hole_from(file: &File, at: u64) -> u64 {
    seek(file, SeekFrom::Hole(at)).ok().filter(|hole| *hole > at).unwrap_or(u64::MAX)
}

/// Checks that the file has at least `end` bytes: past its end, there is no hole.
fn check_len(file: &File, end: u64) -> io::Result<()> {
    if file.metadata()?.len() < end { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_holes_reads_as_its_content() {
        let file = tempfile::tempfile().unwrap();
        let len = 1 << 20;
        file.set_len(len).unwrap();
        let mut expected = vec![0; len as usize];
        for (at, byte) in [(0, 1), (70_000, 2), (300_000, 3), (300_001, 4), (len - 5000, 5)] {
            file.write_all_at(&[byte; 3000], at).unwrap();
            expected[at as usize..][..3000].fill(byte);
        }
        let mut bytes = Vec::new();
        for (offset, len) in [(0, len), (100, 1000), (0, 66_000), (4096, 80_000), (290_000, 100_000), (0, 0)] {
            bytes.fill(9);
            let found = read(&file, offset, len as usize, &mut bytes).unwrap();
            assert_eq!(found, ReadContent::Bytes, "{offset} {len}");
            assert!(bytes == expected[offset as usize..][..len as usize], "{offset} {len}");
        }
        assert_eq!(read(&file, 400_000, 200_000, &mut bytes).unwrap(), ReadContent::Zeros);
    }

    #[test]
    fn there_is_no_hole_past_the_end() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(200_000).unwrap();
        let fails = |offset, len| read(&file, offset, len, &mut Vec::new()).unwrap_err().kind();
        for (offset, len) in [(0, 200_001), (300_000, 100_000), (199_999, 2), (u64::MAX, 1)] {
            assert_eq!(fails(offset, len), io::ErrorKind::UnexpectedEof, "{offset} {len}");
        }
        file.write_all_at(b"data", 100_000).unwrap();
        assert_eq!(fails(50_000, 200_000), io::ErrorKind::UnexpectedEof);
    }
}

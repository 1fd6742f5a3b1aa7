//! A block device that an output is copied to.
//!
//! ```text
//! 1. the size is checked
//! 2. the front, where magic numbers are, is overwritten with zeros, its first block first
//! 3. everything behind the front is written
//! 4. the front is written, its first block last
//! ```
//!
//! Each step is flushed before the next. After any failure, including a power failure, the
//! device holds the whole output, its earlier content, or something that cannot be mistaken for either.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Seek, SeekFrom},
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FallocateFlags, OFlags, SeekFrom as SeekData, fallocate, major, minor, seek},
    io::Errno,
};

use crate::{
    Result, Written,
    error::{During, ensure},
    lock::lock,
};

/// Length of the front. The magic numbers of all common file systems and partition tables are in
/// it; the last is btrfs's, at 64 KiB.
const FRONT_BYTES: u64 = 128 << 10;

/// The part that is written last. It holds the superblock or the header.
const FIRST_BYTES: u64 = 4096;

/// Bytes per write.
const PART_BYTES: u64 = 1 << 20;

/// A block device that is open for writing.
#[derive(Debug)]
pub struct Device {
    file: File,
    path: PathBuf,
    size_bytes: u64,
}

impl Device {
    /// Opens the device at `path`, unless it is in use.
    ///
    /// # Errors
    /// It is mounted or otherwise in use, cannot be opened, is read-only, or may not be overwritten.
    pub(crate) fn open(path: &Path, written: Written, force: bool) -> Result<Self> {
        let shown = || path.display().to_string();
        let flags = OFlags::EXCL.bits().cast_signed();
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        // Servers lock the devices that they serve. The system's device manager locks one for a moment when it
        // has changed.
        let locked = opened.and_then(|file| lock(&file).map(|()| file));
        let mut file = locked
            .map_err(|error| match error.kind() {
                ErrorKind::ResourceBusy => io::Error::new(error.kind(), "it is mounted or otherwise in use"),
                _ => error,
            })
            .during(shown)?;
        ensure!(
            !is_read_only(file.metadata().during(shown)?.rdev()),
            "{} is a read-only device: nothing was written",
            path.display()
        );
        let size_bytes = file.seek(SeekFrom::End(0)).during(shown)?;
        if !force {
            written.check_overwritten(path, &file, size_bytes)?;
        }
        Ok(Self { file, path: path.to_owned(), size_bytes })
    }

    /// Checks that the device has room for an output.
    pub(crate) fn check_room(&self, len_bytes: u64) -> Result<()> {
        let mut sizes = [self.size_bytes, len_bytes].map(pagefold_size::show);
        if sizes[0] == sizes[1] {
            sizes = [self.size_bytes, len_bytes].map(|bytes| format!("{bytes} bytes"));
        }
        let [has, needs] = sizes;
        ensure!(
            len_bytes <= self.size_bytes,
            "{} has {has}, and the output needs {needs}: nothing was written",
            self.path.display()
        );
        Ok(())
    }

    /// Copies the output to the device.
    ///
    /// # Errors
    /// The output is too large, and the device is unchanged; or writing failed, and the device has
    /// no valid content.
    pub(crate) fn put(&self, output: &File) -> Result<()> {
        let shown = || self.path.display().to_string();
        let len_bytes = output.metadata().during(shown)?.len();
        self.check_room(len_bytes)?;
        put(output, len_bytes, self.size_bytes, &self.file)
            .during(|| format!("writing {}: it has no valid content now", shown()))
    }
}

/// Returns whether a block device is read-only: it may be opened for writing all the same.
fn is_read_only(device: u64) -> bool {
    let flag = format!("/sys/dev/block/{}:{}/ro", major(device), minor(device));
    fs::read_to_string(flag).is_ok_and(|flag| flag.trim() == "1")
}

/// The target to which an output is copied.
trait Target {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Overwrites a range with zeros.
    fn write_zeros(&self, at: u64, len_bytes: u64) -> io::Result<()>;

    /// Makes all earlier writes durable before any later one.
    fn flush(&self) -> io::Result<()>;
}

impl Target for File {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn write_zeros(&self, at: u64, len_bytes: u64) -> io::Result<()> {
        if len_bytes > PART_BYTES
            && fallocate(self, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, at, len_bytes).is_ok()
        {
            return Ok(());
        }
        let zeros = vec![0; len_bytes.min(PART_BYTES) as usize];
        let end = at + len_bytes;
        (at..end).step_by(PART_BYTES as usize).try_for_each(|at| {
            let len_bytes = (end - at).min(PART_BYTES) as usize;
            self.write_all_at(&zeros[..len_bytes], at)
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Copies `output`, which has `len_bytes`, to a target of `size_bytes`.
fn put(output: &File, len_bytes: u64, size_bytes: u64, target: &impl Target) -> io::Result<()> {
    let (first_bytes, front_bytes) = (FIRST_BYTES.min(size_bytes), FRONT_BYTES.min(size_bytes));
    target.write_zeros(0, first_bytes)?;
    target.flush()?;
    target.write_zeros(first_bytes, front_bytes - first_bytes)?;
    target.flush()?;
    let (first_bytes, front_bytes) = (first_bytes.min(len_bytes), front_bytes.min(len_bytes));
    for range in [front_bytes..len_bytes, first_bytes..front_bytes, 0..first_bytes] {
        copy(output, range, target)?;
        target.flush()?;
    }
    Ok(())
}

/// Copies a range of `output`, whose holes become zeros.
fn copy(output: &File, range: Range<u64>, target: &impl Target) -> io::Result<()> {
    let mut bytes = vec![0; PART_BYTES.min(range.end - range.start) as usize];
    let mut at = range.start;
    while at < range.end {
        let data = match seek(output, SeekData::Data(at)) {
            Ok(data) => data.clamp(at, range.end),
            Err(Errno::NXIO) => range.end,
            Err(_) => at,
        };
        if data > at {
            target.write_zeros(at, data - at)?;
            at = data;
            continue;
        }
        let part = &mut bytes[..PART_BYTES.min(range.end - at) as usize];
        output.read_exact_at(part, at)?;
        target.write(part, at)?;
        at += part.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! Files in memory, which outlive the process in a store of descriptors. Their mode says whether a
//! process has continued with their content.

use std::{fs::File, io, os::fd::AsFd};

use rustix::{
    fs::{MemfdFlags, Mode, fchmod, fstat, memfd_create},
    io::Errno,
};

/// The modes of a free file and of a taken one.
const FREE: Mode = Mode::from_raw_mode(0o600);
const TAKEN: Mode = Mode::empty();

/// Creates a file in memory.
pub(crate) fn memory_file(name: &str) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3.
        Err(Errno::INVAL) => memfd_create(name, flags),
        result => result,
    };
    let file = File::from(made?);
    mark_free(&file)?;
    Ok(file)
}

/// Marks the file as taken: no other process continues with it.
pub(crate) fn mark_taken(file: impl AsFd) -> io::Result<()> {
    Ok(fchmod(file, TAKEN)?)
}

/// Marks the file as free: another process may continue with it.
pub(crate) fn mark_free(file: impl AsFd) -> io::Result<()> {
    Ok(fchmod(file, FREE)?)
}

/// Returns whether a process may continue with it.
pub(crate) fn is_free(file: impl AsFd) -> bool {
    fstat(file).is_ok_and(|found| Mode::from_raw_mode(found.st_mode) & Mode::RWXU != TAKEN)
}

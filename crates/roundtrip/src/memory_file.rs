//! Files in memory.

use std::{fs::File, io, os::unix::fs::FileExt};

use pagefold_erofs::Error;
use rustix::fs::MemfdFlags;

/// Creates an anonymous file in memory.
///
/// # Errors
/// The system's error.
pub fn memory_file() -> Result<File, Error> {
    let failed = |error: rustix::io::Errno| Error::Io { what: "a file in memory".to_owned(), source: error.into() };
    rustix::fs::memfd_create("image", MemfdFlags::CLOEXEC).map(File::from).map_err(failed)
}

pub(crate) fn read_all(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

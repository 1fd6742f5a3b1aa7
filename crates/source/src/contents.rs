//! Determines what a file contains, from its content and its name.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagefold_base::{Kind, Signature, is_named_raw};

use crate::error::{Result, Within, refuse};

/// How the content of a file is read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    Archive,
    /// A disk, or a file that is refused as a disk.
    Disk,
    /// Compressed data of this format.
    Compressed(&'static Signature),
}

impl Contents {
    /// Judges a file by its content and its name. A guest chooses the content of its raw disk, so a
    /// file named like a disk is never read as anything else.
    pub(crate) fn of(path: &Path, content: Option<&'static Signature>, is_device: bool) -> Result<Self> {
        let name = Signature::of_name(path);
        let (contents, content) = match content.map(|content| (content.kind(), content)) {
            Some((Kind::Tar, content)) => (Self::Archive, content),
            Some((Kind::Compressed(_), content)) => (Self::Compressed(content), content),
            // The archive may be empty or damaged.
            None if name.is_some_and(|name| name.kind() == Kind::Tar) => return Ok(Self::Archive),
            _ => return Ok(Self::Disk),
        };
        let claim = match name {
            None if is_device => Some("it is a block device"),
            None if is_named_raw(path) => Some("its name is that of a raw disk"),
            Some(name) if matches!(name.kind(), Kind::Base(_) | Kind::OtherDisk(_) | Kind::Foreign) => {
                Some("its name is that of another format")
            }
            _ => None,
        };
        match claim {
            None => Ok(contents),
            Some(claim) => refuse!(
                "it contains {}, but {claim}: to pack its bytes as a disk, give --format raw; otherwise, rename it",
                content.name()
            ),
        }
    }
}

/// Returns a path without what a compressor added to it.
pub(crate) fn without_compression(path: &Path) -> PathBuf {
    let is_added = Signature::of_name(path).is_some_and(|name| matches!(name.kind(), Kind::Compressed(_)));
    // For example, `.tgz`.
    let is_tar = path.extension().is_some_and(|end| matches!(end.as_bytes(), [b't' | b'T', ..]));
    match is_added {
        true if is_tar => path.with_extension("tar"),
        true => path.with_extension(""),
        false => path.to_owned(),
    }
}

/// Refuses a file that is not a raw disk, for programs that read nothing else.
///
/// # Errors
/// The file is something else, or cannot be read.
pub fn expect_raw(path: &Path, file: &File) -> Result<()> {
    let found = Signature::of(file, 0).within(|| path.display().to_string())?;
    match found {
        Some(found) if found.kind() == Kind::Tar => {
            refuse!("{} is an archive: extract it and give the directory", path.display())
        }
        Some(found) if found.kind() != Kind::Disk => {
            refuse!("{} is {}: {}", path.display(), found.name(), found.advice(path))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_of_a_compressor_is_removed() {
        for (name, inner) in [
            ("d/disk.img.gz", "d/disk.img"),
            ("disk.qcow2.XZ", "disk.qcow2"),
            ("a.tgz", "a.tar"),
            ("a.TZST", "a.tar"),
            ("a.tar.bz2", "a.tar"),
            ("blob", "blob"),
            (".gz", ".gz"),
            ("a.txt", "a.txt"),
            ("a.zip", "a.zip"),
        ] {
            assert_eq!(without_compression(Path::new(name)), Path::new(inner), "{name}");
        }
    }
}

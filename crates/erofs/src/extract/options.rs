//! Options for extracting an image.

use std::collections::BTreeSet;

/// What happens to names that exist in the target.
///
/// With [`Keep`](Self::Keep) and [`Overwrite`](Self::Overwrite), the contents of an existing
/// directory are merged, and it gets the metadata that the image has for it. A symbolic link is
/// never followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// The name is a problem, and nothing below it is extracted.
    #[default]
    Refuse,
    /// The file is not touched. Differences from the image in kind, size or time are counted.
    Keep,
    /// A complete new file takes the place of the file, whose other names and open descriptors keep
    /// the old one. A file that cannot be extracted leaves the old one in place. A directory is
    /// never replaced by another kind of file.
    Overwrite,
}

/// Options for extracting an image.
#[derive(Clone, Debug)]
pub struct ExtractOptions {
    /// Number of threads, at most 1024; 0 for one per processor.
    pub threads: usize,
    /// Sets owners and creates device files, which are left out otherwise. Needs root.
    pub owners: bool,
    /// Sets modes as in the image. Otherwise, no program gains extra privileges, and modes are
    /// those of new files: set-id and sticky bits and the bits in the process's umask are cleared,
    /// and `security.capability` is not set.
    pub permissions: bool,
    /// Sets extended attributes. Those that need a privilege that the process lacks are left out.
    pub xattrs: bool,
    /// What happens to names that exist.
    pub existing: Existing,
    /// Files that are never replaced, whatever their names, by device and inode number: those from
    /// which the image is read.
    pub inputs: BTreeSet<(u64, u64)>,
    /// The maximum number of bytes of content to extract, against images made to fill disks.
    pub max_bytes: Option<u64>,
    /// The maximum number of names to extract: files, directories and hard links.
    pub max_files: Option<u64>,
}

impl Default for ExtractOptions {
    fn default() -> Self {
        Self {
            threads: 0,
            owners: rustix::process::geteuid().is_root(),
            permissions: true,
            xattrs: true,
            existing: Existing::Refuse,
            inputs: BTreeSet::new(),
            max_bytes: None,
            max_files: None,
        }
    }
}

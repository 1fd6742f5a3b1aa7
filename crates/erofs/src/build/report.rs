//! Reports of a build.

/// The result of a build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildReport {
    /// The size of the image in bytes.
    pub image_bytes: u64,
    /// The number of inodes, including the packed one.
    pub inodes: u64,
    /// Bytes of regular files.
    pub file_bytes: u64,
    /// The size in bytes of the blocks with file data.
    pub data_bytes: u64,
    /// Bytes of all inodes but the root, with what is stored behind them and the gaps between them.
    pub inode_bytes: u64,
    /// The number of blocks that were not stored because an equal one exists.
    pub shared_blocks: u64,
    /// The number of files with encoded extents. If there is one, Linux mounts the image from
    /// version 6.15 on.
    pub files_with_extents: u64,
    /// Whether zeros of long files share clusters, although the options share none. Then Linux mounts
    /// the image from version 6.1 on.
    pub shares_zeros: bool,
}

/// The progress of a build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of files stored so far.
    pub done_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
}

//! What a build says of itself.

/// What was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildReport {
    /// Bytes of the image.
    pub image_bytes: u64,
    /// Inodes, the packed one included.
    pub inodes: u64,
    /// Bytes of regular files.
    pub file_bytes: u64,
    /// Bytes of the blocks that hold files' data.
    pub data_bytes: u64,
    /// Blocks that were not stored since an equal one was.
    pub shared_blocks: u64,
}

/// How far a build is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of files that were stored.
    pub done_bytes: u64,
    /// And that are to be.
    pub total_bytes: u64,
}

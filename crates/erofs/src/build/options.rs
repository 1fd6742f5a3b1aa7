//! Options for building an image.

use pagefold_codec::cluster::ClusterCodec;

use crate::work::thread_count;

/// How the clusters of compressed files are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Indexes {
    /// Like [`Compact`](Self::Compact), but files of 1 GiB or more of which at most a sixteenth is not
    /// zeros have encoded extents, and the zeros of other files of this length share clusters.
    Auto,
    /// 2 or 4 bytes per block if a file's clusters are in order; otherwise full.
    Compact,
    /// 8 bytes per block.
    Full,
    /// Encoded extents: 16 bytes per cluster and per hole, or 32 in files above 4 GiB. Runs of 64
    /// blocks of zeros or more are holes. Files are read twice. Linux 6.15 reads them.
    Extents,
}

/// The content of the packed inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fragments {
    /// Nothing.
    Off,
    /// The end of each file that does not fill a cluster.
    Tails,
    /// All files.
    All,
}

/// The compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// The codec.
    pub codec: ClusterCodec,
    /// The longest physical cluster in bytes: a multiple of the block size, at most 1 MiB.
    pub pcluster_bytes: u32,
}

/// Different compression for some files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The files, with a pattern as in [`ScanOptions::excludes`](crate::ScanOptions::excludes).
    pub pattern: Vec<u8>,
    /// Their compression; `None` for uncompressed.
    pub compression: Option<Compression>,
}

/// Options for building an image.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The block size in bytes: a power of two from 512 to 65536. Linux mounts block sizes up to
    /// its page size.
    pub block_bytes: u32,
    /// The codec for files; `None` for uncompressed.
    pub codec: Option<ClusterCodec>,
    /// The longest physical cluster in bytes: a multiple of the block size, at most 1 MiB.
    pub pcluster_bytes: u32,
    /// Files with different compression. The first matching hint applies.
    pub hints: Vec<Hint>,
    /// How clusters are found.
    pub indexes: Indexes,
    /// Stores a compressed file's last cluster after its inode if it fits. With `fragments`, tails
    /// that do not fit become fragments.
    pub ztailpacking: bool,
    /// Stores tails of files, or whole files, together.
    pub fragments: Fragments,
    /// Stores equal clusters once and aligns extents with repeated content. Files are then read
    /// twice.
    pub dedupe: bool,
    /// Stores each uncompressed file in chunks of this size in bytes, equal chunks once: a power of
    /// two from the block size to 16 MiB.
    pub chunk_bytes: Option<u32>,
    /// Prefixes of xattr names, such as `trusted.overlay.`, that are stored once. Unused ones are
    /// left out. At most 128.
    pub xattr_prefixes: Vec<Vec<u8>>,
    /// Unchanged clusters of an [`Overlay`](crate::Overlay)'s base are not copied. The image that
    /// contains them becomes device 1 of the new image, with its UUID as the tag. Devices of the base
    /// follow, with their tags.
    pub base_is_device: bool,
    /// The SHA-256 sum of the blob that begins with that image. If set, it is the tag, as in
    /// erofs-image-spec.
    pub base_sha256: Option<[u8; 32]>,
    /// Number of compression threads, at most 1024; 0 for one per processor. Does not affect the
    /// image.
    pub threads: usize,
    /// The volume's UUID; `None` derives it from the image.
    pub uuid: Option<[u8; 16]>,
    /// The volume's name, padded with zeros.
    pub volume_name: [u8; 16],
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            block_bytes: 4096,
            codec: Some(ClusterCodec::Lz4),
            pcluster_bytes: 4096,
            hints: Vec::new(),
            indexes: Indexes::Auto,
            ztailpacking: false,
            fragments: Fragments::Off,
            dedupe: false,
            chunk_bytes: None,
            xattr_prefixes: Vec::new(),
            base_is_device: false,
            base_sha256: None,
            threads: 0,
            uuid: None,
            volume_name: [0; 16],
        }
    }
}

impl BuildOptions {
    pub(crate) fn block_bits(&self) -> u32 {
        self.block_bytes.trailing_zeros()
    }

    /// Returns the number of threads that a build uses: one per processor if 0 is set.
    pub fn thread_count(&self) -> usize {
        thread_count(self.threads)
    }
}

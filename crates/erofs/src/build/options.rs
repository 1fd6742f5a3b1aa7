//! How an image is built.

use pagefold_codec::cluster::ClusterCodec;

use crate::work::thread_count;

/// The size of a compressed file's indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Indexes {
    /// 2 and 4 bytes a block, where a file's clusters are in order; else full.
    Compact,
    /// 8 bytes a block.
    Full,
}

/// What is put into the packed inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fragments {
    /// Nothing.
    Off,
    /// The end of each file that does not fill a cluster.
    Tails,
    /// Every file whole.
    All,
}

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// By what.
    pub codec: ClusterCodec,
    /// The longest physical cluster, in bytes: a multiple of the block, at most 1 MiB.
    pub pcluster_bytes: u32,
}

/// Files that are compressed in another way than the image's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Which: as in [`ScanOptions::excludes`](crate::ScanOptions::excludes).
    pub pattern: Vec<u8>,
    /// How; `None` for not.
    pub compression: Option<Compression>,
}

/// How an image is built.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The block, in bytes: a power of two from 512 to 65536. Linux mounts blocks up to its page.
    pub block_bytes: u32,
    /// How files are compressed; `None` for not.
    pub codec: Option<ClusterCodec>,
    /// The longest physical cluster, in bytes: a multiple of the block, at most 1 MiB.
    pub pcluster_bytes: u32,
    /// Files that are compressed in another way: the first hint for a file counts.
    pub hints: Vec<Hint>,
    /// The size of indexes.
    pub indexes: Indexes,
    /// Put a compressed file's last cluster behind its inode where it fits. With `fragments`, ends
    /// that do not fit go there.
    pub ztailpacking: bool,
    /// Put ends of files, or files, together.
    pub fragments: Fragments,
    /// Store clusters that are equal once, and make them begin where content begins that lies
    /// elsewhere too. Files are then read twice.
    pub dedupe: bool,
    /// Store each file that is not compressed in chunks of so many bytes, equal ones once: a power
    /// of two from the block to 16 MiB.
    pub chunk_bytes: Option<u32>,
    /// Prefixes of xattr names, such as `trusted.overlay.`, that are stored once; those that no
    /// name has are left out. At most 128.
    pub xattr_prefixes: Vec<Vec<u8>>,
    /// Threads that compress, at most 1024; 0 for one a processor. No effect on the image.
    pub threads: usize,
    /// The volume's identity; `None` derives it from the image.
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
            indexes: Indexes::Compact,
            ztailpacking: false,
            fragments: Fragments::Off,
            dedupe: false,
            chunk_bytes: None,
            xattr_prefixes: Vec::new(),
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

    /// The threads that a build takes: one for each processor if none are asked for.
    pub fn thread_count(&self) -> usize {
        thread_count(self.threads)
    }
}

//! Building an image.
//!
//! ```text
//! 1. scan        a directory or an archive becomes a tree of nodes, names sorted
//! 2. repeats     only to share clusters: files are read to find what content lies in several places
//! 3. data        files in the tree's order are cut into segments at fixed offsets; threads compress segments, one
//!                writer takes the results in order: packs tails, shares equal clusters, appends blocks
//! 4. metadata    inodes with their xattrs, indexes and inline tails are placed behind the data, first where they fit
//!                best; then directories are written, since only now every inode has its number
//! 5. superblock  last, so that an image that was not finished is none
//! ```
//!
//! The same tree and options give the same bytes: nothing above depends on time, on the number of
//! threads, on the order in which a directory lists its names, or on hash seeds. A segment's
//! clusters depend on its bytes and the options alone, and the writer alone decides addresses.

mod acl;
mod blocks;
mod choices;
mod chunks;
mod copies;
mod data;
mod directory;
mod holes;
mod ids;
mod indexes;
mod layer;
mod metadata;
mod overlay;
mod pipeline;
mod place;
mod placer;
mod plan;
mod prefixes;
mod reach;
mod repeats;
mod scan;
mod segment;
mod spare;
mod sparse;
mod spool;
mod tar;
mod tree;
mod warnings;
mod zero_clusters;

pub(crate) use self::holes::Found;
use std::fs::File as OsFile;

use pagefold_codec::cluster::ClusterCodec;

use self::chunks::Chunking;
pub use ids::{IdMap, IdRange};
pub use layer::{Layer, Whiteouts};
pub use overlay::{Change, Overlay};
pub use place::SourcePath;
pub use scan::ScanOptions;
pub use sparse::Span;
pub use tar::MemberContent;
pub use tree::{Content, Node, NodeId, NodeKind, Tree};
pub use warnings::{Warning, WarningKind};

use crate::error::{Error, Result};
use crate::format::MAX_PCLUSTER_BYTES;
use crate::read::File;
use crate::work::thread_count;

/// The size of a compressed file's indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexes {
    /// 2 and 4 bytes a block, where a file's clusters are in order; else full.
    Compact,
    /// 8 bytes a block.
    Full,
}

/// What is put into the packed inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Which: as in [`ScanOptions::excludes`].
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

/// What was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

impl BuildOptions {
    /// Options for an image like the one that has `file`: its block, its codec at the usual level,
    /// its longest cluster. Clusters of the file can then be copied, see [`Overlay`].
    ///
    /// # Errors
    /// [`Error::Corrupt`]: the image does not say where the file's content lies.
    pub fn like(file: &File) -> Result<Self> {
        copies::options_like(file)
    }

    /// Whether images can be built in this way; [`build()`] asks that first.
    ///
    /// # Errors
    /// [`Error::Options`], which says what cannot be.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str| Err(Error::Options(what.to_owned()));
        let pattern = |hint: &Hint| format!("the hint for '{}': ", String::from_utf8_lossy(&hint.pattern));
        if !self.block_bytes.is_power_of_two() || !(512..=65536).contains(&self.block_bytes) {
            return refuse("the block must be a power of two from 512 to 65536");
        }
        prefixes::check(&self.xattr_prefixes)?;
        if let Some(chunking) = self.chunking() {
            chunking.check()?;
            if self.codec.is_some() && self.hints.iter().all(|hint| hint.compression.is_some()) {
                return refuse(
                    "chunks are for files that are not compressed: give no codec, or some files a hint of none",
                );
            }
        }
        // Before the work, and also if no file has the hint.
        let hinted = self.hints.iter().filter_map(|hint| Some((pattern(hint), hint.compression?)));
        let hinted = hinted.map(|(who, Compression { codec, pcluster_bytes })| (who, Some(codec), pcluster_bytes));
        for (who, codec, pcluster_bytes) in hinted.chain([(String::new(), self.codec, self.pcluster_bytes)]) {
            let blocks = pcluster_bytes / self.block_bytes;
            if !pcluster_bytes.is_multiple_of(self.block_bytes) || blocks == 0 {
                return refuse(&format!("{who}the cluster must be a multiple of the block"));
            }
            if u64::from(pcluster_bytes) > MAX_PCLUSTER_BYTES || blocks > 2047 {
                return refuse(&format!("{who}the cluster must be at most 1 MiB and 2047 blocks"));
            }
            if let Some(Err(error)) = codec.map(|codec| codec.encoder()) {
                return refuse(&format!("{who}{error}"));
            }
        }
        if self.codec.is_none() && (self.ztailpacking || self.dedupe || self.fragments != Fragments::Off) {
            return refuse("packing tails, fragments and sharing clusters need a codec");
        }
        Ok(())
    }

    fn chunking(&self) -> Option<Chunking> {
        self.chunk_bytes.map(|chunk_bytes| Chunking::new(chunk_bytes, self.block_bytes))
    }

    pub(crate) fn block_bits(&self) -> u32 {
        self.block_bytes.trailing_zeros()
    }

    /// The threads that a build takes: one for each processor if none are asked for.
    pub fn thread_count(&self) -> usize {
        thread_count(self.threads)
    }
}

/// How far a build is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of files that were stored.
    pub done_bytes: u64,
    /// And that are to be.
    pub total_bytes: u64,
}

/// Builds an image of `tree` in `out`, a regular file open for reading and writing, which is cut to
/// the image's length.
///
/// Memory: the tree, 2 to 8 bytes a block of compressed files, with `dedupe` 70 bytes for each 10
/// KiB of them, 60 to 120 bytes for each different chunk, 16 MiB of input a thread, and what at
/// most `2 * threads + 2` pieces of 16 MiB are compressed to.
///
/// # Errors
/// [`Error::Options`] before anything is read or written; [`Error::Source`] for a file that cannot be put into an image;
/// [`Error::Io`] where a file cannot be read or `out` not be written. After an error `out` holds no superblock, so that
/// nothing takes it for an image.
pub fn build(tree: &Tree, options: &BuildOptions, out: &OsFile) -> Result<BuildReport> {
    build_watched(tree, options, out, &mut |_| {})
}

/// [`build`], which tells `watch` how far it is whenever a few files, or 16 MiB of one, were stored.
pub fn build_watched(
    tree: &Tree,
    options: &BuildOptions,
    out: &OsFile,
    watch: &mut dyn FnMut(Progress),
) -> Result<BuildReport> {
    options.check()?;
    let emptying = Error::io("emptying the image");
    // ext4 has all of a file that was cut to nothing on its way to the disk before the file is
    // closed.
    if out.metadata().map_or(true, |metadata| metadata.len() > 0) {
        out.set_len(0).map_err(emptying)?;
    }
    let plan = metadata::Plan::new(tree, options)?;
    let data = data::write(tree, options, &plan, out, watch)?;
    metadata::write(tree, options, plan, data, out)
}

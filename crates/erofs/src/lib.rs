//! Builds and reads EROFS images in user space, without unsafe code.
//!
//! ```
//! use std::fs::File;
//!
//! use pagefold_erofs::{BuildOptions, ClusterCodec, Image, ScanOptions, Tree, build};
//!
//! # let folder = tempfile::tempdir()?;
//! # let (rootfs, path) = (folder.path().join("rootfs"), folder.path().join("rootfs.erofs"));
//! # std::fs::create_dir(&rootfs)?;
//! # std::fs::write(rootfs.join("hello"), "hello, image")?;
//! // A directory becomes an image that Linux mounts.
//! let tree = Tree::scan(&rootfs, &ScanOptions::default())?;
//! let options =
//!     BuildOptions { codec: Some(ClusterCodec::Lz4Hc(9)), pcluster_bytes: 64 << 10, ..BuildOptions::default() };
//! build(&tree, &options, &File::create_new(&path)?)?;
//!
//! // It is read without a mount, by any number of threads. Nothing in it is trusted.
//! let image = Image::open_path(&path)?;
//! let hello = image.file(&image.resolve(b"/hello")?)?;
//! let mut content = [0; 100];
//! let len = hello.read_at(&mut content, 7)?;
//! assert_eq!(&content[..len], b"image");
//! assert!(image.check(2).problems.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Tree`] may also come from a tar archive or be assembled by hand. An [`Image`] may be read
//! from a file, from memory or from any other source with random access ([`ReadAt`]).
//! `docs/erofs.md` lists what is supported.
//!
//! # Folders
//!
//! Modules depend in one direction: `extract` on `read`, `read` on `readahead` and `cache`,
//! `readahead` on `cache`, and all of them on `format`, the on-disk structures. `build` depends on
//! `format` only: `build` and `read` never use each other. `compare` and `reuse` use both.
//!
//! # Errors
//!
//! Nothing in an image is trusted. Bytes that violate the format return [`Error::Corrupt`] with
//! their offset; a feature that this crate does not read returns [`Error::Unsupported`]; a failure
//! of the source, the target or the system returns [`Error::Io`]. No image causes a panic, an
//! endless loop, or memory use beyond the bounds that each item states. After an error, the
//! contents of the read buffer are unspecified. The image remains usable: its other files may be
//! intact.
#![forbid(unsafe_code)]

mod build;
mod cache;
mod compare;
mod error;
mod extract;
mod format;
mod read;
mod readahead;
mod reuse;
#[cfg(test)]
mod tests;
mod work;
mod zeros;

pub use build::{
    BuildOptions, BuildReport, Change, Compression, Content, Fragments, Hint, IdMap, IdRange, ImageFile, Indexes,
    InodeNumbers, InodeTimes, LEAST_ZERO_BLOCKS, LONG_FILE_BYTES, LONG_FILE_DATA_PARTS, Layer, LiveFile, MemberContent,
    Node, NodeId, NodeKind, Overlay, Progress, ScanOptions, SourceFile, SourcePath, Span, Tree, UNSHARED_BYTES,
    Warning, WarningKind, Whiteouts, build, build_watched, directory_bytes, placed_bytes, stored_bytes,
};
pub use cache::ClusterCache;
pub use compare::{CompareReport, Difference};
pub use error::{Error, Result};
pub use extract::{Existing, ExtractOptions, ExtractProblem, ExtractReport, LeftOut};
pub use format::{DataLayout, Xattr};
pub use pagefold_codec::cluster::ClusterCodec;
pub use pagefold_storage::{Embedded, ReadAt};
pub use read::{
    CheckReport, DirEntry, File, FileKind, Image, Inode, Notice, Problem, ReadCounts, ReadPart, Run, Superblock,
};

//! What an image is made from, as a [`Tree`](pagefold_erofs::Tree) of files: directories, tar
//! archives, container images (OCI layouts and archives of `docker save`), and disks as single
//! files. Files may be compressed by gzip, zstd, xz, bzip2, lz4, lzip or lzma.
//!
//! ```
//! use std::{fs, sync::Arc};
//! use pagefold_source::{Options, read};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("disk.img");
//! fs::write(&path, [7; 8192])?;
//! let tree = read(&[path], &Options::default(), &(Arc::new(|warning: &str| eprintln!("{warning}")) as _))?;
//! assert!(tree.child(tree.root(), b"disk.img").is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Trust
//!
//! Nothing in a source is trusted. A path or a link in an archive or a layout never leads out of it.
//! Decoders have a memory limit, and what they decode is kept in a temporary file. Each blob of a
//! container image must have the digest by which it is named.
#![forbid(unsafe_code)]

mod container;
mod contents;
mod decompress;
mod disk;
mod error;
mod lz4;
mod peek;
mod sources;
mod spool;
mod zstd_frame;

pub use container::Platform;
pub use contents::expect_raw;
pub use decompress::decompressed;
pub use error::{Error, Result, Warn};
pub use sources::{Options, is_layout, read};

//! Bases: read-only disks. A file in an EROFS image, a raw file, a block device or a qcow2 image as
//! a [`BlockDevice`](pagefold_disk::BlockDevice), read from any [`Storage`](pagefold_storage::Storage).
//!
//! ```
//! use pagefold_base::{Base, Cache, Options};
//! use pagefold_disk::BlockDevice;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("debian.img");
//! # std::fs::write(&path, [7; 1000])?;
//! // All bases of a process share one cache, which bounds their memory.
//! let cache = Cache::new(64 << 20);
//! let base = Base::open(&path, &Options::default(), &cache, |trouble| eprintln!("{trouble}"))?;
//! let mut sector = [0; 512];
//! base.read(512, &mut sector)?;
//! assert_eq!((base.size_bytes(), sector[0], sector[511]), (1024, 7, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Trust
//!
//! Nothing in the file is trusted. The metadata that locates content is verified before it is used:
//! of a qcow2 image when it is opened, of an EROFS image when it is needed. A failed read is an
//! error of that request, and the base remains usable. The file stays open, so its path may be
//! reused for another file. If the open file itself is changed, reads return its current content or
//! an error, never bytes beyond its end.
#![forbid(unsafe_code)]

mod advice;
mod base;
mod behind;
mod cache;
mod content;
mod encrypted;
mod erofs;
mod error;
mod format;
mod headers;
mod holes;
mod inside;
mod qcow2;
mod raw;
mod recognition;
mod signature;
mod source;

pub use base::{Base, Options};
pub use cache::{Cache, Lease};
pub use erofs::image_file;
pub use error::OpenError;
pub use format::Format;
pub use signature::{Compression, Kind, Signature, is_named_raw, skippable_bytes};

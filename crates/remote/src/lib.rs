//! Images in OCI registries, in S3 buckets and on web servers, read lazily: a read fetches the chunks
//! that it needs, and nothing is used before it was compared with its SHA-256 sum.
//!
//! ```no_run
//! use std::{path::Path, sync::Arc};
//!
//! use pagefold_remote::{Cache, Location, Options, open};
//! use pagefold_storage::ReadAt;
//!
//! let mut options = Options::default();
//! options.cache = Some(Arc::new(Cache::open(Path::new("/var/cache/pagefold"), 10 << 30)?));
//! let image = open(&Location::parse("oci://registry.example/disks/debian:13")?, &options)?;
//! let mut bytes = [0; 4096];
//! image.read_exact_at(&mut bytes, 0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `docs/remote.md` describes formats, guarantees and limits.
#![forbid(unsafe_code)]

mod access;
mod blob;
mod cache;
mod cache_tag;
mod coming;
mod cut;
mod early;
mod error;
mod file;
mod follow;
mod http;
mod image;
mod index;
mod layer_file;
mod location;
mod mirrors;
mod missed;
mod part;
mod patience;
mod push;
mod push_trace;
mod range_text;
mod ranges;
mod recent;
mod recorder;
mod referrers;
mod registry;
mod remote;
mod rest;
mod s3;
mod sum;
mod tokens;
mod touches;
mod trace;
mod tree_writer;
mod verity;

pub use blob::{Blob, Fetched};
pub use cache::{Cache, Cached};
pub use cut::{Clusters, index};
pub use error::{Error, Result};
pub use index::{Index, MOST_CHUNK_BYTES, MOST_INDEX_BYTES};
pub use layer_file::LayerFile;
pub use location::{Location, Reference};
pub use mirrors::Mirrors;
pub use part::Part;
pub use push::{MediaTypes, PushOptions, Pushed, check, push};
pub use push_trace::{check_trace, push_trace};
pub use recorder::Recorder;
pub use remote::{INDEX_SUFFIX, Options, Remote, open};
pub use sum::Sum;
pub use trace::TRACE_SUFFIX;

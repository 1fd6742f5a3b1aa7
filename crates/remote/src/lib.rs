//! x
#![forbid(unsafe_code)]
mod access;
mod blob;
mod cache;
mod cut;
mod error;
mod http;
mod image;
mod index;
mod location;
mod patience;
mod push;
mod ranges;
mod registry;
mod remote;
mod s3;
mod sum;
mod tokens;
pub use blob::{Blob, Fetched};
pub use cache::{Cache, Cached};
pub use cut::{Clusters, index};
pub use error::{Error,Result};
pub use index::{Index, MOST_CHUNK_BYTES, MOST_INDEX_BYTES};
pub use location::{Location, Reference};
pub use push::{Pushed, push};
pub use remote::{INDEX_SUFFIX, Options, Remote, open};
pub use sum::Sum;

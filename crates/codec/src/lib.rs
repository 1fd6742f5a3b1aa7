//! Page codecs: they compress one 4 KiB page and decode untrusted bytes back to a page.
//!
//! ```
//! use pagefold_codec::{PAGE_SIZE, by_name};
//!
//! let codec = by_name("lz4")?;
//! let mut stream = codec.stream()?;
//! let page = [7u8; PAGE_SIZE];
//! let mut object = [0u8; PAGE_SIZE];
//! let len = stream.compress(&page, &mut object).expect("a constant page fits");
//!
//! let mut back = [0u8; PAGE_SIZE];
//! stream.decompress(&object[..len], &mut back)?;
//! assert_eq!(page, back);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Codec`] is a shared, immutable description (name, level, tables). A [`Stream`] is the
//! working state of one thread: created once outside the hot path and reused for every page. No
//! codec does I/O, starts a thread, or allocates in [`Stream::compress`] or [`Stream::decompress`].
//!
//! # Features
//!
//! Without features the crate needs no C library: `fold`, `fold-dict`, `lz4`, `lz4-dict`, `lz4dyn`,
//! `lzo`, `lzo-rle`, `842` and `pleat` are written in Rust. Each feature adds a C library:
//!
//! | feature | library | adds |
//! |---|---|---|
//! | `zstd` | libzstd | `zstd`, `zstd-dict`, clusters; ZDICT candidates in dictionary training |
//! | `deflate` | libdeflate | `deflate`, clusters |
//! | `lz4hc` | liblz4 | `lz4hc`, clusters |
//! | `lzma` | liblzma | clusters |
//!
//! [`by_name`] returns [`NameError::NotBuilt`] for a codec whose feature is off.

#[cfg(all(test, not(miri)))] // Runs thousands of pages through C libraries.
mod bounds_tests;
#[cfg(any(test, fuzzing))]
mod builds;
mod candidates;
pub mod cluster;
mod codec;
#[cfg(feature = "deflate")]
mod deflate;
mod dictionary;
mod fold;
pub mod lz4;
mod lz4_dict;
mod lz4_tables;
pub mod lz4dyn;
#[cfg(feature = "lz4hc")]
mod lz4hc;
mod lzo;
mod mem;
#[cfg(test)]
mod memory_tests;
mod names;
mod page;
mod pieces;
mod pleat;
mod reuse;
mod same;
#[cfg(all(test, not(miri)))] // Calls C libraries.
mod same_bytes_tests;
mod tables;
mod trained;
mod x842;
#[cfg(feature = "zstd")]
mod zstd;

#[cfg(any(test, fuzzing))]
pub use builds::streams_of_every_build;
pub use candidates::Candidates;
pub use codec::{Codec, Stream};
#[cfg(feature = "deflate")]
pub use deflate::Deflate;
pub use dictionary::Dictionary;
pub use fold::{Fold, FoldDict, FoldTables};
pub use lz4::{Lz4, Lz4Encoder, Matches as Lz4Matches};
pub use lz4_dict::Lz4Dict;
pub use lz4_tables::Lz4Tables;
pub use lz4dyn::Lz4Dyn;
#[cfg(feature = "lz4hc")]
pub use lz4hc::Lz4Hc;
pub use lzo::Lzo;
pub use names::{NAMES, NameError, by_name, trained};
pub use page::{BadTables, CodecId, Corrupt, PAGE_SIZE, Page, StreamError};
pub use pleat::{Pleat, PleatTables};
pub use same::{fill, same_filled};
pub use tables::Tables;
pub use x842::X842;
#[cfg(feature = "zstd")]
pub use zstd::{Zstd, ZstdTables};

//! Page codecs: one 4 KiB page to bytes, and back from bytes nobody trusts.
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
//! A [`Codec`] is a shared, immutable description (its name, level, tables); a [`Stream`] is one
//! thread's working state, made once outside the hot path and used again for every page. No codec
//! does I/O, starts a thread, or allocates in [`Stream::compress`] or [`Stream::decompress`].

#[cfg(all(test, not(miri)))] // Thousands of pages by C libraries too.
mod bounds_tests;
pub mod cluster;
mod codec;
mod deflate;
mod dictionary;
mod fold;
pub mod lz4;
mod lz4_dict;
pub mod lz4dyn;
mod lz4hc;
mod lzo;
mod mem;
#[cfg(test)]
mod memory_tests;
mod names;
mod pleat;
mod same;
#[cfg(all(test, not(miri)))] // C libraries too.
mod same_bytes_tests;
mod tables;
mod x842;
mod zstd;

#[cfg(any(test, fuzzing))]
pub use codec::streams_of_every_build;
pub use codec::{Codec, CodecId, Corrupt, PAGE_SIZE, Page, Stream, StreamError};
pub use deflate::Deflate;
pub use dictionary::Dictionary;
pub use fold::{Fold, FoldDict, FoldTables};
pub use lz4::{Lz4, Lz4Encoder, Matches as Lz4Matches};
pub use lz4_dict::{Lz4Dict, Lz4Tables};
pub use lz4dyn::Lz4Dyn;
pub use lz4hc::Lz4Hc;
pub use lzo::Lzo;
pub use names::{NAMES, UnknownCodec, by_name, trained};
pub use pleat::{BadTables, Pleat, PleatTables};
pub use same::{fill, same_filled};
pub use tables::Tables;
pub use x842::X842;
pub use zstd::{Zstd, ZstdTables};

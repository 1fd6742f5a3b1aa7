//! The published systems that pagefold's store is compared with, reimplemented in minimal form.
//!
//! | published | here | what is compared |
//! |---|---|---|
//! | zram's lock for each entry (Linux lists, May 2014) | [`strategy`] | five ways to guard an entry |
//! | zram's streams (Linux lists, 2014 and May 2016) | [`StreamPolicy`] | one, a list, one per CPU |
//! | xvmalloc (2010), xcfmalloc (2011) | [`AllocatorKind`], [`Heap`] | two ways to store objects |
//!
//! [`Store`] combines them as zram did: a flat table of entries, a stream for compression, and an
//! allocator for the objects. It has no memory limit, moves no objects and trains no tables.
//! `pagefold-bench locks`, `streams` and `pool` measure it; nothing else uses it.
//!
//! ```
//! use pagefold_published::{AllocatorKind, StoreConfig, Store, StreamPolicy, strategy::BitSpin};
//!
//! // zram as of 2014: a lock bit in each entry, a list of four streams.
//! let config = StoreConfig { streams: StreamPolicy::Idle(4), allocator: AllocatorKind::Xvmalloc, ..StoreConfig::new(1000) };
//! let zram = Store::<BitSpin>::new(config)?;
//! let page = std::array::from_fn(|at| (at / 100) as u8);
//! zram.write(5, &page)?;
//!
//! let mut back = [0; 4096];
//! zram.read(5, &mut back)?;
//! assert_eq!(back, page);
//! assert!(zram.stats().compr_data_size < 400);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Suggested reading order: `lock.rs`, `table.rs`, `streams.rs`, `store.rs`,
//! `allocator.rs`, `heap.rs`, `xvmalloc.rs`, `xcfmalloc.rs`. Each file states how it differs from what was published.

mod allocator;
#[cfg(all(test, not(loom)))]
mod allocator_tests;
mod heap;
mod lock;
mod memory;
#[cfg(all(test, loom))]
mod models;
mod spin;
mod store;
mod streams;
mod table;
mod xcfmalloc;
mod xvmalloc;

pub use allocator::AllocatorKind;
pub use heap::{Heap, Object};
pub use store::{Error, Stats, Store, StoreConfig};
pub use streams::StreamPolicy;

/// The ways to guard an entry: the type parameter of [`Store`].
pub mod strategy {
    pub use crate::lock::{BitSpin, Cas, EntryLock, RwLock, Spin, TableRwLock};
}

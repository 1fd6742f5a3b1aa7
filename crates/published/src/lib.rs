//! The published systems that pagefold's store is measured beside, as small as they were published.
//!
//! | published | here | what is compared |
//! |---|---|---|
//! | zram's lock for each entry (Linux lists, May 2014) | [`strategy`] | five ways to guard an entry |
//! | zram's compression streams (Linux lists, 2014 and May 2016) | [`StreamPolicy`] | one, a list of some, one a CPU |
//! | xvmalloc (2010) and xcfmalloc (September 2011) | [`AllocatorKind`], [`Heap`] | two ways to hold compressed pages |
//!
//! [`Store`] joins them as zram did: a flat table of entries, a stream to compress with, an
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
//! In the order in which they are read best: `lock.rs`, `table.rs`, `streams.rs`, `store.rs`,
//! `heap.rs`, `xvmalloc.rs`, `xcfmalloc.rs`. Each file says what it differs in from what was
//! published.

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

pub use heap::{AllocatorKind, Heap, Object};
pub use store::{Error, Stats, Store, StoreConfig};
pub use streams::StreamPolicy;

/// The ways to guard an entry, to be given to [`Store`] as its type.
pub mod strategy {
    pub use crate::lock::{BitSpin, Cas, EntryLock, RwLock, Spin, TableRwLock};
}

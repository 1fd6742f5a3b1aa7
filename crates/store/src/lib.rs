//! A compressed page store: what zram is, as a library.
//!
//! A [`Store`] is a row of slots, each empty or holding one page of 4 KiB, compressed in memory. Any number of threads use it
//! at once through a shared reference; operations on one slot happen one after the other, operations on different slots do
//! not wait for each other.
//!
//! ```
//! use pagefold_store::{Config, Error, PAGE_SIZE, Page, Store};
//!
//! // 4 GiB of slots, whose pages may take 64 MiB: compressed bytes, waste, tables, everything.
//! let store = Store::new(Config { slots: 1 << 20, memory_limit: 64 << 20, ..Config::default() })?;
//!
//! let page: Page = std::array::from_fn(|at| (at / 100) as u8);
//! store.write(5, &page)?;
//!
//! let mut back = [0; PAGE_SIZE];
//! store.read(5, &mut back)?;
//! assert_eq!(back, page);
//! store.read(6, &mut back)?;
//! assert_eq!(back, [0; PAGE_SIZE], "a slot that holds nothing reads as zeros");
//!
//! // Part of a page, with no other operation on the slot in between.
//! store.update(5, |page| page[..2].copy_from_slice(b"hi"))?;
//!
//! // Every operation says what went wrong, and leaves the slot as it was.
//! match store.write(1 << 20, &page) {
//!     Err(Error::NoSuchSlot { slot, slots }) => assert_eq!((slot, slots), (1 << 20, 1 << 20)),
//!     Err(Error::Full) => unreachable!("64 MiB are not used up: evict, or give the caller the error"),
//!     other => other?,
//! }
//!
//! let stats = store.stats();
//! assert_eq!(stats.orig_data_size, PAGE_SIZE as u64);
//! assert!(stats.compr_data_size < 400 && stats.spent_bytes <= stats.mem_limit);
//!
//! store.discard(5)?;
//! assert_eq!(store.stats().orig_data_size, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Choices
//!
//! - [`Config::codec`] is any [`Codec`](pagefold_codec::Codec); `pagefold_codec::by_name` has them by name.
//! - [`Config::memory_limit`] counts all that the store takes from the system. A write that would go over it is
//!   [`Error::Full`]; reads, discards and overwriting with pages like the old ones go on ([`Stats`] has the figures).
//! - [`Config::train`], with a codec that has tables: they are trained on the pages written.
//! - [`Store::with_strategy`], [`Config::streams`] and [`Config::pool`] choose how entries are guarded, who gets which codec
//!   state, and what holds the objects. The defaults measure best; the others are there to be compared with.
//!
//! Memory that frees leave empty in parts is compacted by a thread in the background, one for all stores of the process, which
//! the first store that needs it starts; [`Store::compact`] does it at once. Nothing panics on any slot number; memory that
//! was damaged is [`Error::Corrupt`] as far as the codec can tell.

mod budget;
mod compaction;
mod counters;
mod cpus;
mod entry;
#[cfg(all(test, not(loom)))]
mod faults;
mod heap;
mod lock;
#[cfg(all(test, loom))]
mod models;
mod mosaic;
mod objects;
mod pages;
mod pins;
mod pool;
#[cfg(all(test, not(loom)))]
mod pool_tests;
mod prefetch;
mod region;
mod stats;
mod store;
mod streams;
mod sync;
mod table;
mod training;
#[cfg(all(test, not(loom)))]
mod training_tests;
mod xcfmalloc;
mod xvmalloc;

pub use heap::keep_no_large_blocks;
pub use objects::{Object, Objects};
pub use pagefold_codec::{PAGE_SIZE, Page};
pub use pool::PoolKind;
pub use stats::Stats;
pub use store::{Config, Error, NewError, Slot, Status, Store};
pub use streams::StreamPolicy;

/// The ways to guard entries, to be given to [`Store::with_strategy`] as its type.
pub mod strategy {
    pub use crate::lock::{BitSpin, Cas, EntryLock, Hazard, RwLock, Spin, TableRwLock};
}

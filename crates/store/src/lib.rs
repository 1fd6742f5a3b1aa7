//! A compressed page store: what zram is, as a library.
//!
//! ```
//! use pagefold_store::{Config, PAGE_SIZE, Store};
//!
//! let store = Store::new(Config { slots: 1 << 20, ..Config::default() })?;
//! let page = std::array::from_fn(|at| (at / 100) as u8);
//! store.write(5, &page)?;
//!
//! let mut back = [0; PAGE_SIZE];
//! store.read(5, &mut back)?;
//! assert_eq!(back, page);
//! assert_eq!(store.stats().orig_data_size, PAGE_SIZE as u64);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Store`] is a row of slots, each empty or holding one page. Any number of threads use it at once; operations on
//! one slot happen one after the other, operations on different slots do not wait for each other.

mod budget;
mod compaction;
mod counters;
mod cpus;
mod entry;
#[cfg(all(test, not(loom)))]
mod faults;
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

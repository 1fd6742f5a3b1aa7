//! A compressed page store: zram as a library.
//!
//! A [`Pool`] holds compressed pages within one memory limit. It serves any number of [`Disk`]s,
//! which can be created and dropped at any time. A disk is an array of slots; each slot is empty or
//! holds one page of 4 KiB. Any number of threads use pools and disks concurrently through shared
//! references. Operations on one slot are serialized; operations on different slots do not wait for
//! each other.
//!
//! ```
//! use pagefold_store::{PoolConfig, Error, PAGE_SIZE, Page, Pool};
//!
//! // The pool may use 64 MiB in total: compressed bytes, waste, tables, everything.
//! let pool = Pool::new(PoolConfig::default().memory_limit(64 << 20))?;
//! let disk = pool.disk(1 << 20)?; // 4 GiB of slots
//!
//! let page: Page = std::array::from_fn(|at| (at / 100) as u8);
//! disk.write(5, &page)?;
//!
//! let mut back = [0; PAGE_SIZE];
//! disk.read(5, &mut back)?;
//! assert_eq!(back, page);
//! disk.read(6, &mut back)?;
//! assert_eq!(back, [0; PAGE_SIZE], "a slot that holds nothing reads as zeros");
//!
//! // Part of a page, with no other operation on the slot in between.
//! disk.update(5, |page| page[..2].copy_from_slice(b"hi"))?;
//!
//! // A failed operation returns the reason and leaves the slot unchanged.
//! match disk.write(1 << 20, &page) {
//!     Err(Error::NoSuchSlot { slot, slots }) => assert_eq!((slot, slots), (1 << 20, 1 << 20)),
//!     Err(Error::Full) => unreachable!("64 MiB are not used up: evict, or give the caller the error"),
//!     other => other?,
//! }
//!
//! let stats = disk.stats();
//! assert_eq!(stats.orig_data_size, PAGE_SIZE as u64);
//! assert!(stats.compr_data_size < 400 && pool.stats().spent_bytes <= pool.stats().mem_limit);
//!
//! drop(disk);
//! assert_eq!(pool.stats().orig_data_size, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Choices
//!
//! - [`PoolConfig::codec`] takes any [`Codec`](pagefold_codec::Codec); `pagefold_codec::by_name`
//!   finds one by name.
//! - [`PoolConfig::memory_limit`] covers all memory that the pool takes from the system. A write
//!   that would exceed it returns [`Error::Full`]. Reads, discards and overwriting pages with
//!   similar ones still succeed. [`Stats`] has the figures. [`Disk::set_limit`] limits one disk.
//! - [`PoolConfig::train`]: if the codec has tables, they are trained on the pages written.
//!
//! [`Pool::export`] writes a pool as a stream, from which [`Pool::import`] makes another one.
//! [`Precopy`] writes most of it while the disks are in use. The pool of
//! [`PoolConfig::kept_in`] is in a file in memory; [`Salvage`] makes such a stream of that file if the
//! process was killed.
//!
//! A background thread compacts memory that frees have left partly empty. Each pool has its own
//! thread, which starts with the first work and ends with the pool. A fork of the process starts
//! another. [`Pool::compact`] compacts immediately. No slot number causes a panic. Damaged memory
//! is reported as [`Error::Corrupt`] if the codec can detect it.

mod background;
mod clean;
mod compaction;
mod core;
mod cpus;
mod disk;
mod entry;
mod equal;
mod error;
mod handover;
mod heap;
mod limit;
mod memory;
mod own_limit;
mod pool;
mod stats;
mod streams;
mod sync;
#[cfg(test)]
mod tests;
mod tree;

pub use clean::Reclaim;
pub use disk::Disk;
pub use entry::{ChangedRun, Status, StatusRun};
pub use error::{Error, Slot};
pub use handover::{
    ExportError, ExportedDisk, ImportError, ImportedDisk, ImportedPool, KeptDisk, Precopy, Salvage, SalvageError,
};
pub use heap::{Object, Objects};
pub use memory::malloc::keep_no_large_blocks;
pub use pagefold_codec::{PAGE_SIZE, Page};
pub use pool::{NewPoolError, Pool, PoolConfig};
pub use stats::{DiskStats, Figure, Stats};

//! Block devices: the interface that transports serve, and compressed RAM disks.
//!
//! ```
//! use pagefold_disk::{BlockDevice, Checked, PoolConfig, Pool, RamDisk};
//!
//! let pool = Pool::new(PoolConfig::default().memory_limit(1 << 30))?;
//! let disk = Checked::new(RamDisk::new(&pool, 8 << 30)?);
//! disk.write(1000, b"anywhere, of any length")?;
//!
//! let mut back = [0; 8];
//! disk.read(1000, &mut back)?;
//! assert_eq!(&back, b"anywhere");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`BlockDevice`] is the interface. [`Checked`] validates range and writability in one place, so
//! that devices and transports stay short. [`RamDisk`] is a disk in a pool of compressed pages.
//! [`BaseCache`] keeps pages of what is below such disks. [`Patient`] lets changes wait for room.
#![forbid(unsafe_code)]

mod base_cache;
mod below;
mod checked;
mod chunks;
mod counter;
mod device;
mod handover;
mod patient;
mod ram;
mod room;
mod shared;

pub use base_cache::BaseCache;
pub use checked::Checked;
pub use device::{BlockDevice, Change, Error, Extent, Read, Zeroes};
pub use handover::{ImportedDisks, export_disks, finish_disks, kept_disks, precopy_disks};
pub use pagefold_store::{
    DiskStats, Error as StoreError, ExportError, Figure, ImportError, KeptDisk, NewPoolError, Pool, PoolConfig,
    Precopy, Salvage, SalvageError, Stats as PoolStats, keep_no_large_blocks,
};
pub use patient::Patient;
pub use ram::{Layer, NewDiskError, RamDisk};
pub use room::{Room, Waiting, Waits};

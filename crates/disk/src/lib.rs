//! Block devices: what a transport serves and what it may ask of it.
//!
//! ```
//! use pagefold_disk::{BlockDevice, Checked, RamConfig, RamDisk};
//!
//! let disk = Checked::new(RamDisk::new(RamConfig { size_bytes: 8 << 30, ..RamConfig::default() })?);
//! disk.write(1000, b"anywhere, of any length")?;
//!
//! let mut back = [0; 8];
//! disk.read(1000, &mut back)?;
//! assert_eq!(&back, b"anywhere");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`BlockDevice`] is the interface; [`Checked`] is the one place that validates range and capability, so that devices
//! and transports stay short; [`RamDisk`] is a compressed page store as a disk.
#![forbid(unsafe_code)]

mod checked;
mod device;
mod ram;
mod shared;

pub use checked::Checked;
pub use device::{BlockDevice, Compacted, Error, Extent, Zeroes};
pub use pagefold_store::keep_no_large_blocks;
pub use ram::{NewError, RamConfig, RamDisk};

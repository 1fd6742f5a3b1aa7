//! What images and disks are read from: files here, and blobs elsewhere, behind one trait.
//!
//! ```
//! use pagefold_storage::{ReadAt, Storage, open};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("debian.img");
//! # std::fs::write(&path, [7; 1000])?;
//! let storage = open(&path)?;
//! let mut bytes = [0; 10];
//! storage.read_exact_at(&mut bytes, 990)?;
//! assert_eq!((bytes, storage.len_bytes()?, storage.is_changed()), ([7; 10], 1000, false));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`ReadAt`] is all that a reader of an image needs: bytes at any position. A [`Storage`] also says
//! which bytes these are, and whether they are still the same.
#![forbid(unsafe_code)]

mod embedded;
mod file;
mod forward;
mod location;
mod read_at;
mod storage;
mod with_devices;

pub use embedded::Embedded;
pub use file::{StoredFile, files_of, identity_of};
pub use forward::Forward;
pub use location::{Location, absolute, open, shown};
pub use read_at::ReadAt;
pub use storage::{Open, Storage, Stretch};
pub use with_devices::WithDevices;

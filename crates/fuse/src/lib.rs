//! Mounts EROFS images as read-only file systems by FUSE, without libfuse and, where `fusermount3`
//! permits, without root.
//!
//! ```no_run
//! use pagefold_erofs::Image;
//! use pagefold_fuse::{Mount, MountOptions};
//!
//! let image = Image::open_path("rootfs.erofs".as_ref())?;
//! let mount = Mount::new(image, "/mnt".as_ref(), MountOptions::default())?;
//! mount.serve()?; // until it is unmounted
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod attributes;
mod filesystem;
mod mount;

pub use mount::{Mount, MountOptions};
pub use pagefold_mount::{Log, Unmounter};

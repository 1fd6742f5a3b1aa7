//! Outputs that appear only once they are complete: files, block devices and streams.
//!
//! An output never replaces a file that the program reads, or a file of another kind unless forced.
//! Both are checked before the work starts. When the output gets its name, the name must still have
//! the same file, or none.
//!
//! ```
//! use std::{fs, io::Write};
//! use pagefold_output::{Destination, ImageFormat, Inputs};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("disk.img");
//! let mut inputs = Inputs::default();
//! inputs.add("the source", "/etc/hostname".as_ref());
//! let destination = Destination::of(&path, ImageFormat::Raw, false, &inputs)?;
//! let draft = destination.make_draft()?;
//! draft.file().write_all(b"a disk")?;
//! assert!(!path.exists());
//! destination.take(draft)?;
//! assert_eq!(fs::read(&path)?, b"a disk");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod destination;
mod device;
mod draft;
mod error;
mod existing;
mod image_format;
mod inputs;
mod lease;
mod lock;
mod mounts;
mod new_file;
mod pid_file;
mod standard_output;

pub use destination::Destination;
pub use device::Device;
pub use draft::{Draft, Guard, WhenNamed};
pub use error::{Error, Result};
pub use existing::Written;
pub use image_format::ImageFormat;
pub use inputs::Inputs;
pub use new_file::NewFile;
pub use pid_file::PidFile;
pub use standard_output::standard_output;

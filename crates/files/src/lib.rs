//! Exports as files in a directory, through FUSE.
//!
//! [`Files::mount`] shows each export that is not private as a regular file. The directory always
//! reflects the exports: the kernel keeps neither names nor sizes.
//!
//! - Files of exports that never change, as bases, are in the kernel's page cache, which is kept
//!   between two opens and shared by all programs that read or map them.
//! - Files of other exports bypass the page cache, so that they agree with other transports. Shared
//!   mappings of them work, but show changes made elsewhere only once mapped again.
//! - An open file is a client of its export.
//! - Another process can continue: [`Files::pause`], [`Files::taken`].
#![forbid(unsafe_code)]

mod answer;
mod filesystem;
mod handover;
mod mount;
mod name;
mod open;
mod read;
mod seek;
mod tree;

pub use handover::Handed;
pub use mount::{Files, Options, Paths};
pub use name::of_export as file_name;
pub use pagefold_mount::Log;

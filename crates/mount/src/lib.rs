//! Mounts file systems that this process serves through FUSE, without libfuse and, where
//! `fusermount3` permits, without root.
//!
//! A file system is a [`fuser::Filesystem`] that answers each request within [`Poller::answer`].
#![forbid(unsafe_code)]

mod crew;
mod log;
mod mount;
mod poller;
mod table;

pub use log::Log;
pub use mount::{Mount, Options, Unmounter};
pub use poller::Poller;

//! Mounts file systems that this process serves through FUSE, without libfuse and, where
//! `fusermount3` permits, without root.
//!
//! A file system is a [`fuser::Filesystem`] that answers each request within [`Poller::answer`].

mod crew;
mod log;
mod mount;
mod pause;
mod place;
mod poller;
mod replace;
mod session;
mod table;

pub use log::Log;
pub use mount::{Mount, Options, Unmounter};
pub use pause::Pauser;
pub use poller::Poller;

//! Serves block devices to virtual machines over vhost-user, as virtio block devices.
//!
//! ```no_run
//! # fn serve(device: std::sync::Arc<dyn pagefold_disk::BlockDevice>) -> std::io::Result<()> {
//! use std::{os::unix::net::UnixListener, sync::Arc};
//!
//! use pagefold_executor::{Executor, Export, Memory};
//! use pagefold_vhost_user::{Config, Server};
//!
//! let memory = Memory::new(64 << 20, None, || ());
//! let executor = Arc::new(Executor::new(16, Arc::clone(&memory)));
//! let server = Server::start(Config::default(), executor, memory, Box::new(|_, _| ()))?;
//! let listener = UnixListener::bind("/run/user/1000/disk.sock")?;
//! let _listening = server.listen(listener, Arc::new(Export::new("disk", device)))?;
//! # Ok(())
//! # }
//! ```
//!
//! A virtual machine's monitor, the *frontend*, shares its guest's memory with the server. The guest's
//! *driver* puts requests into rings there, and the server reads and answers them without a copy on a
//! socket. Whatever a driver or a frontend writes, it harms only itself: each word is read once and
//! checked, and data is copied before a device sees it.
//!
//! `docs/vhost-user.md` describes features, limits and the use of threads.
#[cfg(feature = "client")]
pub mod client;
mod config;
mod inflight;
mod memory;
mod request;
mod server;
mod session;
mod truncated;
mod vring;
mod wire;
mod worker;

pub use server::{Config, Event, Listening, Server, Tell};

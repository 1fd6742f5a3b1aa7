//! Serves block devices to virtual machines over vhost-user, as virtio block devices.
//!
//! ```no_run
//! # fn serve(device: std::sync::Arc<dyn pagefold_disk::BlockDevice>) -> std::io::Result<()> {
//! use std::{os::unix::net::UnixListener, sync::Arc};
//!
//! use pagefold_executor::{Client, ClientLimits, Executor, Export, Memory};
//! use pagefold_vhost_user::{Config, Server};
//!
//! let executor = Arc::new(Executor::new(16, Memory::new(64 << 20, None)));
//! let limits = ClientLimits { threads: 8, memory_bytes: 8 << 20 };
//! let open = move |export: &Export| Client::open(&executor, export, limits);
//! let server = Server::start(Config::default(), Box::new(open), Box::new(|_, _| ()))?;
//! let listener = UnixListener::bind("/run/user/1000/disk.sock")?;
//! let _listening = server.listen(listener, Arc::new(Export::new("disk", device)))?;
//! # Ok(())
//! # }
//! ```
//!
//! A virtual machine's monitor, the *frontend*, shares its guest's memory with the server. The
//! guest's *driver* puts requests into rings there, and the server reads and answers them without a
//! copy on a socket. A driver or a frontend can harm only itself: each word is read once and
//! checked, and data is copied before a device sees it.
//!
//! When a frontend shares memory that cannot be sealed, the process gets a handler of SIGBUS. It acts
//! only on such memory, and leaves other signals to the handler that was there before.
//!
//! `docs/vhost-user.md` describes features, limits and the use of threads.
#[cfg(feature = "client")]
pub mod client;
mod config;
#[cfg(feature = "drive")]
pub mod drive;
mod gate;
mod inflight;
mod memory;
mod request;
mod server;
mod session;
mod state;
mod truncated;
mod vring;
mod wire;
mod worker;

pub use server::{Config, Descriptor, Event, Listening, Notify, Open, Server};
pub use state::SocketState;

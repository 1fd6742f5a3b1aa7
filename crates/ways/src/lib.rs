//! The ways to a server's disks other than NBD, each a [`Transport`](pagefold_server::Transport):
//! files, sockets for virtual machines, and block devices.
//!
//! ```no_run
//! use pagefold_serve::Permissions;
//! use pagefold_server::{Add, Config, Manage, Server, Sockets};
//! use pagefold_ways::{Directory, SocketDirectory};
//!
//! let server = Server::new(Config::default())?;
//! server.add(&Add::new("job-1", 8 << 30))?;
//! let sockets = Sockets::new()
//!     .unix("/run/vms/nbd.sock")
//!     .transport(Directory::new("/run/vms/files", Permissions::default()))
//!     .transport(SocketDirectory::new("/run/vms/sockets", Permissions::default()));
//! server.listen(sockets)?.run()?; // until the server is stopped
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod devices;
mod directory;
mod sockets;
mod spares;
mod taken;

pub use devices::BlockDevices;
pub use directory::Directory;
pub use sockets::SocketDirectory;
pub use taken::taken;

//! Serves block devices over NBD, the network block device protocol.
//!
//! ```no_run
//! # fn serve(device: std::sync::Arc<dyn pagefold_disk::BlockDevice>) -> Result<(), pagefold_serve::Error> {
//! use pagefold_serve::{Export, Server};
//!
//! let server = Server::builder().export(Export::new("disk", device)).unix("/run/user/1000/disk.sock").bind()?;
//! let handle = server.handle(); // handle.stop() ends the server from another thread
//! server.run()
//! # }
//! ```
//!
//! `docs/nbd.md` describes the supported features, the resource limits and the use of threads.
#![forbid(unsafe_code)]

mod activation;
mod admission;
mod client;
mod connection;
mod error;
mod events;
mod input;
mod limits;
mod listen;
mod negotiate;
mod pieces;
mod presence;
pub mod protocol;
mod request;
mod server;
mod sockets;
mod transport;
mod uri;

pub use activation::Passed;
pub use admission::Refused;
pub use client::Client;
pub use error::Error;
pub use limits::Limits;
pub use listen::{Permissions, SocketFile, listen_privately};
pub use pagefold_executor::{
    Account, Claim, Export, ExportError, Exports, IDLE_BYTES, LEAST_COST_BYTES, Quota, WORK_BYTES,
};
pub use presence::{ClientEvent, Peer};
pub use server::{Builder, OwnSocket, Server, ServerHandle, serve_stream};
pub use transport::{Socket, Transport};
pub use uri::{tcp_uri, unix_uri};

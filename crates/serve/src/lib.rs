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
//! The feature `tls` adds TLS, with rustls and ring, which compiles C and assembly.
//!
//! `docs/nbd.md` describes the supported features, the resource limits and the use of threads.

mod activation;
mod admission;
mod adopt_error;
mod client;
mod connection;
mod descriptors;
mod error;
mod events;
mod handover;
mod handshakes;
mod input;
mod limits;
mod listen;
mod negotiate;
mod newcomer;
mod pause;
mod paused;
mod peer;
mod pieces;
mod presence;
pub mod protocol;
mod request;
mod resting;
mod server;
mod session;
mod sockets;
mod stream;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
mod transport;
mod uri;
mod vsock;

pub use activation::Passed;
pub use admission::{OtherSeat, Refused};
pub use adopt_error::AdoptError;
pub use client::{Client, Opened, open_export};
pub use descriptors::SPARE_DESCRIPTORS;
pub use error::Error;
pub use handover::{ClientState, Handed, ListenerState, NewcomerState};
pub use limits::Limits;
pub use listen::{OwnFile, Permissions, SocketFile, listen_privately, listen_with};
pub use pagefold_executor::{
    Account, Claim, Export, ExportError, Exports, IDLE_BYTES, LEAST_COST_BYTES, Quota, WORK_BYTES,
};
pub use pause::{PauseError, Shared};
pub use paused::Paused;
pub use peer::Peer;
pub use presence::ClientEvent;
pub use server::{Builder, OwnSocket, Server, ServerHandle, TakenSocket, serve_stream};
#[cfg(feature = "tls")]
pub use tls::{Certificates, CertificatesError, IDLE_BYTES as TLS_IDLE_BYTES, WORK_BYTES as TLS_WORK_BYTES};
pub use transport::{Socket, Transport};
pub use uri::{of_unix_uri, tcp_uri, tls_uri, unix_uri, vsock_uri};

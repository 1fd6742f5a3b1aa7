//! The server as seen by its peers.

mod activation;
mod client;
mod commands;
mod contexts;
mod device;
mod errors;
mod exports;
mod extended;
mod handover;
#[cfg(feature = "tls")]
mod handshakes;
mod holes;
mod hostile;
#[cfg(feature = "tls")]
mod idle;
mod lifecycle;
mod memory;
mod negotiation;
mod newcomers;
mod overlap;
mod parsing;
mod raw;
#[cfg(feature = "tls")]
mod secure;
#[cfg(feature = "tls")]
mod tls;
mod tools;
mod vsock;
mod waiting;

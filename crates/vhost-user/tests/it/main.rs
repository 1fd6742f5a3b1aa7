//! The server and the client of this crate against each other, over sockets and shared memory.

mod data;
mod handover;
mod hostile;
mod lifecycle;
mod random;
mod world;

//! The control protocol: any line, and sockets with all kinds of clients.

mod answers;
mod sockets;

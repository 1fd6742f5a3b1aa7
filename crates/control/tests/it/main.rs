//! The control protocol: arbitrary lines, and sockets with all kinds of clients.

mod answers;
mod sockets;

//! The `pagefold` program with the real clients of its users.

mod clients;
mod compact;
mod errors;
mod file_system;
mod images;
mod mount;
mod server;
mod signals;
mod sources;
mod stat;

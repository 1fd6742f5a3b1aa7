//! The `pagefold` program with the real clients of its users.

mod clients;
mod compact;
mod comparing;
mod connections;
mod devices;
mod embedded;
mod errors;
mod file_system;
mod images;
mod mount;
mod permissions;
mod records;
mod server;
mod signals;
mod sources;
mod stat;

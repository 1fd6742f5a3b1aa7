//! The `pagefold` program with the real clients of its users.

mod clients;
mod errors;
mod file_system;
mod server;
mod signals;
mod stat;

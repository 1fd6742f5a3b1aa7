//! The `pagefold` program with the real clients of its users.

mod bases;
mod clients;
mod compact;
mod comparing;
mod connections;
mod control;
mod devices;
mod embedded;
mod errors;
mod file_system;
mod guest;
mod images;
mod manual;
mod memory;
mod mount;
mod permissions;
mod places;
mod records;
mod server;
mod signals;
mod sources;
mod starting;
mod stat;
mod swap;
mod waiting;
mod wrong;

//! The server as seen by its peers.

mod activation;
mod client;
mod commands;
mod contexts;
mod device;
mod errors;
mod exports;
mod extended;
mod holes;
mod hostile;
mod lifecycle;
mod memory;
mod negotiation;
mod newcomers;
mod overlap;
mod parsing;
mod raw;
mod tools;
mod waiting;

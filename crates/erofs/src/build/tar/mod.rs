//! Tar archives.

mod archive;
mod describe;
mod members;
mod number;

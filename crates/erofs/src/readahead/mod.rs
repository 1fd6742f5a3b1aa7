//! Decoding ahead of readers, by the process's otherwise idle threads.

mod ahead;
mod workers;

pub(crate) use ahead::{Ahead, AheadFile, Ready};
pub(crate) use workers::Busy;

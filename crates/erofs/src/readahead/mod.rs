//! Decoding ahead of readers, by the process's threads that have nothing else to do.

mod ahead;
mod workers;

pub(crate) use ahead::{Ahead, AheadFile};
pub(crate) use workers::Busy;

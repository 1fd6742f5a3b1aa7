//! Decoding ahead of readers, by otherwise idle threads.

mod ahead;

pub(crate) use ahead::{Ahead, AheadFile, Ready};

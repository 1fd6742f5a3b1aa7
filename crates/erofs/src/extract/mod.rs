//! Extracting an image into a directory.

mod extraction;
mod filling;

pub use extraction::{ExtractOptions, ExtractReport};

//! Checking an image.

mod checker;
mod claims;
mod content;
mod report;

pub(crate) use report::Notices;
pub use report::{CheckReport, Notice, Problem};

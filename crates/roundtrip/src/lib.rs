//! Generated trees and their expected images, for tests, fuzzing and soak tests.
//!
//! ```text
//! seed or any bytes -> Case (a tree and options, as plain data) -> image, twice -> read back and compared
//! ```
//!
//! A [`Case`] is plain data: it can be shrunk ([`shrink()`]), printed and written down as a
//! regression test. Its bytes come from two fixed pools, so that equal starts, equal ends and moved
//! content are frequent.
#![forbid(unsafe_code)]

mod case;
mod choices;
mod compare;
mod expected;
mod fsck;
mod generate;
mod memory_file;
mod repack;
mod segment;
mod shown;
mod shrink;
mod verify;

pub use case::{Case, EntryKind, Facts, TreeEntry};
pub use compare::Keeps;
pub use expected::Expected;
pub use fsck::Fsck;
pub use generate::{Size, seed_bytes};
pub use memory_file::memory_file;
pub use repack::repack;
pub use segment::{Segment, Stuff, noise, period, text, zeros};
pub use shown::Shown;
pub use shrink::shrink;
pub use verify::{Outcome, attempt, build_into, round_trip};

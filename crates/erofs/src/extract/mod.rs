//! Extracts an image into a directory.
//!
//! ```text
//! 1. walk        creates directories, those in open directories accessible to the owner only;
//!                lists files by directory
//! 2. files       threads create and fill files, links and devices in batches of one directory, while
//!                the walk continues; all idle threads fill a long file together; if there is only
//!                one thread, it creates them during the walk
//! 3. hard links  further names of files
//! 4. directories owners, modes, xattrs, times; the deepest first
//! ```
//!
//! An *open* directory is one that existed before, such as the target. No other user can access a
//! file before it is complete: what is created in an open directory gets its mode last and denies
//! access until then. Deeper files and directories get their mode at creation, so most of them need
//! only a time at the end, set by name.
//!
//! Nothing is written outside the target. Every directory was created by step 1, or existed and was
//! opened without following a link. Names contain no slash and are not `..`. The walk reaches each
//! directory from the one before it (`places.rs`), so the time is linear in the number of names at
//! any depth.

mod extraction;
mod filling;
mod made;
mod options;
mod places;
mod report;
mod target;
mod times;

pub use options::{Existing, ExtractOptions};
pub use report::{ExtractProblem, ExtractReport, LeftOut};

//! The result of a check.

use crate::error::Error;

/// The maximum number of problems in a report; further ones are only counted.
const MAX_PROBLEMS: usize = 1000;
/// The maximum number of warnings, likewise.
const MAX_WARNINGS: usize = 100;

/// A defect of an image.
#[derive(Debug)]
pub struct Problem {
    /// The path of the affected file, from the root; at most the last 4 KiB.
    pub path: Vec<u8>,
    /// The defect.
    pub error: Error,
    /// For an overlap, the other owner: a path as above, or the name of a structure that is not a
    /// file.
    pub other: Option<Vec<u8>>,
}

/// An oddity that does no harm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Notice {
    /// The path of the file concerned, from the root; at most the last 4 KiB.
    pub path: Vec<u8>,
    /// The oddity.
    pub what: String,
}

/// The first hundred notices.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    first: Vec<Notice>,
    more: u64,
}

impl Notices {
    /// Adds a warning. Keeps the first ones by path and text, in whatever order they are added.
    pub(crate) fn add(&mut self, path: impl FnOnce() -> Vec<u8>, what: String) {
        self.first.push(Notice { path: path(), what });
        if self.first.len() >= 2 * MAX_WARNINGS {
            self.cut();
        }
    }

    fn cut(&mut self) {
        self.first.sort_unstable();
        self.more += self.first.len().saturating_sub(MAX_WARNINGS) as u64;
        self.first.truncate(MAX_WARNINGS);
    }

    /// Returns the first notices and the number of further ones.
    pub(crate) fn take(mut self) -> (Vec<Notice>, u64) {
        self.cut();
        (self.first, self.more)
    }
}

/// The result of a check.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Inodes reached.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Bytes of regular files.
    pub file_bytes: u64,
    /// The first thousand problems.
    pub problems: Vec<Problem>,
    /// The number of further problems.
    pub more_problems: u64,
    /// The first hundred harmless oddities: xattrs that are ignored, as Linux does; blocks that
    /// belong to no file.
    pub warnings: Vec<Notice>,
    /// The number of further warnings.
    pub more_warnings: u64,
}

impl CheckReport {
    pub(super) fn add(&mut self, path: Vec<u8>, error: Error) {
        self.add_problem(Problem { path, error, other: None });
    }

    /// Adds a problem. Keeps the first ones by path and text, in whatever order they are added.
    pub(super) fn add_problem(&mut self, problem: Problem) {
        self.problems.push(problem);
        if self.problems.len() >= 2 * MAX_PROBLEMS {
            self.sort();
        }
    }

    pub(super) fn sort(&mut self) {
        self.problems
            .sort_by_cached_key(|problem| (problem.path.clone(), problem.error.to_string(), problem.other.clone()));
        self.more_problems += self.problems.len().saturating_sub(MAX_PROBLEMS) as u64;
        self.problems.truncate(MAX_PROBLEMS);
    }
}

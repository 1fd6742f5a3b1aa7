//! What a check found.

use crate::error::Error;

/// Problems that a report holds; further ones are counted.
const MAX_PROBLEMS: usize = 1000;
/// And warnings.
const MAX_WARNINGS: usize = 100;

/// Something wrong with an image.
#[derive(Debug)]
pub struct Problem {
    /// The path of the file that has it, from the root; at most the last 4 KiB.
    pub path: Vec<u8>,
    /// What is wrong.
    pub error: Error,
    /// Where two things lie in one place, whose the other is: a path as above, or what it is that
    /// is no file.
    pub other: Option<Vec<u8>>,
}

/// Something odd that harms nothing else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Notice {
    /// The path of the file that it is about, from the root; at most the last 4 KiB.
    pub path: Vec<u8>,
    /// What is odd.
    pub what: String,
}

/// Notices, the first hundred of them.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    first: Vec<Notice>,
    more: u64,
}

impl Notices {
    /// Takes a warning. Those that stay are the first by path and text, in whatever order they
    /// come.
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

    /// The first, and how many more there were.
    pub(crate) fn take(mut self) -> (Vec<Notice>, u64) {
        self.cut();
        (self.first, self.more)
    }
}

/// What a check found.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Inodes reached.
    pub inodes: u64,
    /// Those that are directories.
    pub directories: u64,
    /// Bytes of regular files.
    pub file_bytes: u64,
    /// The first thousand problems.
    pub problems: Vec<Problem>,
    /// Problems beyond those.
    pub more_problems: u64,
    /// What does no harm, the first hundred: xattrs that are left out, as Linux does; blocks that
    /// no file has.
    pub warnings: Vec<Notice>,
    /// Notices beyond those.
    pub more_warnings: u64,
}

impl CheckReport {
    pub(super) fn add(&mut self, path: Vec<u8>, error: Error) {
        self.add_problem(Problem { path, error, other: None });
    }

    /// Takes a problem. Those that stay are the first by path and text, in whatever order they
    /// come.
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

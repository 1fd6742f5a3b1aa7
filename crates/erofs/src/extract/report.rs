//! The result of an extraction.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::error::Error;
use crate::read::{Notice, PathId, Paths};

/// The maximum number of kinds of problems in a report.
const MAX_KINDS: usize = 1000;
/// The maximum number of names of xattrs in a report.
const MAX_XATTR_NAMES: usize = 16;

/// The result of an extraction.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ExtractReport {
    /// Names created.
    pub names: u64,
    /// Bytes of regular files.
    pub file_bytes: u64,
    /// Problems, by path: one for all files with the same error, and at most a thousand.
    pub problems: Vec<ExtractProblem>,
    /// The number of files with further problems.
    pub more_problems: u64,
    /// Attributes and files left out because they need a privilege, or because the file system
    /// cannot hold them. It is not a problem.
    pub left_out: LeftOut,
    /// Names that were kept because they existed ([`Existing::Keep`](crate::Existing::Keep)).
    pub kept: u64,
    /// The number of kept files whose kind, size or time differs from the image, and the first one.
    pub different: Option<(u64, Vec<u8>)>,
    /// Notices of what was skipped, as Linux does: the first hundred. They are not problems.
    pub warnings: Vec<Notice>,
    /// The number of further warnings.
    pub more_warnings: u64,
    /// Extraction stopped, because a limit of files was reached or the target accepts no more data:
    /// it is full, over a quota, or read-only. The last problem says where.
    pub stopped: bool,
}

/// An error with the files that it affects.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExtractProblem {
    /// The path of the first of them, from the root; at most the last 4 KiB.
    pub path: Vec<u8>,
    /// The error.
    pub error: Error,
    /// The number of files.
    pub count: u64,
    /// The files exist with their content, and lack only some attributes.
    pub extracted: bool,
}

/// What an extraction left out because it needs a privilege, or cannot be stored there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOut {
    /// Names of xattrs, with the number of files for each; at most sixteen.
    pub xattrs: BTreeMap<Vec<u8>, u64>,
    /// Xattrs with further names.
    pub more_xattrs: u64,
    /// Names of device files.
    pub devices: u64,
    /// Files with another owner or group than the process.
    pub owners: u64,
    /// Files with a time that the file system cannot hold. They have the nearest one.
    pub times: u64,
}

impl LeftOut {
    pub(super) fn add_xattr(&mut self, name: &[u8], count: u64) {
        *self.xattrs.entry(name.to_vec()).or_default() += count;
        if self.xattrs.len() > MAX_XATTR_NAMES
            && let Some((_, count)) = self.xattrs.pop_last()
        {
            self.more_xattrs += count;
        }
    }

    fn append(&mut self, other: Self) {
        other.xattrs.iter().for_each(|(name, count)| self.add_xattr(name, *count));
        self.more_xattrs += other.more_xattrs;
        self.devices += other.devices;
        self.owners += other.owners;
        self.times += other.times;
    }
}

/// The findings so far, of one thread or of all.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) names: u64,
    pub(super) file_bytes: u64,
    pub(super) left_out: LeftOut,
    pub(super) kept: u64,
    /// The number of kept files that differ from the image, and the first one.
    different: Option<(u64, PathId)>,
    /// Files with several names.
    other_files: HashSet<PathId>,
    /// Errors by whether the files were extracted and by text, with the first file and the number.
    problems: HashMap<(bool, String), (PathId, Error, u64)>,
    more_problems: u64,
}

impl Findings {
    /// Records an error of `count` files, of which the first is at `path`.
    pub(super) fn failed(&mut self, path: PathId, count: u64, error: Error, extracted: bool) {
        let text = match &error {
            // The size of a file does not make it a different kind of problem.
            Error::TooMuch { allowed, .. } => format!("more than {allowed} bytes"),
            error => error.to_string(),
        };
        self.add((extracted, text), (path, error, count));
    }

    fn add(&mut self, kind: (bool, String), problem: (PathId, Error, u64)) {
        let is_full = self.problems.len() >= MAX_KINDS;
        match self.problems.entry(kind) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.2 += problem.2;
                if problem.0 < known.0 {
                    (known.0, known.1) = (problem.0, problem.1);
                }
            }
            Entry::Vacant(_) if is_full => self.more_problems += problem.2,
            Entry::Vacant(place) => _ = place.insert(problem),
        }
    }

    /// Records a file that existed and was kept.
    pub(super) fn kept(&mut self, path: PathId, is_equal: bool, has_other_names: bool) {
        self.kept += 1;
        if !is_equal {
            self.differs(1, path);
            if has_other_names {
                self.other_files.insert(path);
            }
        }
    }

    /// Records a file that was kept because it is an input. It does not get further names.
    pub(super) fn kept_input(&mut self, path: PathId) {
        self.other_files.insert(path);
    }

    fn differs(&mut self, count: u64, path: PathId) {
        let (all, first) = self.different.get_or_insert((0, path));
        *all += count;
        *first = path.min(*first);
    }

    /// Returns whether a file with several names is a kept one that differs from the image.
    pub(super) fn is_other_file(&self, path: PathId) -> bool {
        self.other_files.contains(&path)
    }

    pub(super) fn append(&mut self, other: Self) {
        self.names += other.names;
        self.file_bytes += other.file_bytes;
        self.left_out.append(other.left_out);
        self.kept += other.kept;
        if let Some((count, path)) = other.different {
            self.differs(count, path);
        }
        self.other_files.extend(other.other_files);
        for (kind, problem) in other.problems {
            self.add(kind, problem);
        }
        self.more_problems += other.more_problems;
    }

    pub(super) fn into_report(self, paths: &Paths) -> ExtractReport {
        let mut problems: Vec<_> = self.problems.into_iter().collect();
        problems.sort_by(|((_, left_text), left), ((_, right_text), right)| {
            (left.0, left_text).cmp(&(right.0, right_text))
        });
        let problem = |((extracted, _), (path, error, count)): (_, (PathId, Error, u64))| ExtractProblem {
            path: paths.display(path),
            error,
            count,
            extracted,
        };
        ExtractReport {
            names: self.names,
            file_bytes: self.file_bytes,
            problems: problems.into_iter().map(problem).collect(),
            more_problems: self.more_problems,
            left_out: self.left_out,
            kept: self.kept,
            different: self.different.map(|(count, path)| (count, paths.display(path))),
            ..ExtractReport::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_thousand_equal_errors_are_one_problem() {
        let mut paths = Paths::new();
        let ids: Vec<_> = (0..100_000).map(|number| paths.add(0, format!("{number}").into_bytes())).collect();
        let mut all = Findings::default();
        for part in ids.chunks(64).rev() {
            let mut found = Findings::default();
            part.iter().for_each(|id| found.failed(*id, 1, Error::Exists, false));
            all.append(found);
        }
        all.failed(ids[7], 1, Error::NotA("directory"), true);
        let report = all.into_report(&paths);
        let problems: Vec<_> = report.problems.iter().map(|problem| (&problem.path[..], problem.count)).collect();
        assert_eq!(problems, [(&b"/0"[..], 100_000), (b"/7", 1)]);
    }

    #[test]
    fn kinds_of_problems_and_names_of_xattrs_are_bounded() {
        let (mut paths, mut found) = (Paths::new(), Findings::default());
        let id = paths.add(0, b"file".to_vec());
        for number in 0..5000 {
            found.failed(id, 1, Error::Corrupt { what: "wrong", offset: number }, false);
            found.left_out.add_xattr(format!("trusted.{number}").as_bytes(), 1);
        }
        let report = found.into_report(&paths);
        assert_eq!((report.problems.len(), report.more_problems), (MAX_KINDS, 4000));
        let named: u64 = report.left_out.xattrs.values().sum();
        assert_eq!((report.left_out.xattrs.len(), named + report.left_out.more_xattrs), (MAX_XATTR_NAMES, 5000));
    }
}

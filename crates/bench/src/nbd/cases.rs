//! The cases: the requests to a disk, and the state of the disk.

use std::ops::Range;

use super::{
    load::{Hot, Load, Shape},
    subjects::{MIB_PAGES, Subject},
};

/// The percentages of changed pages in which disks are read.
const CHANGES: [u32; 2] = [1, 50];

/// The pages read in cached cases, and by hot reads: less than servers cache of their bases.
const CACHED_PAGES: u64 = 32 * MIB_PAGES;
const HOT_PAGES: u64 = 16 * MIB_PAGES;

/// The shape of large writes and of hot reads.
const ONE_DEEP: Shape = Shape { connections: 1, depth: 16 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    Read {
        is_cached: bool,
    },
    Write,
    Mixed,
    /// Reads of few pages, whose latencies count, and a percentage of others.
    Hot {
        misses: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) pattern: Pattern,
    pub(super) block_kib: u64,
    pub(super) shape: Shape,
    /// Percentage of pages that a copy has changed before.
    pub(super) changed: u32,
}

impl Case {
    pub(super) fn all(shapes: &[Shape]) -> Vec<Self> {
        let mut cases = Vec::new();
        for changed in CHANGES {
            for is_cached in [true, false] {
                let pattern = Pattern::Read { is_cached };
                cases.extend(shapes.iter().map(|&shape| Self { pattern, block_kib: 4, shape, changed }));
            }
        }
        for pattern in [Pattern::Write, Pattern::Mixed] {
            cases.extend(shapes.iter().map(|&shape| Self { pattern, block_kib: 4, shape, changed: CHANGES[0] }));
        }
        let one = |pattern, block_kib| Self { pattern, block_kib, shape: ONE_DEEP, changed: CHANGES[0] };
        cases.extend([32, 128].map(|block_kib| one(Pattern::Write, block_kib)));
        cases.extend([0, 10].map(|misses| one(Pattern::Hot { misses }, 4)));
        cases
    }

    pub(super) fn name(&self, data: &str) -> String {
        let Self { pattern, block_kib, shape: Shape { connections, depth }, changed } = self;
        let name = |pattern| format!("{data}/{pattern}/{block_kib}k/{connections}x{depth}");
        match pattern {
            Pattern::Read { is_cached } => {
                let span = if *is_cached { "cached" } else { "whole" };
                format!("{}/{span}/changed-{changed}", name("rand-read"))
            }
            Pattern::Write => name("rand-write"),
            Pattern::Mixed => name("rand-mixed"),
            Pattern::Hot { misses } => format!("{}/misses-{misses}", name("hot-read")),
        }
    }

    /// Whether the case is of interest for a subject.
    pub(super) fn is_for(&self, subject: Subject) -> bool {
        match self.pattern {
            _ if subject == Subject::PagefoldOneCpu => self.block_kib > 4,
            Pattern::Hot { .. } => subject.is_copy(),
            _ => true,
        }
    }

    /// Whether a copy is made for each run, since the run changes it.
    pub(super) fn writes(&self) -> bool {
        matches!(self.pattern, Pattern::Write | Pattern::Mixed)
    }

    /// Returns the pages that are read before the run.
    pub(super) fn warmed(&self, pages: u64) -> Option<Range<u64>> {
        match self.pattern {
            Pattern::Read { is_cached: true } => Some(middle(pages, CACHED_PAGES)),
            Pattern::Hot { .. } => Some(middle(pages, HOT_PAGES)),
            _ => None,
        }
    }

    /// Returns the load on a disk of `pages` pages.
    pub(super) fn load(&self, pages: u64) -> Load {
        let hot = match self.pattern {
            Pattern::Hot { misses } => Some(Hot { span: middle(pages, HOT_PAGES), misses }),
            _ => None,
        };
        let span = match self.pattern {
            Pattern::Read { is_cached: true } => middle(pages, CACHED_PAGES),
            _ => 0..pages,
        };
        let writes = match self.pattern {
            Pattern::Write => 100,
            Pattern::Mixed => 50,
            _ => 0,
        };
        Load { pages: self.block_kib / 4, writes, span, hot }
    }

    /// Returns the metrics of the reads or the writes: of the speed, and of the 99th percentile.
    pub(super) fn metrics(&self) -> &'static [[&'static str; 2]] {
        const READ: [&str; 2] = ["read_mb_s", "read_p99_us"];
        const WRITE: [&str; 2] = ["write_mb_s", "write_p99_us"];
        match self.pattern {
            Pattern::Read { .. } => &[READ],
            Pattern::Write => &[WRITE],
            Pattern::Mixed => &[READ, WRITE],
            Pattern::Hot { .. } => &[["read_mb_s", "hot_p99_us"]],
        }
    }
}

/// Returns `count` pages in the middle of a disk, or an eighth of it if it is small.
fn middle(pages: u64, count: u64) -> Range<u64> {
    let count = count.min(pages / 8);
    let first = (pages / 2).next_multiple_of(MIB_PAGES);
    first..first + count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_spans_fit() {
        let shapes = [Shape { connections: 1, depth: 1 }, Shape { connections: 8, depth: 16 }];
        let cases = Case::all(&shapes);
        let mut names: Vec<String> = cases.iter().map(|case| case.name("heap")).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), cases.len());
        assert!(names.contains(&"heap/rand-read/4k/8x16/whole/changed-50".to_owned()), "{names:?}");
        for case in &cases {
            let load = case.load(64 * MIB_PAGES);
            assert!(load.span.end <= 64 * MIB_PAGES && load.span.end - load.span.start >= 4 * MIB_PAGES);
        }
    }
}

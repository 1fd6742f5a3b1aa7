//! Runs, and what they measure.

use std::time::Duration;

/// What one run measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Requests per second.
    pub(super) rate: f64,
    /// The 99th percentile of the latency; NaN if the client does not report it.
    pub(super) p99_us: f64,
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) is_write: bool,
    pub(super) depth: usize,
    pub(super) clients: usize,
}

impl Case {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let shapes = [(1, 1), (32, 1), (1, 2), (32, 2)];
        let of = move |is_write| shapes.map(|(depth, clients)| Self { is_write, depth, clients });
        [false, true].into_iter().flat_map(of)
    }

    pub(super) fn name(self) -> String {
        let direction = if self.is_write { "rand-write" } else { "rand-read" };
        format!("{direction}/4k/{}x{}", self.clients, self.depth)
    }
}

/// How long runs last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) warm: Duration,
    pub(super) measured: Duration,
}

//! The chunks that a trace announces, and whether they arrive in time.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

/// How long a read waits for chunks that a trace announced.
pub(crate) const ANNOUNCED: Duration = Duration::from_millis(500);

/// A trace is given up after reads have waited this many times for chunks that were late.
const MOST_LATE: u32 = 3;

/// The chunks of a blob that a trace announces.
#[derive(Default)]
pub(crate) struct Coming {
    /// All chunks of the trace.
    all: HashSet<usize>,
    /// Chunks that arrive soon. Reads do not wait for them.
    chunks: HashSet<usize>,
    /// When they were announced, or a chunk arrived last.
    moved: Option<Instant>,
    /// Whether a read waited too long, and no chunk has arrived since.
    is_late: bool,
    times_late: u32,
}

impl Coming {
    /// Returns the state at the beginning of a trace with these chunks.
    pub(crate) fn of(all: impl IntoIterator<Item = usize>) -> Self {
        Self { all: all.into_iter().collect(), ..Self::default() }
    }

    /// Returns whether the trace is on time and contains the chunk: what is read after it is then
    /// in the trace too.
    pub(crate) fn knows(&self, chunk: usize) -> bool {
        !self.is_late && self.all.contains(&chunk)
    }

    /// Announces these chunks in place of the previous ones.
    pub(crate) fn announce(&mut self, chunks: impl IntoIterator<Item = usize>, now: Instant) {
        self.chunks = chunks.into_iter().collect();
        self.moved = Some(now);
    }

    /// Records that a chunk arrived.
    pub(crate) fn arrived(&mut self, now: Instant) {
        (self.moved, self.is_late) = (Some(now), false);
    }

    /// Records that a chunk was late.
    pub(crate) fn missed(&mut self) {
        self.times_late += u32::from(!self.is_late);
        self.is_late = true;
    }

    /// Returns whether reads do not wait for chunks that were announced.
    pub(crate) fn is_late(&self) -> bool {
        self.is_late
    }

    /// Returns whether reads are faster without the trace.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.times_late >= MOST_LATE
    }

    /// Returns whether a chunk arrives soon, so that it need not be fetched ahead.
    pub(crate) fn has(&self, chunk: usize, now: Instant) -> bool {
        let is_moving = self.moved.is_some_and(|moved| now.saturating_duration_since(moved) < ANNOUNCED);
        is_moving && !self.is_late && self.chunks.contains(&chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads that wait at the same time count as late once. A trace that is late or has stalled
    /// delays no read.
    #[test]
    fn what_is_late_is_not_waited_for() {
        let (mut coming, start) = (Coming::of([1, 2, 5]), Instant::now());
        assert!(!coming.has(1, start) && coming.knows(5) && !coming.knows(3));
        coming.announce([1, 2], start);
        assert!(coming.has(1, start) && !coming.has(3, start) && !coming.has(1, start + ANNOUNCED));
        coming.arrived(start + ANNOUNCED);
        assert!(coming.has(2, start + ANNOUNCED) && !coming.is_late());
        for time in 1..=MOST_LATE {
            for _ in 0..5 {
                coming.missed();
                assert!(coming.is_late() && !coming.has(2, start + ANNOUNCED) && !coming.knows(2));
                assert_eq!(coming.is_hopeless(), time == MOST_LATE);
            }
            coming.arrived(start);
            assert!(!coming.is_late());
        }
        assert!(coming.is_hopeless());
    }
}

//! The processor's counters, where there are any.

use std::io;

use perf_event::{Builder, Counter, events::Hardware};

/// Counters of this process and of the threads it starts while they are open.
pub(crate) struct Perf;

/// Counters that run.
pub(crate) struct Counting {
    counters: [Counter; EVENTS.len()],
}

const EVENTS: [(&str, Hardware); 3] = [
    ("instructions", Hardware::INSTRUCTIONS),
    ("cycles", Hardware::CPU_CYCLES),
    ("branch_misses", Hardware::BRANCH_MISSES),
];

/// What was counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts([u64; EVENTS.len()]);

impl Perf {
    /// Finds out whether this machine counts; most virtual ones do not.
    pub(crate) fn new() -> io::Result<Self> {
        open()?;
        Ok(Self)
    }

    /// Starts to count from zero.
    pub(crate) fn start(&self) -> io::Result<Counting> {
        let mut counters = open()?;
        for counter in &mut counters {
            counter.enable()?;
        }
        Ok(Counting { counters })
    }
}

impl Counting {
    /// What was counted since the start, threads that have ended included.
    pub(crate) fn stop(mut self) -> io::Result<Counts> {
        let mut counts = [0; EVENTS.len()];
        for (counter, count) in self.counters.iter_mut().zip(&mut counts) {
            counter.disable()?;
            *count = counter.read()?;
        }
        Ok(Counts(counts))
    }
}

impl Counts {
    /// The counts by the names of their metrics.
    pub(crate) fn figures(self) -> [(&'static str, u64); EVENTS.len()] {
        std::array::from_fn(|at| (EVENTS[at].0, self.0[at]))
    }
}

/// One by one: counters that threads inherit cannot be read as a group.
fn open() -> io::Result<[Counter; EVENTS.len()]> {
    let open = |at: usize| Builder::new(EVENTS[at].1).inherit(true).build();
    Ok([open(0)?, open(1)?, open(2)?])
}

//! The processor's performance counters, where available.

use std::io;

use perf_event::{Builder, Counter, events::Hardware};

/// Counters of this process and of the threads that it starts while they are open.
pub(crate) struct Perf;

/// Running counters.
pub(crate) struct Counting {
    counters: [Counter; EVENTS.len()],
}

const EVENTS: [(&str, Hardware); 3] = [
    ("instructions", Hardware::INSTRUCTIONS),
    ("cycles", Hardware::CPU_CYCLES),
    ("branch_misses", Hardware::BRANCH_MISSES),
];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts([u64; EVENTS.len()]);

impl Perf {
    /// Checks whether this machine has performance counters; most virtual machines do not.
    pub(crate) fn new() -> io::Result<Self> {
        open()?;
        Ok(Self)
    }

    /// Starts counting from zero.
    pub(crate) fn start(&self) -> io::Result<Counting> {
        let mut counters = open()?;
        for counter in &mut counters {
            counter.enable()?;
        }
        Ok(Counting { counters })
    }
}

impl Counting {
    /// Returns the counts since the start, including those of threads that have ended.
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
    /// Returns the counts with the names of their metrics.
    pub(crate) fn figures(self) -> [(&'static str, u64); EVENTS.len()] {
        std::array::from_fn(|at| (EVENTS[at].0, self.0[at]))
    }
}

/// Opens the counters one by one: inherited counters cannot be read as a group.
fn open() -> io::Result<[Counter; EVENTS.len()]> {
    let open = |at: usize| Builder::new(EVENTS[at].1).inherit(true).build();
    Ok([open(0)?, open(1)?, open(2)?])
}

//! Latencies of single operations, in constant space.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::Context;

/// Each power of two is divided into 2^5 steps, so a time is accurate to 3 %.
const STEP_BITS: u32 = 5;
const STEPS: usize = 1 << STEP_BITS;

/// Operations between two checks of whether the thread was preempted.
const LOOK_OPERATIONS: u32 = 512;

/// For shorter operations, preemption is not checked.
const LONG_NS: u64 = 50_000;

/// Latencies of the operations of one or several threads.
#[derive(Clone)]
pub struct Latencies {
    counts: Vec<u64>,
    max_ns: u64,
    /// The longest operation during which the thread was not preempted.
    max_running_ns: u64,
    preempted: u64,
    since_look: u32,
}

impl Latencies {
    /// Returns a histogram without operations.
    #[expect(clippy::new_without_default, reason = "it allocates")]
    pub fn new() -> Self {
        let counts = vec![0; STEPS * (u64::BITS - STEP_BITS + 1) as usize];
        Self { counts, max_ns: 0, max_running_ns: 0, preempted: 0, since_look: 0 }
    }

    /// Runs `operation` and records its time.
    pub fn time<T>(&mut self, operation: impl FnOnce() -> T) -> anyhow::Result<T> {
        if self.since_look == 0 {
            self.preempted = preemptions()?;
            self.since_look = LOOK_OPERATIONS;
        }
        self.since_look -= 1;
        let start = Instant::now();
        let done = operation();
        let ns = start.elapsed().as_nanos() as u64;
        self.counts[step(ns)] += 1;
        self.max_ns = self.max_ns.max(ns);
        if ns > self.max_running_ns {
            let preempted = if ns > LONG_NS { preemptions()? } else { self.preempted };
            if preempted == self.preempted {
                self.max_running_ns = ns;
            }
            self.preempted = preempted;
        }
        Ok(done)
    }

    /// Records an operation whose time was measured elsewhere.
    pub fn record(&mut self, time: Duration) {
        let ns = time.as_nanos() as u64;
        self.counts[step(ns)] += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the operations of another thread.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.max_ns = self.max_ns.max(other.max_ns);
        self.max_running_ns = self.max_running_ns.max(other.max_running_ns);
    }

    /// Returns the time in nanoseconds that `share` of the operations do not exceed.
    pub fn at(&self, share: f64) -> f64 {
        let wanted = (self.counts.iter().sum::<u64>() as f64 * share).ceil().max(1.0) as u64;
        let mut sum = 0;
        let found = self.counts.iter().position(|&count| {
            sum += count;
            sum >= wanted
        });
        found.map_or(f64::NAN, |step| end_ns(step).min(self.max_ns as f64))
    }

    /// Returns how many operations took longer than `bound_ns`, with the accuracy of
    /// [`at`](Self::at).
    pub fn longer_than(&self, bound_ns: u64) -> u64 {
        self.counts[step(bound_ns) + 1..].iter().sum()
    }

    /// Returns the longest time.
    pub fn max_ns(&self) -> f64 {
        self.max_ns as f64
    }

    /// Returns the longest time of an operation during which the thread was not preempted.
    pub fn max_running_ns(&self) -> f64 {
        self.max_running_ns as f64
    }
}

/// Returns the step of a time. Below 2^[`STEP_BITS`] ns, each ns is a step.
fn step(ns: u64) -> usize {
    let power = (u64::BITS - ns.leading_zeros()).saturating_sub(STEP_BITS + 1);
    ((power as usize) << STEP_BITS) + (ns >> power) as usize
}

/// Returns the end of a step, within the precision of `f64`.
fn end_ns(step: usize) -> f64 {
    let power = (step >> STEP_BITS).saturating_sub(1);
    let first = step - (power << STEP_BITS);
    (first + 1) as f64 * (power as f64).exp2() - 1.0
}

/// Returns how often the kernel has preempted this thread.
fn preemptions() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/thread-self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    Ok(line.context("status has no count of switches")?.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_ends_at_the_last_time_that_it_has() {
        for ns in (0..5000).chain([1 << 20, (1 << 20) - 1, 123_456_789, 1 << 50]) {
            let end = end_ns(step(ns));
            assert!(end >= ns as f64 && end <= ns as f64 * 1.04, "{ns} {end}");
            assert_eq!(step(end as u64), step(ns), "{ns}");
            assert_eq!(step(end as u64 + 1), step(ns) + 1, "{ns}");
        }
        assert!(step(u64::MAX) < Latencies::new().counts.len());
    }

    #[test]
    fn shares_are_found() {
        let mut latencies = Latencies::new();
        for ns in 1..=1000 {
            latencies.counts[step(ns)] += 1;
        }
        latencies.max_ns = 1000;
        for (share, ns) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = latencies.at(share);
            assert!((ns..=ns * 1.04).contains(&found), "{share}: {found}");
        }
        assert_eq!((latencies.longer_than(0), latencies.longer_than(31), latencies.longer_than(1000)), (1000, 969, 0));
        assert!(Latencies::new().at(0.5).is_nan());
    }
}

//! The speed of one thread on several devices that take turns.

use std::time::Instant;

use pagefold_report::{Output, median};

use crate::machine::thread_cpu_time;

/// Operations per second of each device: the median of its turns, by the clock and by this thread's
/// CPU time, which other work on the machine disturbs less.
pub(crate) struct Speeds(Vec<[Vec<f64>; 2]>);

impl Speeds {
    pub(crate) fn new(devices: usize) -> Self {
        Self(vec![Default::default(); devices])
    }

    /// Gives each device a turn of `operations`, in another order each time.
    pub(crate) fn turn(
        &mut self,
        at: u64,
        operations: u64,
        mut run: impl FnMut(usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for turn in 0..self.0.len() {
            let which = (turn + at as usize) % self.0.len();
            let (start, cpu_start) = (Instant::now(), thread_cpu_time());
            run(which)?;
            let cpu = thread_cpu_time().saturating_sub(cpu_start);
            for (speeds, time) in self.0[which].iter_mut().zip([start.elapsed(), cpu]) {
                speeds.push(operations as f64 / time.as_secs_f64());
            }
        }
        Ok(())
    }

    pub(crate) fn per_s(&self, which: usize) -> f64 {
        median(&self.0[which][0])
    }

    /// Puts the speed of a device over another's, as `metric`.
    pub(crate) fn put_ratio(&self, output: &mut Output, case: &str, metric: &str, which: usize, other: usize) {
        for (suffix, clock) in [("", 0), ("_of_cpu_time", 1)] {
            let ratio = median(&self.0[which][clock]) / median(&self.0[other][clock]);
            output.put(case, &format!("{metric}{suffix}"), ratio, "x");
        }
    }
}

//! The speed of one thread on several devices that take turns every few milliseconds.

use std::time::Instant;

use crate::{figure::median, machine::thread_cpu_time};

/// The speed of one device, chunk by chunk.
#[derive(Clone, Default)]
pub(crate) struct Speed {
    per_s: Vec<f64>,
    per_cpu_s: Vec<f64>,
}

impl Speed {
    /// Runs and times a chunk of `operations` operations.
    pub(crate) fn chunk(&mut self, operations: u64, run: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let (start, cpu_start) = (Instant::now(), thread_cpu_time());
        run()?;
        let cpu = thread_cpu_time().saturating_sub(cpu_start);
        self.per_s.push(operations as f64 / start.elapsed().as_secs_f64());
        self.per_cpu_s.push(operations as f64 / cpu.as_secs_f64());
        Ok(())
    }

    /// Returns operations per second: the median of the chunks.
    pub(crate) fn per_s(&self) -> f64 {
        median(&self.per_s)
    }

    /// Returns operations per second of this thread's CPU time, which other work on the machine
    /// disturbs less.
    pub(crate) fn per_cpu_s(&self) -> f64 {
        median(&self.per_cpu_s)
    }
}

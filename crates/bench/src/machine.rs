//! What the system reports about this machine's CPUs and about processes' memory.

use std::{fmt::Display, fs, num::NonZero, thread, time::Duration};

use anyhow::{Context, ensure};
use rustix::{
    thread::{CpuSet, sched_getaffinity},
    time::{ClockId, clock_gettime},
};

/// Returns the number of CPUs that this process may use.
pub(crate) fn cpus() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Returns the numbers of the CPUs that this thread may run on. There is at least one.
pub(crate) fn allowed_cpus() -> anyhow::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect();
    ensure!(!cpus.is_empty(), "no CPU to run on");
    Ok(cpus)
}

/// Returns in bytes a figure that `/proc/PROCESS/status` gives in kB, such as `VmRSS`. Fails if the
/// process has ended.
pub(crate) fn memory_bytes(process: impl Display, figure: &str) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).context("the process has exited")?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| *name == figure).with_context(|| format!("no {figure}"))?;
    let kib: u64 =
        value.trim().trim_end_matches("kB").trim().parse().with_context(|| format!("{figure} is not a number"))?;
    Ok(kib * 1024)
}

/// Returns this process's anonymous memory in bytes.
pub(crate) fn anonymous_bytes() -> anyhow::Result<u64> {
    anonymous_bytes_of("self")
}

/// Returns a process's anonymous memory in bytes, summed page by page. The counters of
/// `/proc/PROCESS/status` are off by some dozen pages per CPU.
pub(crate) fn anonymous_bytes_of(process: impl Display) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).context("no sum of the process's memory")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).context("no sum of anonymous memory")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().context("the sum is not a number")?;
    Ok(kib * 1024)
}

/// Returns the CPU time that all threads of this process have used.
pub(crate) fn cpu_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

/// Returns the CPU time that this thread has used.
pub(crate) fn thread_cpu_time() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns how often the kernel has preempted this thread.
pub(crate) fn preemptions() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/thread-self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    Ok(line.context("status has no count of switches")?.trim().parse()?)
}

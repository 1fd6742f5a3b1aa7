//! What the system reports about this machine's CPUs and about processes' memory.

use std::{
    collections::HashMap, fmt::Display, fs, num::NonZero, os::unix::fs::MetadataExt, path::Path, thread, time::Duration,
};

use anyhow::{Context, ensure};
use rustix::{
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
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

/// Runs `start`, which starts a process, on one CPU: a child inherits the CPUs of the thread that
/// starts it.
pub(crate) fn on_one_cpu<T>(start: impl FnOnce() -> T) -> anyhow::Result<T> {
    let before = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    one.set(allowed_cpus()?[0]);
    sched_setaffinity(None, &one)?;
    let started = start();
    sched_setaffinity(None, &before)?;
    Ok(started)
}

/// Returns the process and its descendants.
pub(crate) fn process_tree(process: u32) -> anyhow::Result<Vec<u32>> {
    let mut parents: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").context("cannot list processes")? {
        let Ok(id) = entry?.file_name().to_string_lossy().parse::<u32>() else { continue };
        // A process may end before its status is read.
        let Ok(status) = fs::read_to_string(format!("/proc/{id}/status")) else { continue };
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
        parents.entry(parent.unwrap_or(0)).or_default().push(id);
    }
    let mut tree = vec![process];
    let mut at = 0;
    while let Some(parent) = tree.get(at) {
        tree.extend(parents.remove(parent).unwrap_or_default());
        at += 1;
    }
    Ok(tree)
}

/// Returns the bytes allocated for the files under `folder` that a process has open, deleted ones
/// included, by device and inode.
pub(crate) fn open_file_bytes(process: u32, folder: &Path) -> anyhow::Result<HashMap<(u64, u64), u64>> {
    let mut files = HashMap::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd")).context("the process has exited")? {
        let path = entry?.path();
        if fs::read_link(&path).is_ok_and(|target| target.starts_with(folder))
            && let Ok(metadata) = fs::metadata(&path)
            && metadata.is_file()
        {
            files.insert((metadata.dev(), metadata.ino()), metadata.blocks() * 512);
        }
    }
    Ok(files)
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
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))
        .context("cannot read the process's memory figures")?;
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

/// Returns the CPU time that a process has used, in seconds.
pub(crate) fn cpu_seconds(process: u32) -> anyhow::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).context("no such process")?;
    // The name may contain anything; the fields after it are numbers. The user's and the system's
    // time are the 14th and the 15th field.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::Write,
        process::{self, Command, Stdio},
    };

    use super::*;

    #[test]
    fn children_and_deleted_files_count() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let tree = process_tree(process::id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(tree.contains(&process::id()) && tree.contains(&child.id()), "{tree:?}");

        let folder = tempfile::tempdir().unwrap();
        let mut file = File::create(folder.path().join("deleted")).unwrap();
        file.write_all(&[1; 100_000]).unwrap();
        file.sync_all().unwrap();
        fs::remove_file(folder.path().join("deleted")).unwrap();
        let bytes: u64 = open_file_bytes(process::id(), folder.path()).unwrap().values().sum();
        assert!((100_000..1_000_000).contains(&bytes), "{bytes}");
        drop(file);
    }
}

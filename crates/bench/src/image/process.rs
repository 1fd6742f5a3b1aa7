//! Runs programs and measures their time and memory.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    process::{Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use crate::machine::{memory_bytes, on_one_cpu};

/// How often a program's memory is sampled.
const INTERVAL: Duration = Duration::from_millis(2);

/// The time and memory of one run of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    /// From before the start until after the exit.
    pub(crate) seconds: f64,
    /// Maximum resident memory as Linux counts it (`VmHWM`). Growth in the last two milliseconds is
    /// missed. (`wait4` would also count this process's memory before the program was executed.)
    pub(crate) peak_rss_bytes: f64,
}

/// Runs a program to completion, on one CPU if `threads` is 1. Shows its output only if it fails.
pub(crate) fn run(command: &mut Command, threads: usize) -> anyhow::Result<Ran> {
    let mut said = tempfile::tempfile().context("no file for what a program says")?;
    let to = |file: &File| anyhow::Ok(Stdio::from(file.try_clone()?));
    command.stdin(Stdio::null()).stdout(to(&said)?).stderr(to(&said)?);
    let name = command.get_program().to_string_lossy().into_owned();
    let start = Instant::now();
    let child = if threads == 1 { on_one_cpu(|| command.spawn())? } else { command.spawn() };
    let mut child = child.with_context(|| format!("cannot start {name}"))?;
    let id = child.id();
    let (ended, watch) = mpsc::channel::<()>();
    let watcher = thread::spawn(move || {
        let mut peak = 0.0;
        loop {
            peak = memory_bytes(id, "VmHWM").map_or(peak, |bytes| bytes as f64);
            if watch.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                return peak;
            }
        }
    });
    let status = child.wait();
    let seconds = start.elapsed().as_secs_f64();
    drop(ended);
    let peak_rss_bytes = watcher.join().unwrap_or(f64::NAN);
    if !status?.success() {
        let mut text = Vec::new();
        said.seek(SeekFrom::Start(0))?;
        said.read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        let last: Vec<&str> = text.lines().rev().take(2).collect();
        bail!("{name} failed: {}", last.into_iter().rev().collect::<Vec<_>>().join("; "));
    }
    Ok(Ran { seconds, peak_rss_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_failure_of_a_child_are_seen() {
        // A shell that keeps a string of 16 MiB for a moment.
        let script = "x=$(head -c 16777216 /dev/zero | tr '\\0' x); sleep 0.1; exit 0";
        let ran = run(Command::new("sh").args(["-c", script]), 1).expect("a shell");
        assert!(ran.peak_rss_bytes > 16e6, "{ran:?}");
        let error = run(Command::new("sh").args(["-c", "echo why >&2; exit 3"]), 0).expect_err("it fails");
        assert!(error.to_string().contains("why"), "{error}");
    }
}

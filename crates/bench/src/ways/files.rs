//! Requests to files and devices by fio, and reads of a base's file.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::FileExt,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, ensure};
use pagefold_codec::PAGE_SIZE;
use pagefold_report::{Latencies, tool};
use rustix::fs::{Advice, fadvise};
use serde_json::Value;
use tempfile::NamedTempFile;

use super::case::{Case, Measured, Times};
use crate::{load::Random, machine::cpu_seconds};

/// Pages read one by one from a base that is not in memory.
const TOUCHES: usize = 4000;

/// Bytes of a read in order.
const LONG_BYTES: usize = 1 << 20;

/// Runs one case.
pub(super) fn run(path: &Path, size_bytes: u64, case: Case, times: Times, seed: u64) -> anyhow::Result<Measured> {
    let report = NamedTempFile::new()?;
    let mut fio = Command::new(tool::find("fio")?);
    fio.args(["--name=ways", "--bs=4k", "--time_based", "--group_reporting", "--output-format=json"]);
    fio.args(["--norandommap", "--refill_buffers", "--buffer_compress_percentage=60", "--thread"]);
    fio.arg(format!("--rw={}", if case.is_write { "randwrite" } else { "randread" }));
    fio.arg(format!("--iodepth={}", case.depth)).arg(format!("--numjobs={}", case.clients));
    fio.arg(format!("--runtime={}ms", times.measured.as_millis()));
    fio.arg(format!("--ramp_time={}ms", times.warm.as_millis()));
    fio.arg(format!("--size={size_bytes}")).arg(format!("--randseed={}", seed + 1));
    fio.arg(format!("--output={}", report.path().display()));
    let engine = if case.depth == 1 { "psync" } else { "io_uring" };
    // A colon separates names of files.
    fio.arg(format!("--filename={}", path.display().to_string().replace(':', "\\:")));
    fio.arg(format!("--ioengine={engine}")).arg("--direct=1");
    let output = fio.stdout(Stdio::null()).output()?;
    ensure!(output.status.success(), "fio failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    // fio may print notes before the report.
    let text = fs::read_to_string(report.path()).context("fio wrote no report")?;
    let report: Value =
        serde_json::from_str(&text[text.find('{').unwrap_or(0)..]).context("fio's report is not JSON")?;
    let job = &report["jobs"][0];
    ensure!(job["error"] == 0, "fio reports error {}", job["error"]);
    let number = |value: &Value| value.as_f64().context("fio's report lacks a figure");
    let side = &job[if case.is_write { "write" } else { "read" }];
    let p99_ns = number(&side["clat_ns"]["percentile"]["99.000000"])?;
    Ok(Measured { rate: number(&side["iops"])?, p99_us: p99_ns / 1e3 })
}

/// Reads a page.
pub(super) fn read_page(path: &Path, number: u64) -> anyhow::Result<[u8; PAGE_SIZE]> {
    let mut page = [0; PAGE_SIZE];
    let file = File::open(path).with_context(|| path.display().to_string())?;
    file.read_exact_at(&mut page, number * PAGE_SIZE as u64)?;
    Ok(page)
}

/// Reads random pages of a file of which nothing is in the page cache.
pub(super) fn first_touches(path: &Path) -> anyhow::Result<Latencies> {
    let file = File::open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    fadvise(&file, 0, None, Advice::Random)?;
    let pages = file.metadata()?.len() / PAGE_SIZE as u64;
    let (mut random, mut latencies) = (Random::new(39), Latencies::new());
    let mut page = [0; PAGE_SIZE];
    for _ in 0..TOUCHES {
        let at = random.below(pages) * PAGE_SIZE as u64;
        latencies.time(|| file.read_exact_at(&mut page, at))??;
    }
    Ok(latencies)
}

/// Reads a file in order, of which nothing is in the page cache. Returns the gigabytes per second
/// of CPU time of this process and the server together.
pub(super) fn in_order(path: &Path, server: u32) -> anyhow::Result<f64> {
    let mut file = File::open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut part = vec![0; LONG_BYTES];
    let own = std::process::id();
    let (before, start) = (cpu_seconds(own)? + cpu_seconds(server)?, Instant::now());
    let mut bytes = 0;
    loop {
        match file.read(&mut part)? {
            0 => break,
            read => bytes += read,
        }
    }
    let spent = (cpu_seconds(own)? + cpu_seconds(server)? - before).min(start.elapsed().as_secs_f64() * 64.0);
    ensure!(spent > 0.0, "the file is too short to measure");
    Ok(bytes as f64 / 1e9 / spent)
}

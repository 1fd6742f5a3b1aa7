//! Processes that map one file.
#![allow(unsafe_code)] // maps a file

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, ensure};
use memmap2::MmapOptions;
use pagefold_codec::PAGE_SIZE;

use crate::machine::memory_bytes;

/// Options of `pagefold-bench map`, a process of this bench.
#[derive(clap::Args)]
pub(crate) struct Args {
    file: PathBuf,
    len_bytes: usize,
}

/// Maps a file, touches its start and prints how much memory that took; exits when its standard
/// input ends.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let file = File::open(&args.file)?;
    let own = || anyhow::Ok(memory_bytes("self", "VmPTE")? + memory_bytes("self", "RssAnon")?);
    let before = own()?;
    // SAFETY: the file is a base's, which no program changes.
    let map = unsafe { MmapOptions::new().len(args.len_bytes).map(&file) }?;
    let sum: u64 = map.chunks(PAGE_SIZE).map(|page| u64::from(page[0])).sum();
    println!("{} {sum}", own()? - before);
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// Memory of processes that map one file.
pub(super) struct Memory {
    /// Of the page cache, shared by all.
    pub(super) shared_bytes: f64,
    /// Further memory of each process.
    pub(super) each_bytes: f64,
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets `count` processes map a file and touch its start.
pub(super) fn measure(path: &Path, count: usize, len_bytes: usize) -> anyhow::Result<Memory> {
    let program = std::env::current_exe()?;
    let (mut processes, mut own_bytes, mut sums) = (Vec::new(), 0, Vec::new());
    for _ in 0..count {
        let mut command = Command::new(&program);
        command.arg("map").arg(path).arg(len_bytes.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process(command.spawn()?);
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().context("no output")?).read_line(&mut line)?;
        let (bytes, sum) = line.trim().split_once(' ').context("a process failed")?;
        own_bytes += bytes.parse::<u64>()?;
        sums.push(sum.to_owned());
        processes.push(process);
    }
    ensure!(sums.iter().all(|sum| *sum == sums[0]), "the processes see different content");
    let shared = processes.iter().map(|process| share_bytes(process.0.id(), path)).sum::<anyhow::Result<u64>>()?;
    Ok(Memory { shared_bytes: shared as f64, each_bytes: own_bytes as f64 / count as f64 })
}

/// Returns a process's proportional share of the memory of a mapped file.
fn share_bytes(process: u32, path: &Path) -> anyhow::Result<u64> {
    let maps = fs::read_to_string(format!("/proc/{process}/smaps"))?;
    let name = path.to_str().context("a path that is not text")?;
    let share = maps.lines().skip_while(|line| !line.ends_with(name)).find_map(|line| line.strip_prefix("Pss:"));
    let kib: u64 = share.context("the map is not listed")?.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}

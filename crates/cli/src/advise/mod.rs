//! `pagefold advise`: forecasts the size of some data as a disk or an image, from a sample.

mod codecs;
mod estimate;
mod figures;
mod forks;
mod images;
mod input;
mod pages;
mod process;
mod stratum;
mod table;
mod times;
mod verdict;
mod walk;

use std::{
    io::Write,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use self::{input::Input, pages::Pages, verdict::Verdict};
use crate::{output::output, size};

/// Time limits: for finding files, for reading pages, for each page codec, and for packing (the
/// first and the last measured from the start). Including start and exit, the command takes ten
/// seconds.
const WALK_END: Duration = Duration::from_millis(2500);
const PAGES_TIME: Duration = Duration::from_millis(2500);
const CODEC_TIME: Duration = Duration::from_millis(150);
const END: Duration = Duration::from_millis(8600);

/// Minimum time for packing, even if a busy machine has used up the time before.
const LEAST_TIME: Duration = Duration::from_millis(500);

/// Threads that take samples: more would give the same results and slow down other programs.
const THREADS: usize = 2;

/// Forecast the size and speed of data as an image and as RAM disks, from a sample
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold advise rootfs/
  pagefold advise debian.img --memory 16G
  pagefold advise --pid 4711 --json

The command takes at most about ten seconds on two processors, whatever the size of the data, and \
writes nothing. What it cannot read completely it estimates: ± is the 95 % confidence interval.")]
pub(crate) struct Args {
    /// A directory, a file or a block device
    #[arg(value_name = "PATH", required_unless_present = "pid", conflicts_with = "pid")]
    path: Option<PathBuf>,

    /// Sample the memory of this process
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,

    /// Memory available for forks [default: the available memory of this machine]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,

    /// Maximum number of bytes to sample, once for the pages and once for each kind of image
    /// [default: as many as the time allows]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    sample: Option<u64>,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// All results.
struct Report {
    input: Input,
    pages: Pages,
    codecs: Vec<codecs::Figures>,
    images: Vec<images::Figures>,
    forks: forks::Figures,
    /// Memory available for forks.
    memory_bytes: u64,
    verdict: Verdict,
}

impl Report {
    /// Returns how many forks of this size fit into the memory.
    fn forks_that_fit(&self, bytes: f64) -> u64 {
        (self.memory_bytes as f64 / bytes.max(1.0)) as u64
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let start = Instant::now();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    let memory_bytes = args.memory.map_or_else(process::available_bytes, Ok)?;
    let input = match (&args.path, args.pid) {
        (Some(path), _) => walk::look_at(path, start + WALK_END, threads)?,
        (None, pid) => process::look_at(pid.unwrap_or_default(), start + WALK_END)?,
    };
    let sample_bytes = args.sample.unwrap_or(u64::MAX);
    let pages = pages::look_at(&input, sample_bytes, Instant::now() + PAGES_TIME, threads)?;
    let codecs = codecs::measure(&pages, CODEC_TIME, threads)?;
    let forks = forks::measure(&pages)?;
    let end = (start + END).max(Instant::now() + LEAST_TIME);
    let images = images::measure(&input, sample_bytes, end, threads)?;
    let mut report = Report { input, pages, codecs, images, forks, memory_bytes, verdict: Verdict::default() };
    report.verdict = verdict::of(&report, args.path.as_deref());
    let mut out = output();
    if args.json {
        figures::write(&mut out, &report)?;
    } else {
        table::write(&mut out, &report)?;
    }
    Ok(out.flush()?)
}

//! `pagefold advise`: forecasts the size of some data as a disk or an image, from a sample.

mod clock;
mod codecs;
mod costs;
mod estimate;
mod figures;
mod forks;
mod gaps;
mod images;
mod input;
mod order;
mod pages;
mod parallel;
mod process;
mod report;
mod scan;
mod stratum;
mod table;
mod times;
mod verdict;
mod walk;
mod whole;

use std::{io::Write, path::PathBuf, thread, time::Duration};

use anyhow::Context;
use pagefold_server::default_limit_bytes;

use self::{clock::Clock, codecs::Bench, input::InputKind, report::Report, stratum::PAGE_BYTES, verdict::Verdict};
use crate::{output::output, size};

/// Ends of the phases since the start: listing names, finding holes, looking for zeros while little
/// data was found, reading pages, page codecs without training, packing, forks, and training. Including
/// the last unit of work, start and exit, the command takes ten seconds.
const LIST_END: Duration = Duration::from_millis(2000);
const MAP_END: Duration = Duration::from_millis(2300);
const SCAN_END: Duration = Duration::from_millis(3000);
const PAGES_END: Duration = Duration::from_millis(4000);
const PLAIN_END: Duration = Duration::from_millis(4400);
const IMAGES_END: Duration = Duration::from_millis(6300);
const FORKS_END: Duration = Duration::from_millis(6700);
const END: Duration = Duration::from_millis(9100);

/// Maximum times of phases: of looking for zeros if much data was found, of reading pages, of each
/// page codec, of those without training, and of forks.
const SCAN_TIME: Duration = Duration::from_millis(400);
const PAGES_TIME: Duration = Duration::from_millis(1800);
const CODEC_TIME: Duration = Duration::from_millis(120);
const PLAIN_TIME: Duration = Duration::from_millis(500);
const FORKS_TIME: Duration = Duration::from_millis(400);

/// Threads that take samples: more would give the same results and slow down other programs.
const THREADS: usize = 2;

/// Forecast the size and speed of data as an image and as RAM disks, from a sample
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold advise rootfs/
  pagefold advise debian.img --memory 16G
  pagefold advise --pid 4711 --json

The command takes at most about ten seconds on two processors, whatever the size of the data, and \
writes nothing. If it cannot read everything, it prints estimates, each with a range that contains \
the true value in 95 of 100 cases.")]
pub(crate) struct Args {
    /// A directory, a file or a block device
    #[arg(value_name = "PATH", required_unless_present = "pid", conflicts_with = "pid")]
    path: Option<PathBuf>,

    /// Sample the memory of this process
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,

    /// Leave out what is mounted below PATH, as 'pack' does with this option
    #[arg(long, requires = "path")]
    one_file_system: bool,

    /// Memory available for forks [default: the default limit of 'serve', half of the machine or cgroup]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,

    /// Maximum number of bytes to sample, once for the pages and once for each kind of image
    /// [default: as many as the time allows]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes)]
    sample: Option<u64>,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

fn some_bytes(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        0 => Err("a sample has at least one byte".to_owned()),
        bytes => Ok(bytes),
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (report, verdict) = measure(args, &Clock::start())?;
    let mut out = output();
    if args.json {
        figures::write(&mut out, &report, &verdict)?;
    } else {
        table::write(&mut out, &report, &verdict)?;
    }
    Ok(out.flush()?)
}

fn measure(args: &Args, clock: &Clock) -> anyhow::Result<(Report, Verdict)> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    let memory_bytes = args
        .memory
        .or_else(default_limit_bytes)
        .context("the system does not say how much memory it has: give --memory")?;
    let mut input = match (&args.path, args.pid) {
        (Some(path), _) => {
            walk::look_at(path, args.one_file_system, [clock.until(LIST_END), clock.until(MAP_END)], threads)?
        }
        (None, pid) => process::look_at(pid.unwrap_or_default(), clock.until(MAP_END))?,
    };
    let sample_bytes = args.sample.unwrap_or(u64::MAX);
    let late = clock.until(SCAN_END);
    scan::scan(&mut input, sample_bytes, [late.or_after(SCAN_TIME), late], threads);
    let pages = pages::look_at(&input, sample_bytes, clock.until(PAGES_END).or_after(PAGES_TIME), threads)?;
    let plain_end = clock.until(PLAIN_END).or_after(PLAIN_TIME);
    let bench = Bench::new(&pages, plain_end.or_after(2 * CODEC_TIME))?;
    if let Some(bench) = &bench {
        bench.run(&codecs::PLAIN, CODEC_TIME, plain_end, threads)?;
    }
    // Packing takes the time in which nothing can be trained.
    let training = bench.as_ref().and_then(Bench::least_training);
    let spare = if training.is_some_and(|least| least < END - FORKS_END) { Duration::ZERO } else { END - FORKS_END };
    let images = images::measure(&input, &pages, sample_bytes, clock.until(IMAGES_END + spare), threads)?;
    // A disk has the holes of a file. The files of a directory fill a disk without theirs.
    let hole_bytes = if input.kind == InputKind::Directory { 0 } else { input.hole_bytes };
    let forks = forks::measure(&pages, hole_bytes / PAGE_BYTES, clock.until(FORKS_END + spare).or_after(FORKS_TIME))?;
    if let Some(bench) = &bench {
        bench.run(&codecs::TRAINED, CODEC_TIME, clock.until(END), threads)?;
    }
    let codecs = bench.map(Bench::into_figures).unwrap_or_default();
    let report = Report { input, pages, codecs, images, forks, memory_bytes };
    let verdict = verdict::of(&report, args.path.as_deref(), args.one_file_system);
    Ok((report, verdict))
}

#[cfg(test)]
mod tests;

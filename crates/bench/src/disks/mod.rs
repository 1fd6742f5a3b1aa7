//! `pagefold-bench disks`: checks the targets for a pool of many disks: memory and time per disk,
//! many disks compared with one, and writes at the memory limit.

mod idle;
mod limit;
mod many;

use std::path::PathBuf;

use clap::ValueEnum;
use pagefold_kinds::{gather, mixed};
use pagefold_report::{Output, Rounds};

use crate::{machine::cpus, product::keep_no_large_blocks};

/// Options of `pagefold-bench disks`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files whose pages are written [default: heaps of programs that the bench starts]
    #[arg(long, num_args = 1..)]
    data: Vec<PathBuf>,
    /// Maximum MiB of each file
    #[arg(long, default_value = "64", value_parser = crate::count)]
    mib: usize,
    /// Names of the codecs
    #[arg(long, value_delimiter = ',', default_value = "fold,lz4")]
    codecs: Vec<String>,
    /// Number of writing threads; 0 means all CPUs
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Memory limit of the pool that is filled, such as 512M or 16G; a second pool next to it
    /// spends half as much
    #[arg(long, default_value = "1G", value_parser = pagefold_size::parse)]
    limit: u64,
    /// Number of rounds, in which pools take turns; a speed at the limit is the median of the
    /// rounds, a speed of many disks is the fastest round's
    #[arg(long, default_value = "5", value_parser = crate::count)]
    rounds: usize,
    /// What to measure
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = DisksBench::value_variants().to_vec())]
    parts: Vec<DisksBench>,
    /// Print one JSON object per line on standard output; verdicts go to standard error
    #[arg(long)]
    json: bool,
}

/// A part of the bench.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DisksBench {
    /// Memory of disks that hold nothing or little, and the time to make and drop one
    Idle,
    /// A thousand disks written by all threads, compared with one disk of the same bytes
    Many,
    /// A pool filled to its memory limit and overwritten, compared with one filled half as much
    Limit,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    keep_no_large_blocks();
    let threads = if args.threads == 0 { cpus() } else { args.threads };
    let mut output = Output::new("disks", args.json, Rounds::Once);
    if args.parts.contains(&DisksBench::Idle) {
        // This must run first: memory that the allocator kept from other work would be reused for
        // the disks.
        idle::empty(&mut output)?;
    }
    let data = mixed(&gather(&args.data, args.mib << 8)?);
    if args.parts.contains(&DisksBench::Idle) {
        idle::forks(&mut output, &data)?;
    }
    for codec in &args.codecs {
        if args.parts.contains(&DisksBench::Many) {
            many::run(&mut output, codec, &data, threads, args.rounds)?;
        }
        if args.parts.contains(&DisksBench::Limit) {
            limit::run(&mut output, codec, &data, args.limit, threads, args.rounds)?;
        }
    }
    Ok(())
}

//! `pagefold-bench pool`: the memory of compressed pages in the product's store (`mosaic`) and in
//! the kernel's zram, after filling, during churn and after discards; and the speed and memory of
//! its allocator compared with xvmalloc and xcfmalloc; and a pool in a file in memory compared with one in
//! private memory.
//!
//! Those two run in the small store of `pagefold-published`. Apart from the allocator, it differs from
//! the product in its handling of zeros (no object; the product keeps every same-filled page in its
//! entry), and in its table and streams, which count in `spent_bytes`.

mod experiment;
mod kept;
mod memory;
mod speed;

use std::path::PathBuf;

use clap::ValueEnum;
use pagefold_codec::by_name;
use pagefold_kinds::gather;
use pagefold_report::{Output, Rounds};

use crate::machine::cpus;

/// Options of `pagefold-bench pool`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files whose pages fill the stores [default: heaps of programs that the bench starts]
    #[arg(long, num_args = 1..)]
    data: Vec<PathBuf>,
    /// File whose pages overwrite those of each --data file [default: the next --data file]
    #[arg(long)]
    other: Option<PathBuf>,
    /// Maximum MiB of each file; the store has the same number of pages
    #[arg(long, default_value_t = 64)]
    mib: usize,
    /// Names of the codecs
    #[arg(long, value_delimiter = ',', default_value = "lz4,fold")]
    codecs: Vec<String>,
    /// What to measure
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = PoolBench::value_variants().to_vec())]
    parts: Vec<PoolBench>,
    /// Leave out the kernel's zram, which needs root and an unused /dev/zram0, whose contents are
    /// lost
    #[arg(long)]
    no_zram: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// A part of the bench.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PoolBench {
    /// Memory spent after filling, during churn and after discards
    Memory,
    /// Speed of allocating and freeing
    Speed,
    /// The experiment with which xcfmalloc was proposed
    Experiment,
    /// Speed and memory of a pool in a file in memory, as with `serve --keep-memory`
    Kept,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut output = Output::new("pool", args.json, Rounds::Once);
    let pages_max = args.mib << 8;
    let data = gather(&args.data, pages_max)?;
    let other = if args.other.is_some() { gather(args.other.as_slice(), pages_max)? } else { Vec::new() };
    let mut threads = vec![1, cpus()];
    threads.dedup();
    for codec in &args.codecs {
        for (number, first) in data.iter().enumerate() {
            let second = match other.first() {
                Some(other) if other.name != first.name => other,
                _ => &data[(number + 1) % data.len()],
            };
            if args.parts.contains(&PoolBench::Memory) {
                memory::run(&mut output, codec, first, second, !args.no_zram)?;
            }
            if args.parts.contains(&PoolBench::Speed) {
                speed::run(&mut output, &*by_name(codec)?, first, &threads)?;
            }
            if args.parts.contains(&PoolBench::Kept) {
                kept::run(&mut output, codec, first)?;
            }
        }
    }
    if args.parts.contains(&PoolBench::Experiment) {
        experiment::run(&mut output, !args.no_zram)?;
    }
    Ok(())
}

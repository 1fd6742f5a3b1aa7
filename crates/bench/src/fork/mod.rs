//! `pagefold-bench fork`: checks the targets for forks of a packed disk, and compares them with
//! other ways to make many disks from one.

mod base;
mod freeze;
mod idle;
mod peers;
mod snapshot;
mod socket;
mod speeds;
mod work;

use std::path::PathBuf;

use clap::ValueEnum;
use pagefold_kinds::{Data, gather, mixed};
use pagefold_report::{Output, Rounds};

use crate::{product::keep_no_large_blocks, server::pagefold};
use base::BaseFiles;

/// Options of `pagefold-bench fork`.
#[derive(clap::Args)]
#[command(after_help = "\
The base is an ext4 disk with files of this machine, packed as an EROFS image. Other guests of \
the host affect every bound of time, so the verdict uses the p99. The longest time and the same \
thread without other work are reported next to it.")]
pub(crate) struct Args {
    /// Directories whose files are the base
    #[arg(long, num_args = 1.., default_values = ["/usr/bin", "/usr/share/doc", "/usr/lib/x86_64-linux-gnu"])]
    data: Vec<PathBuf>,
    /// Maximum MiB of these files
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Directory whose files are copied into each working fork
    #[arg(long, default_value = "/usr/lib/python3")]
    install: PathBuf,
    /// Number of working forks, and of qcow2 overlays
    #[arg(long, default_value = "100", value_parser = crate::count)]
    workers: usize,
    /// Number of idle forks
    #[arg(long, default_value = "10000", value_parser = crate::count)]
    forks: usize,
    /// Bytes changed before a snapshot or a rollback, such as 4G
    #[arg(long, default_value = "4G", value_parser = pagefold_size::parse)]
    changed: u64,
    /// Pages of each disk whose speed is measured
    #[arg(long, default_value = "65536", value_parser = crate::count)]
    pages: usize,
    /// Names of the codecs of these disks
    #[arg(long, value_delimiter = ',', default_value = "fold,lz4")]
    codecs: Vec<String>,
    /// Number of rounds, in which devices take turns; a speed is the median of all turns
    #[arg(long, default_value = "5", value_parser = crate::count)]
    rounds: usize,
    /// What to measure
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = ForkBench::value_variants().to_vec())]
    parts: Vec<ForkBench>,
    /// The pagefold program [default: the one next to this program]
    #[arg(long)]
    pagefold: Option<PathBuf>,
    /// An option for the server, such as --serve=--codec=pleat; repeat for more
    #[arg(long, allow_hyphen_values = true)]
    serve: Vec<String>,
    /// Directory on a disk for the base and its images
    #[arg(long, default_value = "/var/tmp")]
    scratch: PathBuf,
    /// Directory in tmpfs for the files of peers that work in memory
    #[arg(long, default_value = "/dev/shm")]
    tmpfs: PathBuf,
    /// Print one JSON object per line on standard output; verdicts go to standard error
    #[arg(long)]
    json: bool,
}

/// A part of the bench.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ForkBench {
    /// As a library: time of a fork and its first read, memory of idle forks, and what remains
    /// after they are dropped
    Idle,
    /// The same through the sockets of a server
    Socket,
    /// Other ways to make a disk that starts as a copy of another
    Peers,
    /// Snapshots and rollbacks, and how long they stall other threads
    Snapshot,
    /// Reads of the base through a fork, compared with the image library's
    Reads,
    /// Writes to a fork, compared with writes to a plain disk
    Writes,
    /// Reads with many snapshots below
    Depth,
    /// Cost and gain of storing equal pages once
    Dedupe,
    /// Freezing a fork with 1 % changed, compared with packing the whole disk
    Freeze,
    /// Memory of forks with the same files copied into each, compared with qcow2 overlays
    Work,
}

impl ForkBench {
    /// Whether this part needs a base of real files.
    fn needs_base(self) -> bool {
        matches!(self, Self::Idle | Self::Socket | Self::Peers | Self::Reads | Self::Freeze | Self::Work)
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    keep_no_large_blocks();
    let mut output = Output::new("fork", args.json, Rounds::Once);
    let wants = |part| args.parts.contains(&part);
    let base = if args.parts.iter().any(|part| part.needs_base()) {
        let pagefold = pagefold(args.pagefold.as_deref())?;
        let base = BaseFiles::make(&pagefold, args)?;
        base.print(&mut output);
        Some((pagefold, base))
    } else {
        None
    };
    if let Some((pagefold, base)) = &base {
        // This must run first: memory that the allocator kept from other work would be reused for
        // the forks.
        if wants(ForkBench::Idle) {
            idle::run(&mut output, base, args.forks)?;
        }
        if wants(ForkBench::Socket) {
            socket::run(&mut output, pagefold, base, args)?;
        }
        if wants(ForkBench::Peers) {
            peers::run(&mut output, base, &args.tmpfs)?;
        }
        if wants(ForkBench::Work) {
            work::run(&mut output, pagefold, base, args)?;
        }
        if wants(ForkBench::Reads) {
            speeds::reads(&mut output, base, args.rounds)?;
        }
        if wants(ForkBench::Freeze) {
            freeze::run(&mut output, pagefold, base, args)?;
        }
    }
    if [ForkBench::Snapshot, ForkBench::Writes, ForkBench::Depth, ForkBench::Dedupe].into_iter().any(wants) {
        let (data, pages) = (mixed(&gather(&[], 64 << 8)?), args.pages as u64);
        if wants(ForkBench::Snapshot) {
            snapshot::run(&mut output, &data, args.changed, args.rounds)?;
        }
        type Part = fn(&mut Output, &str, &Data, u64, usize) -> anyhow::Result<()>;
        let parts: [(ForkBench, Part); 3] = [
            (ForkBench::Writes, speeds::writes),
            (ForkBench::Dedupe, speeds::dedupe),
            (ForkBench::Depth, speeds::depth),
        ];
        for codec in &args.codecs {
            for (_, run) in parts.iter().filter(|(part, _)| wants(*part)) {
                run(&mut output, codec, &data, pages, args.rounds)?;
            }
        }
    }
    Ok(())
}

//! Options of the bench of forks.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::options::ServerOptions;

/// Options of `pagefold-bench fork`.
#[derive(clap::Args)]
#[command(after_help = "\
The base is an ext4 disk with files of this machine, packed as an EROFS image. Other guests of \
the host affect every bound of time, so the verdict uses the p99. The longest time and the same \
thread without other work are reported next to it.")]
pub(crate) struct Args {
    /// Directories whose files are the base
    #[arg(long, num_args = 1.., default_values = ["/usr/bin", "/usr/share/doc", "/usr/lib/x86_64-linux-gnu"])]
    pub(super) data: Vec<PathBuf>,
    /// Maximum MiB of these files
    #[arg(long, default_value_t = 256)]
    pub(super) mib: u64,
    /// Directory whose files are copied into each working fork
    #[arg(long, default_value = "/usr/lib/python3")]
    pub(super) install: PathBuf,
    /// Number of working forks, and of qcow2 overlays
    #[arg(long, default_value = "100", value_parser = crate::count)]
    pub(super) workers: usize,
    /// Number of idle forks
    #[arg(long, default_value = "10000", value_parser = crate::count)]
    pub(super) forks: usize,
    /// Bytes changed before a snapshot or a rollback, such as 4G
    #[arg(long, default_value = "4G", value_parser = pagefold_size::parse)]
    pub(super) changed: u64,
    /// Pages of each disk whose speed is measured
    #[arg(long, default_value = "65536", value_parser = crate::count)]
    pub(super) pages: usize,
    /// Names of the codecs of these disks
    #[arg(long, value_delimiter = ',', default_value = "fold,lz4")]
    pub(super) codecs: Vec<String>,
    /// Number of rounds, in which devices take turns; a speed is the median of all turns
    #[arg(long, default_value = "5", value_parser = crate::count)]
    pub(super) rounds: usize,
    /// What to measure
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = ForkBench::value_variants().to_vec())]
    pub(super) parts: Vec<ForkBench>,
    #[command(flatten)]
    pub(super) servers: ServerOptions,
}

/// A part of the bench.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ForkBench {
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
    pub(super) fn needs_base(self) -> bool {
        matches!(self, Self::Idle | Self::Socket | Self::Peers | Self::Reads | Self::Freeze | Self::Work)
    }
}

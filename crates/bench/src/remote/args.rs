//! Options of the bench of disks that are far away.

use std::path::PathBuf;

use super::subjects::Subject;

/// Options of `pagefold-bench remote`.
#[derive(clap::Args)]
#[command(after_help = "\
A registry and an S3 server run on this machine, and the files of peers are on a web server. A proxy \
before each of them delays each request, and all responses through it share one line. A guest mounts \
the ext4 file system of a disk, and runs programs from it: over NBD, nbdfuse and a loop device, which \
needs root. The first output is timed from the start of the disk's server on a host that has nothing.

Subjects that this machine lacks are skipped: docker-registry, moto (which 'make deps' installs), \
nbdkit with curl, qemu-block-extra, skopeo.")]
pub(crate) struct Args {
    /// Root directory of a system with /usr/bin/python3 [default: files of this system]
    #[arg(long, value_name = "DIR")]
    pub(super) data: Option<PathBuf>,
    /// Approximate MiB of this system's files
    #[arg(long, default_value_t = 500)]
    pub(super) mib: u64,
    /// Number of files on the disk whose metadata is scanned
    #[arg(long, default_value_t = 50_000, value_parser = crate::count)]
    pub(super) files: usize,
    /// Codec of the images, as for 'pagefold pack'
    #[arg(long, default_value = "zstd")]
    pub(super) codec: String,
    /// Number of servers that share a cache
    #[arg(long, default_value_t = 10, value_parser = crate::count)]
    pub(super) servers: usize,
    /// Number of forks of each server
    #[arg(long, default_value_t = 10, value_parser = crate::count)]
    pub(super) forks: usize,
    /// Delay of each request in milliseconds
    #[arg(long, default_value_t = 20)]
    pub(super) delay_ms: u64,
    /// Bandwidth in megabits per second
    #[arg(long, default_value_t = 200.0)]
    pub(super) megabits: f64,
    /// Number of rounds; times are medians
    #[arg(long, default_value_t = 3, value_parser = crate::count)]
    pub(super) rounds: usize,
    /// Only subjects whose name contains this
    #[arg(long, default_value = "")]
    pub(super) only: String,
    /// Only cases whose name contains this
    #[arg(long, default_value = "")]
    pub(super) case: String,
    /// The S3 server of moto [default: target/moto/bin/moto_server, or that on the PATH]
    #[arg(long, value_name = "PATH")]
    pub(super) moto: Option<PathBuf>,
    /// The pagefold program [default: the one next to this program]
    #[arg(long)]
    pub(super) pagefold: Option<PathBuf>,
    /// Directory on a disk for the images and the servers' files
    #[arg(long, default_value = "/var/tmp")]
    pub(super) scratch: PathBuf,
    /// Print one JSON object per line on standard output; verdicts go to standard error
    #[arg(long)]
    pub(super) json: bool,
}

impl Args {
    pub(super) fn has_case(&self, case: &str) -> bool {
        case.contains(&self.case)
    }

    pub(super) fn subjects(&self) -> impl Iterator<Item = Subject> {
        Subject::ALL.into_iter().filter(|subject| subject.name().contains(&self.only))
    }
}

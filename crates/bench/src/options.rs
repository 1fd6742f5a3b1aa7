//! Options of benches that start servers.

use std::path::PathBuf;

/// The servers, their files, and the output.
#[derive(clap::Args)]
pub(crate) struct ServerOptions {
    /// The pagefold program [default: the one next to this program]
    #[arg(long)]
    pub(crate) pagefold: Option<PathBuf>,
    /// An option for the servers of forks, such as --serve=--memory-limit=4G; repeat for more
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) serve: Vec<String>,
    /// Directory on a disk for bases and images
    #[arg(long, default_value = "/var/tmp")]
    pub(crate) scratch: PathBuf,
    /// Directory in tmpfs for the files of peers that keep changes in files
    #[arg(long, default_value = "/dev/shm")]
    pub(crate) tmpfs: PathBuf,
    /// Print one JSON object per line on standard output; tables and verdicts go to standard error
    #[arg(long)]
    pub(crate) json: bool,
}

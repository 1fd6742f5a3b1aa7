//! `pagefold quota`: bounds what the clients of a disk may take.

use pagefold_control::{Command, DiskRecord, MIN_RATE_BYTES, Quota};

use super::Asked;
use crate::size;

/// Bound the connections and the rate of a disk's clients
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold quota job-1 --connections 8 --rate 100M
  pagefold quota job-1 --rate 20M
  pagefold quota job-1

The bounds are for all clients of the disk together, and replace those that it had: a bound that is \
not given is removed. Clients that are connected stay. Further connections are refused, and \
requests wait until their turn. A request counts as at least 4 KiB.")]
pub(crate) struct Args {
    /// The disk
    name: String,

    /// Maximum number of connections
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    connections: Option<u64>,

    /// Maximum bytes that are read and written per second, at least 64K
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    rate: Option<u64>,

    #[command(flatten)]
    asked: Asked,
}

fn parse_rate(text: &str) -> Result<u64, String> {
    let rate = size::parse(text)?;
    if rate >= MIN_RATE_BYTES { Ok(rate) } else { Err(format!("less than {}", size::show(MIN_RATE_BYTES))) }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { name, connections, rate, asked } = args;
    let command = Command::Quota(Quota { name: name.clone(), connections: *connections, bytes_per_second: *rate });
    asked.perform(&command, |disk: &DiskRecord| {
        let connections =
            disk.max_connections.map_or_else(|| "any number of".to_owned(), |most| format!("at most {most}"));
        let rate =
            disk.bytes_per_second.map_or_else(|| "any rate".to_owned(), |rate| format!("{}/s", size::show(rate)));
        format!("'{}' may have {connections} connections, and {rate}", disk.name)
    })
}

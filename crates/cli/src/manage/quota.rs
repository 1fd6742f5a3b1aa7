//! `pagefold quota`: bounds what the clients of a disk may take.

use std::str::FromStr;

use clap::ArgGroup;
use pagefold_control::{Command, DiskQuota, DiskRecord, Failure, Listing, MIN_RATE_BYTES, Quota};

use super::Asked;
use crate::size;

/// Bound the connections and the rate of a disk's clients
#[derive(clap::Args)]
#[command(group = ArgGroup::new("bounds").args(["connections", "rate"]).required(true).multiple(true), after_help = "Examples:
  pagefold quota job-1 --connections 8 --rate 100M
  pagefold quota job-1 --rate 20M
  pagefold quota job-1 --connections 8 --rate none

'add', 'fork' and 'serve --export' take the same bounds for new disks. The bounds are for all \
clients of the disk together: a bound that is not given stays as it is, and 'none' removes it. \
Clients that are connected stay. Further connections are refused, and requests wait until their \
turn. A request counts as at least 4 KiB.")]
pub(crate) struct Args {
    /// The disk
    name: String,

    #[command(flatten)]
    quota: QuotaArgs,

    #[command(flatten)]
    asked: Asked,
}

/// The bounds for all clients of a disk together.
#[derive(clap::Args)]
pub(super) struct QuotaArgs {
    /// Maximum number of connections of all clients of a disk
    #[arg(long, value_name = "N|none", value_parser = bound(parse_connections::<u64>))]
    connections: Option<Bound>,

    /// Maximum bytes that all clients of a disk read and write per second, at least 64K
    #[arg(long, value_name = "SIZE|none", value_parser = bound(parse_rate))]
    rate: Option<Bound>,
}

/// A bound, or `none`, which is like a bound that is not given.
#[derive(Clone, Copy)]
struct Bound(Option<u64>);

fn bound(
    parse: fn(&str) -> Result<u64, String>,
) -> impl Fn(&str) -> Result<Bound, String> + Clone + Send + Sync + 'static {
    move |text| if text == "none" { Ok(Bound(None)) } else { parse(text).map(|bound| Bound(Some(bound))) }
}

impl QuotaArgs {
    /// Returns the quota of a disk that has another one, of which bounds that are not given stay.
    fn changed(&self, disk: &DiskRecord) -> DiskQuota {
        DiskQuota {
            connections: self.connections.map_or(disk.max_connections, |Bound(bound)| bound),
            bytes_per_second: self.rate.map_or(disk.bytes_per_second, |Bound(bound)| bound),
        }
    }

    pub(super) fn quota(&self) -> DiskQuota {
        let of = |bound: Option<Bound>| bound.and_then(|Bound(bound)| bound);
        DiskQuota { connections: of(self.connections), bytes_per_second: of(self.rate) }
    }
}

/// Parses a number of at least 1.
pub(crate) fn parse_connections<N: FromStr + Default + PartialEq>(text: &str) -> Result<N, String> {
    text.parse().ok().filter(|count| *count != N::default()).ok_or_else(|| "not a number of at least 1".to_owned())
}

pub(crate) fn parse_rate(text: &str) -> Result<u64, String> {
    let rate = size::parse(text)?;
    if rate >= MIN_RATE_BYTES { Ok(rate) } else { Err(format!("less than {}", size::written(MIN_RATE_BYTES))) }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { name, quota, asked } = args;
    let mut caller = asked.connect()?;
    let listing: Listing = caller.call(&Command::List {})?;
    let Some(disk) = listing.disks.iter().find(|disk| disk.name == *name) else {
        return Err(Failure::no_disk_among(name, listing.disks.iter().map(|disk| disk.name.as_str())).into());
    };
    let DiskQuota { connections, bytes_per_second } = quota.changed(disk);
    let command = Command::Quota(Quota { name: name.clone(), connections, bytes_per_second });
    let disk: DiskRecord = caller.call(&command)?;
    caller.print(&disk, || {
        let quota = DiskQuota { connections: disk.max_connections, bytes_per_second: disk.bytes_per_second };
        format!("set the quota of '{}' to {quota}", disk.name)
    })
}

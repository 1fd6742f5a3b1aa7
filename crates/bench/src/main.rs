//! `pagefold-bench`: measures pagefold and its peers in the same run.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the output of a tool for developers")]

mod client;
mod codec;
mod device;
mod disks;
mod fork;
mod image;
mod load;
mod locks;
mod loop_device;
mod machine;
mod memory;
mod nbd;
mod nbdfuse;
mod options;
mod pool;
mod product;
mod remote;
mod server;
mod speeds;
mod streams;
mod subjects;
mod ways;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Measures pagefold and its peers in the same run")]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Page codecs and their peers: bytes and speed of 4 KiB pages, one thread
    Codec(codec::Args),
    /// Gathers the kinds of data that `codec --kinds` measures
    Gather(pagefold_kinds::Args),
    /// LZ4 decompressed in place and from a separate buffer, at EROFS's cluster sizes
    InPlace(codec::in_place::Args),
    /// Compressed bytes of gathered kinds, checked against the committed table
    Sizes(codec::sizes::Args),
    /// Requests over NBD to RAM disks and forks, compared with nbdkit and with qcow2 overlays
    Nbd(nbd::Args),
    /// Files, vhost-user-blk and TLS, compared with qemu-storage-daemon and nbdkit
    Ways(ways::Args),
    /// A process of 'ways'
    #[command(hide = true)]
    Map(ways::mapped::Args),
    /// Writes at the memory limit, each read back and verified
    Soak(nbd::soak::Args),
    /// EROFS images: building, reading, mounting and extracting, compared with erofs-utils,
    /// squashfs and ext4
    Image(image::Args),
    /// The store, the kernel's zram, and the bare codec
    Device(device::Args),
    /// Stream policies of zram and of the store, with one to ten jobs
    Streams(streams::Args),
    /// Lock strategies for zram's table and the store's, with and without contention
    Locks(locks::Args),
    /// Many disks in one pool: memory, creation, removal, writes at the limit
    Disks(disks::Args),
    /// Forks: latency, memory, snapshots, speed, depth, and a real workload compared with qcow2
    /// overlays
    Fork(fork::Args),
    /// Memory of compressed pages in the store, in zram and in older allocators, and the
    /// allocators' speed
    Pool(pool::Args),
    /// Disks in a registry, in a bucket and on a web server that are far away, compared with nbdkit,
    /// qemu and skopeo
    Remote(remote::Args),
    /// All of these, which take turns, as one page: verdicts and the sources' tables
    Report(pagefold_report::Args),
}

/// Parses a count of at least 1, such as the number of rounds.
fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("not a number from 1 on".to_owned()),
        Ok(count) => Ok(count),
    }
}

fn main() -> anyhow::Result<()> {
    match Args::parse().bench {
        Bench::Codec(args) => codec::run(&args),
        Bench::Gather(args) => pagefold_kinds::run(&args),
        Bench::InPlace(args) => codec::in_place::run(&args),
        Bench::Sizes(args) => codec::sizes::run(&args),
        Bench::Nbd(args) => nbd::run(&args),
        Bench::Ways(args) => ways::run(&args),
        Bench::Map(args) => ways::mapped::run(&args),
        Bench::Soak(args) => nbd::soak::run(&args),
        Bench::Image(args) => image::run(&args),
        Bench::Device(args) => device::run(&args),
        Bench::Streams(args) => streams::run(&args),
        Bench::Locks(args) => locks::run(&args),
        Bench::Disks(args) => disks::run(&args),
        Bench::Fork(args) => fork::run(&args),
        Bench::Pool(args) => pool::run(&args),
        Bench::Remote(args) => remote::run(&args),
        Bench::Report(args) => pagefold_report::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_report_is_a_command_line_of_this_program() {
        for args in [true, false].into_iter().flat_map(|quick| pagefold_report::commands(quick).unwrap()) {
            let parsed = Args::try_parse_from(
                ["pagefold-bench"].into_iter().chain(args.iter().map(String::as_str)).chain(["--json"]),
            );
            assert!(parsed.is_ok(), "{args:?}: {}", parsed.err().unwrap());
        }
    }
}

//! `pagefold-bench`: measures pagefold and its peers in the same run.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the output of a tool for developers")]

mod callgrind;
mod client;
mod codec;
mod device;
mod disks;
mod figure;
mod fork;
mod image;
mod image_soak;
mod latency;
mod load;
mod locks;
mod machine;
mod memory;
mod nbd;
mod pages;
mod perf;
mod pool;
mod product;
mod remote;
mod report;
mod same_filled;
mod server;
mod soak;
mod streams;
mod subjects;
mod synthetic;
mod tool;
mod training;
mod verdict;
mod ways;
mod written;

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
    Gather(codec::kinds::Args),
    /// Detection of same-filled pages, compared with copying the page
    SameFilled(same_filled::Args),
    /// LZ4 decompressed in place and from a separate buffer, at EROFS's cluster sizes
    InPlace(codec::in_place::Args),
    /// Compressed bytes of fixed pages, checked against the committed table
    Sizes(codec::sizes::Args),
    /// Instructions that each codec executes for fixed pages under callgrind, checked against the
    /// committed table
    Instructions(codec::instructions::Args),
    /// Instructions of the store's writes and reads under callgrind, checked against the committed
    /// table
    StoreInstructions(disks::instructions::Args),
    /// Requests over NBD to RAM disks and forks, compared with nbdkit and with qcow2 overlays
    Nbd(nbd::Args),
    /// Files, vhost-user-blk and TLS, compared with qemu-storage-daemon and nbdkit
    Ways(ways::Args),
    /// A process of 'ways'
    #[command(hide = true)]
    Map(ways::mapped::Args),
    /// Writes at the memory limit, each read back and verified
    Soak(soak::Args),
    /// EROFS images: building, reading, mounting and extracting, compared with erofs-utils,
    /// squashfs and ext4
    Image(image::Args),
    /// Images of generated trees: read back, mounted, extracted and compared
    ImageSoak(image_soak::Args),
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
    /// All of these, in turns, as one HTML page: verdicts, the sources' tables, raw figures
    Report(report::Args),
    /// A store with trained tables, compared with one with built-in tables
    Training(training::Args),
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
        Bench::Gather(args) => codec::kinds::run(&args),
        Bench::SameFilled(args) => {
            same_filled::run(&args);
            Ok(())
        }
        Bench::InPlace(args) => codec::in_place::run(&args),
        Bench::Sizes(args) => codec::sizes::run(&args),
        Bench::Instructions(args) => codec::instructions::run(&args),
        Bench::StoreInstructions(args) => disks::instructions::run(&args),
        Bench::Nbd(args) => nbd::run(&args),
        Bench::Ways(args) => ways::run(&args),
        Bench::Map(args) => ways::mapped::run(&args),
        Bench::Soak(args) => soak::run(&args),
        Bench::Image(args) => image::run(&args),
        Bench::ImageSoak(args) => image_soak::run(&args),
        Bench::Device(args) => device::run(&args),
        Bench::Streams(args) => streams::run(&args),
        Bench::Locks(args) => locks::run(&args),
        Bench::Disks(args) => disks::run(&args),
        Bench::Fork(args) => fork::run(&args),
        Bench::Pool(args) => pool::run(&args),
        Bench::Remote(args) => remote::run(&args),
        Bench::Report(args) => report::run(&args),
        Bench::Training(args) => training::run(&args),
    }
}

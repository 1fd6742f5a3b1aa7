//! `pagefold-bench`: the project's tables, with the real peers measured in the same run.

mod callgrind;
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
mod report;
mod same_filled;
mod server;
mod soak;
mod streams;
mod subjects;
mod synthetic;
mod training;
mod verdict;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Measures pagefold beside its peers")]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Page codecs and their peers: bytes and speed at 4 KiB, one thread
    Codec(codec::Args),
    /// Gathers the kinds of data that `codec --kinds` measures
    Gather(codec::kinds::Args),
    /// Finding pages that one word fills, beside a copy of the page
    SameFilled(same_filled::Args),
    /// LZ4 decoded in place beside decoding apart, at EROFS's sizes
    InPlace(codec::in_place::Args),
    /// Compressed bytes of fixed pages against the committed table
    Sizes(codec::sizes::Args),
    /// Instructions of every codec for fixed pages, under callgrind, against the committed table
    Instructions(codec::instructions::Args),
    /// Instructions of the store's writes and reads, under callgrind, against the committed table
    StoreInstructions(disks::instructions::Args),
    /// The NBD server beside nbdkit's memory plugin, with fio
    Nbd(nbd::Args),
    /// Verified writing at the memory limit
    Soak(soak::Args),
    /// EROFS images: built, read, mounted and extracted beside erofs-utils, squashfs and ext4
    Image(image::Args),
    /// Generated trees as images: read back, mounted and extracted
    ImageSoak(image_soak::Args),
    /// The store against the kernel's zram and against the bare codec
    Device(device::Args),
    /// zram's stream policies and the store's, under one to ten jobs
    Streams(streams::Args),
    /// The locks that zram's table was tried with, and the store's way, alone and contended
    Locks(locks::Args),
    /// Many disks in one pool: memory, creating and dropping, writing at the limit
    Disks(disks::Args),
    /// Forks: latency, memory, snapshots, speed, depth, and real work beside qcow2 overlays
    Fork(fork::Args),
    /// Memory that compressed pages take in the store, in zram and in older allocators, and the allocators' speed
    Pool(pool::Args),
    /// All of these in turns as one page of HTML: verdicts, the sources' tables, raw figures
    Report(report::Args),
    /// A store with tables trained on its own pages beside one with the codec's
    Training(training::Args),
}

/// A number from 1 on, as of rounds.
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
        Bench::Soak(args) => soak::run(&args),
        Bench::Image(args) => image::run(&args),
        Bench::ImageSoak(args) => image_soak::run(&args),
        Bench::Device(args) => device::run(&args),
        Bench::Streams(args) => streams::run(&args),
        Bench::Locks(args) => locks::run(&args),
        Bench::Disks(args) => disks::run(&args),
        Bench::Fork(args) => fork::run(&args),
        Bench::Pool(args) => pool::run(&args),
        Bench::Report(args) => report::run(&args),
        Bench::Training(args) => training::run(&args),
    }
}

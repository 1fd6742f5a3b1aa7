//! `pagefold-bench`: the project's tables, with the real peers measured in the same run.

mod codec;
mod report;
mod synthetic;

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
}

fn main() -> anyhow::Result<()> {
    match Args::parse().bench {
        Bench::Codec(args) => codec::run(&args),
    }
}

//! `pagefold check`: whether an image is sound.

use std::{io::Write, path::PathBuf};

use anyhow::bail;

use crate::image::{open, show};
use crate::output::output;
use crate::size;

/// Check an EROFS image: its structure, and that everything in it decodes
#[derive(clap::Args)]
#[command(after_help = "Ends with status 0 if nothing is wrong, else 1.")]
pub(crate) struct Args {
    /// The image
    image: PathBuf,

    /// Threads; 0 for one a processor
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let image = open(&args.image)?;
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        threads => threads,
    };
    let report = image.check(threads);
    for problem in &report.problems {
        eprintln!("{}: {}", show(&problem.path), problem.error);
    }
    if report.problems.is_empty() {
        let mut out = output();
        writeln!(out, "sound: {} inodes, {} of files", report.inodes, size::show(report.file_bytes))?;
        out.flush()?;
        return Ok(());
    }
    bail!("{}: {} problems", args.image.display(), report.problems.len() as u64 + report.more_problems);
}

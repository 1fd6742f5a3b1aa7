//! `pagefold check`: whether an image is sound, or what is at a path of it.

use std::io::Write;

use anyhow::bail;

use crate::image::{ImageArgs, Place, resolve, show_below};
use crate::output::output;
use crate::size;

/// Check an EROFS image: its structure, and that everything in it decodes
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold check rootfs.erofs
  pagefold check rootfs.erofs:/usr/lib

With a path, only what is at it and below is checked, not links from elsewhere or what the superblock counts.
Ends with status 0 if nothing is wrong, else 1.")]
pub(crate) struct Args {
    /// The image, and a path in it
    #[arg(value_name = "IMAGE[:PATH]")]
    place: Place,

    #[command(flatten)]
    image: ImageArgs,

    /// Threads; 0 for one a processor
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Place { image: file, path } = &args.place;
    let image = args.image.open(file)?;
    let report = match path.as_slice() {
        [] => image.check(args.threads),
        path => image.check_below(&resolve(&image, path)?, args.threads),
    };
    for problem in &report.problems {
        eprintln!("{}: {}", show_below(path, &problem.path), problem.error);
    }
    if report.problems.is_empty() {
        let mut out = output();
        writeln!(out, "sound: {} inodes, {} of files", report.inodes, size::show(report.file_bytes))?;
        out.flush()?;
        return Ok(());
    }
    let count = report.problems.len() as u64 + report.more_problems;
    bail!("{}: {count} problem{}", file.display(), if count == 1 { "" } else { "s" });
}

//! `pagefold check`: whether an image is sound, or what is at a path of it.

use std::io::Write;
use std::path::Path;

use anyhow::bail;
use pagefold_erofs::CheckReport;

use crate::image::{ImageArgs, Place, resolve, show_below};
use crate::output::{is_closed, output};
use crate::record::{self, Record};
use crate::size;

/// Check an EROFS image: its structure, and that everything in it decodes
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold check rootfs.erofs
  pagefold check rootfs.erofs:/usr/lib
  pagefold check --json rootfs.erofs
  pagefold check --offset 1M firmware.bin

With a path, only the file or directory there and what is below it are checked, not links from elsewhere or the \
superblock's counts.
The exit status is 0 if nothing is wrong, otherwise 1.")]
pub(crate) struct Args {
    /// The image, and a path in it
    #[arg(value_name = "IMAGE[:PATH]")]
    place: Place,

    /// Threads; 0 for one per processor
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// One JSON object a line on standard output: each problem, then the verdict
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    image: ImageArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Place { image: file, path } = &args.place;
    let image = args.image.open(file)?;
    let report = match path.as_slice() {
        [] => image.check(args.threads),
        path => image.check_below(&resolve(&image, path)?, args.threads),
    };
    let count = report.problems.len() as u64 + report.more_problems;
    if args.json {
        match print_json(path, &report, count) {
            // Nobody reads the problems any more, but there are some.
            Err(error) if count == 0 || !is_closed(&error) => return Err(error),
            _ if count == 0 => return Ok(()),
            _ => bail!("{}", verdict(file, count)),
        }
    }
    for problem in &report.problems {
        eprintln!("{}: {}", show_below(path, &problem.path), problem.error);
    }
    if report.problems.is_empty() {
        let mut out = output();
        writeln!(out, "sound: {} inodes, {} of files", report.inodes, size::show(report.file_bytes))?;
        out.flush()?;
        return Ok(());
    }
    bail!("{}", verdict(file, count));
}

fn verdict(file: &Path, count: u64) -> String {
    format!("{}: {count} problem{}", file.display(), if count == 1 { "" } else { "s" })
}

fn print_json(place: &[u8], report: &CheckReport, count: u64) -> anyhow::Result<()> {
    let mut out = output();
    for problem in &report.problems {
        record::problem(place, problem).write(&mut out)?;
    }
    Record::new()
        .field("sound", count == 0)
        .field("problems", count)
        .field("inodes", report.inodes)
        .field("directories", report.directories)
        .field("file_bytes", report.file_bytes)
        .write(&mut out)?;
    out.flush()?;
    Ok(())
}

//! `pagefold extract`: an image's files into a directory.

use std::path::PathBuf;

use anyhow::{Context, bail};
use pagefold_erofs::{Error, ExtractOptions, FileKind, Problem};

use crate::image::{ImageArgs, Place, resolve, show, show_below};
use crate::size;

/// Extract all files of an EROFS image, or those in a directory of it
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold extract rootfs.erofs -C rootfs/
  pagefold extract rootfs.erofs:/etc -C etc/

Modes, times, links, holes and xattrs are restored; owners and devices if root does it. Nothing is written \
outside the directory, and nothing that exists is replaced.")]
pub(crate) struct Args {
    /// The image, and a directory in it
    #[arg(value_name = "IMAGE[:PATH]")]
    place: Place,

    #[command(flatten)]
    image: ImageArgs,

    /// The directory, which is made if it does not exist
    #[arg(short = 'C', long, value_name = "DIRECTORY")]
    directory: PathBuf,

    /// Threads; 0 for one a processor
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// Leave owners as they are made, and device files out
    #[arg(long)]
    no_owners: bool,

    /// Leave extended attributes out; some may be set by root alone
    #[arg(long)]
    no_xattrs: bool,

    /// Extract at most this much content
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_size: Option<u64>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Place { image: file, path } = &args.place;
    let image = args.image.open(file)?;
    let start = resolve(&image, path)?;
    if start.kind != FileKind::Directory {
        let place = format!("{}:{}", file.display(), show(path));
        bail!("{place} is no directory; for the content of a file there is: pagefold cat {place}");
    }
    let default = ExtractOptions::default();
    let options = ExtractOptions {
        threads: args.threads,
        owners: default.owners && !args.no_owners,
        xattrs: !args.no_xattrs,
        max_bytes: args.max_size,
    };
    let mut report =
        image.extract_below(&start, &args.directory, &options).with_context(|| args.directory.display().to_string())?;
    let last = if report.stopped { report.problems.pop() } else { None };
    for problem in &report.problems {
        eprintln!("{}: {}", show_below(path, &problem.path), problem.error);
    }
    if let Some(Problem { path: below, error }) = last {
        let got = format!("{} names with {} of files", report.names, size::show(report.file_bytes));
        bail!("{}: {}: {error}; stopped, with {got} extracted", args.directory.display(), show_below(path, &below));
    }
    if !report.problems.is_empty() {
        let limit = report.problems.iter().find_map(|problem| match problem.error {
            Error::TooMuch { allowed, .. } => Some(allowed),
            _ => None,
        });
        let advice = limit.map_or_else(String::new, |limit| {
            format!("; --max-size {} was reached: give a greater one, or leave it out", size::show(limit))
        });
        let count = report.problems.len() as u64 + report.more_problems;
        let files = if count == 1 { "file was" } else { "files were" };
        bail!("{count} {files} not extracted, or not whole{advice}");
    }
    Ok(())
}

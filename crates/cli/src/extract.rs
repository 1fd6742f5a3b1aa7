//! `pagefold extract`: an image's files into a directory.

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use pagefold_erofs::{Error, ExtractOptions, Problem};

use crate::image::{Place, open, show};
use crate::{misuse, size};

/// Extract all files of an EROFS image
#[derive(clap::Args)]
#[command(after_help = "Example:
  pagefold extract rootfs.erofs -C rootfs/

Modes, times, links, holes and xattrs are restored; owners and devices if root does it. Nothing is written \
outside the directory, and nothing that exists is replaced.")]
pub(crate) struct Args {
    /// The image
    #[arg(value_name = "IMAGE")]
    place: Place,

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
    let image = open(file)?;
    if !path.is_empty() {
        let advice = format!("for a file of it there is: pagefold cat {}:PATH", file.display());
        return Err(misuse(anyhow!("extract takes a whole image; {advice}")));
    }
    let default = ExtractOptions::default();
    let options = ExtractOptions {
        threads: args.threads,
        owners: default.owners && !args.no_owners,
        xattrs: !args.no_xattrs,
        max_bytes: args.max_size,
    };
    let mut report = image.extract(&args.directory, &options).with_context(|| args.directory.display().to_string())?;
    let last = if report.stopped { report.problems.pop() } else { None };
    for problem in &report.problems {
        eprintln!("{}: {}", show(&problem.path), problem.error);
    }
    if let Some(Problem { path, error }) = last {
        let got = format!("{} names with {} of files", report.names, size::show(report.file_bytes));
        bail!("{}: {}: {error}; stopped, with {got} extracted", args.directory.display(), show(&path));
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

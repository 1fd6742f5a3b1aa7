//! `pagefold extract`: extracts an image's files into a directory.

use std::path::PathBuf;

use anyhow::{Context, bail};
use pagefold_erofs::{Error, ExtractOptions, FileKind, Problem};

use crate::image::{ImageArgs, ImagePath, resolve, show, show_below, tell_problems, tell_warnings};
use crate::size;

/// Extract an EROFS image, or a directory of it
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold extract rootfs.erofs -C rootfs/
  pagefold extract rootfs.erofs:/etc -C etc/
  pagefold extract --no-owners --no-same-permissions untrusted.erofs -C out/
  pagefold extract --offset 1M firmware.bin -C rootfs/

The command restores modes, times, links, holes and xattrs, and as root also owners and device \
files. It writes nothing outside DIRECTORY and replaces no existing file.

Modes are restored with their set-user-ID and set-group-ID bits. Without owners, a set-user-ID \
program belongs to the user who extracts it and runs with that user's rights; \
--no-same-permissions leaves out these bits.")]
pub(crate) struct Args {
    /// The image, and optionally a directory in it
    #[arg(value_name = "IMAGE[:PATH]")]
    place: ImagePath,

    /// Directory to extract into; created if it does not exist
    #[arg(short = 'C', long, value_name = "DIRECTORY")]
    directory: PathBuf,

    /// Number of threads; 0 means one per processor
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// Leave out device files and do not restore owners: files belong to the current user
    #[arg(long, visible_alias = "no-same-owner")]
    no_owners: bool,

    /// Leave out set-user-ID, set-group-ID and sticky bits and file capabilities, and apply the
    /// umask, as tar does
    #[arg(long)]
    no_same_permissions: bool,

    /// Leave out extended attributes; only root can set some of them
    #[arg(long)]
    no_xattrs: bool,

    /// Stop with an error after this many bytes of file contents
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_size: Option<u64>,

    #[command(flatten)]
    image: ImageArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let ImagePath { image: file, path } = &args.place;
    let image = args.image.open(file)?;
    let start = resolve(&image, path)?;
    if start.kind != FileKind::Directory {
        let place = format!("{}:{}", file.display(), show(path));
        bail!("{place} is not a directory; to get the content of a file: pagefold cat {place}");
    }
    let default = ExtractOptions::default();
    let options = ExtractOptions {
        threads: args.threads,
        owners: default.owners && !args.no_owners,
        permissions: !args.no_same_permissions,
        xattrs: !args.no_xattrs,
        max_bytes: args.max_size,
    };
    let mut report =
        image.extract_below(&start, &args.directory, &options).with_context(|| args.directory.display().to_string())?;
    let last = if report.stopped { report.problems.pop() } else { None };
    tell_warnings(path, &report.warnings, report.more_warnings);
    tell_problems(path, &report.problems);
    if let Some(Problem { path: below, error, .. }) = last {
        let got = format!("{} names with {} of files", report.names, size::show(report.file_bytes));
        bail!("{}: {}: {error}; stopped, with {got} extracted", args.directory.display(), show_below(path, &below));
    }
    if !report.problems.is_empty() {
        let limit = report.problems.iter().find_map(|problem| match problem.error {
            Error::TooMuch { allowed, .. } => Some(allowed),
            _ => None,
        });
        let advice = limit.map_or_else(String::new, |limit| {
            format!("; --max-size {} was reached: raise it or leave it out", size::show(limit))
        });
        let count = report.problems.len() as u64 + report.more_problems;
        let files = if count == 1 { "file" } else { "files" };
        bail!("failed to extract {count} {files}{advice}");
    }
    Ok(())
}

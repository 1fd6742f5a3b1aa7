//! `pagefold extract`: extracts an image's files into a directory.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use pagefold_erofs::{Error, Existing, ExtractOptions, ExtractProblem, ExtractReport, FileKind, LeftOut};

use crate::{
    image::{ImageArgs, ImagePath, print_warnings, resolve, show_below},
    text::{plain, show},
};
use crate::{report::print, size};

/// Extract an EROFS image, or a directory of it
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold extract rootfs.erofs -C rootfs/
  pagefold extract rootfs.erofs:/etc -C etc/
  pagefold extract --overwrite rootfs.erofs -C rootfs/
  pagefold extract --no-owners --no-same-permissions --max-files 100000 --max-size 10G \\
    untrusted.erofs -C out/
  pagefold extract --offset 1M firmware.bin -C rootfs/

The command restores modes, times, links, holes and xattrs, and as root also owners, device \
files and the xattrs that only root can set. It says what it left out, with exit status 0. It \
writes nothing outside DIRECTORY.

A name that exists in DIRECTORY is an error, unless --keep or --overwrite is given. Both enter \
existing directories, but no symbolic links, and give them the image's metadata. After an \
interrupted extraction, --keep extracts what is missing; it names files that are incomplete or \
otherwise differ, with exit status 1, and --overwrite replaces them.

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

    /// Leave out extended attributes
    #[arg(long)]
    no_xattrs: bool,

    /// Leave existing files as they are
    #[arg(long, conflicts_with = "overwrite")]
    keep: bool,

    /// Replace existing files, each once the new one is complete; other hard links to them keep
    /// the old content. A directory is not replaced by another kind of file, nor a file from which
    /// the image is read
    #[arg(long)]
    overwrite: bool,

    /// Stop with an error after this many bytes of file contents
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_size: Option<u64>,

    /// Stop with an error after this many files, directories and hard links
    #[arg(long, value_name = "NUMBER")]
    max_files: Option<u64>,

    #[command(flatten)]
    image: ImageArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let ImagePath { image: file, path } = &args.place;
    let image = args.image.open(file)?;
    let start = resolve(&image, file, path)?;
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
        existing: match (args.keep, args.overwrite) {
            (true, _) => Existing::Keep,
            (_, true) => Existing::Overwrite,
            _ => Existing::Refuse,
        },
        inputs: args.image.inputs(file).files(&args.directory),
        max_bytes: args.max_size,
        max_files: args.max_files,
    };
    let mut report =
        image.extract_below(&start, &args.directory, &options).with_context(|| args.directory.display().to_string())?;
    let last = if report.stopped { report.problems.pop() } else { None };
    print_warnings(path, &report.warnings, report.more_warnings);
    for ExtractProblem { path, error, count, .. } in &report.problems {
        let more = match count {
            1 => String::new(),
            2 => " (and 1 more file)".to_owned(),
            count => format!(" (and {} more files)", count - 1),
        };
        print(&format!("{}: {}{more}", in_target(&args.directory, path), plain(&error.to_string())));
    }
    let left_out = left_out(&report.left_out, !args.no_owners);
    if !left_out.is_empty() {
        print(&format!("left out: {left_out}"));
    }
    if let Some(ExtractProblem { path, error, .. }) = last {
        let names = if report.names == 1 { "1 name".to_owned() } else { format!("{} names", report.names) };
        let got = format!("{names} with {} of files", size::show(report.file_bytes));
        bail!("{}: {error}; stopped, with {got} extracted", in_target(&args.directory, &path));
    }
    args.conclude(&report)
}

impl Args {
    /// Returns an error if the target does not have what the image has.
    fn conclude(&self, report: &ExtractReport) -> anyhow::Result<()> {
        let count = |extracted: bool| -> u64 {
            report.problems.iter().filter(|problem| problem.extracted == extracted).map(|problem| problem.count).sum()
        };
        let mut parts = Vec::new();
        let missing = count(false) + report.more_problems;
        if missing > 0 {
            parts.push(format!("failed to extract {}", lacking(missing, directories(report))));
        }
        let incomplete = count(true);
        if incomplete > 0 {
            parts.push(format!("failed to set {}", counted(incomplete, "attribute")));
        }
        if let Some((count, first)) = &report.different {
            let first = in_target(&self.directory, first);
            let differ = if *count == 1 { "differs" } else { "differ" };
            let files = counted(*count, "file");
            parts.push(format!("kept {files} that {differ} in kind, size or time from the image, such as {first}"));
        }
        if parts.is_empty() {
            return Ok(());
        }
        let has = |what: fn(&Error) -> bool| report.problems.iter().any(|problem| what(&problem.error));
        if let Some(limit) = self.max_size.filter(|_| has(|error| matches!(error, Error::TooMuch { .. }))) {
            parts.push(format!("--max-size {} was reached: raise it or leave it out", size::written(limit)));
        }
        if !self.keep && !self.overwrite && has(|error| matches!(error, Error::Exists | Error::DirectoryExists)) {
            parts.push("--keep leaves existing files as they are, --overwrite replaces them".to_owned());
        } else if let Some((count, _)) = &report.different {
            let them = if *count == 1 { "it" } else { "them" };
            parts.push(format!("--overwrite replaces {them}, but no directory"));
        }
        bail!("{}", parts.join("; "))
    }
}

/// Returns the number of directories that were not extracted, with what is in them.
fn directories(report: &ExtractReport) -> u64 {
    let is_of_directory = |error: &Error| matches!(error, Error::DirectoryExists | Error::KeptInPlace);
    report.problems.iter().filter(|problem| is_of_directory(&problem.error)).map(|problem| problem.count).sum()
}

/// Describes what is missing: `all` files and directories. `directories` is the number of the latter.
fn lacking(all: u64, directories: u64) -> String {
    let files = all.saturating_sub(directories);
    let below = match directories {
        0 => None,
        1 => Some("1 directory with all that is in it".to_owned()),
        _ => Some(format!("{directories} directories with all that is in them")),
    };
    let files = (files > 0).then(|| counted(files, "file"));
    files.into_iter().chain(below).collect::<Vec<_>>().join(" and ")
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns a printable form of the path of an extracted file.
fn in_target(directory: &Path, path: &[u8]) -> String {
    match path.strip_prefix(b"/") {
        Some(b"") => show(directory.as_os_str().as_bytes()),
        // Only the end of a very long path is known.
        None => format!("{}/.../{}", show(directory.as_os_str().as_bytes()), show(path)),
        Some(_) => show_below(directory.as_os_str().as_bytes(), path),
    }
}

/// Describes what was left out; empty if nothing was.
fn left_out(left_out: &LeftOut, with_owners: bool) -> String {
    let LeftOut { xattrs, more_xattrs, devices, owners, times, .. } = left_out;
    let mut parts = Vec::new();
    let all = xattrs.values().sum::<u64>() + more_xattrs;
    if all > 0 {
        let mut names: Vec<_> = xattrs.keys().map(|name| show(name)).collect();
        if *more_xattrs > 0 {
            names.push("others".to_owned());
        }
        parts.push(format!("{} ({})", counted(all, "xattr"), names.join(", ")));
    }
    if *devices > 0 {
        parts.push(counted(*devices, "device file"));
    }
    if *owners > 0 && with_owners {
        parts.push(format!("owners of {}", counted(*owners, "file")));
    }
    if *times > 0 {
        parts.push(format!("times of {}, which the file system cannot hold", counted(*times, "file")));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_out_attributes_are_counted_in_one_line() {
        let mut what = LeftOut::default();
        assert_eq!(left_out(&what, true), "");
        what.owners = 1;
        assert_eq!((left_out(&what, true), left_out(&what, false)), ("owners of 1 file".to_owned(), String::new()));
        what.xattrs = [(b"security.capability".to_vec(), 1), (b"trusted.overlay.opaque".to_vec(), 2)].into();
        what.devices = 2;
        let expected = "3 xattrs (security.capability, trusted.overlay.opaque), 2 device files";
        assert_eq!(left_out(&what, false), expected);
        what.more_xattrs = 5;
        assert!(left_out(&what, false).starts_with("8 xattrs (security.capability, trusted.overlay.opaque, others), "));
    }

    #[test]
    fn paths_are_those_of_the_target() {
        for (path, shown) in [("/", "out"), ("/etc/fstab", "out/etc/fstab"), ("c/fstab", "out/.../c/fstab")] {
            assert_eq!(in_target(Path::new("out"), path.as_bytes()), shown);
        }
        assert_eq!(in_target(Path::new("out/"), b"/etc"), "out/etc");
    }
}

//! The sources on the command line from which an image is built, or with which it is compared.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, ensure};
use pagefold_base::Format;
use pagefold_erofs::{CompareReport, Difference, IdMap, IdRange, ImageFile, ScanOptions, Tree, WarningKind};
use pagefold_output::Inputs;
use pagefold_source::{Error, Options, Platform, Warn};

use crate::text::{plain, show};
use crate::{
    log,
    report::{misuse, print},
};

/// The way on after the error of a single file.
pub(crate) const SKIPPING: &str = "--skip-unreadable goes on with the other files";

/// What to take from sources, and how.
#[derive(clap::Args)]
pub(crate) struct SourceArgs {
    /// Modification time of all files, in seconds since 1970
    #[arg(short = 'T', long, value_name = "SECONDS", env = "SOURCE_DATE_EPOCH", value_parser = parse_seconds,
        allow_negative_numbers = true)]
    timestamp: Option<Timestamp>,

    /// Make root the owner of all files
    #[arg(long, conflicts_with_all = ["uid", "gid"])]
    all_root: bool,

    /// Owner of all files
    #[arg(long, visible_alias = "force-uid")]
    uid: Option<u32>,

    /// Group of all files
    #[arg(long, visible_alias = "force-gid")]
    gid: Option<u32>,

    /// Map the COUNT (default 1) owner IDs starting at FROM to those starting at TO; keep all
    /// others
    #[arg(long, value_name = "FROM:TO[:COUNT]", value_parser = parse_range, conflicts_with_all = ["uid", "all_root"])]
    uid_map: Vec<IdRange>,

    /// Map group IDs in the same way
    #[arg(long, value_name = "FROM:TO[:COUNT]", value_parser = parse_range, conflicts_with_all = ["gid", "all_root"])]
    gid_map: Vec<IdRange>,

    /// Leave out extended attributes
    #[arg(long)]
    no_xattrs: bool,

    /// Leave out files whose name matches PATTERN, at any depth; with a slash in it or before it,
    /// PATTERN is a path below the source. * and ? match within one name
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<std::ffi::OsString>,

    /// Take the only source for a disk of this format, whatever its content and name: raw (its bytes
    /// as they are; of a directory, its files), erofs, qcow2
    #[arg(long, conflicts_with = "layer")]
    format: Option<Format>,

    /// Platform of the image to take from a container archive or layout that holds several
    /// [default: the platform of this machine]
    #[arg(long, value_name = "OS/ARCHITECTURE[/VARIANT]", value_parser = Platform::parse)]
    platform: Option<Platform>,

    /// Build a layer for overlayfs: keep whiteouts, in the form that overlayfs uses, instead of
    /// applying them to the preceding sources
    #[arg(long)]
    layer: bool,

    /// Leave out unreadable files and directories with a warning, instead of failing. Also leave
    /// out files that vanish while they are packed, and fill those that become shorter with zeros:
    /// each is named, and the exit status is 1
    #[arg(long)]
    skip_unreadable: bool,

    /// Do not enter other file systems: directories on which they are mounted stay empty
    #[arg(long)]
    one_file_system: bool,

    /// Store each hard link as a file of its own
    #[arg(long)]
    hard_dereference: bool,
}

impl SourceArgs {
    /// Returns the merged tree of all sources. Warns about everything that an image cannot store.
    /// Leaves out `image` if it is inside a source.
    pub(crate) fn tree(&self, sources: &[PathBuf], image: Option<ImageFile>) -> anyhow::Result<Tree> {
        let mut options = Options::default();
        options.scan = ScanOptions { image, ..self.scan_options().map_err(misuse)? };
        options.format = self.format;
        options.platform.clone_from(&self.platform);
        options.layer = self.layer;
        options.separate_links = self.hard_dereference;
        let warn = Arc::new(print) as Warn;
        let tree = pagefold_source::read(sources, &options, &warn).map_err(|error| match error {
            Error::Options(_) => misuse(error),
            error if self.may_skip_after(&error, sources) => anyhow!("{error}; {SKIPPING}"),
            error => error.into(),
        })?;
        warn_of(&tree);
        Ok(tree)
    }

    /// Returns the files of sources, which must not be replaced.
    pub(crate) fn inputs(&self, sources: &[PathBuf]) -> Inputs {
        let mut inputs = Inputs::default();
        for source in sources {
            match source == Path::new("-") {
                true => inputs.add_standard_input(),
                false if self.one_file_system => inputs.add("the source", source),
                false => inputs.add_tree("the source", source),
            }
        }
        inputs
    }

    /// Returns whether an option would leave out the file at `path`, which cannot be read.
    pub(crate) fn may_skip(&self, path: &Path, sources: &[PathBuf]) -> bool {
        !self.skip_unreadable && sources.iter().any(|source| path.starts_with(source) && source.is_dir())
    }

    /// Returns whether an option would leave out the file with this error.
    fn may_skip_after(&self, error: &Error, sources: &[PathBuf]) -> bool {
        let Error::Image(error) = error else { return false };
        !self.skip_unreadable && sources.iter().any(|source| source.is_dir() && error.is_of_unreadable(source))
    }

    fn scan_options(&self) -> anyhow::Result<ScanOptions> {
        for pattern in &self.exclude {
            let names = pattern.as_bytes().iter().any(|byte| *byte != b'/');
            ensure!(names, "--exclude '{}': the pattern is empty", pattern.display());
        }
        let root = self.all_root.then_some(0);
        Ok(ScanOptions {
            mtime_s: self.timestamp.and_then(|Timestamp(seconds)| seconds),
            uid: self.uid.or(root),
            gid: self.gid.or(root),
            uid_map: id_map(&self.uid_map)?,
            gid_map: id_map(&self.gid_map)?,
            no_xattrs: self.no_xattrs,
            skip_unreadable: self.skip_unreadable,
            one_file_system: self.one_file_system,
            excludes: self.exclude.iter().map(|pattern| pattern.as_bytes().to_vec()).collect(),
            image: None,
        })
    }
}

/// Warns about parts of the sources that the image will not store unchanged: one line per kind, and
/// one per file that is left out.
fn warn_of(tree: &Tree) {
    for mut warning in tree.warnings() {
        if warning.kind == WarningKind::Unreadable {
            for example in std::mem::take(&mut warning.examples) {
                print(&format!("skipped: {}", show(example.as_bytes())));
            }
        }
        print(&format!("warning: {}", plain(&warning.to_string())));
    }
}

/// Names the files that changed while their tree was used, each in a line. Returns their number.
pub(crate) fn print_changes(tree: &Tree) -> u64 {
    let mut all = 0;
    for warning in tree.changes() {
        let what = match warning.kind {
            WarningKind::Replaced => "was replaced, and was left out",
            WarningKind::Shorter => "became shorter; the rest is zeros",
            WarningKind::Changed => "changed, and was not verified",
            _ => "vanished, and was left out",
        };
        for example in &warning.examples {
            print(&format!("warning: {}: {what}", show(example.as_bytes())));
        }
        let more = warning.count - warning.examples.len() as u64;
        if more > 0 {
            print(&format!("warning: {more} more {what}"));
        }
        all += warning.count;
    }
    all
}

/// Reports each difference between an image and its source; returns their number.
pub(crate) fn print_differences(report: &CompareReport) -> u64 {
    for Difference { path, what, .. } in &report.differences {
        log::line(&format!("{}: {what}", show(path)));
    }
    report.differences.len() as u64 + report.more_differences
}

/// Parses a range of ids: `FROM:TO` or `FROM:TO:COUNT`; the default count is 1.
fn parse_range(text: &str) -> Result<IdRange, String> {
    let wrong = || format!("'{text}' is not FROM:TO or FROM:TO:COUNT, as in 0:100000:65536");
    let numbers: Vec<u32> = text.split(':').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    match numbers[..] {
        [from, to] => Ok(IdRange { from, to, count: 1 }),
        [from, to, count] => Ok(IdRange { from, to, count }),
        _ => Err(wrong()),
    }
}

fn id_map(ranges: &[IdRange]) -> anyhow::Result<IdMap> {
    IdMap::new(ranges.to_vec()).context("the range of IDs is empty or extends beyond 4294967295")
}

/// The argument of `--timestamp`; `None` if it is the value of an empty environment variable.
#[derive(Clone, Copy)]
struct Timestamp(Option<i64>);

fn parse_seconds(text: &str) -> Result<Timestamp, String> {
    if text.is_empty() && std::env::var_os("SOURCE_DATE_EPOCH").is_some_and(|value| value.is_empty()) {
        return Ok(Timestamp(None));
    }
    let seconds =
        text.parse().map_err(|_| format!("'{text}' (from -T or SOURCE_DATE_EPOCH) is not a number of seconds"));
    seconds.map(|seconds| Timestamp(Some(seconds)))
}

//! `pagefold check`: checks an image, or a file or directory in it.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use pagefold_erofs::{CheckReport, CompareReport, Image, ImageFile};

use crate::output::{is_closed, output};
use crate::record::{self, Record};
use crate::source::{SourceArgs, print_changes, print_differences};
use crate::{
    image::{ImageArgs, ImagePath, print_problems, print_warnings, resolve},
    text::show,
};
use crate::{report::misuse, size};

/// Check the structure of an EROFS image and decode all its files
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold check rootfs.erofs
  pagefold check rootfs.erofs:/usr/lib
  pagefold check --json rootfs.erofs
  pagefold check --offset 1M firmware.bin
  pagefold check --against rootfs/ rootfs.erofs
  pagefold check --against base.tar --against app.tar.gz --all-root rootfs.erofs

With PATH, the command checks only that file or directory and everything below it. It does not \
check links from elsewhere or the superblock's counts.
The exit status is 0 if there is no problem, otherwise 1.")]
pub(crate) struct Args {
    /// The image, and a path in it
    #[arg(value_name = "IMAGE[:PATH]")]
    place: ImagePath,

    /// Number of threads; 0 means one per processor
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// Print one JSON object per line: each problem, then the verdict
    #[arg(long)]
    json: bool,

    /// Also compare the image with its source, a directory or an archive; repeat for several
    /// sources, in the order given to 'pagefold pack'
    #[arg(long, value_name = "SOURCE")]
    against: Vec<PathBuf>,

    #[command(flatten)]
    image: ImageArgs,

    #[command(flatten, next_help_heading = "Options for --against, the same as given to 'pagefold pack'")]
    source: SourceArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let ImagePath { image: file, path } = &args.place;
    if !args.against.is_empty() && !path.is_empty() {
        return Err(misuse(anyhow!("--against compares the whole image; leave ':{}' out", show(path))));
    }
    let image = args.image.open_with(file, Image::DEFAULT_CACHE_BYTES)?;
    let report = match path.as_slice() {
        [] => image.check(args.threads),
        path => image.check_below(&resolve(&image, file, path)?, args.threads),
    };
    let comparison = match args.against.as_slice() {
        [] => None,
        sources => {
            let own = ImageFile::at(file).with_context(|| file.display().to_string())?;
            let tree = args.source.tree(sources, Some(own))?;
            let report = image.compare(&tree, args.threads);
            print_changes(&tree);
            Some(report)
        }
    };
    let found = Problems { report, comparison };
    print_warnings(path, &found.report.warnings, found.report.more_warnings);
    if args.json {
        match found.print_json(path) {
            // The reader of the output is gone, but problems were found.
            Err(error) if found.is_nothing() || !is_closed(&error) => return Err(error),
            _ if found.is_nothing() => return Ok(()),
            _ => bail!("{}", found.verdict(file)),
        }
    }
    let report = &found.report;
    print_problems(path, &report.problems);
    found.comparison.as_ref().map(print_differences);
    if !found.is_nothing() {
        bail!("{}", found.verdict(file));
    }
    let mut out = output();
    let equal = if found.comparison.is_some() { ", equal to its source" } else { "" };
    writeln!(out, "sound: {} inodes, {} of files{equal}", report.inodes, size::show(report.file_bytes))?;
    out.flush()?;
    Ok(())
}

/// The problems found in an image.
struct Problems {
    report: CheckReport,
    /// The comparison with its source.
    comparison: Option<CompareReport>,
}

impl Problems {
    fn problems(&self) -> u64 {
        self.report.problems.len() as u64 + self.report.more_problems
    }

    fn differences(&self) -> Option<u64> {
        self.comparison.as_ref().map(|report| report.differences.len() as u64 + report.more_differences)
    }

    fn is_nothing(&self) -> bool {
        self.problems() + self.differences().unwrap_or(0) == 0
    }

    fn verdict(&self, file: &Path) -> String {
        let counted = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let parts = [
            (self.problems() > 0).then(|| counted(self.problems(), "problem")),
            self.differences().filter(|count| *count > 0).map(|count| counted(count, "difference")),
        ];
        format!("{}: {}", file.display(), parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }

    fn print_json(&self, place: &[u8]) -> anyhow::Result<()> {
        let mut out = output();
        for problem in &self.report.problems {
            record::problem(place, problem).write(&mut out)?;
        }
        for difference in self.comparison.iter().flat_map(|report| &report.differences) {
            record::difference(difference).write(&mut out)?;
        }
        Record::new()
            .field("sound", self.problems() == 0)
            .field("problems", self.problems())
            .field("differences", self.differences())
            .field("inodes", self.report.inodes)
            .field("directories", self.report.directories)
            .field("file_bytes", self.report.file_bytes)
            .write(&mut out)?;
        out.flush()?;
        Ok(())
    }
}

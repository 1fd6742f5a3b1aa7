//! The report as lines of JSON. `docs/advise.md` lists them.

use std::io::{self, Write};

use super::{estimate::Estimate, report::Report, verdict::Verdict};
use crate::figure::Figure;

pub(super) fn write(out: &mut dyn Write, report: &Report, verdict: &Verdict) -> io::Result<()> {
    let mut lines = Lines { out, case: &report.input.name, has_more: report.has_more() };
    let Report { input, pages, codecs, images, forks, memory_bytes } = report;
    for (metric, value, unit) in [
        ("files", input.names.files, "files"),
        ("directories", input.names.directories, "directories"),
        ("bytes", input.bytes(), "bytes"),
        ("hole_bytes", input.hole_bytes, "bytes"),
        ("of_files_bytes", input.skipped.of_files_bytes, "bytes"),
        ("unreadable", input.skipped.unreadable + pages.lost_units, "files"),
        ("more_files", u64::from(input.skipped.more), "flag"),
        ("pages", pages.total, "pages"),
        ("read_pages", report.read_pages(), "pages"),
    ] {
        lines.figure("input", metric, value, unit)?;
    }
    lines.estimate("input", "data_bytes", report.data_bytes(), "bytes")?;
    lines.estimate("pages", "zero_pages", pages.zero, "pages")?;
    lines.estimate("pages", "same_pages", pages.same, "pages")?;
    lines.estimate("pages", "huge_pages", pages.incompressible, "pages")?;
    lines.interval(
        "pages",
        "duplicate_pages",
        pages.duplicate.value,
        "pages",
        [pages.duplicate.low, pages.duplicate.high],
    )?;
    for codec in codecs {
        lines.estimate(codec.name, "compr_data_size", codec.bytes, "bytes")?;
        lines.figure(codec.name, "trained", u64::from(codec.trained), "flag")?;
        for (name, times) in [("compression", codec.compression), ("decompression", codec.decompression)] {
            if let Some(times) = times {
                lines.figure(codec.name, name, times.bytes_per_second as u64, "bytes/s")?;
                lines.figure(codec.name, &format!("{name}_p99"), times.p99_ns, "ns")?;
            }
        }
    }
    for image in images {
        let subject = format!("{}@{}", image.codec, image.cluster);
        lines.estimate(&subject, "image_bytes", image.bytes, "bytes")?;
        lines.figure(&subject, "sampled_bytes", image.sampled_bytes, "bytes")?;
        if let Some(build) = image.build {
            lines.figure(&subject, "build_time", u64::try_from(build.as_nanos()).unwrap_or(u64::MAX), "ns")?;
        }
        if let Some(reads) = image.reads {
            lines.figure(&subject, "random_read_mean", reads.mean_ns, "ns")?;
            lines.figure(&subject, "random_read_p99", reads.p99_ns, "ns")?;
        }
    }
    lines.estimate("disk", "spent_bytes", pages.memory_bytes, "bytes")?;
    lines.figure("forks", "memory_bytes", *memory_bytes, "bytes")?;
    if let Some(forks) = forks {
        lines.figure("forks", "fork_bytes", forks.untouched_bytes as u64, "bytes")?;
        for (part, figure) in [("1_percent", forks.of_hundredth_bytes), ("10_percent", forks.of_tenth_bytes)] {
            if let Some(figure) = figure {
                lines.estimate("forks", &format!("fork_bytes_{part}"), figure, "bytes")?;
                lines.figure("forks", &format!("forks_{part}"), report.forks_that_fit(figure.value), "forks")?;
            }
        }
    }
    for (number, command) in verdict.commands.iter().enumerate() {
        // The command is the subject, so that all lines have the same keys.
        lines.figure(command, "command", number as u64 + 1, "step")?;
    }
    Ok(())
}

struct Lines<'a> {
    out: &'a mut dyn Write,
    case: &'a str,
    /// Whether there are more files than were found.
    has_more: bool,
}

impl Lines<'_> {
    fn figure(&mut self, subject: &str, metric: &str, value: u64, unit: &str) -> io::Result<()> {
        Figure { bench: "advise", case: self.case, subject, metric, value, unit }.write(self.out)
    }

    fn estimate(&mut self, subject: &str, metric: &str, estimate: Estimate, unit: &str) -> io::Result<()> {
        self.interval(subject, metric, estimate.value, unit, [estimate.low(), estimate.high()])
    }

    /// Writes a figure and the bounds of its interval, which has no upper one if there are more files.
    fn interval(&mut self, subject: &str, metric: &str, value: f64, unit: &str, ends: [f64; 2]) -> io::Result<()> {
        self.figure(subject, metric, value.round() as u64, unit)?;
        let bounds = if self.has_more { 1 } else { 2 };
        for (end, name) in ends.into_iter().zip(["low", "high"]).take(bounds) {
            self.figure(subject, &format!("{metric}_{name}"), end.round() as u64, unit)?;
        }
        Ok(())
    }
}

//! The report as lines of JSON. `docs/advise.md` lists them.

use std::io::{self, Write};

use super::{Report, estimate::Estimate};
use crate::figure::Figure;

pub(super) fn write(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let mut lines = Lines { out, case: &report.input.name };
    let Report { input, pages, codecs, images, forks, memory_bytes, verdict } = report;
    for (metric, value, unit) in [
        ("files", input.names.files, "files"),
        ("directories", input.names.directories, "directories"),
        ("bytes", input.bytes(), "bytes"),
        ("hole_bytes", input.hole_bytes, "bytes"),
        ("of_files_bytes", input.skipped.of_files_bytes, "bytes"),
        ("unreadable", input.skipped.unreadable + pages.lost_units, "files"),
        ("more_files", u64::from(input.skipped.more), "flag"),
        ("pages", pages.total, "pages"),
        ("read_pages", pages.read, "pages"),
    ] {
        lines.figure("input", metric, value, unit)?;
    }
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
        for (metric, value, unit) in [
            ("trained", u64::from(codec.trained), "flag"),
            ("compression", codec.compression.bytes_per_second as u64, "bytes/s"),
            ("compression_p99", codec.compression.p99_ns, "ns"),
            ("decompression", codec.decompression.bytes_per_second as u64, "bytes/s"),
            ("decompression_p99", codec.decompression.p99_ns, "ns"),
        ] {
            lines.figure(codec.name, metric, value, unit)?;
        }
    }
    for image in images {
        let subject = format!("{}@{}", image.codec, image.cluster);
        lines.estimate(&subject, "image_bytes", image.bytes, "bytes")?;
        for (metric, value, unit) in [
            ("build_time", u64::try_from(image.build.as_nanos()).unwrap_or(u64::MAX), "ns"),
            ("random_read_mean", image.read_mean_ns, "ns"),
            ("random_read_p99", image.read_p99_ns, "ns"),
        ] {
            lines.figure(&subject, metric, value, unit)?;
        }
    }
    lines.estimate("disk", "spent_bytes", pages.memory_bytes, "bytes")?;
    for (metric, value) in [
        ("fork_bytes", forks.untouched_bytes),
        ("fork_bytes_1_percent", forks.of_hundredth_bytes),
        ("fork_bytes_10_percent", forks.of_tenth_bytes),
    ] {
        lines.figure("forks", metric, value as u64, "bytes")?;
    }
    lines.figure("forks", "memory_bytes", *memory_bytes, "bytes")?;
    lines.figure("forks", "forks_1_percent", report.forks_that_fit(forks.of_hundredth_bytes), "forks")?;
    lines.figure("forks", "forks_10_percent", report.forks_that_fit(forks.of_tenth_bytes), "forks")?;
    for (number, command) in verdict.commands.iter().enumerate() {
        // The command is the subject, so that all lines have the same keys.
        lines.figure(command, "command", number as u64 + 1, "step")?;
    }
    Ok(())
}

struct Lines<'a> {
    out: &'a mut dyn Write,
    case: &'a str,
}

impl Lines<'_> {
    fn figure(&mut self, subject: &str, metric: &str, value: u64, unit: &str) -> io::Result<()> {
        Figure { bench: "advise", case: self.case, subject, metric, value, unit }.write(self.out)
    }

    fn estimate(&mut self, subject: &str, metric: &str, estimate: Estimate, unit: &str) -> io::Result<()> {
        self.interval(subject, metric, estimate.value, unit, [estimate.low(), estimate.high()])
    }

    /// Writes a figure and the bounds of its interval.
    fn interval(&mut self, subject: &str, metric: &str, value: f64, unit: &str, ends: [f64; 2]) -> io::Result<()> {
        self.figure(subject, metric, value.round() as u64, unit)?;
        for (end, name) in ends.into_iter().zip(["low", "high"]) {
            self.figure(subject, &format!("{metric}_{name}"), end.round() as u64, unit)?;
        }
        Ok(())
    }
}

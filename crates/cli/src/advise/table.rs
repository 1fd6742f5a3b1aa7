//! The report as text.

use std::{
    io::{self, Write},
    time::Duration,
};

use super::{
    codecs::{self, Times},
    estimate::Estimate,
    input::InputKind,
    pages::Pages,
    report::Report,
    times::time,
    verdict::Verdict,
};
use crate::{
    size,
    text::{plain, show},
};

/// Stands for a figure that was not measured.
const UNKNOWN: &str = "-";

pub(super) fn write(out: &mut dyn Write, report: &Report, verdict: &Verdict) -> io::Result<()> {
    head(out, report)?;
    pages(out, &report.pages)?;
    if !report.codecs.is_empty() {
        codecs(out, report)?;
    }
    if !report.images.is_empty() {
        images(out, report)?;
    }
    memory(out, report)?;
    writeln!(out)?;
    for reason in &verdict.reasons {
        writeln!(out, "{reason}")?;
    }
    if !verdict.commands.is_empty() {
        writeln!(out, "Next:")?;
    }
    for command in &verdict.commands {
        writeln!(out, "  {}", plain(command))?;
    }
    Ok(())
}

fn head(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let Report { input, pages, .. } = report;
    let name = show(input.name.as_bytes());
    let bytes = size::show(input.bytes());
    match input.kind {
        InputKind::Directory => {
            let files = counted(input.names.files, "file", "files");
            let directories = counted(input.names.directories, "directory", "directories");
            write!(out, "{name}: {bytes} in {files} and {directories}")?;
        }
        InputKind::File => write!(out, "{name}: a file of {bytes}")?,
        InputKind::Device => write!(out, "{name}: a device of {bytes}")?,
        InputKind::Process => write!(out, "{name}: {bytes} of private memory")?,
    }
    if input.hole_bytes > 0 {
        // Shorter holes than a unit are zeros.
        write!(out, ", at least {} of it holes", size::show(input.hole_bytes))?;
    }
    writeln!(out)?;
    sampled(out, report)?;
    let skipped = input.skipped;
    if skipped.of_files_bytes > 0 {
        let bytes = size::show(skipped.of_files_bytes);
        writeln!(out, "Left out: {bytes} of unchanged file pages, which the system can drop and read again.")?;
    }
    match skipped.unreadable + pages.lost_units {
        0 => {}
        1 => writeln!(out, "Left out: 1 item that could not be read or that changed during the run.")?,
        lost => writeln!(out, "Left out: {lost} items that could not be read or that changed during the run.")?,
    }
    if skipped.more {
        writeln!(
            out,
            "The listing was cut short by the time limit: there is more, and all sizes are only of what was found."
        )?;
    }
    Ok(())
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Writes how much of the data was sampled.
fn sampled(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let data = report.data_bytes();
    if report.is_complete() {
        let found = if report.has_more() { " that was found" } else { "" };
        return writeln!(out, "Sampled completely: {} of data{found}.", bytes(data));
    }
    let read = if report.pages.is_complete() {
        format!("all {}", bytes(data))
    } else {
        let about = if data.is_exact() { "" } else { "about " };
        // The last page of a file is only partly data.
        let part = report.pages.sampled as f64 / report.pages.data.value.max(1.0);
        format!("{} of {about}{}", bytes(data.scaled(part.min(1.0))), bytes(data))
    };
    let packed = report.images.iter().map(|image| image.sampled_bytes);
    let (least, most) = (packed.clone().min().unwrap_or(0), packed.max().unwrap_or(0));
    let packed = range(&size::show(least), &size::show(most));
    writeln!(out, "Sampled {read} of data as pages, and {packed} of it for each image.")
}

fn pages(out: &mut dyn Write, pages: &Pages) -> io::Result<()> {
    let total = pages.total.max(1) as f64;
    writeln!(out, "\npages of 4 KiB          share")?;
    for (name, estimate) in
        [("zero", pages.zero), ("same-filled", pages.same), ("incompressible", pages.incompressible)]
    {
        let [value, low, high] = [estimate.value, estimate.low(), estimate.high()].map(|pages| pages / total * 100.0);
        writeln!(out, "  {name:<16} {value:>8.1} %{}", between_percent(low, high))?;
    }
    let [value, low, high] =
        [pages.duplicate.value, pages.duplicate.low, pages.duplicate.high].map(|pages| pages / total * 100.0);
    writeln!(out, "  {:<16} {value:>8.1} %{}", "duplicate", between_percent(low, high))
}

fn codecs(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    writeln!(
        out,
        "\n{:<23} {:>10}  {:<20} {:>9} {:>9}  {:>10} {:>8}",
        "page codec", "bytes", "between", "compress", "p99", "decompress", "p99"
    )?;
    for codec in &report.codecs {
        let name = if codec.trained { format!("{} (trained)", codec.name) } else { codec.name.to_owned() };
        let times = |times: Option<Times>| match times {
            Some(times) => (format!("{:.0} MB/s", times.bytes_per_second / 1e6), time(times.p99_ns)),
            None => (UNKNOWN.to_owned(), UNKNOWN.to_owned()),
        };
        let ((speed, p99), (back_speed, back_p99)) = (times(codec.compression), times(codec.decompression));
        writeln!(
            out,
            "  {name:<21} {:>10}  {:<20} {speed:>9} {p99:>9}  {back_speed:>10} {back_p99:>8}",
            bytes(codec.bytes),
            between(report, codec.bytes)
        )?;
    }
    let measured = |name: &&str| report.codecs.iter().any(|codec| codec.name == *name);
    let missing: Vec<_> = codecs::NAMES.into_iter().filter(|name| !measured(name)).collect();
    if !missing.is_empty() {
        writeln!(out, "  No time was left for {}.", missing.join(", "))?;
    }
    Ok(())
}

fn images(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    writeln!(
        out,
        "\n{:<8} {:>7} {:>10}  {:<20} {:>8}  {:>12} {:>9}",
        "image", "cluster", "bytes", "between", "build", "random 4 KiB", "p99"
    )?;
    for image in &report.images {
        let unknown = || UNKNOWN.to_owned();
        writeln!(
            out,
            "  {:<7} {:>6} {:>10}  {:<20} {:>8}  {:>12} {:>9}",
            image.codec,
            image.cluster,
            bytes(image.bytes),
            between(report, image.bytes),
            image.build.map_or_else(unknown, duration),
            image.reads.map_or_else(unknown, |reads| time(reads.mean_ns)),
            image.reads.map_or_else(unknown, |reads| time(reads.p99_ns))
        )?;
    }
    Ok(())
}

fn memory(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let memory = report.pages.memory_bytes;
    let part = memory.value / report.input.bytes().max(1) as f64 * 100.0;
    writeln!(out, "\nRAM disk, all its memory {:>9}  {:<20} {part:.1} %", bytes(memory), between(report, memory))?;
    let Some(forks) = &report.forks else {
        return writeln!(out, "No time was left for forks.");
    };
    writeln!(out, "forks in {}, with scattered changes of similar content", size::show(report.memory_bytes))?;
    writeln!(out, "   0 % changed  {:>10} each", size::show(forks.untouched_bytes as u64))?;
    for (name, figure) in [("1 %", forks.of_hundredth_bytes), ("10 %", forks.of_tenth_bytes)] {
        match figure {
            Some(figure) => {
                let count = report.forks_that_fit(figure.value);
                let between = between(report, figure);
                let most = if report.has_more() { "at most " } else { "" };
                let count = format!("{most}{count}");
                writeln!(out, "  {name:>4} changed  {:>10} each  {between:<20} {count:>10} fit", bytes(figure))?;
            }
            None => writeln!(out, "  {name:>4} changed  no time was left to measure it")?,
        }
    }
    Ok(())
}

fn bytes(estimate: Estimate) -> String {
    size::show(estimate.value as u64)
}

/// Returns the bounds of a size; nothing if it is exact.
fn between(report: &Report, estimate: Estimate) -> String {
    if report.has_more() {
        return format!("{} or more", size::show(estimate.low() as u64));
    }
    if estimate.is_exact() {
        return String::new();
    }
    range(&size::show(estimate.low() as u64), &size::show(estimate.high() as u64))
}

fn between_percent(low: f64, high: f64) -> String {
    let range = range(&format!("{low:.1} %"), &format!("{high:.1} %"));
    if low < high { format!("  {range}") } else { String::new() }
}

/// Returns both sizes, with one unit if they have the same.
fn range(low: &str, high: &str) -> String {
    match (low.split_once(' '), high.split_once(' ')) {
        _ if low == high => low.to_owned(),
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} to {high}"),
        _ => format!("{low} to {high}"),
    }
}

fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        ..10.0 => format!("{seconds:.2} s"),
        ..600.0 => format!("{seconds:.0} s"),
        ..36_000.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.0} h", seconds / 3600.0),
    }
}

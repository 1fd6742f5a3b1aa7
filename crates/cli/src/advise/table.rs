//! The report as text.

use std::{
    io::{self, Write},
    time::Duration,
};

use super::{
    Report,
    estimate::Estimate,
    input::{Input, InputKind},
    pages::Pages,
};
use crate::{image::show, size};

pub(super) fn write(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    head(out, &report.input, &report.pages)?;
    pages(out, &report.pages)?;
    if !report.codecs.is_empty() {
        codecs(out, report)?;
    }
    if !report.images.is_empty() {
        images(out, report)?;
    }
    memory(out, report)?;
    writeln!(out)?;
    for reason in &report.verdict.reasons {
        writeln!(out, "{reason}")?;
    }
    if !report.verdict.commands.is_empty() {
        writeln!(out, "Next:")?;
    }
    for command in &report.verdict.commands {
        writeln!(out, "  {}", show(command.as_bytes()))?;
    }
    Ok(())
}

fn head(out: &mut dyn Write, input: &Input, pages: &Pages) -> io::Result<()> {
    let name = show(input.name.as_bytes());
    let bytes = size::show(input.bytes());
    match input.kind {
        InputKind::Directory => {
            let (files, directories) = (input.names.files, input.names.directories);
            write!(out, "{name}: {bytes} in {files} files and {directories} directories")?;
        }
        InputKind::File => write!(out, "{name}: a file of {bytes}")?,
        InputKind::Device => write!(out, "{name}: a device of {bytes}")?,
        InputKind::Process => write!(out, "{name}: {bytes} of private memory")?,
    }
    if input.hole_bytes > 0 {
        write!(out, ", {} of them holes", size::show(input.hole_bytes))?;
    }
    let whole = pages.read >= pages.total;
    let part = pages.read as f64 / pages.total.max(1) as f64 * 100.0;
    writeln!(
        out,
        "{}",
        if whole { ", sampled completely".to_owned() } else { format!(", {part:.2} % of it sampled") }
    )?;
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
            "The listing was cut short by the time limit: the figures cover only the files that were found."
        )?;
    }
    Ok(())
}

fn pages(out: &mut dyn Write, pages: &Pages) -> io::Result<()> {
    let total = pages.total.max(1) as f64;
    writeln!(out, "\npages of 4 KiB          share")?;
    for (name, estimate) in
        [("zero", pages.zero), ("same-filled", pages.same), ("incompressible", pages.incompressible)]
    {
        let error = estimate.error() / total * 100.0;
        writeln!(out, "  {name:<16} {:>8.1} %{}", estimate.value / total * 100.0, plus_minus(error, " %"))?;
    }
    let [value, low, high] =
        [pages.duplicate.value, pages.duplicate.low, pages.duplicate.high].map(|pages| pages / total * 100.0);
    let between = if low < high { format!("  between {low:.1} and {high:.1} %") } else { String::new() };
    writeln!(out, "  {:<16} {value:>8.1} %{between}", "duplicate")
}

fn codecs(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    writeln!(out, "\npage codec          bytes         compress       p99    decompress       p99")?;
    for codec in &report.codecs {
        let name = if codec.trained { format!("{} (trained)", codec.name) } else { codec.name.to_owned() };
        let speed = |times: super::codecs::Times| format!("{:.0} MB/s", times.bytes_per_second / 1e6);
        writeln!(
            out,
            "  {name:<21} {:>10}{:<9}{:>10}{:>9} {:>12}{:>9}",
            bytes(codec.bytes),
            relative(codec.bytes),
            speed(codec.compression),
            time(codec.compression.p99_ns),
            speed(codec.decompression),
            time(codec.decompression.p99_ns)
        )?;
    }
    Ok(())
}

fn images(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    writeln!(out, "\nimage   cluster     bytes          build   random 4 KiB       p99")?;
    for image in &report.images {
        writeln!(
            out,
            "  {:<7} {:>5} {:>10}{:<9}{:>7} {:>12}{:>10}",
            image.codec,
            image.cluster,
            bytes(image.bytes),
            relative(image.bytes),
            duration(image.build),
            time(image.read_mean_ns),
            time(image.read_p99_ns)
        )?;
    }
    Ok(())
}

fn memory(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let memory = report.pages.memory_bytes;
    let part = memory.value / report.input.bytes().max(1) as f64 * 100.0;
    writeln!(out, "\nRAM disk, all its memory{:>10}{}  {part:.1} %", bytes(memory), relative(memory))?;
    let forks = &report.forks;
    writeln!(out, "forks in {}, with scattered changes of similar content", size::show(report.memory_bytes))?;
    writeln!(out, "   0 % changed  {:>10} each", size::show(forks.untouched_bytes as u64))?;
    for (name, bytes) in [("1 %", forks.of_hundredth_bytes), ("10 %", forks.of_tenth_bytes)] {
        let count = report.forks_that_fit(bytes);
        writeln!(out, "  {name:>4} changed  {:>10} each  {count:>10} fit", size::show(bytes as u64))?;
    }
    Ok(())
}

fn bytes(estimate: Estimate) -> String {
    size::show(estimate.value as u64)
}

fn relative(estimate: Estimate) -> String {
    plus_minus(estimate.relative_error() * 100.0, " %")
}

fn plus_minus(error: f64, unit: &str) -> String {
    if error <= 0.0 { String::new() } else { format!(" ±{error:.1}{unit}") }
}

/// Formats a time for humans.
pub(super) fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
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

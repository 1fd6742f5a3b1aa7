//! The tables at the end: every subject against liblz4 and zstd level 1, and the targets.

use std::{fmt::Write, io};

use super::Measured;
use crate::report::geometric_mean;

/// What is compared.
#[derive(Clone, Copy, PartialEq)]
enum Metric {
    Bytes,
    Compress,
    Decompress,
}

impl Metric {
    fn of(self, measured: &Measured) -> f64 {
        match self {
            Metric::Bytes => measured.compressed_bytes as f64,
            Metric::Compress => measured.compress_mb_s(),
            Metric::Decompress => measured.decompress_mb_s(),
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Metric::Bytes => "compressed bytes",
            Metric::Compress => "compression speed",
            Metric::Decompress => "decompression speed",
        }
    }
}

/// Which figures a target is about.
#[derive(Clone, Copy)]
enum Scope {
    /// Geometric mean over the kinds whose name begins with `heap`.
    Heaps,
    /// Geometric mean over all kinds.
    All,
    /// The worst of all kinds.
    Each,
}

impl Scope {
    const fn word(self) -> &'static str {
        match self {
            Scope::Heaps => "mean of heaps",
            Scope::All => "mean of all",
            Scope::Each => "worst of all",
        }
    }
}

struct Target {
    subject: &'static str,
    peer: &'static str,
    metric: Metric,
    scope: Scope,
    /// The most for bytes, the least for speeds.
    bound: f64,
}

const fn target(subject: &'static str, peer: &'static str, metric: Metric, scope: Scope, bound: f64) -> Target {
    Target { subject, peer, metric, scope, bound }
}

/// The project's targets for page codecs.
const TARGETS: &[Target] = &[
    target("lz4dyn", "liblz4", Metric::Bytes, Scope::Heaps, 0.89),
    target("lz4dyn", "liblz4", Metric::Bytes, Scope::All, 0.95),
    target("lz4dyn", "liblz4", Metric::Compress, Scope::All, 1.0),
    target("lz4dyn", "liblz4", Metric::Compress, Scope::Each, 0.9),
    target("lz4dyn", "liblz4", Metric::Decompress, Scope::All, 1.0),
    target("lz4dyn", "liblz4", Metric::Decompress, Scope::Each, 0.9),
    target("lz4dyn", "liblzo2", Metric::Bytes, Scope::Heaps, 1.0),
    target("liblzo2", "liblz4", Metric::Bytes, Scope::Heaps, 1.0),
    target("fold", "liblz4", Metric::Bytes, Scope::Heaps, 0.68),
    target("fold", "liblz4", Metric::Bytes, Scope::All, 0.86),
    target("fold", "liblz4", Metric::Compress, Scope::All, 1.0),
    target("fold", "liblz4", Metric::Compress, Scope::Each, 0.9),
    target("fold", "liblz4", Metric::Decompress, Scope::All, 1.0),
    target("fold", "liblz4", Metric::Decompress, Scope::Each, 0.9),
    target("pleat", "libzstd-1", Metric::Bytes, Scope::All, 1.0),
    target("pleat", "libzstd-1-dict", Metric::Bytes, Scope::All, 1.0),
    target("pleat", "libzstd-1", Metric::Compress, Scope::All, 2.0),
    target("pleat", "libzstd-1", Metric::Decompress, Scope::All, 2.0),
    target("pleat-trained", "libzstd-1", Metric::Bytes, Scope::All, 1.0),
    target("pleat-trained", "libzstd-1-dict", Metric::Bytes, Scope::All, 1.0),
    target("pleat-trained", "libzstd-1", Metric::Compress, Scope::All, 2.0),
    target("pleat-trained", "libzstd-1", Metric::Decompress, Scope::All, 2.0),
    target("lz4", "liblz4", Metric::Bytes, Scope::Each, 1.005),
    target("lz4", "liblz4", Metric::Compress, Scope::Each, 1.15),
    target("lz4", "liblz4", Metric::Decompress, Scope::Each, 1.0),
    target("lzo", "liblzo2", Metric::Compress, Scope::Each, 0.9),
    target("lzo", "liblzo2", Metric::Decompress, Scope::Each, 1.0),
];

/// The figures of one run, found by kind and subject.
struct Table<'a> {
    measured: &'a [Measured],
    cases: Vec<&'a str>,
    subjects: Vec<&'a str>,
}

impl<'a> Table<'a> {
    fn new(measured: &'a [Measured]) -> Self {
        let mut table = Self { measured, cases: Vec::new(), subjects: Vec::new() };
        for one in measured {
            if !table.cases.contains(&one.case.as_str()) {
                table.cases.push(&one.case);
            }
            if !table.subjects.contains(&one.subject.as_str()) {
                table.subjects.push(&one.subject);
            }
        }
        table
    }

    /// `subject`'s figure over `peer`'s on one kind of data.
    fn quotient(&self, case: &str, subject: &str, peer: &str, metric: Metric) -> Option<f64> {
        let of = |name: &str| self.measured.iter().find(|one| one.case == case && one.subject == name);
        Some(metric.of(of(subject)?) / metric.of(of(peer)?))
    }

    fn quotients(&self, subject: &str, peer: &str, metric: Metric, heaps_only: bool) -> Vec<f64> {
        self.cases
            .iter()
            .filter(|case| !heaps_only || case.starts_with("heap"))
            .filter_map(|case| self.quotient(case, subject, peer, metric))
            .collect()
    }

    /// The figure that `target` is about; `None` if this run did not measure it.
    fn reached(&self, target: &Target) -> Option<f64> {
        let heaps_only = matches!(target.scope, Scope::Heaps);
        let quotients = self.quotients(target.subject, target.peer, target.metric, heaps_only);
        match target.scope {
            Scope::Heaps | Scope::All => (!quotients.is_empty()).then(|| geometric_mean(&quotients)),
            Scope::Each if target.metric == Metric::Bytes => quotients.into_iter().reduce(f64::max),
            Scope::Each => quotients.into_iter().reduce(f64::min),
        }
    }

    fn write_matrix(&self, text: &mut String, peer: &str, metric: Metric) -> std::fmt::Result {
        if !self.subjects.contains(&peer) {
            return Ok(());
        }
        writeln!(text, "\n{} / {peer}'s", metric.word())?;
        write!(text, "{:14}", "")?;
        for case in &self.cases {
            write!(text, " {case:>12.12}")?;
        }
        writeln!(text, " {:>12}", "geo. mean")?;
        for subject in self.subjects.iter().filter(|&&subject| subject != peer) {
            write!(text, "{subject:14}")?;
            for case in &self.cases {
                match self.quotient(case, subject, peer, metric) {
                    Some(quotient) => write!(text, " {quotient:12.3}")?,
                    None => write!(text, " {:>12}", "-")?,
                }
            }
            let mean = geometric_mean(&self.quotients(subject, peer, metric, false));
            writeln!(text, " {mean:12.3}")?;
        }
        Ok(())
    }
}

fn render(measured: &[Measured]) -> Result<String, std::fmt::Error> {
    let table = Table::new(measured);
    let mut text = String::new();
    for peer in ["liblz4", "libzstd-1"] {
        for metric in [Metric::Bytes, Metric::Compress, Metric::Decompress] {
            table.write_matrix(&mut text, peer, metric)?;
        }
    }
    let mut heading = "\ntargets\n";
    for target in TARGETS {
        let Some(reached) = table.reached(target) else { continue };
        let (sign, passes) = match target.metric {
            Metric::Bytes => ("≤", reached <= target.bound),
            Metric::Compress | Metric::Decompress => ("≥", reached >= target.bound),
        };
        writeln!(
            text,
            "{heading}{} {} / {}: {} {}, {} {reached:.3}",
            if passes { "PASS" } else { "miss" },
            target.subject,
            target.peer,
            target.metric.word(),
            format_args!("{sign}{}", target.bound),
            target.scope.word(),
        )?;
        heading = "";
    }
    Ok(text)
}

/// Prints the tables and the targets that this run measured; on the standard error if the standard output is `json`.
pub(super) fn print(measured: &[Measured], json: bool) {
    // Writing to a string cannot fail.
    let text = render(measured).unwrap_or_default();
    let mut out: Box<dyn io::Write> = if json { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    // A closed pipe is not an error of the measurement.
    let _ = out.write_all(text.as_bytes());
}

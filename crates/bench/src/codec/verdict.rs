//! The tables at the end: every subject against liblz4 and zstd level 1, means and worst kinds, and
//! the targets.

use std::{fmt::Write, io};

use super::Measured;
use crate::figure::geometric_mean;

/// The quantity compared.
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

const METRICS: [Metric; 3] = [Metric::Bytes, Metric::Compress, Metric::Decompress];

/// The figures that a target covers.
#[derive(Clone, Copy)]
enum Scope {
    /// Geometric mean over the kinds whose name begins with `heap`.
    Heaps,
    /// Geometric mean over all kinds.
    All,
    /// The worst kind.
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
    /// Maximum for bytes, minimum for speeds.
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
    target("fold", "liblz4", Metric::Bytes, Scope::All, 0.82),
    target("fold", "liblz4", Metric::Bytes, Scope::Each, 1.0),
    target("fold", "liblz4", Metric::Compress, Scope::All, 1.1),
    target("fold", "liblz4", Metric::Compress, Scope::Each, 0.9),
    target("fold", "liblz4", Metric::Decompress, Scope::All, 1.1),
    target("fold", "liblz4", Metric::Decompress, Scope::Each, 0.9),
    target("fold-dict", "liblz4", Metric::Bytes, Scope::All, 0.7),
    target("fold-dict", "liblz4", Metric::Compress, Scope::All, 1.0),
    target("fold-dict", "liblz4", Metric::Compress, Scope::Each, 0.9),
    target("fold-dict", "liblz4", Metric::Decompress, Scope::All, 1.0),
    target("fold-dict", "liblz4", Metric::Decompress, Scope::Each, 0.9),
    target("pleat-trained", "libzstd-1", Metric::Bytes, Scope::All, 0.92),
    target("pleat-trained", "libzstd-1", Metric::Bytes, Scope::Each, 1.05),
    target("pleat-trained", "libzstd-1-dict", Metric::Bytes, Scope::All, 1.0),
    target("pleat-trained", "libzstd-1-dict", Metric::Bytes, Scope::Each, 1.05),
    target("pleat-trained", "libzstd-1", Metric::Compress, Scope::All, 2.0),
    target("pleat-trained", "libzstd-1", Metric::Decompress, Scope::All, 2.5),
    target("lz4", "liblz4", Metric::Bytes, Scope::Each, 1.005),
    target("lz4", "liblz4", Metric::Compress, Scope::Each, 1.15),
    target("lz4", "liblz4", Metric::Decompress, Scope::Each, 1.0),
    target("lzo", "liblzo2", Metric::Compress, Scope::Each, 0.9),
    target("lzo", "liblzo2", Metric::Decompress, Scope::Each, 1.0),
];

/// The figures of one run, looked up by kind and subject.
struct RunFigures<'a> {
    measured: &'a [Measured],
    cases: Vec<&'a str>,
    subjects: Vec<&'a str>,
}

impl<'a> RunFigures<'a> {
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

    /// Returns `subject`'s figure divided by `peer`'s on one kind of data.
    fn quotient(&self, case: &str, subject: &str, peer: &str, metric: Metric) -> Option<f64> {
        let of = |name: &str| self.measured.iter().find(|one| one.case == case && one.subject == name);
        Some(metric.of(of(subject)?) / metric.of(of(peer)?))
    }

    /// Returns the quotients for all kinds or for heaps only, each with its kind.
    fn quotients(&self, subject: &str, peer: &str, metric: Metric, heaps_only: bool) -> Vec<(&'a str, f64)> {
        self.cases
            .iter()
            .filter(|case| !heaps_only || kind(case).starts_with("heap"))
            .filter_map(|case| Some((*case, self.quotient(case, subject, peer, metric)?)))
            .collect()
    }

    /// Returns the figure that `target` refers to, and its kind if it belongs to a single one.
    /// Returns `None` if this run did not measure it.
    fn reached(&self, target: &Target) -> Option<(f64, Option<&'a str>)> {
        let heaps_only = matches!(target.scope, Scope::Heaps);
        let quotients = self.quotients(target.subject, target.peer, target.metric, heaps_only);
        match target.scope {
            Scope::Heaps | Scope::All => (!quotients.is_empty()).then(|| (mean(&quotients), None)),
            Scope::Each => worst(&quotients, target.metric).map(|(case, quotient)| (quotient, Some(case))),
        }
    }

    /// Writes a row for each kind and a column for each subject.
    fn write_matrix(&self, text: &mut String, peer: &str, metric: Metric) -> std::fmt::Result {
        if !self.subjects.contains(&peer) {
            return Ok(());
        }
        let subjects: Vec<&str> = self.subjects.iter().copied().filter(|&subject| subject != peer).collect();
        let width = |subject: &str| subject.len().max(6);
        write!(text, "\n{:NAME_WIDTH$}", format!("{} / {peer}'s", metric.word()))?;
        for subject in &subjects {
            write!(text, " {subject:>0$}", width(subject))?;
        }
        text.push('\n');
        for case in &self.cases {
            write!(text, "{:NAME_WIDTH$}", kind(case))?;
            for subject in &subjects {
                match self.quotient(case, subject, peer, metric) {
                    Some(quotient) => write!(text, " {quotient:0$.3}", width(subject))?,
                    None => write!(text, " {:>1$}", "-", width(subject))?,
                }
            }
            text.push('\n');
        }
        for (name, of) in [("geometric mean", None), ("worst", Some(metric))] {
            write!(text, "{name:NAME_WIDTH$}")?;
            for subject in &subjects {
                let quotients = self.quotients(subject, peer, metric, false);
                let figure = match of {
                    None => mean(&quotients),
                    Some(metric) => worst(&quotients, metric).map_or(f64::NAN, |(_, quotient)| quotient),
                };
                write!(text, " {figure:0$.3}", width(subject))?;
            }
            text.push('\n');
        }
        Ok(())
    }

    /// Writes a row for each subject against `peer`: the means over all kinds and over heaps, and
    /// the worst kind with its name.
    fn write_summary(&self, text: &mut String, peer: &str) -> std::fmt::Result {
        if !self.subjects.contains(&peer) {
            return Ok(());
        }
        write!(text, "\n{:NAME_WIDTH$}", format!("figures / {peer}'s"))?;
        for metric in METRICS {
            write!(text, "  {:46}", format!("{}: mean, of heaps, worst", metric.word()))?;
        }
        text.truncate(text.trim_end().len());
        for subject in self.subjects.iter().copied().filter(|&subject| subject != peer) {
            write!(text, "\n{subject:NAME_WIDTH$}")?;
            for metric in METRICS {
                let quotients = self.quotients(subject, peer, metric, false);
                let of_heaps = self.quotients(subject, peer, metric, true);
                let of_heaps = if of_heaps.is_empty() { "-".to_owned() } else { format!("{:.3}", mean(&of_heaps)) };
                let (case, worst) = worst(&quotients, metric).unwrap_or(("-", f64::NAN));
                write!(text, "  {:6.3} {of_heaps:>6} {worst:6.3} {:25}", mean(&quotients), kind(case))?;
            }
            text.truncate(text.trim_end().len());
        }
        text.push('\n');
        Ok(())
    }
}

/// Wide enough for the names of kinds and the headings of tables.
const NAME_WIDTH: usize = 34;

/// Returns the name of a case's kind, without the set.
fn kind(case: &str) -> &str {
    case.rsplit_once('/').map_or(case, |(_, kind)| kind)
}

fn mean(quotients: &[(&str, f64)]) -> f64 {
    geometric_mean(&quotients.iter().map(|(_, quotient)| *quotient).collect::<Vec<_>>())
}

fn worst<'a>(quotients: &[(&'a str, f64)], metric: Metric) -> Option<(&'a str, f64)> {
    quotients.iter().copied().reduce(|worst, other| {
        let is_worse = if metric == Metric::Bytes { other.1 > worst.1 } else { other.1 < worst.1 };
        if is_worse { other } else { worst }
    })
}

/// Renders the tables of `measured`, and the targets if `targets` is set.
fn render(measured: &[Measured], targets: bool) -> Result<String, std::fmt::Error> {
    let table = RunFigures::new(measured);
    let mut text = String::new();
    for peer in ["liblz4", "libzstd-1"] {
        for metric in METRICS {
            table.write_matrix(&mut text, peer, metric)?;
        }
    }
    for peer in ["liblz4", "libzstd-1", "libzstd-1-dict"] {
        table.write_summary(&mut text, peer)?;
    }
    let mut heading = "\ntargets\n";
    for target in TARGETS.iter().filter(|_| targets) {
        let Some((reached, case)) = table.reached(target) else { continue };
        let (sign, passes) = match target.metric {
            Metric::Bytes => ("≤", reached <= target.bound),
            Metric::Compress | Metric::Decompress => ("≥", reached >= target.bound),
        };
        writeln!(
            text,
            "{heading}{} {} / {}: {} {}, {} {reached:.3}{}",
            if passes { "PASS" } else { "miss" },
            target.subject,
            target.peer,
            target.metric.word(),
            format_args!("{sign}{}", target.bound),
            target.scope.word(),
            case.map(|case| format!(", {}", kind(case))).unwrap_or_default(),
        )?;
        heading = "";
    }
    Ok(text)
}

/// Prints the tables of what this run measured, and the targets if `targets` is set; to standard
/// error if standard output is for `json`.
pub(super) fn print(measured: &[Measured], targets: bool, json: bool) {
    // Writing to a string cannot fail.
    let text = render(measured, targets).unwrap_or_default();
    let mut out: Box<dyn io::Write> = if json { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    // A closed pipe is not an error of the measurement.
    let _ = out.write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(kind: &str, subject: &str, bytes: usize, micros: u64) -> Measured {
        Measured::of_times(&format!("measured/{kind}"), subject, bytes, micros)
    }

    #[test]
    fn means_worst_kinds_and_the_targets_of_what_was_measured() {
        let all = [
            measured("heap-java", "fold", 600, 100),
            measured("heap-java", "liblz4", 1000, 100),
            measured("text-csv", "fold", 1010, 80),
            measured("text-csv", "liblz4", 1000, 100),
        ];
        let text = render(&all, true).unwrap();
        let found = |line: &str| assert!(text.contains(line), "no '{line}' in{text}");
        found(" 0.778  0.600  1.010 text-csv ");
        found("PASS fold / liblz4: compressed bytes ≤0.82, mean of all 0.778\n");
        found("miss fold / liblz4: compressed bytes ≤1, worst of all 1.010, text-csv\n");
        found("PASS fold / liblz4: compression speed ≥1.1, mean of all 1.118\n");
        assert!(!text.contains("fold-dict") && !text.contains("libzstd"), "{text}");
        assert!(!render(&all, false).unwrap().contains("PASS"));
    }
}

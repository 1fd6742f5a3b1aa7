//! Figures, subjects that could not be measured, and the targets.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::figure::{Figure, geometric_mean};

/// A metric; it has a unit and a direction that is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Metric {
    ImageBytes,
    BuildSeconds,
    PeakRss,
    Sequential,
    Random,
    ExtractSeconds,
    InPlaceShare,
}

impl Metric {
    const fn name(self) -> &'static str {
        match self {
            Self::ImageBytes => "image_bytes",
            Self::BuildSeconds => "build_s",
            Self::PeakRss => "peak_rss_bytes",
            Self::Sequential => "seq_read_mb_s",
            Self::Random => "rand_read_us",
            Self::ExtractSeconds => "extract_s",
            Self::InPlaceShare => "in_place_share",
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::ImageBytes | Self::PeakRss => "bytes",
            Self::BuildSeconds | Self::ExtractSeconds => "s",
            Self::Sequential => "MB/s",
            Self::Random => "us",
            Self::InPlaceShare => "share",
        }
    }

    const fn more_is_better(self) -> bool {
        matches!(self, Self::Sequential | Self::InPlaceShare)
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::ImageBytes => format!("{value:.0}"),
            Self::PeakRss => format!("{:.1} MB", value / 1e6),
            Self::BuildSeconds | Self::ExtractSeconds => format!("{value:.3}"),
            Self::Sequential => format!("{value:.0}"),
            Self::Random => format!("{value:.2}"),
            Self::InPlaceShare => format!("{value:.4}"),
        }
    }
}

/// The figures of one run.
#[derive(Default)]
pub(super) struct Results {
    /// By case, metric and subject.
    figures: BTreeMap<(String, Metric, String), f64>,
    /// Subjects that could not be measured, once for each reason.
    missing: Vec<(String, String, String)>,
}

/// One of the project's targets: the subject's figure divided by the peer's, or the figure itself
/// if there is no peer.
struct Target {
    subject: &'static str,
    peer: Option<&'static str>,
    metric: Metric,
    bound: f64,
    /// Only cases whose name contains this.
    only: &'static str,
}

const fn target(subject: &'static str, peer: &'static str, metric: Metric, bound: f64, only: &'static str) -> Target {
    Target { subject, peer: Some(peer), metric, bound, only }
}

const TARGETS: &[Target] = &[
    target("pagefold", "mkfs.erofs", Metric::ImageBytes, 1.0, ""),
    target("pagefold", "mkfs.erofs", Metric::BuildSeconds, 0.8, ""),
    target("pagefold", "kernel-erofs", Metric::Sequential, 1.5, "/all"),
    target("pagefold", "kernel-erofs", Metric::Random, 0.3, "/all"),
    target("pagefold-fuse", "erofsfuse", Metric::Sequential, 1.3, ""),
    target("pagefold-fuse", "erofsfuse", Metric::Random, 0.5, "/64k/"),
    target("pagefold", "fsck.erofs", Metric::ExtractSeconds, 0.7, ""),
    Target { subject: "pagefold", peer: None, metric: Metric::InPlaceShare, bound: 0.98, only: "text/lz4/4k" },
    target("kernel-erofs-4k", "kernel-squashfs-4k", Metric::Sequential, 8.0, "/cold"),
    target("kernel-erofs-4k", "kernel-ext4", Metric::Sequential, 1.0, "/cold"),
];

impl Results {
    /// Adds a figure and keeps the best one.
    pub(super) fn add(&mut self, case: &str, subject: &str, metric: Metric, value: f64) {
        let best = if metric.more_is_better() { f64::max } else { f64::min };
        self.figures
            .entry((case.to_owned(), metric, subject.to_owned()))
            .and_modify(|old| *old = best(*old, value))
            .or_insert(value);
    }

    /// Records that a subject was not measured, and prints the reason.
    pub(super) fn miss(&mut self, case: &str, subject: &str, error: &anyhow::Error) {
        let why = format!("{error:#}");
        if !self.missing.iter().any(|(_, name, said)| name == subject && *said == why) {
            eprintln!("SKIPPED: {subject} ({case}): {why}");
            self.missing.push((case.to_owned(), subject.to_owned(), why));
        }
    }

    fn quotients(&self, target: &Target) -> Vec<(f64, &str)> {
        let ours = self.figures.iter().filter(|((case, metric, subject), _)| {
            *metric == target.metric && subject == target.subject && case.contains(target.only)
        });
        ours.filter_map(|((case, metric, _), value)| {
            let peer = match target.peer {
                None => 1.0,
                Some(peer) => *self.figures.get(&(case.clone(), *metric, peer.to_owned()))?,
            };
            Some((value / peer, case.as_str()))
        })
        .collect()
    }

    fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let mut heading = (String::new(), Metric::ImageBytes);
        for ((case, metric, subject), value) in &self.figures {
            if heading.0 != *case || heading.1 != *metric {
                write!(text, "\n{case:32} {:16}", metric.name())?;
                heading = (case.clone(), *metric);
            }
            write!(text, "  {subject} {}", metric.show(*value))?;
        }
        writeln!(text)?;
        for (case, subject, why) in &self.missing {
            writeln!(text, "not available: {subject} ({case}): {why}")?;
        }
        writeln!(text, "\ntargets (each case must reach them)")?;
        for target in TARGETS {
            let quotients = self.quotients(target);
            let more = target.metric.more_is_better();
            let worse =
                |a: &&(f64, &str), b: &&(f64, &str)| if more { b.0.total_cmp(&a.0) } else { a.0.total_cmp(&b.0) };
            let what = match target.peer {
                Some(peer) => format!("{} / {peer}: {}", target.subject, target.metric.name()),
                None => format!("{}: {}", target.subject, target.metric.name()),
            };
            let sign = if more { "≥" } else { "≤" };
            let Some((worst, case)) = quotients.iter().max_by(worse) else { continue };
            let reached = |value: f64| if more { value >= target.bound } else { value <= target.bound };
            let values: Vec<f64> = quotients.iter().map(|(value, _)| *value).collect();
            writeln!(
                text,
                "{} {what} {sign}{}: mean {:.3}, worst {worst:.3} ({case}), {} of {} cases",
                if reached(*worst) { "PASS" } else { "miss" },
                target.bound,
                geometric_mean(&values),
                values.iter().filter(|value| reached(**value)).count(),
                values.len(),
            )?;
        }
        Ok(text)
    }

    /// Prints the figures as lines of JSON if `json` is set, and the tables; with `json` to
    /// standard error.
    pub(super) fn print(&self, json: bool) {
        if json {
            for ((case, metric, subject), value) in &self.figures {
                let (metric, unit) = (metric.name(), metric.unit());
                Figure { bench: "image", case, subject, metric, value: *value, unit }.print_json();
            }
        }
        // Writing to a string cannot fail.
        let text = self.render().unwrap_or_default();
        if json { eprint!("{text}") } else { print!("{text}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_stands_and_the_worst_case_decides() {
        let mut results = Results::default();
        for (case, ours, theirs) in [("a/build/1", 1.0, 2.0), ("b/build/1", 0.9, 1.0)] {
            results.add(case, "pagefold", Metric::BuildSeconds, ours + 1.0);
            results.add(case, "pagefold", Metric::BuildSeconds, ours);
            results.add(case, "mkfs.erofs", Metric::BuildSeconds, theirs);
        }
        results.add("text/lz4/4k/read/1", "pagefold", Metric::InPlaceShare, 0.99);
        let text = results.render().expect("text");
        assert!(text.contains("miss pagefold / mkfs.erofs: build_s ≤0.8: mean 0.671, worst 0.900 (b/build/1), 1 of 2"));
        assert!(text.contains("PASS pagefold: in_place_share ≥0.98"));
        assert!(!text.contains("erofsfuse"));
    }
}

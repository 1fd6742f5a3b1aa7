//! The figures of a run, as a table, as ratios with their targets, and as lines of JSON.

use std::{collections::BTreeMap, iter};

use super::{
    cases::{Case, Pattern},
    load::Shape,
    subjects::Subject::{
        self, ForkLz4, ForkRaw, ForkZstd, NbdkitCow, NbdkitMalloc, PagefoldDefault, PagefoldOneCpu, Qcow2Daemon,
        Qcow2Nbd,
    },
};
use crate::{
    figure::{Figure, median},
    machine::cpus,
    verdict::Target::{self, AtLeast, AtMost},
};

/// The speed of all requests of a case, which is only in the table.
const ALL_MB_S: &str = "all_mb_s";
/// The higher of the two 99th percentiles of a case, which is only in the table.
const WORST_P99_US: &str = "worst_p99_us";

/// CPUs from which on targets for many CPUs apply.
const MANY_CPUS: usize = 16;

/// Names a figure: its case, its subject and its metric.
type Key = (String, Subject, &'static str);

/// The figures by round.
#[derive(Default)]
pub(super) struct Results(BTreeMap<Key, Vec<f64>>);

/// The ratio of two figures of the same rounds.
struct Ratio {
    case: String,
    ours: String,
    peer: String,
    metric: &'static str,
    value: f64,
    target: Option<Target>,
}

impl Results {
    pub(super) fn add(&mut self, case: &str, subject: Subject, metric: &'static str, value: f64) {
        self.0.entry((case.to_owned(), subject, metric)).or_default().push(value);
    }

    /// Adds the sides of a run: speed and 99th percentile of each.
    pub(super) fn add_sides(&mut self, name: &str, subject: Subject, sides: &[([&'static str; 2], [f64; 2])]) {
        for &([speed, p99], [mb_s, us]) in sides {
            self.add(name, subject, speed, mb_s);
            self.add(name, subject, p99, us);
        }
        self.add(name, subject, ALL_MB_S, sides.iter().map(|&(_, [mb_s, _])| mb_s).sum());
        self.add(name, subject, WORST_P99_US, sides.iter().map(|&(_, [_, us])| us).fold(f64::NAN, f64::max));
    }

    fn median(&self, case: &str, subject: Subject, metric: &'static str) -> Option<f64> {
        self.0.get(&(case.to_owned(), subject, metric)).map(|values| median(values))
    }

    /// Returns the median over rounds of the ratio of two figures.
    fn ratio(&self, ours: Key, peer: Key) -> Option<f64> {
        let (ours, peer) = (self.0.get(&ours)?, self.0.get(&peer)?);
        let ratios: Vec<f64> = iter::zip(ours, peer).map(|(ours, peer)| ours / peer).collect();
        Some(median(&ratios))
    }

    /// Prints one line of JSON for each figure.
    pub(super) fn print_json(&self, cases: &[Case], data: &str) {
        for ((case, subject, metric), values) in &self.0 {
            let unit = match *metric {
                ALL_MB_S | WORST_P99_US => continue,
                metric if metric.ends_with("_bytes") => "bytes",
                metric if metric.ends_with("_us") => "us",
                metric if metric.ends_with("_mb_s") => "MB/s",
                _ => "clusters",
            };
            let subject = subject.name();
            Figure { bench: "nbd", case, subject: &subject, metric, value: median(values), unit }.print_json();
        }
        for Ratio { case, ours, peer, metric, value, .. } in self.ratios(cases, data) {
            let subject = format!("{ours}/{peer}");
            Figure { bench: "nbd", case: &case, subject: &subject, metric, value, unit: "x" }.print_json();
        }
    }

    /// Returns the figures as lines of text.
    pub(super) fn table(&self, subjects: &[Subject], cases: &[Case], data: &str) -> Vec<String> {
        let mut lines = Vec::new();
        let width = self.0.keys().map(|(case, ..)| case.len()).max().unwrap_or(0);
        let heads: String = subjects.iter().map(|subject| format!(" {:>16}", subject.name())).collect();
        let mut block = |title: &str, metric, scale: &dyn Fn(&Case) -> f64, decimals: usize| {
            lines.push(format!("{title:width$}{heads}"));
            for case in cases {
                let name = case.name(data);
                let cell = |&subject: &Subject| match self.median(&name, subject, metric) {
                    Some(value) => format!(" {:16.decimals$}", value * scale(case)),
                    None => format!(" {:>16}", "-"),
                };
                lines.push(format!("{name:width$}{}", subjects.iter().map(cell).collect::<String>()));
            }
            lines.push(String::new());
        };
        block("requests, thousands/s", ALL_MB_S, &|case| 1e3 / (case.block_kib * 1024) as f64, 1);
        block("99th percentile, us (the worse side)", WORST_P99_US, &|_| 1.0, 0);
        for ((case, subject, metric), values) in &self.0 {
            match *metric {
                "rss_bytes" => lines.push(format!(
                    "{case:width$} {:>16} {:12.1} MiB, server and files in memory",
                    subject.name(),
                    median(values) / f64::from(1 << 20)
                )),
                "decoded_clusters" => {
                    lines.push(format!("{case:width$} {:>16} {:12.2} clusters", subject.name(), median(values)));
                }
                _ => {}
            }
        }
        lines.push(format!("\n{:width$} {:>33} {:6} {:>7}  target", "ratios", "", "of", ""));
        for Ratio { case, ours, peer, metric, value, target } in self.ratios(cases, data) {
            let verdict = target.map_or_else(String::new, |target| target.verdict(value));
            let of = format!("{ours}/{peer}");
            let of_what = if metric == "p99_ratio" { "p99" } else { "speed" };
            lines.push(format!("{case:width$} {of:>33} {of_what:6} {value:7.2}  {verdict}").trim_end().to_owned());
        }
        lines
    }

    /// Returns the ratios of interest that the run has figures for.
    fn ratios(&self, cases: &[Case], data: &str) -> Vec<Ratio> {
        let has_many_cpus = cpus() >= MANY_CPUS;
        let mut ratios = Vec::new();
        for case in cases {
            let name = case.name(data);
            let mut add = |ours: Subject, peer: Subject, target: Option<Target>| {
                let key = |subject| (name.clone(), subject, ALL_MB_S);
                if let Some(value) = self.ratio(key(ours), key(peer)) {
                    let (ours, peer) = (ours.name(), peer.name());
                    ratios.push(Ratio { case: name.clone(), ours, peer, metric: "speed_ratio", value, target });
                }
            };
            let is_deep = case.shape == Shape { connections: 1, depth: 16 };
            let cached = case.pattern == Pattern::Read { is_cached: true };
            match case.pattern {
                Pattern::Read { is_cached: true } => {
                    [ForkLz4, ForkZstd, ForkRaw]
                        .into_iter()
                        .for_each(|fork| add(fork, PagefoldDefault, Some(AtLeast(0.95))));
                }
                Pattern::Read { is_cached: false } => {
                    add(ForkLz4, PagefoldDefault, Some(AtLeast(0.5)));
                    [ForkZstd, ForkRaw].into_iter().for_each(|fork| add(fork, PagefoldDefault, None));
                }
                Pattern::Write if case.block_kib == 128 => {
                    add(PagefoldDefault, PagefoldOneCpu, has_many_cpus.then_some(AtLeast(6.0)));
                }
                Pattern::Write if case.block_kib == 32 => add(PagefoldDefault, NbdkitMalloc, Some(AtLeast(1.0))),
                Pattern::Write => {
                    let bound = AtLeast(if has_many_cpus { 1.5 } else { 1.0 });
                    add(PagefoldDefault, NbdkitMalloc, is_deep.then_some(bound));
                    add(ForkLz4, PagefoldDefault, None);
                }
                Pattern::Mixed => add(ForkLz4, PagefoldDefault, None),
                Pattern::Hot { .. } => {}
            }
            if !matches!(case.pattern, Pattern::Hot { .. }) {
                [Qcow2Nbd, Qcow2Daemon].into_iter().for_each(|qcow2| add(ForkLz4, qcow2, Some(AtLeast(3.0))));
                add(ForkLz4, NbdkitCow, None);
            }
            if !cached {
                self.p99_ratios(&mut ratios, case, &name, data);
            }
        }
        ratios
    }

    /// Adds the ratios of 99th percentiles: of reads of the whole base to the plain disk's, and of hot
    /// reads with misses to those without.
    fn p99_ratios(&self, ratios: &mut Vec<Ratio>, case: &Case, name: &str, data: &str) {
        let mut add = |ours: (Subject, String), peer: (Subject, &str, String), target| {
            let key = |subject, case: &str| (case.to_owned(), subject, WORST_P99_US);
            if let Some(value) = self.ratio(key(ours.0, name), key(peer.0, peer.1)) {
                let (case, metric) = (name.to_owned(), "p99_ratio");
                ratios.push(Ratio { case, ours: ours.1, peer: peer.2, metric, value, target });
            }
        };
        match case.pattern {
            Pattern::Read { .. } => {
                let plain = || (PagefoldDefault, name, PagefoldDefault.name());
                add((ForkLz4, ForkLz4.name()), plain(), Some(AtMost(3.0)));
                add((ForkZstd, ForkZstd.name()), plain(), None);
            }
            Pattern::Hot { misses } if misses > 0 => {
                let without = Case { pattern: Pattern::Hot { misses: 0 }, ..*case }.name(data);
                for subject in [ForkLz4, ForkZstd, ForkRaw, Qcow2Nbd, Qcow2Daemon, NbdkitCow] {
                    let target = subject.is_fork().then_some(AtMost(1.2));
                    add((subject, subject.name()), (subject, &without, "no-misses".to_owned()), target);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { connections: 1, depth: 16 };

    fn read(is_cached: bool) -> Case {
        Case { pattern: Pattern::Read { is_cached }, block_kib: 4, shape: SHAPE, changed: 1 }
    }

    fn hot(misses: u64) -> Case {
        Case { pattern: Pattern::Hot { misses }, ..read(true) }
    }

    #[test]
    fn ratios_are_of_the_same_rounds_and_have_their_targets() {
        let mut results = Results::default();
        // The machine is half as fast in the second round.
        for round in [1.0, 2.0] {
            for (case, subject, mb_s, us) in [
                (read(true), PagefoldDefault, 100.0, 10.0),
                (read(true), ForkLz4, 90.0, 10.0),
                (read(false), PagefoldDefault, 100.0, 10.0),
                (read(false), ForkLz4, 60.0, 25.0),
                (read(false), Qcow2Daemon, 10.0, 200.0),
                (hot(0), ForkZstd, 100.0, 10.0),
                (hot(10), ForkZstd, 10.0, 30.0),
            ] {
                results.add_sides(&case.name("d"), subject, &[(case.metrics()[0], [mb_s / round, us * round])]);
            }
        }
        let cases = [read(true), read(false), hot(0), hot(10)];
        let ratios = results.ratios(&cases, "d");
        let found: Vec<(String, &str, f64)> =
            ratios.iter().map(|ratio| (format!("{}/{}", ratio.ours, ratio.peer), ratio.metric, ratio.value)).collect();
        assert_eq!(
            found,
            [
                ("fork-lz4/pagefold-default".to_owned(), "speed_ratio", 0.9),
                ("fork-lz4/pagefold-default".to_owned(), "speed_ratio", 0.6),
                ("fork-lz4/qcow2-daemon".to_owned(), "speed_ratio", 6.0),
                ("fork-lz4/pagefold-default".to_owned(), "p99_ratio", 2.5),
                ("fork-zstd/no-misses".to_owned(), "p99_ratio", 3.0),
            ]
        );
        let table = results.table(&[PagefoldDefault, ForkLz4], &cases, "d").join("\n");
        for line in ["18.3             16.5", "speed     0.90  miss (≥ 0.95)", "speed     0.60  PASS (≥ 0.5)"] {
            assert!(table.contains(line), "{line}: {table}");
        }
        assert!(table.contains("p99       3.00  miss (≤ 1.2)"), "{table}");
    }
}

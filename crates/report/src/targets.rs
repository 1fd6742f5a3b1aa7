//! The project's targets: `data/targets.txt`.

use super::{
    ratio::{Measure, Pairs, Ratios, ratios},
    record::{Pick, Record, Spread},
};

const TABLE: &str = include_str!("../data/targets.txt");

/// A bound for a figure, or for the ratio of two subjects' figures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    ours: Pick<'a>,
    /// Another subject with the same cases and metric.
    peer: Option<&'a str>,
    /// Whether the mean of the cases is bounded, and not each of them.
    of_mean: bool,
    at_least: bool,
    /// `None` if the ratio is only reported.
    bound: Option<f64>,
}

/// Returns the targets of a bench on a machine with `cpus` CPUs, in the table's order.
pub(super) fn targets(bench: &str, cpus: usize) -> impl Iterator<Item = Target<'static>> {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(move |row| parse(row, cpus));
    rows.filter(move |target| target.ours.bench == bench)
}

/// Parses a row: bench, case, metric, subject, peer or `-`, `mean` or `each`, relation, bound or `-`.
/// Some bounds are followed by another one for machines with more CPUs: `1; 1.5 from 16 CPUs`.
fn parse(row: &str, cpus: usize) -> Option<Target<'_>> {
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let [bench, case, metric, subject, peer, of, relation, bound] = cells[..] else { return None };
    let bound = match bound.split_once(';') {
        None => bound,
        Some((bound, further)) => {
            let (further, least) = further.trim().strip_suffix(" CPUs")?.split_once(" from ")?;
            if cpus >= least.parse().ok()? { further } else { bound }
        }
    };
    let bound = if bound == "-" { None } else { Some(bound.parse().ok()?) };
    let peer = (peer != "-").then_some(peer);
    let ours = Pick { bench, case, subject, metric };
    Some(Target { ours, peer, of_mean: of == "mean", at_least: relation == "≥", bound })
}

impl Target<'_> {
    /// Returns the figures or ratios that it is about.
    fn figures(&self, record: &Record) -> Option<Ratios> {
        if let Some(subject) = self.peer {
            return ratios(record, &self.ours, &Pick { subject, ..self.ours }, Pairs::Same, Measure::Speed);
        }
        let found = record.matching(&self.ours).map(|(key, series)| (series.spread(), key));
        let mut cases: Vec<_> =
            found.map(|(spread, key)| (spread.median, format!("{} {}", key.case, key.metric))).collect();
        cases.sort_by(|a, b| a.0.total_cmp(&b.0));
        let values: Vec<f64> = cases.iter().map(|(value, _)| *value).collect();
        let mean = Spread::of(&[values.iter().sum::<f64>() / values.len() as f64]);
        (!cases.is_empty()).then_some(Ratios { mean, cases })
    }

    /// Returns whether a run reaches the target, and by how much; `None` if the run has no figures
    /// for it.
    pub(super) fn verdict(&self, record: &Record) -> Option<String> {
        let Self { ours: Pick { case, subject, metric, .. }, peer, of_mean, at_least, bound } = *self;
        let Ratios { mean, cases } = self.figures(record)?;
        let (worst, worst_case) = if at_least { cases.first()? } else { cases.last()? };
        let is_met = |value: f64| bound.is_none_or(|bound| if at_least { value >= bound } else { value <= bound });
        let word = match (bound, is_met(if of_mean { mean.median } else { *worst })) {
            (None, _) => "    ",
            (_, true) => "PASS",
            (_, false) => "miss",
        };
        let peer = peer.map(|peer| format!(" / {peer}")).unwrap_or_default();
        let bound_text = bound.map_or_else(String::new, |bound| {
            let (of, sign) = (if of_mean { "mean " } else { "" }, if at_least { "≥" } else { "≤" });
            format!(" ({of}{sign} {bound})")
        });
        let what = format!("{word} {subject}{peer}: {metric} of {case}{bound_text}:");
        if let [(value, of)] = &cases[..] {
            return Some(format!("{what} {value:.4} ({of})"));
        }
        let reached = cases.iter().filter(|(value, _)| is_met(*value)).count();
        let (mean, count) = (mean.median, cases.len());
        let of_all = if bound.is_some() { format!(", {reached} of {count}") } else { format!(", {count} cases") };
        Some(format!("{what} mean {mean:.3}, worst {worst:.3} ({worst_case}){of_all}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::line::Line, *};

    #[test]
    fn every_row_of_the_table_is_a_target() {
        for row in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            assert!(parse(row, 1).is_some() && parse(row, 128).is_some(), "{row}");
            assert!(["mean", "each"].contains(&cells[5]) && ["≥", "≤"].contains(&cells[6]), "{row}");
        }
    }

    #[test]
    fn the_worst_case_or_the_mean_decides_and_the_bound_itself_is_met() {
        let mut record = Record::default();
        for (case, subject, value) in [("a/1", "x", 0.8), ("a/1", "y", 1.0), ("b/1", "x", 1.5), ("b/1", "y", 1.0)] {
            record.add(Line::new(["b", case, subject, "m", ""], value));
        }
        let verdict = |row| parse(row, 2).unwrap().verdict(&record);
        let said = verdict("b | * | m | x | y | each | ≥ | 0.8").unwrap();
        assert!(said.starts_with("PASS x / y: m of * (≥ 0.8): mean 1.095, worst 0.800 (a/1 m), 2 of 2"), "{said}");
        let said = verdict("b | * | m | x | y | each | ≤ | 1").unwrap();
        assert!(said.starts_with("miss") && said.ends_with("worst 1.500 (b/1 m), 1 of 2"), "{said}");
        assert!(verdict("b | * | m | x | y | mean | ≥ | 1.09").unwrap().starts_with("PASS"));
        assert!(verdict("b | b/* | m | x | - | each | ≤ | 1.4").unwrap().starts_with("miss x: m of b/* (≤ 1.4): 1.5"));
        assert!(verdict("b | * | m | x | y | each | ≤ | -").unwrap().starts_with("     x / y"));
        assert_eq!(verdict("b | * | m | x | z | each | ≥ | 1"), None);
    }

    #[test]
    fn a_bound_may_depend_on_the_number_of_cpus() {
        let bound = |bound: &str, cpus| parse(&format!("b | * | m | x | y | each | ≥ | {bound}"), cpus).unwrap().bound;
        assert_eq!([1, 15, 16, 64].map(|cpus| bound("1; 1.5 from 16 CPUs", cpus)), [1.0, 1.0, 1.5, 1.5].map(Some));
        assert_eq!([8, 16].map(|cpus| bound("-; 6 from 16 CPUs", cpus)), [None, Some(6.0)]);
    }
}

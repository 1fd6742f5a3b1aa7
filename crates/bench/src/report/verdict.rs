//! Who wins, and by how much: ratios of figures measured in the same turn.

use std::collections::BTreeMap;

use super::{
    comparisons::COMPARISONS,
    record::{Key, Pick, Record, Spread},
};
use crate::figure::geometric_mean;

/// The quantity of a figure, which determines whether more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// More is better.
    Speed,
    /// Less is better.
    Bytes,
    /// Less is better.
    Time,
}

impl Measure {
    /// Returns how many times better `ours` is than `theirs`.
    pub(super) fn times_better(self, ours: f64, theirs: f64) -> f64 {
        match self {
            Self::Speed => ours / theirs,
            Self::Bytes | Self::Time => theirs / ours,
        }
    }

    /// Returns the quantity of a figure with this name and unit, or `None` if it is neither better
    /// nor worse.
    pub(super) fn of(metric: &str, unit: &str) -> Option<Self> {
        match unit {
            "MB/s" | "Mop/s" => Some(Self::Speed),
            "s" | "ms" | "us" | "ns" => Some(Self::Time),
            "bytes" | "MiB" | "%" => Some(Self::Bytes),
            _ if metric.ends_with("_bytes") => Some(Self::Bytes),
            _ => None,
        }
    }
}

/// Two subjects that do the same work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    pub(super) group: &'static str,
    /// The work, such as `random 4 KiB reads`.
    pub(super) what: &'static str,
    pub(super) ours_name: &'static str,
    pub(super) peer_name: &'static str,
    pub(super) measure: Measure,
    pub(super) ours: Pick<'static>,
    pub(super) peer: Pick<'static>,
    pub(super) pairs: Pairs,
}

/// Which figures are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pairs {
    /// Figures with the same case and metric.
    Same,
    /// The means of all cases on each side, if the two sides count cases differently.
    Means,
}

/// Smaller differences count as equal: 1 %.
const EQUAL: f64 = 0.01;

/// Smaller differences of speeds and times count as equal if there is a single turn, which has no
/// spread: 5 %.
const EQUAL_SINGLE: f64 = 0.05;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Winner {
    Pagefold,
    Peer,
    /// The turns are on both sides of 1, or the difference counts as equal.
    Neither,
}

/// A case, and how many times better pagefold is in it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OfCase {
    pub(super) case: String,
    pub(super) ratio: f64,
}

/// The result of a comparison.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) comparison: Comparison,
    /// How many times better pagefold is: the geometric mean over cases, and its spread over turns.
    pub(super) ratio: Spread,
    pub(super) cases: usize,
    pub(super) worst: OfCase,
    pub(super) best: OfCase,
}

impl Verdict {
    pub(super) fn winner(&self) -> Winner {
        let Spread { median, low, high, turns } = self.ratio;
        let is_exact = turns > 1 || self.comparison.measure == Measure::Bytes;
        let equal = if is_exact { EQUAL } else { EQUAL_SINGLE };
        if low > 1.0 && median > 1.0 + equal {
            Winner::Pagefold
        } else if high < 1.0 && median < 1.0 - equal {
            Winner::Peer
        } else {
            Winner::Neither
        }
    }
}

/// Returns the verdicts of all comparisons that the run has figures for, in order.
pub(super) fn verdicts(record: &Record) -> Vec<Verdict> {
    COMPARISONS.iter().filter_map(|comparison| verdict(record, comparison)).collect()
}

/// Returns the comparisons that the run has no figures for.
pub(super) fn without_figures(record: &Record) -> Vec<&'static Comparison> {
    COMPARISONS.iter().filter(|comparison| verdict(record, comparison).is_none()).collect()
}

pub(super) fn verdict(record: &Record, comparison: &Comparison) -> Option<Verdict> {
    // Per pair of figures, the ratio of each turn.
    let mut ratios: BTreeMap<String, BTreeMap<u32, f64>> = BTreeMap::new();
    match comparison.pairs {
        Pairs::Same => {
            for (key, ours) in record.matching(&comparison.ours) {
                let other = Key { subject: comparison.peer.subject.to_owned(), ..key.clone() };
                let Some(theirs) = record.series.get(&other) else { continue };
                let pair = ratios.entry(format!("{} {}", key.case, key.metric)).or_default();
                for (turn, value) in ours.by_turn() {
                    if let Some(theirs) = theirs.of_turn(turn) {
                        add(pair, turn, comparison.measure.times_better(value, theirs));
                    }
                }
            }
        }
        Pairs::Means => {
            let (ours, theirs) = (by_turn(record, &comparison.ours), by_turn(record, &comparison.peer));
            let pair = ratios.entry(String::new()).or_default();
            for (turn, values) in &ours {
                if let Some(others) = theirs.get(turn) {
                    let means = (geometric_mean(values), geometric_mean(others));
                    add(pair, *turn, comparison.measure.times_better(means.0, means.1));
                }
            }
        }
    }
    ratios.retain(|_, turns| !turns.is_empty());

    let mut turns: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (turn, ratio) in ratios.values().flatten() {
        turns.entry(*turn).or_default().push(*ratio);
    }
    // A turn that was cut short lacks cases, so its mean is not comparable.
    let most = turns.values().map(Vec::len).max()?;
    let means: Vec<f64> =
        turns.values().filter(|ratios| ratios.len() == most).map(|ratios| geometric_mean(ratios)).collect();
    let mut cases: Vec<OfCase> = ratios
        .into_iter()
        .map(|(case, turns)| OfCase { case, ratio: Spread::of(&turns.into_values().collect::<Vec<_>>()).median })
        .collect();
    cases.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    let (worst, best) = (cases.first()?.clone(), cases.last()?.clone());
    Some(Verdict { comparison: *comparison, ratio: Spread::of(&means), cases: cases.len(), worst, best })
}

/// Adds a ratio of two figures, unless one of them is 0.
fn add(pair: &mut BTreeMap<u32, f64>, turn: u32, ratio: f64) {
    if ratio.is_finite() && ratio > 0.0 {
        pair.insert(turn, ratio);
    }
}

/// Returns for each turn one value per case: the sum of the case's figures.
fn by_turn(record: &Record, pick: &Pick<'_>) -> BTreeMap<u32, Vec<f64>> {
    let mut sums: BTreeMap<(u32, &str), f64> = BTreeMap::new();
    for (key, series) in record.matching(pick) {
        for (turn, value) in series.by_turn() {
            *sums.entry((turn, &key.case)).or_default() += value;
        }
    }
    let mut turns: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for ((turn, _), sum) in sums {
        turns.entry(turn).or_default().push(sum);
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::{super::record::Line, *};

    const OURS: Pick<'static> = Pick { bench: "b", case: "*/4k", subject: "pagefold", metric: "m" };

    const COMPARED: Comparison = Comparison {
        group: "g",
        what: "w",
        ours_name: "pagefold",
        peer_name: "peer",
        measure: Measure::Time,
        ours: OURS,
        peer: Pick { subject: "peer", ..OURS },
        pairs: Pairs::Same,
    };

    /// Makes a record of turns. A figure is a case, a subject and a value.
    fn record(turns: &[&[(&str, &str, f64)]]) -> Record {
        let mut record = Record::default();
        for (number, figures) in turns.iter().enumerate() {
            record.add(Line::about("part", "", "turn", number as f64 + 1.0, "turn"));
            for &(case, subject, value) in *figures {
                let line = Line::about(case, subject, "m", value, "us");
                record.add(Line { bench: "b".to_owned(), ..line });
            }
        }
        record
    }

    #[test]
    fn ratios_are_of_figures_of_the_same_turn_and_say_which_case_is_worst() {
        // The machine is half as fast in the second turn.
        let first: &[(&str, &str, f64)] =
            &[("a/4k", "pagefold", 1.0), ("a/4k", "peer", 4.0), ("b/4k", "pagefold", 2.0), ("b/4k", "peer", 2.0)];
        let second = first.iter().map(|&(case, subject, value)| (case, subject, value * 2.0)).collect::<Vec<_>>();
        let verdict = verdict(&record(&[first, &second]), &COMPARED).unwrap();
        assert_eq!(verdict.ratio, Spread { median: 2.0, low: 2.0, high: 2.0, turns: 2 });
        assert_eq!((verdict.worst.case.as_str(), verdict.worst.ratio, verdict.best.ratio), ("b/4k m", 1.0, 4.0));
        assert_eq!((verdict.cases, verdict.winner()), (2, Winner::Pagefold));
    }

    #[test]
    fn a_turn_that_lacks_cases_is_not_in_the_spread() {
        let whole: &[(&str, &str, f64)] =
            &[("a/4k", "pagefold", 1.0), ("a/4k", "peer", 4.0), ("b/4k", "pagefold", 1.0), ("b/4k", "peer", 1.0)];
        let verdict = verdict(&record(&[whole, &whole[..3]]), &COMPARED).unwrap();
        assert_eq!((verdict.ratio.turns, verdict.ratio.median), (1, 2.0));
    }

    #[test]
    fn a_peer_that_is_better_wins_and_turns_on_both_sides_decide_nothing() {
        let turn = |ours: f64| [("a/4k", "pagefold", ours), ("a/4k", "peer", 1.0)];
        let winner = |turns: &[f64]| {
            let turns: Vec<_> = turns.iter().map(|&ours| turn(ours)).collect();
            let turns: Vec<&[(&str, &str, f64)]> = turns.iter().map(|turn| &turn[..]).collect();
            verdict(&record(&turns), &COMPARED).unwrap().winner()
        };
        assert_eq!(winner(&[1.5, 1.2]), Winner::Peer);
        assert_eq!(winner(&[0.5, 0.8]), Winner::Pagefold);
        assert_eq!(winner(&[1.5, 0.9, 1.4]), Winner::Neither);
        assert_eq!(winner(&[1.002, 1.004]), Winner::Neither);
        // One turn needs a larger difference than two that agree.
        assert_eq!((winner(&[1.04]), winner(&[1.04, 1.03])), (Winner::Neither, Winner::Peer));
    }

    #[test]
    fn without_a_peer_there_is_no_verdict() {
        assert!(verdict(&record(&[&[("a/4k", "pagefold", 1.0)]]), &COMPARED).is_none());
        assert!(verdict(&record(&[&[("a/4k", "pagefold", 1.0), ("a/4k", "peer", 0.0)]]), &COMPARED).is_none());
        assert_eq!(without_figures(&Record::default()).len(), COMPARISONS.len());
    }

    #[test]
    fn cases_with_other_names_are_compared_by_their_means() {
        let means = Comparison {
            ours: Pick { case: "socket/*", ..OURS },
            peer: Pick { case: "peer/*", subject: "peer", ..OURS },
            pairs: Pairs::Means,
            ..COMPARED
        };
        let verdict = verdict(&record(&[&[("socket/9", "pagefold", 2.0), ("peer/1", "peer", 6.0)]]), &means).unwrap();
        assert!((verdict.ratio.median - 3.0).abs() < 1e-9 && verdict.cases == 1);
    }
}

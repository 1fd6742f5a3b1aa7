//! Ratios of figures measured in the same turn.

use std::collections::BTreeMap;

use super::{
    line::geometric_mean,
    record::{Key, Pick, Record, Spread},
};

/// The quantity of a figure, which determines whether more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// More is better.
    Speed,
    /// Less is better.
    Bytes,
    /// Less is better.
    Time,
}

impl Measure {
    /// Returns how many times better `ours` is than `theirs`.
    fn times_better(self, ours: f64, theirs: f64) -> f64 {
        match self {
            Self::Speed => ours / theirs,
            Self::Bytes | Self::Time => theirs / ours,
        }
    }
}

/// Which figures are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pairs {
    /// Figures with the same case and metric.
    Same,
    /// The means of all cases on each side, if the two sides count cases differently.
    Means,
}

/// How many times better one subject is than another.
#[derive(Clone, Debug)]
pub(crate) struct Ratios {
    /// The geometric mean over cases, and its spread over turns.
    pub(crate) mean: Spread,
    /// The median of each case's turns, with the case and metric, the worst first.
    pub(crate) cases: Vec<(f64, String)>,
}

/// Returns how many times better `ours` is than `peer`; `None` if there are no figures of both.
pub(crate) fn ratios(record: &Record, ours: &Pick, peer: &Pick, pairs: Pairs, measure: Measure) -> Option<Ratios> {
    // Per pair of figures, the ratio of each turn.
    let mut ratios: BTreeMap<String, BTreeMap<u32, f64>> = BTreeMap::new();
    match pairs {
        Pairs::Same => {
            for (key, series) in record.matching(ours) {
                let other = Key { subject: peer.subject.to_owned(), ..key.clone() };
                let Some(theirs) = record.series.get(&other) else { continue };
                let pair = ratios.entry(format!("{} {}", key.case, key.metric)).or_default();
                for (turn, value) in series.by_turn() {
                    if let Some(theirs) = theirs.of_turn(turn) {
                        add(pair, turn, measure.times_better(value, theirs));
                    }
                }
            }
        }
        Pairs::Means => {
            let (ours, theirs) = (by_turn(record, ours), by_turn(record, peer));
            let pair = ratios.entry(String::new()).or_default();
            for (turn, values) in &ours {
                if let Some(others) = theirs.get(turn) {
                    add(pair, *turn, measure.times_better(geometric_mean(values), geometric_mean(others)));
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
    let median = |turns: BTreeMap<u32, f64>| Spread::of(&turns.into_values().collect::<Vec<_>>()).median;
    let mut cases: Vec<_> = ratios.into_iter().map(|(case, turns)| (median(turns), case)).collect();
    cases.sort_by(|a, b| a.0.total_cmp(&b.0));
    Some(Ratios { mean: Spread::of(&means), cases })
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
    use super::{
        super::{line::Line, record::ABOUT},
        *,
    };

    const OURS: Pick<'static> = Pick { bench: "b", case: "*/4k", subject: "pagefold", metric: "m" };
    const PEER: Pick<'static> = Pick { subject: "peer", ..OURS };

    /// Compares times of turns. A figure is a case, a subject and a value.
    fn compared(turns: &[&[(&str, &str, f64)]], ours: Pick, peer: Pick, pairs: Pairs) -> Option<Ratios> {
        let mut record = Record::default();
        for (number, figures) in turns.iter().enumerate() {
            record.add(Line::new([ABOUT, "part", "", "turn", ""], number as f64 + 1.0));
            for &(case, subject, value) in *figures {
                record.add(Line::new(["b", case, subject, "m", "us"], value));
            }
        }
        ratios(&record, &ours, &peer, pairs, Measure::Time)
    }

    #[test]
    fn ratios_are_of_figures_of_the_same_turn_and_name_the_worst_case() {
        // The machine is half as fast in the second turn.
        let first: &[(&str, &str, f64)] =
            &[("a/4k", "pagefold", 1.0), ("a/4k", "peer", 4.0), ("b/4k", "pagefold", 2.0), ("b/4k", "peer", 2.0)];
        let second = first.iter().map(|&(case, subject, value)| (case, subject, value * 2.0)).collect::<Vec<_>>();
        let found = compared(&[first, &second], OURS, PEER, Pairs::Same).unwrap();
        assert_eq!(found.mean, Spread { median: 2.0, low: 2.0, high: 2.0, turns: 2 });
        assert_eq!(found.cases, [(1.0, "b/4k m".to_owned()), (4.0, "a/4k m".to_owned())]);
        // A turn that lacks cases is not in the spread.
        let found = compared(&[first, &second[..3]], OURS, PEER, Pairs::Same).unwrap();
        assert_eq!((found.mean.turns, found.mean.median), (1, 2.0));
    }

    #[test]
    fn without_a_peer_there_is_no_ratio() {
        for figures in [&[("a/4k", "pagefold", 1.0)][..], &[("a/4k", "pagefold", 1.0), ("a/4k", "peer", 0.0)]] {
            assert!(compared(&[figures], OURS, PEER, Pairs::Same).is_none());
        }
    }

    #[test]
    fn cases_with_other_names_are_compared_by_their_means() {
        let (ours, peer) = (Pick { case: "socket/*", ..OURS }, Pick { case: "peer/*", ..PEER });
        let figures: &[_] = &[("socket/9", "pagefold", 2.0), ("peer/1", "peer", 6.0)];
        let found = compared(&[figures], ours, peer, Pairs::Means).unwrap();
        assert!((found.mean.median - 3.0).abs() < 1e-9 && found.cases.len() == 1);
    }
}

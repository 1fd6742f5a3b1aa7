//! The comparisons of the report, in its order: `data/comparisons.json`. Comparisons that a peer wins
//! are included.

use anyhow::Context;
use serde::Deserialize;

use crate::ratio::{Measure, Pairs, Ratios, ratios};
use crate::record::{Pick, Record, Spread};

/// What a group compares, and how the two sides differ. Groups come in the order in which users meet
/// their subjects.
#[derive(Deserialize)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) note: String,
    pub(super) comparisons: Vec<Comparison>,
}

/// Two subjects that do the same work.
#[derive(Deserialize)]
pub(super) struct Comparison {
    /// The work, such as `random 4 KiB reads`.
    pub(super) what: String,
    #[serde(with = "MeasureName")]
    pub(super) measure: Measure,
    bench: String,
    case: String,
    metric: String,
    /// The subject in figures, and its name on the page.
    pub(super) ours: [String; 2],
    pub(super) peer: [String; 2],
    /// If the peer's cases are others, so that means are compared.
    peer_case: Option<String>,
    peer_metric: Option<String>,
}

#[derive(Deserialize)]
#[serde(remote = "Measure")]
enum MeasureName {
    Speed,
    Bytes,
    Time,
}

/// Returns all comparisons.
pub(super) fn groups() -> anyhow::Result<Vec<Group>> {
    serde_json::from_str(include_str!("../data/comparisons.json")).context("comparisons.json")
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

impl Comparison {
    /// Returns how many times better pagefold is, or `None` if the run has no figures of both sides.
    pub(super) fn ratios(&self, record: &Record) -> Option<Ratios> {
        let Self { bench, case, metric, .. } = self;
        let ours = Pick { bench, case, subject: &self.ours[0], metric };
        let peer = Pick {
            subject: &self.peer[0],
            case: self.peer_case.as_ref().unwrap_or(case),
            metric: self.peer_metric.as_ref().unwrap_or(metric),
            ..ours
        };
        let pairs = if self.peer_case.is_some() { Pairs::Means } else { Pairs::Same };
        ratios(record, &ours, &peer, pairs, self.measure)
    }

    pub(super) fn winner(&self, ratio: Spread) -> Winner {
        let Spread { median, low, high, turns } = ratio;
        let is_exact = turns > 1 || self.measure == Measure::Bytes;
        let equal = if is_exact { EQUAL } else { EQUAL_SINGLE };
        if low > 1.0 && median > 1.0 + equal {
            Winner::Pagefold
        } else if high < 1.0 && median < 1.0 - equal {
            Winner::Peer
        } else {
            Winner::Neither
        }
    }

    /// Returns the names of both sides, as on the page.
    pub(super) fn sides(&self) -> String {
        format!("{} / {}", self.ours[1], self.peer[1])
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::line::Line;

    /// Makes figures of both sides of every comparison.
    pub(crate) fn whole() -> Vec<Line> {
        let of = |comparison: &Comparison| {
            let Comparison { bench, case, metric, ours, peer, peer_case, peer_metric, .. } = comparison;
            let line = |subject: &str, case: &str, metric: &str, value| {
                Line::new([bench, &case.replace('*', "x"), subject, &metric.replace('*', "x"), "x"], value)
            };
            let (peer_case, peer_metric) = (peer_case.as_ref().unwrap_or(case), peer_metric.as_ref().unwrap_or(metric));
            [line(&ours[0], case, metric, 3.0), line(&peer[0], peer_case, peer_metric, 4.0)]
        };
        groups().unwrap().iter().flat_map(|group| group.comparisons.iter().flat_map(of)).collect()
    }

    #[test]
    fn every_comparison_finds_its_figures() {
        let mut record = Record::default();
        whole().into_iter().for_each(|line| record.add(line));
        for comparison in groups().unwrap().iter().flat_map(|group| &group.comparisons) {
            assert!(comparison.ratios(&record).is_some(), "{}", comparison.what);
            assert!(comparison.ratios(&Record::default()).is_none());
        }
    }

    #[test]
    fn a_peer_that_is_better_wins_and_turns_on_both_sides_decide_nothing() {
        let all = groups().unwrap();
        let speed = all[1].comparisons.iter().find(|one| one.measure == Measure::Speed).unwrap();
        let winner = |turns: &[f64]| speed.winner(Spread::of(turns));
        assert_eq!(winner(&[0.67, 0.83]), Winner::Peer);
        assert_eq!(winner(&[2.0, 1.25]), Winner::Pagefold);
        assert_eq!(winner(&[0.67, 1.11, 0.71]), Winner::Neither);
        assert_eq!(winner(&[0.998, 0.996]), Winner::Neither);
        // One turn needs a larger difference than two that agree.
        assert_eq!((winner(&[0.96]), winner(&[0.96, 0.97])), (Winner::Neither, Winner::Peer));
    }
}

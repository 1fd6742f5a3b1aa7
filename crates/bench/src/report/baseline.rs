//! Compares two runs: what became worse, or better, by more than its spread.

use super::{
    comparisons::COMPARISONS,
    record::{Key, Record, Spread},
    verdict::{Comparison, Measure, verdict},
};
use crate::figure::median;

/// Minimum difference between two runs that counts, even if the spread is smaller. Bytes hardly
/// vary. Times do, and times of a single turn have no spread.
const FLOOR_BYTES: f64 = 0.01;
const FLOOR_TIMES: f64 = 0.03;
const FLOOR_SINGLE: f64 = 0.10;

/// A figure in two runs.
#[derive(Clone, Debug)]
pub(super) struct Change<T> {
    pub(super) of: T,
    pub(super) before: Spread,
    pub(super) after: Spread,
    /// How many times better it became.
    pub(super) factor: f64,
}

/// Changes from one run to another.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Comparisons with peers that became worse, the largest change first, and those that became
    /// better. Each run measured its own peers, so a slower machine changes neither.
    pub(super) ratios_fell: Vec<Change<Comparison>>,
    pub(super) ratios_rose: Vec<Change<Comparison>>,
    pub(super) ratios: usize,
    /// pagefold's own figures that became worse.
    pub(super) fell: Vec<Change<(Key, String)>>,
    pub(super) rose: usize,
    pub(super) figures: usize,
    /// The median change of the peers' figures. Their programs are the same, so this is how much
    /// faster the machine was.
    pub(super) peers_factor: Option<f64>,
}

pub(super) fn changes(before: &Record, after: &Record) -> Changes {
    let mut changes = Changes::default();
    for comparison in COMPARISONS {
        let (Some(old), Some(new)) = (verdict(before, comparison), verdict(after, comparison)) else { continue };
        changes.ratios += 1;
        // More is better for a ratio, whatever its figures are.
        let floor = if comparison.measure == Measure::Bytes { FLOOR_BYTES } else { FLOOR_TIMES };
        let change = Change {
            of: *comparison,
            before: old.ratio,
            after: new.ratio,
            factor: new.ratio.median / old.ratio.median,
        };
        match direction(Measure::Speed, floor, &change) {
            Some(false) => changes.ratios_fell.push(change),
            Some(true) => changes.ratios_rose.push(change),
            None => {}
        }
    }
    let mut peers = Vec::new();
    for (key, series) in &after.series {
        let Some(old) = before.series.get(key) else { continue };
        let Some(measure) = Measure::of(&key.metric, &series.unit) else { continue };
        let (before, after) = (old.spread(), series.spread());
        if !(before.median > 0.0 && after.median > 0.0) {
            continue;
        }
        let factor = measure.times_better(after.median, before.median);
        if is_peer(&key.subject) {
            if measure != Measure::Bytes {
                peers.push(factor);
            }
            continue;
        }
        changes.figures += 1;
        let floor = if measure == Measure::Bytes { FLOOR_BYTES } else { FLOOR_TIMES };
        let change = Change { of: (key.clone(), series.unit.clone()), before, after, factor };
        match direction(measure, floor, &change) {
            Some(false) => changes.fell.push(change),
            Some(true) => changes.rose += 1,
            None => {}
        }
    }
    changes.peers_factor = (!peers.is_empty()).then(|| median(&peers));
    changes.ratios_fell.sort_by(|a, b| a.factor.total_cmp(&b.factor));
    changes.ratios_rose.sort_by(|a, b| b.factor.total_cmp(&a.factor));
    changes.fell.sort_by(|a, b| a.factor.total_cmp(&b.factor));
    changes
}

/// Whether a figure became better (`true`) or worse by more than the spread of either run and more
/// than `floor`.
fn direction<T>(measure: Measure, floor: f64, change: &Change<T>) -> Option<bool> {
    let Change { before, after, factor, .. } = change;
    let width = |spread: &Spread| (spread.high - spread.low) / spread.median;
    let single = before.turns < 2 || after.turns < 2;
    let floor = if single && floor > FLOOR_BYTES { FLOOR_SINGLE } else { floor };
    let allowed = 1.0 + width(before).max(width(after)).max(floor);
    let (above, below) = (after.low > before.high, after.high < before.low);
    let (better, worse) = if measure == Measure::Speed { (above, below) } else { (below, above) };
    if better && *factor > allowed {
        Some(true)
    } else if worse && *factor < 1.0 / allowed {
        Some(false)
    } else {
        None
    }
}

/// Whether a subject is another project's program.
fn is_peer(subject: &str) -> bool {
    let is_ours = COMPARISONS.iter().any(|comparison| comparison.ours.subject == subject);
    let is_named = COMPARISONS.iter().any(|comparison| comparison.peer.subject == subject);
    let is_codec = ["lib", "zxc-", "snappy", "memcpy", "openzl"].iter().any(|name| subject.starts_with(name));
    !is_ours && (is_named || is_codec || subject.starts_with("kernel-"))
}

#[cfg(test)]
mod tests {
    use super::{super::record::Line, *};

    /// Makes a run of turns with the speeds of fold and of liblz4.
    fn record(turns: &[(f64, f64)]) -> Record {
        let mut record = Record::default();
        for (number, (fold, liblz4)) in turns.iter().enumerate() {
            record.add(Line::about("codec", "", "turn", number as f64 + 1.0, ""));
            for (subject, value) in [("fold", fold), ("liblz4", liblz4)] {
                let line = Line::about("text", subject, "compress_mb_s", *value, "MB/s");
                record.add(Line { bench: "codec".to_owned(), ..line });
            }
        }
        record
    }

    #[test]
    fn what_fell_by_more_than_its_spread_is_said() {
        let before = record(&[(100.0, 50.0), (104.0, 52.0)]);
        let after = record(&[(80.0, 50.0), (82.0, 52.0)]);
        let fell = changes(&before, &after);
        assert_eq!((fell.ratios, fell.ratios_fell.len(), fell.ratios_rose.len()), (1, 1, 0));
        assert_eq!((fell.figures, fell.fell.len(), fell.rose), (1, 1, 0));
        assert_eq!(fell.fell[0].of.0.subject, "fold");
        assert!((fell.fell[0].factor - 81.0 / 102.0).abs() < 1e-9);
        let rose = changes(&after, &before);
        assert_eq!((rose.ratios_fell.len(), rose.ratios_rose.len(), rose.fell.len(), rose.rose), (0, 1, 0, 1));
    }

    #[test]
    fn what_lies_within_the_spread_is_not_said() {
        let before = record(&[(100.0, 50.0), (120.0, 52.0)]);
        let after = record(&[(98.0, 50.0), (110.0, 52.0)]);
        let same = changes(&before, &after);
        assert!(same.ratios_fell.is_empty() && same.fell.is_empty() && same.rose == 0);
        // A single turn has no spread: a difference of 5 % does not count.
        let single = changes(&record(&[(100.0, 50.0)]), &record(&[(95.0, 50.0)]));
        assert!(single.fell.is_empty());
        assert_eq!(changes(&record(&[(100.0, 50.0)]), &record(&[(80.0, 50.0)])).fell.len(), 1);
    }

    #[test]
    fn a_slower_machine_changes_figures_but_no_ratios() {
        let before = record(&[(100.0, 50.0), (101.0, 50.5)]);
        let after = record(&[(50.0, 25.0), (50.5, 25.25)]);
        let slower = changes(&before, &after);
        assert!(slower.ratios_fell.is_empty());
        assert_eq!(slower.fell.len(), 1);
        assert!((slower.peers_factor.unwrap() - 0.5).abs() < 0.01);
    }

    #[test]
    fn peers_are_known_by_name() {
        for peer in ["liblz4", "nbdkit-malloc", "zram-lz4", "mkfs.erofs", "kernel-ext4", "zxc-5"] {
            assert!(is_peer(peer), "{peer}");
        }
        for ours in ["fold", "pagefold", "pagefold-lz4", "mosaic", "hazard", "per-cpu", "kernel-erofs", "lz4hc-9"] {
            assert!(!is_peer(ours), "{ours}");
        }
    }
}

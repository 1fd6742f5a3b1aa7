//! The units to sample (small files, pieces of large ones), in strata of files with similar sizes,
//! and their order.
//!
//! The units of a stratum are taken in steps of the golden section of their number. Wherever
//! sampling ends, the units taken are therefore spread evenly, even over periodic content. The next
//! unit comes from the stratum with the smallest fraction taken, so that all have their share.

/// Maximum length of a unit: long enough for its boundaries to matter little, and short enough for
/// many units to be spread over a file.
pub(super) const UNIT_BYTES: u64 = 1 << 20;

/// Length of a unit's surroundings, for content so compressible that they matter: the maximum that
/// one cluster of an image covers.
const SURROUNDINGS_BYTES: u64 = 4 << 20;

/// Maximum number of bytes in a batch, unless a single unit is larger.
const BATCH_BYTES: u64 = 1 << 20;

/// Maximum number of units in a batch.
const BATCH_UNITS: usize = 128;

/// A range of a file that is sampled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Number of the file.
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    /// Offset and length of its surroundings.
    around: (u64, u64),
}

impl Unit {
    /// Returns the unit with its surroundings; `None` if it has none.
    pub(super) fn surroundings(self) -> Option<Self> {
        let (offset, len_bytes) = self.around;
        (len_bytes > self.len_bytes).then_some(Self { offset, len_bytes, ..self })
    }
}

/// Consecutive units of a file. All but the last have [`UNIT_BYTES`].
#[derive(Clone, Copy, Debug)]
struct Row {
    file: u32,
    offset: u64,
    len_bytes: u64,
    /// Number of its first unit within the stratum.
    first: u64,
}

/// Units of files with similar sizes.
#[derive(Debug, Default)]
pub(super) struct Stratum {
    rows: Vec<Row>,
    units: u64,
    pub(super) bytes: u64,
    pub(super) pages: u64,
}

impl Stratum {
    /// Adds `len_bytes` of a file, at least one byte, from `offset` on.
    pub(super) fn add(&mut self, file: u32, offset: u64, len_bytes: u64) {
        self.rows.push(Row { file, offset, len_bytes, first: self.units });
        self.units += len_bytes.div_ceil(UNIT_BYTES);
        self.bytes = self.bytes.saturating_add(len_bytes);
        self.pages = self.pages.saturating_add(len_bytes.div_ceil(4096));
    }

    fn unit(&self, number: u64) -> Option<Unit> {
        let after = self.rows.partition_point(|row| row.first <= number);
        let row = self.rows.get(after.checked_sub(1)?)?;
        let at = (number - row.first) * UNIT_BYTES;
        let len_bytes = row.len_bytes.checked_sub(at)?.min(UNIT_BYTES);
        let around_at = at - at % SURROUNDINGS_BYTES;
        let around = (row.offset + around_at, (row.len_bytes - around_at).min(SURROUNDINGS_BYTES));
        Some(Unit { file: row.file, offset: row.offset + at, len_bytes, around })
    }

    /// Returns the unit that is taken after `taken` others.
    fn nth(&self, taken: u64) -> Option<Unit> {
        (taken < self.units).then(|| self.unit(spread(taken, self.units)))?
    }
}

/// Returns the number that follows after `taken` of `count` numbers. The numbers taken are evenly
/// spread at any time.
pub(super) fn spread(taken: u64, count: u64) -> u64 {
    (u128::from(taken) * u128::from(step(count)) % u128::from(count)) as u64
}

/// Returns a number near the golden section of `count` that is coprime to it.
fn step(count: u64) -> u64 {
    let golden = (count as f64 * 0.618_033_988_749_895) as u64;
    (golden.max(1)..).find(|&step| common_divisor(step, count) == 1).unwrap_or(1)
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Units of one stratum that are measured together.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) stratum: usize,
    /// Number of preceding batches of the stratum.
    pub(super) number: usize,
    pub(super) units: Vec<Unit>,
}

/// The batches of all strata, in the order in which they are taken.
#[derive(Clone, Debug)]
pub(super) struct Batches<'a> {
    strata: &'a [Stratum],
    /// For each stratum: units, bytes and batches taken.
    taken: Vec<(u64, u64, usize)>,
    left_bytes: u64,
}

impl<'a> Batches<'a> {
    /// Creates the sequence of batches, until `most_bytes` were taken.
    pub(super) fn new(strata: &'a [Stratum], most_bytes: u64) -> Self {
        Self { strata, taken: vec![(0, 0, 0); strata.len()], left_bytes: most_bytes }
    }
}

impl Iterator for Batches<'_> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        if self.left_bytes == 0 {
            return None;
        }
        let part = |&number: &usize| self.taken[number].1 as f64 / self.strata[number].bytes as f64;
        let open = (0..self.strata.len()).filter(|&number| self.taken[number].0 < self.strata[number].units);
        let stratum = open.min_by(|a, b| part(a).total_cmp(&part(b)))?;
        let (taken, taken_bytes, batches) = &mut self.taken[stratum];
        let (mut units, mut bytes) = (Vec::new(), 0);
        while units.len() < BATCH_UNITS
            && let Some(unit) = self.strata[stratum].nth(*taken)
            && (units.is_empty() || bytes + unit.len_bytes <= BATCH_BYTES)
        {
            *taken += 1;
            bytes += unit.len_bytes;
            units.push(unit);
        }
        let number = *batches;
        *taken_bytes += bytes;
        *batches += 1;
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        Some(Batch { stratum, number, units })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_unit_is_taken_once() {
        let mut strata = [Stratum::default(), Stratum::default(), Stratum::default()];
        for file in 0..1000 {
            strata[0].add(file, 0, 1 + u64::from(file) * 7);
        }
        strata[2].add(1000, 8 << 20, (40 << 20) + 5);
        strata[2].add(1001, 0, 1);
        let mut found = HashSet::new();
        let mut bytes = 0;
        for batch in Batches::new(&strata, u64::MAX) {
            for unit in batch.units {
                assert!(unit.len_bytes > 0 && found.insert((unit.file, unit.offset)));
                bytes += unit.len_bytes;
            }
        }
        assert_eq!(found.len(), 1000 + 41 + 1);
        assert_eq!(bytes, strata.iter().map(|stratum| stratum.bytes).sum::<u64>());
    }

    #[test]
    fn surroundings_lie_in_the_same_stretch() {
        let mut stratum = Stratum::default();
        stratum.add(0, 8 << 20, (5 << 20) + 7);
        stratum.add(1, 0, 9);
        let around =
            |number| stratum.unit(number).and_then(Unit::surroundings).map(|unit| (unit.offset, unit.len_bytes));
        assert_eq!(around(0), Some((8 << 20, 4 << 20)));
        assert_eq!(around(3), Some((8 << 20, 4 << 20)));
        assert_eq!(around(5), Some((12 << 20, (1 << 20) + 7)));
        assert_eq!(around(6), None);
    }

    #[test]
    fn few_units_are_spread_over_the_whole_and_the_strata() {
        let mut strata = [Stratum::default(), Stratum::default()];
        strata[0].add(0, 0, 1 << 50);
        strata[1].add(1, 0, 1 << 48);
        let batches = Batches::new(&strata, 500 * UNIT_BYTES).collect::<Vec<_>>();
        assert_eq!(batches.len(), 500);
        let of_first: Vec<_> = batches.iter().filter(|batch| batch.stratum == 0).collect();
        assert_eq!(of_first.len(), 400);
        for tenth in 0..10 {
            let in_tenth =
                of_first.iter().filter(|batch| batch.units[0].offset / ((1 << 50) / 10 + 1) == tenth).count();
            assert!((38..=42).contains(&in_tenth), "{in_tenth}");
        }
    }
}

//! The units to sample (small files, pieces of large ones), in strata of files with similar sizes,
//! and their order.
//!
//! The units of a stratum are taken in a random order, so that those taken are a random sample
//! wherever sampling ends. The next unit comes from the stratum with the smallest fraction taken, so
//! that all have their share.
//!
//! Pieces of large files are scanned for zeros before. Then only scanned units that hold data are
//! sampled, without the zeros before and after the data.

use std::collections::{HashMap, HashSet};

use pagefold_erofs::{LEAST_ZERO_BLOCKS, LONG_FILE_DATA_PARTS};

use super::{
    estimate::{Estimate, Limits},
    order::Order,
};

pub(super) const PAGE_BYTES: u64 = 4096;

/// Maximum length of a unit: long enough for its boundaries to matter little, and short enough for
/// many units to be spread over a file.
pub(super) const UNIT_BYTES: u64 = 1 << 20;

/// With more pieces in a file, the cost of the zeros after each hardly changes.
const MOST_PIECES: u64 = 16;

/// Zeros up to this length have costs in files of their own that differ from those in a large file.
const SHORT_ZEROS_BYTES: u64 = 8 << 20;

/// Zeros up to this length are packed with the data around them.
const FEW_ZEROS_BYTES: u64 = LEAST_ZERO_BLOCKS * PAGE_BYTES;

/// Length of a unit's surroundings, for content so compressible that they matter: the maximum that
/// one cluster of an image covers.
pub(super) const SURROUNDINGS_BYTES: u64 = 4 << 20;

/// Maximum number of bytes in a batch, unless a single unit is larger.
const BATCH_BYTES: u64 = 1 << 20;

/// Maximum number of units in a batch.
const BATCH_UNITS: usize = 64;

/// What follows a unit in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Data,
    /// Zeros that an image packs with the data around them.
    FewZeros,
    /// Zeros, a hole, or the file's end.
    Zeros,
}

/// A range of a file that is sampled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Number of the file.
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    /// Bytes in pages that are not zero, if they were counted; otherwise the length.
    pub(super) data_bytes: u64,
    pub(super) then: Then,
    /// The length of its file, if the file's holes are packed with it.
    pub(super) file_bytes: Option<u64>,
    /// Offset and length of its surroundings.
    around: (u64, u64),
}

impl Unit {
    /// Returns the unit with its surroundings; `None` if it has none, or holds zeros.
    pub(super) fn surroundings(self) -> Option<Self> {
        let (offset, len_bytes) = self.around;
        let has = len_bytes > self.len_bytes && self.data_bytes >= self.len_bytes;
        has.then_some(Self { offset, len_bytes, data_bytes: len_bytes, ..self })
    }

    /// Returns the other units within its surroundings.
    pub(super) fn others(self, surroundings: Self) -> impl Iterator<Item = Self> {
        let (end, last) = (self.offset + self.len_bytes, surroundings.offset + surroundings.len_bytes);
        [(surroundings.offset, self.offset), (end, last)].into_iter().flat_map(move |(from, to)| {
            (from..to).step_by(UNIT_BYTES as usize).map(move |offset| {
                let len_bytes = (to - offset).min(UNIT_BYTES);
                let then = if offset + len_bytes < last { Then::Data } else { surroundings.then };
                Self { offset, len_bytes, data_bytes: len_bytes, then, ..surroundings }
            })
        })
    }

    /// Returns the unit without the zeros before and after its data; `None` if it holds no data.
    /// `next` is the data of the following unit, if it was scanned.
    fn without_zeros(self, found: Data, next: Option<Data>) -> Option<Self> {
        if found.pages == 0 {
            return None;
        }
        let end = (found.end_page * PAGE_BYTES).min(self.len_bytes);
        let from = found.first_page * PAGE_BYTES;
        let after = self.len_bytes - end;
        let zeros = match next {
            Some(next) if next.pages == 0 => after.saturating_add(UNIT_BYTES),
            Some(next) => after + next.first_page * PAGE_BYTES,
            None if after > 0 => UNIT_BYTES,
            None => 0,
        };
        let then = match zeros {
            _ if self.then == Then::Zeros => Then::Zeros,
            0 => Then::Data,
            1..FEW_ZEROS_BYTES => Then::FewZeros,
            _ => Then::Zeros,
        };
        let data_bytes = found.pages * PAGE_BYTES;
        let (offset, len_bytes) = (self.offset + from, end - from);
        // Zeros before and after it end its surroundings.
        let around_from = if from > 0 { offset } else { self.around.0 };
        let around_end = if after > 0 { offset + len_bytes } else { self.around.0 + self.around.1 };
        let around = (around_from, around_end - around_from);
        Some(Self { offset, len_bytes, data_bytes, then, around, ..self })
    }
}

/// Where a unit's data is, in pages from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) first_page: u64,
    pub(super) end_page: u64,
    /// Number of pages that are not zero.
    pub(super) pages: u64,
}

/// Consecutive units of a file. All but the last have [`UNIT_BYTES`].
#[derive(Clone, Copy, Debug)]
struct Row {
    file: u32,
    offset: u64,
    len_bytes: u64,
    /// The length of its file, if the file's holes are packed with it.
    file_bytes: Option<u64>,
    /// Number of its first unit within the stratum.
    first: u64,
}

/// The units that were scanned for zeros: a random sample of a stratum, or all of it.
#[derive(Debug)]
struct Scanned {
    /// Units with data, in the stratum's order.
    data: Vec<Unit>,
    /// Bytes of the scanned pages, and of those that are not zero.
    pages_bytes: u64,
    data_bytes: u64,
    /// The same for each unit.
    measured: Vec<(f64, f64)>,
    /// For each unit, the bytes of its pages, and of those before and after its data.
    outer: Vec<(f64, f64)>,
}

/// Returns the most that the image writer counts as data, from the number of stretches of data and
/// their bytes.
pub(super) fn most_data(data_bytes: u64, stretches: u64) -> u64 {
    data_bytes.saturating_add(stretches.saturating_mul(LEAST_ZERO_BLOCKS * PAGE_BYTES))
}

/// Files of a stratum that the image writer stores without their zeros if they have little data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LongFiles {
    #[default]
    None,
    /// One file of this length.
    One(u64),
    /// Some, among others.
    Some,
    /// All, and each is known to have little data.
    NearlyEmpty,
}

/// Pieces of data in a file, and the bytes of zeros after each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    pub(super) count: u64,
    pub(super) zeros_bytes: u64,
}

/// Units of files with similar sizes.
#[derive(Debug, Default)]
pub(super) struct Stratum {
    rows: Vec<Row>,
    units: u64,
    pub(super) bytes: u64,
    pub(super) pages: u64,
    /// Whether the units are pieces of large files, which may be zeros.
    pub(super) has_pieces: bool,
    /// Whether each unit has all data of its file, with whose holes it is packed.
    pub(super) has_own_holes: bool,
    /// Whether all files are so short that an image stores them behind their inodes.
    pub(super) is_inline: bool,
    pub(super) long_files: LongFiles,
    /// Bytes of the files' holes, which have no units.
    pub(super) hole_bytes: u64,
    scanned: Option<Scanned>,
}

impl Stratum {
    /// Returns an empty stratum of pieces of large files.
    pub(super) fn of_pieces() -> Self {
        Self { has_pieces: true, ..Self::default() }
    }

    /// Returns an empty stratum of files that are packed with their holes.
    pub(super) fn of_sparse_files() -> Self {
        Self { has_own_holes: true, ..Self::default() }
    }

    /// Adds `len_bytes` of a file, at least one byte, from `offset` on.
    pub(super) fn add(&mut self, file: u32, offset: u64, len_bytes: u64) {
        self.add_row(Row { file, offset, len_bytes, file_bytes: None, first: self.units });
    }

    /// Adds a file of `file_bytes` whose data are these `len_bytes`, at most [`UNIT_BYTES`].
    pub(super) fn add_sparse(&mut self, file: u32, offset: u64, len_bytes: u64, file_bytes: u64) {
        self.add_row(Row { file, offset, len_bytes, file_bytes: Some(file_bytes), first: self.units });
        self.hole_bytes = self.hole_bytes.saturating_add(file_bytes - len_bytes);
    }

    fn add_row(&mut self, row: Row) {
        let len_bytes = row.len_bytes;
        self.rows.push(row);
        self.units += len_bytes.div_ceil(UNIT_BYTES);
        self.bytes = self.bytes.saturating_add(len_bytes);
        self.pages = self.pages.saturating_add(len_bytes.div_ceil(PAGE_BYTES));
    }

    fn unit(&self, number: u64) -> Option<Unit> {
        let after = self.rows.partition_point(|row| row.first <= number);
        let row = self.rows.get(after.checked_sub(1)?)?;
        let at = (number - row.first) * UNIT_BYTES;
        let len_bytes = row.len_bytes.checked_sub(at)?.min(UNIT_BYTES);
        let around_at = at - at % SURROUNDINGS_BYTES;
        let around = (row.offset + around_at, (row.len_bytes - around_at).min(SURROUNDINGS_BYTES));
        let then = if at + len_bytes < row.len_bytes { Then::Data } else { Then::Zeros };
        Some(Unit {
            file: row.file,
            offset: row.offset + at,
            len_bytes,
            data_bytes: len_bytes,
            then,
            file_bytes: row.file_bytes,
            around,
        })
    }

    /// Returns the unit at this place of the random order.
    pub(super) fn nth(&self, place: u64) -> Option<Unit> {
        self.unit(Order::new(self.units).nth(place)?)
    }

    /// Returns the unit that is sampled after `taken` others.
    fn sampled(&self, taken: u64) -> Option<Unit> {
        match &self.scanned {
            Some(scanned) => scanned.data.get(taken as usize).copied(),
            None => self.nth(taken),
        }
    }

    /// Restricts sampling to the data found in the first units of the order. Without any, sampling
    /// is not restricted.
    pub(super) fn restrict(&mut self, found: &[Data]) {
        if found.is_empty() {
            return;
        }
        let mut scanned =
            Scanned { data: Vec::new(), pages_bytes: 0, data_bytes: 0, measured: Vec::new(), outer: Vec::new() };
        let units: Vec<_> = (0..found.len() as u64).map_while(|place| self.nth(place)).zip(found).collect();
        let places: HashMap<_, _> = units.iter().map(|(unit, found)| ((unit.file, unit.offset), **found)).collect();
        for (unit, found) in units {
            let next = places.get(&(unit.file, unit.offset + unit.len_bytes));
            let data = unit.without_zeros(*found, next.copied());
            let data_bytes = data.map_or(0, |unit| unit.data_bytes);
            let pages_bytes = unit.len_bytes.next_multiple_of(PAGE_BYTES);
            scanned.pages_bytes += pages_bytes;
            scanned.data_bytes += data_bytes;
            scanned.measured.push((pages_bytes as f64, data_bytes as f64));
            let packed_bytes = data.map_or(0, |unit| unit.len_bytes.next_multiple_of(PAGE_BYTES));
            scanned.outer.push((pages_bytes as f64, (pages_bytes - packed_bytes) as f64));
            scanned.data.extend(data);
        }
        self.scanned = Some(scanned);
    }

    pub(super) fn is_scanned(&self) -> bool {
        self.scanned.is_some()
    }

    /// Returns the bytes of pages that are not zero, if the units were scanned; otherwise all bytes.
    /// All figures are in proportion to these.
    pub(super) fn data_bytes(&self) -> Estimate {
        match &self.scanned {
            Some(scanned) => Estimate::of_whole((self.pages * PAGE_BYTES) as f64, &scanned.measured, Limits::COUNT),
            None => Estimate::exact(self.bytes as f64),
        }
    }

    /// Returns whether some of it was found to be zeros, or was not scanned for zeros.
    pub(super) fn may_have_zeros(&self) -> bool {
        self.has_pieces && (!self.is_scanned() || self.data_bytes().low() < (self.pages * PAGE_BYTES) as f64)
    }

    /// Returns the likely number of places where data ends before zeros, a hole or the file's end.
    pub(super) fn data_ends(&self) -> f64 {
        self.ends(|then| then != Then::Data)
    }

    /// Returns the likely number of those places after which an image begins a run of zeros.
    pub(super) fn zero_runs(&self) -> f64 {
        self.ends(|then| then == Then::Zeros)
    }

    fn ends(&self, is_end: impl Fn(Then) -> bool) -> f64 {
        let Some(scanned) = &self.scanned else { return 0.0 };
        let ends = scanned.data.iter().filter(|unit| is_end(unit.then)).count();
        ends as f64 * self.data_bytes().value / scanned.data_bytes.max(1) as f64
    }

    /// Returns the likely number of files with data.
    pub(super) fn data_files(&self) -> f64 {
        let Some(scanned) = &self.scanned else { return 0.0 };
        let files: HashSet<_> = scanned.data.iter().map(|unit| unit.file).collect();
        let all = self.rows.chunk_by(|row, next| row.file == next.file).count();
        (files.len() as f64 * self.data_bytes().value / scanned.data_bytes.max(1) as f64).min(all as f64)
    }

    /// Returns the likely pieces of data in each file, with the zeros after each in whole pages, if they
    /// are in several files and short.
    pub(super) fn pieces_of_short_files(&self) -> Option<Pieces> {
        let zeros = self.hole_bytes as f64 + (self.pages * PAGE_BYTES) as f64 - self.data_bytes().value;
        let mean_bytes = (zeros / self.data_ends()) as u64;
        let is_short = self.is_scanned() && (PAGE_BYTES..=SHORT_ZEROS_BYTES).contains(&mean_bytes);
        (is_short && self.data_files() > 1.0).then(|| Pieces {
            count: ((self.data_ends() / self.data_files()).round() as u64).clamp(1, MOST_PIECES),
            zeros_bytes: mean_bytes / PAGE_BYTES * PAGE_BYTES,
        })
    }

    /// Returns the bytes of zeros that scanning finds before and after the data of units. Zeros
    /// between are packed with the data.
    pub(super) fn outer_zeros(&self) -> Estimate {
        match &self.scanned {
            Some(scanned) => Estimate::of_whole((self.pages * PAGE_BYTES) as f64, &scanned.outer, Limits::COUNT),
            None => Estimate::exact(0.0),
        }
    }

    /// Returns the likely bytes of zeros between the first and the last data of units.
    pub(super) fn inner_zeros(&self) -> f64 {
        let Some(scanned) = &self.scanned else { return 0.0 };
        let inner: u64 = scanned.data.iter().map(|unit| unit.len_bytes.saturating_sub(unit.data_bytes)).sum();
        inner as f64 * self.data_bytes().value / scanned.data_bytes.max(1) as f64
    }

    /// Returns whether the zeros of its files may be stored, and whether they may be left out.
    pub(super) fn zeros(&self) -> [bool; 2] {
        match self.long_files {
            LongFiles::None => [true, false],
            LongFiles::NearlyEmpty => [false, true],
            LongFiles::Some => [true, true],
            LongFiles::One(len) => {
                let data = self.data_bytes();
                let most = most_data(data.high() as u64, self.data_ends().ceil() as u64);
                let is_little = most <= len / LONG_FILE_DATA_PARTS;
                let is_much = self.is_scanned() && data.low() > (len / LONG_FILE_DATA_PARTS) as f64;
                [!is_little, !is_much]
            }
        }
    }

    /// Returns the number of pages that were scanned and are zero.
    pub(super) fn scanned_zero_pages(&self) -> u64 {
        self.scanned.as_ref().map_or(0, |scanned| (scanned.pages_bytes - scanned.data_bytes) / PAGE_BYTES)
    }

    /// Returns the number and the bytes of the units that can be sampled.
    fn open(&self) -> (u64, u64) {
        self.scanned.as_ref().map_or((self.units, self.bytes), |found| (found.data.len() as u64, found.data_bytes))
    }

    /// Returns the lengths of the files, or of ranges of their data.
    pub(super) fn lens(&self) -> impl Iterator<Item = u64> {
        self.rows.iter().map(|row| row.len_bytes)
    }

    /// Returns the number of files, or of pieces.
    pub(super) fn units(&self) -> u64 {
        self.units
    }
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
        let part = |&number: &usize| self.taken[number].1 as f64 / self.strata[number].open().1.max(1) as f64;
        let open = (0..self.strata.len()).filter(|&number| self.taken[number].0 < self.strata[number].open().0);
        let stratum = open.min_by(|a, b| part(a).total_cmp(&part(b)))?;
        let (taken, taken_bytes, batches) = &mut self.taken[stratum];
        let (mut units, mut bytes, mut data_bytes) = (Vec::new(), 0, 0);
        while units.len() < BATCH_UNITS
            && let Some(unit) = self.strata[stratum].sampled(*taken)
            && (units.is_empty() || bytes + unit.len_bytes <= BATCH_BYTES)
        {
            *taken += 1;
            bytes += unit.len_bytes;
            data_bytes += unit.data_bytes;
            units.push(unit);
        }
        let number = *batches;
        *taken_bytes += data_bytes;
        *batches += 1;
        self.left_bytes = self.left_bytes.saturating_sub(data_bytes);
        Some(Batch { stratum, number, units })
    }
}

#[cfg(test)]
mod tests {
    use pagefold_erofs::LONG_FILE_BYTES;

    use super::*;

    /// A long file's zeros are left out if at most a sixteenth is data, or is close to data.
    #[test]
    fn zeros_are_left_out_if_there_is_little_data() {
        let of = |data_units: u64, pages: u64, scanned: u64| {
            let mut stratum = Stratum::of_pieces();
            stratum.long_files = LongFiles::One(LONG_FILE_BYTES);
            stratum.add(0, 0, data_units * UNIT_BYTES);
            stratum.hole_bytes = LONG_FILE_BYTES - data_units * UNIT_BYTES;
            let data = Data { first_page: 0, end_page: pages, pages };
            stratum.restrict(&vec![data; scanned as usize]);
            stratum.zeros()
        };
        let [stored, left_out] = [[true, false], [false, true]];
        assert_eq!(of(64, 256, 0), left_out);
        assert_eq!(of(65, 256, 0), [true, true], "it may be zeros");
        assert_eq!(of(65, 256, 65), stored);
        assert_eq!(of(65, 256, 10), [true, true]);
        assert_eq!(of(512, 1, 512), [true, true], "zeros between data may be too short");
        assert_eq!(of(200, 1, 200), left_out);
        assert_eq!(of(512, 0, 512), left_out);
    }

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
        assert_eq!(around(4), Some((12 << 20, (1 << 20) + 7)));
        assert_eq!(around(5), around(4));
        assert_eq!(around(6), None);
        let unit = |number| stratum.unit(number).expect("a unit");
        let others = |unit: Unit| -> Vec<_> {
            let others = unit.surroundings().into_iter().flat_map(|longer| unit.others(longer));
            others.map(|other| ((other.offset - (8 << 20)) as f64 / UNIT_BYTES as f64, other.len_bytes)).collect()
        };
        let mib = |number: u32| (f64::from(number), UNIT_BYTES);
        assert_eq!(others(unit(1)), [mib(0), mib(2), mib(3)]);
        assert_eq!(others(unit(4)), [(5.0, 7)]);
        assert_eq!(others(unit(5)), [mib(4)]);
        // What is around data ends where zeros are.
        let begins = Data { first_page: 128, end_page: 256, pages: 128 };
        let begun = unit(1).without_zeros(begins, None).expect("data");
        assert_eq!(others(begun), [mib(2), mib(3)]);
        let ends = Data { first_page: 0, end_page: 128, pages: 128 };
        assert_eq!(others(unit(1).without_zeros(ends, None).expect("data")), [mib(0)]);
    }

    #[test]
    fn all_strata_have_their_share() {
        let mut strata = [Stratum::default(), Stratum::default()];
        strata[0].add(0, 0, 1 << 50);
        strata[1].add(1, 0, 1 << 48);
        let batches = Batches::new(&strata, 500 * UNIT_BYTES).collect::<Vec<_>>();
        assert_eq!(batches.len(), 500);
        assert_eq!(batches.iter().filter(|batch| batch.stratum == 0).count(), 400);
    }

    #[test]
    fn scanned_zeros_are_not_sampled() {
        let mut stratum = Stratum::of_pieces();
        stratum.add(0, 0, (100 << 20) + 5000);
        let (none, all) = (Data::default(), Data { first_page: 0, end_page: 256, pages: 256 });
        let some = Data { first_page: 3, end_page: 7, pages: 2 };
        let close = Data { first_page: 3, end_page: 7, pages: 4 };
        assert!(
            stratum
                .unit(1)
                .and_then(|unit| unit.without_zeros(close, None))
                .is_some_and(|unit| { unit.data_bytes == unit.len_bytes && unit.surroundings().is_none() })
        );
        stratum.restrict(&[none, all, none, some]);
        assert!(stratum.scanned_zero_pages() == 4 * 256 - 258 && stratum.may_have_zeros());
        let size = stratum.data_bytes();
        assert!((size.value - stratum.pages as f64 * 4.0 * 258.0).abs() < 1.0 && !size.is_exact(), "{size:?}");
        let strata = [stratum];
        let units: Vec<_> = Batches::new(&strata, u64::MAX).flat_map(|batch| batch.units).collect();
        let [whole, part] = units[..] else { panic!("{units:?}") };
        assert_eq!((whole.len_bytes, whole.data_bytes), (1 << 20, 1 << 20));
        assert_eq!((part.offset % UNIT_BYTES, part.len_bytes, part.data_bytes), (3 * 4096, 4 * 4096, 2 * 4096));
        assert!(part.then == Then::Zeros && part.surroundings().is_none());
    }
}

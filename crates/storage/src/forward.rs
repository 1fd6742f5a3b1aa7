//! Fetching ahead of readers that move forward through a source that is far.
//!
//! ```text
//! units:    | 7 | 8 | 9 | 10 11 | 12 13 14 15 |
//! fetches:    1   2   3      4         5            3 units in a row: from then on, twice as much
//! ```
//!
//! A scan of metadata reads a few bytes here and there, but mostly forward. Such reads are not a
//! sequence in any file: only their units show that they move forward.

use std::{
    fs::File,
    io,
    ops::Range,
    sync::{Mutex, PoisonError},
};

use crate::ReadAt;

/// Positions that are tracked.
const MOST_TRAILS: usize = 16;

/// Units in a row, each fetched for a read, before more than a read needs is fetched.
const START_UNITS: u64 = 3;

/// The maximum number of bytes fetched for a read.
const MOST_BYTES: u64 = 1 << 20;

/// A source, with fetches ahead of readers that move forward. It does nothing for a source that is
/// near.
#[derive(Debug)]
pub struct Forward<S> {
    source: S,
    len_bytes: u64,
    unit_bytes: u64,
    /// In order of use, the most recent last.
    trails: Mutex<Vec<Trail>>,
}

/// Units that were fetched one after the other, of which the last ones were read.
#[derive(Debug)]
struct Trail {
    units: Range<u64>,
    /// Fetches that continued it.
    steps: u64,
}

impl<S: ReadAt> Forward<S> {
    /// Wraps a source.
    ///
    /// # Errors
    /// The source cannot say its length.
    pub fn new(source: S) -> io::Result<Self> {
        let (len_bytes, unit_bytes) = (source.len_bytes()?, source.unit_bytes());
        Ok(Self { source, len_bytes, unit_bytes, trails: Mutex::default() })
    }

    fn units(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.unit_bytes..range.end.div_ceil(self.unit_bytes)
    }

    /// Records what is read or fetched now. Returns the units to fetch in addition.
    fn follow(&self, units: Range<u64>, is_read: bool) -> Option<Range<u64>> {
        let mut trails = self.trails.lock().unwrap_or_else(PoisonError::into_inner);
        let is_on = |trail: &Trail| trail.units.start <= units.start && units.start <= trail.units.end;
        let found = trails.iter().rposition(is_on);
        let mut trail = match found {
            Some(at) => trails.remove(at),
            None => {
                if trails.len() == MOST_TRAILS {
                    trails.remove(0);
                }
                Trail { units: units.start..units.start, steps: 0 }
            }
        };
        let mut more = None;
        if units.end > trail.units.end {
            trail.steps += 1;
            let mut end = units.end;
            if is_read && trail.steps > START_UNITS {
                let ahead = 1 << (trail.steps - START_UNITS).min(20);
                let last = self.len_bytes.div_ceil(self.unit_bytes);
                end = (units.start + (MOST_BYTES / self.unit_bytes).min(ahead)).min(last).max(end);
                more = (end > units.end).then_some(units.start..end);
            }
            trail.units.end = end;
        }
        trails.push(trail);
        more
    }

    fn before(&self, reads: &mut dyn Iterator<Item = Range<u64>>) {
        if !self.source.is_far() {
            return;
        }
        let ranges: Vec<_> = reads
            .filter(|range| !range.is_empty())
            .filter_map(|range| self.follow(self.units(&range), true))
            .map(|units| units.start * self.unit_bytes..(units.end * self.unit_bytes).min(self.len_bytes))
            .collect();
        if !ranges.is_empty() {
            self.source.fetch(&ranges);
        }
    }
}

impl<S: ReadAt> ReadAt for Forward<S> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len_bytes)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.before(&mut std::iter::once(offset..offset.saturating_add(buf.len() as u64)));
        self.source.read_exact_at(buf, offset)
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        self.source.try_read_at(buf, offset)
    }

    fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        self.before(&mut parts.iter().map(|(offset, buf)| *offset..offset.saturating_add(buf.len() as u64)));
        self.source.read_all_at(parts)
    }

    fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    fn is_far(&self) -> bool {
        self.source.is_far()
    }

    fn fetch(&self, ranges: &[Range<u64>]) {
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            self.follow(self.units(range), false);
        }
        self.source.fetch(ranges);
    }

    fn bytes_at(&self, len: usize, offset: u64) -> Option<&[u8]> {
        self.source.bytes_at(len, offset)
    }

    fn file(&self) -> Option<&File> {
        self.source.file()
    }

    fn blob_sha256(&self) -> Option<[u8; 32]> {
        self.source.blob_sha256()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the units that are fetched, each once, and the calls that fetch some.
    struct Far(Mutex<(Vec<bool>, u64)>);

    const UNIT: u64 = 64 << 10;

    impl ReadAt for Far {
        fn len_bytes(&self) -> io::Result<u64> {
            Ok(self.0.lock().expect("the lock").0.len() as u64 * UNIT)
        }

        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
            self.read_all_at(&mut [(offset, buf)])
        }

        fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
            let (units, calls) = &mut *self.0.lock().expect("the lock");
            let mut is_new = false;
            for (offset, buf) in parts {
                for unit in *offset / UNIT..(*offset + buf.len() as u64).div_ceil(UNIT) {
                    is_new |= !std::mem::replace(&mut units[unit as usize], true);
                }
                buf.fill((*offset / UNIT) as u8);
            }
            *calls += u64::from(is_new);
            Ok(())
        }

        fn unit_bytes(&self) -> u64 {
            UNIT
        }
    }

    /// Reads a byte of each of these units. Returns how many calls fetched, and how many units.
    fn scan(units: impl Iterator<Item = u64>) -> (u64, usize) {
        let source = Forward::new(Far(Mutex::new((vec![false; 1000], 0)))).expect("a source");
        let mut byte = [0];
        for unit in units {
            source.read_exact_at(&mut byte, unit * UNIT + unit * 7 % UNIT).expect("a byte");
            assert_eq!(byte[0], unit as u8);
        }
        let (units, calls) = &*source.source.0.lock().expect("the lock");
        (*calls, units.iter().filter(|unit| **unit).count())
    }

    #[test]
    fn a_reader_that_moves_forward_waits_seldom() {
        let (calls, units) = scan(0..1000);
        assert!(calls <= 1000 / 16 + 8 && units == 1000, "{calls} calls for {units} units");
        // Several readers in parallel. Each reads a unit more than once.
        let (calls, units) = scan((0..800).map(|step| step % 4 * 240 + step / 8));
        assert!(calls <= 60 && units <= 500, "{calls} calls for {units} units");
    }

    #[test]
    fn other_readers_fetch_only_what_they_read() {
        let (calls, units) = scan((0..200).map(|step| step * 389 % 1000));
        assert_eq!((calls, units), (200, 200));
        let (calls, units) = scan((0..500).rev());
        assert_eq!((calls, units), (500, 500));
        // Two units in a row, now and then.
        let (_, units) = scan((0..100).flat_map(|step| [step * 10, step * 10 + 1]));
        assert_eq!(units, 200);
    }
}

//! Looks for zeros in pieces of large files. They are holes that the file system does not report, as
//! in a copied disk, and cost next to nothing. Reading a unit is many times as fast as packing it, so
//! much more of the input is known before the sampling begins.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use pagefold_codec::same_filled;

use super::{
    clock::Deadline,
    input::Input,
    stratum::{Data, PAGE_BYTES, Stratum},
};

/// Once this much data was found, scanning ends at the earlier of its two deadlines.
const ENOUGH_BYTES: u64 = 256 << 20;

/// Scans up to `most_bytes`, until `soon`, or until `late` if little data was found by then.
pub(super) fn scan(input: &mut Input, most_bytes: u64, [soon, late]: [Deadline<'_>; 2], threads: usize) {
    let mut strata = std::mem::take(&mut input.strata);
    let bytes: u64 = strata.iter().map(|stratum| stratum.bytes).fold(0, u64::saturating_add);
    for stratum in &mut strata {
        if stratum.has_pieces {
            // The stratum's share of the sample.
            let most = (u128::from(most_bytes) * u128::from(stratum.bytes) / u128::from(bytes.max(1))) as u64;
            let found = of_stratum(input, stratum, most, [soon, late], threads);
            stratum.restrict(&found);
        }
    }
    input.strata = strata;
}

/// Returns the data found in the first units of the stratum's order.
fn of_stratum(
    input: &Input,
    stratum: &Stratum,
    most_bytes: u64,
    [soon, late]: [Deadline<'_>; 2],
    threads: usize,
) -> Vec<Data> {
    let (next, read_bytes, data_bytes) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let found = Mutex::new(BTreeMap::new());
    let work = || {
        let mut bytes = Vec::new();
        while read_bytes.load(Ordering::Relaxed) < most_bytes {
            let end = if data_bytes.load(Ordering::Relaxed) < ENOUGH_BYTES { late } else { soon };
            if end.is_over() {
                return;
            }
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = stratum.nth(place) else { return };
            // An unreadable range counts as data; sampling finds that it is unreadable.
            let pages = unit.len_bytes.div_ceil(PAGE_BYTES);
            let unknown = Data { first_page: 0, end_page: pages, pages };
            let data = match input.read(unit, &mut bytes, end) {
                Ok(()) => data(&bytes),
                Err(error) if error.kind() == ErrorKind::TimedOut => return,
                Err(_) => unknown,
            };
            read_bytes.fetch_add(unit.len_bytes, Ordering::Relaxed);
            data_bytes.fetch_add(data.pages * PAGE_BYTES, Ordering::Relaxed);
            found.lock().unwrap_or_else(PoisonError::into_inner).insert(place, data);
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    // A thread may have finished a place after one for which the time of another was not enough.
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter();
    (0..).zip(found).map_while(|(next, (place, data))| (place == next).then_some(data)).collect()
}

fn data(bytes: &[u8]) -> Data {
    let mut data = Data::default();
    for (number, page) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
        let is_zero = match page.try_into() {
            Ok(whole) => same_filled(whole) == Some(0),
            Err(_) => page.iter().all(|byte| *byte == 0),
        };
        if is_zero {
            continue;
        }
        if data.pages == 0 {
            data.first_page = number as u64;
        }
        data.end_page = number as u64 + 1;
        data.pages += 1;
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_between_zeros_is_found() {
        let mut bytes = vec![0; 5 * 4096 + 7];
        assert_eq!(data(&bytes), Data::default());
        (bytes[4096], bytes[3 * 4096 + 4095]) = (1, 1);
        assert_eq!(data(&bytes), Data { first_page: 1, end_page: 4, pages: 2 });
        bytes[5 * 4096 + 6] = 1;
        assert_eq!(data(&bytes), Data { first_page: 1, end_page: 6, pages: 3 });
    }
}

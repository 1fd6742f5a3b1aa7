//! Places in a disk where an EROFS image begins: in a partition, or behind a header.

use pagefold_base::Format;
use pagefold_erofs::ReadAt;

/// The maximum number of partitions that are examined.
const MOST_PARTITIONS: usize = 128;

/// Images behind a header begin at a multiple of this, and before [`SEARCHED_BYTES`].
const SECTOR_BYTES: usize = 512;
const SEARCHED_BYTES: u64 = 16 << 20;

/// A place where an image, or a partition without one, begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// From the start of the file.
    at: u64,
    is_image: bool,
}

/// Returns the images in a file after `offset`; if there are none, its partitions. An unreadable
/// file has none.
pub(crate) fn found(file: &dyn ReadAt, offset: u64, len_bytes: u64) -> Vec<Place> {
    let mut places = Vec::new();
    for at in partitions(file, offset).into_iter().filter(|at| *at > offset && *at < len_bytes) {
        places.push(Place { at, is_image: is_image(file, at) });
    }
    if !places.iter().any(|place| place.is_image) {
        places.extend(searched(file, offset, len_bytes).map(|at| Place { at, is_image: true }));
    }
    if places.iter().any(|place| place.is_image) {
        places.retain(|place| place.is_image);
    }
    places
}

/// Returns advice to append to an error's text.
pub(crate) fn advice(places: &[Place]) -> String {
    const MOST_NAMED: usize = 3;
    let Some(first) = places.first() else { return String::new() };
    let named: Vec<_> = places.iter().take(MOST_NAMED).map(|place| place.at.to_string()).collect();
    let named = named.join(", ");
    let more = if places.len() > MOST_NAMED { ", and others" } else { "" };
    if first.is_image {
        format!("; an EROFS image begins at byte {named}{more}: give --offset {}", first.at)
    } else {
        format!("; its partitions begin at byte {named}{more}, and none of them is an EROFS image")
    }
}

/// Returns where partitions begin: those of a GPT, otherwise those of a boot sector.
fn partitions(file: &dyn ReadAt, start: u64) -> Vec<u64> {
    for sector_bytes in [512, 4096] {
        if let Some(found) = gpt(file, start, sector_bytes) {
            return found;
        }
    }
    let mut sector = [0; SECTOR_BYTES];
    if file.read_exact_at(&mut sector, start).is_err() || !sector.ends_with(b"\x55\xaa") {
        return Vec::new();
    }
    let entries = sector[446..510].chunks_exact(16);
    let used = entries.filter(|entry| entry[0] & 0x7f == 0 && entry[4] != 0);
    let starts = used.map(|entry| u64::from(u32::from_le_bytes([entry[8], entry[9], entry[10], entry[11]])));
    starts.filter(|sector| *sector > 0).map(|sector| start + sector * SECTOR_BYTES as u64).collect()
}

fn gpt(file: &dyn ReadAt, start: u64, sector_bytes: u64) -> Option<Vec<u64>> {
    let mut header = [0; 92];
    file.read_exact_at(&mut header, start.checked_add(sector_bytes)?).ok()?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let long = |at: usize| u64::from(word(at + 4)) << 32 | u64::from(word(at));
    let entry_bytes = u64::from(word(84));
    if !header.starts_with(b"EFI PART") || !(128..=4096).contains(&entry_bytes) {
        return None;
    }
    let table = start.checked_add(long(72).checked_mul(sector_bytes)?)?;
    let mut found = Vec::new();
    for number in 0..u64::from(word(80)).min(MOST_PARTITIONS as u64) {
        let mut entry = [0; 48];
        file.read_exact_at(&mut entry, table.checked_add(number * entry_bytes)?).ok()?;
        let first = entry[32..40].iter().rev().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
        // The kind of an unused entry is zero.
        if entry[..16] != [0; 16] {
            found.extend(first.checked_mul(sector_bytes).and_then(|first| first.checked_add(start)));
        }
    }
    Some(found)
}

/// Returns where the first image behind a header begins.
fn searched(file: &dyn ReadAt, offset: u64, len_bytes: u64) -> Option<u64> {
    let end = offset.saturating_add(SEARCHED_BYTES).min(len_bytes);
    (offset..end).step_by(SECTOR_BYTES).skip(1).find(|at| is_image(file, *at))
}

fn is_image(file: &dyn ReadAt, at: u64) -> bool {
    Format::Erofs.is_in(file, at).unwrap_or(false)
}

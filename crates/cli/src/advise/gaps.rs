//! The gaps between the inodes of an image. An inode and the content behind it do not cross a block's
//! boundary, so their total depends on the order in which the image writer places them.

use std::collections::HashMap;

use pagefold_erofs::{InodeTimes, placed_bytes, stored_bytes};

use super::{costs::INODE_BYTES, estimate::Estimate, stratum::PAGE_BYTES};

/// Inodes that are placed to find the gaps. Those between further ones are as large.
const MOST_PLACED: usize = 1 << 18;

/// Consecutive inodes that stay together if not all are placed: as many as the writer sorts by their
/// lengths.
const TOGETHER: usize = 256;

/// Bytes between an inode and the indexes of its clusters, and of the index of a block.
const MAP_BYTES: u64 = 8;
const INDEX_BYTES: u64 = 2;

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// A directory with this number.
    Directory(u32),
    /// Another file, with this many bytes behind its inode.
    Other(u32),
}

impl Entry {
    /// Returns the entry of a file of `len` bytes.
    pub(super) fn of_file(len: u64) -> Self {
        let blocks = len.div_ceil(PAGE_BYTES);
        let is_inline = INODE_BYTES + len <= PAGE_BYTES;
        let behind = if is_inline { len } else { MAP_BYTES.saturating_add(blocks.saturating_mul(INDEX_BYTES)) };
        Self::Other(u32::try_from(behind).unwrap_or(u32::MAX))
    }

    /// Returns the entry of a symbolic link with a target of `len` bytes, or of a device, pipe or
    /// socket.
    pub(super) fn of_other(len: u64) -> Self {
        Self::Other(inline_bytes(len))
    }
}

/// The names in a directory.
#[derive(Debug)]
pub(super) struct Listing {
    number: u32,
    inline_bytes: u32,
    entries: Vec<Entry>,
}

impl Listing {
    /// Creates the listing of a directory whose names take `content_bytes`. `entries` are in the order
    /// of their names.
    pub(super) fn new(number: u32, content_bytes: u64, entries: Vec<Entry>) -> Self {
        Self { number, inline_bytes: inline_bytes(content_bytes), entries }
    }
}

/// Returns the bytes of content that are stored behind an inode.
fn inline_bytes(len: u64) -> u32 {
    let tail = len % PAGE_BYTES;
    if INODE_BYTES + tail <= PAGE_BYTES { tail as u32 } else { 0 }
}

/// Returns the bytes of the gaps between the inodes below directory 0, of which `compact` are compact.
/// If not all names are known, neither is the order.
pub(super) fn of(listings: &[Listing], compact: u64, all_known: bool) -> Estimate {
    let mut lens = in_order(listings);
    let compact = (compact as f64 / lens.len().max(1) as f64).min(1.0);
    let gaps = in_this_order(&lens, compact);
    if all_known {
        return gaps;
    }
    lens.sort_unstable();
    let rising = in_this_order(&lens, compact);
    lens.reverse();
    gaps.covering(rising).covering(in_this_order(&lens, compact))
}

/// Returns the lengths behind the inodes, in the image writer's order: those of a directory by name,
/// then those below.
fn in_order(listings: &[Listing]) -> Vec<u64> {
    let by_number: HashMap<u32, &Listing> = listings.iter().map(|listing| (listing.number, listing)).collect();
    let (mut lens, mut stack) = (Vec::new(), vec![0]);
    while let Some(number) = stack.pop() {
        let Some(listing) = by_number.get(&number) else { continue };
        let above = stack.len();
        for entry in &listing.entries {
            lens.push(u64::from(match entry {
                Entry::Directory(number) => {
                    stack.push(*number);
                    by_number.get(number).map_or(0, |listing| listing.inline_bytes)
                }
                Entry::Other(len) => *len,
            }));
        }
        stack[above..].reverse();
    }
    lens
}

/// Returns the gaps if inodes are placed in this order, of which a fraction is compact. Which of them
/// are compact is not considered, so the gaps lie between those without any and those with all.
fn in_this_order(lens: &[u64], compact: f64) -> Estimate {
    let sizes = [INODE_BYTES, InodeTimes::COMPACT_BYTES];
    let [extended, short] = sizes.map(|inode_bytes| between(inode_bytes, lens));
    let doubt = (extended.value - short.value).abs() * 2.0 * compact.min(1.0 - compact);
    extended.scaled(1.0 - compact) + short.scaled(compact) + Estimate::doubt([doubt; 2])
}

/// Returns the gaps between inodes of equal size. If there are many, two samples of groups are placed,
/// whose difference is the uncertainty.
fn between(inode_bytes: u64, lens: &[u64]) -> Estimate {
    if lens.len() <= MOST_PLACED {
        return Estimate::exact(placed(inode_bytes, lens.iter()));
    }
    let every = lens.len().div_ceil(MOST_PLACED / 2);
    let samples = [0, every / 2].map(|first| {
        let groups = || lens.chunks(TOGETHER).skip(first).step_by(every);
        let count = groups().map(<[u64]>::len).sum::<usize>().max(1);
        placed(inode_bytes, groups().flatten()) * lens.len() as f64 / count as f64
    });
    let doubt = (samples[0] - samples[1]).abs();
    Estimate::exact(f64::midpoint(samples[0], samples[1])) + Estimate::doubt([doubt; 2])
}

/// Places inodes of equal size, and returns the bytes of the gaps. Inodes with long indexes may cross
/// blocks' boundaries.
fn placed<'a>(inode_bytes: u64, lens: impl Iterator<Item = &'a u64> + Clone) -> f64 {
    let lens = lens.copied().filter(|len| inode_bytes + len <= PAGE_BYTES);
    let without_gaps: u64 = lens.clone().map(|len| stored_bytes(inode_bytes, len, PAGE_BYTES)).sum();
    placed_bytes(inode_bytes, lens, PAGE_BYTES).saturating_sub(without_gaps) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_placed_in_the_order_of_their_directories() {
        let others = |lens: &[u32]| lens.iter().map(|len| Entry::Other(*len)).collect::<Vec<_>>();
        let mut root = others(&[1]);
        root.extend([Entry::Directory(2), Entry::Directory(1)]);
        root.extend(others(&[4]));
        let mut below = others(&[7]);
        below.push(Entry::Directory(3));
        let listings = [
            Listing::new(1, 20, others(&[9, 10])),
            Listing::new(3, 30, others(&[8])),
            Listing::new(2, PAGE_BYTES + 40, below),
            Listing::new(0, 50, root),
        ];
        assert_eq!(in_order(&listings), [1, 40, 20, 4, 7, 30, 8, 9, 10]);
    }

    #[test]
    fn an_unknown_order_widens_the_interval() {
        let of = |lens: &[u32], all_known| {
            of(&[Listing::new(0, 0, lens.iter().map(|len| Entry::Other(*len)).collect())], 0, all_known)
        };
        let rising: Vec<u32> = (0..3000).collect();
        let falling: Vec<u32> = rising.iter().rev().copied().collect();
        let mixed: Vec<u32> = rising.iter().map(|number| number * 1201 % 3000).collect();
        let [most, least, some] = [rising, falling, mixed].map(|lens| {
            let (known, unknown) = (of(&lens, true), of(&lens, false));
            assert!(known.is_exact() && !unknown.is_exact(), "{known:?} {unknown:?}");
            (known.value, unknown)
        });
        for (_, unknown) in [most, least, some] {
            let holds = |(known, _): (f64, Estimate)| unknown.low() <= known && known <= unknown.high();
            assert!(holds(most) && holds(least) && holds(some), "{unknown:?}");
        }
        assert!(most.0 > 2.0 * least.0, "{most:?} {least:?}");
    }

    /// Lengths rise with the order, so a sample must be of all parts.
    #[test]
    fn many_inodes_are_placed_in_part() {
        let lens: Vec<u64> =
            (0..3 * MOST_PLACED as u64).map(|number| number * 3000 / (3 * MOST_PLACED as u64)).collect();
        let (truth, found) = (placed(INODE_BYTES, lens.iter()), between(INODE_BYTES, &lens));
        assert!(found.low() <= truth && truth <= found.high(), "{truth} {found:?}");
        assert!(found.high() - found.low() < truth / 10.0, "{truth} {found:?}");
    }
}

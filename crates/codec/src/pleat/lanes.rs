//! How a page's literals are divided into lanes, which are decoded side by side.
//!
//! Lanes take groups of five literals, which an encoder handles together. All lanes have equally
//! many groups, except that the first ones have one more if the groups do not divide evenly. The
//! last lane also has the remaining literals. Two lanes are a pair: they share a section, which one
//! is read upwards and the other downwards.

/// Maximum number of pairs.
pub(super) const PAIRS: usize = 8;
/// Minimum number of literals for sixteen lanes instead of two.
pub(super) const SIXTEEN_FROM: usize = 320;
/// Literals of a group.
pub(super) const GROUP: usize = 5;

/// Places in an object where the pairs' sections begin; after the last pair, all are its end.
pub(super) type Bounds = [usize; PAIRS + 1];

/// Returns the number of pairs that `count` literals are divided into.
#[inline(always)]
pub(super) const fn pairs(count: usize) -> usize {
    if count < SIXTEEN_FROM { 1 } else { PAIRS }
}

/// Returns the number of literals in the lanes before this one, of `count` literals in `lanes`
/// lanes.
#[inline(always)]
pub(super) const fn start(lane: usize, lanes: usize, count: usize) -> usize {
    if lane == lanes {
        return count;
    }
    let groups = count / GROUP;
    let more = groups % lanes;
    GROUP * (lane * (groups / lanes) + if lane < more { lane } else { more })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;

    #[test]
    fn lanes_are_about_equally_long_and_make_up_all() {
        for count in 0..=PAGE_SIZE {
            let lanes = 2 * pairs(count);
            assert_eq!((start(0, lanes, count), start(lanes, lanes, count)), (0, count));
            let lens: Vec<_> =
                (0..lanes).map(|lane| start(lane + 1, lanes, count) - start(lane, lanes, count)).collect();
            let (shortest, longest) = (lens.iter().min().unwrap(), lens.iter().max().unwrap());
            assert!(longest - shortest < 2 * GROUP, "{count}: {lens:?}");
            assert!(lens[..lanes - 1].iter().all(|len| len % GROUP == 0));
        }
    }
}

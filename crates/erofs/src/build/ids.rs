//! Mapping of owners and groups.

/// A mapping of ranges of user or group ids, as in Linux's user namespaces: the first range that
/// contains an id applies, and other ids are unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    ranges: Vec<IdRange>,
}

/// Maps `count` ids from `from` on to the ids from `to` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first id in the source.
    pub from: u32,
    /// The first id in the image.
    pub to: u32,
    /// The number of ids, at least 1.
    pub count: u32,
}

impl IdMap {
    /// Creates a map; `None` if a range is empty or exceeds the id space.
    pub fn new(ranges: Vec<IdRange>) -> Option<Self> {
        let fits = |first: u32, count: u32| count.checked_sub(1).is_some_and(|last| first.checked_add(last).is_some());
        ranges
            .iter()
            .all(|range| fits(range.from, range.count) && fits(range.to, range.count))
            .then_some(Self { ranges })
    }

    /// Maps `id`.
    pub fn apply(&self, id: u32) -> u32 {
        self.ranges
            .iter()
            .find_map(|range| {
                let at = id.checked_sub(range.from).filter(|at| *at < range.count)?;
                range.to.checked_add(at)
            })
            .unwrap_or(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_move_ids_and_leave_others() {
        let range = |from, to, count| IdRange { from, to, count };
        let map = IdMap::new(vec![range(0, 100_000, 1000), range(1000, 0, 1), range(0, 7, u32::MAX - 7)]).unwrap();
        for (from, to) in [(0, 100_000), (999, 100_999), (1000, 0), (1001, 1008), (u32::MAX, u32::MAX)] {
            assert_eq!(map.apply(from), to);
        }
        assert_eq!(IdMap::default().apply(42), 42);
        for wrong in [range(0, 0, 0), range(1, 0, u32::MAX), range(u32::MAX, 0, 2), range(0, u32::MAX, 2)] {
            // A range that ends with the last id is valid.
            let right = wrong == range(1, 0, u32::MAX);
            assert_eq!(IdMap::new(vec![wrong]).is_some(), right, "{wrong:?}");
        }
    }
}

//! Tables from one training, and the choice among them.

use crate::dictionary::worth_it;

/// Tables from one training, of which at most one is used.
#[derive(Clone, Debug)]
pub struct Candidates<T> {
    /// From the shortest dictionary to the longest. The first may have none.
    tables: Vec<T>,
    /// The second must save one byte in this many, because a search takes longer with a dictionary.
    first_saves: u64,
    /// The same for the others, whose dictionaries use more of the caches.
    longer_saves: u64,
}

impl<T> Candidates<T> {
    pub(crate) fn new(tables: Vec<T>, [first_saves, longer_saves]: [u64; 2]) -> Self {
        Self { tables, first_saves, longer_saves }
    }

    /// Returns the tables to choose from.
    pub fn tables(&self) -> &[T] {
        &self.tables
    }

    /// Returns the index of the tables to use, from the total size of the same pages with the
    /// present tables and with each of [`tables`](Self::tables). Returns `None` if no candidate makes
    /// them at least 2 % smaller.
    pub fn choose(&self, before: u64, bytes: &[u64]) -> Option<usize> {
        let mut best = 0;
        for next in 1..bytes.len() {
            let saves = if best == 0 { self.first_saves } else { self.longer_saves };
            if bytes[next] + bytes[best] / saves <= bytes[best] {
                best = next;
            }
        }
        worth_it(*bytes.get(best)?, before).then_some(best)
    }

    /// Returns the candidate with this index.
    pub(crate) fn into_one(mut self, index: usize) -> T {
        self.tables.swap_remove(index)
    }

    pub(crate) fn map<U>(self, change: impl FnMut(T) -> U) -> Candidates<U> {
        let Self { tables, first_saves, longer_saves } = self;
        Candidates { tables: tables.into_iter().map(change).collect(), first_saves, longer_saves }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dictionary_must_save_enough() {
        let candidates = Candidates::new(vec![(); 3], [10, 100]);
        let choices = [
            (1000, [1000, 1000, 1000], None),
            (1000, [981, 1000, 1000], None),
            (1000, [980, 900, 900], Some(0)),
            (1000, [980, 882, 875], Some(1)),
            (1000, [980, 882, 874], Some(2)),
            (1000, [980, 890, 880], Some(2)),
            (800, [980, 890, 880], None),
        ];
        for (before, bytes, chosen) in choices {
            assert_eq!(candidates.choose(before, &bytes), chosen, "{before} {bytes:?}");
        }
        assert_eq!(candidates.choose(1000, &[]), None);
    }
}

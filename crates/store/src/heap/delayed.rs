//! Blocks waiting to be freed, in order.

/// The maximum number of waiting blocks.
pub(super) const DELAYED: usize = 16;

/// `len ≤ DELAYED` blocks, of which the oldest is at `first`.
#[derive(Debug, Default)]
pub(super) struct Delayed {
    ring: [u32; DELAYED],
    first: usize,
    len: usize,
}

impl Delayed {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the block that has `before` others ahead of it.
    pub(super) fn get(&self, before: usize) -> Option<u32> {
        (before < self.len).then(|| self.ring[(self.first + before) % DELAYED])
    }

    /// Removes the oldest block.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let at = self.get(0)?;
        self.first = (self.first + 1) % DELAYED;
        self.len -= 1;
        Some(at)
    }

    /// Adds a block. If the ring is full, removes and returns the oldest.
    pub(super) fn push(&mut self, at: u32) -> Option<u32> {
        let oldest = if self.len == DELAYED { self.pop() } else { None };
        self.ring[(self.first + self.len) % DELAYED] = at;
        self.len += 1;
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_first_goes_first() {
        let mut delayed = Delayed::default();
        assert_eq!((delayed.pop(), delayed.get(0)), (None, None));
        let pushed: Vec<_> = (0..DELAYED as u32 + 5).filter_map(|at| delayed.push(at)).collect();
        assert_eq!(pushed, [0, 1, 2, 3, 4]);
        assert_eq!((delayed.len(), delayed.get(0), delayed.get(DELAYED)), (DELAYED, Some(5), None));
        let popped: Vec<_> = std::iter::from_fn(|| delayed.pop()).collect();
        assert_eq!(popped, Vec::from_iter(5..DELAYED as u32 + 5));
    }
}

//! Where the encoder saw a sequence last: hash tables of positions.

/// A table from the hash of a few bytes to the last position that had them.
pub(crate) trait Table {
    /// Bytes that a block may have.
    const MAX_INPUT: usize;

    /// Bytes of heap.
    const BYTES: usize;

    /// Makes the table ready for a block of `len` bytes, at most [`Table::MAX_INPUT`], and returns its first position.
    fn begin(&mut self, len: usize) -> usize;

    /// The hash of the next bytes at a position, of which there are 8 here.
    fn hash(bytes: u64) -> usize;

    /// Where `hash` was last seen before `position`. If it was not, or too long ago for an offset, the result is the first position
    /// of the block, or the furthest that an offset reaches.
    fn get(&self, hash: usize, position: usize) -> usize;

    /// Remembers `position` for `hash`.
    fn set(&mut self, hash: usize, position: usize);
}

/// For blocks of up to 64 KiB: 16 KiB of two-byte entries, which stay in the L1 cache. Positions count from 0.
pub(crate) struct Narrow {
    entries: Box<[u16; Narrow::ENTRIES]>,
}

impl Narrow {
    const BITS: u32 = 13;
    const ENTRIES: usize = 1 << Self::BITS;

    pub(crate) fn new() -> Self {
        Self { entries: Box::new([0; Self::ENTRIES]) }
    }
}

impl Table for Narrow {
    const MAX_INPUT: usize = 1 << 16;
    const BYTES: usize = size_of::<[u16; Self::ENTRIES]>();

    fn begin(&mut self, _len: usize) -> usize {
        self.entries.fill(0);
        0
    }

    #[inline(always)]
    fn hash(bytes: u64) -> usize {
        ((bytes as u32).wrapping_mul(0x9E37_79B1) >> (32 - Self::BITS)) as usize
    }

    #[inline(always)]
    fn get(&self, hash: usize, _position: usize) -> usize {
        usize::from(self.entries[hash])
    }

    #[inline(always)]
    fn set(&mut self, hash: usize, position: usize) {
        self.entries[hash] = position as u16;
    }
}

/// For blocks of any length: 32 KiB of four-byte entries.
///
/// Positions count on from block to block, so that entries of earlier blocks need no clearing: they are less than `first`.
pub(crate) struct Wide {
    entries: Box<[u32; Wide::ENTRIES]>,
    first: u32,
    next: usize,
}

impl Wide {
    const BITS: u32 = 13;
    const ENTRIES: usize = 1 << Self::BITS;

    pub(crate) fn new() -> Self {
        Self { entries: Box::new([0; Self::ENTRIES]), first: 0, next: 0 }
    }

    /// Leaves so few positions that the next block needs the table cleared.
    #[cfg(test)]
    pub(super) fn run_out(&mut self) {
        self.next = u32::MAX as usize - 10;
    }
}

impl Table for Wide {
    const MAX_INPUT: usize = 1 << 31;
    const BYTES: usize = size_of::<[u32; Self::ENTRIES]>();

    fn begin(&mut self, len: usize) -> usize {
        if self.next + len > u32::MAX as usize {
            self.entries.fill(0);
            self.next = 0;
        }
        self.first = self.next as u32;
        self.next += len;
        self.first as usize
    }

    #[inline(always)]
    fn hash(bytes: u64) -> usize {
        // Five bytes: in a long window four would bring up many matches that are no longer than that.
        ((bytes << 24).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (64 - Self::BITS)) as usize
    }

    #[inline(always)]
    fn get(&self, hash: usize, position: usize) -> usize {
        let reach = (position as u32).saturating_sub(0xFFFF);
        self.entries[hash].max(reach).max(self.first) as usize
    }

    #[inline(always)]
    fn set(&mut self, hash: usize, position: usize) {
        self.entries[hash] = position as u32;
    }
}

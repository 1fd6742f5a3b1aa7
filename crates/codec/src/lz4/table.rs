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

    /// Where `hash` was last seen before `position`, which is not the block's first. If it was not, or too long ago for an offset,
    /// the result is some other position of the block before, within an offset's reach.
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

/// For blocks of up to 64 KiB of which more is expected than of a page: [`Narrow`] by the hash of five bytes, since four
/// would bring up many matches that are no longer than that. Clusters of 4 KiB of text have 0.983 of the bytes that four bytes give, in
/// 0.9 of the time.
pub(crate) struct Medium(Narrow);

impl Medium {
    pub(crate) fn new() -> Self {
        Self(Narrow::new())
    }
}

impl Table for Medium {
    const MAX_INPUT: usize = Narrow::MAX_INPUT;
    const BYTES: usize = Narrow::BYTES;

    fn begin(&mut self, len: usize) -> usize {
        self.0.begin(len)
    }

    #[inline(always)]
    fn hash(bytes: u64) -> usize {
        hash_of_five(bytes)
    }

    #[inline(always)]
    fn get(&self, hash: usize, position: usize) -> usize {
        self.0.get(hash, position)
    }

    #[inline(always)]
    fn set(&mut self, hash: usize, position: usize) {
        self.0.set(hash, position);
    }
}

/// For blocks of any length: the same 16 KiB, which hold positions modulo 64 KiB. An entry stands for the last position
/// before the one asked for that it can stand for, which an offset always reaches; where the entry is older than that, the bytes there
/// differ, or are a match all the same.
pub(crate) struct Wrapped(Narrow);

impl Wrapped {
    pub(crate) fn new() -> Self {
        Self(Narrow::new())
    }
}

impl Table for Wrapped {
    const MAX_INPUT: usize = 1 << 31;
    const BYTES: usize = Narrow::BYTES;

    fn begin(&mut self, len: usize) -> usize {
        self.0.begin(len)
    }

    #[inline(always)]
    fn hash(bytes: u64) -> usize {
        hash_of_five(bytes)
    }

    /// In the first 64 KiB an entry is less than `position`, so that the distance is at most `position`; later any
    /// distance up to 65535 stays in the block.
    #[inline(always)]
    fn get(&self, hash: usize, position: usize) -> usize {
        let before = position - 1;
        let distance = before.wrapping_sub(self.0.get(hash, position)) & 0xFFFF;
        before - distance.min(0xFFFE)
    }

    #[inline(always)]
    fn set(&mut self, hash: usize, position: usize) {
        self.0.set(hash, position);
    }
}

#[inline(always)]
fn hash_of_five(bytes: u64) -> usize {
    ((bytes << 24).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (64 - Narrow::BITS)) as usize
}

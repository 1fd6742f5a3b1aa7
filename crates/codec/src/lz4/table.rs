//! Where the encoder saw a sequence last: hash tables of positions.

/// Which positions inside a match an encoder remembers. Those before its end find as much again as
/// those after its start, and cost as much time; but those after the start find it nearer.
#[derive(Clone, Copy)]
pub(crate) struct Inside {
    /// The one after its first.
    pub(crate) after_start: bool,
    /// The one two before its end.
    pub(crate) before_end: bool,
}

/// A table from the hash of a few bytes to the last position that had them, for blocks of up to 64
/// KiB: all that it has is in an offset's reach.
pub(crate) trait Table {
    /// Which positions inside a match are remembered.
    const INSIDE: Inside;

    /// A match that goes on for fewer bytes than this after its first four gives way to one that
    /// begins a byte later and is longer.
    const TWICE: usize = 0;

    /// After so many positions tried in vain the step from one to the next grows by a byte; after
    /// 7/3 of that the first time.
    const STEP: usize = 48;

    /// How many bytes of a match after its first four are compared at once: 8, and then 32, or 32
    /// or 64.
    const FIRST: usize = 8;

    /// Makes the table ready for a block of `len` bytes and returns its first position.
    fn begin(&mut self, len: usize) -> usize;

    /// The hash of the next bytes at a position, of which there are 8 here.
    fn hash(bytes: u64) -> usize;

    /// Where `hash` was last seen before `position`, which is not the block's first. If it was not,
    /// the result is some other position of the block before.
    fn get(&self, hash: usize, position: usize) -> usize;

    /// Remembers `position` for `hash`.
    fn set(&mut self, hash: usize, position: usize);
}

/// Bits of a hash: two to this power is how many positions a table has.
pub(crate) const HASH: u32 = 13;

/// [`HASH`] for pages of which few positions are remembered: half as much to clear.
pub(crate) const HASH_FEW: u32 = 12;

/// The memory of a table, 16 KiB, which stays in the L1 cache. Kept from one block to the next, and
/// for tables of all kinds.
pub(crate) struct Positions(Box<[u16; Positions::ENTRIES]>);

impl Positions {
    const ENTRIES: usize = 1 << HASH;

    /// Bytes of heap.
    pub(crate) const BYTES: usize = size_of::<[u16; Self::ENTRIES]>();

    pub(crate) fn new() -> Self {
        Self(Box::new([0; Self::ENTRIES]))
    }

    /// The hash, `TO` bits, of the low `BITS` bits of `bytes`, 32 to 56.
    #[inline(always)]
    fn hash<const BITS: u32, const TO: u32>(bytes: u64) -> usize {
        if BITS == 32 {
            ((bytes as u32).wrapping_mul(0x9E37_79B1) >> (32 - TO)) as usize
        } else {
            ((bytes << (64 - BITS)).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (64 - TO)) as usize
        }
    }
}

/// For blocks of up to 64 KiB: positions count from 0. The hash is of the next `BITS` bits, 32 to
/// 56: with 32, every match of four bytes is a candidate, with 40 none that ends there, which are a
/// byte's gain each. With 33 half of those are.
pub(crate) struct Narrow<
    'a,
    const BITS: u32,
    const AFTER_START: bool,
    const BEFORE_END: bool,
    const TO: u32 = HASH,
    const TWICE: usize = 0,
    const STEP: usize = 48,
    const FIRST: usize = 8,
>(pub(crate) &'a mut Positions);

impl<
    const BITS: u32,
    const AFTER_START: bool,
    const BEFORE_END: bool,
    const TO: u32,
    const TWICE: usize,
    const STEP: usize,
    const FIRST: usize,
> Table for Narrow<'_, BITS, AFTER_START, BEFORE_END, TO, TWICE, STEP, FIRST>
{
    const STEP: usize = STEP;

    const FIRST: usize = FIRST;

    const TWICE: usize = TWICE;

    const INSIDE: Inside = Inside { after_start: AFTER_START, before_end: BEFORE_END };

    fn begin(&mut self, _len: usize) -> usize {
        self.0.0[..1 << TO].fill(0);
        0
    }

    #[inline(always)]
    fn hash(bytes: u64) -> usize {
        Positions::hash::<BITS, TO>(bytes)
    }

    #[inline(always)]
    fn get(&self, hash: usize, _position: usize) -> usize {
        usize::from(self.0.0[hash])
    }

    #[inline(always)]
    fn set(&mut self, hash: usize, position: usize) {
        self.0.0[hash] = position as u16;
    }
}

/// For a page after a dictionary, of 64 KiB together: positions count from the dictionary's start.
/// Where the page has no position yet, the dictionary's counts. The hash is of the next 5 bytes.
pub(crate) struct AfterDictionary<'a> {
    pub(crate) page: &'a mut Positions,
    pub(crate) dictionary: &'a DictionaryPositions,
    pub(crate) dictionary_len: usize,
}

/// The last position in a dictionary of each hash; 0 also where there is none.
pub(crate) type DictionaryPositions = [u16; 1 << DICTIONARY_BITS];

const DICTIONARY_BITS: u32 = 14;

impl AfterDictionary<'_> {
    /// The positions in `dictionary`, of at most 64 KiB.
    pub(crate) fn positions(dictionary: &[u8]) -> Box<DictionaryPositions> {
        let mut positions = Box::new([0; 1 << DICTIONARY_BITS]);
        for (at, bytes) in dictionary.windows(8).enumerate() {
            if let Some(bytes) = bytes.first_chunk() {
                positions[Self::hash(u64::from_le_bytes(*bytes))] = at as u16;
            }
        }
        positions
    }
}

impl Table for AfterDictionary<'_> {
    const INSIDE: Inside = Inside { after_start: false, before_end: true };

    fn begin(&mut self, _len: usize) -> usize {
        self.page.0.fill(0);
        self.dictionary_len
    }

    #[inline(always)]
    fn hash(bytes: u64) -> usize {
        ((bytes << 24).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (64 - DICTIONARY_BITS)) as usize
    }

    #[inline(always)]
    fn get(&self, hash: usize, _position: usize) -> usize {
        let seen = self.page.0[hash >> (DICTIONARY_BITS - HASH)];
        usize::from(if seen == 0 { self.dictionary[hash] } else { seen })
    }

    #[inline(always)]
    fn set(&mut self, hash: usize, position: usize) {
        self.page.0[hash >> (DICTIONARY_BITS - HASH)] = position as u16;
    }
}

//! Hash tables of positions: where the encoder last saw a sequence.

/// Which positions inside a match an encoder remembers. A position before the end finds as many
/// further matches as one after the start and costs as much time, but one after the start finds
/// nearer ones.
#[derive(Clone, Copy)]
pub(crate) struct Inside {
    /// The second position.
    pub(crate) after_start: bool,
    /// The position two before the end.
    pub(crate) before_end: bool,
}

/// A table from the hash of a few bytes to the last position that had them, for blocks of up to 64
/// KiB: an offset reaches every entry.
pub(crate) trait Table {
    /// Which positions inside a match are remembered.
    const INSIDE: Inside;

    /// A match that continues for fewer bytes than this after its first four is replaced by a
    /// longer one that begins a byte later.
    const TWICE: usize = 0;

    /// After this many misses the step between positions grows by one byte, the first time after
    /// 7/3 as many.
    const STEP: usize = 48;

    /// Bytes of a match after its first four that the first step compares: 8 (then 32), 32 or 64.
    const FIRST: usize = 8;

    /// Prepares the table for a block of `len` bytes and returns its first position.
    fn begin(&mut self, len: usize) -> usize;

    /// Returns the hash of the next bytes at a position, where 8 bytes are available.
    fn hash(bytes: u64) -> usize;

    /// Returns where `hash` was last seen before `position`, which is not the block's first. If it
    /// was not seen, returns some other earlier position of the block.
    fn get(&self, hash: usize, position: usize) -> usize;

    /// Remembers `position` for `hash`.
    fn set(&mut self, hash: usize, position: usize);
}

/// Bits of a hash: a table has 2 to this power positions.
pub(crate) const HASH: u32 = 13;

/// [`HASH`] for pages that need few positions: half as much to clear.
pub(crate) const HASH_FEW: u32 = 12;

/// The memory of a table, 16 KiB, which fits in the L1 cache. Reused for every block and for all
/// kinds of tables.
pub(crate) struct Positions(Box<[u16; Positions::ENTRIES]>);

impl Positions {
    const ENTRIES: usize = 1 << HASH;

    /// Heap bytes.
    pub(crate) const BYTES: usize = size_of::<[u16; Self::ENTRIES]>();

    pub(crate) fn new() -> Self {
        Self(Box::new([0; Self::ENTRIES]))
    }

    /// Returns the hash, `TO` bits, of the low `BITS` bits of `bytes`, 32 to 56.
    #[inline(always)]
    fn hash<const BITS: u32, const TO: u32>(bytes: u64) -> usize {
        if BITS == 32 {
            ((bytes as u32).wrapping_mul(0x9E37_79B1) >> (32 - TO)) as usize
        } else {
            ((bytes << (64 - BITS)).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (64 - TO)) as usize
        }
    }
}

/// A table for blocks of up to 64 KiB: positions count from 0. The hash covers the next `BITS`
/// bits, 32 to 56. With 32, every match of four bytes is a candidate. With 40, matches that end
/// after four bytes are not candidates, although each would save a byte. With 33, half of them are
/// candidates.
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

/// A table for a page after a dictionary, together 64 KiB: positions count from the dictionary's
/// start. Where the page has no position yet, the dictionary's applies. The hash covers the next 5
/// bytes.
pub(crate) struct AfterDictionary<'a> {
    pub(crate) page: &'a mut Positions,
    pub(crate) dictionary: &'a DictionaryPositions,
    pub(crate) dictionary_len: usize,
}

/// The last position in a dictionary of each hash; 0 if there is none.
pub(crate) type DictionaryPositions = [u16; 1 << DICTIONARY_BITS];

const DICTIONARY_BITS: u32 = 14;

impl AfterDictionary<'_> {
    /// Returns the positions in `dictionary`, at most 64 KiB.
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

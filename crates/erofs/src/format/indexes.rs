//! The indexes of logical clusters, full and compacted.

pub(crate) mod advise {
    pub(crate) const COMPACTED_2B: u16 = 0x01;
    /// The same bit in the layout with full indexes: encoded extents replace the indexes.
    pub(crate) const EXTENTS: u16 = 0x01;
    /// With `EXTENTS`, bits 1 and 2: a record has `4 << n` bytes.
    pub(crate) const EXTENT_RECORD_SHIFT: u32 = 1;
    pub(crate) const EXTENT_RECORD_MASK: u16 = 3;
    pub(crate) const BIG_PCLUSTER_1: u16 = 0x02;
    pub(crate) const BIG_PCLUSTER_2: u16 = 0x04;
    pub(crate) const INLINE_PCLUSTER: u16 = 0x08;
    pub(crate) const INTERLACED_PCLUSTER: u16 = 0x10;
    pub(crate) const FRAGMENT_PCLUSTER: u16 = 0x20;
    pub(crate) const ALL: u16 = 0x3f;
}

/// Bit 7 of `h_clusterbits`: the whole file is a fragment.
pub(crate) const FRAGMENT_INODE: u8 = 0x80;

/// The kind of a logical cluster's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LclusterType {
    /// An uncompressed extent starts in it.
    Plain = 0,
    /// An extent of the first algorithm starts in it.
    Head1 = 1,
    /// No extent starts in it.
    NonHead = 2,
    /// An extent of the second algorithm starts in it.
    Head2 = 3,
}

impl LclusterType {
    pub(crate) fn decode(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::Plain,
            1 => Self::Head1,
            2 => Self::NonHead,
            _ => Self::Head2,
        }
    }
}

/// The decoded index of one logical cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lcluster {
    pub(crate) kind: LclusterType,
    pub(crate) partial: bool,
    /// For heads: where the extent starts in the cluster. For non-heads: the blocks of the physical
    /// cluster of the head just before, 0 if not given.
    pub(crate) low: u16,
    /// For heads: the block address. For non-heads: the distance in clusters back to the head or to
    /// another non-head; 0 is corrupt.
    pub(crate) high: u32,
}

const _: () = assert!(size_of::<Lcluster>() == 8);

impl Lcluster {
    pub(crate) const EMPTY: Self = Self::non_head(0, 0);

    pub(crate) const fn non_head(back: u32, cblks: u16) -> Self {
        Self { kind: LclusterType::NonHead, partial: false, low: cblks, high: back }
    }
}

/// Bit 15 of a full index's `di_advise`: the extent is a prefix of its physical cluster's content.
pub(crate) const LI_PARTIAL_REF: u16 = 1 << 15;
/// In a distance: the low bits are the number of blocks of the physical cluster, and the distance
/// is 1.
pub(crate) const LI_CBLKCNT: u32 = 1 << 11;

/// One compacted index: the low bits (an offset or a distance), and the type above them.
///
/// A pack of `count` indexes, without gaps from bit 0, is followed by the 32-bit block address from
/// which the block addresses of its heads are derived:
///
/// ```text
/// 4-byte indexes, a pack of 8 bytes:   | 16 bits | 16 bits | base:32 |
/// 2-byte indexes, a pack of 32 bytes:  | 14 bits | * 16    | base:32 |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackFormat {
    /// The number of indexes in a pack.
    pub(crate) count: usize,
    /// The size of a pack in bytes.
    pub(crate) bytes: usize,
    /// The size of an index in bits.
    bits: usize,
    /// The size of an index's low part in bits.
    low_bits: u32,
}

impl PackFormat {
    pub(crate) fn four_bytes(lclusterbits: u32) -> Self {
        Self { count: 2, bytes: 8, bits: 16, low_bits: lclusterbits.max(12) }
    }

    pub(crate) fn two_bytes(lclusterbits: u32) -> Self {
        Self { count: 16, bytes: 32, bits: 14, low_bits: lclusterbits.max(12) }
    }

    pub(crate) fn get(self, pack: &[u8], index: usize) -> (LclusterType, u32) {
        let bit = index * self.bits;
        let mut word = [0; 4];
        for (to, from) in word.iter_mut().zip(&pack[bit / 8..]) {
            *to = *from;
        }
        let value = u32::from_le_bytes(word) >> (bit % 8);
        (LclusterType::decode(value >> self.low_bits), value & ((1 << self.low_bits) - 1))
    }

    /// Sets an index that is still zero.
    pub(crate) fn put(self, pack: &mut [u8], index: usize, kind: LclusterType, low: u32) {
        debug_assert!(low < 1 << self.low_bits);
        let bit = index * self.bits;
        let value = (low | (kind as u32) << self.low_bits) << (bit % 8);
        for (to, from) in pack[bit / 8..].iter_mut().zip(value.to_le_bytes()) {
            *to |= from;
        }
    }

    pub(crate) fn base(self, pack: &[u8]) -> u32 {
        pack[..self.bytes].last_chunk().map_or(0, |base| u32::from_le_bytes(*base))
    }

    pub(crate) fn put_base(self, pack: &mut [u8], base: u32) {
        pack[self.bytes - 4..self.bytes].copy_from_slice(&base.to_le_bytes());
    }
}

/// The division of a compacted file's indexes: `first` of 4 bytes up to a 32-byte boundary,
/// `middle` of 2 bytes, and `last` of 4 bytes. `start` is the image offset of the first index,
/// `total` the number of the file's logical clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactLayout {
    pub(crate) first: u64,
    pub(crate) middle: u64,
    pub(crate) last: u64,
}

impl CompactLayout {
    pub(crate) fn new(start: u64, total: u64, two_bytes: bool) -> Self {
        let first = (32 - start % 32) / 4 % 8;
        let (first, middle) =
            if two_bytes && first < total { (first, (total - first) / 16 * 16) } else { (first.min(total), 0) };
        Self { first, middle, last: total - first - middle }
    }

    /// Returns the size of all packs in bytes. A partial last pack counts in full.
    pub(crate) fn bytes(self) -> u64 {
        (self.first + self.last).next_multiple_of(2) * 4 + self.middle * 2
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packed_indexes_come_back(
            entries in proptest::collection::vec((0u32..4, 0u32..4096), 16),
            base in any::<u32>(),
            two in any::<bool>(),
        ) {
            let format = if two { PackFormat::two_bytes(12) } else { PackFormat::four_bytes(12) };
            let mut pack = vec![0; format.bytes];
            for (index, &(kind, low)) in entries.iter().take(format.count).enumerate() {
                format.put(&mut pack, index, LclusterType::decode(kind), low);
            }
            format.put_base(&mut pack, base);
            for (index, &(kind, low)) in entries.iter().take(format.count).enumerate() {
                prop_assert_eq!(format.get(&pack, index), (LclusterType::decode(kind), low));
            }
            prop_assert_eq!(format.base(&pack), base);
        }

        #[test]
        fn compact_layouts_cover_every_index(start in (0u64..1 << 20).prop_map(|n| n * 8), total in 0u64..1000, two in any::<bool>()) {
            let layout = CompactLayout::new(start, total, two);
            prop_assert_eq!(layout.first + layout.middle + layout.last, total);
            prop_assert_eq!(layout.middle % 16, 0);
            if layout.middle > 0 {
                prop_assert_eq!((start + layout.first * 4) % 32, 0);
            }
        }
    }
}

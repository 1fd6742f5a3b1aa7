//! The indexes of a compressed file, from its extents.

use crate::format::{
    CompactLayout, FRAGMENT_INODE, FullIndex, LI_CBLKCNT, LclusterType, MapHeader, PackFormat, advise,
};

/// One extent of a file that is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BuiltExtent {
    pub(crate) len: u32,
    pub(crate) compressed: bool,
    pub(crate) place: BuiltPlace,
}

/// Where its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuiltPlace {
    Blocks {
        blkaddr: u32,
        blocks: u32,
    },
    /// Behind the indexes: this many bytes.
    Inline(u32),
    /// At this offset of the packed inode.
    Fragment(u64),
}

/// The largest distance that an index holds. One further away is reached by way of another index.
const MAX_DISTANCE: u32 = LI_CBLKCNT - 1;

#[derive(Clone, Copy)]
struct Entry {
    kind: LclusterType,
    clusterofs: u32,
    /// The address of the head's blocks; `None` for a head that has none of its own.
    blkaddr: Option<u32>,
    back: u32,
    ahead: u32,
    /// Blocks of the head's cluster, in the entry after a head of a file with big clusters.
    cblks: Option<u32>,
}

/// The map header and indexes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Indexes {
    pub(crate) compact: bool,
    /// From the first 8-byte boundary after the xattrs.
    pub(crate) bytes: Vec<u8>,
}

/// What the indexes of all files of an image have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexStyle {
    pub(crate) block_bits: u32,
    pub(crate) big: bool,
    pub(crate) compact: bool,
}

impl IndexStyle {
    /// Encodes the indexes of a file of `size` bytes in the format `algorithm`, whose map header will lie at `header_at` modulo 32. Compact ones
    /// if the style says so and the clusters' addresses follow from each other as compact indexes need it.
    pub(crate) fn encode(self, algorithm: u8, size: u64, extents: &[BuiltExtent], header_at: u64) -> Indexes {
        let entries = self.entries(size, extents);
        let mut header = MapHeader { h_fragmentoff: 0, h_advise: 0, h_algorithmtype: algorithm, h_clusterbits: 0 };
        if self.big {
            header.h_advise |= advise::BIG_PCLUSTER_1 | advise::BIG_PCLUSTER_2;
        }
        let mut fragment_high = 0;
        match extents.last().map(|extent| extent.place) {
            Some(BuiltPlace::Inline(bytes)) => {
                header.h_advise |= advise::INLINE_PCLUSTER;
                header.h_fragmentoff = bytes << 16;
            }
            Some(BuiltPlace::Fragment(offset)) => {
                header.h_advise |= advise::FRAGMENT_PCLUSTER;
                header.h_fragmentoff = offset as u32;
                fragment_high = (offset >> 32) as u32;
            }
            _ => {}
        }
        if self.compact && self.block_bits <= 14 && fragment_high == 0 {
            let two_bytes = self.block_bits <= 12;
            let layout = CompactLayout::new(header_at + MapHeader::SIZE as u64, entries.len() as u64, two_bytes);
            if let Some(packs) = self.compact_packs(&entries, layout) {
                if two_bytes {
                    header.h_advise |= advise::COMPACTED_2B;
                }
                return Indexes { compact: true, bytes: [&header.encode()[..], &packs].concat() };
            }
        }
        let mut bytes = header.encode().to_vec();
        bytes.resize(bytes.len() + 8, 0);
        for entry in &entries {
            let (clusterofs, word) = if entry.kind == LclusterType::NonHead {
                let back = entry.cblks.map_or(entry.back.min(MAX_DISTANCE), |blocks| blocks | LI_CBLKCNT);
                (0, back | entry.ahead.min(0xffff) << 16)
            } else {
                (entry.clusterofs, entry.blkaddr.unwrap_or(fragment_high))
            };
            let index = FullIndex { di_advise: entry.kind as u16, di_clusterofs: clusterofs as u16, di_u: word };
            bytes.extend_from_slice(&index.encode());
        }
        Indexes { compact: false, bytes }
    }

    fn entries(self, size: u64, extents: &[BuiltExtent]) -> Vec<Entry> {
        let total = size.div_ceil(1 << self.block_bits) as usize;
        let non_head =
            Entry { kind: LclusterType::NonHead, clusterofs: 0, blkaddr: None, back: 0, ahead: 0, cblks: None };
        let mut entries = vec![non_head; total];
        let in_cluster = |offset: u64| (offset & ((1 << self.block_bits) - 1)) as u32;
        let mut start = 0;
        for extent in extents {
            let lcn = (start >> self.block_bits) as usize;
            let (blkaddr, blocks) = match extent.place {
                BuiltPlace::Blocks { blkaddr, blocks } => (Some(blkaddr), blocks),
                BuiltPlace::Inline(_) | BuiltPlace::Fragment(_) => (None, 1),
            };
            let kind = if extent.compressed { LclusterType::Head1 } else { LclusterType::Plain };
            entries[lcn] = Entry { kind, clusterofs: in_cluster(start), blkaddr, ..non_head };
            if self.big
                && let Some(after) = entries.get_mut(lcn + 1)
            {
                after.cblks = Some(blocks);
            }
            start += u64::from(extent.len);
        }
        debug_assert_eq!(start, size);
        // In a last cluster in which nothing starts, a plain head of nothing says where the file ends.
        if let Some(last) = entries.last_mut()
            && last.kind == LclusterType::NonHead
            && in_cluster(size) != 0
        {
            *last = Entry { kind: LclusterType::Plain, clusterofs: in_cluster(size), ..non_head };
        }
        let mut back = 0;
        for entry in &mut entries {
            back = if entry.kind == LclusterType::NonHead { back + 1 } else { 0 };
            entry.back = back;
            if entry.kind != LclusterType::NonHead {
                entry.cblks = None;
            }
        }
        let mut ahead = 0;
        for entry in entries.iter_mut().rev() {
            ahead += 1;
            entry.ahead = ahead;
            if entry.kind != LclusterType::NonHead {
                ahead = 0;
            }
        }
        entries
    }

    /// All packs; `None` if a pack cannot say the addresses of its heads.
    fn compact_packs(self, entries: &[Entry], layout: CompactLayout) -> Option<Vec<u8>> {
        let four = PackFormat::four_bytes(self.block_bits);
        let two = PackFormat::two_bytes(self.block_bits);
        let (first, rest) = entries.split_at(layout.first as usize);
        let (middle, last) = rest.split_at(layout.middle as usize);
        let mut bytes = Vec::with_capacity(layout.bytes() as usize);
        for (part, format) in [(first, four), (middle, two), (last, four)] {
            for pack in part.chunks(format.count) {
                let start = bytes.len();
                bytes.resize(start + format.bytes, 0);
                self.pack(pack, format, &mut bytes[start..])?;
            }
        }
        debug_assert_eq!(bytes.len() as u64, layout.bytes());
        Some(bytes)
    }

    /// One pack. How a reader derives addresses from its base is said at `decode_pack` of the reader; `past` counts
    /// the blocks between the base and the next head.
    fn pack(self, entries: &[Entry], format: PackFormat, bytes: &mut [u8]) -> Option<()> {
        let mut base = None;
        let mut past = u32::from(!self.big);
        for (index, entry) in entries.iter().enumerate() {
            let last = index + 1 == format.count;
            let low = match (entry.kind, entry.cblks) {
                (LclusterType::NonHead, Some(blocks)) => {
                    past += blocks;
                    blocks | LI_CBLKCNT
                }
                (LclusterType::NonHead, None) if last => entry.ahead.min(MAX_DISTANCE),
                (LclusterType::NonHead, None) => entry.back.min(MAX_DISTANCE),
                _ => {
                    if let Some(blkaddr) = entry.blkaddr {
                        let here = blkaddr.checked_sub(past);
                        if here.is_none() || *base.get_or_insert(here) != here {
                            return None;
                        }
                    }
                    let sized_after =
                        self.big && !last && entries.get(index + 1).is_some_and(|next| next.cblks.is_some());
                    if !sized_after {
                        past += 1;
                    }
                    entry.clusterofs
                }
            };
            format.put(bytes, index, entry.kind, low);
        }
        format.put_base(bytes, base.flatten().unwrap_or(0));
        Some(())
    }
}

/// The map header of a file that is a fragment whole.
pub(crate) fn whole_fragment(offset: u64) -> [u8; MapHeader::SIZE] {
    debug_assert!(offset >> 63 == 0);
    (offset | u64::from(FRAGMENT_INODE) << 56).to_le_bytes()
}

//! Encodes the indexes of a compressed file, or its encoded extents, from its extents.

use crate::format::{
    CompactLayout, EXTENT_FORMAT_SHIFT, EncodedExtent, ExtentsHeader, FRAGMENT_INODE, FullIndex, LI_CBLKCNT,
    LclusterType, MapHeader, NULL_ADDR, PackFormat, advise, align,
};

/// An extent of a file being built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BuiltExtent {
    pub(crate) len: u32,
    pub(crate) compressed: bool,
    pub(crate) place: BuiltPlace,
}

/// The location of an extent's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuiltPlace {
    Blocks {
        blkaddr: u32,
        blocks: u32,
    },
    /// After the indexes: this many bytes.
    Inline(u32),
    /// In the packed inode: the offset.
    Fragment(u64),
    /// A hole of this many zeros; the extent's own length is 0. Only encoded extents can express
    /// it.
    Hole(u64),
}

/// The largest distance that an index can hold. A more distant head is reached through another
/// index.
const MAX_DISTANCE: u32 = LI_CBLKCNT - 1;

/// The content of a logical cluster's index, in 8 bytes, because a large file has many. Distances
/// saturate.
#[derive(Clone, Copy)]
enum Entry {
    Head {
        kind: LclusterType,
        clusterofs: u16,
        /// The address of its blocks; [`NULL_ADDR`] if it has none.
        blkaddr: u32,
    },
    NonHead {
        /// The distances in clusters to the previous head and to the next.
        back: u16,
        ahead: u16,
        /// The number of blocks of the head's cluster, if this entry follows the head in a file
        /// with big clusters; else 0.
        cblks: u16,
    },
}

const _: () = assert!(size_of::<Entry>() == 8);

/// The form of a file's indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexForm {
    Compact,
    Full,
    /// Encoded extents instead.
    Extents,
}

/// The map header and indexes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Indexes {
    pub(crate) form: IndexForm,
    /// Starts at the first 8-byte boundary after the xattrs.
    pub(crate) bytes: Vec<u8>,
}

/// The index properties that all files of an image share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexStyle {
    pub(crate) block_bits: u32,
    pub(crate) big: bool,
    pub(crate) compact: bool,
}

impl IndexStyle {
    /// Encodes the indexes of a file of `size` bytes in the format `algorithm`, whose map header
    /// will be at `header_at` modulo 32. Uses compact indexes if the style asks for them and the
    /// addresses of the clusters allow it.
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
                return Indexes { form: IndexForm::Compact, bytes: [&header.encode()[..], &packs].concat() };
            }
        }
        let mut bytes = header.encode().to_vec();
        bytes.resize(bytes.len() + 8, 0);
        for entry in &entries {
            let (kind, clusterofs, word) = match *entry {
                Entry::NonHead { back, ahead, cblks } => {
                    (LclusterType::NonHead, 0, back_or_blocks(back, cblks) | u32::from(ahead) << 16)
                }
                Entry::Head { kind, clusterofs, blkaddr: NULL_ADDR } => (kind, clusterofs, fragment_high),
                Entry::Head { kind, clusterofs, blkaddr } => (kind, clusterofs, blkaddr),
            };
            let index = FullIndex { di_advise: kind as u16, di_clusterofs: clusterofs, di_u: word };
            bytes.extend_from_slice(&index.encode());
        }
        Indexes { form: IndexForm::Full, bytes }
    }

    /// Like [`encode`](Self::encode), with encoded extents: 16 bytes each, or 32 in files above 4 GiB.
    /// The last one may be a fragment, and none may be inline.
    pub(crate) fn encode_extents(self, algorithm: u8, size: u64, extents: &[BuiltExtent], header_at: u64) -> Indexes {
        let record_bytes = if size > u64::from(u32::MAX) { EncodedExtent::SIZE } else { EncodedExtent::SIZE / 2 };
        let header_end = header_at + ExtentsHeader::SIZE as u64;
        let records_at = (align(header_end, record_bytes as u64) - header_at) as usize;
        let mut bytes = vec![0; records_at];
        let mut start = 0;
        for extent in extents {
            let (plen, pstart) = match extent.place {
                BuiltPlace::Blocks { blkaddr, blocks } => {
                    let format = if extent.compressed { u32::from(algorithm) + 1 } else { 0 };
                    let plen = blocks << self.block_bits | format << EXTENT_FORMAT_SHIFT;
                    (plen, u64::from(blkaddr) << self.block_bits)
                }
                BuiltPlace::Fragment(offset) => (offset as u32, offset >> 32),
                BuiltPlace::Hole(_) | BuiltPlace::Inline(_) => (0, 0),
            };
            let record = EncodedExtent {
                plen,
                pstart_lo: pstart as u32,
                pstart_hi: (pstart >> 32) as u32,
                lstart_lo: start as u32,
                lstart_hi: (start >> 32) as u32,
                reserved: [0; 12],
            };
            bytes.extend_from_slice(&record.encode()[..record_bytes]);
            start += match extent.place {
                BuiltPlace::Hole(len) => len,
                _ => extent.len.into(),
            };
        }
        debug_assert_eq!(start, size);
        let mut h_advise = advise::EXTENTS | ((record_bytes / 4).ilog2() as u16) << advise::EXTENT_RECORD_SHIFT;
        if let Some(BuiltExtent { place: BuiltPlace::Fragment(_), .. }) = extents.last() {
            h_advise |= advise::FRAGMENT_PCLUSTER;
        }
        let count = extents.len() as u64;
        let header = ExtentsHeader { h_extents_lo: count as u32, h_advise, h_extents_hi: (count >> 32) as u16 };
        bytes[..ExtentsHeader::SIZE].copy_from_slice(&header.encode());
        Indexes { form: IndexForm::Extents, bytes }
    }

    fn entries(self, size: u64, extents: &[BuiltExtent]) -> Vec<Entry> {
        let total = size.div_ceil(1 << self.block_bits) as usize;
        let mut entries = vec![Entry::NonHead { back: 0, ahead: 0, cblks: 0 }; total];
        let in_cluster = |offset: u64| (offset & ((1 << self.block_bits) - 1)) as u16;
        let mut start = 0;
        for extent in extents {
            let lcn = (start >> self.block_bits) as usize;
            let (blkaddr, blocks) = match extent.place {
                BuiltPlace::Blocks { blkaddr, blocks } => (blkaddr, blocks),
                BuiltPlace::Inline(_) | BuiltPlace::Fragment(_) | BuiltPlace::Hole(_) => (NULL_ADDR, 1),
            };
            let kind = if extent.compressed { LclusterType::Head1 } else { LclusterType::Plain };
            entries[lcn] = Entry::Head { kind, clusterofs: in_cluster(start), blkaddr };
            if self.big
                && let Some(Entry::NonHead { cblks, .. }) = entries.get_mut(lcn + 1)
            {
                *cblks = blocks as u16;
            }
            start += u64::from(extent.len);
        }
        debug_assert_eq!(start, size);
        // If no extent starts in the last cluster, an empty plain head marks the end of the file.
        if let Some(last @ Entry::NonHead { .. }) = entries.last_mut()
            && in_cluster(size) != 0
        {
            *last = Entry::Head { kind: LclusterType::Plain, clusterofs: in_cluster(size), blkaddr: NULL_ADDR };
        }
        let mut since = 0u16;
        for entry in &mut entries {
            since = if let Entry::NonHead { back, .. } = entry {
                *back = since.saturating_add(1);
                *back
            } else {
                0
            };
        }
        let mut until = 0u16;
        for entry in entries.iter_mut().rev() {
            until = until.saturating_add(1);
            match entry {
                Entry::NonHead { ahead, .. } => *ahead = until,
                Entry::Head { .. } => until = 0,
            }
        }
        entries
    }

    /// Encodes all packs; `None` if a pack cannot express the addresses of its heads.
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

    /// Encodes a pack. The reader's `decode_pack` documents how addresses follow from the base;
    /// `past` counts the blocks between the base and the next head.
    fn pack(self, entries: &[Entry], format: PackFormat, bytes: &mut [u8]) -> Option<()> {
        let mut base = None;
        let mut past = u32::from(!self.big);
        for (index, entry) in entries.iter().enumerate() {
            let last = index + 1 == format.count;
            let (kind, low) = match *entry {
                Entry::NonHead { ahead, cblks: 0, .. } if last => {
                    (LclusterType::NonHead, u32::from(ahead).min(MAX_DISTANCE))
                }
                Entry::NonHead { back, cblks, .. } => {
                    past += u32::from(cblks);
                    (LclusterType::NonHead, back_or_blocks(back, cblks))
                }
                Entry::Head { kind, clusterofs, blkaddr } => {
                    if blkaddr != NULL_ADDR {
                        let here = blkaddr.checked_sub(past);
                        if here.is_none() || *base.get_or_insert(here) != here {
                            return None;
                        }
                    }
                    let sized_after =
                        !last && matches!(entries.get(index + 1), Some(Entry::NonHead { cblks: 1.., .. }));
                    if !sized_after {
                        past += 1;
                    }
                    (kind, u32::from(clusterofs))
                }
            };
            format.put(bytes, index, kind, low);
        }
        format.put_base(bytes, base.flatten().unwrap_or(0));
        Some(())
    }
}

/// Encodes the low part of a non-head index: the distance to the head, or its number of blocks.
fn back_or_blocks(back: u16, cblks: u16) -> u32 {
    if cblks > 0 { u32::from(cblks) | LI_CBLKCNT } else { u32::from(back).min(MAX_DISTANCE) }
}

/// Returns the map header of a file that is one fragment.
pub(crate) fn whole_fragment(offset: u64) -> [u8; MapHeader::SIZE] {
    debug_assert!(offset >> 63 == 0);
    (offset | u64::from(FRAGMENT_INODE) << 56).to_le_bytes()
}

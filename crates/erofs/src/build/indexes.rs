//! Encodes the indexes of a compressed file, or its encoded extents, from its extents, piece by
//! piece: memory does not depend on the length of the file.

use std::ops::Range;

use super::extents::{BuiltExtent, BuiltPlace, ExtentLog};
use crate::error::Result;
use crate::format::{
    CompactLayout, EXTENT_FORMAT_SHIFT, EncodedExtent, ExtentsHeader, FRAGMENT_INODE, FullIndex, LI_CBLKCNT,
    LclusterType, MapHeader, NULL_ADDR, PackFormat, advise, align,
};

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

/// The map header and indexes of a file: what it takes to encode them.
#[derive(Clone, Debug)]
pub(crate) struct Indexes {
    pub(crate) form: IndexForm,
    style: IndexStyle,
    algorithm: u8,
    /// The length of the file.
    size: u64,
    /// Where the map header will be, modulo 32: the first 8-byte boundary after the xattrs.
    header_at: u64,
    /// The numbers of the file's extents.
    extents: Range<u64>,
    /// The place of the last extent.
    end: Option<BuiltPlace>,
}

/// The index properties that all files of an image share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexStyle {
    pub(crate) block_bits: u32,
    pub(crate) big: bool,
    pub(crate) compact: bool,
}

impl Indexes {
    /// Returns encoded extents of a file of `size` bytes in the format `algorithm`, whose map header
    /// will be at `header_at` modulo 32: 16 bytes each, or 32 in files above 4 GiB. `extents` are their
    /// numbers, and `last` is the last one. It may be a fragment, and none may be inline.
    pub(crate) fn of_extents(
        style: IndexStyle,
        algorithm: u8,
        size: u64,
        extents: Range<u64>,
        last: Option<BuiltExtent>,
        header_at: u64,
    ) -> Self {
        let end = last.map(|extent| extent.place);
        Self { form: IndexForm::Extents, style, algorithm, size, header_at, extents, end }
    }

    /// Returns indexes of logical clusters instead, for a file without holes. They are compact if the
    /// style asks for that and the addresses of the clusters allow it.
    pub(crate) fn by_lcluster(self, log: &ExtentLog) -> Result<Self> {
        let mut indexes = Self { form: IndexForm::Compact, ..self };
        let may_be_compact = indexes.style.compact && indexes.style.block_bits <= 14 && indexes.fragment_high() == 0;
        if !may_be_compact || !indexes.write_packs(log, &mut |_| Ok(()))? {
            indexes.form = IndexForm::Full;
        }
        Ok(indexes)
    }

    /// Returns the length of the encoding, from the map header on, in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self.form {
            IndexForm::Compact => MapHeader::SIZE as u64 + self.layout().bytes(),
            IndexForm::Full => MapHeader::SIZE as u64 + 8 + self.lclusters() * FullIndex::SIZE as u64,
            IndexForm::Extents => {
                self.records_at() + (self.extents.end - self.extents.start) * self.record_bytes() as u64
            }
        }
    }

    /// Calls `sink` with the encoding, piece by piece.
    pub(crate) fn write(&self, log: &ExtentLog, sink: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match self.form {
            IndexForm::Compact => {
                sink(&self.header().encode())?;
                let complete = self.write_packs(log, sink)?;
                debug_assert!(complete);
                Ok(())
            }
            IndexForm::Full => {
                sink(&self.header().encode())?;
                sink(&[0; 8])?;
                self.write_full(log, sink)
            }
            IndexForm::Extents => self.write_extents(log, sink),
        }
    }

    fn header(&self) -> MapHeader {
        let mut header = MapHeader { h_fragmentoff: 0, h_advise: 0, h_algorithmtype: self.algorithm, h_clusterbits: 0 };
        if self.style.big {
            header.h_advise |= advise::BIG_PCLUSTER_1 | advise::BIG_PCLUSTER_2;
        }
        match self.end {
            Some(BuiltPlace::Inline(bytes)) => {
                header.h_advise |= advise::INLINE_PCLUSTER;
                header.h_fragmentoff = bytes << 16;
            }
            Some(BuiltPlace::Fragment(offset)) => {
                header.h_advise |= advise::FRAGMENT_PCLUSTER;
                header.h_fragmentoff = offset as u32;
            }
            _ => {}
        }
        if self.form == IndexForm::Compact && self.has_two_bytes() {
            header.h_advise |= advise::COMPACTED_2B;
        }
        header
    }

    /// Returns the high half of the offset of a fragment, which only full indexes can hold.
    fn fragment_high(&self) -> u32 {
        match self.end {
            Some(BuiltPlace::Fragment(offset)) => (offset >> 32) as u32,
            _ => 0,
        }
    }

    fn has_two_bytes(&self) -> bool {
        self.style.block_bits <= 12
    }

    /// Returns the number of logical clusters.
    fn lclusters(&self) -> u64 {
        self.size.div_ceil(1 << self.style.block_bits)
    }

    fn layout(&self) -> CompactLayout {
        CompactLayout::new(self.header_at + MapHeader::SIZE as u64, self.lclusters(), self.has_two_bytes())
    }

    fn write_full(&self, log: &ExtentLog, sink: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let fragment_high = self.fragment_high();
        self.each_entry(log, |entry| {
            let (kind, clusterofs, word) = match entry {
                Entry::NonHead { back, ahead, cblks } => {
                    (LclusterType::NonHead, 0, back_or_blocks(back, cblks) | u32::from(ahead) << 16)
                }
                Entry::Head { kind, clusterofs, blkaddr: NULL_ADDR } => (kind, clusterofs, fragment_high),
                Entry::Head { kind, clusterofs, blkaddr } => (kind, clusterofs, blkaddr),
            };
            sink(&FullIndex { di_advise: kind as u16, di_clusterofs: clusterofs, di_u: word }.encode())
        })
    }

    fn record_bytes(&self) -> usize {
        if self.size > u64::from(u32::MAX) { EncodedExtent::SIZE } else { EncodedExtent::SIZE / 2 }
    }

    /// Returns the offset of the first encoded extent from the map header.
    fn records_at(&self) -> u64 {
        let header_end = self.header_at + ExtentsHeader::SIZE as u64;
        align(header_end, self.record_bytes() as u64) - self.header_at
    }

    fn write_extents(&self, log: &ExtentLog, sink: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let record_bytes = self.record_bytes();
        let mut h_advise = advise::EXTENTS | ((record_bytes / 4).ilog2() as u16) << advise::EXTENT_RECORD_SHIFT;
        if let Some(BuiltPlace::Fragment(_)) = self.end {
            h_advise |= advise::FRAGMENT_PCLUSTER;
        }
        let count = self.extents.end - self.extents.start;
        let header = ExtentsHeader { h_extents_lo: count as u32, h_advise, h_extents_hi: (count >> 32) as u16 };
        sink(&header.encode())?;
        sink(&[0; EncodedExtent::SIZE][..self.records_at() as usize - ExtentsHeader::SIZE])?;
        let mut start = 0u64;
        log.each(self.extents.clone(), |extent| {
            let (plen, pstart) = match extent.place {
                BuiltPlace::Blocks { blkaddr, blocks } => {
                    let format = if extent.compressed { u32::from(self.algorithm) + 1 } else { 0 };
                    let plen = blocks << self.style.block_bits | format << EXTENT_FORMAT_SHIFT;
                    (plen, u64::from(blkaddr) << self.style.block_bits)
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
            start += match extent.place {
                BuiltPlace::Hole(len) => len,
                _ => extent.len.into(),
            };
            sink(&record.encode()[..record_bytes])
        })?;
        debug_assert_eq!(start, self.size);
        Ok(())
    }

    /// Calls `each` with the entry of each logical cluster, in order.
    fn each_entry(&self, log: &ExtentLog, mut each: impl FnMut(Entry) -> Result<()>) -> Result<()> {
        let in_cluster = |offset: u64| (offset & ((1 << self.style.block_bits) - 1)) as u16;
        let mut run = |head: Head, next: u64| {
            let Head { lcn, entry, blocks } = head;
            debug_assert!(lcn < next);
            each(entry)?;
            (lcn + 1..next).try_for_each(|at| {
                each(Entry::NonHead {
                    back: (at - lcn).try_into().unwrap_or(u16::MAX),
                    ahead: (next - at).try_into().unwrap_or(u16::MAX),
                    cblks: if self.style.big && at == lcn + 1 { blocks as u16 } else { 0 },
                })
            })
        };
        let (mut start, mut last) = (0, None);
        log.each(self.extents.clone(), |extent| {
            let lcn = start >> self.style.block_bits;
            let (blkaddr, blocks) = match extent.place {
                BuiltPlace::Blocks { blkaddr, blocks } => (blkaddr, blocks),
                BuiltPlace::Inline(_) | BuiltPlace::Fragment(_) | BuiltPlace::Hole(_) => (NULL_ADDR, 1),
            };
            let kind = if extent.compressed { LclusterType::Head1 } else { LclusterType::Plain };
            let entry = Entry::Head { kind, clusterofs: in_cluster(start), blkaddr };
            start += u64::from(extent.len);
            match last.replace(Head { lcn, entry, blocks }) {
                Some(before) => run(before, lcn),
                None => Ok(()),
            }
        })?;
        debug_assert_eq!(start, self.size);
        let Some(last) = last else { return Ok(()) };
        let total = self.lclusters();
        // If no extent starts in the last cluster, an empty plain head marks the end of the file.
        let has_end = in_cluster(self.size) != 0 && last.lcn + 1 < total;
        run(last, total - u64::from(has_end))?;
        if has_end {
            let clusterofs = in_cluster(self.size);
            each(Entry::Head { kind: LclusterType::Plain, clusterofs, blkaddr: NULL_ADDR })?;
        }
        Ok(())
    }

    /// Calls `sink` with all packs, or with those before the first that cannot express the addresses of
    /// its heads. Returns whether that was all.
    fn write_packs(&self, log: &ExtentLog, sink: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<bool> {
        let layout = self.layout();
        let four = PackFormat::four_bytes(self.style.block_bits);
        let two = PackFormat::two_bytes(self.style.block_bits);
        let mut parts = [(layout.first, four), (layout.middle, two), (layout.last, four)].into_iter();
        let (mut left, mut format) = (0, four);
        let (mut pending, mut expressed) = (Vec::with_capacity(two.count), true);
        self.each_entry(log, |entry| {
            while left == 0
                && let Some(next) = parts.next()
            {
                (left, format) = next;
            }
            pending.push(entry);
            left -= 1;
            if left == 0 || pending.len() == format.count {
                let mut pack = [0; 32];
                let pack = &mut pack[..format.bytes];
                expressed &= self.style.pack(&pending, format, pack).is_some();
                pending.clear();
                if expressed {
                    return sink(pack);
                }
            }
            Ok(())
        })?;
        Ok(expressed)
    }
}

/// The head of the extent whose entries come next.
struct Head {
    lcn: u64,
    entry: Entry,
    blocks: u32,
}

impl IndexStyle {
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

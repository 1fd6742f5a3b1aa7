//! Maps an offset in a compressed file to its extent.
//!
//! A file is divided into logical clusters of one block. Each has an index that says whether an
//! extent starts in it and where; if none does, it says how far back the covering extent starts. At
//! most one extent starts in a cluster, so an extent runs from its head to the next head or to the
//! end of the file.
//!
//! ```text
//! head  := the nearest cluster at or before the offset in which an extent starts at or before it
//! end   := the start of the extent in the next head, or the end of the file
//! where := the block address of the head; its length is 1 block, or is given by the next cluster
//! ```
//!
//! Distances in the image only say how far to step back. Every step goes back, and never farther
//! than the longest extent. The end is found by scanning. So no image can cause an endless loop or
//! map a byte twice.

use std::ops::Range;

use pagefold_codec::cluster::ClusterFormat;

use super::devices::Spot;
use super::image::Image;
use super::inode::Inode;
use super::zextents::{ExtentCursor, Extents, NOT_LOADED};
use crate::cache::{Kept, KeptWindows};
use crate::error::{Error, Result};
use crate::format::{
    CompactLayout, DataLayout, Extent, ExtentsHeader, FRAGMENT_INODE, FullIndex, LI_CBLKCNT, LI_PARTIAL_REF, Lcluster,
    LclusterType, MAX_EXTENT_BYTES, MAX_PCLUSTER_BYTES, MapHeader, PackFormat, Place, advise, align, incompat,
};

/// The number of logical clusters that are decoded and cached together.
pub(crate) const WINDOW: u64 = 1024;
/// The overhead of a cached window in bytes, in addition to its indexes.
const KEPT_BYTES: usize = 128;

/// The mapping of a compressed file.
#[derive(Debug)]
pub(crate) struct CompressedMap {
    nid: u64,
    size: u64,
    bits: u32,
    advise: u16,
    formats: [Option<ClusterFormat>; 2],
    /// The image offset of the first index.
    index_start: u64,
    /// The image offset of the data after the last index: inline data.
    index_end: u64,
    total: u64,
    /// Used instead of indexes.
    extents: Option<Box<Extents>>,
    compact: Option<CompactLayout>,
    idata_len: u32,
    fragment_offset: u64,
    whole_fragment: bool,
    /// The logical cluster in which the last extent starts, if that extent is inline or a fragment.
    tail_head: Option<u64>,
    kept: KeptWindows<Lcluster>,
}

/// The last window of indexes used.
#[derive(Default)]
pub(crate) struct Cursor {
    window: Option<(u64, Kept<Box<[Lcluster]>>)>,
    extents: ExtentCursor,
    /// Whether to fail instead of reading indexes.
    loaded_only: bool,
}

impl Cursor {
    /// Creates a cursor that does not wait for storage: an extent whose indexes are neither in memory
    /// nor at hand is an error.
    pub(super) fn of_loaded() -> Self {
        Self { loaded_only: true, extents: ExtentCursor::of_loaded(), ..Self::default() }
    }
}

impl CompressedMap {
    pub(crate) fn open(image: &Image, inode: &Inode) -> Result<Self> {
        let superblock = image.superblock();
        let at = align(inode.xattr_end, 8);
        let mut bytes = [0; MapHeader::SIZE];
        image.read_meta(&mut bytes, at)?;
        let header = MapHeader::decode(&bytes);
        let bits = superblock.blkszbits;
        let compact = inode.layout == DataLayout::CompressedCompact;
        let mut map = Self {
            nid: inode.nid,
            size: inode.size,
            bits,
            advise: header.h_advise,
            formats: [
                superblock.algorithm(header.h_algorithmtype & 15),
                superblock.algorithm(header.h_algorithmtype >> 4),
            ],
            index_start: at + MapHeader::SIZE as u64,
            index_end: 0,
            total: inode.size.div_ceil(1 << bits),
            extents: None,
            compact: None,
            idata_len: 0,
            fragment_offset: 0,
            whole_fragment: false,
            tail_head: None,
            kept: KeptWindows::new(0, image.kept_indexes()),
        };
        let fragments =
            superblock.has(incompat::FRAGMENTS) && superblock.packed_nid.is_some_and(|nid| nid != inode.nid);
        if header.h_clusterbits & FRAGMENT_INODE != 0 {
            if !fragments {
                return Error::corrupt("file is a fragment, but there is no packed inode for it", at);
            }
            map.fragment_offset = u64::from_le_bytes(bytes) & !(1 << 63);
            map.whole_fragment = true;
            return Ok(map);
        }
        if header.h_advise & !advise::ALL != 0 {
            return Err(Error::Unsupported(format!("map advice {:#x} of nid {}", header.h_advise, inode.nid)));
        }
        if map.has(advise::FRAGMENT_PCLUSTER) && !fragments {
            return Error::corrupt("file ends in a fragment, but there is no packed inode for it", at);
        }
        if !compact && map.has(advise::EXTENTS) {
            let extents = Extents::open(image, inode.size, ExtentsHeader::decode(&bytes), map.index_start)?;
            map.index_end = extents.records_end();
            map.extents = Some(Box::new(extents));
            return Ok(map);
        }
        if header.h_clusterbits & 15 != 0 {
            return Err(Error::Unsupported(format!("logical clusters larger than blocks (nid {})", inode.nid)));
        }
        let big = (map.has(advise::BIG_PCLUSTER_1), map.has(advise::BIG_PCLUSTER_2));
        if (big.0 || big.1) && !superblock.has(incompat::COMPR_CFGS) {
            return Error::corrupt("file has big clusters, but the image does not declare them", at);
        }
        if compact && big.0 != big.1 {
            return Error::corrupt("compacted indexes with big clusters for one algorithm only", at);
        }
        if compact && bits > 14 {
            return Error::corrupt("compacted indexes of blocks above 16 KiB", at);
        }
        if map.has(advise::COMPACTED_2B) && bits > 12 {
            return Error::corrupt("2-byte indexes of blocks above 4 KiB", at);
        }
        let index_bytes = if compact {
            let layout = CompactLayout::new(map.index_start, map.total, map.has(advise::COMPACTED_2B));
            map.compact = Some(layout);
            layout.bytes()
        } else {
            map.index_start += 8;
            map.total.saturating_mul(FullIndex::SIZE as u64)
        };
        if image.check_range(index_bytes, map.index_start).is_err() {
            return Error::corrupt("file's indexes end after the image", at);
        }
        map.index_end = map.index_start + index_bytes;
        map.kept = KeptWindows::new(map.total.div_ceil(WINDOW), image.kept_indexes());
        if map.has(advise::INLINE_PCLUSTER) {
            if !superblock.has(incompat::ZTAILPACKING) {
                return Error::corrupt("file has an inline cluster, but the image does not declare any", at);
            }
            map.idata_len = header.h_fragmentoff >> 16;
        }
        if map.has(advise::FRAGMENT_PCLUSTER) {
            if map.has(advise::INLINE_PCLUSTER) {
                return Error::corrupt("file ends both inline and in a fragment", at);
            }
            map.fragment_offset = u64::from(header.h_fragmentoff);
        }
        if map.size > 0 && map.has(advise::INLINE_PCLUSTER | advise::FRAGMENT_PCLUSTER) {
            let (head, index) = map.head(image, &mut Cursor::default(), map.size - 1)?;
            map.tail_head = Some(head);
            if !compact {
                map.fragment_offset |= u64::from(index.high) << 32;
            }
        }
        Ok(map)
    }

    /// Returns whether a cluster is inline, after the indexes.
    pub(crate) fn is_inline(&self, pa: u64) -> bool {
        self.idata_len > 0 && pa == self.index_end
    }

    /// Returns the image offset of the end of the indexes and inline data.
    pub(crate) fn record_end(&self) -> u64 {
        if self.whole_fragment { self.index_start } else { self.index_end + u64::from(self.idata_len) }
    }

    /// Returns whether part of the file is in the packed inode.
    pub(crate) fn has_fragment(&self) -> bool {
        self.whole_fragment || self.has(advise::FRAGMENT_PCLUSTER)
    }

    /// Returns the size in bytes of all indexes or extents once they are decoded.
    pub(crate) fn decoded_bytes(&self) -> u64 {
        match &self.extents {
            Some(extents) => extents.decoded_bytes(),
            None => self.total * size_of::<Lcluster>() as u64,
        }
    }

    /// Returns the image's range with the indexes of a range of the file, which is not empty, unless
    /// they are in memory or have to be searched for.
    pub(crate) fn index_place(&self, range: &Range<u64>) -> Option<Range<u64>> {
        if let Some(extents) = &self.extents {
            return extents.record_place(range);
        }
        let window = |offset: u64| (offset >> self.bits) / WINDOW;
        let (first, last) = (window(range.start), window(range.end - 1));
        if self.whole_fragment || (first..=last).all(|number| self.kept.loaded(number).is_some()) {
            return None;
        }
        let (first, end) = (first * WINDOW, ((last + 1) * WINDOW).min(self.total));
        Some(match self.compact {
            None => self.index_start + first * FullIndex::SIZE as u64..self.index_start + end * FullIndex::SIZE as u64,
            Some(layout) => {
                let (last, format, _) = self.pack(layout, end - 1);
                self.pack(layout, first).0..last + format.bytes as u64
            }
        })
    }

    /// Returns the length that all extents share, if the map states one.
    pub(crate) fn equal_extent_bytes(&self) -> Option<u64> {
        self.extents.as_ref()?.equal_bytes()
    }

    /// Returns the length of the part of the file whose indexes are read together.
    pub(crate) fn window_span_bytes(&self) -> u64 {
        WINDOW << self.bits
    }

    /// Returns whether extents may be holes.
    pub(crate) fn may_have_holes(&self) -> bool {
        self.extents.is_some()
    }

    fn has(&self, bits: u16) -> bool {
        self.advise & bits != 0
    }

    /// Returns the extent that contains the byte at `offset`, which must be less than the file's
    /// size.
    pub(crate) fn extent_at(&self, image: &Image, cursor: &mut Cursor, offset: u64) -> Result<Extent> {
        if self.whole_fragment {
            return Ok(Extent { start: 0, len: self.size, place: Place::Fragment { offset: self.fragment_offset } });
        }
        if let Some(extents) = &self.extents {
            return extents.extent_at(image, &mut cursor.extents, offset);
        }
        let (head, index) = self.head(image, cursor, offset)?;
        let start = (head << self.bits) + u64::from(index.low);
        let next = if head + 1 < self.total { Some(self.load(image, cursor, head + 1)?) } else { None };
        let end = match self.next_head(image, cursor, head)? {
            Some((lcn, index)) => ((lcn << self.bits) + u64::from(index.low)).min(self.size),
            None => self.size,
        };
        if offset < start || offset >= end {
            return self.corrupt("extents do not cover the file");
        }
        let len = end - start;
        let place = if self.tail_head == Some(head) {
            self.tail(index, len)?
        } else {
            let blocks = self.blocks(index.kind, next)?;
            let (pa, plen) = (u64::from(index.high) << self.bits, u64::from(blocks) << self.bits);
            if plen > MAX_PCLUSTER_BYTES {
                return self.corrupt("cluster is longer than 1 MiB");
            }
            if pa == 0 || image.spot(0, pa).and_then(|at| image.check_spot(plen, at)).is_err() {
                return self.corrupt("cluster lies outside the image");
            }
            self.place(index, pa, plen as u32, len)?
        };
        Ok(Extent { start, len, place })
    }

    fn tail(&self, index: Lcluster, len: u64) -> Result<Place> {
        if self.has(advise::FRAGMENT_PCLUSTER) {
            return Ok(Place::Fragment { offset: self.fragment_offset });
        }
        let in_block = self.index_end & ((1 << self.bits) - 1);
        if self.idata_len == 0 || in_block + u64::from(self.idata_len) > 1 << self.bits {
            return self.corrupt("inline cluster is empty or crosses a block boundary");
        }
        match self.place(index, self.index_end, self.idata_len, len)? {
            // Inline data is never interlaced.
            Place::Plain { pa, plen, .. } => Ok(Place::Plain { pa, plen, interlaced: false }),
            place => Ok(place),
        }
    }

    fn place(&self, index: Lcluster, pa: u64, plen: u32, len: u64) -> Result<Place> {
        let format = match index.kind {
            LclusterType::Plain | LclusterType::NonHead => {
                if len > u64::from(plen) {
                    return self.corrupt("plain extent is longer than its cluster");
                }
                return Ok(Place::Plain { pa, plen, interlaced: self.has(advise::INTERLACED_PCLUSTER) });
            }
            LclusterType::Head1 => self.formats[0],
            LclusterType::Head2 => self.formats[1],
        };
        let Some(format) = format else {
            return self.corrupt("extent has an algorithm that the image does not declare");
        };
        Ok(Place::Encoded { pa, plen, format, partial: index.partial })
    }

    fn blocks(&self, head: LclusterType, next: Option<Lcluster>) -> Result<u32> {
        let big = match head {
            LclusterType::Head1 => self.has(advise::BIG_PCLUSTER_1),
            _ => self.has(advise::BIG_PCLUSTER_2),
        };
        match next {
            Some(Lcluster { kind: LclusterType::NonHead, low: cblks, .. }) if big => {
                if cblks == 0 {
                    self.corrupt("big cluster has no block count")
                } else {
                    Ok(u32::from(cblks))
                }
            }
            _ => Ok(1),
        }
    }

    /// Returns the cluster in which the extent of the byte at `offset` starts.
    fn head(&self, image: &Image, cursor: &mut Cursor, offset: u64) -> Result<(u64, Lcluster)> {
        let from = offset >> self.bits;
        let mut lcn = from;
        let mut index = self.load(image, cursor, lcn)?;
        let in_cluster = (offset & ((1 << self.bits) - 1)) as u32;
        if index.kind != LclusterType::NonHead && u32::from(index.low) <= in_cluster {
            return Ok((lcn, index));
        }
        let mut back = if index.kind == LclusterType::NonHead { index.high } else { 1 };
        loop {
            lcn = match lcn.checked_sub(u64::from(back)) {
                Some(before) if before < lcn => before,
                _ => return self.corrupt("extent has no head"),
            };
            if (from - lcn) << self.bits > MAX_EXTENT_BYTES {
                return self.corrupt("extent is longer than 12 MiB");
            }
            index = self.load(image, cursor, lcn)?;
            if index.kind != LclusterType::NonHead {
                return Ok((lcn, index));
            }
            back = index.high;
        }
    }

    /// Returns the next head after `head`; `None` if `head` is the file's last.
    fn next_head(&self, image: &Image, cursor: &mut Cursor, head: u64) -> Result<Option<(u64, Lcluster)>> {
        // A head farther away would make an extent longer than the maximum.
        let reach = self.total.min(head + (MAX_EXTENT_BYTES >> self.bits) + 1);
        let mut lcn = head + 1;
        while lcn < reach {
            let window = self.window(image, cursor, lcn)?;
            let until = (window.len() as u64).min(reach - lcn / WINDOW * WINDOW);
            let rest = window.get((lcn % WINDOW) as usize..until as usize).unwrap_or_default();
            if let Some(found) = rest.iter().position(|index| index.kind != LclusterType::NonHead) {
                return Ok(Some((lcn + found as u64, rest[found])));
            }
            lcn = (lcn / WINDOW + 1) * WINDOW;
        }
        if reach < self.total { self.corrupt("extent is longer than 12 MiB") } else { Ok(None) }
    }

    fn load(&self, image: &Image, cursor: &mut Cursor, lcn: u64) -> Result<Lcluster> {
        match self.window(image, cursor, lcn)?.get((lcn % WINDOW) as usize) {
            Some(index) => Ok(*index),
            None => self.corrupt("extent starts after the file's end"),
        }
    }

    /// Returns the window that contains a logical cluster's index.
    fn window<'a>(&'a self, image: &Image, cursor: &'a mut Cursor, lcn: u64) -> Result<&'a [Lcluster]> {
        let number = lcn / WINDOW;
        let loaded_only = cursor.loaded_only;
        let read = || {
            self.read_window(number, |bytes, at| match loaded_only {
                false => image.read_meta(bytes, at),
                true if image.try_read_spot(bytes, Spot { device: 0, offset: at }) == bytes.len() => Ok(()),
                true => Err(NOT_LOADED),
            })
        };
        // No thread waits here for another that reads the same window.
        if let Some(window) = self.kept.get(number, self.window_bytes(number), read)? {
            return Ok(window);
        }
        if cursor.window.as_ref().is_none_or(|(have, _)| *have != number) {
            let (key, cost) = ((self.nid, number), self.window_bytes(number) + KEPT_BYTES);
            let window = match loaded_only {
                false => image.windows().get(key, cost, read)?,
                true => match image.windows().find(key) {
                    Some(window) => window,
                    None => image.windows().put(key, cost, read()?),
                },
            };
            cursor.window = Some((number, window));
        }
        Ok(cursor.window.as_ref().map_or(&[], |(_, window)| window))
    }

    fn window_bytes(&self, number: u64) -> usize {
        (self.total - number * WINDOW).min(WINDOW) as usize * size_of::<Lcluster>()
    }

    /// Decodes a window of indexes; `load` fills bytes from an image offset.
    fn read_window(&self, number: u64, load: impl Fn(&mut [u8], u64) -> Result<()>) -> Result<Box<[Lcluster]>> {
        let first = number * WINDOW;
        let end = (first + WINDOW).min(self.total);
        let mut indexes = Vec::with_capacity((end - first) as usize);
        match self.compact {
            None => {
                let mut bytes = vec![0; (end - first) as usize * FullIndex::SIZE];
                load(&mut bytes, self.index_start + first * FullIndex::SIZE as u64)?;
                for index in bytes.as_chunks().0 {
                    indexes.push(self.decode_full(FullIndex::decode(index))?);
                }
            }
            Some(layout) => {
                let (start, ..) = self.pack(layout, first);
                let (last, format, _) = self.pack(layout, end - 1);
                let mut bytes = vec![0; (last - start) as usize + format.bytes];
                load(&mut bytes, start)?;
                let mut lcn = first;
                while lcn < end {
                    let (at, format, pack_first) = self.pack(layout, lcn);
                    let at = (at - start) as usize;
                    let pack = self.decode_pack(&bytes[at..at + format.bytes], format)?;
                    let wanted = (lcn - pack_first) as usize..((end - pack_first) as usize).min(format.count);
                    indexes.extend_from_slice(&pack[wanted]);
                    lcn = pack_first + format.count as u64;
                }
            }
        }
        Ok(indexes.into())
    }

    /// Returns the pack that contains a compacted index: its image offset, its format and its first
    /// logical cluster.
    fn pack(&self, layout: CompactLayout, lcn: u64) -> (u64, PackFormat, u64) {
        let four = PackFormat::four_bytes(self.bits);
        let two = PackFormat::two_bytes(self.bits);
        let (part_start, part_first, format) = if lcn < layout.first {
            (self.index_start, 0, four)
        } else if lcn < layout.first + layout.middle {
            (self.index_start + layout.first * 4, layout.first, two)
        } else {
            (self.index_start + layout.first * 4 + layout.middle * 2, layout.first + layout.middle, four)
        };
        let number = (lcn - part_first) / format.count as u64;
        (part_start + number * format.bytes as u64, format, part_first + number * format.count as u64)
    }

    fn decode_full(&self, raw: FullIndex) -> Result<Lcluster> {
        let kind = LclusterType::decode(u32::from(raw.di_advise));
        if kind == LclusterType::NonHead {
            let delta = raw.di_u & 0xffff;
            let (back, cblks) = self.distance(delta)?;
            return Ok(Lcluster::non_head(back, cblks));
        }
        if u32::from(raw.di_clusterofs) >= 1 << self.bits {
            return self.corrupt("extent starts outside its logical cluster");
        }
        let partial = raw.di_advise & LI_PARTIAL_REF != 0;
        Ok(Lcluster { kind, partial, low: raw.di_clusterofs, high: raw.di_u })
    }

    fn distance(&self, low: u32) -> Result<(u32, u16)> {
        if low & LI_CBLKCNT == 0 {
            return Ok((low, 0));
        }
        if !self.has(advise::BIG_PCLUSTER_1 | advise::BIG_PCLUSTER_2) {
            return self.corrupt("file without big clusters has a block count");
        }
        Ok((1, (low & (LI_CBLKCNT - 1)) as u16))
    }

    /// Decodes a pack from front to back. The block addresses of its heads follow from its base:
    ///
    /// - Without big clusters, the base is the address before the first head's, and each head takes
    ///   one block.
    /// - With big clusters, it is the address of the first cluster whose size is given in the pack,
    ///   by a block count or by a head that is followed by a head.
    ///
    /// The last index of a pack, unless it is a block count, stores the distance to the next head
    /// instead of the distance back. The distance back is one more than that of the previous index.
    fn decode_pack(&self, bytes: &[u8], format: PackFormat) -> Result<[Lcluster; 16]> {
        let big = self.has(advise::BIG_PCLUSTER_1 | advise::BIG_PCLUSTER_2);
        let mut pack = [Lcluster::EMPTY; 16];
        let mut next = if big { format.base(bytes) } else { format.base(bytes).wrapping_add(1) };
        for index in 0..format.count {
            let (kind, low) = format.get(bytes, index);
            if kind == LclusterType::NonHead {
                let (mut back, cblks) = self.distance(low)?;
                if cblks > 0 {
                    next = next.wrapping_add(u32::from(cblks));
                } else if index + 1 == format.count {
                    let before = pack[index - 1];
                    back = if before.kind == LclusterType::NonHead { before.high + 1 } else { 1 };
                }
                pack[index] = Lcluster::non_head(back, cblks);
                continue;
            }
            if low >= 1 << self.bits {
                return self.corrupt("extent starts outside its logical cluster");
            }
            pack[index] = Lcluster { kind, partial: false, low: low as u16, high: next };
            let sized_after = big
                && index + 1 < format.count
                && matches!(format.get(bytes, index + 1), (LclusterType::NonHead, low) if low & LI_CBLKCNT != 0);
            if !sized_after {
                next = next.wrapping_add(1);
            }
        }
        Ok(pack)
    }

    fn corrupt<T>(&self, what: &'static str) -> Result<T> {
        Error::corrupt(what, self.index_start)
    }
}

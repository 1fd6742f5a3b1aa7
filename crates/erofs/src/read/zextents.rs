//! Encoded extents: maps an offset in a compressed file to its extent, by a list of extents instead
//! of indexes.
//!
//! ```text
//! records of  4 bytes:  | plen |             all extents have one length; clusters are contiguous
//!                                            from the address that precedes the records
//!             8 bytes:  | plen | pstart |    all extents have one length
//!            16 bytes:  | plen | pstart : 8 | lstart |
//!            32 bytes:  | plen | pstart : 8 | lstart : 8 | reserved : 12 |
//!
//! record := the last one that starts at or before the offset
//! end    := the start of the next, or the end of the file
//! ```
//!
//! Records are decoded a window at a time, including the first record of the next window, which
//! marks the end of the window's last extent. Each window must ascend. Order across windows is not
//! validated: a search in unordered windows still terminates, and its result is checked against the
//! offset.

use std::ops::Range;
use std::sync::OnceLock;

use super::image::Image;
use crate::cache::KeptWindows;
use crate::error::{Error, Result};
use crate::format::{
    EXTENT_FORMAT_SHIFT, EXTENT_PARTIAL, EXTENT_PLEN_MASK, EncodedExtent, Extent, ExtentsHeader, MAX_EXTENT_BYTES,
    MAX_PCLUSTER_BYTES, Place, advise, align,
};

/// The error of a cursor that would have to wait but must not. It is never shown to users.
pub(super) const NOT_LOADED: Error = Error::NotA("loaded index");

/// The number of extents that are decoded and cached together.
const WINDOW: u64 = 1024;
/// The windows that are read together to add up the lengths of clusters: 256 KiB of records.
const WINDOWS_SUMMED: u64 = 64;

/// An extent, as its record describes it.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Offset in the file.
    start: u64,
    /// Offset of its cluster, in bytes.
    pa: u64,
    plen: u32,
}

/// The records of a window, and the first record of the next.
type Window = Box<[Record]>;

/// The extents of one file.
#[derive(Debug)]
pub(crate) struct Extents {
    size: u64,
    /// The image offset of the first record.
    start: u64,
    record_bytes: u64,
    count: u64,
    /// If all extents have one length: its log2.
    bits: Option<u32>,
    /// If all clusters are contiguous: the offset of the first, then that of each window's first
    /// cluster, computed on first use.
    first_pa: Option<u64>,
    window_pas: OnceLock<Box<[u64]>>,
    interlaced: bool,
    /// The last extent is in the packed inode.
    fragment: bool,
    kept: KeptWindows<Record>,
}

/// The last window used, unless the file keeps it.
#[derive(Default)]
pub(crate) struct ExtentCursor {
    number: u64,
    window: Option<(u64, Window)>,
    /// Whether to fail instead of reading records.
    loaded_only: bool,
}

impl ExtentCursor {
    /// Creates a cursor that does not wait for storage.
    pub(super) fn of_loaded() -> Self {
        Self { loaded_only: true, ..Self::default() }
    }
}

impl Extents {
    /// Opens the extents of a file of `size` bytes whose map header ends at `header_end`.
    pub(crate) fn open(image: &Image, size: u64, header: ExtentsHeader, header_end: u64) -> Result<Self> {
        let corrupt = |what| Error::corrupt(what, header_end);
        if header.h_advise & advise::INLINE_PCLUSTER != 0 {
            return corrupt("file has encoded extents and an inline cluster");
        }
        let record_bytes = 4 << (header.h_advise >> advise::EXTENT_RECORD_SHIFT & advise::EXTENT_RECORD_MASK);
        let mut start = align(header_end, record_bytes);
        let bits = (record_bytes <= 8)
            .then_some(image.superblock().blkszbits + u32::from(header.h_extents_hi.to_le_bytes()[1] & 15));
        let count = match bits {
            Some(bits) => size.div_ceil(1 << bits),
            None => u64::from(header.h_extents_hi) << 32 | u64::from(header.h_extents_lo),
        };
        if count > size {
            return corrupt("file has more extents than bytes");
        }
        let mut first_pa = None;
        if record_bytes == 4 {
            let mut bytes = [0; 8];
            image.read_near(&mut bytes, start)?;
            first_pa = Some(u64::from_le_bytes(bytes));
            start += 8;
        }
        match count.checked_mul(record_bytes) {
            Some(len) if image.check_range(len, start).is_ok() => {}
            _ => return corrupt("file's extents end after the image"),
        }
        Ok(Self {
            size,
            start,
            record_bytes,
            count,
            bits,
            first_pa,
            window_pas: OnceLock::new(),
            interlaced: header.h_advise & advise::INTERLACED_PCLUSTER != 0,
            fragment: header.h_advise & advise::FRAGMENT_PCLUSTER != 0,
            kept: KeptWindows::new(count.div_ceil(WINDOW), image.kept_indexes()),
        })
    }

    /// Returns the image offset of the end of the records.
    pub(crate) fn records_end(&self) -> u64 {
        self.start + self.count * self.record_bytes
    }

    /// Returns the size in bytes of all records once they are decoded.
    pub(crate) fn decoded_bytes(&self) -> u64 {
        self.count * size_of::<Record>() as u64
    }

    /// Like [`CompressedMap::index_place`](super::zmap::CompressedMap::index_place).
    pub(crate) fn record_place(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let bits = self.bits?;
        let (first, last) = ((range.start >> bits) / WINDOW, ((range.end - 1) >> bits) / WINDOW);
        if (first..=last).all(|number| self.kept.loaded(number).is_some()) {
            return None;
        }
        let end = ((last + 1) * WINDOW).min(self.count);
        Some(self.start + first * WINDOW * self.record_bytes..self.start + end * self.record_bytes)
    }

    /// Returns the length that all extents share, if they share one.
    pub(crate) fn equal_bytes(&self) -> Option<u64> {
        self.bits.map(|bits| 1 << bits)
    }

    /// Returns the extent that contains the byte at `offset`, which must be less than the file's
    /// size.
    pub(crate) fn extent_at(&self, image: &Image, cursor: &mut ExtentCursor, offset: u64) -> Result<Extent> {
        let number = match self.bits {
            Some(bits) => (offset >> bits) / WINDOW,
            None => self.find_window(image, cursor, offset)?,
        };
        let window = self.window(image, cursor, number)?;
        let after = window.partition_point(|record| record.start <= offset);
        if after as u64 > WINDOW {
            return self.corrupt("file's extents are not in order");
        }
        let end = window.get(after).map_or(self.size, |next| next.start);
        let Some(record) = after.checked_sub(1).map(|found| window[found]) else {
            if number > 0 {
                return self.corrupt("file's extents are not in order");
            }
            // A hole precedes the first extent.
            return Ok(Extent { start: 0, len: end, place: Place::Hole });
        };
        let len = end - record.start;
        let is_last = number * WINDOW + after as u64 == self.count;
        Ok(Extent { start: record.start, len, place: self.place(image, record, len, is_last)? })
    }

    fn place(&self, image: &Image, record: Record, len: u64, is_last: bool) -> Result<Place> {
        let Record { pa, plen: word, .. } = record;
        if self.fragment && is_last {
            if len > MAX_EXTENT_BYTES {
                return self.corrupt("extent is longer than 12 MiB");
            }
            let high = if self.record_bytes > 4 { pa << 32 } else { 0 };
            return Ok(Place::Fragment { offset: high | u64::from(word) });
        }
        let plen = word & EXTENT_PLEN_MASK;
        if plen == 0 {
            return Ok(Place::Hole);
        }
        if u64::from(plen) > MAX_PCLUSTER_BYTES {
            return self.corrupt("cluster is longer than 1 MiB");
        }
        if pa == 0 || image.spot(0, pa).and_then(|at| image.check_spot(plen.into(), at)).is_err() {
            return self.corrupt("cluster lies outside the image");
        }
        let Some(algorithm) = (word >> EXTENT_FORMAT_SHIFT).checked_sub(1) else {
            if len > u64::from(plen) {
                return self.corrupt("plain extent is longer than its cluster");
            }
            let in_blocks = (pa | u64::from(plen)) % image.superblock().block_bytes() == 0;
            return Ok(Place::Plain { pa, plen, interlaced: self.interlaced && in_blocks });
        };
        if len > MAX_EXTENT_BYTES {
            return self.corrupt("extent is longer than 12 MiB");
        }
        let Some(format) = image.superblock().algorithm(algorithm as u8) else {
            return self.corrupt("extent has an algorithm that the image does not declare");
        };
        Ok(Place::Encoded { pa, plen, format, partial: word & EXTENT_PARTIAL != 0 })
    }

    /// Returns the window with the last record that starts at or before `offset`; the first window
    /// if there is none.
    fn find_window(&self, image: &Image, cursor: &mut ExtentCursor, offset: u64) -> Result<u64> {
        let windows = self.count.div_ceil(WINDOW);
        if windows <= 1 {
            return Ok(0);
        }
        // Most readers continue where they were.
        let number = cursor.number;
        let window = self.window(image, cursor, number)?;
        let ends = window.get(WINDOW as usize).map_or(self.size, |next| next.start);
        if window.first().is_some_and(|first| first.start <= offset) && offset < ends {
            return Ok(number);
        }
        let (mut low, mut high) = (0, windows);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.window_start(image, cursor.loaded_only, middle)? <= offset { low = middle } else { high = middle }
        }
        cursor.number = low;
        Ok(low)
    }

    /// Returns the start in the file of a window's first extent.
    fn window_start(&self, image: &Image, loaded_only: bool, number: u64) -> Result<u64> {
        match self.kept.loaded(number).and_then(<[Record]>::first) {
            Some(first) => Ok(first.start),
            None if loaded_only => Err(NOT_LOADED),
            None => {
                let mut bytes = [0; EncodedExtent::SIZE];
                let at = self.start + number * WINDOW * self.record_bytes;
                image.read_near(&mut bytes[..self.record_bytes as usize], at)?;
                Ok(self.decode(&bytes, 0, 0).start)
            }
        }
    }

    fn window<'a>(&'a self, image: &Image, cursor: &'a mut ExtentCursor, number: u64) -> Result<&'a [Record]> {
        if cursor.loaded_only {
            return self.kept.loaded(number).ok_or(NOT_LOADED);
        }
        let bytes = self.in_window(number) as usize * size_of::<Record>();
        if let Some(window) = self.kept.get(number, bytes, || self.read_window(image, number))? {
            return Ok(window);
        }
        if cursor.window.as_ref().is_none_or(|(have, _)| *have != number) {
            cursor.window = Some((number, self.read_window(image, number)?));
        }
        Ok(cursor.window.as_ref().map_or(&[], |(_, window)| window))
    }

    /// Returns the number of records in a window, plus the first of the next.
    fn in_window(&self, number: u64) -> u64 {
        self.count.saturating_sub(number * WINDOW).min(WINDOW + 1)
    }

    fn read_window(&self, image: &Image, number: u64) -> Result<Window> {
        let first = number * WINDOW;
        let mut pa = self.window_pa(image, number)?;
        let mut window: Vec<Record> = Vec::with_capacity(self.in_window(number) as usize);
        self.read_records(image, first, self.in_window(number), |bytes| {
            let record = self.decode(bytes, first + window.len() as u64, pa);
            if record.start >= self.size || window.last().is_some_and(|last| last.start >= record.start) {
                return self.corrupt("file's extents are not in order");
            }
            pa = pa.wrapping_add(u64::from(record.plen & EXTENT_PLEN_MASK));
            window.push(record);
            Ok(())
        })?;
        Ok(window.into())
    }

    /// Calls `each` with `count` records, each padded to the longest size.
    fn read_records(
        &self,
        image: &Image,
        first: u64,
        count: u64,
        mut each: impl FnMut(&[u8; EncodedExtent::SIZE]) -> Result<()>,
    ) -> Result<()> {
        let mut bytes = vec![0; (count * self.record_bytes) as usize];
        image.read_meta(&mut bytes, self.start + first * self.record_bytes)?;
        let mut record = [0; EncodedExtent::SIZE];
        for bytes in bytes.chunks_exact(self.record_bytes as usize) {
            record[..bytes.len()].copy_from_slice(bytes);
            each(&record)?;
        }
        Ok(())
    }

    /// Decodes record `number` from its zero-padded bytes. `pa` is the cluster's offset if the
    /// record has none.
    fn decode(&self, bytes: &[u8; EncodedExtent::SIZE], number: u64, pa: u64) -> Record {
        let raw = EncodedExtent::decode(bytes);
        let wide = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        Record {
            start: self.bits.map_or(wide(raw.lstart_lo, raw.lstart_hi), |bits| number << bits),
            pa: self.first_pa.map_or(wide(raw.pstart_lo, raw.pstart_hi), |_| pa),
            plen: raw.plen,
        }
    }

    /// Returns the offset of a window's first cluster if it follows from preceding clusters. The
    /// offsets of all windows are computed together.
    fn window_pa(&self, image: &Image, number: u64) -> Result<u64> {
        let Some(first) = self.first_pa.filter(|_| number > 0) else { return Ok(self.first_pa.unwrap_or(0)) };
        if let Some(pas) = self.window_pas.get() {
            return Ok(pas.get(number as usize).copied().unwrap_or(0));
        }
        let mut pas = Vec::with_capacity(self.count.div_ceil(WINDOW) as usize);
        let (mut pa, mut record) = (first, 0u64);
        while record < self.count {
            let count = (self.count - record).min(WINDOW * WINDOWS_SUMMED);
            self.read_records(image, record, count, |bytes| {
                if record.is_multiple_of(WINDOW) {
                    pas.push(pa);
                }
                record += 1;
                pa = pa.wrapping_add(u64::from(EncodedExtent::decode(bytes).plen & EXTENT_PLEN_MASK));
                Ok(())
            })?;
        }
        let pas = self.window_pas.get_or_init(|| pas.into());
        Ok(pas.get(number as usize).copied().unwrap_or(0))
    }

    fn corrupt<T>(&self, what: &'static str) -> Result<T> {
        Error::corrupt(what, self.start)
    }
}

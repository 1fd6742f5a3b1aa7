//! Archive members with holes, which a map describes.
//!
//! ```text
//! GNU, type S    four entries in the header, 21 in each following block, while the previous says so
//! PAX 0.0        alternating records GNU.sparse.offset and .numbytes
//! PAX 0.1        one record GNU.sparse.map: comma-separated numbers
//! PAX 1.0        before the content, in whole blocks: the number of entries, then offset and length
//!                of each, one number per line; lines that begin with # are comments
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use super::holes::ReadContent;

/// The block size of an archive.
const BLOCK: u64 = 512;
/// The maximum length of a line of a map, with its newline.
const MAX_LINE_BYTES: u64 = 512;
/// The maximum size of a map in bytes.
const MAX_MAP_BYTES: u64 = 64 << 20;

/// PAX: the map of versions 0.0 and 0.1.
pub(crate) const MAP: &[u8] = b"GNU.sparse.map";
/// PAX: the name, since version 0.1.
pub(crate) const NAME: &[u8] = b"GNU.sparse.name";

/// A range of a content, and its location in the file that stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The offset in the content.
    pub at: u64,
    /// The length in bytes.
    pub len: u64,
    /// The offset in the file.
    pub source: u64,
}

impl Span {
    pub(crate) fn end(&self) -> u64 {
        self.at.saturating_add(self.len)
    }
}

/// Returns the spans that overlap a range.
pub(crate) fn overlapping(spans: &[Span], range: Range<u64>) -> impl Iterator<Item = &Span> {
    let first = spans.partition_point(|span| span.end() <= range.start);
    spans[first..].iter().take_while(move |span| span.at < range.end)
}

/// An archive member with holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sparse {
    /// The member's size, including holes.
    pub(crate) size: u64,
    /// The ranges that are not holes, in order.
    pub(crate) spans: Vec<Span>,
}

/// Reads `len` bytes into `bytes`, at `offset` of the content that consists of `spans` of `file`
/// and zeros between them.
pub(crate) fn read(
    file: &File,
    spans: &[Span],
    offset: u64,
    len: usize,
    bytes: &mut Vec<u8>,
) -> io::Result<ReadContent> {
    let end = offset + len as u64;
    let mut spans = overlapping(spans, offset..end).peekable();
    if spans.peek().is_none() {
        return Ok(ReadContent::Zeros);
    }
    bytes.clear();
    bytes.resize(len, 0);
    for span in spans {
        let (from, to) = (span.at.max(offset), span.end().min(end));
        if from < to {
            let target = &mut bytes[(from - offset) as usize..(to - offset) as usize];
            file.read_exact_at(target, span.source + (from - span.at))?;
        }
    }
    Ok(ReadContent::Bytes)
}

/// A map being read. The ranges are contiguous in the archive.
struct Map {
    size: u64,
    spans: Vec<Span>,
    /// The lowest offset in the content at which the next range may begin.
    at: u64,
    /// The offset of the next range in the archive, then the end of the member.
    source: u64,
    end: u64,
}

impl Map {
    fn new(size: u64, source: u64, stored: u64) -> Self {
        Self { size, spans: Vec::new(), at: 0, source, end: source.saturating_add(stored) }
    }

    fn add(&mut self, at: u64, len: u64) -> Result<(), &'static str> {
        if at < self.at {
            return Err("its sparse map is unsorted or has overlapping ranges");
        }
        let end = at.checked_add(len).filter(|end| *end <= self.size).ok_or("its sparse map exceeds its size")?;
        let source = self.source;
        let behind = source.checked_add(len).filter(|behind| *behind <= self.end);
        self.source = behind.ok_or("its sparse map describes more data than the archive contains")?;
        self.at = end;
        match self.spans.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.at + last.len == at => last.len += len,
            _ => self.spans.push(Span { at, len, source }),
        }
        Ok(())
    }

    fn end(self) -> Sparse {
        Sparse { size: self.size, spans: self.spans }
    }
}

const UNREADABLE: &str = "its sparse map cannot be read";

/// Reads the map of a member of GNU type S with `stored` bytes in the archive. Further blocks of
/// the map may start at `from`. Also returns where the member's bytes begin.
pub(crate) fn gnu(archive: &File, header: &Header, from: u64, stored: u64) -> Result<(Sparse, u64), &'static str> {
    let header = header.as_gnu().ok_or(UNREADABLE)?;
    let size = header.real_size().map_err(|_| UNREADABLE)?;
    let mut places = Vec::new();
    let mut take = |found: &[GnuSparseHeader]| {
        for place in found.iter().take_while(|place| !place.is_empty()) {
            let place = (place.offset().map_err(|_| UNREADABLE)?, place.length().map_err(|_| UNREADABLE)?);
            places.push(place);
        }
        Ok::<_, &str>(())
    };
    take(&header.sparse)?;
    let mut at = from;
    let mut more = header.is_extended();
    while more {
        let mut block = GnuExtSparseHeader::new();
        archive.read_exact_at(block.as_mut_bytes(), at).map_err(|_| UNREADABLE)?;
        at += BLOCK;
        if at - from > MAX_MAP_BYTES {
            return Err("its sparse map is longer than 64 MiB");
        }
        take(&block.sparse)?;
        more = block.is_extended();
    }
    let mut map = Map::new(size, at, stored);
    for (offset, len) in places {
        map.add(offset, len)?;
    }
    Ok((map.end(), at))
}

/// Reads the map in PAX records, for a member with `stored` bytes at `from` in the archive. Returns
/// `None` if there is no map.
pub(crate) fn pax(
    archive: &File,
    records: &BTreeMap<Vec<u8>, Vec<u8>>,
    from: u64,
    stored: u64,
) -> Result<Option<Sparse>, &'static str> {
    if !records.keys().any(|key| key.starts_with(b"GNU.sparse.")) {
        return Ok(None);
    }
    let record = |key: &str| records.get(key.as_bytes()).map(Vec::as_slice);
    let size = |key| record(key).and_then(number).ok_or("its sparse size cannot be read");
    match (record("GNU.sparse.major"), record("GNU.sparse.minor")) {
        (None, None) => {
            let mut map = Map::new(size("GNU.sparse.size")?, from, stored);
            let mut numbers = records.get(MAP).into_iter().flat_map(|map| map.split(|byte| *byte == b','));
            while let Some(at) = numbers.next() {
                let len = numbers.next().and_then(number);
                map.add(number(at).ok_or(UNREADABLE)?, len.ok_or(UNREADABLE)?)?;
            }
            Ok(Some(map.end()))
        }
        (Some(b"1"), Some(b"0")) => {
            let most = stored.min(MAX_MAP_BYTES);
            let mut lines =
                Lines { source: BufReader::new(At { archive, at: from }).take(most), line: Vec::new(), len: 0 };
            let count = lines.next()?;
            let mut places = Vec::new();
            for _ in 0..count {
                places.push((lines.next()?, lines.next()?));
            }
            let before = lines.len.next_multiple_of(BLOCK);
            let stored = stored.checked_sub(before).ok_or(UNREADABLE)?;
            let mut map = Map::new(size("GNU.sparse.realsize")?, from + before, stored);
            for (at, len) in places {
                map.add(at, len)?;
            }
            Ok(Some(map.end()))
        }
        _ => Err("unknown sparse format"),
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let digits = digits.iter().all(u8::is_ascii_digit).then_some(digits)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Numbers, one per line.
struct Lines<'a> {
    source: io::Take<BufReader<At<'a>>>,
    line: Vec<u8>,
    /// Bytes read so far.
    len: u64,
}

impl Lines<'_> {
    fn next(&mut self) -> Result<u64, &'static str> {
        loop {
            self.line.clear();
            let read = self.source.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut self.line);
            self.len += read.map_err(|_| UNREADABLE)? as u64;
            let line = self.line.strip_suffix(b"\n").ok_or(UNREADABLE)?;
            if !line.starts_with(b"#") {
                return number(line).ok_or(UNREADABLE);
            }
        }
    }
}

/// An archive, read from an offset on.
struct At<'a> {
    archive: &'a File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.archive.read_at(buf, self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(size: u64, stored: u64, places: &[(u64, u64)]) -> Result<Vec<Span>, &'static str> {
        let mut map = Map::new(size, 1000, stored);
        places.iter().try_for_each(|&(at, len)| map.add(at, len))?;
        Ok(map.end().spans)
    }

    #[test]
    fn places_follow_each_other() {
        let span = |at, len, source| Span { at, len, source };
        let spans = map(100, 30, &[(0, 0), (10, 10), (20, 5), (50, 15), (100, 0)]).unwrap();
        assert_eq!(spans, [span(10, 15, 1000), span(50, 15, 1015)]);
        assert_eq!(map(0, 0, &[]), Ok(vec![]));
        for (why, places) in [
            ("unsorted", &[(10, 10), (0, 5)][..]),
            ("unsorted", &[(10, 10), (19, 5)]),
            ("unsorted", &[(50, 0), (40, 0)]),
            ("exceeds its size", &[(95, 6)]),
            ("exceeds its size", &[(101, 0)]),
            ("exceeds its size", &[(10, u64::MAX)]),
            ("exceeds its size", &[(u64::MAX, u64::MAX)]),
            ("more data", &[(0, 20), (50, 11)]),
        ] {
            assert!(map(100, 30, places).unwrap_err().contains(why), "{places:?}");
        }
        let error = map(u64::MAX, u64::MAX, &[(0, u64::MAX)]).unwrap_err();
        assert!(error.contains("more data"), "{error}");
    }

    #[test]
    fn parts_are_read_with_zeros_between() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"abcdefgh", 0).unwrap();
        let spans = [Span { at: 2, len: 3, source: 0 }, Span { at: 7, len: 5, source: 3 }];
        let whole = b"\0\0abc\0\0defgh\0\0\0";
        for offset in 0..whole.len() {
            for len in 0..=whole.len() - offset {
                let expected = &whole[offset..offset + len];
                let mut bytes = vec![9; 4];
                match read(&file, &spans, offset as u64, len, &mut bytes).unwrap() {
                    ReadContent::Bytes => assert_eq!(bytes, expected),
                    ReadContent::Zeros => assert!(expected.iter().all(|byte| *byte == 0)),
                }
            }
        }
    }
}

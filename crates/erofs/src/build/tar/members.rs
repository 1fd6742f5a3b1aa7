//! The members of an archive, in order.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use tar::{EntryType, Header};

use super::number::Stated;
use crate::build::member::shown;
use crate::build::sparse::{self, Sparse};
use crate::error::{Error, Result};

/// The maximum size in bytes of a PAX header or long name.
const MAX_EXTENSION_BYTES: u64 = 8 << 20;
const BLOCK: u64 = 512;
/// A directory in GNU's incremental archives.
const INCREMENTAL_DIRECTORY: u8 = b'D';
/// The size in bytes of the front of a disk, which contains the signatures of file systems, volumes
/// and partitions.
const DISK_FRONT_BYTES: u64 = 1 << 20;
/// The sizes of members.
const SIZES: std::ops::RangeInclusive<i128> = 0..=i64::MAX as i128;

/// The type of a member that contains the archive's label.
pub(super) const LABEL: u8 = b'V';

/// The key prefix of unencoded xattrs in PAX headers.
pub(super) const XATTR_KEY: &[u8] = b"SCHILY.xattr.";
/// The key prefix of libarchive's copies: the name is URL-encoded, the value in base 64.
pub(super) const ENCODED_XATTR_KEY: &[u8] = b"LIBARCHIVE.xattr.";
const XATTR_KEYS: [&[u8]; 2] = [XATTR_KEY, ENCODED_XATTR_KEY];
/// PAX records by key.
pub(super) type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// A member of an archive, with preceding extension headers applied.
pub(super) struct Member {
    /// The offset of its header.
    pub(super) at: u64,
    pub(super) header: Header,
    pub(super) kind: EntryType,
    pub(super) records: Records,
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    /// The offset of its content.
    pub(super) offset: u64,
    /// The length of its content. A hard link may have content, too.
    pub(super) size: u64,
    /// The map of its content, if it has holes.
    pub(super) sparse: Option<Sparse>,
}

/// A header that describes the member after it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extension {
    Records,
    /// Records for all members that follow.
    Global,
    Path,
    Link,
}

impl Extension {
    fn of(kind: EntryType) -> Option<Self> {
        match kind {
            EntryType::XHeader => Some(Self::Records),
            // As Solaris writes them.
            kind if kind.as_byte() == b'X' => Some(Self::Records),
            EntryType::XGlobalHeader => Some(Self::Global),
            EntryType::GNULongName => Some(Self::Path),
            EntryType::GNULongLink => Some(Self::Link),
            _ => None,
        }
    }
}

/// The members of an archive.
pub(super) struct Members<'a> {
    archive: &'a File,
    /// The length in bytes.
    len: u64,
    at: u64,
    global: Records,
}

impl<'a> Members<'a> {
    pub(super) fn new(archive: &'a File) -> Result<Self> {
        let len = (&*archive).seek(SeekFrom::End(0));
        let len = len.map_err(Error::io("asking for the archive's length"))?;
        Ok(Self { archive, len, at: 0, global: Records::new() })
    }

    /// Returns the next member; `None` at the end of the archive.
    pub(super) fn next(&mut self) -> Result<Option<Member>> {
        let (mut records, mut path, mut link) = (self.global.clone(), None, None);
        let mut extended = false;
        loop {
            let at = self.at;
            let Some((header, offset)) = self.header()? else {
                let what = "the archive ends after an extension header";
                return if extended { Err(self.here(what)) } else { Ok(None) };
            };
            let kind = header.entry_type();
            let Some(extension) = Extension::of(kind) else {
                return self.member(at, header, offset, records, path, link).map(Some);
            };
            let name = path.clone().unwrap_or_else(|| header.path_bytes().into_owned());
            let named = |what: &str| source_error(&name, what);
            let size = Stated::Field(&header.as_old().size).within("size", SIZES).map_err(|what| named(&what))? as u64;
            self.pass(offset, size).map_err(named)?;
            if size > MAX_EXTENSION_BYTES {
                return Err(named("its extended header is longer than 8 MiB"));
            }
            let mut bytes = vec![0; size as usize];
            self.archive.read_exact_at(&mut bytes, offset).map_err(Error::io("reading the archive"))?;
            extended |= extension != Extension::Global;
            match extension {
                Extension::Records => parse_records(&bytes, &mut records).map_err(named)?,
                Extension::Global => {
                    parse_records(&bytes, &mut self.global).map_err(named)?;
                    records = self.global.clone();
                }
                Extension::Path | Extension::Link => {
                    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
                    *(if extension == Extension::Path { &mut path } else { &mut link }) = Some(text);
                }
            }
        }
    }

    /// Returns the member whose header is at `at` and whose content may begin at `offset`.
    fn member(
        &mut self,
        at: u64,
        header: Header,
        mut offset: u64,
        mut records: Records,
        path: Option<Vec<u8>>,
        link: Option<Vec<u8>>,
    ) -> Result<Member> {
        let recorded = records.remove(&b"path"[..]);
        let path = records.remove(sparse::NAME).or(recorded).or(path);
        let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        let own_link = || header.link_name_bytes().map(Cow::into_owned).unwrap_or_default();
        let link = records.remove(&b"linkpath"[..]).or(link).unwrap_or_else(own_link);
        let named = |what: &str| source_error(&path, what);
        let mut kind = header.entry_type();
        let mut is_file = matches!(kind, EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse);
        let size = || {
            let field = Stated::Field(&header.as_old().size);
            let size = records.get(&b"size"[..]).map_or(field, |value| Stated::Record(value));
            size.within("size", SIZES).map(|size| size as u64)
        };
        let size = if is_file && path.ends_with(b"/") {
            // Before ustar, only the name marked a directory.
            (kind, is_file) = (EntryType::Directory, false);
            size().ok().filter(|size| self.is_content(offset, *size)).unwrap_or(0)
        } else if kind == EntryType::Link {
            size().ok().filter(|size| self.is_content(offset, *size)).unwrap_or(0)
        } else if has_no_content(kind) {
            0
        } else {
            size().map_err(|what| named(&what))?
        };
        if kind.as_byte() == INCREMENTAL_DIRECTORY {
            // Its content is a list of the names in it.
            kind = EntryType::Directory;
        }
        let mut sparse = None;
        if kind == EntryType::GNUSparse {
            let (map, behind) = sparse::gnu(self.archive, &header, offset, size).map_err(named)?;
            (sparse, offset) = (Some(map), behind);
        }
        self.pass(offset, size).map_err(named)?;
        if is_file && sparse.is_none() {
            sparse = sparse::pax(self.archive, &records, offset, size).map_err(named)?;
        }
        Ok(Member { at, header, kind, records, path, link, offset, size, sparse })
    }

    /// Moves behind `size` bytes of content at `offset`.
    fn pass(&mut self, offset: u64, size: u64) -> std::result::Result<(), &'static str> {
        let next = offset.checked_add(size).and_then(|end| end.checked_next_multiple_of(BLOCK));
        let next = next.ok_or("its size exceeds the maximum")?;
        if next > self.len {
            return Err("the archive ends inside it");
        }
        self.at = next;
        Ok(())
    }

    /// Returns whether zeros end the archive, once there are no more members.
    pub(super) fn has_end(&self) -> bool {
        self.at < self.len
    }

    /// Returns whether the `size` bytes at `offset` are content of the member whose header precedes
    /// them, for kinds of members that have content in some archives only. In the others, the next
    /// header follows immediately, whatever size the header states.
    fn is_content(&self, offset: u64, size: u64) -> bool {
        if size == 0 || self.is_header(offset) {
            return false;
        }
        let Some(end) = offset.checked_add(size) else { return false };
        let Some(next) = end.checked_next_multiple_of(BLOCK) else { return false };
        // Zeros may be the archive's end instead of the content.
        let is_zero = |at| self.block(at).is_none_or(|block| block == [0; BLOCK as usize]);
        end <= self.len && (self.is_header(next) || is_zero(next) && !is_zero(offset))
    }

    fn is_header(&self, at: u64) -> bool {
        self.block(at).is_some_and(|block| header_of(&block).is_some())
    }

    /// Returns the block at `at`; `None` if the archive ends before its end.
    fn block(&self, at: u64) -> Option<[u8; BLOCK as usize]> {
        let mut bytes = [0; BLOCK as usize];
        self.archive.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
    }

    /// Returns the header at the current position and the offset of its content; `None` at the end
    /// of the archive.
    fn header(&self) -> Result<Option<(Header, u64)>> {
        if self.len == 0 {
            return Err(self.here("an archive is never empty"));
        }
        if self.at >= self.len {
            return Ok(None);
        }
        let mut bytes = [0; BLOCK as usize];
        self.archive.read_exact_at(&mut bytes, self.at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof if self.at == 0 => {
                self.here("the archive ends inside the first header; is this a tar archive?")
            }
            io::ErrorKind::UnexpectedEof => self.here("the archive ends inside a header"),
            _ => Error::io("reading the archive")(error),
        })?;
        if bytes == [0; BLOCK as usize] {
            self.refuse_data_behind_zeros()?;
            return Ok(None);
        }
        match header_of(&bytes) {
            Some(header) => Ok(Some((header, self.at + BLOCK))),
            None => Err(self.here("the header's checksum does not match; is this a tar archive?")),
        }
    }

    fn here(&self, what: &str) -> Error {
        source_error(format!("byte {}", self.at).as_bytes(), what)
    }

    /// Rejects data after the final zeros. Disks begin with zeros and would yield an empty image.
    /// In concatenated archives, zeros separate the parts, and all but the first would be ignored.
    fn refuse_data_behind_zeros(&self) -> Result<()> {
        let mut behind = vec![0; (self.len - self.at).min(DISK_FRONT_BYTES) as usize];
        self.archive.read_exact_at(&mut behind, self.at).map_err(Error::io("reading the archive"))?;
        let Some(first) = behind.iter().position(|byte| *byte != 0) else { return Ok(()) };
        let (blocks, _) = behind.as_chunks();
        let is_header = blocks.get(first / BLOCK as usize).is_some_and(|block| header_of(block).is_some());
        let what = match self.at {
            0 => "data after leading zeros: not a tar archive",
            _ if is_header => "another archive begins after the end of the first; join them with tar --concatenate",
            _ => return Ok(()),
        };
        Err(source_error(format!("byte {}", self.at + first as u64).as_bytes(), what))
    }
}

/// Parses a header block; `None` if its checksum is wrong. Old archivers added the bytes as signed
/// numbers. Others wrote ustar headers with other versions than POSIX's; like GNU tar and bsdtar, this
/// reads them as ustar.
fn header_of(block: &[u8; BLOCK as usize]) -> Option<Header> {
    const SUM: std::ops::Range<usize> = 148..156;
    const MAGIC: std::ops::Range<usize> = 257..263;
    const VERSION: std::ops::Range<usize> = 263..265;
    // The sum treats its own eight bytes as spaces.
    let counted = block.iter().enumerate().map(|(at, byte)| if SUM.contains(&at) { b' ' } else { *byte });
    let (unsigned, signed): (u32, i32) = counted
        .fold((0, 0), |(unsigned, signed), byte| (unsigned + u32::from(byte), signed + i32::from(byte.cast_signed())));
    let sum = Stated::Field(&block[SUM]).within("sum", 0..=i128::from(u32::MAX)).ok()?;
    [i128::from(unsigned), i128::from(signed)].contains(&sum).then(|| {
        let mut header = Header::from_byte_slice(block).clone();
        if block[MAGIC] == *b"ustar\0" {
            header.as_mut_bytes()[VERSION].copy_from_slice(b"00");
        }
        header
    })
}

/// Returns whether no content follows such a member's header. Its size field is not a content size:
/// some archivers store the size of a directory or of a link's target there.
fn has_no_content(kind: EntryType) -> bool {
    use EntryType::{Block, Char, Directory, Fifo, Symlink};
    matches!(kind, Symlink | Char | Block | Directory | Fifo) || kind.as_byte() == LABEL
}

/// Adds PAX records of the form `LENGTH KEY=VALUE\n`. An empty value removes the key, unless it is
/// an xattr.
fn parse_records(mut bytes: &[u8], records: &mut Records) -> std::result::Result<(), &'static str> {
    while !bytes.is_empty() {
        let parsed = bytes.iter().position(|byte| *byte == b' ').and_then(|space| {
            let len: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
            let record = bytes.get(space + 1..len)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            Some((len, &record[..equals], &record[equals + 1..]))
        });
        let Some((len, key, value)) = parsed else {
            return Err("the PAX header cannot be read");
        };
        if [&b"GNU.sparse.offset"[..], b"GNU.sparse.numbytes"].contains(&key) {
            // Version 0.0 repeats these keys; 0.1 has the same numbers in one record.
            let map = records.entry(sparse::MAP.to_vec()).or_default();
            if !map.is_empty() {
                map.push(b',');
            }
            map.extend_from_slice(value);
        // An xattr may be empty, and tar writes it as an empty value.
        } else if value.is_empty() && !XATTR_KEYS.iter().any(|xattrs| key.starts_with(xattrs)) {
            records.remove(key);
        } else {
            records.insert(key.to_vec(), value.to_vec());
        }
        bytes = &bytes[len..];
    }
    Ok(())
}

/// Builds an error about the member at `path`.
pub(super) fn source_error(path: &[u8], what: &str) -> Error {
    Error::Source { path: shown(path), what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pax_records_are_taken_by_length() {
        let mut records = Records::new();
        parse_records(b"9 a=1\n2\n\n12 key=val\n\n", &mut records).unwrap();
        assert_eq!(records[&b"a"[..]], b"1\n2\n");
        assert_eq!(records[&b"key"[..]], b"val\n");
        for bad in [&b"99 a=1\n"[..], b"x a=1\n", b"6 a=11", b"5 a1\n", b"1 "] {
            assert!(parse_records(bad, &mut records).is_err());
        }
    }
}

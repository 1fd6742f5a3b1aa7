//! A tar archive becomes a tree.
//!
//! Members are read by position, one header of 512 bytes after the other: POSIX ustar, PAX records (by their lengths, since
//! values may hold any byte), GNU's long names and both's ways to leave holes out (`sparse.rs`).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use tar::{EntryType, Header};

use super::scan::ScanOptions;
use super::sparse::{self, Sparse};
use super::tree::{Content, Node, NodeId, NodeKind, Tree};
use crate::error::{Error, Result};
use crate::format::XATTR_PREFIXES;
use crate::xattr::Xattr;

/// Where PAX headers keep xattrs.
const XATTR_KEY: &[u8] = b"SCHILY.xattr.";
/// Where `tar --selinux` keeps a member's label, without the zero byte at its end.
const LABEL_KEY: &[u8] = b"RHT.security.selinux";
/// The longest PAX header or long name.
const MAX_EXTENSION_BYTES: u64 = 8 << 20;
const BLOCK: u64 = 512;
/// A directory in GNU's incremental archives.
const INCREMENTAL_DIRECTORY: u8 = b'D';
/// The name of the archive itself.
const LABEL: u8 = b'V';
/// Where file systems, volumes and partitions have what tells them.
const DISK_FRONT_BYTES: u64 = 1 << 20;

/// PAX records by key.
type Records = BTreeMap<Vec<u8>, Vec<u8>>;
/// Files that are left out, by path.
type LeftOut = HashMap<Vec<u8>, NodeId>;

/// A member of an archive, with what precedes it applied.
struct Member {
    header: Header,
    kind: EntryType,
    records: Records,
    path: Vec<u8>,
    link: Vec<u8>,
    /// Where its content is.
    offset: u64,
    size: u64,
    /// And which parts of it, if the archive has not all.
    sparse: Option<Sparse>,
}

/// The members of an archive.
struct Members<'a> {
    archive: &'a File,
    /// Its length.
    len: u64,
    at: u64,
    global: Records,
}

impl Members<'_> {
    fn next(&mut self) -> Result<Option<Member>> {
        let (mut records, mut path, mut link) = (self.global.clone(), None, None);
        let mut extended = false;
        loop {
            let Some((header, mut offset)) = self.header()? else {
                let what = "the archive ends before the member that a header is about";
                return if extended { Err(self.here(what)) } else { Ok(None) };
            };
            let name = path.clone().unwrap_or_else(|| header.path_bytes().into_owned());
            let number = |key: &[u8], own: Option<u64>| -> Result<u64> {
                let recorded =
                    records.get(key).map(|value| std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()));
                let number = recorded.unwrap_or(own);
                number.ok_or_else(|| source_error(&name, "a number in its header cannot be read"))
            };
            let mut kind = header.entry_type();
            let extension = matches!(
                kind,
                EntryType::XHeader | EntryType::XGlobalHeader | EntryType::GNULongName | EntryType::GNULongLink
            );
            let size = if extension {
                header.entry_size().map_err(Error::io("reading the archive"))?
            } else if has_no_content(kind) {
                0
            } else {
                number(b"size", in_field(&header.as_old().size, header.entry_size()))?
            };
            if kind.as_byte() == INCREMENTAL_DIRECTORY {
                // Its content is the names that were in it.
                kind = EntryType::Directory;
            }
            let named = |what| source_error(&name, what);
            let mut sparse = None;
            if kind == EntryType::GNUSparse {
                let (map, behind) = sparse::gnu(self.archive, &header, offset, size).map_err(named)?;
                (sparse, offset) = (Some(map), behind);
            }
            self.at = match offset.checked_add(size).and_then(|end| end.checked_next_multiple_of(BLOCK)) {
                Some(next) => next,
                None => return Err(source_error(&name, "it is longer than any file")),
            };
            if offset + size > self.len {
                return Err(source_error(&name, "the archive ends inside it"));
            }
            if !extension {
                let is_file = matches!(kind, EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse);
                if is_file && sparse.is_none() {
                    sparse = sparse::pax(self.archive, &records, offset, size).map_err(named)?;
                }
                let recorded = records.remove(&b"path"[..]);
                let path = records
                    .remove(sparse::NAME)
                    .or(recorded)
                    .or(path)
                    .unwrap_or_else(|| header.path_bytes().into_owned());
                let own_link = || header.link_name_bytes().map(Cow::into_owned).unwrap_or_default();
                let link = records.remove(&b"linkpath"[..]).or(link).unwrap_or_else(own_link);
                // Before ustar a directory was told by its name alone.
                let kind = if is_file && path.ends_with(b"/") { EntryType::Directory } else { kind };
                return Ok(Some(Member { header, kind, records, path, link, offset, size, sparse }));
            }
            if size > MAX_EXTENSION_BYTES {
                return Err(source_error(&name, "its extended header is longer than 8 MiB"));
            }
            let mut bytes = vec![0; size as usize];
            self.archive.read_exact_at(&mut bytes, offset).map_err(Error::io("reading the archive"))?;
            extended |= kind != EntryType::XGlobalHeader;
            match kind {
                EntryType::XHeader => parse_records(&bytes, &mut records)?,
                EntryType::XGlobalHeader => {
                    parse_records(&bytes, &mut self.global)?;
                    records = self.global.clone();
                }
                _ => {
                    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
                    *(if kind == EntryType::GNULongName { &mut path } else { &mut link }) = Some(text);
                }
            }
        }
    }

    /// The header at the current position and where its content starts; `None` at the archive's end.
    fn header(&self) -> Result<Option<(Header, u64)>> {
        if self.len == 0 {
            return Err(Error::Options("an archive is never empty".to_owned()));
        }
        if self.at >= self.len {
            return Ok(None);
        }
        let mut bytes = [0; BLOCK as usize];
        self.archive.read_exact_at(&mut bytes, self.at).map_err(|error| match error.kind() {
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

    /// An archive ends with zeros. Disks begin with them, and an image of nothing would be made of one; archives that were put one behind
    /// the other have them between, and all but the first would be left out.
    fn refuse_data_behind_zeros(&self) -> Result<()> {
        let mut behind = vec![0; (self.len - self.at).min(DISK_FRONT_BYTES) as usize];
        self.archive.read_exact_at(&mut behind, self.at).map_err(Error::io("reading the archive"))?;
        let Some(first) = behind.iter().position(|byte| *byte != 0) else { return Ok(()) };
        let (blocks, _) = behind.as_chunks();
        let is_header = blocks.get(first / BLOCK as usize).is_some_and(|block| header_of(block).is_some());
        let what = match self.at {
            0 => "data behind nothing but zeros: not a tar archive. A disk is packed from a file, not a pipe",
            _ if is_header => "another archive begins behind the end of the first; join them with tar --concatenate",
            _ => return Ok(()),
        };
        Err(source_error(format!("byte {}", self.at + first as u64).as_bytes(), what))
    }
}

/// The header that a block is, if its checksum is right.
fn header_of(block: &[u8; BLOCK as usize]) -> Option<Header> {
    // The sum counts its own eight bytes as spaces.
    let counted = |(at, byte): (usize, &u8)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) };
    let sum: u32 = block.iter().enumerate().map(counted).sum();
    let header = Header::from_byte_slice(block);
    (header.cksum().ok() == Some(sum)).then(|| header.clone())
}

/// Whether nothing follows such a member's header. A size in it is not of content: some archivers write that of a directory, of a link's target, or of
/// the file that a hard link is to.
fn has_no_content(kind: EntryType) -> bool {
    use EntryType::{Block, Char, Directory, Fifo, Link, Symlink};
    matches!(kind, Link | Symlink | Char | Block | Directory | Fifo) || kind.as_byte() == LABEL
}

/// A number that a header has in `field`. Where an archiver leaves one out, as npm does with owners, it is zero.
fn in_field(field: &[u8], parsed: io::Result<u64>) -> Option<u64> {
    if field.iter().all(|byte| matches!(byte, 0 | b' ')) { Some(0) } else { parsed.ok() }
}

/// Adds PAX records, `LENGTH KEY=VALUE\n` each; an empty value removes the key, unless it is an xattr's.
fn parse_records(mut bytes: &[u8], records: &mut Records) -> Result<()> {
    while !bytes.is_empty() {
        let parsed = bytes.iter().position(|byte| *byte == b' ').and_then(|space| {
            let len: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
            let record = bytes.get(space + 1..len)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            Some((len, &record[..equals], &record[equals + 1..]))
        });
        let Some((len, key, value)) = parsed else {
            return Err(Error::Options("a PAX header of the archive cannot be read".to_owned()));
        };
        if [&b"GNU.sparse.offset"[..], b"GNU.sparse.numbytes"].contains(&key) {
            // Version 0.0 has these again and again; 0.1 has the same numbers in one record.
            let map = records.entry(sparse::MAP.to_vec()).or_default();
            if !map.is_empty() {
                map.push(b',');
            }
            map.extend_from_slice(value);
        // An xattr may be empty, and tar writes it so.
        } else if value.is_empty() && !key.starts_with(XATTR_KEY) {
            records.remove(key);
        } else {
            records.insert(key.to_vec(), value.to_vec());
        }
        bytes = &bytes[len..];
    }
    Ok(())
}

impl Tree {
    /// The tree that a tar archive (POSIX, PAX, GNU) holds. `archive` stays open, since files' content is read from it
    /// when the image is built. A later member of a name replaces an earlier one; directories that no member describes
    /// belong to root and have mode 0755 and time 0.
    pub fn from_tar(archive: File, options: &ScanOptions) -> Result<Self> {
        let archive = Arc::new(archive);
        let len = (&*archive).seek(SeekFrom::End(0)).map_err(Error::io("asking for the archive's length"))?;
        let mut members = Members { archive: &archive, len, at: 0, global: Records::new() };
        let mut tree = Self::new(directory(options));
        let mut left_out = LeftOut::new();
        while let Some(member) = members.next()? {
            let names = names(&member.path)?;
            if names.is_empty() && member.kind.is_dir() {
                let root = tree.root();
                describe(&member, tree.node_mut(root))?;
                options.apply(tree.node_mut(root));
            } else if is_left_out(&names, options) {
                // What is wrong with it is no concern.
                let _ = leave_out(&mut tree, &archive, &mut left_out, &member, &names, options);
            } else if !names.is_empty() {
                add(&mut tree, &archive, &left_out, &member, &names, options)?;
            }
        }
        Ok(tree)
    }
}

/// Whether the path of `names`, or a directory on it, is left out.
fn is_left_out(names: &[&[u8]], options: &ScanOptions) -> bool {
    if options.excludes.is_empty() {
        return false;
    }
    let path = names.join(&b'/');
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    slashes.chain([path.len()]).any(|end| options.excludes(&path[..end]))
}

fn add(
    tree: &mut Tree,
    archive: &Arc<File>,
    left_out: &LeftOut,
    member: &Member,
    names: &[&[u8]],
    options: &ScanOptions,
) -> Result<()> {
    let Some((name, above)) = names.split_last() else { return Ok(()) };
    let parent = directories(tree, above, &member.path, options)?;
    if member.kind == EntryType::Link {
        let node = linked(tree, left_out, member)?;
        return tree.link(parent, name, node);
    }
    let Some(kind) = kind_of(archive, member)? else { return Ok(()) };
    // A directory that is described after its files keeps them.
    let known = tree.child(parent, name).filter(|node| matches!(tree.node(*node).kind, NodeKind::Directory(_)));
    let id = match (known, &kind) {
        (Some(node), NodeKind::Directory(_)) => node,
        _ => tree.add(parent, name, Node { kind, ..directory(options) })?,
    };
    describe(member, tree.node_mut(id))?;
    options.apply(tree.node_mut(id));
    Ok(())
}

/// Keeps a file that is left out without a name, since a name that stays may be a hard link to it.
fn leave_out(
    tree: &mut Tree,
    archive: &Arc<File>,
    left_out: &mut LeftOut,
    member: &Member,
    names: &[&[u8]],
    options: &ScanOptions,
) -> Result<()> {
    let id = if member.kind == EntryType::Link {
        linked(tree, left_out, member)?
    } else {
        let kind = kind_of(archive, member)?.filter(|kind| !matches!(kind, NodeKind::Directory(_)));
        let Some(kind) = kind else { return Ok(()) };
        let mut node = Node { kind, ..directory(options) };
        describe(member, &mut node)?;
        options.apply(&mut node);
        tree.add_unnamed(node)
    };
    left_out.insert(names.join(&b'/'), id);
    Ok(())
}

/// The file that a member is a hard link to.
fn linked(tree: &Tree, left_out: &LeftOut, member: &Member) -> Result<NodeId> {
    let target = names(&member.link)?;
    let found = target.iter().try_fold(tree.root(), |node, name| tree.child(node, name));
    let file = found.filter(|node| !matches!(tree.node(*node).kind, NodeKind::Directory(_)));
    file.or_else(|| left_out.get(&target.join(&b'/')).copied()).ok_or_else(|| {
        source_error(&member.path, "it is a hard link to a file that the archive does not have before it")
    })
}

/// What a member is that is no hard link; `None` for what is in no tree.
fn kind_of(archive: &Arc<File>, member: &Member) -> Result<Option<NodeKind>> {
    let refuse = |what: &str| Err(source_error(&member.path, what));
    let device = || match (member.header.device_major(), member.header.device_minor()) {
        (Ok(Some(major)), Ok(Some(minor))) => Ok((major, minor)),
        _ => Err(source_error(&member.path, "its device number cannot be read")),
    };
    Ok(Some(match member.kind {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => match &member.sparse {
            Some(Sparse { size, spans }) => {
                let content = Content::Spans(Arc::clone(archive), spans.as_slice().into());
                NodeKind::Regular { content, size: *size }
            }
            None => {
                NodeKind::Regular { content: Content::Range(Arc::clone(archive), member.offset), size: member.size }
            }
        },
        EntryType::Directory => NodeKind::Directory(BTreeMap::new()),
        EntryType::Symlink if (1..=4095).contains(&member.link.len()) => NodeKind::Symlink(member.link.clone()),
        EntryType::Symlink => return refuse("a symbolic link's target has 1 to 4095 bytes"),
        EntryType::Char => device().map(|(major, minor)| NodeKind::CharDevice(major, minor))?,
        EntryType::Block => device().map(|(major, minor)| NodeKind::BlockDevice(major, minor))?,
        EntryType::Fifo => NodeKind::Fifo,
        kind if kind.as_byte() == LABEL => return Ok(None),
        kind => return refuse(&format!("it is of the unknown kind '{}'", kind.as_byte().escape_ascii())),
    }))
}

/// What a directory is that no entry describes.
fn directory(options: &ScanOptions) -> Node {
    let kind = NodeKind::Directory(BTreeMap::new());
    let mut node = Node { kind, permissions: 0o755, uid: 0, gid: 0, mtime_s: 0, mtime_nsec: 0, xattrs: Vec::new() };
    options.apply(&mut node);
    node
}

/// The directory that `names` lead to, made where it is missing.
fn directories(tree: &mut Tree, names: &[&[u8]], path: &[u8], options: &ScanOptions) -> Result<NodeId> {
    let mut here = tree.root();
    for name in names {
        here = match tree.child(here, name) {
            Some(node) if matches!(tree.node(node).kind, NodeKind::Directory(_)) => node,
            Some(_) => return Err(source_error(path, "its parent is not a directory")),
            None => tree.add(here, name, directory(options))?,
        };
    }
    Ok(here)
}

/// Takes over mode, owner, time and xattrs.
fn describe(member: &Member, node: &mut Node) -> Result<()> {
    let unreadable = || source_error(&member.path, "its mode, owner or time cannot be read");
    let text = |key: &[u8]| member.records.get(key).map(|value| std::str::from_utf8(value).unwrap_or_default());
    let id = |key: &[u8], own: Option<u64>| -> Result<u32> {
        let id = text(key).map_or(own, |text| text.parse().ok());
        id.and_then(|id| u32::try_from(id).ok()).ok_or_else(unreadable)
    };
    let (header, fields) = (&member.header, member.header.as_old());
    let mode = in_field(&fields.mode, header.mode().map(u64::from)).ok_or_else(unreadable)?;
    node.permissions = (mode & 0o7777) as u16;
    node.uid = id(b"uid", in_field(&fields.uid, header.uid()))?;
    node.gid = id(b"gid", in_field(&fields.gid, header.gid()))?;
    let time = match text(b"mtime") {
        Some(text) => parse_time(text),
        None => in_field(&fields.mtime, header.mtime()).map(|seconds| (seconds.cast_signed(), 0)),
    };
    (node.mtime_s, node.mtime_nsec) = time.ok_or_else(unreadable)?;
    node.xattrs.clear();
    for (key, value) in &member.records {
        if let Some(name) = key.strip_prefix(XATTR_KEY)
            && XATTR_PREFIXES.iter().any(|(_, prefix)| name.starts_with(prefix))
        {
            node.xattrs.push(Xattr { name: name.to_vec(), value: value.clone() });
        }
    }
    if let Some(label) = member.records.get(LABEL_KEY)
        && node.xattrs.iter().all(|xattr| xattr.name != b"security.selinux")
    {
        node.xattrs.push(Xattr { name: b"security.selinux".to_vec(), value: [label, &b"\0"[..]].concat() });
    }
    Ok(())
}

/// Seconds with a fraction, as PAX writes them: the fraction counts away from zero, nanoseconds count forward.
fn parse_time(text: &str) -> Option<(i64, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanoseconds: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    if whole.starts_with('-') && nanoseconds > 0 {
        return Some((seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds));
    }
    Some((seconds, nanoseconds))
}

/// The names of a path, without slashes and single dots.
fn names(path: &[u8]) -> Result<Vec<&[u8]>> {
    let names: Vec<_> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
    if names.contains(&&b".."[..]) { Err(source_error(path, "its path has ..")) } else { Ok(names) }
}

fn source_error(path: &[u8], what: &str) -> Error {
    Error::Source { path: PathBuf::from(String::from_utf8_lossy(path).into_owned()), what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::{Records, parse_records, parse_time};

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

    #[test]
    fn pax_times() {
        assert_eq!(parse_time("12"), Some((12, 0)));
        assert_eq!(parse_time("12.5"), Some((12, 500_000_000)));
        assert_eq!(parse_time("12.1234567891"), Some((12, 123_456_789)));
        assert_eq!(parse_time("-1.25"), Some((-2, 750_000_000)));
        assert_eq!(parse_time("x"), None);
        assert_eq!(parse_time("1.x"), None);
    }
}

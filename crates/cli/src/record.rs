//! Records about images as lines of JSON. `docs/erofs.md` lists their fields.

use std::io::{self, Write};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use pagefold_erofs::{DataLayout, Difference, Error, FileKind, Image, Inode, Problem};
use serde_json::Value;

use crate::text::plain_json;

/// A JSON object whose fields keep the order in which they are added.
pub(crate) struct Record(String);

impl Record {
    pub(crate) fn new() -> Self {
        Self(String::new())
    }

    pub(crate) fn field(self, name: &str, value: impl Into<Value>) -> Self {
        self.json(name, &value.into().to_string())
    }

    /// Adds bytes. If they are UTF-8, the field `name` contains them as text; otherwise the field
    /// `name_base64` contains them in Base64.
    pub(crate) fn bytes(self, name: &str, bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.field(name, text),
            Err(_) => self.field(&format!("{name}_base64"), BASE64.encode(bytes)),
        }
    }

    fn record(self, name: &str, record: &Self) -> Self {
        self.json(name, &record.to_json())
    }

    fn records(self, name: &str, records: impl Iterator<Item = Self>) -> Self {
        let records: Vec<_> = records.map(|record| record.to_json()).collect();
        self.json(name, &format!("[{}]", records.join(",")))
    }

    fn json(mut self, name: &str, value: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0 += &format!("{}:{value}", Value::from(name));
        self
    }

    pub(crate) fn to_json(&self) -> String {
        format!("{{{}}}", self.0)
    }

    /// Writes the record as a line.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", plain_json(&self.to_json()))
    }
}

/// Returns the path from the image's root, given the path `below` relative to the directory
/// `place`.
pub(crate) fn path(place: &[u8], below: &[u8]) -> Vec<u8> {
    let trimmed = |path: &[u8]| path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    let (place, below) = (&place[trimmed(place)..], &below[trimmed(below)..]);
    let slash: &[u8] = if place.is_empty() || below.is_empty() || place.ends_with(b"/") { b"" } else { b"/" };
    [b"/", place, slash, below].concat()
}

/// Returns the metadata of a file.
pub(crate) fn file(image: &Image, inode: &Inode, path: &[u8]) -> pagefold_erofs::Result<Record> {
    let mut record = Record::new()
        .bytes("path", path)
        .field("type", kind(inode.kind))
        .field("mode", format!("{:04o}", inode.permissions()))
        .field("uid", inode.uid)
        .field("gid", inode.gid)
        .field("size", inode.size)
        .field("mtime_s", inode.mtime_s)
        .field("mtime_nsec", inode.mtime_nsec)
        .field("nlink", inode.nlink)
        .field("nid", inode.nid)
        .field("layout", layout(inode.layout))
        .field("blocks", inode.stored_blocks(image.superblock()));
    if inode.kind == FileKind::Symlink {
        record = record.bytes("target", &image.read_link(inode)?);
    }
    if let Some((major, minor)) = inode.device() {
        record = record.record("device", &Record::new().field("major", major).field("minor", minor));
    }
    let xattrs = image.xattrs(inode)?;
    Ok(record.records(
        "xattrs",
        xattrs.iter().map(|xattr| Record::new().bytes("name", &xattr.name).bytes("value", &xattr.value)),
    ))
}

/// Returns the properties of an image.
pub(crate) fn image(image: &Image) -> Record {
    let superblock = image.superblock();
    let uuid: String = superblock.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let volume = superblock.volume_name.split(|byte| *byte == 0).next().unwrap_or_default();
    let formats: Vec<_> = superblock.formats().iter().map(|format| format!("{format:?}").to_lowercase()).collect();
    Record::new()
        .field("size", image.len_bytes())
        .field("block_size", superblock.block_bytes())
        .field("blocks", superblock.blocks)
        .field("inodes", superblock.inos)
        .field("time_s", superblock.build_time_s.cast_signed())
        .field("time_nsec", superblock.build_time_nsec)
        .field("uuid", uuid)
        .bytes("volume", volume)
        .field("formats", formats)
        .field("compatible", superblock.feature_compat)
        .field("incompatible", superblock.feature_incompat)
        .field("features", superblock.feature_names())
}

/// Returns a problem of an image, found at or below `place`.
pub(crate) fn problem(place: &[u8], problem: &Problem) -> Record {
    // The inode of fragments has a name instead of a path.
    let in_file = problem.path.starts_with(b"/");
    let path = if in_file { path(place, &problem.path) } else { problem.path.clone() };
    let record = Record::new().bytes("path", &path);
    let record = match &problem.error {
        Error::Corrupt { what, offset } => record.field("offset", *offset).field("what", *what),
        Error::Truncated { offset, .. } => {
            record.field("offset", *offset).field("what", "the image ends before this structure")
        }
        other => record.field("offset", Value::Null).field("what", other.to_string()),
    };
    match &problem.other {
        Some(other) if other.starts_with(b"/") => record.bytes("other", &self::path(place, other)),
        Some(other) => record.bytes("other", other),
        None => record,
    }
}

/// Returns a difference between an image and its source.
pub(crate) fn difference(difference: &Difference) -> Record {
    Record::new().bytes("path", &difference.path).field("offset", Value::Null).field("what", &*difference.what)
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "char",
        FileKind::BlockDevice => "block",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

fn layout(layout: DataLayout) -> &'static str {
    match layout {
        DataLayout::FlatPlain => "flat_plain",
        DataLayout::FlatInline => "flat_inline",
        DataLayout::CompressedFull => "compressed_full",
        DataLayout::CompressedCompact => "compressed_compact",
        DataLayout::ChunkBased => "chunk_based",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_text_keep_their_values() {
        let mut out = Vec::new();
        let inner = Record::new().field("n", i64::MIN);
        let record = Record::new().bytes("a", "gr\u{fc}n\n\"".as_bytes()).bytes("b", b"\xff\x00a");
        let record = record.record("c", &inner).records("d", [inner, Record::new()].into_iter());
        record.write(&mut out).expect("memory");
        let expected = "{\"a\":\"gr\u{fc}n\\n\\\"\",\"b_base64\":\"/wBh\",\"c\":{\"n\":-9223372036854775808},\
                        \"d\":[{\"n\":-9223372036854775808},{}]}\n";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
    }

    #[test]
    fn paths_begin_at_the_root() {
        for (place, below, expected) in [
            ("", "/", "/"),
            ("", "a/b", "/a/b"),
            ("/", "/a", "/a"),
            ("etc", "/a", "/etc/a"),
            ("/etc/", "a", "/etc/a"),
            ("//etc", "", "/etc"),
            ("/lib/", "/", "/lib/"),
        ] {
            assert_eq!(path(place.as_bytes(), below.as_bytes()), expected.as_bytes(), "{place} {below}");
        }
    }

    #[test]
    fn problems_have_offsets_where_these_are_known() {
        let line =
            |path: &[u8], error| problem(b"/etc", &Problem { path: path.to_vec(), error, other: None }).to_json();
        let corrupt = Error::Corrupt { what: "bad", offset: 7 };
        assert_eq!(line(b"/a", corrupt), r#"{"path":"/etc/a","offset":7,"what":"bad"}"#);
        let other = Error::Unsupported("b".to_owned());
        let expected = r#"{"path":"packed inode","offset":null,"what":"unsupported image: b"}"#;
        assert_eq!(line(b"packed inode", other), expected);
    }
}

//! A tar archive becomes a tree.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;

use tar::{Archive, EntryType};

use super::scan::ScanOptions;
use super::tree::{Content, Node, NodeId, NodeKind, Tree};
use crate::error::{Error, Result};
use crate::format::XATTR_PREFIXES;
use crate::xattr::Xattr;

/// Where PAX headers keep xattrs.
const XATTR_KEY: &str = "SCHILY.xattr.";

impl Tree {
    /// The tree that a tar archive (POSIX, PAX, GNU) holds. `archive` stays open, since files' content is read from it
    /// when the image is built. A later entry of a name replaces an earlier one; directories that no entry describes
    /// belong to root and have mode 0755 and time 0.
    pub fn from_tar(archive: File, options: &ScanOptions) -> Result<Self> {
        let failed = || Error::io("reading the archive");
        let archive = Arc::new(archive);
        let mut entries = Archive::new(BufReader::new(archive.try_clone().map_err(failed())?));
        let mut tree = Self::new(directory(options));
        for entry in entries.entries().map_err(failed())? {
            let mut entry = entry.map_err(failed())?;
            let path = entry.path_bytes().into_owned();
            let names = names(&path)?;
            if names.is_empty() && entry.header().entry_type().is_dir() {
                let root = tree.root();
                describe(&mut entry, tree.node_mut(root), &path)?;
                options.apply(tree.node_mut(root));
            } else if !names.is_empty() && !(1..=names.len()).any(|len| options.excludes(&names[..len].join(&b'/'))) {
                add(&mut tree, &archive, &mut entry, &path, &names, options)?;
            }
        }
        Ok(tree)
    }
}

fn add(
    tree: &mut Tree,
    archive: &Arc<File>,
    entry: &mut tar::Entry<'_, impl Read>,
    path: &[u8],
    names: &[&[u8]],
    options: &ScanOptions,
) -> Result<()> {
    let refuse = |what: &str| Err(source_error(path, what));
    let Some((name, above)) = names.split_last() else { return Ok(()) };
    let parent = directories(tree, above, path, options)?;
    let header = entry.header();
    let device = || match (header.device_major(), header.device_minor()) {
        (Ok(Some(major)), Ok(Some(minor))) => Ok((major, minor)),
        _ => Err(source_error(path, "its device number cannot be read")),
    };
    let kind = match header.entry_type() {
        EntryType::Regular | EntryType::Continuous => NodeKind::Regular {
            content: Content::Range(Arc::clone(archive), entry.raw_file_position()),
            size: entry.size(),
        },
        EntryType::Directory => NodeKind::Directory(BTreeMap::new()),
        EntryType::Symlink => match entry.link_name_bytes() {
            Some(target) if (1..=4095).contains(&target.len()) => NodeKind::Symlink(target.into_owned()),
            _ => return refuse("a symbolic link's target has 1 to 4095 bytes"),
        },
        EntryType::Link => {
            let target = entry.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default();
            let mut node = Some(tree.root());
            for name in self::names(&target)? {
                node = node.and_then(|node| tree.child(node, name));
            }
            return match node {
                Some(node) if !matches!(tree.node(node).kind, NodeKind::Directory(_)) => tree.link(parent, name, node),
                _ => refuse("it is a hard link to a file that the archive does not have before it"),
            };
        }
        EntryType::Char => device().map(|(major, minor)| NodeKind::CharDevice(major, minor))?,
        EntryType::Block => device().map(|(major, minor)| NodeKind::BlockDevice(major, minor))?,
        EntryType::Fifo => NodeKind::Fifo,
        EntryType::GNUSparse => return refuse("sparse archive members are not supported"),
        _ => return Ok(()),
    };
    // A directory that is described after its files keeps them.
    let known = tree.child(parent, name).filter(|node| matches!(tree.node(*node).kind, NodeKind::Directory(_)));
    let id = match (known, &kind) {
        (Some(node), NodeKind::Directory(_)) => node,
        _ => tree.add(parent, name, Node { kind, ..directory(options) })?,
    };
    describe(entry, tree.node_mut(id), path)?;
    options.apply(tree.node_mut(id));
    Ok(())
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
fn describe(entry: &mut tar::Entry<'_, impl Read>, node: &mut Node, path: &[u8]) -> Result<()> {
    let header = entry.header();
    let bad = |what: &'static str| move |_: io::Error| source_error(path, what);
    let id = |id: u64| u32::try_from(id).map_err(|_| source_error(path, "its owner is beyond 32 bits"));
    node.permissions = (header.mode().map_err(bad("its mode cannot be read"))? & 0o7777) as u16;
    node.uid = id(header.uid().map_err(bad("its owner cannot be read"))?)?;
    node.gid = id(header.gid().map_err(bad("its group cannot be read"))?)?;
    node.mtime_s = header.mtime().map_err(bad("its time cannot be read"))?.cast_signed();
    node.mtime_nsec = 0;
    let Some(extensions) = entry.pax_extensions().map_err(bad("its PAX header cannot be read"))? else { return Ok(()) };
    for extension in extensions {
        let extension = extension.map_err(bad("its PAX header cannot be read"))?;
        let Ok(key) = extension.key() else { continue };
        if key == "mtime" {
            let time = extension.value().ok().and_then(parse_time);
            (node.mtime_s, node.mtime_nsec) = time.ok_or_else(|| source_error(path, "its PAX time cannot be read"))?;
        } else if let Some(name) = key.strip_prefix(XATTR_KEY)
            && XATTR_PREFIXES.iter().any(|(_, prefix)| name.as_bytes().starts_with(prefix))
        {
            node.xattrs.retain(|xattr| xattr.name != name.as_bytes());
            node.xattrs.push(Xattr { name: name.into(), value: extension.value_bytes().to_vec() });
        }
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
    use super::parse_time;

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

//! A directory of the operating system becomes a tree.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::ids::IdMap;
use super::place::SourcePath;
use super::reach::reach;
use super::tree::{Content, Node, NodeId, NodeKind, Tree};
use crate::error::{Error, Result};
use crate::format::XATTR_PREFIXES;
use crate::xattr::Xattr;

/// What of the files is taken over, and what is put in its place.
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// The modification time of every file, in seconds (`-T`, `SOURCE_DATE_EPOCH`).
    pub mtime_s: Option<i64>,
    /// The owner of every file.
    pub uid: Option<u32>,
    /// The group of every file.
    pub gid: Option<u32>,
    /// What becomes of owners where `uid` says nothing.
    pub uid_map: IdMap,
    /// What becomes of groups where `gid` says nothing.
    pub gid_map: IdMap,
    /// Leave extended attributes out.
    pub no_xattrs: bool,
    /// Paths below the root that are left out with what is below them. `*` stands for any bytes within a name, `?` for
    /// one; a pattern without a slash applies to names at any depth, one with a slash before it to those in the root.
    pub excludes: Vec<Vec<u8>>,
}

impl ScanOptions {
    /// Whether `path`, below the root, is left out.
    pub fn excludes(&self, path: &[u8]) -> bool {
        self.excludes.iter().any(|pattern| applies(pattern, path))
    }

    pub(crate) fn apply(&self, node: &mut Node) {
        if let Some(mtime_s) = self.mtime_s {
            (node.mtime_s, node.mtime_nsec) = (mtime_s, 0);
        }
        node.uid = self.uid.unwrap_or_else(|| self.uid_map.apply(node.uid));
        node.gid = self.gid.unwrap_or_else(|| self.gid_map.apply(node.gid));
        if self.no_xattrs {
            node.xattrs.clear();
        }
        node.xattrs.sort();
    }
}

/// Whether `pattern` is about `path`: without a slash it stands for a name at any depth, else for a path below the root,
/// which `./` may stand before. A slash at the end says nothing.
pub(crate) fn applies(pattern: &[u8], path: &[u8]) -> bool {
    let pattern = pattern.strip_suffix(b"/").unwrap_or(pattern);
    if !pattern.contains(&b'/') {
        return matches(pattern, path.rsplit(|byte| *byte == b'/').next().unwrap_or_default());
    }
    matches(pattern.strip_prefix(b"./").or_else(|| pattern.strip_prefix(b"/")).unwrap_or(pattern), path)
}

/// Whether `pattern` stands for the whole of `text`. Time is at most the product of their lengths.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on after the last star if what follows it fails: one byte later in the text.
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(b'?') if text[t] != b'/' => (p, t) = (p + 1, t + 1),
            Some(byte) if *byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((after, from)) if text[from] != b'/' => {
                    star = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                _ => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

impl Tree {
    /// The tree under `root`. Files that have several names in it are kept as one. Other file systems mounted in it
    /// are part of it.
    pub fn scan(root: &Path, options: &ScanOptions) -> Result<Self> {
        let metadata = fs::metadata(root).map_err(Error::io(root.display().to_string()))?;
        if !metadata.is_dir() {
            return Err(Error::Source { path: root.to_owned(), what: "not a directory".to_owned() });
        }
        let place = SourcePath::from(root);
        let mut top = node_of(&place, root, &metadata)?;
        options.apply(&mut top);
        let mut tree = Self::new(top);
        let mut links: HashMap<(u64, u64), NodeId> = HashMap::new();
        let mut stack = vec![(place, tree.root())];
        while let Some((place, directory)) = stack.pop() {
            let here = place.to_path_buf();
            let below = here.strip_prefix(root).unwrap_or(&here);
            let failed = |error| Error::io(format!("listing {}", here.display()))(error);
            let reached = reach(&here).map_err(failed)?;
            for entry in fs::read_dir(&reached).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let name = entry.file_name();
                if options.excludes(below.join(&name).as_os_str().as_bytes()) {
                    continue;
                }
                let told = |error| Error::io(here.join(&name).display().to_string())(error);
                let metadata = entry.metadata().map_err(told)?;
                let shared = metadata.nlink() > 1 && !metadata.is_dir();
                let inode = (metadata.dev(), metadata.ino());
                if let Some(node) = links.get(&inode).filter(|_| shared) {
                    tree.link(directory, name.as_bytes(), *node)?;
                    continue;
                }
                let path = place.join(name.clone());
                let mut node = node_of(&path, &reached.as_ref().join(&name), &metadata)?;
                options.apply(&mut node);
                let id = tree.add(directory, name.as_bytes(), node)?;
                if shared {
                    links.insert(inode, id);
                }
                if metadata.is_dir() {
                    stack.push((path, id));
                }
            }
        }
        Ok(tree)
    }
}

/// The node of the file at `path`, which the system has at `reached`.
fn node_of(path: &SourcePath, reached: &Path, metadata: &Metadata) -> Result<Node> {
    let kind = metadata.file_type();
    let device = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let kind = if kind.is_dir() {
        NodeKind::Directory(Default::default())
    } else if kind.is_file() {
        NodeKind::Regular { content: Content::Path(path.clone()), size: metadata.size() }
    } else if kind.is_symlink() {
        let target =
            fs::read_link(reached).map_err(|error| Error::io(path.to_path_buf().display().to_string())(error))?;
        NodeKind::Symlink(target.into_os_string().into_vec())
    } else if kind.is_char_device() {
        NodeKind::CharDevice(device.0, device.1)
    } else if kind.is_block_device() {
        NodeKind::BlockDevice(device.0, device.1)
    } else if kind.is_fifo() {
        NodeKind::Fifo
    } else {
        NodeKind::Socket
    };
    Ok(Node {
        kind,
        permissions: (metadata.mode() & 0o7777) as u16,
        uid: metadata.uid(),
        gid: metadata.gid(),
        mtime_s: metadata.mtime(),
        mtime_nsec: metadata.mtime_nsec() as u32,
        xattrs: xattrs_of(path, reached)?,
    })
}

/// The xattrs of a file whose names have a prefix that EROFS knows; others, which only their own file system
/// understands, are left out.
fn xattrs_of(path: &SourcePath, reached: &Path) -> Result<Vec<Xattr>> {
    let failed =
        |error: rustix::io::Errno| Error::io(format!("xattrs of {}", path.to_path_buf().display()))(error.into());
    let names = match sized(|buf| rustix::fs::llistxattr(reached, buf)) {
        Ok(names) => names,
        Err(rustix::io::Errno::NOTSUP) => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut xattrs = Vec::new();
    for name in names.split(|byte| *byte == 0) {
        if !XATTR_PREFIXES.iter().any(|(_, prefix)| name.starts_with(prefix)) {
            continue;
        }
        let value = sized(|buf| rustix::fs::lgetxattr(reached, OsStr::from_bytes(name), buf)).map_err(failed)?;
        xattrs.push(Xattr { name: name.to_vec(), value });
    }
    Ok(xattrs)
}

/// Calls `fill` with ever longer buffers until the answer fits. Linux limits both answers to 64 KiB.
fn sized(mut fill: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buf = vec![0; 256];
    loop {
        match fill(&mut buf) {
            Ok(len) => {
                buf.truncate(len);
                return Ok(buf);
            }
            Err(rustix::io::Errno::RANGE) if buf.len() < 1 << 16 => buf.resize(buf.len() * 4, 0),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*.o", "dir.o", true),
            ("a*b*c", "axxbyybc", true),
            ("a*b*c", "axxbyyb", false),
            ("dir/*", "dir/name", true),
            ("dir/*", "dir/name/below", false),
            ("d?r", "dir", true),
            ("d?r", "d/r", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        let options = ScanOptions { excludes: vec![b"*.o".to_vec(), b"proc/*".to_vec()], ..Default::default() };
        assert!(options.excludes(b"deep/down/x.o"));
        assert!(options.excludes(b"proc/1"));
        assert!(!options.excludes(b"proc"));
        assert!(applies(b"/etc", b"etc") && !applies(b"/etc", b"usr/etc"));
        assert!(applies(b"./etc", b"etc") && applies(b"./etc/*", b"etc/x") && !applies(b"./etc", b"usr/etc"));
        assert!(applies(b"cache/", b"var/cache") && applies(b"/var/cache/", b"var/cache"));
        assert!(!applies(b"/", b"etc") && !applies(b"", b"etc"));
    }
}

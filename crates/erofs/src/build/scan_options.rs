//! Options for reading a tree's sources.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, Statx};

use super::acl;
use super::found::{device_of, metadata_at};
use super::ids::IdMap;
use super::patterns::{self, applies};
use super::tree::Node;

/// Which properties of files are kept, and which are replaced.
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// The modification time of every file, in seconds (`-T`, `SOURCE_DATE_EPOCH`).
    pub mtime_s: Option<i64>,
    /// The owner of every file.
    pub uid: Option<u32>,
    /// The group of every file.
    pub gid: Option<u32>,
    /// Maps owners if `uid` is `None`, and users in ACLs.
    pub uid_map: IdMap,
    /// Maps groups if `gid` is `None`, and groups in ACLs.
    pub gid_map: IdMap,
    /// Skips extended attributes.
    pub no_xattrs: bool,
    /// Skips files and directories that cannot be read when the tree is scanned, each with a
    /// [`WarningKind::Unreadable`](crate::WarningKind::Unreadable). Files that vanish or become
    /// shorter before they are read do not fail the build: see
    /// [`Tree::changes`](crate::Tree::changes).
    pub skip_unreadable: bool,
    /// Leaves out the contents of directories on other file systems than the root's. The
    /// directories themselves stay.
    pub one_file_system: bool,
    /// Patterns for paths below the root that are skipped, including everything below them. `*`
    /// matches any bytes within a name, `?` one byte. A pattern without a slash matches names at
    /// any depth; one with a leading slash matches names in the root.
    pub excludes: Vec<Vec<u8>>,
    /// The file of the image itself, which a directory that is scanned may hold.
    pub image: Option<ImageFile>,
}

/// A file that a scan recognizes under any of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// Device and inode.
    inode: (u64, u64),
    /// Device and inode of its directory, and its name there.
    entry: Option<((u64, u64), OsString)>,
    /// Whether other names of the file are errors.
    replaced: bool,
}

impl ImageFile {
    /// Describes the image at `path`, or the one to which a symbolic link there leads. A scan skips
    /// this entry, and treats other names of the file like those of any other file.
    ///
    /// # Errors
    /// Those of reading the metadata of the file and of its directory.
    pub fn at(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        let entry = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => Some((inode_of(&fs::metadata(parent)?), name.to_owned())),
            _ => None,
        };
        Ok(Self { inode: inode_of(&fs::metadata(&path)?), entry, replaced: false })
    }

    /// Like [`ImageFile::at`], for a file that the new image replaces. A scan fails if it finds the
    /// file under another name, which means that an input would be replaced.
    ///
    /// # Errors
    /// Those of [`ImageFile::at`].
    pub fn replaced_at(path: &Path) -> io::Result<Self> {
        Ok(Self { replaced: true, ..Self::at(path)? })
    }

    /// Returns what to do with an entry of an open directory.
    pub(super) fn verdict(&self, directory: impl AsFd, name: &OsString, metadata: &Statx) -> io::Result<Verdict> {
        let inode_of = |metadata: &Statx| (device_of(metadata), metadata.stx_ino);
        if inode_of(metadata) != self.inode {
            return Ok(Verdict::Take);
        }
        if let Some((place, own)) = &self.entry
            && own == name
            && inode_of(&metadata_at(directory, Path::new(""), AtFlags::EMPTY_PATH)?) == *place
        {
            return Ok(Verdict::Skip);
        }
        Ok(if self.replaced { Verdict::Refuse } else { Verdict::Take })
    }
}

/// What to do with an entry.
pub(super) enum Verdict {
    Take,
    Skip,
    Refuse,
}

fn inode_of(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl ScanOptions {
    /// Returns whether `path`, relative to the root, is skipped.
    pub fn excludes(&self, path: &[u8]) -> bool {
        self.excludes.iter().any(|pattern| applies(pattern, path))
    }

    /// Like [`excludes`](Self::excludes), for a path of `depth` names that ends with `name`. Calls
    /// `path` only if a pattern could match it, so most paths need not be joined.
    pub(crate) fn excludes_at(&self, depth: usize, name: &[u8], path: impl Fn() -> Vec<u8>) -> bool {
        self.excludes.iter().any(|pattern| match patterns::depth(pattern) {
            None => applies(pattern, name),
            Some(of_pattern) => of_pattern == depth && applies(pattern, &path()),
        })
    }

    pub(crate) fn apply(&self, node: &mut Node) {
        if let Some(mtime_s) = self.mtime_s {
            (node.mtime_s, node.mtime_nsec) = (mtime_s, 0);
        }
        for xattr in &mut node.xattrs {
            if [acl::ACCESS, acl::DEFAULT].contains(&&xattr.name[..])
                && let Some(value) = acl::with_ids(&xattr.value, &self.uid_map, &self.gid_map)
            {
                xattr.value = value;
            }
        }
        node.uid = self.uid.unwrap_or_else(|| self.uid_map.apply(node.uid));
        node.gid = self.gid.unwrap_or_else(|| self.gid_map.apply(node.gid));
        if self.no_xattrs {
            node.xattrs.clear();
        }
        node.xattrs.sort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_left_out_by_pattern() {
        let options = ScanOptions { excludes: vec![b"*.o".to_vec(), b"proc/*".to_vec()], ..Default::default() };
        assert!(options.excludes(b"deep/down/x.o"));
        assert!(options.excludes(b"proc/1"));
        assert!(!options.excludes(b"proc"));
        for path in ["a", "a/b", "proc/1", "x.o", "deep/down/x.o", "deep/proc/1", "proc"] {
            let name = path.rsplit('/').next().unwrap();
            let at = options.excludes_at(path.split('/').count(), name.as_bytes(), || path.into());
            assert_eq!(at, options.excludes(path.as_bytes()), "{path}");
        }
    }
}

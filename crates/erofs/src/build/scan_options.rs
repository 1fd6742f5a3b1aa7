//! Options for reading a tree's sources.

use super::acl;
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
    /// Leaves out what is in directories on other file systems than the root. The directories
    /// themselves stay.
    pub one_file_system: bool,
    /// Patterns for paths below the root that are skipped, including everything below them. `*`
    /// matches any bytes within a name, `?` one byte. A pattern without a slash matches names at
    /// any depth; one with a leading slash matches names in the root.
    pub excludes: Vec<Vec<u8>>,
}

impl ScanOptions {
    /// Returns whether `path`, relative to the root, is skipped.
    pub fn excludes(&self, path: &[u8]) -> bool {
        self.excludes.iter().any(|pattern| applies(pattern, path))
    }

    /// As [`excludes`](Self::excludes), for a path of `depth` names that ends with `name`. Calls
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

//! What of a tree's sources is taken over.

use super::acl;
use super::ids::IdMap;
use super::patterns::applies;
use super::tree::Node;

/// What of the files is taken over, and what is put in its place.
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// The modification time of every file, in seconds (`-T`, `SOURCE_DATE_EPOCH`).
    pub mtime_s: Option<i64>,
    /// The owner of every file.
    pub uid: Option<u32>,
    /// The group of every file.
    pub gid: Option<u32>,
    /// What becomes of owners where `uid` says nothing, and of users in ACLs.
    pub uid_map: IdMap,
    /// What becomes of groups where `gid` says nothing, and of those in ACLs.
    pub gid_map: IdMap,
    /// Leave extended attributes out.
    pub no_xattrs: bool,
    /// Leave out files and directories that cannot be read when the tree is scanned, each with a
    /// [`WarningKind::Unreadable`](crate::WarningKind::Unreadable).
    pub skip_unreadable: bool,
    /// Paths below the root that are left out with what is below them. `*` stands for any bytes
    /// within a name, `?` for one; a pattern without a slash applies to names at any depth, one
    /// with a slash before it to those in the root.
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
    }
}

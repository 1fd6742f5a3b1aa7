//! The visible properties of a file.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::case::{EntryKind, Facts};

const KINDS: u32 = 0o170_000;
pub(crate) const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
pub(crate) const SYMLINK: u32 = 0o120_000;

/// The visible properties of a file.
#[derive(Clone, PartialEq, Eq)]
pub struct Shown {
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: (i64, u32),
    pub(crate) links: u32,
    pub(crate) device: Option<(u32, u32)>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// A regular file's content or a symbolic link's target.
    pub(crate) content: Arc<[u8]>,
}

impl Shown {
    pub(crate) fn new(kind: &EntryKind, facts: &Facts, links: u32, content: &Arc<[u8]>) -> Self {
        let (format, device, content) = match kind {
            EntryKind::Directory => (DIRECTORY, None, Arc::clone(content)),
            EntryKind::Regular(_) | EntryKind::Link(_) => (REGULAR, None, Arc::clone(content)),
            EntryKind::Symlink(target) => (SYMLINK, None, target.as_slice().into()),
            EntryKind::CharDevice(major, minor) => (0o020_000, Some((*major, *minor)), Arc::clone(content)),
            EntryKind::BlockDevice(major, minor) => (0o060_000, Some((*major, *minor)), Arc::clone(content)),
            EntryKind::Fifo => (0o010_000, None, Arc::clone(content)),
            EntryKind::Socket => (0o140_000, None, Arc::clone(content)),
        };
        Self {
            mode: format | u32::from(facts.permissions),
            owner: (facts.uid, facts.gid),
            mtime: facts.mtime,
            links,
            device,
            xattrs: facts.xattrs.iter().map(|xattr| (xattr.name.clone(), xattr.value.clone())).collect(),
            content,
        }
    }

    pub(crate) fn kind(&self) -> u32 {
        self.mode & KINDS
    }

    /// Compares these properties, which were found, with the expected ones.
    pub(crate) fn compare(&self, expected: &Self) -> Result<(), String> {
        let differ = |what: &str, found: &dyn fmt::Debug, expected: &dyn fmt::Debug| {
            Err(format!("{what} {found:?}, not {expected:?}"))
        };
        if self.mode != expected.mode {
            return Err(format!("mode {:o}, not {:o}", self.mode, expected.mode));
        }
        if self.owner != expected.owner {
            return differ("owner", &self.owner, &expected.owner);
        }
        if self.mtime != expected.mtime {
            return differ("time", &self.mtime, &expected.mtime);
        }
        if self.links != expected.links {
            return differ("number of links", &self.links, &expected.links);
        }
        if self.device != expected.device {
            return differ("device", &self.device, &expected.device);
        }
        if self.xattrs != expected.xattrs {
            let (found, wanted) = (self.xattrs.len(), expected.xattrs.len());
            let other = expected.xattrs.iter().find(|(name, value)| self.xattrs.get(*name) != Some(value));
            let other = other.map(|(name, value)| format!("{} of {} bytes", name.escape_ascii(), value.len()));
            return Err(format!("{found} xattrs, not {wanted}, or other ones: {other:?}"));
        }
        same_bytes(&self.content, &expected.content)
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mode {:o}, {} bytes", self.mode, self.content.len())
    }
}

pub(crate) fn same_bytes(found: &[u8], expected: &[u8]) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    if found.len() != expected.len() {
        return Err(format!("{} bytes, not {}", found.len(), expected.len()));
    }
    let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
    Err(format!("content differs from byte {} of {}", at.unwrap_or_default(), expected.len()))
}

//! Long prefixes of xattr names: an image stores each prefix once, and one byte in each name that
//! begins with it.
//!
//! The table is between the superblock and the root, because its location is a 32-bit number of
//! 4-byte units, and data may be longer than that. If there are fragments, it is at the start of
//! the packed inode, the only place where every Linux since 6.4 then looks for it.

use crate::error::{Error, Result};
use crate::format::{XATTR_LONG_PREFIX, XATTR_PREFIXES, Xattr};

/// The maximum length of an xattr name in Linux.
pub(super) const NAME_BYTES: usize = 255;

/// The number of prefixes that a 7-bit index can address.
const MOST: usize = 128;

/// The long prefixes of an image.
pub(crate) struct Prefixes {
    /// The longest first, so that the first match saves most.
    all: Vec<Vec<u8>>,
}

/// Splits `name` into the index of its predefined prefix and the rest.
fn predefined(name: &[u8]) -> Option<(u8, &[u8])> {
    XATTR_PREFIXES.iter().find_map(|(index, prefix)| Some((*index, name.strip_prefix(*prefix)?)))
}

/// Rejects prefixes that the format cannot represent or that would save nothing.
pub(crate) fn check(wanted: &[Vec<u8>]) -> Result<()> {
    for prefix in wanted {
        let longer = predefined(prefix).is_some_and(|(_, rest)| !rest.is_empty());
        if !longer || prefix.starts_with(b"system.") || prefix.len() > NAME_BYTES || prefix.contains(&0) {
            let shown = String::from_utf8_lossy(prefix);
            return Err(Error::Options(format!(
                "the xattr prefix '{shown}' must be longer than user., trusted., security. or lustre. and begin with it, as \
                 trusted.overlay., and have at most 255 bytes"
            )));
        }
    }
    let mut distinct: Vec<_> = wanted.iter().collect();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() > MOST {
        return Err(Error::Options(format!(
            "{} xattr prefixes are too many: an image has at most {MOST}",
            distinct.len()
        )));
    }
    Ok(())
}

impl Prefixes {
    /// Keeps the prefixes of `wanted` that are used by some name. An image without any remains
    /// mountable by older kernels.
    pub(crate) fn new<'a>(wanted: &[Vec<u8>], xattrs: impl Iterator<Item = &'a Xattr>) -> Self {
        let mut all = wanted.to_vec();
        all.sort_unstable_by(|left, right| (right.len(), left).cmp(&(left.len(), right)));
        all.dedup();
        let mut used = vec![false; all.len()];
        if !all.is_empty() {
            for xattr in xattrs {
                if let Some(at) = all.iter().position(|prefix| xattr.name.starts_with(prefix)) {
                    used[at] = true;
                }
            }
        }
        let mut used = used.into_iter();
        all.retain(|_| used.next() == Some(true));
        Self { all }
    }

    pub(crate) fn count(&self) -> u8 {
        self.all.len() as u8
    }

    /// Splits `name` into the index of the longest matching prefix, predefined or custom, and the
    /// rest.
    pub(crate) fn split<'a>(&self, name: &'a [u8]) -> Option<(u8, &'a [u8])> {
        let own = self.all.iter().zip(XATTR_LONG_PREFIX..=u8::MAX);
        own.into_iter()
            .find_map(|(prefix, index)| Some((index, name.strip_prefix(&prefix[..])?)))
            .or_else(|| predefined(name))
    }

    /// Encodes the table of prefixes: for each, the length of the rest, the index of a predefined
    /// prefix and the part after that; padded to 4 bytes.
    pub(crate) fn table(&self) -> Vec<u8> {
        let mut table = Vec::new();
        for (index, infix) in self.all.iter().filter_map(|prefix| predefined(prefix)) {
            table.extend_from_slice(&(1 + infix.len() as u16).to_le_bytes());
            table.push(index);
            table.extend_from_slice(infix);
            table.resize(table.len().next_multiple_of(4), 0);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Xattr {
        Xattr { name: name.into(), value: Vec::new() }
    }

    fn prefixes(wanted: &[&str], names: &[&str]) -> Prefixes {
        let wanted: Vec<_> = wanted.iter().map(|prefix| prefix.as_bytes().to_vec()).collect();
        let names: Vec<_> = names.iter().map(|name| named(name)).collect();
        Prefixes::new(&wanted, names.iter())
    }

    #[test]
    fn the_longest_prefix_of_a_name_is_taken() {
        let names = ["user.mime_type", "user.mime_t", "user.m", "security.mime_type"];
        let found = prefixes(&["user.mime_", "user.mime_type", "user.mime_"], &names);
        assert_eq!(found.split(b"user.mime_type"), Some((0x80, &b""[..])));
        assert_eq!(found.split(b"user.mime_t"), Some((0x81, &b"t"[..])));
        assert_eq!(found.split(b"user.m"), Some((1, &b"m"[..])));
        assert_eq!(found.split(b"security.mime_type"), Some((6, &b"mime_type"[..])));
        assert_eq!(found.split(b"other.name"), None);
        assert_eq!(found.table(), b"\x0a\0\x01mime_type\x06\0\x01mime_");
    }

    #[test]
    fn prefixes_without_a_name_are_left_out() {
        // Both prefixes match, but no name uses the shorter one.
        let found = prefixes(&["user.mime_", "user.mime_type", "trusted.overlay."], &["user.mime_type", "trusted.o"]);
        assert_eq!((found.count(), found.table()), (1, b"\x0a\0\x01mime_type".to_vec()));
        assert_eq!(prefixes(&["user.mime_"], &[]).count(), 0);
    }

    #[test]
    fn invalid_prefixes_are_refused() {
        let long = format!("user.{}", "n".repeat(251));
        for wrong in
            ["", "user", "user.", "overlay.", "system.posix_acl_access", "system.posix_acl_access.x", "user.\0", &long]
        {
            assert!(check(&[wrong.as_bytes().to_vec()]).is_err(), "{wrong}");
        }
        let numbered = |count: u32| (0..count).map(|number| format!("user.{number}").into_bytes()).collect::<Vec<_>>();
        assert!(check(&numbered(128)).is_ok());
        assert!(check(&[numbered(128), numbered(5)].concat()).is_ok(), "the same ones again");
        assert!(check(&numbered(129)).is_err());
    }

    #[test]
    fn all_128_have_an_index() {
        let names: Vec<_> = (0..128).map(|number| format!("user.{number:03}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let found = prefixes(&names, &names);
        assert_eq!(found.count(), 128);
        assert_eq!(found.split(b"user.000"), Some((0x80, &b""[..])));
        assert_eq!(found.split(b"user.127"), Some((0xff, &b""[..])));
    }
}

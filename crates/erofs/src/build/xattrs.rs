//! Xattrs of an image: which it can hold, and their encoding.

use std::collections::{BTreeMap, HashMap};

use super::acl;
use super::prefixes::{NAME_BYTES, Prefixes};
use super::tree::{Tree, Visit};
use super::warnings::WarningKind;
use crate::format::{XATTR_PREFIXES, Xattr, XattrEntry, XattrHeader};

/// The number of nodes with an xattr from which on it is shared.
const SHARED_BY: usize = 2;
/// The maximum length in bytes of an inode's xattr names in Linux, each with a NUL.
const LIST_BYTES: usize = 1 << 16;
/// The maximum length of a value in the format.
const VALUE_BYTES: usize = u16::MAX as usize;
/// The maximum length of a name in messages.
const SHOWN_BYTES: usize = 80;

/// Returns why an image cannot hold an xattr of this name; `None` if it can.
pub(super) fn unstorable(name: &[u8]) -> Option<WarningKind> {
    let Some((prefix, suffix)) =
        XATTR_PREFIXES.iter().find_map(|(_, prefix)| Some((prefix, name.strip_prefix(*prefix)?)))
    else {
        return Some(WarningKind::XattrName);
    };
    // The names of ACLs are complete.
    let is_whole = prefix.ends_with(b".") != suffix.is_empty();
    let is_possible = is_whole && name.len() <= NAME_BYTES && !name.contains(&0);
    (!is_possible).then_some(WarningKind::ImpossibleXattrName)
}

/// Returns an xattr's name for messages.
pub(super) fn shown_name(name: &[u8]) -> String {
    let end = if name.len() > SHOWN_BYTES { "…" } else { "" };
    format!("{}{end}", String::from_utf8_lossy(&name[..name.len().min(SHOWN_BYTES)]))
}

/// Encodes the xattrs that several nodes have, in order. The id of each is its offset in units of 4
/// bytes.
pub(super) fn share_xattrs<'a>(
    tree: &'a Tree,
    visits: &[Visit],
    prefixes: &Prefixes,
) -> (Vec<u8>, HashMap<&'a Xattr, u32>) {
    let mut counts: BTreeMap<&Xattr, usize> = BTreeMap::new();
    for visit in visits {
        for xattr in &tree.node(visit.id).xattrs {
            *counts.entry(xattr).or_default() += 1;
        }
    }
    let mut bytes = Vec::new();
    let mut ids = HashMap::new();
    for (xattr, count) in counts {
        if count >= SHARED_BY
            && let Ok(entry) = encode_xattr(xattr, prefixes)
        {
            ids.insert(xattr, (bytes.len() / 4) as u32);
            bytes.extend_from_slice(&entry);
        }
    }
    (bytes, ids)
}

/// Encodes an entry, padded to 4 bytes, or says why the image cannot hold it.
fn encode_xattr(xattr: &Xattr, prefixes: &Prefixes) -> Result<Vec<u8>, String> {
    let name = shown_name(&xattr.name);
    let (index, suffix) = match (unstorable(&xattr.name), prefixes.split(&xattr.name)) {
        (None, Some(split)) => split,
        (Some(WarningKind::XattrName), _) => {
            return Err(format!("EROFS has no prefix for the name of its xattr {name}"));
        }
        _ => return Err(format!("the name of its xattr {name} is not possible in Linux")),
    };
    if [acl::ACCESS, acl::DEFAULT].contains(&&xattr.name[..]) && !acl::is_readable(&xattr.value) {
        return Err(format!("its ACL ({name}) cannot be read; --no-xattrs leaves ACLs and xattrs out"));
    }
    let len = xattr.value.len();
    let entry = XattrEntry {
        e_name_len: suffix.len() as u8,
        e_name_index: index,
        e_value_size: u16::try_from(len).map_err(|_| {
            format!("the value of its xattr {name} has {len} bytes; EROFS stores at most {VALUE_BYTES}")
        })?,
    };
    let mut bytes = [&entry.encode()[..], suffix, &xattr.value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    Ok(bytes)
}

/// Encodes the xattrs of an inode, or says why the image cannot hold them.
pub(super) fn encode_xattrs(
    xattrs: &[Xattr],
    ids: &HashMap<&Xattr, u32>,
    prefixes: &Prefixes,
) -> Result<Vec<u8>, String> {
    if xattrs.is_empty() {
        return Ok(Vec::new());
    }
    let mut names: Vec<_> = xattrs.iter().map(|xattr| &xattr.name).collect();
    names.sort_unstable();
    if let Some([name, _]) = names.array_windows().find(|[name, next]| name == next) {
        return Err(format!("it has the xattr {} twice", shown_name(name)));
    }
    let list_bytes: usize = names.iter().map(|name| name.len() + 1).sum();
    if list_bytes > LIST_BYTES {
        return Err(format!("the names of its xattrs take {list_bytes} bytes; Linux lists at most {LIST_BYTES}"));
    }
    let mut shared = Vec::new();
    let mut inline = Vec::new();
    for xattr in xattrs {
        match ids.get(xattr) {
            Some(id) if shared.len() < 4 * usize::from(u8::MAX) => shared.extend_from_slice(&id.to_le_bytes()),
            _ => inline.extend_from_slice(&encode_xattr(xattr, prefixes)?),
        }
    }
    let header =
        XattrHeader { h_name_filter: 0, h_shared_count: (shared.len() / 4) as u8, h_reserved: [0; 7] }.encode();
    let bytes = [&header[..], &shared, &inline].concat();
    if (bytes.len() - XattrHeader::SIZE) / 4 >= usize::from(u16::MAX) {
        return Err("it has more than 256 KiB of xattrs".to_owned());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_possible_or_said_not_to_be() {
        use WarningKind::{ImpossibleXattrName, XattrName};
        let long = |len: usize| [&b"user."[..], &vec![b'n'; len]].concat();
        for (name, expected) in [
            (&b"user.a"[..], None),
            (b"user.a=b %", None),
            (b"trusted.\xff", None),
            (b"system.posix_acl_access", None),
            (b"system.posix_acl_access.x", Some(ImpossibleXattrName)),
            (b"user.", Some(ImpossibleXattrName)),
            (b"security.", Some(ImpossibleXattrName)),
            (b"user.a\0b", Some(ImpossibleXattrName)),
            (b"user", Some(XattrName)),
            (b"system.nfs4_acl", Some(XattrName)),
            (b"", Some(XattrName)),
            (&long(250), None),
            (&long(251), Some(ImpossibleXattrName)),
        ] {
            assert_eq!(unstorable(name), expected, "{}", name.escape_ascii());
        }
    }
}

//! POSIX ACLs: text in archives, bytes in xattrs.
//!
//! ```text
//! text    user::rwx,user:lisa:r-x:1000,group::r-x,mask::r-x,other::---
//!         one entry each, separated by commas or newlines; an optional number after the rights is the id
//! bytes   u32 2; for each entry u16 tag, u16 rights, u32 id; sorted by tag, then by id
//! ```

use super::ids::IdMap;

/// The xattr of a file's own ACL.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The xattr of the ACL that new files in a directory inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
/// The id of entries that have none.
const NO_ID: u32 = u32::MAX;

mod tag {
    pub(super) const OWNER: u16 = 0x01;
    pub(super) const USER: u16 = 0x02;
    pub(super) const OWNING_GROUP: u16 = 0x04;
    pub(super) const GROUP: u16 = 0x08;
    pub(super) const MASK: u16 = 0x10;
    pub(super) const OTHER: u16 = 0x20;
}

/// The kind of account that a name in an ACL refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Account {
    User,
    Group,
}

/// The reason why a text is not a valid ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    Unreadable,
    /// An account with this name is not known, and no id is given. `group_rights` are the owning
    /// group's, for a mode without the ACL: if the ACL has a mask, the mode's group bits are the mask.
    Unknown {
        name: String,
        group_rights: u16,
    },
}

/// The order of the fields is the sort order of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    tag: u16,
    id: u32,
    rights: u16,
}

/// A POSIX ACL that contains all mandatory entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Parses an ACL; `find` resolves account names to ids.
    pub(crate) fn from_text(text: &[u8], find: &mut dyn FnMut(Account, &str) -> Option<u32>) -> Result<Self, Problem> {
        let mut entries = Vec::new();
        let mut unknown = None;
        for part in text.split(|byte| matches!(byte, b',' | b'\n')) {
            // getfacl appends an entry's effective rights as a comment.
            let part = part.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii();
            if part.is_empty() {
                continue;
            }
            let part = std::str::from_utf8(part).map_err(|_| Problem::Unreadable)?;
            let part = part.strip_prefix("default:").unwrap_or(part);
            let mut fields: Vec<&str> = part.split(':').map(str::trim).collect();
            // Some tools write mask and other without a name field.
            if fields.len() == 2 && matches!(fields[0], "mask" | "m" | "other" | "o") {
                fields.insert(1, "");
            }
            let (kind, name, rights, id) = match fields[..] {
                [kind, name, rights] | [kind, name, rights, ""] => (kind, name, rights, None),
                [kind, name, rights, id] => (kind, name, rights, Some(id)),
                _ => return Err(Problem::Unreadable),
            };
            let rights = rights_of(rights).ok_or(Problem::Unreadable)?;
            let (tag, account) = match (kind, name.is_empty() && id.is_none()) {
                ("user" | "u", true) => (tag::OWNER, None),
                ("user" | "u", false) => (tag::USER, Some(Account::User)),
                ("group" | "g", true) => (tag::OWNING_GROUP, None),
                ("group" | "g", false) => (tag::GROUP, Some(Account::Group)),
                ("mask" | "m", true) => (tag::MASK, None),
                ("other" | "o", true) => (tag::OTHER, None),
                _ => return Err(Problem::Unreadable),
            };
            let id = match (account, id) {
                (None, _) => NO_ID,
                (Some(_), Some(id)) => number(id).ok_or(Problem::Unreadable)?,
                (Some(account), None) => match number(name).or_else(|| find(account, name)) {
                    Some(id) => id,
                    None => {
                        unknown.get_or_insert_with(|| format!("{kind}:{name}"));
                        continue;
                    }
                },
            };
            entries.push(Entry { tag, id, rights });
        }
        entries.sort_unstable();
        let acl = Self { entries };
        let [owners, owning_groups, masks, others] =
            [tag::OWNER, tag::OWNING_GROUP, tag::MASK, tag::OTHER].map(|tag| acl.of(tag).count());
        let names_someone = acl.of(tag::USER).chain(acl.of(tag::GROUP)).next().is_some() || unknown.is_some();
        if (owners, owning_groups, others) != (1, 1, 1) || masks > 1 || names_someone && masks == 0 {
            return Err(Problem::Unreadable);
        }
        match unknown {
            Some(name) => Err(Problem::Unknown { name, group_rights: acl.group_rights() }),
            None => Ok(acl),
        }
    }

    fn of(&self, tag: u16) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.tag == tag)
    }

    /// Returns the effective rights of the owning group.
    fn group_rights(&self) -> u16 {
        let masks = [tag::OWNING_GROUP, tag::MASK];
        masks.into_iter().flat_map(|tag| self.of(tag)).fold(7, |rights, entry| rights & entry.rights)
    }

    /// Returns whether a mode alone can express it.
    pub(crate) fn is_mode(&self) -> bool {
        self.entries.iter().all(|entry| matches!(entry.tag, tag::OWNER | tag::OWNING_GROUP | tag::OTHER))
    }

    /// Returns the value for an xattr.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.tag.to_le_bytes());
            bytes.extend_from_slice(&entry.rights.to_le_bytes());
            bytes.extend_from_slice(&entry.id.to_le_bytes());
        }
        bytes
    }

    /// Decodes an xattr's value; `None` if it is not an ACL.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (version, entries) = bytes.split_first_chunk()?;
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return None;
        }
        let entry = |bytes: &[u8; ENTRY_BYTES]| {
            let [tag_0, tag_1, rights_0, rights_1, id @ ..] = *bytes;
            Entry {
                tag: u16::from_le_bytes([tag_0, tag_1]),
                rights: u16::from_le_bytes([rights_0, rights_1]),
                id: u32::from_le_bytes(id),
            }
        };
        Some(Self { entries: entries.iter().map(entry).collect() })
    }
}

/// Returns whether Linux can read an xattr's value as an ACL.
pub(crate) fn is_readable(value: &[u8]) -> bool {
    let is_known = |entry: &Entry| match entry.tag {
        tag::USER | tag::GROUP => entry.id != NO_ID,
        tag::OWNER | tag::OWNING_GROUP | tag::MASK | tag::OTHER => true,
        _ => false,
    };
    Acl::decode(value).is_some_and(|acl| acl.entries.iter().all(is_known))
}

/// Returns an xattr's value with the ids in its ACL mapped; `None` if nothing changes.
pub(crate) fn with_ids(value: &[u8], users: &IdMap, groups: &IdMap) -> Option<Vec<u8>> {
    let before = Acl::decode(value)?;
    let mut acl = before.clone();
    for entry in &mut acl.entries {
        match entry.tag {
            tag::USER => entry.id = users.apply(entry.id),
            tag::GROUP => entry.id = groups.apply(entry.id),
            _ => {}
        }
    }
    acl.entries.sort_unstable();
    (acl != before).then(|| acl.encode())
}

fn number(digits: &str) -> Option<u32> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?.filter(|id| *id != NO_ID)
}

fn rights_of(text: &str) -> Option<u16> {
    text.bytes().try_fold(0, |rights, letter| {
        Some(
            rights
                | match letter {
                    b'r' => 4,
                    b'w' => 2,
                    b'x' => 1,
                    b'-' => 0,
                    _ => return None,
                },
        )
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ids::IdRange;
    use super::*;

    fn acl(text: &str) -> Result<Acl, Problem> {
        Acl::from_text(text.as_bytes(), &mut |account, name| match (account, name) {
            (Account::User, "lisa") => Some(1000),
            (Account::Group, "lisa") => Some(2000),
            _ => None,
        })
    }

    /// Bytes that Linux returned after `setfacl -m u:1000:rx`.
    const LISA: [u8; 44] = [
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 5, 0, 232, 3, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 16, 0, 5,
        0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];

    #[test]
    fn all_forms_of_a_text_are_the_same() {
        for text in [
            "user::rwx,user:lisa:r-x,group::r-x,mask::r-x,other::---",
            "user::rwx\nuser:lisa:r-x\ngroup::r-x\nmask::r-x\nother::---\n",
            "user::rwx,user:lisa:r-x:1000,group::r-x,mask::r-x,other::---",
            "user::rwx,user:not-here:r-x:1000,group::r-x,mask::r-x,other::---",
            "user::rwx\nuser:1000:r-x\t#effective:r-x\ngroup::r-x\nmask:r-x\nother:---",
            "other::---, mask::r-x, group::r-x, user:1000:rx, u::rwx",
            "default:user::rwx,default:user:lisa:r-x,default:group::r-x,default:mask::r-x,default:other::---",
        ] {
            assert_eq!(acl(text).expect(text).encode(), LISA, "{text}");
        }
        let both = acl("user::rw-,group:lisa:r--,group:7:r--,group::r--,mask::r--,other::r--").unwrap();
        assert!(!both.is_mode());
        let ids: Vec<_> = both.of(tag::GROUP).map(|entry| entry.id).collect();
        assert_eq!(ids, [7, 2000], "sorted");
        assert!(acl("user::rw-,group::r--,other::r--").unwrap().is_mode());
        assert!(!acl("user::rw-,group::r--,mask::r--,other::r--").unwrap().is_mode());
    }

    #[test]
    fn invalid_acl_texts_are_refused() {
        for text in [
            "",
            "user::rwx",
            "user::rwx,group::r-x",
            "user::rwx,user::rwx,group::r-x,other::---",
            "user::rwx,user:lisa:r-x,group::r-x,other::---",
            "user::rwt,group::r-x,other::---",
            "user::rwx,group::r-x,other::---,who::r--",
            "user::rwx,group::r-x,other:lisa:---",
            "user::rwx,user:lisa:r-x:x,group::r-x,mask::r-x,other::---",
            "user::rwx,user:lisa:r-x:1:2,group::r-x,mask::r-x,other::---",
            "user::rwx,user:lisa:r-x:4294967295,group::r-x,mask::r-x,other::---",
        ] {
            assert_eq!(acl(text), Err(Problem::Unreadable), "{text}");
        }
        let unknown = acl("user::rwx,user:bart:r-x,group::rw-,mask::r-x,other::---");
        assert_eq!(unknown, Err(Problem::Unknown { name: "user:bart".to_owned(), group_rights: 4 }));
    }

    proptest! {
        #[test]
        fn any_text_is_an_acl_or_is_refused(
            text in "((user|group|mask|other|u|default:user)?:?(lisa|bart|[0-9]{0,11})?:?[rwx-]{0,3}(:[0-9]{0,11})?[,\n#]?){0,8}",
            bytes in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let _ = acl(&text);
            let _ = Acl::from_text(&bytes, &mut |_, _| None);
            let text = format!("{text},user::rwx,group::r-x,mask::r-x,other::---");
            if let Ok(acl) = acl(&text) {
                prop_assert!(acl.entries.is_sorted());
                prop_assert_eq!(Acl::decode(&acl.encode()), Some(acl));
            }
            let _ = with_ids(&bytes, &IdMap::default(), &IdMap::default());
        }
    }

    #[test]
    fn values_that_linux_cannot_read_are_none() {
        assert!(is_readable(&LISA) && is_readable(&LISA[..4]));
        let with = |at: usize, byte: u8| {
            let mut bytes = LISA;
            bytes[at] = byte;
            bytes
        };
        for wrong in [&LISA[..43], &[], &with(0, 1), &with(4, 3), &with(36, 0x40)] {
            assert!(!is_readable(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn ids_are_moved_as_owners_are() {
        let map = |from, to| IdMap::new(vec![IdRange { from, to, count: 1 }]).unwrap();
        let moved = with_ids(&LISA, &map(1000, 70_000), &map(1000, 5)).unwrap();
        assert_eq!(Acl::decode(&moved).unwrap().of(tag::USER).next().unwrap().id, 70_000);
        assert_eq!(with_ids(&LISA, &IdMap::default(), &map(1000, 5)), None);
        for wrong in [&LISA[..43], &LISA[1..], &[]] {
            assert_eq!(with_ids(wrong, &map(1000, 1), &IdMap::default()), None);
        }
    }
}

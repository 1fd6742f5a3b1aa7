//! Metadata of archive members: mode, owner, time, xattrs and ACLs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use nix::unistd::{Group, User};

use super::members::{ENCODED_XATTR_KEY, Member, XATTR_KEY, in_field, source_error};
use crate::build::acl::{self, Account, Acl, Problem};
use crate::build::member::{of_archive, shown};
use crate::build::prefixes::is_storable;
use crate::build::tree::{Node, NodeKind};
use crate::build::warnings::{WarningKind, Warnings};
use crate::error::Result;
use crate::format::Xattr;

/// The key under which `tar --selinux` stores a member's label, without the final NUL.
const LABEL_KEY: &[u8] = b"RHT.security.selinux";
/// The keys of ACLs as text, and the corresponding xattrs.
const ACL_KEYS: [(&[u8], &[u8]); 2] = [(b"SCHILY.acl.access", acl::ACCESS), (b"SCHILY.acl.default", acl::DEFAULT)];
/// The key of NFSv4 ACLs as text.
const NFS4_ACL_KEY: &[u8] = b"SCHILY.acl.ace";

/// libarchive omits the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Transfers the metadata of an archive's members to nodes.
pub(super) struct Describer {
    /// The name of the archive in messages.
    archive: PathBuf,
    no_xattrs: bool,
    accounts: HashMap<(Account, String), Option<u32>>,
    pub(super) warnings: Warnings,
}

impl Describer {
    pub(super) fn new(archive: &Path, no_xattrs: bool) -> Self {
        Self { archive: archive.to_owned(), no_xattrs, accounts: HashMap::new(), warnings: Warnings::default() }
    }

    /// Sets mode, owner, time, xattrs and ACLs.
    pub(super) fn describe(&mut self, member: &Member, node: &mut Node) -> Result<()> {
        let unreadable = || source_error(&member.path, "its mode, owner or time cannot be read");
        let text = |key: &[u8]| member.records.get(key).map(|value| std::str::from_utf8(value).unwrap_or_default());
        let id = |key: &[u8], own: Option<u64>| -> Result<u32> {
            let id = text(key).map_or(own, |text| text.parse().ok());
            id.and_then(|id| u32::try_from(id).ok()).ok_or_else(unreadable)
        };
        let (header, fields) = (&member.header, member.header.as_old());
        let mode = in_field(&fields.mode, header.mode().map(u64::from)).ok_or_else(unreadable)?;
        node.permissions = (mode & 0o7777) as u16;
        node.uid = id(b"uid", in_field(&fields.uid, header.uid()))?;
        node.gid = id(b"gid", in_field(&fields.gid, header.gid()))?;
        let time = match text(b"mtime") {
            Some(text) => parse_time(text),
            None => in_field(&fields.mtime, header.mtime()).map(|seconds| (seconds.cast_signed(), 0)),
        };
        (node.mtime_s, node.mtime_nsec) = time.ok_or_else(unreadable)?;
        node.xattrs.clear();
        self.take_xattrs(member, node)?;
        if self.no_xattrs { Ok(()) } else { self.take_acls(member, node) }
    }

    fn warn(&mut self, kind: WarningKind, member: &Member, what: &str) {
        let archive = &self.archive;
        self.warnings.add(kind, || format!("{what}{}", of_archive(archive, &shown(&member.path)).display()));
    }

    fn take_xattrs(&mut self, member: &Member, node: &mut Node) -> Result<()> {
        for (key, value) in &member.records {
            if let Some(name) = key.strip_prefix(XATTR_KEY) {
                self.take_xattr(member, node, name.to_vec(), value.clone());
            }
        }
        for (key, value) in &member.records {
            if let Some(name) = key.strip_prefix(ENCODED_XATTR_KEY).filter(|_| !self.no_xattrs) {
                let name: Vec<u8> = percent_encoding::percent_decode(name).collect();
                // libarchive writes both forms of each xattr.
                if member.records.contains_key(&[XATTR_KEY, &name].concat()) {
                    continue;
                }
                let value = BASE64.decode(value).map_err(|_| {
                    let what = format!("the value of its xattr {} cannot be read", String::from_utf8_lossy(&name));
                    source_error(&member.path, &what)
                })?;
                self.take_xattr(member, node, name, value);
            }
        }
        if let Some(label) = member.records.get(LABEL_KEY)
            && node.xattrs.iter().all(|xattr| xattr.name != b"security.selinux")
        {
            node.xattrs.push(Xattr { name: b"security.selinux".to_vec(), value: [label, &b"\0"[..]].concat() });
        }
        Ok(())
    }

    fn take_xattr(&mut self, member: &Member, node: &mut Node, name: Vec<u8>, value: Vec<u8>) {
        if is_storable(&name) {
            node.xattrs.push(Xattr { name, value });
        } else if !self.no_xattrs {
            self.warn(WarningKind::XattrName, member, &format!("{} of ", String::from_utf8_lossy(&name)));
        }
    }

    /// Adds ACLs that are stored as text, unless the same ones exist as xattrs.
    fn take_acls(&mut self, member: &Member, node: &mut Node) -> Result<()> {
        if member.records.contains_key(NFS4_ACL_KEY) {
            self.warn(WarningKind::Nfs4Acl, member, "");
        }
        for (key, name) in ACL_KEYS {
            let applies = match node.kind {
                NodeKind::Symlink(_) => false,
                NodeKind::Directory(_) => true,
                _ => name == acl::ACCESS,
            };
            let Some(text) = member.records.get(key).filter(|_| applies) else { continue };
            if node.xattrs.iter().any(|xattr| xattr.name == name) {
                continue;
            }
            match Acl::from_text(text, &mut |account, name| self.find(account, name)) {
                Ok(acl) if acl.is_mode() && name == acl::ACCESS => {}
                Ok(acl) => node.xattrs.push(Xattr { name: name.to_vec(), value: acl.encode() }),
                Err(Problem::Unknown { name: account, group_rights }) => {
                    // With an ACL, the mode's group bits contain the mask instead of the group's
                    // rights.
                    if name == acl::ACCESS {
                        node.permissions &= !0o070 | group_rights << 3;
                    }
                    self.warn(WarningKind::AclName, member, &format!("{account} in that of "));
                }
                Err(Problem::Unreadable) => {
                    let key = String::from_utf8_lossy(key);
                    let what = format!("its ACL ({key}) cannot be read; --no-xattrs leaves ACLs and xattrs out");
                    return Err(source_error(&member.path, &what));
                }
            }
        }
        Ok(())
    }

    /// Looks up the id of a user or group on this system.
    fn find(&mut self, account: Account, name: &str) -> Option<u32> {
        let find = || match account {
            Account::User => User::from_name(name).ok().flatten().map(|user| user.uid.as_raw()),
            Account::Group => Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw()),
        };
        *self.accounts.entry((account, name.to_owned())).or_insert_with(find)
    }
}

/// Parses seconds with a fraction, as PAX writes them. The fraction counts away from zero; the
/// returned nanoseconds count forward.
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

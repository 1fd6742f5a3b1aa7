//! Metadata of archive members: mode, owner, time, xattrs and ACLs.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use nix::unistd::{Group, User};
use percent_encoding::percent_decode;

use super::members::{ENCODED_XATTR_KEY, Member, XATTR_KEY, source_error};
use super::number::Stated;
use crate::build::acl::{self, Account, Acl, Problem};
use crate::build::member::{of_archive, shown};
use crate::build::scan_options::ScanOptions;
use crate::build::tree::{Node, NodeKind};
use crate::build::warnings::{WarningKind, Warnings};
use crate::build::xattrs::{shown_name, unstorable};
use crate::error::Result;
use crate::format::Xattr;

/// The key under which `tar --selinux` stores a member's label, without the final NUL.
const LABEL_KEY: &[u8] = b"RHT.security.selinux";
/// The keys of ACLs as text, and the corresponding xattrs.
const ACL_KEYS: [(&[u8], &[u8]); 2] = [(b"SCHILY.acl.access", acl::ACCESS), (b"SCHILY.acl.default", acl::DEFAULT)];
/// The key of NFSv4 ACLs as text.
const NFS4_ACL_KEY: &[u8] = b"SCHILY.acl.ace";

const IDS: RangeInclusive<i128> = 0..=u32::MAX as i128;
/// The header's mode field may also contain the kind of file.
const MODES: RangeInclusive<i128> = 0..=u32::MAX as i128;
const TIMES: RangeInclusive<i128> = i64::MIN as i128..=i64::MAX as i128;

/// libarchive omits the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Transfers the metadata of an archive's members to nodes.
pub(super) struct Describer<'a> {
    /// The name of the archive in messages.
    archive: PathBuf,
    options: &'a ScanOptions,
    accounts: HashMap<(Account, String), Option<u32>>,
    pub(super) warnings: Warnings,
}

impl<'a> Describer<'a> {
    pub(super) fn new(archive: &Path, options: &'a ScanOptions) -> Self {
        Self { archive: archive.to_owned(), options, accounts: HashMap::new(), warnings: Warnings::default() }
    }

    /// Sets mode, owner, time, xattrs and ACLs. Properties that the options replace are not read.
    pub(super) fn describe(&mut self, member: &Member, node: &mut Node) -> Result<()> {
        let named = |what: String| source_error(&member.path, &what);
        let fields = member.header.as_old();
        let stated =
            |key: &[u8], field| member.records.get(key).map_or(Stated::Field(field), |value| Stated::Record(value));
        let id = |what, key: &[u8], field, replaced: Option<u32>| match replaced {
            Some(id) => Ok(id),
            None => {
                let id = stated(key, field).within(what, IDS);
                id.map(|id| id as u32)
                    .map_err(|what| named(format!("{what}; --{key} replaces it", key = key.escape_ascii())))
            }
        };
        let mode = Stated::Field(&fields.mode).within("mode", MODES).map_err(named)?;
        node.permissions = (mode & 0o7777) as u16;
        node.uid = id("owner", b"uid", &fields.uid, self.options.uid)?;
        node.gid = id("group", b"gid", &fields.gid, self.options.gid)?;
        if self.options.mtime_s.is_none() {
            (node.mtime_s, node.mtime_nsec) = time(stated(b"mtime", &fields.mtime)).map_err(named)?;
        }
        self.take_xattrs(member, node)?;
        if self.options.no_xattrs { Ok(()) } else { self.take_acls(member, node) }
    }

    fn warn(&mut self, kind: WarningKind, member: &Member, what: &str) {
        let archive = &self.archive;
        self.warnings.add(kind, || format!("{what}{}", of_archive(archive, &shown(&member.path)).display()));
    }

    /// Takes the xattrs whose names an image can hold. GNU tar and libarchive write `%` and `=` in
    /// names as `%25` and `%3D`. libarchive writes each xattr under two keys, and escapes other bytes
    /// of the name as well.
    fn take_xattrs(&mut self, member: &Member, node: &mut Node) -> Result<()> {
        let mut found: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let with_prefix = |prefix: &'static [u8]| {
            let records = member.records.range(prefix.to_vec()..);
            records.map_while(move |(key, value)| Some((key.strip_prefix(prefix)?, value)))
        };
        for (key, value) in with_prefix(XATTR_KEY) {
            let is_twin = member.records.contains_key(&[ENCODED_XATTR_KEY, key].concat());
            let name = if is_twin { percent_decode(key).collect() } else { without_gnu_escapes(key) };
            found.entry(name).or_insert_with(|| value.clone());
        }
        for (key, value) in with_prefix(ENCODED_XATTR_KEY) {
            let name: Vec<u8> = percent_decode(key).collect();
            if found.contains_key(&name) {
                continue;
            }
            match BASE64.decode(value) {
                Ok(value) => _ = found.insert(name, value),
                Err(_) if self.options.no_xattrs => {}
                Err(_) => {
                    let what = format!("the value of its xattr {} cannot be read", shown_name(&name));
                    return Err(source_error(&member.path, &what));
                }
            }
        }
        if let Some(label) = member.records.get(LABEL_KEY) {
            let value = || [label, &b"\0"[..]].concat();
            found.entry(b"security.selinux".to_vec()).or_insert_with(value);
        }
        node.xattrs.clear();
        for (name, value) in found {
            match unstorable(&name) {
                None => node.xattrs.push(Xattr { name, value }),
                Some(_) if self.options.no_xattrs => {}
                Some(kind) => self.warn(kind, member, &format!("{} of ", shown_name(&name))),
            }
        }
        Ok(())
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

/// Replaces `%25` and `%3D` by what they stand for.
fn without_gnu_escapes(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match after.split_first_chunk() {
            Some((b"25", after)) if *first == b'%' => (b'%', after),
            Some((b"3D", after)) if *first == b'%' => (b'=', after),
            _ => (*first, after),
        };
        plain.push(byte);
        rest = after;
    }
    plain
}

/// Returns a time in seconds and nanoseconds, or what is wrong with it.
fn time(stated: Stated) -> std::result::Result<(i64, u32), String> {
    let parsed = match stated {
        Stated::Record(value) => std::str::from_utf8(value).ok().and_then(parse_time),
        Stated::Field(_) => stated.within("time", TIMES).ok().map(|seconds| (seconds as i64, 0)),
    };
    parsed.ok_or_else(|| {
        let what = match stated.within("time", TIMES) {
            Err(what) => what,
            Ok(_) => format!("its time, {}, cannot be read", stated.shown(None)),
        };
        format!("{what}; --timestamp replaces it")
    })
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
    use super::*;

    #[test]
    fn pax_times() {
        assert_eq!(parse_time("12"), Some((12, 0)));
        assert_eq!(parse_time("12.5"), Some((12, 500_000_000)));
        assert_eq!(parse_time("12.1234567891"), Some((12, 123_456_789)));
        assert_eq!(parse_time("-1.25"), Some((-2, 750_000_000)));
        assert_eq!(parse_time("x"), None);
        assert_eq!(parse_time("1.x"), None);
        assert_eq!(parse_time("-9223372036854775808.5"), None);
    }

    #[test]
    fn gnu_tars_escapes_are_two() {
        for (name, plain) in [
            ("user.a%3Db", "user.a=b"),
            ("user.%25", "user.%"),
            ("user.%253D", "user.%3D"),
            ("user.%%3D25%", "user.%=25%"),
            ("user.%3d%20%2", "user.%3d%20%2"),
        ] {
            assert_eq!(without_gnu_escapes(name.as_bytes()), plain.as_bytes());
        }
    }
}

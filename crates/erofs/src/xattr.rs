//! Extended attributes of an inode, inline and shared.

use std::collections::HashSet;

use crate::error::{Error, Result};
use crate::format::{XATTR_LONG_PREFIX, XATTR_PREFIXES, XattrEntry, XattrHeader, align, compat};
use crate::image::Image;
use crate::inode::Inode;
use crate::metabox::IN_BOX;

/// One extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xattr {
    /// Its full name, such as `user.note`.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// A prefix that the image defines: a predefined one and what follows it.
pub(crate) type LongPrefix = Vec<u8>;

pub(crate) fn short_prefix(index: u8) -> Option<&'static [u8]> {
    XATTR_PREFIXES.iter().find(|(known, _)| *known == index).map(|(_, prefix)| *prefix)
}

impl Image {
    /// All xattrs of `inode`, shared ones first. At most 256 KiB inline plus 255 shared ones of at most 64 KiB.
    pub fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        if inode.xattr_end == inode.xattr_start {
            return Ok(Vec::new());
        }
        let mut body = vec![0; (inode.xattr_end - inode.xattr_start) as usize];
        self.read_meta(&mut body, inode.xattr_start)?;
        let Some((header, mut rest)) = body.split_first_chunk::<{ XattrHeader::SIZE }>() else {
            return Error::corrupt("xattrs are shorter than their header", inode.xattr_start);
        };
        let header = XattrHeader::decode(header);
        let mut xattrs = Vec::new();
        let in_box = self.superblock().has_compatible(compat::SHARED_XATTRS_IN_METABOX);
        let shared_start = self.superblock().xattr_offset | if in_box { IN_BOX } else { 0 };
        for _ in 0..header.h_shared_count {
            let Some((id, after)) = rest.split_first_chunk() else {
                return Error::corrupt("shared xattr ids are longer than the xattrs", inode.xattr_start);
            };
            rest = after;
            let at = shared_start + 4 * u64::from(u32::from_le_bytes(*id));
            xattrs.push(self.shared_xattr(at)?);
        }
        while let Some((entry, after)) = rest.split_first_chunk::<{ XattrEntry::SIZE }>() {
            let at = inode.xattr_end - rest.len() as u64;
            let entry = XattrEntry::decode(entry);
            let (name_len, value_len) = (usize::from(entry.e_name_len), usize::from(entry.e_value_size));
            // Zeros fill what an encoder left over.
            if (entry.e_name_index, name_len, value_len) == (0, 0, 0) {
                rest = after;
                continue;
            }
            let Some(bytes) = after.get(..name_len + value_len) else {
                return Error::corrupt("xattr is longer than the inode's xattrs", at);
            };
            xattrs.push(self.named(entry, &bytes[..name_len], &bytes[name_len..], at)?);
            let padded = (name_len + value_len).next_multiple_of(4);
            rest = after.get(padded..).unwrap_or_default();
        }
        let names: HashSet<_> = xattrs.iter().map(|xattr| &xattr.name).collect();
        if names.len() != xattrs.len() {
            return Error::corrupt("inode has an xattr twice", inode.xattr_start);
        }
        Ok(xattrs)
    }

    fn shared_xattr(&self, at: u64) -> Result<Xattr> {
        let mut header = [0; XattrEntry::SIZE];
        self.read_meta(&mut header, at)?;
        let entry = XattrEntry::decode(&header);
        let name_len = usize::from(entry.e_name_len);
        let mut bytes = vec![0; name_len + usize::from(entry.e_value_size)];
        self.read_meta(&mut bytes, at + XattrEntry::SIZE as u64)?;
        self.named(entry, &bytes[..name_len], &bytes[name_len..], at)
    }

    fn named(&self, entry: XattrEntry, suffix: &[u8], value: &[u8], at: u64) -> Result<Xattr> {
        let prefix = if entry.e_name_index & XATTR_LONG_PREFIX != 0 {
            let index = usize::from(entry.e_name_index & !XATTR_LONG_PREFIX);
            self.long_prefixes().get(index).map(Vec::as_slice)
        } else {
            short_prefix(entry.e_name_index)
        };
        let Some(prefix) = prefix else {
            return Error::corrupt("xattr has an unknown name prefix", at);
        };
        let name = [prefix, suffix].concat();
        if name.len() > 255 || name.contains(&0) {
            return Error::corrupt("xattr has an impossible name", at);
        }
        Ok(Xattr { name, value: value.to_vec() })
    }

    /// The image's own prefixes: for each a 16-bit length, the index of a predefined prefix, and what follows it;
    /// aligned to 4, in the metadata box or else in the packed inode where there is one.
    pub(crate) fn read_long_prefixes(&self) -> Result<Vec<LongPrefix>> {
        let Some((count, mut at)) = self.superblock().xattr_prefixes else { return Ok(Vec::new()) };
        let holder = self.superblock().metabox_nid.or(self.superblock().packed_nid);
        let holder = holder.map(|nid| self.inode(nid)).transpose()?;
        let read = |buf: &mut [u8], at: u64| match &holder {
            Some(inode) => self.read_exact_at(inode, buf, at),
            None => self.read_meta(buf, at),
        };
        let mut prefixes = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            at = align(at, 4);
            let mut len = [0; 2];
            read(&mut len, at)?;
            let len = usize::from(u16::from_le_bytes(len));
            if !(1..=256).contains(&len) {
                return Error::corrupt("xattr prefix is empty or longer than a name", at);
            }
            let mut bytes = vec![0; len];
            read(&mut bytes, at + 2)?;
            let Some(base) = short_prefix(bytes[0]) else {
                return Error::corrupt("xattr prefix extends an unknown one", at);
            };
            prefixes.push([base, &bytes[1..]].concat());
            at += 2 + len as u64;
        }
        Ok(prefixes)
    }
}

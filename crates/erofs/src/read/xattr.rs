//! Extended attributes of an inode, inline and shared.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use super::image::Image;
use super::inode::Inode;
use crate::error::{Error, Result};
use crate::format::{IN_BOX, Prefix, XATTR_LONG_PREFIX, Xattr, XattrEntry, XattrHeader, align, compat};

/// All of an inode's xattrs.
#[derive(Default)]
pub(crate) struct Xattrs {
    pub(crate) known: Vec<Xattr>,
    /// Unrecognized prefix indexes, each once.
    pub(crate) unknown: BTreeSet<u8>,
    /// The byte ranges of the shared ones in the image.
    pub(crate) shared: Vec<Range<u64>>,
}

impl Xattrs {
    /// Returns warnings about the xattrs that are skipped.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        self.unknown.iter().map(|index| {
            format!("an xattr is skipped: its name has the prefix {index}, which the format does not define")
        })
    }

    fn add(&mut self, image: &Image, entry: XattrEntry, suffix: &[u8], value: &[u8], at: u64) -> Result<()> {
        let prefix = match image.long_prefix(entry.e_name_index) {
            Some(prefix) => prefix,
            None => Prefix::short(entry.e_name_index),
        };
        match prefix.followed_by(suffix) {
            Prefix::Known(name) if name.len() > 255 || name.contains(&0) => {
                return Error::corrupt("xattr has an impossible name", at);
            }
            Prefix::Known(name) => self.known.push(Xattr { name, value: value.to_vec() }),
            Prefix::Hidden => {}
            Prefix::Unknown(index) => drop(self.unknown.insert(index)),
        }
        Ok(())
    }
}

impl Image {
    /// Returns the xattrs of `inode`, shared ones first. Skips those whose name has a prefix that
    /// the format does not define, as Linux does. At most 256 KiB inline plus 255 shared ones of at
    /// most 64 KiB.
    pub fn xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        Ok(self.all_xattrs(inode)?.known)
    }

    /// Like [`xattrs`](Self::xattrs), including information about skipped ones.
    pub(crate) fn all_xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        let mut xattrs = Xattrs::default();
        if inode.xattr_end == inode.xattr_start {
            return Ok(xattrs);
        }
        let mut body = vec![0; (inode.xattr_end - inode.xattr_start) as usize];
        self.read_meta(&mut body, inode.xattr_start)?;
        let Some((header, mut rest)) = body.split_first_chunk::<{ XattrHeader::SIZE }>() else {
            return Error::corrupt("xattrs are shorter than their header", inode.xattr_start);
        };
        let header = XattrHeader::decode(header);
        let in_box = self.superblock().has_compatible(compat::SHARED_XATTRS_IN_METABOX);
        let shared_start = self.superblock().xattr_offset | if in_box { IN_BOX } else { 0 };
        for _ in 0..header.h_shared_count {
            let Some((id, after)) = rest.split_first_chunk() else {
                return Error::corrupt("shared xattr ids are longer than the xattrs", inode.xattr_start);
            };
            rest = after;
            let at = shared_start + 4 * u64::from(u32::from_le_bytes(*id));
            self.shared_xattr(&mut xattrs, at)?;
        }
        while let Some((entry, after)) = rest.split_first_chunk::<{ XattrEntry::SIZE }>() {
            let at = inode.xattr_end - rest.len() as u64;
            let entry = XattrEntry::decode(entry);
            let (name_len, value_len) = (usize::from(entry.e_name_len), usize::from(entry.e_value_size));
            // Encoders pad with zeros.
            if (entry.e_name_index, name_len, value_len) == (0, 0, 0) {
                rest = after;
                continue;
            }
            let Some(bytes) = after.get(..name_len + value_len) else {
                return Error::corrupt("xattr is longer than the inode's xattrs", at);
            };
            xattrs.add(self, entry, &bytes[..name_len], &bytes[name_len..], at)?;
            let padded = (name_len + value_len).next_multiple_of(4);
            rest = after.get(padded..).unwrap_or_default();
        }
        let names: HashSet<_> = xattrs.known.iter().map(|xattr| &xattr.name).collect();
        if names.len() != xattrs.known.len() {
            return Error::corrupt("inode has an xattr twice", inode.xattr_start);
        }
        Ok(xattrs)
    }

    fn shared_xattr(&self, xattrs: &mut Xattrs, at: u64) -> Result<()> {
        let mut header = [0; XattrEntry::SIZE];
        self.read_meta(&mut header, at)?;
        let entry = XattrEntry::decode(&header);
        let name_len = usize::from(entry.e_name_len);
        let mut bytes = vec![0; name_len + usize::from(entry.e_value_size)];
        let start = at + XattrEntry::SIZE as u64;
        self.read_meta(&mut bytes, start)?;
        xattrs.shared.push(at..start + bytes.len() as u64);
        xattrs.add(self, entry, &bytes[..name_len], &bytes[name_len..], at)
    }

    /// Returns the prefix that the image defines for an index; `None` for an index of a predefined
    /// prefix.
    fn long_prefix(&self, index: u8) -> Option<Prefix> {
        let number = index & !XATTR_LONG_PREFIX;
        (number != index)
            .then(|| self.long_prefixes().get(usize::from(number)).cloned().unwrap_or(Prefix::Unknown(index)))
    }

    /// Reads the image's own prefixes: for each, a 16-bit length, the index of a predefined prefix,
    /// and the rest of the prefix; aligned to 4. They are in the metadata box or else in the packed
    /// inode, if there is one, unless the image says otherwise. Also returns their byte range,
    /// which is empty if they are in one of these.
    pub(crate) fn read_long_prefixes(&self) -> Result<(Vec<Prefix>, Range<u64>)> {
        let superblock = self.superblock();
        let Some((count, start)) = superblock.xattr_prefixes else { return Ok((Vec::new(), 0..0)) };
        let plain = superblock.feature_compat & compat::PLAIN_XATTR_PREFIXES != 0;
        let nid = superblock.metabox_nid.or(superblock.packed_nid).filter(|_| !plain);
        let holder = nid.map(|nid| self.inode(nid)).transpose()?;
        let read = |buf: &mut [u8], at: u64| match &holder {
            Some(inode) => self.read_exact_at(inode, buf, at),
            None => self.read_meta(buf, at),
        };
        let mut prefixes = Vec::with_capacity(usize::from(count));
        let mut end = start;
        for _ in 0..count {
            let at = align(end, 4);
            let mut len = [0; 2];
            read(&mut len, at)?;
            let len = usize::from(u16::from_le_bytes(len));
            if !(1..=256).contains(&len) {
                return Error::corrupt("xattr prefix is empty or longer than a name", at);
            }
            let mut bytes = vec![0; len];
            read(&mut bytes, at + 2)?;
            prefixes.push(Prefix::short(bytes[0]).followed_by(&bytes[1..]));
            end = at + 2 + len as u64;
        }
        Ok((prefixes, if holder.is_some() { 0..0 } else { start..end }))
    }
}

//! Checking the content of one file.

use super::claims::{Claim, Claims, Owner, Purpose};
use crate::error::Result;
use crate::format::{DataLayout, Place};
use crate::read::content::{CHUNKS_READ, Data};
use crate::read::inode::FileKind;
use crate::read::zmap::Cursor;

impl Data {
    /// Reads the file's layout, claims its blocks, and decodes each cluster that is not decoded
    /// yet.
    pub(crate) fn check(&self, claims: &Claims, owner: Owner) -> Result<()> {
        let size = self.inode.size;
        match self.inode.layout {
            DataLayout::FlatPlain | DataLayout::FlatInline => {
                let inline = self.inode.layout == DataLayout::FlatInline;
                let in_blocks = if inline { size - size % self.block_bytes() } else { size };
                if in_blocks > 0 && !self.inode.is_hole {
                    let start = self.image.spot(0, self.block_offset(self.inode.raw)?)?;
                    self.image.check_spot(in_blocks, start)?;
                    let purpose = match self.inode.kind {
                        FileKind::Directory => Purpose::Metadata,
                        _ => Purpose::Run,
                    };
                    claims.add(Claim { start, len: in_blocks, purpose }, owner);
                }
                if inline {
                    self.read_at(&mut vec![0; (size - in_blocks) as usize], in_blocks).map(drop)
                } else {
                    Ok(())
                }
            }
            DataLayout::ChunkBased => {
                let (chunk_bits, ..) = self.chunk_format()?;
                let chunks = size.div_ceil(1 << chunk_bits);
                let mut blocks = claims.joined(owner, Purpose::Blocks);
                let mut first = 0;
                while first < chunks {
                    let count = (chunks - first).min(CHUNKS_READ);
                    for (number, address) in (first..).zip(self.chunk_addresses(first, count)?) {
                        let Some(start) = address else { continue };
                        let len = (size - (number << chunk_bits)).min(1 << chunk_bits);
                        self.image.check_spot(len, start)?;
                        blocks.add(start, len);
                    }
                    first += count;
                }
                Ok(())
            }
            DataLayout::CompressedFull | DataLayout::CompressedCompact => self.check_extents(claims, owner),
        }
    }

    /// Like [`check`](Self::check), for compressed files.
    fn check_extents(&self, claims: &Claims, owner: Owner) -> Result<()> {
        let Some(map) = &self.map else { return Ok(()) };
        let mut cursor = Cursor::default();
        let mut content = Vec::new();
        let mut blocks = claims.joined(owner, Purpose::Plain);
        let mut at = 0;
        while at < self.inode.size {
            let extent = map.extent_at(&self.image, &mut cursor, at)?;
            match extent.place {
                Place::Hole => {}
                Place::Fragment { offset } => self.check_fragment(offset, extent.len)?,
                Place::Plain { pa, plen, .. } => {
                    let start = self.image.spot(0, pa)?;
                    self.image.check_spot(extent.len, start)?;
                    if !map.is_inline(pa) {
                        blocks.add(start, plen.into());
                    }
                }
                Place::Encoded { pa, plen, .. } => {
                    let mut decode = || {
                        let room = extent.len as usize + self.margin(&extent);
                        if content.len() < room {
                            content.resize(room, 0);
                        }
                        self.decode_run(std::slice::from_ref(&extent), &mut content[..room])
                    };
                    if map.is_inline(pa) {
                        // Data after the indexes is part of the inode's own record.
                        decode()?;
                    } else {
                        let start = self.image.spot(0, pa)?;
                        let claim = Claim { start, len: plen.into(), purpose: Purpose::Cluster };
                        claims.decode(claim, owner, &mut decode)?;
                    }
                }
            }
            at = extent.end();
        }
        Ok(())
    }
}

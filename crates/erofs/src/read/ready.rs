//! Reading without waiting for storage.
//!
//! A read stops at the first byte that needs a wait or gives an error. A read that waits then
//! reports the error.

use pagefold_codec::cluster::{ClusterFormat, Portion as Wanted};

use super::compressed::{Scratch, front};
use super::content::Data;
use super::devices::Spot;
use super::image::ReadCounts;
use super::zextents::NOT_LOADED;
use super::zmap::Cursor;
use crate::format::{DataLayout, Extent, Place};
use crate::readahead::Ready;

/// The maximum number of bytes of an LZ4 cluster that are decoded without a wait. Decoding all of
/// them takes less time than handing the read to another thread. The codecs of other formats take
/// several times as long.
const SHORT_BYTES: usize = 64 << 10;

impl Data {
    /// Like [`read_at`](Self::read_at), without waiting for storage.
    pub(crate) fn try_read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        let len = self.clip(buf.len(), offset);
        let buf = &mut buf[..len];
        match self.inode.layout {
            DataLayout::FlatPlain | DataLayout::FlatInline => self.try_flat(buf, offset),
            DataLayout::ChunkBased => self.try_chunks(buf, offset),
            DataLayout::CompressedFull | DataLayout::CompressedCompact => {
                self.try_compressed(buf, offset, Ready::of(buf.len()))
            }
        }
    }

    fn try_flat(&self, buf: &mut [u8], offset: u64) -> usize {
        if self.inode.is_hole {
            buf.fill(0);
            return buf.len();
        }
        let block = self.block_bytes();
        let inline = self.inode.layout == DataLayout::FlatInline;
        let in_blocks = if inline { self.inode.size - self.inode.size % block } else { self.inode.size };
        let blocks = in_blocks.saturating_sub(offset).min(buf.len() as u64) as usize;
        let Ok(start) = self.block_offset(self.inode.raw) else { return 0 };
        // The inline end is metadata, which is read with a wait.
        if blocks == 0 { 0 } else { self.image.try_read_data(&mut buf[..blocks], start + offset) }
    }

    fn try_chunks(&self, buf: &mut [u8], offset: u64) -> usize {
        let Ok((bits, ..)) = self.chunk_format() else { return 0 };
        let read = |bytes: &mut [u8], offset| {
            let is_read = self.image.try_read_spot(bytes, Spot { device: 0, offset }) == bytes.len();
            if is_read { Ok(()) } else { Err(NOT_LOADED) }
        };
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let Ok(found) = self.chunk_addresses_with(at >> bits, 1, read) else { break };
            let in_chunk = at & ((1 << bits) - 1);
            let here = ((1u64 << bits) - in_chunk).min((buf.len() - done) as u64) as usize;
            let out = &mut buf[done..done + here];
            let filled = match found[..] {
                [Some(Spot { device, offset })] => {
                    self.image.try_read_spot(out, Spot { device, offset: offset.saturating_add(in_chunk) })
                }
                _ => {
                    out.fill(0);
                    here
                }
            };
            done += filled;
            if filled < here {
                break;
            }
        }
        done
    }

    /// Like [`read_compressed`](Self::read_compressed), without waiting for storage.
    pub(super) fn try_compressed(&self, buf: &mut [u8], offset: u64, ready: Ready) -> usize {
        let Some(map) = &self.map else { return 0 };
        let mut cursor = Cursor::of_loaded();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let Ok(extent) = map.extent_at(&self.image, &mut cursor, at) else { break };
            let here = (extent.end() - at).min((buf.len() - done) as u64) as usize;
            let filled = self.try_extent(&extent, &mut buf[done..done + here], at - extent.start, ready);
            done += filled;
            if filled < here {
                break;
            }
        }
        done
    }

    /// Returns the start of the extent that ends at `offset`, if one does and its indexes are in
    /// memory.
    pub(super) fn loaded_start_before(&self, offset: u64) -> Option<u64> {
        let map = self.map.as_ref()?;
        let extent = map.extent_at(&self.image, &mut Cursor::of_loaded(), offset.checked_sub(1)?).ok()?;
        (extent.end() == offset).then_some(extent.start)
    }

    fn try_extent(&self, extent: &Extent, out: &mut [u8], skipped: u64, ready: Ready) -> usize {
        match extent.place {
            Place::Hole => {
                out.fill(0);
                out.len()
            }
            Place::Fragment { offset } => match (&self.packed, offset.checked_add(skipped)) {
                (Some(packed), Some(at)) => packed.try_read_at(out, at),
                _ => 0,
            },
            Place::Plain { pa, plen, interlaced: true } => {
                let [(at_end, end_pa), (at_front, front_pa)] = self.interlaced(out, extent, (pa, plen), skipped);
                let filled = self.try_plain(at_end, end_pa);
                if filled < at_end.len() { filled } else { filled + self.try_plain(at_front, front_pa) }
            }
            Place::Plain { pa, .. } => self.try_plain(out, pa + skipped),
            Place::Encoded { .. } if self.try_encoded(extent, out, skipped as usize, ready) => out.len(),
            Place::Encoded { .. } => 0,
        }
    }

    fn try_plain(&self, out: &mut [u8], pa: u64) -> usize {
        if out.is_empty() { 0 } else { self.image.try_read_data(out, pa) }
    }

    /// Fills `out` from the cache or, if `ready` permits it, from the front of an LZ4 cluster that is
    /// at hand. Returns whether `out` is filled.
    fn try_encoded(&self, extent: &Extent, out: &mut [u8], from: usize, ready: Ready) -> bool {
        let Place::Encoded { pa, plen, format, .. } = extent.place else { return false };
        let clusters = self.image.clusters();
        if let Some(content) = clusters.find(pa, extent.len) {
            if clusters.is_filling() {
                clusters.visit(pa);
            }
            content.read(from, out);
            return true;
        }
        let (stored, len, to) = (plen as usize, extent.len as usize, from + out.len());
        if ready != Ready::Decoding || format != ClusterFormat::Lz4 || stored.max(to) > SHORT_BYTES {
            return false;
        }
        Scratch::lend(|Scratch { decoder, src, content }| {
            if src.len() < stored {
                src.resize(stored, 0);
            }
            if self.image.try_read_data(&mut src[..stored], pa) < stored {
                return false;
            }
            let visits = clusters.visit(pa);
            let misses = self.missed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let src = &src[..stored];
            let is_decoded = if out.len() == len {
                self.decode_one(extent, src, out, Wanted::Whole, decoder).is_ok()
            } else if len <= SHORT_BYTES && self.is_wanted(extent, (pa, format), to, visits, misses) {
                let room = len + self.margin(extent);
                let mut kept = self.image.buffers().take_kept(room);
                let is_decoded = self.decode_one(extent, src, &mut kept.room()[..len], Wanted::Whole, decoder).is_ok();
                if is_decoded {
                    clusters.put(pa, extent.len, room, kept.shorten(len)).read(from, out);
                }
                is_decoded
            } else {
                let (len, wanted) = match front(format, to, len) {
                    front if front == len => (len, Wanted::Whole),
                    front => (front, Wanted::Prefix),
                };
                if content.len() < len {
                    content.resize(len, 0);
                }
                let is_decoded = self.decode_one(extent, src, &mut content[..len], wanted, decoder).is_ok();
                if is_decoded {
                    out.copy_from_slice(&content[from..to]);
                }
                is_decoded
            };
            self.image.count(&ReadCounts { decoded_by_copy: u64::from(is_decoded), ..ReadCounts::default() }, pa);
            is_decoded
        })
    }
}

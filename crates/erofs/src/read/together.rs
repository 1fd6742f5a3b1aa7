//! Several reads together: what they share of a cluster is fetched and decoded once.
//!
//! ```text
//! reads:            a    b         c             d
//! clusters:     |   1   |   2   |   3   | . . |   4   |
//! fetched:      one read of 1 to 3                one read of 4
//! decoded:      each once, into the cache if it is worth keeping
//! ```
//!
//! If something cannot be fetched or decoded, each read of it reports the error itself.

use pagefold_codec::cluster::{ClusterFormat, Portion as Wanted};

use super::compressed::{Scratch, front};
use super::content::Data;
use super::image::ReadCounts;
use super::zmap::Cursor;
use crate::cache::{Content, Kept};
use crate::error::Result;
use crate::format::{Extent, Place};

/// The maximum length of content that is held for the reads of one call; more is decoded read by
/// read.
const HELD_BYTES: u64 = 4 << 20;

/// The maximum number of bytes fetched in one read, unless a single cluster is longer, and the
/// longest gap between two clusters that is fetched with them.
const FETCH_BYTES: u64 = 512 << 10;
const GAP_BYTES: u64 = 16 << 10;

/// One of several reads of a file.
#[derive(Debug)]
pub struct ReadPart<'a> {
    /// The first byte to read.
    pub offset: u64,
    /// Filled from `offset`; the range must exist in the file. Its content is unspecified unless
    /// `result` is `Ok`.
    pub buf: &'a mut [u8],
    /// Set by the call.
    pub result: Result<()>,
}

/// A cluster of which reads want parts, the last one up to `to`.
struct Shared {
    extent: Extent,
    pa: u64,
    plen: u32,
    format: ClusterFormat,
    to: usize,
}

impl Shared {
    /// Returns a cluster if it is encoded and a read from `offset` to `end` wants a part of it.
    fn of(extent: Extent, offset: u64, end: u64) -> Option<Self> {
        let is_whole = offset <= extent.start && extent.end() <= end;
        match extent.place {
            Place::Encoded { pa, plen, format, .. } if !is_whole => {
                Some(Self { extent, pa, plen, format, to: (end.min(extent.end()) - extent.start) as usize })
            }
            _ => None,
        }
    }

    fn end(&self) -> u64 {
        self.pa + u64::from(self.plen)
    }
}

/// The decoded front of a cluster: all that the reads want of it.
struct Held {
    extent: Extent,
    content: HeldContent,
}

enum HeldContent {
    Cached(Kept<Content>),
    Own(Content),
}

impl Data {
    /// Runs reads, sorted by offset.
    pub(super) fn read_together(&self, parts: &mut [&mut ReadPart<'_>]) {
        let mut held = self.hold(self.shared_by(parts));
        held.sort_unstable_by_key(|held| held.extent.start);
        for part in parts {
            part.result = self.read_held(part.buf, part.offset, &held);
        }
    }

    /// Returns the clusters of which the reads want parts, each once, in the order of their
    /// addresses.
    fn shared_by(&self, parts: &[&mut ReadPart<'_>]) -> Vec<Shared> {
        let mut found: Vec<Shared> = Vec::with_capacity(parts.len());
        let Some(map) = &self.map else { return found };
        let mut cursor = Cursor::default();
        let mut held_bytes = 0;
        for part in parts {
            let (mut at, end) = (part.offset, part.offset + part.buf.len() as u64);
            while at < end {
                // The read itself reports the error.
                let Ok(extent) = map.extent_at(&self.image, &mut cursor, at) else { break };
                at = extent.end();
                let Some(shared) = Shared::of(extent, part.offset, end) else { continue };
                match found.last_mut().filter(|last| last.extent == extent) {
                    Some(last) => last.to = last.to.max(shared.to),
                    None if held_bytes + extent.len > HELD_BYTES => break,
                    None => {
                        held_bytes += extent.len;
                        found.push(shared);
                    }
                }
            }
        }
        found.sort_unstable_by_key(|shared| (shared.pa, shared.extent.start));
        found.dedup_by(|next, shared| {
            let is_same = next.extent == shared.extent;
            shared.to = if is_same { shared.to.max(next.to) } else { shared.to };
            is_same
        });
        found
    }

    /// Fetches and decodes the clusters that can be.
    fn hold(&self, mut wanted: Vec<Shared>) -> Vec<Held> {
        let mut held = Vec::with_capacity(wanted.len());
        let clusters = self.image.clusters();
        wanted.retain(|shared| match clusters.find(shared.pa, shared.extent.len) {
            Some(content) => {
                clusters.visit(shared.pa);
                held.push(Held { extent: shared.extent, content: HeldContent::Cached(content) });
                false
            }
            None => true,
        });
        let near = |first: u64, end: u64, next: &Shared| {
            next.pa <= end + GAP_BYTES && next.end().saturating_sub(first) <= FETCH_BYTES
        };
        let mut rest = &wanted[..];
        while let Some(first) = rest.first() {
            let (mut count, mut end) = (1, first.end());
            while let Some(next) = rest.get(count).filter(|next| near(first.pa, end, next)) {
                end = end.max(next.end());
                count += 1;
            }
            // A failure is left to the reads.
            let _ = self.hold_run(&rest[..count], end, &mut held);
            rest = &rest[count..];
        }
        held
    }

    /// Fetches clusters that are close to each other, and decodes each.
    fn hold_run(&self, run: &[Shared], end: u64, held: &mut Vec<Held>) -> Result<()> {
        let Some(first) = run.first() else { return Ok(()) };
        let stored = (end - first.pa) as usize;
        let mut buffer;
        let bytes = match self.image.bytes_at(stored, first.pa)? {
            Some(bytes) => bytes,
            None => {
                buffer = self.image.buffers().take(stored);
                self.image.read_data(&mut buffer.room()[..stored], first.pa)?;
                &buffer.room()[..stored]
            }
        };
        for shared in run {
            let from = (shared.pa - first.pa) as usize;
            if let Ok(content) = self.decode_shared(shared, &bytes[from..from + shared.plen as usize]) {
                held.push(Held { extent: shared.extent, content });
            }
        }
        Ok(())
    }

    /// Decodes a cluster from its compressed bytes up to what is wanted, or whole if it is worth
    /// caching.
    fn decode_shared(&self, shared: &Shared, bytes: &[u8]) -> Result<HeldContent> {
        let Shared { extent, pa, format, to, .. } = shared;
        let (len, room) = (extent.len as usize, extent.len as usize + self.margin(extent));
        let (clusters, buffers) = (self.image.clusters(), self.image.buffers());
        let decode = |mut content: Content, len: usize, wanted: Wanted| {
            Scratch::lend(|scratch| {
                self.decode_one(extent, bytes, &mut content.room()[..len], wanted, &mut scratch.decoder)
            })?;
            self.image.count(&ReadCounts { decoded_by_copy: 1, ..ReadCounts::default() }, *pa);
            Ok(content.shorten(len))
        };
        let visits = clusters.visit(*pa);
        let misses = self.missed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if self.is_wanted(extent, (*pa, *format), *to, visits, misses) {
            let made = clusters.get(*pa, extent.len, room, || decode(buffers.take_kept(room), len, Wanted::Whole));
            return Ok(HeldContent::Cached(made?));
        }
        let (len, wanted) = match front(*format, *to, len) {
            front if front == len => (len, Wanted::Whole),
            front => (front, Wanted::Prefix),
        };
        Ok(HeldContent::Own(decode(buffers.take(len), len, wanted)?))
    }

    /// Fills `buf` from `offset`: from `held` what is there.
    fn read_held(&self, buf: &mut [u8], offset: u64, held: &[Held]) -> Result<()> {
        let (mut done, end) = (0, offset + buf.len() as u64);
        while done < buf.len() {
            let at = offset + done as u64;
            let next = held.get(held.partition_point(|held| held.extent.end() <= at));
            let until = match next {
                Some(held) if held.extent.start <= at => held.extent.end().min(end),
                Some(held) => held.extent.start.min(end),
                None => end,
            };
            let out = &mut buf[done..done + (until - at) as usize];
            // A read of the whole cluster may want more of it than the others.
            match next.filter(|held| held.extent.start <= at && until <= held.end()) {
                Some(held) => held.content().read((at - held.extent.start) as usize, out),
                None => self.read_compressed(out, out.len(), at, false)?,
            }
            done += (until - at) as usize;
        }
        Ok(())
    }
}

impl Held {
    fn content(&self) -> &Content {
        match &self.content {
            HeldContent::Cached(content) => content,
            HeldContent::Own(content) => content,
        }
    }

    /// Returns the end of what is decoded, as an offset in the file.
    fn end(&self) -> u64 {
        self.extent.start + self.content().len() as u64
    }
}

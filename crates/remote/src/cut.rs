//! Where an image is cut into chunks.
//!
//! A read needs whole clusters, and a fetch whole chunks. A chunk that starts and ends with a
//! cluster is fetched only for its own clusters, and a short chunk brings few others along. Each
//! chunk costs 48 bytes of the index, which is fetched as a whole.

use std::{collections::HashSet, io, ops::ControlFlow, ops::Range};

use pagefold_erofs::{FileKind, Image, Inode};
use pagefold_storage::ReadAt;

use crate::{
    index::{Index, Indexing},
    range_text::fitting,
};

/// Cuts are at multiples of this, if clusters do not decide.
const UNIT_BYTES: u64 = 4096;

/// The usual length of a chunk: an index is then 0.1 % of its image. With shorter ones, a start that reads
/// 2 % of an image fetches more for the index than it saves.
const USUAL_BYTES: u64 = 48 << 10;

/// The power of two below that: the length that is read together for the sake of a chunk.
pub(crate) const READ_TOGETHER_BYTES: u64 = 32 << 10;

/// The usual largest number of chunks of an image: the index then has 1.5 MiB.
const MOST_CHUNKS: u64 = 32 << 10;

/// The usual length of the longest chunks. One cluster may have more.
const MOST_BYTES: u64 = 1 << 20;

/// Returns the usual length of a chunk in an image of `size_bytes`.
pub(crate) fn usual_bytes(size_bytes: u64) -> u64 {
    (size_bytes / MOST_CHUNKS).next_multiple_of(UNIT_BYTES).clamp(USUAL_BYTES, MOST_BYTES)
}

/// Where the clusters of an image start and end, in order.
#[derive(Clone, Debug, Default)]
pub struct Clusters {
    places: Vec<u64>,
    /// Where the image ends according to its superblock; 0 if the superblock does not say.
    image_bytes: u64,
    /// The ranges that opening the image reads. Chunks start where these ranges start.
    opening: Vec<Range<u64>>,
}

impl Clusters {
    /// Returns the clusters of an image. Those that cannot be found are left out: cuts elsewhere
    /// cost bytes, not correctness.
    pub fn of(image: &Image) -> Self {
        let mut places = HashSet::new();
        let (mut seen, mut pending) = (HashSet::new(), Vec::new());
        pending.extend(image.root());
        while let Some(directory) = pending.pop() {
            let _ = image.for_each_entry(&directory, |entry| {
                if entry.name == b"." || entry.name == b".." || !seen.insert(entry.nid) {
                    return Ok(());
                }
                match entry.kind() {
                    Some(FileKind::Directory) => pending.extend(image.inode(entry.nid)),
                    Some(FileKind::Regular) => {
                        if let Ok(file) = image.inode(entry.nid).and_then(|inode| image.file(&inode)) {
                            let _ = file.stored_clusters(&mut |cluster| {
                                places.extend([cluster.start, cluster.end]);
                            });
                        }
                    }
                    _ => {}
                }
                Ok(())
            });
        }
        let mut places: Vec<_> = places.into_iter().collect();
        places.sort_unstable();
        let superblock = image.superblock();
        let image_bytes = superblock.blocks.saturating_mul(superblock.block_bytes());
        Self { places, image_bytes, opening: opening(image) }
    }

    /// Returns where the image ends. More may follow it in its file.
    pub(crate) fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// Returns the ranges of whole chunks that opening the image reads, in order: as many as may be
    /// announced.
    pub(crate) fn opening(&self, index: &Index) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for part in &self.opening {
            let chunks = index.around(part.clone()).filter(|chunk| index.stored(*chunk) == index.range(*chunk));
            for chunk in chunks.map(|chunk| index.range(chunk)) {
                match ranges.last_mut() {
                    Some(last) if chunk.start <= last.end => last.end = last.end.max(chunk.end),
                    _ => ranges.push(chunk),
                }
            }
        }
        fitting(&ranges)
    }

    /// Returns the end of the chunk that starts at `start`.
    fn cut(&self, start: u64, target_bytes: u64, size_bytes: u64) -> u64 {
        let after = self.places.partition_point(|place| *place <= start);
        let fitting = self.places.partition_point(|place| *place <= start.saturating_add(target_bytes));
        let end = if fitting > after {
            self.places[fitting - 1]
        } else {
            // One long cluster, or parts without clusters.
            match self.places.get(after) {
                Some(place) if place - start <= MOST_BYTES + UNIT_BYTES => *place,
                _ => (start + target_bytes) / UNIT_BYTES * UNIT_BYTES,
            }
        };
        let opened = self.opening.iter().map(|part| part.start / UNIT_BYTES * UNIT_BYTES);
        opened.filter(|at| *at > start).fold(end.min(size_bytes), u64::min)
    }

    /// Returns the chunks of an image of `size_bytes`.
    pub(crate) fn chunks(&self, size_bytes: u64) -> impl Iterator<Item = Range<u64>> {
        self.chunks_of(size_bytes, usual_bytes(size_bytes))
    }

    fn chunks_of(&self, size_bytes: u64, target_bytes: u64) -> impl Iterator<Item = Range<u64>> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let range = start..(start < size_bytes).then(|| self.cut(start, target_bytes, size_bytes))?;
            start = range.end;
            Some(range)
        })
    }
}

/// Returns the ranges that opening an image reads, in order: its superblock, its root directory,
/// and the metadata of the file in it, if there is only one. Ranges that cannot be found are left
/// out.
fn opening(image: &Image) -> Vec<Range<u64>> {
    let Ok(root) = image.root() else { return Vec::new() };
    let superblock = 0..UNIT_BYTES;
    let mut found = Vec::new();
    let _ = image.for_each_entry_from(&root, 0, |entry, _| {
        found.extend((entry.name != *b"." && entry.name != *b"..").then_some(entry.nid));
        if found.len() > 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let only = if let [nid] = found[..] { image.inode(nid).ok() } else { None };
    let place = |inode: Inode| image.file(&inode).and_then(|file| file.metadata_place()).ok().flatten();
    let mut parts: Vec<_> = [Some(superblock), place(root), only.and_then(place)].into_iter().flatten().collect();
    parts.sort_unstable_by_key(|part| part.start);
    parts
}

/// Makes the index of an image.
///
/// # Errors
/// The image cannot be read.
pub fn index(image: &dyn ReadAt, clusters: &Clusters) -> io::Result<Index> {
    index_with(image, clusters, &mut |_| {})
}

/// Like [`index`]. Calls `each` with all bytes in order.
pub(crate) fn index_with(image: &dyn ReadAt, clusters: &Clusters, each: &mut dyn FnMut(&[u8])) -> io::Result<Index> {
    let mut indexing = Indexing::new();
    let mut bytes = Vec::new();
    for chunk in clusters.chunks(image.len_bytes()?) {
        bytes.resize((chunk.end - chunk.start) as usize, 0);
        image.read_exact_at(&mut bytes, chunk.start)?;
        indexing.add(&bytes);
        each(&bytes);
    }
    Ok(indexing.finish())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::MOST_CHUNK_BYTES;

    proptest! {
        #[test]
        fn chunks_cover_the_image(lens in proptest::collection::vec(0_u64..2_000_000, 0..40), rest in 0_u64..9_000_000) {
            let mut places: Vec<u64> = lens.iter().scan(0, |at, len| { *at += len; Some(*at) }).collect();
            places.dedup();
            let size_bytes = places.last().copied().unwrap_or(0) / 2 + rest;
            let mut at = 0;
            for chunk in (Clusters { places, ..Clusters::default() }).chunks(size_bytes) {
                prop_assert!(chunk.start == at && chunk.end > at && chunk.end - at <= MOST_CHUNK_BYTES);
                at = chunk.end;
            }
            prop_assert_eq!(at, size_bytes);
        }
    }

    #[test]
    fn chunks_are_whole_clusters() {
        let clusters = Clusters { places: vec![20_000, 40_000, 60_000, 70_000, 700_000], ..Clusters::default() };
        let chunks: Vec<_> = clusters.chunks(800_000).map(|chunk| chunk.end).take(6).collect();
        assert_eq!(chunks, [40_000, 70_000, 700_000, 745_472, 794_624, 800_000]);
    }
}

//! Chunk indexes of erofs-image-spec: the range of each chunk in a blob, and its checksum.
//!
//! ```text
//! 0   magic cd e4 ec 67     header, 32 bytes, little-endian
//! 4   version               1
//! 5   compression           0: chunks are stored as they are
//! 6   flags                 0, two bytes
//! 8   size                  of the image, eight bytes
//! 16  number of chunks      four bytes
//! 20  family of sums        1: SHA-2
//! 21  length of a sum       32
//! 22  zeros                 ten bytes
//! 32  chunks                48 bytes each: position in the blob, position in the image, SHA-256
//! ```
//!
//! A chunk ends where the next one starts in the image, the last one at the image's end.

use std::ops::Range;

use crate::{
    error::{Error, Result},
    sum::Sum,
    verity::Tree,
};

const MAGIC: [u8; 4] = [0xcd, 0xe4, 0xec, 0x67];
const VERSION: u8 = 1;
const SHA_2: u8 = 1;
const SHA_256_BYTES: u8 = 32;
const HEADER_BYTES: usize = 32;
const CHUNK_BYTES: usize = 48;

/// The longest index that is read: 1.4 million chunks.
pub const MOST_INDEX_BYTES: u64 = 64 << 20;

/// The longest chunk that is read. A chunk is held in memory as a whole.
pub const MOST_CHUNK_BYTES: u64 = 4 << 20;

/// The largest size of a blob: positions in files are signed.
const MOST_BLOB_BYTES: u64 = i64::MAX as u64;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Chunk {
    /// The chunk's position in the blob.
    stored_at: u64,
    /// The chunk's position in the image.
    at: u64,
    sum: Sum,
}

/// The chunks of an image in a blob. They cover the image exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    size_bytes: u64,
    chunks: Vec<Chunk>,
    /// The tree that has the sums instead of this index.
    tree: Option<Tree>,
}

impl Index {
    /// Decodes an index. `name` says in errors where it is from.
    ///
    /// # Errors
    /// [`Error::Index`] if the bytes are not an index that this crate reads. Memory use is
    /// proportional to `bytes`.
    pub fn decode(bytes: &[u8], name: &str) -> Result<Self> {
        let wrong = |what: &str| Error::Index { name: name.to_owned(), what: what.to_owned() };
        let (header, chunks) = bytes.split_at_checked(HEADER_BYTES).ok_or_else(|| wrong("not a chunk index"))?;
        let number = |range: Range<usize>| {
            header[range].iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
        };
        if header[..4] != MAGIC {
            return Err(wrong("not a chunk index: wrong magic number"));
        }
        if header[4] != VERSION || number(6..8) != 0 {
            return Err(wrong("a chunk index of a later version: only version 1 without flags is supported"));
        }
        match header[5] {
            0 => {}
            1 => return Err(wrong("its chunks are zstd frames: only images that are stored as they are can be read")),
            _ => return Err(wrong("invalid chunk index: unknown compression")),
        }
        match (header[20], header[21]) {
            (SHA_2, SHA_256_BYTES) => {}
            (0, 0) => return Err(wrong("the chunk index has no sums, so that nothing can be verified")),
            _ => return Err(wrong("the sums of the chunk index are not SHA-256")),
        }
        if header[22..].iter().any(|byte| *byte != 0) {
            return Err(wrong("invalid chunk index: reserved bytes are not zero"));
        }
        let size_bytes = number(8..16);
        let (entries, rest) = chunks.as_chunks::<CHUNK_BYTES>();
        if !rest.is_empty() || entries.len() as u64 != number(16..20) {
            return Err(wrong("invalid chunk index: its length does not match its number of chunks"));
        }
        if size_bytes > MOST_BLOB_BYTES {
            return Err(wrong("invalid chunk index: the image exceeds the maximum file size"));
        }
        if entries.is_empty() != (size_bytes == 0) {
            return Err(wrong("invalid chunk index: the chunks do not cover the image"));
        }
        let mut read = Vec::with_capacity(entries.len());
        for entry in entries {
            let (stored_at, rest) = entry.split_first_chunk::<8>().expect("48 bytes");
            let (at, sum) = rest.split_first_chunk::<8>().expect("40 bytes");
            let sum = Sum(sum.try_into().expect("32 bytes"));
            read.push(Chunk { stored_at: u64::from_le_bytes(*stored_at), at: u64::from_le_bytes(*at), sum });
        }
        let index = Self { size_bytes, chunks: read, tree: None };
        if index.chunks.first().is_some_and(|first| first.at != 0) {
            return Err(wrong("invalid chunk index: the first chunk does not start at byte 0"));
        }
        for number in 0..index.len() {
            let at = index.chunks[number].at;
            let end = index.chunks.get(number + 1).map_or(size_bytes, |next| next.at);
            if end <= at || end - at > MOST_CHUNK_BYTES {
                return Err(wrong(&format!("invalid chunk index: chunk {number} is empty or longer than 4 MiB")));
            }
            if index.chunks[number].stored_at > MOST_BLOB_BYTES - (end - at) {
                return Err(wrong(&format!("invalid chunk index: chunk {number} is beyond the maximum file size")));
            }
        }
        Ok(index)
    }

    /// Returns an index of equal chunks whose sums are unknown.
    pub(crate) fn without_sums(size_bytes: u64, chunk_bytes: u64) -> Self {
        let at = (0..size_bytes.div_ceil(chunk_bytes)).map(|number| number * chunk_bytes);
        let chunks = at.map(|at| Chunk { stored_at: at, at, sum: Sum([0; 32]) }).collect();
        Self { size_bytes, chunks, tree: None }
    }

    /// Returns an index of equal chunks whose sums a tree has.
    pub(crate) fn of_tree(tree: Tree) -> Self {
        let chunks = Self::without_sums(tree.place().offset, tree.place().chunk_bytes);
        Self { tree: Some(tree), ..chunks }
    }

    /// Returns the tree that has the sums, if there is one.
    pub(crate) fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    /// Returns whether these are the bytes of a chunk.
    pub(crate) fn is_right(&self, chunk: usize, bytes: &[u8]) -> bool {
        match &self.tree {
            Some(tree) => tree.is_right(self.chunks[chunk].at, bytes),
            None => Sum::of(bytes) == self.chunks[chunk].sum,
        }
    }

    /// Encodes the index. One with a tree has no encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.chunks.len() * CHUNK_BYTES);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, 0, 0, 0]);
        bytes.extend(self.size_bytes.to_le_bytes());
        bytes.extend((self.chunks.len() as u32).to_le_bytes());
        bytes.extend([SHA_2, SHA_256_BYTES]);
        bytes.extend([0; 10]);
        for chunk in &self.chunks {
            bytes.extend(chunk.stored_at.to_le_bytes());
            bytes.extend(chunk.at.to_le_bytes());
            bytes.extend(chunk.sum.0);
        }
        bytes
    }

    /// Returns the length of the encoded index, or of what is kept of its tree.
    pub(crate) fn encoded_bytes(&self) -> u64 {
        let of_chunks = || (HEADER_BYTES + self.chunks.len() * CHUNK_BYTES) as u64;
        self.tree.as_ref().map_or_else(of_chunks, Tree::kept_bytes)
    }

    /// Returns the image's size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the number of chunks.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Returns whether the image is empty.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the range of a chunk in the image.
    pub fn range(&self, chunk: usize) -> Range<u64> {
        self.chunks[chunk].at..self.chunks.get(chunk + 1).map_or(self.size_bytes, |next| next.at)
    }

    /// Returns the range of a chunk in the blob.
    pub(crate) fn stored(&self, chunk: usize) -> Range<u64> {
        let range = self.range(chunk);
        let at = self.chunks[chunk].stored_at;
        at..at + (range.end - range.start)
    }

    /// Returns whether the blob begins with the image as it is.
    pub(crate) fn is_in_place(&self) -> bool {
        (0..self.len()).all(|chunk| self.stored(chunk) == self.range(chunk))
    }

    /// Returns the chunks that contain a range of the image.
    pub(crate) fn around(&self, range: Range<u64>) -> Range<usize> {
        if range.is_empty() {
            return 0..0;
        }
        let first = self.chunks.partition_point(|chunk| chunk.at <= range.start).saturating_sub(1);
        first..self.chunks.partition_point(|chunk| chunk.at < range.end)
    }

    /// Returns the end of the last byte of the blob that a chunk needs.
    pub(crate) fn stored_end(&self) -> u64 {
        (0..self.len()).map(|chunk| self.stored(chunk).end).max().unwrap_or(0)
    }
}

/// Makes an index from an image's bytes in order.
pub(crate) struct Indexing {
    index: Index,
}

impl Indexing {
    pub(crate) fn new() -> Self {
        Self { index: Index { size_bytes: 0, chunks: Vec::new(), tree: None } }
    }

    /// Adds the next chunk, which must be neither empty nor longer than [`MOST_CHUNK_BYTES`].
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let at = self.index.size_bytes;
        self.index.chunks.push(Chunk { stored_at: at, at, sum: Sum::of(bytes) });
        self.index.size_bytes += bytes.len() as u64;
    }

    pub(crate) fn finish(self) -> Index {
        self.index
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns an index of chunks with these lengths.
    fn of(lens: &[usize]) -> Index {
        let mut indexing = Indexing::new();
        lens.iter().enumerate().for_each(|(number, len)| indexing.add(&vec![number as u8; *len]));
        indexing.finish()
    }

    proptest! {
        #[test]
        fn decodes_what_it_encodes(lens in proptest::collection::vec(1_usize..10_000, 0..50)) {
            let index = of(&lens);
            prop_assert_eq!(Index::decode(&index.encode(), "x").expect("an index"), index);
        }

        /// Every byte at an image's position is in the chunk that `around` names.
        #[test]
        fn chunks_around(lens in proptest::collection::vec(1_usize..50, 1..20), start in 0_u64..1000, len in 0_u64..100) {
            let index = of(&lens);
            let start = start.min(index.size_bytes());
            let range = start..(start + len).min(index.size_bytes());
            let expected: Vec<usize> = (0..index.len())
                .filter(|chunk| {
                    let chunk = index.range(*chunk);
                    chunk.start < range.end && range.start < chunk.end && !range.is_empty()
                })
                .collect();
            prop_assert_eq!(index.around(range).collect::<Vec<_>>(), expected);
        }

        /// Changed bytes give an error or an index that covers its image.
        #[test]
        fn hostile_bytes(lens in proptest::collection::vec(1_usize..300, 0..9),
                         changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
                         cut in proptest::option::of(any::<prop::sample::Index>())) {
            let mut bytes = of(&lens).encode();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len() + 1)));
            if let Ok(index) = Index::decode(&bytes, "x") {
                let mut at = 0;
                for chunk in 0..index.len() {
                    let range = index.range(chunk);
                    prop_assert!(range.start == at && range.end > at && range.end - at <= MOST_CHUNK_BYTES);
                    let stored = index.stored(chunk);
                    prop_assert_eq!(stored.end - stored.start, range.end - range.start);
                    at = range.end;
                }
                prop_assert_eq!(at, index.size_bytes());
                prop_assert_eq!(index.encode(), bytes);
            }
        }
    }

    #[test]
    fn vectors() {
        let image: Vec<u8> = (0..12_388_u32).map(|at| (at % 251) as u8).collect();
        let mut indexing = Indexing::new();
        [&image[..4096], &image[4096..12_288], &image[12_288..]].into_iter().for_each(|chunk| indexing.add(chunk));
        assert_eq!(indexing.finish().encode(), include_bytes!("../vectors/three.chunk-index"));
        assert_eq!(Indexing::new().finish().encode(), include_bytes!("../vectors/empty.chunk-index"));
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let good = of(&[5, 6]).encode();
        let changed = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Index::decode(&bytes, "x").expect_err("invalid").to_string()
        };
        for (at, value, what) in [
            (0, 0, "magic"),
            (4, 2, "version"),
            (5, 1, "zstd"),
            (5, 9, "compression"),
            (6, 1, "flags"),
            (8, 5, "chunk 1"),
            (15, 0xff, "maximum"),
            (16, 3, "number of chunks"),
            (20, 0, "SHA-256"),
            (21, 64, "SHA-256"),
            (31, 1, "reserved"),
            (39, 0xff, "chunk 0"),
            (40, 1, "byte 0"),
            (88, 0, "chunk 0"),
        ] {
            let error = changed(at, value);
            assert!(error.contains(what), "{at}: {error}");
        }
    }
}

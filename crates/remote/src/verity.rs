//! dm-verity trees: the sums of an image's blocks, for images that have no chunk index.
//!
//! ```text
//! 0    "verity\0\0"          superblock, one block, little-endian
//! 8    version, type         1 and 1, four bytes each
//! 16   UUID                  16 bytes
//! 32   "sha256"              32 bytes
//! 64   lengths of blocks     4096 and 4096, four bytes each
//! 72   blocks of the image   eight bytes
//! 80   length of the salt    two bytes, and six of zeros
//! 88   salt                  up to 256 bytes
//! 4096 levels of the tree    the one with the root's children first, the one of the image last
//! ```
//!
//! The tree follows its image. A level has the sums of the blocks of the level below, 128 in a
//! block; the last block is padded with zeros. A block's sum is SHA-256 of the salt and the block.
//! Only the last level is kept: the others can be computed from it, up to the root's sum, which the
//! manifest has.

use sha2::{Digest as _, Sha256};

use crate::sum::Sum;

/// The length of a block of the image and of the tree.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Maximum length of the chunks in which an image is read.
const MOST_CHUNK_BYTES: u64 = 4 << 20;

/// The longest tree that is read.
const MOST_TREE_BYTES: u64 = 64 << 20;

pub(crate) const MAGIC: &[u8; 8] = b"verity\0\0";
const SUM_BYTES: usize = 32;
const MOST_SALT_BYTES: usize = 256;

/// Where a tree is, and the sum of its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreePlace {
    pub(crate) root: Sum,
    /// Where the image ends and the tree starts.
    pub(crate) offset: u64,
    /// The length of the chunks that the image is read in: a multiple of a block's.
    pub(crate) chunk_bytes: u64,
}

/// The sums of an image's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    place: TreePlace,
    salt: Vec<u8>,
    /// The level of the image, whole blocks.
    sums: Vec<u8>,
}

impl TreePlace {
    /// Returns an identity for the image and its division into chunks, as the sum of a chunk index
    /// is one.
    pub(crate) fn identity(&self) -> Sum {
        Sum::of(format!("dm-verity {} {} {}", self.root, self.offset, self.chunk_bytes).as_bytes())
    }

    /// Returns the length of the superblock and the tree.
    ///
    /// # Errors
    /// What is wrong with the place, or with the size of the image.
    pub(crate) fn len_bytes(&self) -> Result<u64, &'static str> {
        if self.offset == 0 || !self.offset.is_multiple_of(BLOCK_BYTES) {
            return Err("the dm-verity tree does not start where a block does");
        }
        let len_bytes = (1 + levels(self.offset / BLOCK_BYTES).iter().sum::<u64>()) * BLOCK_BYTES;
        if len_bytes > MOST_TREE_BYTES {
            return Err("the dm-verity tree exceeds 64 MiB: only smaller images can be read without a chunk index");
        }
        Ok(len_bytes)
    }
}

/// Returns the number of blocks of each level of the tree of this number of blocks, the largest first.
pub(crate) fn levels(blocks: u64) -> Vec<u64> {
    let mut levels = Vec::new();
    let mut blocks = blocks;
    while blocks > 1 {
        blocks = blocks.div_ceil(BLOCK_BYTES / SUM_BYTES as u64);
        levels.push(blocks);
    }
    levels
}

impl Tree {
    /// Reads a superblock and the tree after it, whose total length `place` gives.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn read(place: &TreePlace, bytes: &[u8]) -> Result<Self, &'static str> {
        let (superblock, tree) =
            bytes.split_at_checked(BLOCK_BYTES as usize).ok_or("the dm-verity tree has no superblock")?;
        let number = |at: usize, len: usize| {
            superblock[at..at + len].iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
        };
        if superblock[..8] != *MAGIC {
            return Err("the dm-verity tree has no superblock");
        }
        if number(8, 4) != 1 || number(12, 4) != 1 || !superblock[32..64].starts_with(b"sha256\0") {
            return Err("the dm-verity tree is not one of SHA-256 sums of type 1");
        }
        if number(64, 4) != BLOCK_BYTES || number(68, 4) != BLOCK_BYTES {
            return Err("the blocks of the dm-verity tree are not 4096 bytes long");
        }
        // The root verifies the blocks but not their number, which determines the levels.
        if number(72, 8) != place.offset / BLOCK_BYTES {
            return Err("the dm-verity tree does not follow its image immediately");
        }
        let salt_bytes = number(80, 2) as usize;
        if salt_bytes > MOST_SALT_BYTES {
            return Err("the salt of the dm-verity tree is too long");
        }
        let salt = superblock[88..88 + salt_bytes].to_vec();
        let sums = match levels(place.offset / BLOCK_BYTES).first() {
            Some(blocks) => {
                let len = (blocks * BLOCK_BYTES) as usize;
                tree.len()
                    .checked_sub(len)
                    .map(|start| tree[start..].to_vec())
                    .ok_or("the dm-verity tree is too short")?
            }
            // The only block's sum is the root.
            None => place.root.0.to_vec(),
        };
        Self::of_sums(place.clone(), salt, sums).ok_or("the dm-verity tree differs from the sum of its root")
    }

    /// Returns the tree with these sums of blocks, unless its root has another sum.
    fn of_sums(place: TreePlace, salt: Vec<u8>, sums: Vec<u8>) -> Option<Self> {
        let tree = Self { place, salt, sums };
        let root = match tree.sums.len() {
            SUM_BYTES => Sum(tree.sums[..].try_into().ok()?),
            _ => {
                let mut level = tree.level(&tree.sums);
                while level.len() > SUM_BYTES {
                    level.resize(level.len().next_multiple_of(BLOCK_BYTES as usize), 0);
                    level = tree.level(&level);
                }
                Sum(level.try_into().ok()?)
            }
        };
        (root == tree.place.root).then_some(tree)
    }

    /// Returns the sums of blocks.
    fn level(&self, blocks: &[u8]) -> Vec<u8> {
        blocks.chunks(BLOCK_BYTES as usize).flat_map(|block| self.sum(block)).collect()
    }

    fn sum(&self, block: &[u8]) -> [u8; SUM_BYTES] {
        Sha256::new().chain_update(&self.salt).chain_update(block).finalize().into()
    }

    pub(crate) fn place(&self) -> &TreePlace {
        &self.place
    }

    /// Returns whether these are the image's bytes from `start`: whole blocks.
    pub(crate) fn is_right(&self, start: u64, bytes: &[u8]) -> bool {
        let first = (start / BLOCK_BYTES) as usize;
        let expected = self.sums.chunks_exact(SUM_BYTES).skip(first);
        let blocks = bytes.chunks(BLOCK_BYTES as usize);
        start.is_multiple_of(BLOCK_BYTES)
            && expected.len() >= blocks.len()
            && blocks.zip(expected).all(|(block, sum)| block.len() as u64 == BLOCK_BYTES && self.sum(block) == sum)
    }

    /// Returns the length of the kept part of the tree.
    pub(crate) fn kept_bytes(&self) -> u64 {
        (MAGIC.len() + SUM_BYTES + 8 + 8 + 2 + self.salt.len() + SUM_BYTES + self.sums.len()) as u64
    }

    /// Encodes the kept part of the tree: the root's sum, the tree's start, the length of chunks,
    /// the length of the salt, the salt, the sum of all these, and the sums of the image's blocks,
    /// which the root verifies.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.place.root.0);
        bytes.extend(self.place.offset.to_le_bytes());
        bytes.extend(self.place.chunk_bytes.to_le_bytes());
        bytes.extend((self.salt.len() as u16).to_le_bytes());
        bytes.extend(&self.salt);
        bytes.extend(Sum::of(&bytes).0);
        bytes.extend(&self.sums);
        bytes
    }

    /// Decodes the kept part of a tree and compares the computed root with its sum.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (root, rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (chunk_bytes, rest) = rest.split_first_chunk()?;
        let (salt_bytes, rest) = rest.split_first_chunk()?;
        let (salt, rest) = rest.split_at_checked(u16::from_le_bytes(*salt_bytes).into())?;
        let (sum, sums) = rest.split_first_chunk()?;
        if Sum::of(&bytes[..bytes.len() - rest.len()]) != Sum(*sum) {
            return None;
        }
        let (offset, chunk_bytes) = (u64::from_le_bytes(*offset), u64::from_le_bytes(*chunk_bytes));
        let place = TreePlace { root: Sum(*root), offset, chunk_bytes };
        place.len_bytes().ok()?;
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(BLOCK_BYTES) || chunk_bytes > MOST_CHUNK_BYTES {
            return None;
        }
        let expected =
            levels(place.offset / BLOCK_BYTES).first().map_or(SUM_BYTES as u64, |blocks| blocks * BLOCK_BYTES);
        Self::of_sums(place, salt.to_vec(), sums.to_vec()).filter(|_| sums.len() as u64 == expected)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    /// Returns a superblock and a tree as `veritysetup` makes them, and the root's sum.
    fn tree_of(image: &[u8], salt: &[u8]) -> (TreePlace, Vec<u8>) {
        let sum = |block: &[u8]| -> [u8; 32] { Sha256::new().chain_update(salt).chain_update(block).finalize().into() };
        let level = |bytes: &[u8]| -> Vec<u8> { bytes.chunks(4096).flat_map(sum).collect() };
        let mut all = Vec::new();
        let mut below = level(image);
        while below.len() > 32 {
            below.resize(below.len().next_multiple_of(4096), 0);
            all.insert(0, below.clone());
            below = level(&below);
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0, 0, 0, 1, 0, 0, 0]);
        bytes.extend([7; 16]);
        bytes.extend(b"sha256");
        bytes.resize(64, 0);
        bytes.extend([0, 16, 0, 0, 0, 16, 0, 0]);
        bytes.extend((image.len() as u64 / 4096).to_le_bytes());
        bytes.extend((salt.len() as u64).to_le_bytes());
        bytes.extend(salt);
        bytes.resize(4096, 0);
        bytes.extend(all.concat());
        (
            TreePlace { root: Sum(below.try_into().expect("a sum")), offset: image.len() as u64, chunk_bytes: 4096 },
            bytes,
        )
    }

    fn image(blocks: usize) -> Vec<u8> {
        let mut image = vec![0; blocks * 4096];
        image
            .chunks_mut(4096)
            .zip(1_u64..)
            .for_each(|(block, number)| block[..8].copy_from_slice(&number.to_le_bytes()));
        image
    }

    /// The trees of another implementation, with levels of one block and more.
    #[test]
    fn trees_of_veritysetup() {
        let Some([veritysetup]) = pagefold_testing::programs("trees_of_veritysetup", ["veritysetup"]) else { return };
        let folder = tempfile::tempdir().expect("a folder");
        for (blocks, salt) in [(1, "-"), (2, "00ff"), (128, "0a"), (129, "0b"), (16_385, "0c")] {
            let (path, image) = (folder.path().join("image"), image(blocks));
            std::fs::write(&path, &image).expect("a file");
            let made = Command::new(&veritysetup)
                .arg("format")
                .args([&path, &path])
                .args([format!("--hash-offset={}", image.len()), format!("--data-blocks={blocks}")])
                .args(["--salt", salt])
                .output()
                .expect("it starts");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            let text = String::from_utf8(made.stdout).expect("text");
            let root = text.lines().find_map(|line| line.strip_prefix("Root hash:")).expect("a root").trim();
            let root = Sum::parse(&format!("sha256:{root}")).expect("a sum");
            let place = TreePlace { root, offset: image.len() as u64, chunk_bytes: 4096 };
            let bytes = std::fs::read(&path).expect("a file").split_off(image.len());
            assert_eq!(Ok(bytes.len() as u64), place.len_bytes());
            let tree = Tree::read(&place, &bytes).expect("a tree");
            assert!(tree.is_right(0, &image));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        /// A changed byte of the image, the superblock or the tree is detected, unless the byte is
        /// unused.
        #[test]
        fn changed_bytes(blocks in 1_usize..400, salt in proptest::collection::vec(any::<u8>(), 0..40),
                         at in any::<prop::sample::Index>(), change in 1_u8..) {
            let image = image(blocks);
            let (place, good) = tree_of(&image, &salt);
            prop_assert_eq!(good.len() as u64, place.len_bytes().expect("a length"));
            let tree = Tree::read(&place, &good).expect("a tree");
            prop_assert!(tree.is_right(0, &image));
            prop_assert_eq!(Tree::decode(&tree.encode()), Some(tree.clone()));
            prop_assert_eq!(tree.encode().len() as u64, tree.kept_bytes());
            let mut other = good.clone();
            other[at.index(good.len())] ^= change;
            if let Ok(other) = Tree::read(&place, &other) {
                // The UUID, unused parts of the superblock, and levels that follow from the last one.
                prop_assert!(other == tree);
            }
            let mut kept = tree.encode();
            let changed = at.index(kept.len());
            kept[changed] ^= change;
            prop_assert_eq!(Tree::decode(&kept), None);
            let mut wrong = image.clone();
            let changed = at.index(image.len());
            wrong[changed] ^= change;
            let block = changed / 4096 * 4096;
            prop_assert!(!tree.is_right(block as u64, &wrong[block..block + 4096]));
            prop_assert!(!tree.is_right(block as u64, &image[block..block + 4095]));
            let after = (image.len() as u64).next_multiple_of(1 << 19);
            prop_assert!(!tree.is_right(after, &[0; 4096]));
        }
    }

    /// A chunk's number means nothing in a cache or a trace with chunks of another length.
    #[test]
    fn an_identity_is_of_chunks_of_one_length() {
        let (place, good) = tree_of(&image(200), b"s");
        let other = TreePlace { chunk_bytes: 8192, ..place.clone() };
        assert_ne!(other.identity(), place.identity());
        let tree = Tree::read(&other, &good).expect("a tree");
        assert_eq!(Tree::decode(&tree.encode()).expect("a tree").place(), &other);
        let odd = TreePlace { chunk_bytes: 5000, ..place };
        assert_eq!(Tree::decode(&Tree::read(&odd, &good).expect("a tree").encode()), None);
    }

    /// The levels depend on the number of blocks, which the root does not verify.
    #[test]
    fn levels_are_not_images() {
        let (place, good) = tree_of(&image(200), b"s");
        let mut other = good.clone();
        other[72..80].copy_from_slice(&2_u64.to_le_bytes());
        assert!(Tree::read(&place, &other).is_err());
        let unaligned = TreePlace { offset: 5000, ..place.clone() };
        assert!(unaligned.len_bytes().is_err());
        let long = TreePlace { offset: 9 << 30, ..place };
        assert!(long.len_bytes().expect_err("too long").contains("64 MiB"));
        assert!(TreePlace { offset: 7 << 30, ..long }.len_bytes().is_ok());
    }
}

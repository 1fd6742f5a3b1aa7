//! Makes dm-verity trees, in the form that containerd gives to layers.

use std::{fs::File, io, os::unix::fs::FileExt};

use sha2::{Digest as _, Sha256};

use crate::{
    sum::Sum,
    verity::{BLOCK_BYTES, MAGIC, levels},
};

/// containerd's salt, whose sums therefore equal these.
const SALT: [u8; 32] = [0; 32];

/// Writes a superblock and a tree behind an image while the image's blocks pass. Each level takes one
/// block of memory.
pub(crate) struct TreeWriter<'a> {
    to: &'a File,
    superblock_at: u64,
    /// The level of the image's sums first, the root's children last.
    levels: Vec<Level>,
    root: [u8; 32],
}

/// The part of a level that is not written yet.
struct Level {
    /// Where its next block is written.
    at: u64,
    block: Vec<u8>,
}

impl<'a> TreeWriter<'a> {
    /// Begins the tree of an image with this number of blocks, which is in the front of `to`.
    pub(crate) fn new(to: &'a File, blocks: u64) -> Self {
        let superblock_at = blocks * BLOCK_BYTES;
        let mut at = superblock_at + BLOCK_BYTES;
        let mut levels: Vec<_> = levels(blocks)
            .into_iter()
            .rev()
            .map(|blocks| {
                let level = Level { at, block: Vec::new() };
                at += blocks * BLOCK_BYTES;
                level
            })
            .collect();
        levels.reverse();
        Self { to, superblock_at, levels, root: [0; 32] }
    }

    /// Adds the next block of the image.
    ///
    /// # Errors
    /// The file cannot be written to.
    pub(crate) fn add(&mut self, block: &[u8]) -> io::Result<()> {
        self.add_sum(0, sum(block))
    }

    /// Ends the tree after the last block. Returns the sum of the root. `name` becomes the tree's UUID.
    ///
    /// # Errors
    /// The file cannot be written to.
    pub(crate) fn finish(mut self, name: Sum) -> io::Result<Sum> {
        for number in 0..self.levels.len() {
            if !self.levels[number].block.is_empty() {
                self.levels[number].block.resize(BLOCK_BYTES as usize, 0);
                self.write_block(number)?;
            }
        }
        self.to.write_all_at(&superblock(self.superblock_at / BLOCK_BYTES, name), self.superblock_at)?;
        Ok(Sum(self.root))
    }

    fn add_sum(&mut self, number: usize, sum: [u8; 32]) -> io::Result<()> {
        let Some(level) = self.levels.get_mut(number) else {
            self.root = sum;
            return Ok(());
        };
        level.block.extend(sum);
        match level.block.len() as u64 {
            BLOCK_BYTES => self.write_block(number),
            _ => Ok(()),
        }
    }

    /// Writes the block of a level, and adds its sum to the level above.
    fn write_block(&mut self, number: usize) -> io::Result<()> {
        let level = &mut self.levels[number];
        self.to.write_all_at(&level.block, level.at)?;
        level.at += BLOCK_BYTES;
        let sum = sum(&level.block);
        level.block.clear();
        self.add_sum(number + 1, sum)
    }
}

fn sum(block: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(SALT).chain_update(block).finalize().into()
}

/// Returns the superblock of a tree.
fn superblock(blocks: u64, name: Sum) -> Vec<u8> {
    // Of the form whose meaning its maker defines.
    let mut uuid: [u8; 16] = name.0[..16].try_into().expect("16 bytes");
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    let mut bytes = MAGIC.to_vec();
    [1_u32, 1].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes.extend(uuid);
    bytes.extend(b"sha256");
    bytes.resize(64, 0);
    [BLOCK_BYTES as u32; 2].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes.extend(blocks.to_le_bytes());
    bytes.extend((SALT.len() as u64).to_le_bytes());
    bytes.extend(SALT);
    bytes.resize(BLOCK_BYTES as usize, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use proptest::prelude::*;

    use super::*;
    use crate::verity::{Tree, TreePlace};

    /// Returns the tree of an image, and where it is.
    fn made(image: &[u8]) -> (TreePlace, Vec<u8>) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut writer = TreeWriter::new(file.as_file(), image.len() as u64 / BLOCK_BYTES);
        image.chunks(BLOCK_BYTES as usize).for_each(|block| writer.add(block).expect("room"));
        let root = writer.finish(Sum::of(image)).expect("room");
        let tree = fs::read(file.path()).expect("a file").split_off(image.len());
        (TreePlace { root, offset: image.len() as u64, chunk_bytes: BLOCK_BYTES }, tree)
    }

    fn image(blocks: usize, seed: u8) -> Vec<u8> {
        let mut image = vec![seed; blocks * BLOCK_BYTES as usize];
        let blocks = image.chunks_mut(BLOCK_BYTES as usize).zip(1_u64..);
        blocks.for_each(|(block, number)| block[..8].copy_from_slice(&number.to_le_bytes()));
        image
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn trees_are_read(blocks in prop_oneof![1_usize..400, 126_usize..131, 16_383_usize..16_387], seed in any::<u8>()) {
            let image = image(blocks, seed);
            let (place, bytes) = made(&image);
            prop_assert_eq!(Ok(bytes.len() as u64), place.len_bytes());
            let tree = Tree::read(&place, &bytes).expect("a tree");
            prop_assert!(tree.is_right(0, &image));
        }
    }

    /// Another implementation makes the same bytes, except the UUID.
    #[test]
    fn trees_equal_those_of_veritysetup() {
        const TEST: &str = "trees_equal_those_of_veritysetup";
        let Some([veritysetup]) = pagefold_testing::programs(TEST, ["veritysetup"]) else { return };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image");
        for blocks in [1, 2, 128, 129, 16_385] {
            let image = image(blocks, 3);
            let (place, tree) = made(&image);
            fs::write(&path, &image).expect("a file");
            let made = Command::new(&veritysetup)
                .arg("format")
                .args([&path, &path])
                .args([format!("--hash-offset={}", image.len()), format!("--data-blocks={blocks}")])
                .args(["--salt", &"0".repeat(64)])
                .output()
                .expect("it starts");
            let text = String::from_utf8(made.stdout).expect("text");
            assert!(text.contains(&place.root.hex()), "{text}");
            let mut other = fs::read(&path).expect("a file").split_off(image.len());
            other[16..32].copy_from_slice(&tree[16..32]);
            assert_eq!(other, tree, "{blocks} blocks");
        }
    }
}

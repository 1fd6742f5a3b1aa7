//! Which content is stored behind inodes, and what that takes.

use super::directory::DirShape;
use super::placer::Placer;
use crate::format::{SLOT, align};

/// Returns the bytes at the end of `size` bytes of content that are stored behind an inode of
/// `header_bytes`: those that do not fill a block, if one block holds them and the inode.
pub(super) fn inline_bytes(header_bytes: u64, size: u64, block_bytes: u64) -> u64 {
    let tail = size % block_bytes;
    if header_bytes + tail <= block_bytes { tail } else { 0 }
}

/// Returns the bytes that an inode of `header_bytes` and its content of `size` bytes take in an image,
/// except for gaps before blocks.
pub fn stored_bytes(header_bytes: u64, size: u64, block_bytes: u64) -> u64 {
    let inline = inline_bytes(header_bytes, size, block_bytes);
    align(header_bytes + inline, SLOT) + (size - inline).next_multiple_of(block_bytes)
}

/// Returns the bytes that files with these lengths take in an image, in this order, with the gaps
/// between them. An inode of `header_bytes` and each file fit into a block, so that no codec stores
/// them in another way.
pub fn placed_bytes(header_bytes: u64, lens: impl Iterator<Item = u64>, block_bytes: u64) -> u64 {
    let mut wants: Vec<_> = lens.map(|len| ((), header_bytes + len, len)).collect();
    let mut placer = Placer::new(block_bytes, 0..0, 0);
    placer.place_all(&mut wants, |(), _, _| ());
    placer.end()
}

/// Returns the size of a directory with these names, which are sorted.
pub fn directory_bytes<'a>(names: impl Iterator<Item = &'a [u8]>, block_bytes: usize) -> u64 {
    DirShape::new(names, block_bytes).bytes()
}

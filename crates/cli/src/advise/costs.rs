//! What the image writer makes of content that is not sampled: holes, and what does not compress.
//! It is asked at run time, with small files of such content.

use std::fs::File;

use anyhow::Context;
use pagefold_erofs::{BuildOptions, Content, Node, NodeKind, Span, Tree, build};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{
    estimate::Limits,
    stratum::{PAGE_BYTES, Stratum},
};

/// Zeros in the two images that measure the cost of holes: of one run, and of each byte of it. Both
/// are longer than any cluster.
const ZEROS_BYTES: [u64; 2] = [16 << 20, 48 << 20];

/// Most bytes of an image for each byte of content: uncompressed blocks, and their indexes.
const MOST: f64 = 1.0 + 1.0 / 64.0;

/// Most bytes for each byte of a hole: LZ4 reduces zeros to 1/255, and indexes take up to 8 bytes for
/// 4 KiB.
const MOST_OF_HOLE: f64 = 1.0 / 128.0;

/// Bytes of an inode with its own time.
pub(super) const INODE_BYTES: u64 = 64;

/// Bytes before everything else: the superblock, after the space for boot loaders.
pub(super) const SUPERBLOCK_BYTES: u64 = 1024 + 128;

/// The cost of zeros in an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zeros {
    per_run: f64,
    per_byte: f64,
}

impl Zeros {
    /// Packs files of zeros.
    pub(super) fn measure(options: &BuildOptions) -> anyhow::Result<Self> {
        let [short, long] = ZEROS_BYTES.map(|len| image_of_zeros(len, options));
        let (short, long) = (short? as f64, long? as f64);
        let per_byte = ((long - short) / (ZEROS_BYTES[1] - ZEROS_BYTES[0]) as f64).max(0.0);
        Ok(Self { per_run: (short - per_byte * ZEROS_BYTES[0] as f64).max(0.0), per_byte })
    }

    /// Returns the size of this many runs of zeros.
    pub(super) fn cost(self, runs: u64, bytes: f64) -> f64 {
        if bytes > 0.0 { self.per_run * runs as f64 + self.per_byte * bytes } else { 0.0 }
    }
}

/// Returns the least and the most that zeros of unmeasured cost take.
pub(super) fn limits_of_zeros() -> Limits {
    Limits { least: 0.0, most: MOST_OF_HOLE }
}

/// Returns the least and the most that each byte of a stratum's data takes.
pub(super) fn limits(stratum: &Stratum) -> Limits {
    let data_bytes = stratum.data_bytes().value.max(1.0);
    let inodes = if stratum.has_pieces { 0 } else { stratum.units() * INODE_BYTES };
    // The last block of each file or piece may hold one byte.
    let rounding = stratum.units().min((data_bytes / PAGE_BYTES as f64).ceil() as u64) * PAGE_BYTES;
    let rounding = if stratum.has_pieces { rounding } else { stratum.units() * PAGE_BYTES };
    Limits { least: inodes as f64 / data_bytes, most: MOST + (inodes + rounding) as f64 / data_bytes }
}

/// Returns a tree without files.
pub(super) fn empty_tree() -> Tree {
    Tree::new(node(NodeKind::Fifo))
}

pub(super) fn node(kind: NodeKind) -> Node {
    // Times and owners that fit only into an extended inode.
    Node { kind, permissions: 0o755, uid: 70_000, gid: 70_000, mtime_s: 1 << 31, mtime_nsec: 1, xattrs: Vec::new() }
}

pub(super) fn memory_file() -> anyhow::Result<File> {
    Ok(memfd_create("advise", MemfdFlags::CLOEXEC).context("a file in memory")?.into())
}

/// Returns the bytes that this many zeros add to an image.
fn image_of_zeros(len_bytes: u64, options: &BuildOptions) -> anyhow::Result<u64> {
    let content = Content::Spans(memory_file()?.into(), Vec::<Span>::new().into());
    let mut tree = empty_tree();
    tree.add(tree.root(), b"0", node(NodeKind::Regular { content, size: len_bytes }))?;
    let report = build(&tree, options, &memory_file()?)?;
    let fixed_bytes = SUPERBLOCK_BYTES + 2 * INODE_BYTES + 27 + 13;
    // The metadata ends in the middle of a block, on average.
    Ok(report.image_bytes.saturating_sub(fixed_bytes + PAGE_BYTES / 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::images::{CHOICES, options};

    /// Returns an image's size of one file.
    fn image_bytes(content: Content, size: u64, options: &BuildOptions) -> u64 {
        let mut tree = empty_tree();
        tree.add(tree.root(), b"0", node(NodeKind::Regular { content, size })).expect("a file");
        build(&tree, options, &memory_file().expect("memory")).expect("an image").image_bytes
    }

    #[test]
    fn limits_hold_for_what_does_not_compress() {
        let mut state = 1u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        for len in [1, 5000, 300_000] {
            let bytes: Vec<u8> = (0..len).map(|_| noise()).collect();
            let mut stratum = Stratum::default();
            stratum.add(0, 0, len as u64);
            let limits = limits(&stratum);
            for choice in CHOICES {
                let options = options(choice.codec, choice.cluster).expect("a codec");
                let found = image_bytes(Content::Bytes(bytes.clone().into()), len as u64, &options);
                let found = found.saturating_sub(SUPERBLOCK_BYTES + INODE_BYTES + 40 + PAGE_BYTES);
                assert!(found as f64 <= limits.most * len as f64, "{len} {} {found}", choice.codec);
                assert!(limits.least > 0.0);
            }
        }
    }

    #[test]
    fn holes_cost_what_the_writer_makes_of_them() {
        for choice in CHOICES {
            let options = options(choice.codec, choice.cluster).expect("a codec");
            let zeros = Zeros::measure(&options).expect("an image");
            for len in [24 << 20, 100 << 20] {
                let content = Content::Spans(memory_file().expect("memory").into(), Vec::<Span>::new().into());
                let found = image_bytes(content, len, &options) as f64;
                let cost = zeros.cost(1, len as f64);
                assert!((found - cost).abs() <= 8192.0 + found / 50.0, "{} {len}: {found} {cost}", choice.codec);
                assert!(cost <= limits_of_zeros().most * len as f64, "{} {len}: {cost}", choice.codec);
            }
        }
        assert!(Zeros { per_run: 1.0, per_byte: 1.0 }.cost(3, 0.0) == 0.0);
    }
}

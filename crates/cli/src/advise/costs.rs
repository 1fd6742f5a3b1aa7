//! The size in an image of content that is not sampled: holes, and incompressible data. It is
//! measured at run time with small files of such content.

use std::{fs::File, os::unix::fs::FileExt, sync::Arc};

use anyhow::Context;
use pagefold_erofs::{
    BuildOptions, BuildReport, Content, InodeTimes, Node, NodeKind, Span, Tree, UNSHARED_BYTES, build, stored_bytes,
};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{
    estimate::{Estimate, Limits},
    stratum::{LongFiles, PAGE_BYTES, Pieces, Stratum},
};

/// Pieces of data in each image that measures the cost of zeros.
const PIECES: u64 = 6;

/// Lengths of the pieces, none of which ends at a block's end, and of the zeros after each. The first
/// two give the cost of a run and of its length: their difference is longer than any cluster of zeros.
/// The others show how much the cost depends on where zeros begin.
const CASES: [(u64, u64); 5] =
    [(20_011, 2 << 20), (20_011, 12 << 20), (70_000, 4 << 20), (70_000, 16 << 20), (20_011, 160 << 20)];

/// Bytes of the piece in each of the short files that measure the cost of zeros there, and the
/// quarters of the zeros that are before it.
const SHORT_PIECE_BYTES: u64 = PAGE_BYTES;
const QUARTERS_BEFORE: [u64; 3] = [0, 1, 2];

/// Files in two images, whose difference is the size of files among others.
const SHORT_FILES: [u64; 2] = [3, 9];

/// Maximum bytes of an image for each byte of content: uncompressed blocks, and their indexes.
const MOST: f64 = 1.0 + 1.0 / 64.0;

/// Maximum bytes for each byte of a hole: LZ4 reduces zeros to 1/255, and indexes take up to 8
/// bytes for 4 KiB.
const MOST_OF_HOLE: f64 = 1.0 / 128.0;

/// Maximum bytes of a record of a cluster, or of a hole, in a file that is stored without its zeros.
const RECORD_BYTES: f64 = 32.0;

/// Bytes of a compact index of a block.
const INDEX_BYTES: f64 = 2.0;

/// Maximum bytes of a cluster of zeros: 4 MiB of them, with LZ4.
const MOST_OF_ZEROS: f64 = 5.0 * PAGE_BYTES as f64;

/// Bytes of an inode with its own time.
pub(super) const INODE_BYTES: u64 = InodeTimes::EXTENDED_BYTES;

/// Bytes that an inode with the image's time takes less.
pub(super) const COMPACT_SAVES_BYTES: u64 = INODE_BYTES - InodeTimes::COMPACT_BYTES;

/// Bytes before everything else: the superblock, after the space for boot loaders.
pub(super) const SUPERBLOCK_BYTES: u64 = 1024 + 128;

/// The cost of zeros between data, next to the sizes of the data packed alone. A run can save bytes:
/// its zeros fill the last block of the data before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zeros {
    per_run: f64,
    per_byte: f64,
    /// The least and the most that a byte has cost.
    rates: [f64; 2],
    /// The most that a cluster of zeros takes.
    most_of_cluster: f64,
    short_files: Option<ShortFiles>,
}

/// The cost of zeros in short files, in which pieces of data cannot share clusters.
#[derive(Clone, Copy, Debug)]
struct ShortFiles {
    like: Pieces,
    /// The least and the most that the zeros after a piece have cost.
    costs: [f64; 2],
}

impl Zeros {
    /// Packs pieces of text with zeros between them, and without; and if files with such pieces are
    /// typical, some of these.
    pub(super) fn measure(options: &BuildOptions, of_files: Option<Pieces>) -> anyhow::Result<Self> {
        let runs =
            CASES.map(|(piece_bytes, zeros_bytes)| Ok((zeros_bytes as f64, run(piece_bytes, zeros_bytes, options)?)));
        let runs: Vec<(f64, f64)> = runs.into_iter().collect::<anyhow::Result<_>>()?;
        let [short, long] = [runs[0], runs[1]];
        let per_byte = ((long.1 - short.1) / (long.0 - short.0)).max(0.0);
        let per_run = short.1 - per_byte * short.0;
        let rates = runs.iter().map(|(len, cost)| ((cost - per_run) / len).max(0.0));
        let [least, most] = rates.fold([per_byte; 2], |[least, most], rate| [least.min(rate), most.max(rate)]);
        let most_of_cluster = f64::from(options.pcluster_bytes).min(MOST_OF_ZEROS);
        let short_files = of_files.map(|pieces| ShortFiles::measure(pieces, options)).transpose()?;
        Ok(Self { per_run, per_byte, rates: [least, most], most_of_cluster, short_files })
    }

    /// Returns the size of this many runs of zeros after data, in a stratum of these files, of which
    /// this many have data.
    pub(super) fn cost_in(self, long_files: LongFiles, files: f64, runs: f64, bytes: Estimate) -> Estimate {
        let (apart, shared) = (self.cost(runs, bytes), self.shared_cost(runs, bytes));
        match (long_files, self.short_files) {
            (LongFiles::None, Some(short)) if files > 1.0 && runs <= files => short.cost(runs, bytes),
            (LongFiles::None, Some(short)) if files > 1.0 => {
                short.cost(runs, bytes).covering(apart + short.rounding(runs))
            }
            (LongFiles::None, _) => apart,
            _ if shared.low() >= apart.high() => apart,
            (LongFiles::One(_), _) if shared.high() <= apart.low() => shared,
            // Sharing never takes more.
            _ => apart.covering(shared).bounded([f64::MIN, apart.high()]),
        }
    }

    /// Returns the size of this many runs of zeros in a file whose zeros share clusters, apart from the
    /// first and the last of each run.
    fn shared_cost(self, runs: f64, bytes: Estimate) -> Estimate {
        let ends = runs * self.most_of_cluster;
        let fixed = UNSHARED_BYTES as f64 + self.per_run * runs + ends;
        Estimate::exact(fixed) + bytes.scaled(INDEX_BYTES / PAGE_BYTES as f64) + Estimate::doubt([ends; 2])
    }

    /// Returns the size of this many runs of zeros after data.
    pub(super) fn cost(self, runs: f64, bytes: Estimate) -> Estimate {
        if bytes.high() <= 0.0 {
            return Estimate::exact(0.0);
        }
        let [least, most] = self.rates;
        let doubt = [(self.per_byte - least) * bytes.value, (most - self.per_byte) * bytes.value];
        Estimate::exact(self.per_run * runs) + bytes.scaled(self.per_byte) + Estimate::doubt(doubt)
    }
}

impl ShortFiles {
    fn measure(like: Pieces, options: &BuildOptions) -> anyhow::Result<Self> {
        let Pieces { count, zeros_bytes } = like;
        let alone = short_file(Pieces { count: 1, zeros_bytes: 0 }, 0, options)?;
        let mut costs = [f64::MAX, 0.0];
        for quarters in QUARTERS_BEFORE {
            let before = zeros_bytes * quarters / 4 / PAGE_BYTES * PAGE_BYTES;
            let bytes = short_file(like, before, options)? / count as f64 - alone;
            costs = [costs[0].min(bytes), costs[1].max(bytes)];
        }
        Ok(Self { like, costs })
    }

    /// Returns the size of this many runs of zeros, each in a file of its own.
    fn cost(self, runs: f64, bytes: Estimate) -> Estimate {
        let [least, most] = self.costs;
        let doubt = runs * (most - least) / 2.0;
        bytes.scaled(f64::midpoint(least, most) / self.like.zeros_bytes as f64)
            + Estimate::doubt([doubt; 2])
            + self.rounding(runs)
    }

    /// Returns the uncertainty of this many runs: those that take blocks of their own take one more or
    /// less, depending on their place.
    fn rounding(self, runs: f64) -> Estimate {
        let has_blocks = self.costs[0] >= PAGE_BYTES as f64;
        Estimate::doubt([if has_blocks { runs * PAGE_BYTES as f64 / 2.0 } else { 0.0 }; 2])
    }
}

/// Returns the size of this many runs of zeros in files that are stored without their zeros. Of the
/// data of such a file, `inner_bytes` are zeros that were packed with it, so they may be left out
/// too. Its clusters have records instead of indexes.
pub(super) fn without_zeros(runs: f64, data_bytes: Estimate, inner_bytes: f64) -> Estimate {
    let of_runs = RECORD_BYTES * runs;
    let of_data = RECORD_BYTES * data_bytes.high() / PAGE_BYTES as f64;
    Estimate::exact(of_runs) + Estimate::doubt([of_runs + MOST_OF_HOLE * inner_bytes, of_runs + of_data])
}

/// Returns the bytes that a run of zeros after a piece of text takes in an image.
fn run(piece_bytes: u64, zeros_bytes: u64, options: &BuildOptions) -> anyhow::Result<f64> {
    let content = memory_file()?;
    content.write_all_at(&text((PIECES * piece_bytes) as usize), 0)?;
    let content = Arc::new(content);
    let mut alone = empty_tree();
    for piece in 0..PIECES {
        let content = Content::Range(Arc::clone(&content), piece * piece_bytes);
        let name = piece.to_string();
        alone.add(alone.root(), name.as_bytes(), node(NodeKind::Regular { content, size: piece_bytes }))?;
    }
    let alone = added_bytes(&build(&alone, options, &memory_file()?)?);
    let alone = alone - (PIECES - 1) * INODE_BYTES;
    let every = piece_bytes.next_multiple_of(PAGE_BYTES) + zeros_bytes;
    let span = |piece: u64| Span { at: piece * every, len: piece_bytes, source: piece * piece_bytes };
    let content = Content::Spans(content, (0..PIECES).map(span).collect());
    let mut tree = empty_tree();
    tree.add(tree.root(), b"0", node(NodeKind::Regular { content, size: PIECES * every }))?;
    let added = added_bytes(&build(&tree, options, &memory_file()?)?);
    Ok((added as f64 - alone as f64) / PIECES as f64)
}

/// Returns the bytes of a file with pieces of text and zeros, of which `before` precede the first, among
/// others like it: their inodes leave gaps in blocks.
fn short_file(pieces: Pieces, before: u64, options: &BuildOptions) -> anyhow::Result<f64> {
    let every = SHORT_PIECE_BYTES + pieces.zeros_bytes;
    let content = memory_file()?;
    content.write_all_at(&text(SHORT_PIECE_BYTES as usize), 0)?;
    let content = Arc::new(content);
    let of_files = |count: u64| -> anyhow::Result<f64> {
        let mut tree = empty_tree();
        for number in 0..count {
            let span = |piece: u64| Span { at: before + piece * every, len: SHORT_PIECE_BYTES, source: 0 };
            let kind = NodeKind::Regular {
                content: Content::Spans(Arc::clone(&content), (0..pieces.count).map(span).collect()),
                size: pieces.count * every,
            };
            tree.add(tree.root(), number.to_string().as_bytes(), node(kind))?;
        }
        Ok(added_bytes(&build(&tree, options, &memory_file()?)?) as f64)
    };
    let [few, more] = SHORT_FILES;
    Ok((of_files(more)? - of_files(few)?) / (more - few) as f64)
}

/// Returns the bytes that the files of an image take without their names.
pub(super) fn added_bytes(report: &BuildReport) -> u64 {
    report.data_bytes + report.inode_bytes
}

/// Returns lines of numbers, which compress as text does.
fn text(len: usize) -> Vec<u8> {
    let (mut state, mut text) = (1u64, Vec::new());
    while text.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.extend(format!("{} items of {}\n", state >> 48, state >> 40 & 15).bytes());
    }
    text.truncate(len);
    text
}

/// Returns the size of a stratum whose files an image stores behind their inodes, without the gaps
/// between them; `None` for others.
pub(super) fn inline(stratum: &Stratum) -> Option<Estimate> {
    let stored = || stratum.lens().map(|len| stored_bytes(INODE_BYTES, len, PAGE_BYTES)).sum::<u64>();
    stratum.is_inline.then(|| Estimate::exact(stored() as f64))
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
    // Zeros before and after the data take at least a block each.
    let zeros = if stratum.has_own_holes {
        MOST_OF_HOLE * stratum.hole_bytes as f64 + (2 * stratum.units() * PAGE_BYTES) as f64
    } else {
        0.0
    };
    Limits { least: inodes as f64 / data_bytes, most: MOST + ((inodes + rounding) as f64 + zeros) / data_bytes }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::images::{CHOICES, options};

    /// Returns the size of an image that holds one file.
    fn image_bytes(content: Content, size: u64, options: &BuildOptions) -> u64 {
        let mut tree = empty_tree();
        tree.add(tree.root(), b"0", node(NodeKind::Regular { content, size })).expect("a file");
        build(&tree, options, &memory_file().expect("memory")).expect("an image").image_bytes
    }

    #[test]
    fn limits_hold_for_incompressible_data() {
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
                assert!(found as f64 <= limits.most * f64::from(len), "{len} {} {found}", choice.codec);
                assert!(limits.least > 0.0);
            }
        }
    }

    /// The sum of pieces packed alone and of the zeros between them is the size of the whole.
    #[test]
    fn costs_of_holes_match_the_writer() {
        let (pieces, len) = (10, 70_000);
        let bytes = text(pieces * len);
        let file = memory_file().expect("memory");
        file.write_all_at(&bytes, 0).expect("memory");
        let file = Arc::new(file);
        for choice in CHOICES {
            let options = options(choice.codec, choice.cluster).expect("a codec");
            let zeros = Zeros::measure(&options, None).expect("an image");
            let alone = bytes.chunks(len).map(|piece| {
                let image = image_bytes(Content::Bytes(piece.into()), len as u64, &options);
                image - SUPERBLOCK_BYTES - 2 * INODE_BYTES - 40 - PAGE_BYTES / 2
            });
            let alone = alone.sum::<u64>() as f64;
            for hole in [1 << 20, 8 << 20, 16 << 20, 17 << 20] {
                let every = len.next_multiple_of(4096) as u64 + hole;
                let span =
                    |piece: usize| Span { at: piece as u64 * every, len: len as u64, source: (piece * len) as u64 };
                let content = Content::Spans(Arc::clone(&file), (0..pieces).map(span).collect());
                let whole = image_bytes(content, pieces as u64 * every, &options) as f64;
                let cost = zeros.cost(pieces as f64, Estimate::exact((pieces as u64 * hole) as f64));
                let (low, high, slack) = (alone + cost.low(), alone + cost.high(), 16384.0 + whole / 10.0);
                let holds = low - slack <= whole && whole <= high + slack;
                assert!(holds, "{} {hole}: {whole} {low} {high} {zeros:?}", choice.codec);
            }
            let size = Estimate::exact(f64::from(64 << 20));
            let most = limits_of_zeros().most * size.value;
            assert!(zeros.cost(1.0, size).high() <= most, "{}: {zeros:?}", choice.codec);
            assert!(zeros.cost(3.0, Estimate::exact(0.0)).is_exact());
        }
    }
}

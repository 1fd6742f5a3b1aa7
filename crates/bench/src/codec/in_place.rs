//! `pagefold-bench in-place`: decompresses LZ4 blocks of EROFS's sizes in three ways: in the buffer
//! they were read into, from a separate buffer, and after copying them out of the way.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::ensure;
use pagefold_codec::{
    Lz4Encoder,
    lz4::{compress_bound, decompress, decompress_in_place, in_place_margin},
};

use crate::{
    figures::{Output, Rounds},
    kinds::{self, files},
};

/// Output sizes of a block, in bytes.
const SIZES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Output bytes decompressed between two clock readings. Every group of every case is decompressed
/// once before any is decompressed again. Otherwise a processor would learn the branches of a whole
/// megabyte, and learn them twice as fast for the two ways that share a decoder.
const GROUP_BYTES: usize = 256 << 10;
/// Maximum output bytes per kind of data.
const LIMIT: usize = 4 << 20;

/// Options of `pagefold-bench in-place`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files to compress [default: the kinds of data that 'codec' gathers]
    #[arg(long, num_args = 1..)]
    data: Vec<PathBuf>,
    /// Number of rounds; each figure is from the fastest one
    #[arg(long, default_value = "9", value_parser = crate::count)]
    rounds: usize,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// The three ways, in the order of their times.
const WAYS: [&str; 3] = ["lz4-separate", "lz4-in-place", "lz4-copy"];

/// A block, the buffer it is decompressed in, and the expected output.
struct Work<'a> {
    block: Vec<u8>,
    buffer: Vec<u8>,
    expected: &'a [u8],
}

impl<'a> Work<'a> {
    fn new(encoder: &mut Lz4Encoder, expected: &'a [u8]) -> Option<Self> {
        let mut block = vec![0; compress_bound(expected.len())];
        let len = encoder.compress(expected, &mut block)?;
        block.truncate(len);
        // An image stores incompressible data raw.
        (len < expected.len()).then(|| Self { buffer: vec![0; expected.len() + in_place_margin(len)], block, expected })
    }

    /// Puts the block where an image read puts it: at the end of the buffer.
    fn read(&mut self) {
        let start = self.buffer.len() - self.block.len();
        self.buffer[start..].copy_from_slice(&self.block);
    }

    fn decode(&mut self, way: usize, aside: &mut [u8]) -> anyhow::Result<()> {
        let (len, out_len) = (self.block.len(), self.expected.len());
        let start = self.buffer.len() - len;
        match way {
            0 => decompress(&self.block, &mut self.buffer[..out_len])?,
            1 => {
                let end = self.buffer.len();
                decompress_in_place(&mut self.buffer, start..end, out_len)?;
            }
            _ => {
                aside[..len].copy_from_slice(&self.buffer[start..]);
                decompress(&aside[..len], &mut self.buffer[..out_len])?;
            }
        }
        Ok(())
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let kinds = if args.data.is_empty() { kinds::first()? } else { files::named(&args.data)? };
    let mut cases: Vec<Case> = Vec::new();
    for (name, bytes) in &kinds {
        cases.extend(SIZES.iter().filter_map(|&size| Case::new(name, bytes, size)));
    }
    ensure!(!cases.is_empty(), "no data that LZ4 makes smaller");
    for round in 0..args.rounds {
        for turn in 0..WAYS.len() {
            cases.iter_mut().try_for_each(|case| case.decode((round + turn) % WAYS.len()))?;
        }
    }
    let mut output = Output::new("in-place", args.json, Rounds::Once);
    for case in &cases {
        for (subject, value) in WAYS.into_iter().zip(case.speeds()) {
            output.put_of(subject, &case.name, "decompress_mb_s", value, "MB/s");
        }
    }
    Ok(())
}

/// One kind of data in blocks of one size, with the best time of each group for each way.
struct Case<'a> {
    name: String,
    size: usize,
    work: Vec<Work<'a>>,
    best: Vec<[Duration; 3]>,
}

impl<'a> Case<'a> {
    /// Returns `None` if no block of this size shrinks.
    fn new(kind: &str, bytes: &'a [u8], size: usize) -> Option<Self> {
        let mut encoder = Lz4Encoder::new();
        let chunks: Vec<&[u8]> = bytes.chunks_exact(size).collect();
        let take = (LIMIT / size).min(chunks.len());
        let spread = (0..take).map(|index| chunks[index * chunks.len() / take]);
        let work: Vec<Work<'a>> = spread.filter_map(|chunk| Work::new(&mut encoder, chunk)).collect();
        let best = vec![[Duration::MAX; 3]; work.len().div_ceil(GROUP_BYTES / size)];
        (!work.is_empty()).then(|| Self { name: format!("{kind}/{}k", size >> 10), size, work, best })
    }

    /// Decompresses everything in one way.
    fn decode(&mut self, way: usize) -> anyhow::Result<()> {
        let mut aside = vec![0; self.size];
        for (group, best) in self.work.chunks_mut(GROUP_BYTES / self.size).zip(&mut self.best) {
            group.iter_mut().for_each(Work::read);
            let start = Instant::now();
            for one in &mut *group {
                one.decode(way, &mut aside)?;
            }
            best[way] = best[way].min(start.elapsed());
            for one in &*group {
                ensure!(one.buffer[..self.size] == *one.expected, "{} gave other bytes", WAYS[way]);
            }
        }
        Ok(())
    }

    /// Returns the output speed of each way in MB/s.
    fn speeds(&self) -> [f64; 3] {
        let times: [Duration; 3] = std::array::from_fn(|way| self.best.iter().map(|best| best[way]).sum());
        let total = (self.work.len() * self.size) as f64;
        times.map(|time| total / time.as_secs_f64() / 1e6)
    }
}

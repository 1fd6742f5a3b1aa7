//! `pagefold-bench in-place`: decompresses LZ4 blocks of EROFS's sizes in three ways: in the buffer
//! they were read into, from a separate buffer, and after copying them out of the way.

use std::{path::PathBuf, time::Instant};

use anyhow::ensure;
use pagefold_codec::{
    Lz4Encoder,
    lz4::{compress_bound, decompress, decompress_in_place, in_place_margin},
};
use pagefold_kinds::{self as kinds, files};
use pagefold_report::{Output, Rounds};

/// Output sizes of a block, in bytes.
const SIZES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Maximum output bytes of a case.
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

const WAYS: [&str; 3] = ["separate", "in-place", "copy"];

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let kinds = if args.data.is_empty() { kinds::first()? } else { files::named(&args.data)? };
    let mut cases: Vec<Case> = Vec::new();
    for (name, bytes) in &kinds {
        cases.extend(SIZES.iter().filter_map(|&size| Case::new(name, bytes, size)));
    }
    ensure!(!cases.is_empty(), "no data that LZ4 makes smaller");
    let mut output = Output::new("in-place", args.json, Rounds::Best);
    for round in 0..args.rounds {
        for turn in 0..WAYS.len() {
            let way = (round + turn) % WAYS.len();
            for case in &mut cases {
                let speed = case.decode(way)?;
                output.put_of(WAYS[way], &case.name, "decompress_mb_s", speed, "MB/s");
            }
        }
    }
    Ok(())
}

/// A block, the buffer it is decompressed in, and the expected output.
struct Block<'a> {
    bytes: Vec<u8>,
    buffer: Vec<u8>,
    expected: &'a [u8],
}

impl<'a> Block<'a> {
    /// Returns `None` if the block does not shrink: an image stores such data raw.
    fn new(encoder: &mut Lz4Encoder, expected: &'a [u8]) -> Option<Self> {
        let mut bytes = vec![0; compress_bound(expected.len())];
        let len = encoder.compress(expected, &mut bytes)?;
        bytes.truncate(len);
        (len < expected.len()).then(|| Self { buffer: vec![0; expected.len() + in_place_margin(len)], bytes, expected })
    }

    /// Returns where an image's read puts the block: at the end of the buffer.
    fn start(&self) -> usize {
        self.buffer.len() - self.bytes.len()
    }

    fn decode(&mut self, way: usize, aside: &mut [u8]) -> anyhow::Result<()> {
        let (len, out_len, start, end) = (self.bytes.len(), self.expected.len(), self.start(), self.buffer.len());
        match way {
            0 => decompress(&self.bytes, &mut self.buffer[..out_len])?,
            1 => decompress_in_place(&mut self.buffer, start..end, out_len).map(drop)?,
            _ => {
                aside[..len].copy_from_slice(&self.buffer[start..]);
                decompress(&aside[..len], &mut self.buffer[..out_len])?;
            }
        }
        Ok(())
    }
}

/// One kind of data in blocks of one size.
struct Case<'a> {
    name: String,
    size: usize,
    blocks: Vec<Block<'a>>,
}

impl<'a> Case<'a> {
    /// Returns `None` if no block of this size shrinks.
    fn new(kind: &str, bytes: &'a [u8], size: usize) -> Option<Self> {
        let mut encoder = Lz4Encoder::new();
        let chunks: Vec<&[u8]> = bytes.chunks_exact(size).collect();
        let take = (LIMIT / size).min(chunks.len());
        let spread = (0..take).map(|index| chunks[index * chunks.len() / take]);
        let blocks: Vec<Block<'a>> = spread.filter_map(|chunk| Block::new(&mut encoder, chunk)).collect();
        (!blocks.is_empty()).then(|| Self { name: format!("{kind}/{}k", size >> 10), size, blocks })
    }

    /// Decompresses all blocks in one way, compares them, and returns the output speed in MB/s.
    fn decode(&mut self, way: usize) -> anyhow::Result<f64> {
        for block in &mut self.blocks {
            let start = block.start();
            block.buffer[start..].copy_from_slice(&block.bytes);
        }
        let mut aside = vec![0; self.size];
        let start = Instant::now();
        for block in &mut self.blocks {
            block.decode(way, &mut aside)?;
        }
        let time_s = start.elapsed().as_secs_f64();
        for block in &self.blocks {
            ensure!(block.buffer[..self.size] == *block.expected, "{} gave other bytes", WAYS[way]);
        }
        Ok((self.blocks.len() * self.size) as f64 / time_s / 1e6)
    }
}

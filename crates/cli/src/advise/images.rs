//! Size and speed of images of the input. The image writer packs each batch of samples into a small
//! image, and the first of these images are read at random offsets.
//!
//! All choices are tried on the same batches, and the fastest get the most. The size for a slow
//! choice is derived from that for a faster one, by comparing the batches that both have packed.
//! That ratio varies less between batches than the sizes themselves.

use std::{
    collections::HashMap,
    fs::File,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use pagefold_erofs::{BuildOptions, Content, Image, Node, NodeKind, Span, Tree, build};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{
    estimate::Estimate,
    input::{Input, InputKind},
    stratum::{Batch, Batches, Stratum, UNIT_BYTES, Unit},
    times::{p99, processor_time},
};
use crate::codec;

/// A codec and a cluster size, as `pack` takes them.
struct Named {
    codec: &'static str,
    cluster: &'static str,
    /// Index of the faster choice with the most similar images.
    like: usize,
}

/// The compared choices, the default first.
const CHOICES: [Named; 6] = [
    Named { codec: "lz4", cluster: "4K", like: 0 },
    Named { codec: "lz4", cluster: "64K", like: 0 },
    Named { codec: "lz4hc,9", cluster: "64K", like: 1 },
    Named { codec: "zstd,3", cluster: "16K", like: 1 },
    Named { codec: "zstd,3", cluster: "64K", like: 3 },
    Named { codec: "zstd,9", cluster: "64K", like: 4 },
];

/// Fraction of the time for the first choice.
const FIRST_PART: f64 = 0.3;

/// With fewer batches in a stratum, those of all strata are a better estimate.
const FEW: usize = 6;

/// Content that shrinks to 1/32 of its size or less is packed together with its surroundings: a
/// cluster then covers more than one unit.
const DENSE: u64 = 32;

/// Random reads per choice, and per batch.
const READS: usize = 1024;
const BATCH_READS: usize = 64;

/// Bytes per read.
const READ_BYTES: u64 = 4096;

/// Zeros in the image that measures the cost of holes, which are not sampled.
const ZEROS_BYTES: u64 = 256 << 20;

/// Bytes of an inode with its own time.
const INODE_BYTES: u64 = 64;

/// Bytes before everything else: the superblock, after the space for boot loaders.
const SUPERBLOCK_BYTES: u64 = 1024 + 128;

const BLOCK_BYTES: u64 = 4096;

/// Relative error of adding up small images instead of building a large one: in 95 % of the cases,
/// in either direction.
const METHOD_ERROR: f64 = 0.015;

/// Figures of the images of one choice.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    pub(super) codec: &'static str,
    pub(super) cluster: &'static str,
    pub(super) bytes: Estimate,
    /// Time to pack on all processors.
    pub(super) build: Duration,
    pub(super) read_mean_ns: u64,
    pub(super) read_p99_ns: u64,
}

/// The result of packing a batch.
#[derive(Clone, Copy, Debug)]
struct Packed {
    source_bytes: u64,
    image_bytes: u64,
    time: Duration,
}

struct Choice<'a> {
    options: BuildOptions,
    /// Bytes of an image of [`ZEROS_BYTES`].
    zeros_bytes: u64,
    batches: Batches<'a>,
    used: Duration,
    part: f64,
    packed: HashMap<(usize, usize), Packed>,
    read_ns: Vec<u64>,
}

/// Packs batches until `end`, or until `most_bytes` were packed for each choice.
pub(super) fn measure(input: &Input, most_bytes: u64, end: Instant, threads: usize) -> anyhow::Result<Vec<Figures>> {
    let mut choices = Vec::new();
    for (number, Named { codec, cluster, .. }) in CHOICES.into_iter().enumerate() {
        let options = options(codec, cluster)?;
        let part = if number == 0 { FIRST_PART } else { (1.0 - FIRST_PART) / (CHOICES.len() - 1) as f64 };
        let batches = Batches::new(&input.strata, most_bytes);
        let (used, packed, read_ns) = (Duration::ZERO, HashMap::new(), Vec::new());
        choices.push(Choice { zeros_bytes: zeros_bytes(&options)?, options, batches, used, part, packed, read_ns });
    }
    let choices = Mutex::new(choices);
    thread::scope(|scope| {
        let work = || work(input, &choices, end);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<anyhow::Result<()>>()
    })?;
    let choices = choices.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut found = vec![estimate_first(input, &choices[0])];
    for (choice, named) in choices.iter().zip(CHOICES).skip(1) {
        let like = named.like;
        found.push(beside(input, &found[like], &choices[like], choice));
    }
    let figures = choices.iter().zip(CHOICES).zip(found).map(|((choice, named), sampled)| {
        let bytes = sampled.into_iter().sum::<Estimate>() + Estimate::exact(rest_bytes(input, choice) as f64);
        let bytes = bytes.within(METHOD_ERROR);
        let (read_mean_ns, read_p99_ns) = choice.reads();
        let Named { codec, cluster, .. } = named;
        Figures { codec, cluster, bytes, build: choice.build(input), read_mean_ns, read_p99_ns }
    });
    Ok(figures.collect())
}

fn options(name: &str, cluster: &str) -> anyhow::Result<BuildOptions> {
    let pcluster_bytes = crate::size::parse(cluster).map_err(anyhow::Error::msg)? as u32;
    let codec = codec::of_clusters(name, pcluster_bytes)?;
    Ok(BuildOptions { codec, pcluster_bytes, threads: 1, ..BuildOptions::default() })
}

/// Main loop of a thread. Repeatedly packs a batch of the choice that has used the smallest part of
/// its time.
fn work(input: &Input, choices: &Mutex<Vec<Choice<'_>>>, end: Instant) -> anyhow::Result<()> {
    let choices = || choices.lock().unwrap_or_else(PoisonError::into_inner);
    let mut last_ns = vec![0u128; CHOICES.len()];
    while Instant::now() < end {
        let mut open = choices();
        let mut order: Vec<_> = (0..open.len()).collect();
        order.sort_by(|a, b| {
            let used = |number: &usize| open[*number].used.as_secs_f64() / open[*number].part;
            used(a).total_cmp(&used(b))
        });
        let Some((number, batch)) = order.into_iter().find_map(|number| Some((number, open[number].batches.next()?)))
        else {
            return Ok(());
        };
        // Keeps the other thread from taking the same choice in the meantime.
        let guess = Duration::from_nanos(last_ns[number] as u64);
        open[number].used += guess;
        let (options, zeros_bytes) = (open[number].options.clone(), open[number].zeros_bytes);
        let wanted_reads = READS.saturating_sub(open[number].read_ns.len());
        drop(open);
        let start = Instant::now();
        let packed = pack(input, &batch, &options, zeros_bytes, wanted_reads.min(BATCH_READS))?;
        let time = start.elapsed();
        last_ns[number] = time.as_nanos();
        let mut open = choices();
        let choice = &mut open[number];
        choice.used = choice.used.saturating_sub(guess) + time;
        if let Some((packed, read_ns)) = packed {
            choice.packed.insert((batch.stratum, batch.number), packed);
            choice.read_ns.extend(read_ns);
        }
    }
    Ok(())
}

/// Returns a tree without files.
fn empty_tree() -> Tree {
    Tree::new(node(NodeKind::Fifo))
}

fn node(kind: NodeKind) -> Node {
    // Times and owners that fit only into an extended inode.
    Node { kind, permissions: 0o755, uid: 70_000, gid: 70_000, mtime_s: 1 << 31, mtime_nsec: 1, xattrs: Vec::new() }
}

/// Packs a batch, and reads the image at `reads` random offsets. Returns `None` if a file has
/// changed or no file can be read.
fn pack(
    input: &Input,
    batch: &Batch,
    options: &BuildOptions,
    zeros_bytes: u64,
    reads: usize,
) -> anyhow::Result<Option<(Packed, Vec<u64>)>> {
    let found = pack_units(input, &batch.units, options, zeros_bytes, reads)?;
    if let (Some((packed, reads)), [unit]) = (&found, &batch.units[..])
        && packed.image_bytes * DENSE <= packed.source_bytes
        && let Some(longer) = unit.surroundings()
        && let Some((around, _)) = pack_units(input, &[longer], options, zeros_bytes, 0)?
    {
        let part = packed.source_bytes as f64 / around.source_bytes as f64;
        let image_bytes = (around.image_bytes as f64 * part) as u64;
        return Ok(Some((Packed { image_bytes, ..*packed }, reads.clone())));
    }
    Ok(found)
}

fn pack_units(
    input: &Input,
    units: &[Unit],
    options: &BuildOptions,
    zeros_bytes: u64,
    reads: usize,
) -> anyhow::Result<Option<(Packed, Vec<u64>)>> {
    let mut tree = empty_tree();
    let (mut source_bytes, mut names, mut pieces, mut lens) = (0, 0, 0, Vec::new());
    for unit in units {
        let Ok(content) = input.content(*unit) else { continue };
        let name = lens.len().to_string();
        names += 12 + name.len() as u64;
        let mut file = node(NodeKind::Regular { content, size: unit.len_bytes });
        file.mtime_s += lens.len() as i64;
        tree.add(tree.root(), name.as_bytes(), file)?;
        source_bytes += unit.len_bytes;
        pieces += u64::from(unit.len_bytes == UNIT_BYTES);
        lens.push(unit.len_bytes);
    }
    let start = processor_time();
    let image = memory_file()?;
    let Some(report) = build(&tree, options, &image).ok().filter(|_| !lens.is_empty()) else { return Ok(None) };
    let time = processor_time().saturating_sub(start);
    // A batch of zeros extends the preceding data and begins no run. Nobody reads data there.
    if report.data_bytes <= 2 * BLOCK_BYTES && source_bytes > UNIT_BYTES / 2 {
        let image_bytes = of_zeros(source_bytes, zeros_bytes);
        return Ok(Some((Packed { source_bytes, image_bytes, time }, Vec::new())));
    }
    // On average, the last block is half full.
    let root_bytes = INODE_BYTES + 27 + names;
    let metadata_bytes = report.image_bytes - report.data_bytes;
    let metadata_bytes = metadata_bytes.saturating_sub(SUPERBLOCK_BYTES + root_bytes + BLOCK_BYTES / 2);
    let least_bytes = lens.len() as u64 * INODE_BYTES;
    // Where a file continues beyond a piece, the end of the piece wastes half a block as well.
    let data_bytes = report.data_bytes.saturating_sub(pieces * BLOCK_BYTES / 2);
    let image_bytes = data_bytes + metadata_bytes.max(least_bytes);
    Ok(Some((Packed { source_bytes, image_bytes, time }, read(image, &lens, reads)?)))
}

fn memory_file() -> anyhow::Result<File> {
    Ok(memfd_create("advise", MemfdFlags::CLOEXEC).context("a file in memory")?.into())
}

/// Returns the time of each of `reads` random reads, without a cache.
fn read(image: File, lens: &[u64], reads: usize) -> anyhow::Result<Vec<u64>> {
    if reads == 0 {
        return Ok(Vec::new());
    }
    let image = Image::open_with(image, 0).context("reading what was just packed")?;
    let pages: u64 = lens.iter().map(|len| len.div_ceil(READ_BYTES)).sum();
    let count = pages.min(reads as u64);
    let (mut buffer, mut times) = (vec![0; READ_BYTES as usize], Vec::new());
    let mut opened = HashMap::new();
    for taken in 0..count {
        let mut page = super::stratum::spread(taken, pages);
        let Some(number) = lens.iter().position(|len| {
            let pages = len.div_ceil(READ_BYTES);
            let inside = page < pages;
            page -= if inside { 0 } else { pages };
            inside
        }) else {
            continue;
        };
        let file = match opened.entry(number) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(image.file(&image.resolve(number.to_string().as_bytes())?)?)
            }
        };
        let start = processor_time();
        file.read_at(&mut buffer, page * READ_BYTES)?;
        times.push(processor_time().saturating_sub(start).as_nanos() as u64);
    }
    Ok(times)
}

impl Choice<'_> {
    fn of_stratum(&self, stratum: usize) -> impl Iterator<Item = (usize, &Packed)> {
        self.packed.iter().filter(move |((of, _), _)| *of == stratum).map(|((_, number), packed)| (*number, packed))
    }

    fn build(&self, input: &Input) -> Duration {
        let processors = thread::available_parallelism().map_or(1, usize::from) as f64;
        let of_stratum = |(number, stratum): (usize, &Stratum)| {
            let (bytes, time) = self.of_stratum(number).fold((0, 0.0), |(bytes, time), (_, packed)| {
                (bytes + packed.source_bytes, time + packed.time.as_secs_f64())
            });
            if bytes == 0 { 0.0 } else { time * stratum.bytes as f64 / bytes as f64 }
        };
        let seconds: f64 = input.strata.iter().enumerate().map(of_stratum).sum();
        Duration::try_from_secs_f64(seconds / processors).unwrap_or(Duration::MAX)
    }

    fn reads(&self) -> (u64, u64) {
        let sum: u64 = self.read_ns.iter().sum();
        (sum / self.read_ns.len().max(1) as u64, p99(self.read_ns.clone()))
    }
}

/// Estimates the first choice's size for each stratum.
fn estimate_first(input: &Input, first: &Choice<'_>) -> Vec<Estimate> {
    let of_stratum = |(number, stratum): (usize, &Stratum)| {
        let measured = first.of_stratum(number).map(|(_, p)| (p.source_bytes as f64, p.image_bytes as f64));
        (stratum.bytes as f64, measured.collect())
    };
    Estimate::of_strata(&input.strata.iter().enumerate().map(of_stratum).collect::<Vec<_>>())
}

/// Estimates another choice's size for each stratum, from the batches that both have packed. A
/// stratum with few batches is estimated from all strata.
fn beside(input: &Input, estimates: &[Estimate], base: &Choice<'_>, other: &Choice<'_>) -> Vec<Estimate> {
    let pairs = |stratum: usize| -> Vec<[f64; 3]> {
        let of_other = other.of_stratum(stratum);
        let both = of_other.filter_map(|(number, own)| Some((base.packed.get(&(stratum, number))?, own)));
        both.map(|(base, own)| [own.source_bytes, base.image_bytes, own.image_bytes].map(|bytes| bytes as f64))
            .collect()
    };
    let all: Vec<_> = (0..input.strata.len()).flat_map(pairs).collect();
    let strata = estimates.iter().zip(&input.strata).enumerate();
    strata
        .map(|(number, (estimate, stratum))| {
            let own = pairs(number);
            let own_bytes: f64 = own.iter().map(|[source, ..]| source).sum();
            let left = (1.0 - own_bytes / stratum.bytes as f64).max(0.0);
            let enough = left == 0.0 || own.len() >= FEW;
            estimate.beside(stratum.bytes as f64, if enough { &own } else { &all }, left)
        })
        .collect()
}

/// Returns the size of everything that is not sampled: the superblock, directories, files without
/// content, and holes.
fn rest_bytes(input: &Input, choice: &Choice<'_>) -> u64 {
    let names = &input.names;
    let sampled = if input.kind == InputKind::Directory {
        let empty = names.files.saturating_sub(input.sampled_files());
        (names.directories + names.others + empty) * INODE_BYTES + names.directory_bytes + names.target_bytes
    } else {
        INODE_BYTES + 27 + 12 + input.name.len() as u64
    };
    let holes = of_zeros(input.hole_bytes, choice.zeros_bytes);
    (SUPERBLOCK_BYTES + sampled + holes).next_multiple_of(BLOCK_BYTES)
}

/// Returns the size of `len_bytes` zeros, given that of [`ZEROS_BYTES`].
fn of_zeros(len_bytes: u64, zeros_bytes: u64) -> u64 {
    (u128::from(len_bytes) * u128::from(zeros_bytes) / u128::from(ZEROS_BYTES)) as u64
}

/// Returns the size of [`ZEROS_BYTES`] zeros in an image.
fn zeros_bytes(options: &BuildOptions) -> anyhow::Result<u64> {
    let content = Content::Spans(memory_file()?.into(), Vec::<Span>::new().into());
    let mut tree = empty_tree();
    tree.add(tree.root(), b"0", node(NodeKind::Regular { content, size: ZEROS_BYTES }))?;
    let report = build(&tree, options, &memory_file()?)?;
    Ok(report.image_bytes.saturating_sub(SUPERBLOCK_BYTES + BLOCK_BYTES / 2))
}

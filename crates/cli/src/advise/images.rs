//! Size and speed of images of the input. The image writer packs each batch of samples into a small
//! image, and the first of these images are read at random offsets.
//!
//! All choices pack the same batches, faster choices more of them. The size for the first choice is
//! derived from the objects of the pages. The size for a slow choice is derived from that for a
//! faster one, by the batches that both have packed. These ratios vary less between batches than
//! the sizes themselves.

use std::{
    collections::HashMap,
    fs::File,
    io::ErrorKind,
    os::unix::fs::FileExt,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::Context;
use pagefold_erofs::{BuildOptions, Content, Image, NodeKind, Span, build};

use super::{
    clock::Deadline,
    costs::{
        self, COMPACT_SAVES_BYTES, INODE_BYTES, SUPERBLOCK_BYTES, Zeros, added_bytes, empty_tree, memory_file, node,
    },
    estimate::Estimate,
    input::{Input, InputKind},
    order::spread,
    pages::Pages,
    parallel,
    stratum::{Batch, Batches, PAGE_BYTES, Pieces, SURROUNDINGS_BYTES, Stratum, Then, UNIT_BYTES, Unit},
    times::{p99, processor_time},
    whole,
};
use crate::codec;

/// A codec and a cluster size, as `pack` takes them.
pub(super) struct Named {
    pub(super) codec: &'static str,
    pub(super) cluster: &'static str,
    /// Index of the faster choice with the most similar images.
    like: usize,
}

/// The compared choices, the default first.
pub(super) const CHOICES: [Named; 6] = [
    Named { codec: "lz4", cluster: "4K", like: 0 },
    Named { codec: "lz4", cluster: "64K", like: 0 },
    Named { codec: "lz4hc,9", cluster: "64K", like: 1 },
    Named { codec: "zstd,3", cluster: "16K", like: 1 },
    Named { codec: "zstd,3", cluster: "64K", like: 3 },
    Named { codec: "zstd,9", cluster: "64K", like: 4 },
];

/// Fraction of the time for the first choice.
const FIRST_PART: f64 = 0.3;

/// With fewer batches in a stratum, choices are compared by the batches of all strata.
const FEW: usize = 6;

/// Content that shrinks to 1/32 of its size or less is packed together with its surroundings: a
/// cluster then covers more than one unit.
const DENSE: u64 = 32;

/// Clusters of a unit from which on the truncated one at its end hardly matters.
const MANY_CLUSTERS: u64 = 32;

/// One unit in this many is compared with its surroundings, to find what is lost by packing units alone:
/// packing the surroundings, as a whole and in units, takes as long as packing all of these.
const COMPARED_PART: usize = (2 * SURROUNDINGS_BYTES / UNIT_BYTES) as usize;

/// Number of comparisons for a stratum from which on more are made only if they differ.
const COMPARED_FIRST: usize = 4;

/// Random reads per choice, and per batch.
const READS: usize = 1024;
const BATCH_READS: usize = 64;

/// Bytes per read.
const READ_BYTES: u64 = PAGE_BYTES;

/// Error of adding up small images instead of building a large one: in 95 % of the cases, in either
/// direction. The ends of pieces and of the metadata lie within a block.
const METHOD_ERROR: f64 = 0.015;
const METHOD_ERROR_BYTES: f64 = 4.0 * PAGE_BYTES as f64;

/// Bytes that the end of a piece wastes where data continues: half a block; and where few zeros follow,
/// some of which would be in that block.
const CUT_BYTES: u64 = PAGE_BYTES / 2;
const CUT_BEFORE_ZEROS_BYTES: u64 = PAGE_BYTES / 4;

/// Figures of the images of one choice.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    pub(super) codec: &'static str,
    pub(super) cluster: &'static str,
    pub(super) bytes: Estimate,
    /// Bytes of data that were packed.
    pub(super) sampled_bytes: u64,
    /// Time to pack on all processors, if a part was packed.
    pub(super) build: Option<Duration>,
    pub(super) reads: Option<Reads>,
}

/// Times of random reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reads {
    pub(super) mean_ns: u64,
    pub(super) p99_ns: u64,
}

/// The result of packing a batch.
#[derive(Clone, Copy, Debug)]
struct Packed {
    data_bytes: u64,
    image_bytes: u64,
    /// Those of clusters, the rest of their last blocks included.
    clusters_bytes: u64,
    /// By how much packing more of the file together may change `image_bytes`.
    doubt_bytes: u64,
    alone: Alone,
    time: Duration,
}

/// Whether clusters of a batch end earlier than in a longer file.
#[derive(Clone, Copy, Debug)]
enum Alone {
    /// They do not, or hardly.
    No,
    Yes,
    /// They do, and its surroundings are known; `by_chance`, or because it shrinks much.
    Compared {
        around: Around,
        by_chance: bool,
    },
}

/// What a unit takes within the whole file, as a multiple of what it takes alone, and the doubt of it.
#[derive(Clone, Copy, Debug)]
struct Around {
    ratio: f64,
    doubt: f64,
}

/// Whether to compare a unit with its surroundings.
#[derive(Clone, Copy, Debug)]
enum Compare {
    Yes,
    /// If it shrinks so much that a cluster covers more than it.
    IfDense,
    No,
    Known(Around),
}

impl Compare {
    /// Returns whether to compare a unit whose packing took this `time`, before `end`.
    fn within(self, time: Duration, end: Deadline<'_>) -> Self {
        match self {
            Self::Yes | Self::IfDense if !end.leaves(time * COMPARED_PART as u32) => Self::No,
            _ => self,
        }
    }
}

impl Around {
    /// Derives it from the sizes of surroundings, packed together and in units with this many ends
    /// between them. Each end costs about the same, and the file does not have that of the surroundings
    /// either, unless a whole cluster ends there.
    fn new(together: f64, apart: f64, inner_ends: usize, is_whole: bool) -> Self {
        let apart = apart.max(1.0);
        let beyond = if is_whole { 0.0 } else { (apart - together) / apart / inner_ends.max(1) as f64 };
        let ratio = together / apart - beyond;
        Self { ratio: ratio.max(0.0), doubt: beyond.abs() / 2.0 }
    }
}

/// The file, the offset and the length of surroundings.
type Place = (u32, u64, u64);

/// Packed batches, by stratum and number.
type Batched = HashMap<(usize, usize), Packed>;

struct Choice<'a> {
    options: BuildOptions,
    /// The cost of zeros, measured before the first batch.
    zeros: Option<Zeros>,
    batches: Batches<'a>,
    used: Duration,
    part: f64,
    /// The longest time of a batch, without comparing it.
    longest: Duration,
    packed: Batched,
    around: HashMap<Place, Around>,
    read_ns: Vec<u64>,
}

/// Packs batches until `end`, or until `most_bytes` were packed for each choice.
pub(super) fn measure(
    input: &Input,
    pages: &Pages,
    most_bytes: u64,
    end: Deadline<'_>,
    threads: usize,
) -> anyhow::Result<Vec<Figures>> {
    let mut choices = Vec::new();
    for (number, Named { codec, cluster, .. }) in CHOICES.into_iter().enumerate() {
        choices.push(Choice {
            options: options(codec, cluster)?,
            zeros: None,
            batches: Batches::new(&input.strata, most_bytes),
            used: Duration::ZERO,
            part: if number == 0 { FIRST_PART } else { (1.0 - FIRST_PART) / (CHOICES.len() - 1) as f64 },
            longest: Duration::ZERO,
            packed: HashMap::new(),
            around: HashMap::new(),
            read_ns: Vec::new(),
        });
    }
    let options: Vec<_> = choices.iter().map(|choice| choice.options.clone()).collect();
    let of_whole = whole::pack(input, &options, most_bytes, end, threads)?;
    let has_zeros = input.hole_bytes > 0 || input.strata.iter().any(Stratum::may_have_zeros);
    if has_zeros {
        let of_files = input.strata.iter().find_map(Stratum::pieces_of_short_files);
        let zeros = measure_zeros(&choices, of_files, end, threads)?;
        for (choice, zeros) in choices.iter_mut().zip(zeros) {
            choice.zeros = zeros;
        }
    }
    let choices = Mutex::new(choices);
    thread::scope(|scope| {
        let work = || work(input, &choices, end);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<anyhow::Result<()>>()
    })?;
    let mut choices = choices.into_inner().unwrap_or_else(PoisonError::into_inner);
    for choice in &mut choices {
        (0..input.strata.len()).for_each(|stratum| choice.correct(stratum));
    }
    // The sizes of each choice's strata.
    let mut found: Vec<Vec<Estimate>> = Vec::new();
    for (number, (choice, named)) in choices.iter().zip(CHOICES).enumerate() {
        let strata = if number == 0 {
            compared(input, &pages.of_strata, &|batch| pages.of_batches.get(batch).copied(), choice)
        } else {
            let like = &choices[named.like].packed;
            let of_batch = |batch: &(usize, usize)| like.get(batch).map(|packed| packed.image_bytes as f64);
            compared(input, &found[named.like], &of_batch, choice)
        };
        found.push(strata);
    }
    let inline: Vec<_> = input.strata.iter().map(costs::inline).collect();
    let mut figures = Vec::new();
    for (((choice, named), sampled), whole) in choices.iter().zip(CHOICES).zip(found).zip(of_whole) {
        let of_stratum = |(number, (bytes, stratum)): (usize, (Estimate, &Stratum))| {
            let (size, limits) = (stratum.data_bytes(), costs::limits(stratum));
            let [packed_bytes, image_bytes, doubt_bytes] = choice.measured(number);
            let bytes = bytes.of_estimated(size, limits).with_measured(size, [packed_bytes, image_bytes], limits);
            bytes + Estimate::doubt([doubt_bytes * size.value / packed_bytes.max(1.0); 2])
        };
        let sampled = sampled.into_iter().zip(&input.strata).enumerate().map(of_stratum);
        let sampled = sampled.zip(&inline).map(|(bytes, inline)| inline.unwrap_or(bytes));
        let bytes = sampled.sum::<Estimate>() + rest(input, choice.zeros);
        let bytes = match whole {
            Some(bytes) => Estimate::exact(bytes as f64).within(0.0, PAGE_BYTES as f64),
            None => bytes.within(METHOD_ERROR, METHOD_ERROR_BYTES),
        };
        figures.push(Figures {
            codec: named.codec,
            cluster: named.cluster,
            bytes,
            sampled_bytes: choice.packed.values().map(|packed| packed.data_bytes).sum(),
            build: choice.build(input),
            reads: choice.reads(),
        });
    }
    Ok(figures)
}

/// Measures the cost of zeros for each choice, until `end`.
fn measure_zeros(
    choices: &[Choice<'_>],
    of_files: Option<Pieces>,
    end: Deadline<'_>,
    threads: usize,
) -> anyhow::Result<Vec<Option<Zeros>>> {
    // Zeros are the same with more effort.
    let source = |number: usize| {
        let like = CHOICES[number].like;
        if CHOICES[like].cluster == CHOICES[number].cluster { like } else { number }
    };
    let found = parallel::each(choices.len(), threads, end, |number| {
        let is_source = source(number) == number;
        is_source.then(|| Zeros::measure(&choices[number].options, of_files)).transpose()
    })?;
    Ok((0..choices.len()).map(|number| found[source(number)]).collect())
}

pub(super) fn options(name: &str, cluster: &str) -> anyhow::Result<BuildOptions> {
    let pcluster_bytes = crate::size::parse(cluster).map_err(anyhow::Error::msg)? as u32;
    let codec = codec::of_clusters(name, pcluster_bytes)?;
    Ok(BuildOptions { codec, pcluster_bytes, threads: 1, ..BuildOptions::default() })
}

/// Main loop of a thread. Repeatedly packs a batch for one choice. Of the choices whose next batch
/// would end in time, takes the one that has used the smallest part of its time.
fn work(input: &Input, choices: &Mutex<Vec<Choice<'_>>>, end: Deadline<'_>) -> anyhow::Result<()> {
    let choices = || choices.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let mut open = choices();
        let mut order: Vec<_> = (0..open.len()).collect();
        order.sort_by(|a, b| {
            let used = |number: &usize| open[*number].used.as_secs_f64() / open[*number].part;
            used(a).total_cmp(&used(b))
        });
        let next = order.into_iter().find_map(|number| {
            // A choice takes at least the time of the faster choice that it is compared with.
            let guess = open[number].longest.max(open[CHOICES[number].like].longest);
            end.leaves(guess).then(|| Some((number, guess, open[number].batches.next()?)))?
        });
        let Some((number, guess, batch)) = next else { return Ok(()) };
        // Keeps the other thread from taking the same choice in the meantime.
        open[number].used += guess;
        let (options, zeros) = (open[number].options.clone(), open[number].zeros);
        let compare = open[number].comparison(&batch);
        let wanted_reads = READS.saturating_sub(open[number].read_ns.len());
        drop(open);
        let start = end.now();
        let packed = pack_units(input, &batch.units, &options, zeros, wanted_reads.min(BATCH_READS), end)?;
        let time = end.now().saturating_sub(start);
        let packed = match packed {
            Some((packed, read_ns)) => {
                let compare = compare.within(time, end);
                Some((with_surroundings(input, &batch, packed, &options, zeros, compare, end)?, read_ns))
            }
            None => None,
        };
        let used = end.now().saturating_sub(start);
        let mut open = choices();
        let choice = &mut open[number];
        choice.used = choice.used.saturating_sub(guess) + used;
        choice.longest = choice.longest.max(time);
        if let Some((packed, read_ns)) = packed {
            if let (Some(place), Alone::Compared { around, .. }) = (place(&batch), packed.alone) {
                choice.around.insert(place, around);
            }
            choice.packed.insert((batch.stratum, batch.number), packed);
            choice.read_ns.extend(read_ns);
        }
    }
}

/// Returns the surroundings of a batch that is a unit of a longer file.
fn place(batch: &Batch) -> Option<Place> {
    let [unit] = batch.units[..] else { return None };
    unit.surroundings().map(|longer| (longer.file, longer.offset, longer.len_bytes))
}

/// Returns a packed batch with what it takes within its surroundings, if it is to be compared with them and
/// the time suffices.
fn with_surroundings(
    input: &Input,
    batch: &Batch,
    packed: Packed,
    options: &BuildOptions,
    zeros: Option<Zeros>,
    compare: Compare,
    end: Deadline<'_>,
) -> anyhow::Result<Packed> {
    let cluster_bytes = u64::from(options.pcluster_bytes);
    let [unit] = batch.units[..] else { return Ok(packed) };
    let Some(longer) = unit.surroundings().filter(|_| packed.image_bytes < MANY_CLUSTERS * cluster_bytes) else {
        return Ok(packed);
    };
    let pack_units = |units: &[Unit]| pack_units(input, units, options, zeros, 0, end);
    let is_dense = packed.image_bytes * DENSE <= packed.data_bytes;
    let around = match compare {
        Compare::Known(around) => Some(around),
        Compare::No => None,
        Compare::IfDense if !is_dense => None,
        Compare::IfDense | Compare::Yes => {
            let others: Vec<_> = unit.others(longer).collect();
            let together = pack_units(&[longer])?;
            let others_apart = if together.is_some() { pack_units(&others)? } else { None };
            together.zip(others_apart).map(|((together, _), (apart, _))| {
                // A cluster that ends after the most that it may cover ends there in a longer file too.
                let is_whole = together.clusters_bytes <= cluster_bytes;
                let cut = if is_whole && unit.then == Then::Data { CUT_BYTES } else { 0 };
                let together = (together.image_bytes + cut) as f64;
                Around::new(together, (packed.image_bytes + apart.image_bytes) as f64, others.len(), is_whole)
            })
        }
    };
    let by_chance = matches!(compare, Compare::Yes) && !is_dense;
    let alone = around.map_or(Alone::Yes, |around| Alone::Compared { around, by_chance });
    Ok(Packed { alone, ..packed })
}

/// Packs units, and reads the image at `reads` random offsets. Returns `None` if a file has changed, no
/// file can be read, or the time ends before all are read.
fn pack_units(
    input: &Input,
    units: &[Unit],
    options: &BuildOptions,
    zeros: Option<Zeros>,
    reads: usize,
    end: Deadline<'_>,
) -> anyhow::Result<Option<(Packed, Vec<u64>)>> {
    let start = processor_time();
    // Building cannot be interrupted, so it reads from memory.
    let held = Arc::new(memory_file()?);
    let (mut bytes, mut held_bytes) = (Vec::new(), 0);
    let mut tree = empty_tree();
    let (mut data_bytes, mut cut, mut parts, mut is_zeros) = (0, 0, Vec::new(), true);
    for (place, unit) in units.iter().enumerate() {
        if place > 0 && end.is_over() {
            return Ok(None);
        }
        match input.read(*unit, &mut bytes, end) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(None),
            Err(_) => continue,
        }
        held.write_all_at(&bytes, held_bytes).context("a file in memory")?;
        is_zeros &= bytes.iter().all(|byte| *byte == 0);
        let (content, size, first) = match unit.file_bytes {
            Some(file_bytes) => {
                let data = Span { at: unit.offset, len: unit.len_bytes, source: held_bytes };
                (Content::Spans(Arc::clone(&held), [data].into()), file_bytes, unit.offset)
            }
            None => (Content::Range(Arc::clone(&held), held_bytes), unit.len_bytes, 0),
        };
        held_bytes += unit.len_bytes;
        let name = parts.len().to_string();
        let mut file = node(NodeKind::Regular { content, size });
        file.mtime_s += parts.len() as i64;
        tree.add(tree.root(), name.as_bytes(), file)?;
        data_bytes += unit.data_bytes;
        cut += match unit.then {
            Then::Data => CUT_BYTES,
            Then::FewZeros => CUT_BEFORE_ZEROS_BYTES,
            Then::Zeros => 0,
        };
        parts.push((first, unit.len_bytes));
    }
    let image = memory_file()?;
    let Some(report) = build(&tree, options, &image).ok().filter(|_| !parts.is_empty()) else { return Ok(None) };
    let time = processor_time().saturating_sub(start);
    let clusters_bytes = report.data_bytes;
    // A batch of zeros extends the preceding data and begins no run. No reader finds data there.
    if let Some(zeros) = zeros
        && is_zeros
        && data_bytes > UNIT_BYTES / 2
    {
        let image_bytes = zeros.cost(0.0, Estimate::exact(data_bytes as f64)).value as u64;
        let packed = Packed { data_bytes, image_bytes, clusters_bytes, doubt_bytes: 0, alone: Alone::No, time };
        return Ok(Some((packed, Vec::new())));
    }
    // Where a file's data continues beyond a piece, the end of the piece wastes half a block.
    let image_bytes = added_bytes(&report).saturating_sub(cut);
    let packed = Packed { data_bytes, image_bytes, clusters_bytes, doubt_bytes: 0, alone: Alone::No, time };
    Ok(Some((packed, read(image, &parts, reads)?)))
}

/// Returns the time of each of `reads` random reads, without a cache. `parts` are those of the files
/// that have data: offset and length.
fn read(image: File, parts: &[(u64, u64)], reads: usize) -> anyhow::Result<Vec<u64>> {
    if reads == 0 {
        return Ok(Vec::new());
    }
    let image = Image::open_with(image, 0).context("reading what was just packed")?;
    let pages: u64 = parts.iter().map(|(_, len)| len.div_ceil(READ_BYTES)).sum();
    let count = pages.min(reads as u64);
    let (mut buffer, mut times) = (vec![0; READ_BYTES as usize], Vec::new());
    let mut opened = HashMap::new();
    for taken in 0..count {
        let mut page = spread(taken, pages);
        let Some((number, (first, _))) = parts.iter().enumerate().find(|(_, (_, len))| {
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
        file.read_at(&mut buffer, first + page * READ_BYTES)?;
        times.push(processor_time().saturating_sub(start).as_nanos() as u64);
    }
    Ok(times)
}

impl Choice<'_> {
    fn of_stratum(&self, stratum: usize) -> impl Iterator<Item = (&(usize, usize), &Packed)> {
        self.packed.iter().filter(move |((of, _), _)| *of == stratum)
    }

    /// Returns whether to compare a batch with its surroundings.
    fn comparison(&self, batch: &Batch) -> Compare {
        if let Some(around) = place(batch).and_then(|place| self.around.get(&place)) {
            return Compare::Known(*around);
        }
        let (count, of) = (self.compared(batch.stratum).count(), self.of_stratum(batch.stratum).count());
        let is_doubtful = || self.correction(batch.stratum).is_some_and(|around| around.doubt > METHOD_ERROR);
        let is_wanted = count <= of / COMPARED_PART && (count < COMPARED_FIRST || is_doubtful());
        if is_wanted { Compare::Yes } else { Compare::IfDense }
    }

    /// Returns the units that were compared by chance: the bytes of each alone, and its surroundings.
    fn compared(&self, stratum: usize) -> impl Iterator<Item = (f64, Around)> {
        self.of_stratum(stratum).filter_map(|(_, packed)| match packed.alone {
            Alone::Compared { around, by_chance: true } => Some((packed.image_bytes as f64, around)),
            _ => None,
        })
    }

    /// Returns the correction for units of a stratum that were not compared, if any was.
    fn correction(&self, stratum: usize) -> Option<Around> {
        let (mut count, mut sums) = (0.0, [0.0; 3]);
        for (bytes, around) in self.compared(stratum) {
            count += 1.0;
            sums = [sums[0] + bytes, sums[1] + bytes * around.ratio, sums[2] + bytes * around.doubt];
        }
        let [bytes, ratio, doubt] = sums;
        let (ratio, doubt) = (ratio / bytes, doubt / bytes);
        let differs = self.compared(stratum).map(|(_, around)| (around.ratio - ratio).abs()).fold(0.0, f64::max);
        (bytes > 0.0).then(|| Around { ratio, doubt: differs / f64::sqrt(count) + doubt })
    }

    /// Corrects the sizes of a stratum's units that were packed alone: each has a truncated cluster,
    /// and shares no cluster with what surrounds it.
    fn correct(&mut self, stratum: usize) {
        let of_others = self.correction(stratum);
        let cluster_bytes = u64::from(self.options.pcluster_bytes);
        let of_stratum = self.packed.iter_mut().filter(|((of, _), _)| *of == stratum).map(|(_, packed)| packed);
        for packed in of_stratum {
            let around = match packed.alone {
                Alone::No => continue,
                Alone::Yes => of_others,
                Alone::Compared { around, .. } => Some(around),
            };
            (packed.image_bytes, packed.doubt_bytes) = match around {
                Some(Around { ratio, doubt }) => {
                    let bytes = packed.image_bytes as f64;
                    ((bytes * ratio) as u64, (bytes * doubt) as u64)
                }
                // All of the truncated cluster may be lost.
                None => (packed.image_bytes, packed.image_bytes.min(cluster_bytes) / 2),
            };
        }
    }

    /// Returns the bytes of a stratum that were packed, before and after, and the doubt of the latter.
    fn measured(&self, stratum: usize) -> [f64; 3] {
        self.of_stratum(stratum).fold([0.0; 3], |[x, y, doubt], (_, packed)| {
            [x + packed.data_bytes as f64, y + packed.image_bytes as f64, doubt + packed.doubt_bytes as f64]
        })
    }

    /// Returns the time to pack everything. Strata without a batch are packed as fast as the others.
    fn build(&self, input: &Input) -> Option<Duration> {
        let processors = thread::available_parallelism().map_or(1, usize::from) as f64;
        let rate = |packed: &mut dyn Iterator<Item = &Packed>| {
            let (bytes, time) = packed
                .fold((0, 0.0), |(bytes, time), packed| (bytes + packed.data_bytes, time + packed.time.as_secs_f64()));
            (bytes > 0 && time > 0.0).then(|| time / bytes as f64)
        };
        let common = rate(&mut self.packed.values())?;
        let of_stratum = |number: usize| {
            let own = rate(&mut self.of_stratum(number).map(|(_, packed)| packed)).unwrap_or(common);
            own * input.strata[number].data_bytes().value
        };
        let seconds: f64 = (0..input.strata.len()).map(of_stratum).sum();
        Duration::try_from_secs_f64(seconds / processors).ok()
    }

    fn reads(&self) -> Option<Reads> {
        let sum: u64 = self.read_ns.iter().sum();
        let mean_ns = sum.checked_div(self.read_ns.len() as u64).filter(|mean_ns| *mean_ns > 0)?;
        Some(Reads { mean_ns, p99_ns: p99(self.read_ns.clone())? })
    }
}

/// Estimates a choice's size for each stratum, from `base`, the estimates of what `of_batch` returns
/// for a batch. A stratum with few batches is compared by those of all strata.
fn compared(
    input: &Input,
    base: &[Estimate],
    of_batch: &dyn Fn(&(usize, usize)) -> Option<f64>,
    choice: &Choice<'_>,
) -> Vec<Estimate> {
    let triples = |stratum: usize| -> Vec<[f64; 3]> {
        let own = choice.of_stratum(stratum);
        own.filter_map(|(batch, own)| Some([own.data_bytes as f64, of_batch(batch)?, own.image_bytes as f64])).collect()
    };
    let all: Vec<_> = (0..input.strata.len()).flat_map(triples).collect();
    let of_stratum = |number: usize| {
        let stratum = &input.strata[number];
        let (total, limits) = (stratum.data_bytes().value, costs::limits(stratum));
        let own = choice.of_stratum(number).map(|(_, own)| (own.data_bytes as f64, own.image_bytes as f64));
        let own: Vec<_> = own.collect();
        let triples = triples(number);
        let left = 1.0 - own.iter().map(|(bytes, _)| bytes).sum::<f64>() / total.max(1.0);
        // If most of a choice's batches are not among those of the base, its size is estimated
        // without the base.
        if left <= 0.0 || 2 * triples.len() < own.len() {
            return Estimate::of_whole(total, &own, limits);
        }
        let enough = triples.len() >= FEW || all.len() < FEW;
        base[number].regression(total, if enough { &triples } else { &all }, left, limits)
    };
    (0..input.strata.len()).map(of_stratum).collect()
}

/// Returns the size of everything that is not sampled: the superblock, directories, files without
/// content, gaps between inodes, holes, and zeros that were found by scanning.
fn rest(input: &Input, zeros: Option<Zeros>) -> Estimate {
    let names = &input.names;
    let metadata_bytes = if input.kind == InputKind::Directory {
        let empty = names.files.saturating_sub(input.sampled_files());
        empty * INODE_BYTES + names.metadata_bytes
    } else {
        INODE_BYTES + 27 + 12 + input.name.len() as u64
    };
    let fixed_bytes = (SUPERBLOCK_BYTES + metadata_bytes).next_multiple_of(PAGE_BYTES);
    let saved_bytes = names.compact * COMPACT_SAVES_BYTES;
    Estimate::exact(fixed_bytes as f64 - saved_bytes as f64)
        + names.gaps
        + input.strata.iter().map(|stratum| rest_of(stratum, zeros)).sum()
}

/// Returns the size of a stratum's holes, and of zeros that were found by scanning, unless they are
/// packed with the data.
fn rest_of(stratum: &Stratum, zeros: Option<Zeros>) -> Estimate {
    if stratum.has_own_holes {
        return Estimate::exact(0.0);
    }
    let data_bytes = stratum.data_bytes();
    // Zeros and holes follow where data ends.
    let (ends, outer, hole_bytes) = (stratum.data_ends(), stratum.outer_zeros(), stratum.hole_bytes as f64);
    let stored = || match zeros {
        Some(zeros) => {
            let runs = stratum.zero_runs();
            let cuts = (ends - runs).max(0.0) * CUT_BEFORE_ZEROS_BYTES as f64;
            zeros.cost_in(stratum.long_files, stratum.data_files(), runs, outer + Estimate::exact(hole_bytes))
                + Estimate::doubt([cuts; 2])
        }
        None => Estimate::unknown(outer.high() + hole_bytes, costs::limits_of_zeros()),
    };
    let left_out = || costs::without_zeros(ends, data_bytes, stratum.inner_zeros());
    match stratum.zeros() {
        [true, false] => stored(),
        [false, true] => left_out(),
        _ => stored().covering(left_out()),
    }
}

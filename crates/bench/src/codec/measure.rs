//! The timed rounds.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pagefold_codec::{PAGE_SIZE, Page};
use pagefold_kinds::Corpus;
use pagefold_report::Output;

use super::subject::Subject;

/// Pages timed per clock reading.
const BLOCK_PAGES: usize = 32;

/// Time of a single page in nanoseconds, at two percentiles.
#[derive(Clone, Copy)]
struct Percentiles {
    p50: u64,
    p99: u64,
}

impl Percentiles {
    const NONE: Self = Self { p50: u64::MAX, p99: u64::MAX };

    fn of(times: &mut [u64]) -> Self {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        Self { p50: at(50), p99: at(99) }
    }

    fn lower(self, other: Self) -> Self {
        Self { p50: self.p50.min(other.p50), p99: self.p99.min(other.p99) }
    }
}

/// A subject's objects, back to back. A page that did not shrink is stored raw.
struct Objects {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Objects {
    /// Compresses every page and checks that each decompresses to itself.
    fn of(subject: &mut Subject, corpus: &Corpus, out: &mut [u8]) -> anyhow::Result<Self> {
        let mut objects = Self { bytes: Vec::new(), ends: vec![0] };
        let mut back = [0; PAGE_SIZE];
        for page in &corpus.pages {
            match subject.compress(page, out) {
                Some(len) => objects.bytes.extend_from_slice(&out[..len]),
                None => objects.bytes.extend_from_slice(*page),
            }
            objects.ends.push(objects.bytes.len());
            subject.decompress(objects.get(objects.ends.len() - 2), &mut back)?;
            ensure!(back == **page, "{} changed a page of {}", subject.name, corpus.name);
        }
        Ok(objects)
    }

    fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.ends[index]..self.ends[index + 1]]
    }
}

/// A subject being timed, with its objects and its best times so far.
struct Run {
    subject: Subject,
    objects: Objects,
    compress: Vec<Duration>,
    decompress: Vec<Duration>,
    compress_ns: Percentiles,
    decompress_ns: Percentiles,
}

/// The subjects' runs on one kind of data.
pub(super) struct Race<'a> {
    pub(super) corpus: &'a Corpus<'a>,
    runs: Vec<Run>,
}

impl<'a> Race<'a> {
    pub(super) fn new(corpus: &'a Corpus<'a>, subjects: Vec<Subject>) -> anyhow::Result<Self> {
        let blocks = corpus.pages.len().div_ceil(BLOCK_PAGES);
        let mut out = [0; 2 * PAGE_SIZE];
        let mut runs = Vec::new();
        for mut subject in subjects {
            let objects = Objects::of(&mut subject, corpus, &mut out)
                .with_context(|| format!("{} on {}", subject.name, corpus.name))?;
            runs.push(Run {
                subject,
                objects,
                compress: vec![Duration::MAX; blocks],
                decompress: vec![Duration::MAX; blocks],
                compress_ns: Percentiles::NONE,
                decompress_ns: Percentiles::NONE,
            });
        }
        Ok(Self { corpus, runs })
    }

    /// Lets each subject compress and decompress everything once more.
    pub(super) fn round(&mut self, number: usize) -> anyhow::Result<()> {
        let mut out = [0; 2 * PAGE_SIZE];
        // The first subject finds the caches in another state than the rest, so each round starts
        // with a different subject.
        let first = number % self.runs.len().max(1);
        for turn in (first..self.runs.len()).chain(0..first) {
            let run = &mut self.runs[turn];
            run.time_blocks(&self.corpus.pages, &mut out)?;
            run.time_pages(&self.corpus.pages, &mut out)?;
        }
        Ok(())
    }

    /// Outputs the results.
    pub(super) fn put(&self, output: &mut Output) {
        let Corpus { name: case, pages, same_pages, .. } = self.corpus;
        let bytes = (pages.len() * PAGE_SIZE) as f64;
        for run in &self.runs {
            let compressed = run.objects.bytes.len() as f64;
            let mb_s = |blocks: &[Duration]| bytes / blocks.iter().sum::<Duration>().as_secs_f64() / 1e6;
            for (metric, value, unit) in [
                ("pages", pages.len() as f64, "pages"),
                ("same_pages", *same_pages as f64, "pages"),
                ("compressed_bytes", compressed, "bytes"),
                ("ratio", compressed / bytes, "of the pages' bytes"),
                ("compress_mb_s", mb_s(&run.compress), "MB/s"),
                ("decompress_mb_s", mb_s(&run.decompress), "MB/s"),
                ("compress_p50_ns", run.compress_ns.p50 as f64, "ns"),
                ("compress_p99_ns", run.compress_ns.p99 as f64, "ns"),
                ("decompress_p50_ns", run.decompress_ns.p50 as f64, "ns"),
                ("decompress_p99_ns", run.decompress_ns.p99 as f64, "ns"),
            ] {
                output.put_of(&run.subject.name, case, metric, value, unit);
            }
        }
    }
}

impl Run {
    fn time_blocks(&mut self, pages: &[&Page], out: &mut [u8]) -> anyhow::Result<()> {
        for (block, best) in pages.chunks(BLOCK_PAGES).zip(&mut self.compress) {
            let start = Instant::now();
            for page in block {
                std::hint::black_box(self.subject.compress(page, out));
            }
            *best = start.elapsed().min(*best);
        }
        let mut back = [0; PAGE_SIZE];
        for (block, best) in self.decompress.iter_mut().enumerate() {
            let first = block * BLOCK_PAGES;
            let start = Instant::now();
            for index in first..pages.len().min(first + BLOCK_PAGES) {
                self.subject.decompress(self.objects.get(index), &mut back)?;
            }
            *best = start.elapsed().min(*best);
        }
        Ok(())
    }

    fn time_pages(&mut self, pages: &[&Page], out: &mut [u8]) -> anyhow::Result<()> {
        let mut times = Vec::with_capacity(pages.len());
        for page in pages {
            let start = Instant::now();
            std::hint::black_box(self.subject.compress(page, out));
            times.push(start.elapsed().as_nanos() as u64);
        }
        self.compress_ns = self.compress_ns.lower(Percentiles::of(&mut times));
        times.clear();
        let mut back = [0; PAGE_SIZE];
        for index in 0..pages.len() {
            let start = Instant::now();
            self.subject.decompress(self.objects.get(index), &mut back)?;
            times.push(start.elapsed().as_nanos() as u64);
        }
        self.decompress_ns = self.decompress_ns.lower(Percentiles::of(&mut times));
        Ok(())
    }
}

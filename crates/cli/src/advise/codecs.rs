//! Size and time of the pages with each page codec, measured on pages that were not used to train
//! tables.

use std::{
    iter,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use pagefold_codec::{Candidates, PAGE_SIZE, Page, Tables, by_name};

use super::{
    clock::Deadline,
    estimate::{Estimate, Limits},
    order::spread,
    pages::{Pages, Random},
    times::{p99, processor_time},
};

/// The compared codecs: the default, those without tables to train, and the others, the one whose
/// training takes longest first.
const FIRST: &str = "fold";
pub(super) const PLAIN: [&str; 2] = ["lz4", "zstd-1"];
pub(super) const TRAINED: [&str; 4] = ["fold-dict", "pleat", "zstd-1-dict", "lz4-dict"];

/// All codecs, in the order in which they are shown.
pub(super) const NAMES: [&str; 7] = [FIRST, "fold-dict", "lz4", "lz4-dict", "pleat", "zstd-1", "zstd-1-dict"];

/// Number of pages that tables are trained on; a pool uses the same number.
const TRAINING_PAGES: usize = 1024;

/// How many of them a training holds out, to choose its tables by their sizes.
const HELD_OUT_PAGES: usize = TRAINING_PAGES / 8;

/// Samples of that many pages by which the choice is tried.
const CHOICES: usize = 1000;

/// Choices that are left out because they are unlikely, together at most this many.
const UNLIKELY: usize = CHOICES / 100;

/// A pool trains its tables after this many pages were written. With fewer, it uses the built-in
/// tables.
const PAGES_BEFORE_TRAINING: f64 = 4096.0;

/// Maximum size of a page's object; a page that would need more is stored uncompressed.
const OBJECT_MAX: usize = PAGE_SIZE - PAGE_SIZE / 64;

/// Pages that are compressed and then decompressed between two checks of the time.
const TOGETHER: usize = 64;

/// Figures of one codec.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    pub(super) name: &'static str,
    /// Whether a pool is likely to use trained tables.
    pub(super) trained: bool,
    /// Total size of all objects. The interval covers all tables that a pool may use.
    pub(super) bytes: Estimate,
    /// The ratio of these bytes to the first codec's. Both are measured on the same pages, so the
    /// ratio is more accurate than the bytes.
    pub(super) of_first: Estimate,
    pub(super) compression: Option<Times>,
    pub(super) decompression: Option<Times>,
}

/// Speed of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// Bytes of pages per second and thread.
    pub(super) bytes_per_second: f64,
    /// 99th percentile of the time per page.
    pub(super) p99_ns: u64,
}

/// The pages of a sample, and what was measured with them.
pub(super) struct Bench<'a> {
    pages: &'a Pages,
    /// Pages for training; `None` if a pool would not train its tables.
    learnt: Option<Vec<&'a Page>>,
    /// All others.
    judged: Vec<&'a Page>,
    /// The results of the first codec, with which the others are compared.
    base: Objects,
    /// Time to compress and decompress one of its pages, while other programs run as well.
    page_time: Duration,
    found: Mutex<Vec<Figures>>,
}

impl<'a> Bench<'a> {
    /// Measures the first codec until `end`. Returns `None` without pages, or without time.
    pub(super) fn new(pages: &'a Pages, end: Deadline<'_>) -> anyhow::Result<Option<Self>> {
        let learns = pages.sample.len() >= 2 * TRAINING_PAGES;
        let every = if learns { pages.sample.len() / TRAINING_PAGES } else { usize::MAX };
        let count = pages.sample.len() as u64;
        let order = (0..count).filter_map(|taken| pages.sample.get(spread(taken, count) as usize));
        let (learnt, judged): (Vec<_>, Vec<_>) =
            order.enumerate().partition(|(number, _)| learns && number % every == 0);
        let [learnt, judged] =
            [learnt, judged].map(|pages| pages.into_iter().map(|(_, page)| page).collect::<Vec<_>>());
        let trains = learns && pages.stored() >= PAGES_BEFORE_TRAINING;
        let start = end.now();
        let Some(base) = objects(FIRST, None, &judged, end)? else { return Ok(None) };
        let page_time = end.now().saturating_sub(start) / base.lens.len() as u32;
        let found = Mutex::new(vec![base.figures(FIRST, pages, &base)]);
        Ok(Some(Self { pages, learnt: trains.then_some(learnt), judged, base, page_time, found }))
    }

    /// Measures these codecs, each for up to `time` with each of its tables after its training, until
    /// `end`. Codecs for which no time is left are missing.
    pub(super) fn run(
        &self,
        names: &[&'static str],
        time: Duration,
        end: Deadline<'_>,
        threads: usize,
    ) -> anyhow::Result<()> {
        let next = AtomicUsize::new(0);
        let work = || -> anyhow::Result<()> {
            while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                let codec = by_name(name)?;
                let candidates = match (&self.learnt, codec.tables()) {
                    // Training cannot be interrupted.
                    (Some(_), Some(_)) if !end.leaves(self.page_time * training_work(name)) => continue,
                    (Some(learnt), Some(tables)) => tables.train_candidates(learnt),
                    _ => None,
                };
                let tables = candidates.as_ref().map_or(&[][..], Candidates::tables);
                let all = iter::once(None).chain(tables.iter().map(Some));
                let measured = all.map(|tables| objects(name, tables, &self.judged, end.or_after(time)));
                let Some(measured) = measured.collect::<anyhow::Result<Option<Vec<_>>>>()? else { continue };
                let chosen = candidates.map_or_else(|| vec![0], |candidates| choices(&candidates, &measured));
                let mut figures =
                    chosen.into_iter().map(|number| measured[number].figures(name, self.pages, &self.base));
                let Some(likely) = figures.next() else { continue };
                let figures = figures.fold(likely, Figures::covering);
                self.found.lock().unwrap_or_else(PoisonError::into_inner).push(figures);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        })
    }

    /// Returns how long the shortest training is likely to take; `None` if there is nothing to train.
    pub(super) fn least_training(&self) -> Option<Duration> {
        self.learnt.as_ref()?;
        TRAINED.iter().map(|name| self.page_time * training_work(name)).min()
    }

    pub(super) fn into_figures(self) -> Vec<Figures> {
        let mut found = self.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_by_key(|figures| NAMES.iter().position(|name| *name == figures.name));
        found
    }
}

/// Returns which tables a pool with other pages of the same kind may use, the most likely first:
/// 0 for its present ones, otherwise a candidate's index + 1. `measured` has the objects of the
/// same pages with each of them.
///
/// A training chooses by few pages. Where the sizes are close, another sample changes its choice.
fn choices(candidates: &Candidates<Tables>, measured: &[Objects]) -> Vec<usize> {
    let count = measured.iter().map(|objects| objects.lens.len()).min().unwrap_or(0) as u64;
    let mut random = Random::new(1);
    let mut times: Vec<_> = (0..measured.len()).map(|number| (0, number)).collect();
    for _ in 0..CHOICES {
        let mut bytes = vec![0; measured.len()];
        for _ in 0..HELD_OUT_PAGES {
            let page = random.below(count) as usize;
            bytes.iter_mut().zip(measured).for_each(|(bytes, objects)| *bytes += u64::from(objects.lens[page]));
        }
        let chosen = candidates.choose(bytes[0], &bytes[1..]).map_or(0, |candidate| candidate + 1);
        times[chosen].0 += 1;
    }
    times.sort_unstable_by(|one, other| other.cmp(one));
    let mut left = CHOICES;
    let is_likely = |(times, number): (usize, usize)| {
        let is_likely = left > UNLIKELY;
        left -= times;
        is_likely.then_some(number)
    };
    times.into_iter().map_while(is_likely).collect()
}

impl Figures {
    /// Returns these figures with intervals that contain the other's.
    fn covering(self, other: Self) -> Self {
        let [bytes, of_first] =
            [(self.bytes, other.bytes), (self.of_first, other.of_first)].map(|(one, other)| one.covering(other));
        Self { bytes, of_first, ..self }
    }
}

/// Returns how many pages the first codec compresses and decompresses while this codec's tables are
/// trained.
fn training_work(name: &str) -> u32 {
    match name {
        "fold-dict" => 500_000,
        _ => 300_000,
    }
}

/// The sizes of the first pages' objects, and the times.
#[derive(Default)]
struct Objects {
    trained: bool,
    lens: Vec<u32>,
    compression: Measured,
    decompression: Measured,
}

/// The times of one direction.
#[derive(Default)]
struct Measured {
    /// Wall-clock time of each page.
    page_ns: Vec<u64>,
    /// CPU time of all pages, without that of other processes.
    processor: Duration,
}

/// Compresses and decompresses pages until `end`, at least some if any time is left.
fn objects(name: &str, tables: Option<&Tables>, pages: &[&Page], end: Deadline<'_>) -> anyhow::Result<Option<Objects>> {
    let codec = by_name(name)?;
    let mut objects = Objects { trained: tables.is_some(), ..Objects::default() };
    let mut stream = tables.map_or(codec, Tables::codec).stream().context("a codec's working state")?;
    let (mut made, mut back) = (Vec::new(), [0; PAGE_SIZE]);
    for pages in pages.chunks(TOGETHER) {
        if end.is_over() {
            break;
        }
        made.clear();
        objects.compression.take(pages, |page| {
            let mut object = [0; PAGE_SIZE];
            let len = stream.compress(page, &mut object[..OBJECT_MAX]);
            objects.lens.push(len.unwrap_or(PAGE_SIZE) as u32);
            made.extend(len.map(|len| (object, len)));
            Ok(())
        })?;
        objects.decompression.take(&made, |(object, len)| {
            stream.decompress(&object[..*len], &mut back).context("decoding what was just encoded")
        })?;
    }
    Ok((!objects.lens.is_empty()).then_some(objects))
}

impl Measured {
    fn take<T>(&mut self, all: &[T], mut each: impl FnMut(&T) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let before = processor_time();
        for one in all {
            let start = Instant::now();
            each(one)?;
            self.page_ns.push(start.elapsed().as_nanos() as u64);
        }
        self.processor += processor_time().saturating_sub(before);
        Ok(())
    }

    /// Returns the times; `None` without any, or below the clock's resolution.
    fn times(&self) -> Option<Times> {
        let bytes = (self.page_ns.len() * PAGE_SIZE) as f64;
        let bytes_per_second = bytes / self.processor.as_secs_f64();
        let p99_ns = p99(self.page_ns.clone())?;
        (bytes_per_second.is_finite() && p99_ns > 0).then_some(Times { bytes_per_second, p99_ns })
    }
}

impl Objects {
    /// Extrapolates to all pages from these, and from the results of the default codec for the same
    /// pages.
    fn figures(&self, name: &'static str, pages: &Pages, base: &Self) -> Figures {
        let both = base.lens.iter().zip(&self.lens);
        let both: Vec<_> = both.map(|(base, own)| [PAGE_SIZE as f64, f64::from(*base), f64::from(*own)]).collect();
        let total = pages.objects() * PAGE_SIZE as f64;
        let left = (1.0 - both.len() as f64 / pages.objects().max(1.0)).max(0.0);
        let limits = Limits { least: 0.0, most: 1.0 };
        let first = pages.compressed_bytes;
        // If even the first codec's size is uncertain, too few pages were seen to extrapolate from
        // it.
        let is_known = first.high() - first.low() <= first.value;
        let (bytes, of_first) = if name == FIRST {
            (first, Estimate::exact(1.0))
        } else if is_known {
            let alone = Estimate::exact(first.value).regression(total, &both, left, limits);
            (first.regression(total, &both, left, limits), alone.scaled(1.0 / first.value.max(1.0)))
        } else {
            let bytes = first.regression(total, &both, left, limits);
            (bytes, Estimate::unknown(2.0, limits))
        };
        Figures {
            name,
            trained: self.trained,
            bytes,
            of_first,
            compression: self.compression.times(),
            decompression: self.decompression.times(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::clock::Clock, *};

    /// Returns an endless sequence of random numbers.
    fn numbers(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        }
    }

    /// Returns a page of random digits.
    fn digits(next: &mut impl FnMut() -> u64) -> Page {
        std::array::from_fn(|_| b'0' + (next() >> 27) as u8)
    }

    /// Returns pages of random digits.
    fn pages(count: usize) -> Vec<Page> {
        let mut next = numbers(1);
        (0..count).map(|_| digits(&mut next)).collect()
    }

    #[test]
    fn a_codec_ends_in_time() {
        let pages = pages(10 * TOGETHER);
        let pages: Vec<_> = pages.iter().collect();
        for (end, chunks) in [(1, 0), (4, 3), (100, 10)] {
            let clock = Clock::counted(Duration::from_secs(1));
            let found = objects("lz4", None, &pages, clock.until(Duration::from_secs(end))).expect("a codec");
            assert_eq!(found.map_or(0, |objects| objects.lens.len()), chunks * TOGETHER, "{end}");
        }
    }

    /// Returns the figures of `lz4-dict` for pages of which this fraction has equal content, and how
    /// many bytes the others take.
    fn with_equal_pages(fraction: f64, seed: u64) -> (Figures, f64) {
        let mut next = numbers(seed);
        let equal = digits(&mut numbers(1));
        let is_equal = |number: u64| (number as f64) < fraction * (1u64 << 31) as f64;
        let all: Vec<_> = (0..4096).map(|_| if is_equal(next()) { equal } else { digits(&mut next) }).collect();
        let others = all.iter().filter(|page| **page != equal).count();
        let clock = Clock::counted(Duration::ZERO);
        let whole = objects(FIRST, None, &all.iter().collect::<Vec<_>>(), clock.until(Duration::MAX));
        let bytes: u32 = whole.expect("a codec").expect("time").lens.iter().sum();
        let found = Pages { compressed_bytes: Estimate::exact(f64::from(bytes)), ..Pages::of_sample(all) };
        let bench = Bench::new(&found, clock.until(Duration::MAX)).expect("a codec").expect("time");
        bench.run(&["lz4-dict"], Duration::MAX, clock.until(Duration::MAX), 1).expect("a codec");
        let figures = bench.into_figures().into_iter().find(|figures| figures.name == "lz4-dict");
        (figures.expect("figures"), (others * PAGE_SIZE) as f64)
    }

    #[test]
    fn a_training_that_may_help_or_not_widens_the_interval() {
        let all = (4096 * PAGE_SIZE) as f64;
        // Dictionaries save the fraction of equal pages. That is seen in 128 of them.
        for seed in 1..=4 {
            let (figures, others) = with_equal_pages(0.025, seed);
            let bytes = figures.bytes;
            assert!(bytes.low() <= 1.01 * others && bytes.high() >= 0.999 * all, "{seed}: {figures:?}");
            let ratio = figures.of_first;
            assert!(ratio.high() / ratio.low() > 1.02, "{seed}: {figures:?}");
        }
        let (figures, others) = with_equal_pages(0.2, 5);
        assert!(figures.trained && figures.bytes.high() < (all + others) / 2.0, "{figures:?}");
        let (figures, _) = with_equal_pages(0.001, 6);
        assert!(!figures.trained && figures.bytes.low() > 0.99 * all, "{figures:?}");
    }

    #[test]
    fn training_that_would_take_too_long_is_left_out() {
        let pages = pages(TRAINING_PAGES);
        let found = Pages::of_sample(pages.clone());
        let clock = Clock::counted(Duration::from_millis(1));
        let base = objects(FIRST, None, &pages.iter().collect::<Vec<_>>(), clock.until(Duration::MAX));
        let bench = Bench {
            pages: &found,
            // With few pages, training ends immediately.
            learnt: Some(pages.iter().take(32).collect()),
            judged: pages.iter().collect(),
            base: base.expect("a codec").expect("time"),
            page_time: Duration::from_millis(1),
            found: Mutex::default(),
        };
        for (seconds, names) in [(200, 1), (400, 2), (700, 3)] {
            let end = clock.until(Duration::from_secs(seconds));
            bench.run(&["lz4", "pleat", "fold-dict"], Duration::from_millis(20), end, 1).expect("codecs");
            assert_eq!(std::mem::take(&mut *bench.found.lock().expect("a lock")).len(), names, "{seconds}");
        }
    }
}

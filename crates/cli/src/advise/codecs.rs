//! Size and time of the pages with each page codec, measured on pages that were not used to train
//! tables.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use pagefold_codec::{PAGE_SIZE, Page, Tables, by_name};

use super::{
    clock::Deadline,
    estimate::{Estimate, Limits},
    order::spread,
    pages::Pages,
    times::{p99, processor_time},
};

/// The compared codecs, the default first.
pub(super) const NAMES: [&str; 7] = ["fold", "fold-dict", "lz4", "lz4-dict", "pleat", "zstd-1", "zstd-1-dict"];

/// The part of the training pages that shows how long training takes.
const TRIAL: usize = 8;

/// Number of pages that tables are trained on; a pool uses the same number.
const TRAINING_PAGES: usize = 1024;

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
    pub(super) trained: bool,
    /// Total size of all objects.
    pub(super) bytes: Estimate,
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

/// Measures every codec, each for up to `time` after its training, until `end`. Codecs for which no
/// time was left are missing.
pub(super) fn measure(
    pages: &Pages,
    time: Duration,
    end: Deadline<'_>,
    threads: usize,
) -> anyhow::Result<Vec<Figures>> {
    if pages.sample.is_empty() {
        return Ok(Vec::new());
    }
    let learns = pages.sample.len() >= 2 * TRAINING_PAGES;
    let every = if learns { pages.sample.len() / TRAINING_PAGES } else { usize::MAX };
    let count = pages.sample.len() as u64;
    let order = (0..count).filter_map(|taken| pages.sample.get(spread(taken, count) as usize));
    let (learnt, judged): (Vec<_>, Vec<_>) = order.enumerate().partition(|(number, _)| learns && number % every == 0);
    let [learnt, judged] = [learnt, judged].map(|pages| pages.into_iter().map(|(_, page)| page).collect::<Vec<_>>());
    let trains = learns && pages.stored() >= PAGES_BEFORE_TRAINING;
    let learnt = trains.then_some(&learnt[..]);
    // The others are compared with the default, which gets more time for more pages.
    let Some(base) = objects(NAMES[0], None, &judged, end.or_after(2 * time))? else { return Ok(Vec::new()) };
    let next = AtomicUsize::new(1);
    let found = Mutex::new(vec![base.figures(NAMES[0], pages, &base)]);
    thread::scope(|scope| {
        let work = || -> anyhow::Result<()> {
            while let Some(name) = NAMES.get(next.fetch_add(1, Ordering::Relaxed))
                && !end.is_over()
            {
                let Some(tables) = tables(name, learnt, end)? else { continue };
                let Some(measured) = objects(name, tables.as_ref(), &judged, end.or_after(time))? else { continue };
                let figures = measured.figures(name, pages, &base);
                found.lock().unwrap_or_else(PoisonError::into_inner).push(figures);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<anyhow::Result<()>>()
    })?;
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|figures| NAMES.iter().position(|name| *name == figures.name));
    Ok(found)
}

/// Trains the codec's tables on these pages: `None` if that would take too long. The result is
/// `Some(None)` if the codec has none, or no better ones.
fn tables(name: &str, learnt: Option<&[&Page]>, end: Deadline<'_>) -> anyhow::Result<Option<Option<Tables>>> {
    let codec = by_name(name)?;
    let (Some(learnt), Some(tables)) = (learnt, codec.tables()) else { return Ok(Some(None)) };
    // Training cannot be interrupted, so a part of it shows first how long it takes.
    let start = end.now();
    drop(tables.train_beyond(&learnt[..learnt.len() / TRIAL]));
    let trial = end.now().saturating_sub(start);
    Ok(end.leaves(trial * TRIAL as u32).then(|| tables.train_beyond(learnt)))
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
        Figures {
            name,
            trained: self.trained,
            bytes: if name == NAMES[0] {
                pages.compressed_bytes
            } else {
                pages.compressed_bytes.regression(total, &both, left, limits)
            },
            compression: self.compression.times(),
            decompression: self.decompression.times(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::clock::Clock, *};

    /// Returns pages of random digits.
    fn pages(count: usize) -> Vec<Page> {
        let mut state = 1u64;
        let mut digit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            b'0' + (state >> 60) as u8
        };
        (0..count).map(|_| std::array::from_fn(|_| digit())).collect()
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

    #[test]
    fn training_that_would_take_too_long_is_left_out() {
        let pages = pages(TRAINING_PAGES);
        let pages: Vec<_> = pages.iter().collect();
        for (end, is_trained) in [(2 + TRIAL as u64, false), (5 + TRIAL as u64, true)] {
            let clock = Clock::counted(Duration::from_secs(1));
            let found = tables("pleat", Some(&pages), clock.until(Duration::from_secs(end))).expect("a codec");
            assert_eq!(found.is_some(), is_trained, "{end}");
        }
        // A codec without tables needs no time.
        let clock = Clock::counted(Duration::from_secs(1));
        assert!(tables("lz4", Some(&pages), clock.until(Duration::ZERO)).expect("a codec").is_some());
    }
}

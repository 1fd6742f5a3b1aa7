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
use pagefold_codec::{PAGE_SIZE, Page, by_name};

use super::{
    estimate::Estimate,
    pages::Pages,
    stratum::spread,
    times::{p99, processor_time},
};

/// The compared codecs, the default first.
const NAMES: [&str; 7] = ["fold", "fold-dict", "lz4", "lz4-dict", "pleat", "zstd-1", "zstd-1-dict"];

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
    pub(super) compression: Times,
    pub(super) decompression: Times,
}

/// Speed of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// Bytes of pages per second and thread.
    pub(super) bytes_per_second: f64,
    /// 99th percentile of the time per page.
    pub(super) p99_ns: u64,
}

/// Measures every codec, each for `time` after its training.
pub(super) fn measure(pages: &Pages, time: Duration, threads: usize) -> anyhow::Result<Vec<Figures>> {
    if pages.sample.is_empty() {
        return Ok(Vec::new());
    }
    let learns = pages.sample.len() >= 2 * TRAINING_PAGES;
    let every = if learns { pages.sample.len() / TRAINING_PAGES } else { usize::MAX };
    let count = pages.sample.len() as u64;
    let order = (0..count).filter_map(|taken| pages.sample.get(spread(taken, count) as usize));
    let (learnt, judged): (Vec<_>, Vec<_>) = order.enumerate().partition(|(number, _)| learns && number % every == 0);
    let [learnt, judged] = [learnt, judged].map(|pages| pages.into_iter().map(|(_, page)| page).collect::<Vec<_>>());
    let trains = learns && pages.total as f64 - pages.zero.value >= PAGES_BEFORE_TRAINING;
    let base = objects(NAMES[0], None, &judged, Duration::MAX)?;
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let work = || -> anyhow::Result<()> {
            while let Some(name) = NAMES.get(next.fetch_add(1, Ordering::Relaxed)) {
                let learnt = trains.then_some(&learnt[..]);
                let measured = objects(name, learnt, &judged, time)?;
                let figures = measured.figures(name, pages, &base);
                found.lock().unwrap_or_else(PoisonError::into_inner).push(figures);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<anyhow::Result<()>>()
    })?;
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|figures: &Figures| NAMES.iter().position(|name| *name == figures.name));
    Ok(found)
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

/// Compresses and decompresses pages for about `time`. With `learnt`, first trains tables on those
/// pages.
fn objects(name: &str, learnt: Option<&[&Page]>, pages: &[&Page], time: Duration) -> anyhow::Result<Objects> {
    let codec = by_name(name)?;
    let better = learnt.and_then(|learnt| codec.tables()?.train_beyond(learnt));
    let mut objects = Objects { trained: better.is_some(), ..Objects::default() };
    let mut stream = better.map_or(codec, |tables| tables.codec()).stream().context("a codec's working state")?;
    let (mut made, mut back) = (Vec::new(), [0; PAGE_SIZE]);
    let start = Instant::now();
    for pages in pages.chunks(TOGETHER) {
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
        if start.elapsed() >= time {
            break;
        }
    }
    Ok(objects)
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

    fn times(&self) -> Times {
        let bytes = (self.page_ns.len() * PAGE_SIZE) as f64;
        let bytes_per_second = bytes / self.processor.as_secs_f64().max(1e-9);
        Times { bytes_per_second, p99_ns: p99(self.page_ns.clone()) }
    }
}

impl Objects {
    /// Extrapolates to all pages from these, and from the results of the default codec for the same
    /// pages.
    fn figures(&self, name: &'static str, pages: &Pages, base: &Self) -> Figures {
        let both = base.lens.iter().zip(&self.lens);
        let both: Vec<_> = both.map(|(base, own)| (f64::from(*base), f64::from(*own))).collect();
        Figures {
            name,
            trained: self.trained,
            bytes: if name == NAMES[0] { pages.compressed_bytes } else { pages.compressed_bytes.in_proportion(&both) },
            compression: self.compression.times(),
            decompression: self.decompression.times(),
        }
    }
}

//! A pool in a file in memory, as `pagefold serve --keep-memory` has it, and one in private memory. The two
//! take turns. Times are those of the thread's CPU clock, so other work on the machine does not count.

use std::{fs::File, time::Duration};

use pagefold_codec::{PAGE_SIZE, by_name};
use pagefold_kinds::Data;
use pagefold_report::Output;
use rustix::{
    fs::{MemfdFlags, memfd_create},
    time::{ClockId, clock_gettime},
};

use crate::{
    load::{Random, Slots},
    machine::memory_bytes,
    product::{MOSAIC, Product},
};

/// The name of a pool in a file in figures.
const MEMFD: &str = "mosaic-memfd";

/// How often each is filled, and how often each of its pages is overwritten and read.
const ROUNDS: usize = 7;
const PASSES: u64 = 4;

/// The figures of a pool.
#[derive(Clone, Copy)]
struct Figures {
    fill: Duration,
    overwrite: Duration,
    read: Duration,
    discard: Duration,
    rss_bytes: u64,
    rss_discarded_bytes: u64,
}

impl Figures {
    /// The least of each figure: other work only adds to them.
    fn least(self, other: Self) -> Self {
        Self {
            fill: self.fill.min(other.fill),
            overwrite: self.overwrite.min(other.overwrite),
            read: self.read.min(other.read),
            discard: self.discard.min(other.discard),
            rss_bytes: self.rss_bytes.min(other.rss_bytes),
            rss_discarded_bytes: self.rss_discarded_bytes.min(other.rss_discarded_bytes),
        }
    }
}

/// Measures both on pages of one kind.
pub(super) fn run(output: &mut Output, codec: &str, data: &Data) -> anyhow::Result<()> {
    let case = format!("{}/{codec}/kept", data.name);
    let mut all = [None::<Figures>; 2];
    for _ in 0..ROUNDS {
        for (least, in_file) in all.iter_mut().zip([false, true]) {
            let figures = round(codec, data, in_file)?;
            *least = Some(least.map_or(figures, |least| least.least(figures)));
        }
    }
    let slots = data.pages.len() as f64;
    for (subject, figures) in [MOSAIC, MEMFD].into_iter().zip(all.into_iter().flatten()) {
        let mut put = |metric: &str, value: f64, unit: &str| output.put_of(subject, &case, metric, value, unit);
        let us = |time: Duration, count: f64| time.as_secs_f64() * 1e6 / count;
        put("fill_us", us(figures.fill, slots), "us");
        put("overwrite_us", us(figures.overwrite, slots * PASSES as f64), "us");
        put("read_us", us(figures.read, slots * PASSES as f64), "us");
        put("discard_us", us(figures.discard, slots * 0.9), "us");
        put("rss_bytes", figures.rss_bytes as f64, "bytes");
        put("rss_discarded_bytes", figures.rss_discarded_bytes as f64, "bytes");
    }
    Ok(())
}

fn round(codec: &str, data: &Data, in_file: bool) -> anyhow::Result<Figures> {
    let slots = data.pages.len() as u64;
    let before = memory_bytes("self", "VmRSS")?;
    let rss_bytes = || anyhow::Ok(memory_bytes("self", "VmRSS")?.saturating_sub(before));
    let store = match in_file {
        false => Product::new(slots, by_name(codec)?)?,
        true => Product::kept_in(slots, by_name(codec)?, File::from(memfd_create("pool", MemfdFlags::CLOEXEC)?))?,
    };
    let timed = |work: &mut dyn FnMut() -> anyhow::Result<()>| {
        let start = now();
        work()?;
        anyhow::Ok(now().saturating_sub(start))
    };
    let mut pages = data.pages.iter().zip(0..);
    let fill = timed(&mut || pages.try_for_each(|(page, slot)| store.write_slot(slot, page)))?;
    let mut random = Random::new(41);
    let overwrite = timed(&mut || {
        (0..slots * PASSES).try_for_each(|_| {
            let page = &data.pages[random.below(slots) as usize];
            store.write_slot(random.below(slots), page)
        })
    })?;
    let mut page = [0; PAGE_SIZE];
    let read = timed(&mut || (0..slots * PASSES).try_for_each(|_| store.read_slot(random.below(slots), &mut page)))?;
    let full = rss_bytes()?;
    let order = random.permutation(slots);
    let discard = timed(&mut || order[..order.len() * 9 / 10].iter().try_for_each(|&slot| store.discard(slot)))?;
    store.pool.compact();
    Ok(Figures { fill, overwrite, read, discard, rss_bytes: full, rss_discarded_bytes: rss_bytes()? })
}

fn now() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

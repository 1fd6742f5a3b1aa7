//! `pagefold-bench same-filled`: the speed of detecting pages filled with one word, compared with
//! copying the page.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use pagefold_codec::{PAGE_SIZE, Page, fill, same_filled};

use crate::figure::Figure;

/// Pages per round: as many as fit a first-level cache, and more than any cache holds.
const CACHED_PAGES: usize = 4;
const UNCACHED_PAGES: usize = 64 << 10;

/// Options of `pagefold-bench same-filled`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of rounds; each figure is from the fastest one
    #[arg(long, default_value = "9", value_parser = crate::count)]
    rounds: usize,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

type Way = (&'static str, fn(&Page, &mut Page) -> bool);

/// `same_filled` must read the whole page here.
const WAYS: [Way; 2] = [
    ("same-filled", |page, _| same_filled(page).is_some()),
    ("memcpy", |page, other| {
        *other = *page;
        true
    }),
];

pub(crate) fn run(args: &Args) {
    for (case, count) in [("cached", CACHED_PAGES), ("memory", UNCACHED_PAGES)] {
        let mut pages = vec![[0; PAGE_SIZE]; count];
        for (number, page) in pages.iter_mut().enumerate() {
            fill(page, number as u64);
        }
        let passes = (4096 / count).max(1);
        let mut best = [Duration::MAX; WAYS.len()];
        let mut other = [0; PAGE_SIZE];
        for _ in 0..args.rounds {
            for (best, (_, way)) in best.iter_mut().zip(WAYS) {
                let start = Instant::now();
                for page in (0..passes).flat_map(|_| &pages) {
                    black_box(way(black_box(page), black_box(&mut other)));
                }
                *best = start.elapsed().min(*best);
            }
        }
        for ((subject, _), time) in WAYS.iter().zip(best) {
            let value = (passes * count * PAGE_SIZE) as f64 / time.as_secs_f64() / 1e6;
            if args.json {
                Figure { bench: "same-filled", case, subject, metric: "mb_s", value, unit: "MB/s" }.print_json();
            } else {
                println!("{case:8} {subject:12} {value:9.0} MB/s");
            }
        }
    }
}

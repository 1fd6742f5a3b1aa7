//! `pagefold-bench training`: what a store gains from tables or dictionaries trained on its own
//! pages, compared with the same store with the codec's built-in tables.
//!
//! Blocks of 64 pages alternate. The even blocks are written first, repeatedly until 20,000 pages
//! are written, so that the store trains. Then the odd blocks are written and read. Only these are
//! measured, so no measured page was trained on.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use pagefold_codec::{PAGE_SIZE, Page, by_name, same_filled};

use crate::{
    codec::gather::files,
    figure::Figure,
    load::Slots,
    product::{Figures, Product},
};

/// Options of `pagefold-bench training`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files whose pages are written, each to its own store
    #[arg(long, num_args = 1.., required = true)]
    data: Vec<PathBuf>,
    /// Codecs that can be trained, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "pleat,fold-dict,lz4-dict,zstd-1-dict")]
    codecs: Vec<String>,
    /// Number of rounds; each speed is from the fastest one
    #[arg(long, default_value = "5", value_parser = crate::count)]
    rounds: usize,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

const BLOCK_PAGES: usize = 64;
/// Pages that are written to make the store train.
const TRAINING_PAGES: usize = 20_000;
/// A training takes some seconds. After this long the store did not train.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store's results on pages that it was not trained on.
struct Measured {
    bytes: u64,
    write_mb_s: f64,
    read_mb_s: f64,
    trainings: u64,
    trainings_useless: u64,
    training_bytes: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    for (name, bytes) in files(&args.data)? {
        let (pages, _) = bytes.as_chunks::<PAGE_SIZE>();
        let (mut before, mut measured) = (Vec::new(), Vec::new());
        for (number, page) in pages.iter().enumerate().filter(|(_, page)| same_filled(page).is_none()) {
            if (number / BLOCK_PAGES).is_multiple_of(2) { before.push(page) } else { measured.push(page) }
        }
        ensure!(!before.is_empty() && !measured.is_empty(), "{name} has too few pages");
        for codec in &args.codecs {
            for (train, trained) in [(false, "untrained"), (true, "trained")] {
                let slots = (before.len() + measured.len()) as u64;
                let codec_of = by_name(codec)?;
                let store = if train { Product::new(slots, codec_of)? } else { Product::untrained(slots, codec_of)? };
                let of = measure(&store, &before, &measured, args.rounds).with_context(|| name.clone())?;
                report(args.json, &name, &format!("{codec}-{trained}"), measured.len(), &of);
            }
        }
    }
    Ok(())
}

fn measure(store: &Product, before: &[&Page], measured: &[&Page], rounds: usize) -> anyhow::Result<Measured> {
    for (number, page) in before.iter().cycle().take(TRAINING_PAGES).enumerate() {
        store.write_slot((number % before.len()) as u64, page)?;
    }
    let patient_until = Instant::now() + PATIENCE;
    let waits = |figures: Figures| figures.codec_tables == 1 && figures.trainings_useless == 0;
    while waits(store.figures()) && Instant::now() < patient_until {
        thread::sleep(Duration::from_millis(50));
    }
    let held = store.figures().compr_data_size;
    let (mut write, mut read) = (Duration::MAX, Duration::MAX);
    let mut back = [0; PAGE_SIZE];
    for _ in 0..rounds {
        let start = Instant::now();
        for (slot, page) in (before.len() as u64..).zip(measured) {
            store.write_slot(slot, page)?;
        }
        write = write.min(start.elapsed());
        let start = Instant::now();
        for slot in (before.len() as u64..).take(measured.len()) {
            store.read_slot(slot, &mut back)?;
        }
        read = read.min(start.elapsed());
    }
    for (slot, page) in (before.len() as u64..).zip(measured) {
        store.read_slot(slot, &mut back)?;
        ensure!(back == **page, "slot {slot} came back changed");
    }
    let figures = store.figures();
    let mb_s = |time: Duration| (measured.len() * PAGE_SIZE) as f64 / time.as_secs_f64() / 1e6;
    Ok(Measured {
        bytes: figures.compr_data_size - held,
        write_mb_s: mb_s(write),
        read_mb_s: mb_s(read),
        trainings: figures.trainings,
        trainings_useless: figures.trainings_useless,
        training_bytes: figures.training_bytes,
    })
}

fn report(json: bool, case: &str, subject: &str, pages: usize, of: &Measured) {
    let figures = [
        ("pages", pages as f64, "pages"),
        ("compressed_bytes", of.bytes as f64, "bytes"),
        ("write_mb_s", of.write_mb_s, "MB/s"),
        ("read_mb_s", of.read_mb_s, "MB/s"),
        ("trainings", of.trainings as f64, "trainings"),
        ("trainings_useless", of.trainings_useless as f64, "trainings"),
        ("training_bytes", of.training_bytes as f64, "bytes"),
    ];
    if json {
        for (metric, value, unit) in figures {
            Figure { bench: "training", case, subject, metric, value, unit }.print_json();
        }
    } else {
        println!(
            "{case:16} {subject:21} {pages:6} pages {:9} bytes {:.4}  write {:7.1}  read {:7.1} MB/s  {} trainings, {} useless, {} KiB",
            of.bytes,
            of.bytes as f64 / (pages * PAGE_SIZE) as f64,
            of.write_mb_s,
            of.read_mb_s,
            of.trainings,
            of.trainings_useless,
            of.training_bytes >> 10,
        );
    }
}

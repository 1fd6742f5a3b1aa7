//! `pagefold-bench instructions`: counts the instructions that every codec executes for fixed
//! pages, under callgrind, and compares them with a committed table. A busy machine does not change
//! the counts, so this catches slowdowns reliably. `scripts/test` runs it.

use std::{collections::BTreeMap, hint, thread};

use anyhow::{Context, bail};
use pagefold_codec::{PAGE_SIZE, Page};
use pagefold_kinds::synthetic;

use super::subject::{self, Subject};
use crate::callgrind::{self, Args, CountTable};

/// Pages of each kind that are counted, and further pages that train tables.
const PAGES: usize = 16;
const SAMPLE_PAGES: usize = 64;

/// A count above the table's by more than this share is a slowdown: 2 %. The same source and
/// compiler give the same counts: across builds in which other codecs had changed, no count moved
/// by more than 0.01 %. The remaining allowance is for the C library's copies: the two per page
/// take less than 2 % of the fastest codec's instructions.
const TOLERANCE: f64 = 0.02;

/// Codecs with tables or dictionaries, which `subject::own_names` leaves out.
const TRAINED: &[&str] = &["pleat-trained", "fold-dict", "lz4-dict"];

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let [direction, name] = &args.work[..] {
        return work(direction, name);
    }
    let table = CountTable {
        file: "bench/results/instructions.txt",
        title: "Instructions for a page, mean over the synthetic kinds, by pagefold-bench instructions.",
        tolerance: TOLERANCE,
    };
    table.run(args, counts)
}

/// Returns the counts of all our codecs in both directions. Both directions run in parallel: they are
/// counted, not timed.
fn counts() -> anyhow::Result<BTreeMap<String, u64>> {
    let names: Vec<String> =
        subject::own_names().into_iter().chain(TRAINED.iter().map(|&name| name.to_owned())).collect();
    let count_all = |direction: &'static str| -> anyhow::Result<Vec<(String, u64)>> {
        let count = |name: &String| {
            let count = counted(direction, name).with_context(|| format!("{name} {direction}"))?;
            Ok((format!("{name:14} {direction:10}"), count))
        };
        names.iter().map(count).collect()
    };
    thread::scope(|scope| {
        let decompress = scope.spawn(|| count_all("decompress"));
        let mut counts: BTreeMap<String, u64> = count_all("compress")?.into_iter().collect();
        let Ok(decompress) = decompress.join() else { bail!("a thread panicked") };
        counts.extend(decompress?);
        Ok(counts)
    })
}

/// Counts only inside [`compress_all`] or [`decompress_all`].
fn counted(direction: &str, name: &str) -> anyhow::Result<u64> {
    let count = callgrind::counted(&format!("*{direction}_all*"), &["instructions", "--work", direction, name])?;
    Ok(count / (PAGES * synthetic::KINDS.len()) as u64)
}

fn work(direction: &str, name: &str) -> anyhow::Result<()> {
    let of_all_kinds = |seed, count| -> Vec<Page> {
        synthetic::KINDS.iter().flat_map(|&(_, make)| synthetic::of_kind(make, seed, count)).collect()
    };
    let (pages, sample) = (of_all_kinds(1, PAGES), of_all_kinds(2, SAMPLE_PAGES));
    let Some(mut subject) = Subject::by_name(name, &sample.iter().collect::<Vec<_>>())? else {
        bail!("{name} is not here");
    };
    // One uncounted pass: work done only for the first page is not part of a page's cost.
    let mut objects = Vec::new();
    compress_pages(&mut subject, &pages, |object| objects.push(object.to_vec()));
    match direction {
        "compress" => compress_all(&mut subject, &pages),
        "decompress" => decompress_all(&mut subject, &objects),
        _ => bail!("compress or decompress, not {direction}"),
    }
}

fn compress_pages(subject: &mut Subject, pages: &[Page], mut done: impl FnMut(&[u8])) {
    let mut out = [0; 2 * PAGE_SIZE];
    for page in pages {
        match subject.compress(page, &mut out) {
            Some(len) => done(&out[..len]),
            None => done(page),
        }
    }
}

#[inline(never)]
fn compress_all(subject: &mut Subject, pages: &[Page]) -> anyhow::Result<()> {
    compress_pages(subject, pages, |object| {
        hint::black_box(object);
    });
    Ok(())
}

#[inline(never)]
fn decompress_all(subject: &mut Subject, objects: &[Vec<u8>]) -> anyhow::Result<()> {
    let mut page = [0; PAGE_SIZE];
    for object in objects {
        subject.decompress(object, &mut page)?;
        hint::black_box(&page);
    }
    Ok(())
}

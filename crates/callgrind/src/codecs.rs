//! Counts the instructions of every codec.

use std::{collections::BTreeMap, hint, thread};

use anyhow::{Context, bail};
use pagefold_codec::{PAGE_SIZE, Page, Stream, trained};
use pagefold_kinds::synthetic;

use crate::{table::CountTable, valgrind};

pub(crate) const TABLE: CountTable = CountTable {
    name: "codecs",
    file: "bench/results/instructions.txt",
    title: "Instructions for a page, mean over the synthetic kinds, by pagefold-callgrind.",
    tolerance: TOLERANCE,
};

/// 2 %. The same source and compiler give the same counts: if only other codecs change, no count
/// moves by more than 0.01 %. The rest allows for other copies by the C library: the two per page
/// take less than 2 % of the fastest codec's instructions.
const TOLERANCE: f64 = 0.02;

/// Pages of each kind that are counted, and further pages that train tables.
const PAGES: usize = 16;
const SAMPLE_PAGES: usize = 64;

const CODECS: [&str; 14] = [
    "842",
    "deflate-1",
    "fold",
    "fold-dict",
    "lz4",
    "lz4-dict",
    "lz4dyn",
    "lz4hc-9",
    "lzo",
    "lzo-rle",
    "pleat",
    "pleat-trained",
    "zstd-1",
    "zstd-3",
];

/// Returns the counts of both directions. Nothing is timed, so both are counted in parallel.
pub(crate) fn counts() -> anyhow::Result<BTreeMap<String, u64>> {
    let count_all = |direction: &'static str| -> anyhow::Result<Vec<(String, u64)>> {
        let count = |name: &&str| {
            let function = format!("*{direction}_all*");
            let count = valgrind::counted(&function, TABLE.name, direction, name);
            let count = count.with_context(|| format!("{name} {direction}"))?;
            Ok((format!("{name:14} {direction:10}"), count / (PAGES * synthetic::KINDS.len()) as u64))
        };
        CODECS.iter().map(count).collect()
    };
    thread::scope(|scope| {
        let decompress = scope.spawn(|| count_all("decompress"));
        let mut counts: BTreeMap<String, u64> = count_all("compress")?.into_iter().collect();
        let Ok(decompress) = decompress.join() else { bail!("a thread panicked") };
        counts.extend(decompress?);
        Ok(counts)
    })
}

/// callgrind counts only inside [`compress_all`] or [`decompress_all`].
pub(crate) fn work(direction: &str, name: &str) -> anyhow::Result<()> {
    let of_all_kinds = |seed, count| -> Vec<Page> {
        synthetic::KINDS.iter().flat_map(|&(_, make)| synthetic::of_kind(make, seed, count)).collect()
    };
    let (pages, sample) = (of_all_kinds(1, PAGES), of_all_kinds(2, SAMPLE_PAGES));
    let mut stream = trained(name, &sample.iter().collect::<Vec<_>>())?.stream()?;
    // One uncounted pass: work done only for the first page is not part of a page's cost.
    let mut objects = Vec::new();
    compress_pages(&mut *stream, &pages, |object| objects.push(object.to_vec()));
    match direction {
        "compress" => compress_all(&mut *stream, &pages),
        "decompress" => decompress_all(&mut *stream, &objects)?,
        _ => bail!("compress or decompress, not {direction}"),
    }
    Ok(())
}

fn compress_pages(stream: &mut dyn Stream, pages: &[Page], mut done: impl FnMut(&[u8])) {
    let mut out = [0; PAGE_SIZE];
    for page in pages {
        match stream.compress(page, &mut out).filter(|&len| len < PAGE_SIZE) {
            Some(len) => done(&out[..len]),
            None => done(page),
        }
    }
}

#[inline(never)]
fn compress_all(stream: &mut dyn Stream, pages: &[Page]) {
    compress_pages(stream, pages, |object| {
        hint::black_box(object);
    });
}

/// Decompresses objects, and copies pages that do not shrink.
#[inline(never)]
fn decompress_all(stream: &mut dyn Stream, objects: &[Vec<u8>]) -> anyhow::Result<()> {
    let mut page = [0; PAGE_SIZE];
    for object in objects {
        match <&Page>::try_from(&object[..]) {
            Ok(raw) => page = *raw,
            Err(_) => stream.decompress(object, &mut page)?,
        }
        hint::black_box(&page);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pagefold_codec::NAMES;

    use super::*;

    #[test]
    fn every_codec_is_counted() {
        for known in NAMES.iter().filter(|known| !known.starts_with("zstd") || !known.ends_with("-dict")) {
            let family = known.trim_end_matches("LEVEL");
            assert!(CODECS.iter().any(|name| name.starts_with(family)), "{known}");
        }
    }
}

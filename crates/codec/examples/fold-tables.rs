//! Prints the tokens and palettes of `fold`, fitted to files of pages, as the constants of
//! `fold/tables.rs` and `fold/literals.rs` (docs/fold.md, "Fitting").
//!
//! usage: fold-tables HEAPS_WEIGHT FILE…
//!
//! Each file is a kind of data, and the compressed bytes of all kinds have equal weight, except
//! that those of a heap, a file whose name begins with `heap`, count HEAPS_WEIGHT times.
#![allow(clippy::print_stdout, reason = "a tool for developers")]

use std::{env, fs, path::PathBuf};

use pagefold_codec::{Codec, Fold, FoldTables, PAGE_SIZE, Page, same_filled};

/// Maximum pages of a file; every second page is used. The others can measure how good the tables
/// are.
const PAGES: usize = 600;

/// The weight of a page if the kind's compressed bytes were 1. It leaves 600 pages three digits.
const WEIGHT: u64 = 1_000_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args_os().skip(1);
    let (Some(heaps_weight), true) = (args.next(), args.len() > 0) else {
        return Err("usage: fold-tables HEAPS_WEIGHT FILE…".into());
    };
    let heaps_weight: u64 = heaps_weight.to_string_lossy().parse()?;
    let mut stream = Fold.stream()?;
    let mut pages: Vec<(Page, u64)> = Vec::new();
    for file in args.map(PathBuf::from) {
        let bytes = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let (all, _) = bytes.as_chunks::<PAGE_SIZE>();
        let mixed = all.iter().filter(|page| same_filled(page).is_none());
        let here: Vec<&Page> = mixed.step_by(2).take(PAGES).collect();
        let mut bytes_of = |page: &Page| stream.compress(page, &mut [0; PAGE_SIZE]).unwrap_or(PAGE_SIZE);
        let bytes: usize = here.iter().map(|page| bytes_of(page)).sum();
        let is_heap = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"heap"));
        let weight = WEIGHT / bytes.max(1) as u64 * if is_heap { heaps_weight } else { 1 };
        pages.extend(here.into_iter().map(|page| (*page, weight)));
    }
    let sample: Vec<(&Page, u64)> = pages.iter().map(|(page, weight)| (page, *weight)).collect();
    print!("{}", FoldTables::source_of_fixed(&sample));
    Ok(())
}

//! Trains tables of `pleat` and writes them to a file. The built-in tables were made with it
//! (docs/pleat.md lists the input).
//!
//! usage: pleat-tables OUT DICTIONARY_BYTES FILE…
//!
//! Each file contributes the same number of pages, evenly spread over it; same-filled ones are left
//! out.
#![allow(clippy::print_stdout, reason = "a tool for developers")]

use std::{env, fs};

use pagefold_codec::{PAGE_SIZE, Page, PleatTables};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args().skip(1);
    let (Some(out), Some(dictionary), true) = (args.next(), args.next(), args.len() > 0) else {
        return Err("usage: pleat-tables OUT DICTIONARY_BYTES FILE…".into());
    };
    let each = 4096 / args.len();
    let mut pages: Vec<Page> = Vec::new();
    for file in args {
        let bytes = fs::read(&file)?;
        let (all, _) = bytes.as_chunks::<PAGE_SIZE>();
        let mixed: Vec<&Page> = all.iter().filter(|page| page[8..] != page[..PAGE_SIZE - 8]).collect();
        let step = mixed.len().div_ceil(each).max(1);
        pages.extend(mixed.into_iter().step_by(step));
    }
    let tables = PleatTables::train_unjudged(&pages.iter().collect::<Vec<_>>(), dictionary.parse()?)?;
    println!("{} pages; {tables:?}", pages.len());
    fs::write(out, tables.to_bytes())?;
    Ok(())
}

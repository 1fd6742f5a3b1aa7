//! Compressed bytes of fixed pages by every codec, as a committed table: a diff shows a change of ratio,
//! and all processors make the same objects.

use std::{env, fs, path::Path};

use pagefold_codec::{NAMES, PAGE_SIZE, Page, Stream, trained};
use pagefold_kinds::synthetic;

const TABLE: &str = "../../bench/results/codec-sizes.txt";

/// Pages of each kind that are compressed, and further pages that train tables.
const PAGES: usize = 128;
const SAMPLE_PAGES: usize = 256;

/// Returns the bytes of pages, of which some do not shrink.
fn bytes(stream: &mut dyn Stream, pages: &[Page]) -> usize {
    let mut out = [0; PAGE_SIZE];
    pages.iter().map(|page| stream.compress(page, &mut out).filter(|&len| len < PAGE_SIZE).unwrap_or(PAGE_SIZE)).sum()
}

#[test]
fn codecs_make_the_committed_sizes_of_synthetic_pages() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE);
    let committed = fs::read_to_string(&path).expect("the table");
    let names: Vec<_> = committed.lines().skip(3).filter_map(|row| row.split(' ').next()).collect();
    for known in NAMES.iter().filter(|known| !known.ends_with("-dict")) {
        let family = known.trim_end_matches("LEVEL");
        assert!(names.iter().any(|name| name.starts_with(family)), "{} has no row of {known}", path.display());
    }
    let kinds: Vec<_> =
        synthetic::KINDS.iter().map(|&(name, make)| (name, synthetic::of_kind(make, 1, PAGES))).collect();
    let sample: Vec<Page> =
        synthetic::KINDS.iter().flat_map(|&(_, make)| synthetic::of_kind(make, 2, SAMPLE_PAGES)).collect();
    let sample: Vec<&Page> = sample.iter().collect();

    let len_bytes = PAGES * PAGE_SIZE;
    let mut table =
        format!("Compressed bytes of {PAGES} pages ({len_bytes} bytes) of each synthetic kind.\n\n{:14}", "");
    kinds.iter().for_each(|(kind, _)| table += &format!(" {kind:>9}"));
    for name in names {
        let mut stream = trained(name, &sample).expect("a codec").stream().expect("memory");
        table += &format!("\n{name:14}");
        kinds.iter().for_each(|(_, pages)| table += &format!(" {:>9}", bytes(&mut *stream, pages)));
    }
    table.push('\n');
    if env::var_os("PAGEFOLD_BLESS").is_some() {
        fs::write(&path, &table).expect("the table");
    } else {
        assert!(committed == table, "{} says otherwise; PAGEFOLD_BLESS=1 rewrites it:\n{table}", path.display());
    }
}

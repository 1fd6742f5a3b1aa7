//! `pagefold-bench codec`: compressed bytes and speed of every page codec and its peers on the same
//! pages.

mod corpus;
pub(crate) mod files;
pub(crate) mod gather;
pub(crate) mod in_place;
pub(crate) mod instructions;
pub(crate) mod kinds;
mod measure;
mod peer;
pub(crate) mod sizes;
mod subject;
mod verdict;

use std::path::PathBuf;

use crate::figure::Figure;
use corpus::Corpus;
use kinds::{DataKind, Set};
use measure::{Measured, Race};
use subject::Subject;

/// How pages are chosen and timed, for `--help` and for readers of the figures.
const METHOD: &str = "\
Pages: every 4 KiB page of a kind of data; partial last pages are left out. Blocks of 64 pages take turns: the pages of \
even blocks train tables and dictionaries, those of odd blocks are measured, the same for every subject (smaller blocks \
where a kind has fewer than 512 pages). Pages filled with one 8-byte word are counted as same_pages and not compressed. A page \
that does not become smaller counts as 4096 bytes, and decoding it as a copy.

Timing: one thread; in each round all subjects take turns at every kind of data, one kind after the other (of a folder's \
kinds, eight at a time); the time of each block of 32 pages is that of its fastest \
round. Every page is compressed into one buffer and decoded into one buffer. Percentiles are of single pages, clock \
included (about 25 ns), from the round where they are lowest. Peers get an output buffer of their \
worst-case size, with which they are fastest; ours get one page, as in the store.

libzstd-1-dict: the best dictionary of 16, 60 and 110 KiB by ZDICT_trainFromBuffer and of plain sample pages, as decided \
on held-out sample pages; libzstd-1 where none helps. libzstd-1-dict-16k and -110k: what ZDICT_trainFromBuffer makes of the \
sample pages when asked for 16 and 110 KiB; 110 KiB is what the zstd program asks for. zxc: single blocks, each with a \
header of 8 bytes. openzl-1 and openzl-u64-1, in a program built with the cargo feature openzl: OpenZL's generic graph of a page of bytes, \
and its graph for numbers of a page of 64-bit ones, both at level 1 and without checksums or training.";

/// Options of `pagefold-bench codec`.
#[derive(clap::Args)]
#[command(after_long_help = METHOD)]
pub(crate) struct Args {
    /// Files whose pages are compressed, each its own kind of data. Without it: this machine's
    /// binaries, text, XML and images, heaps of programs started for it, a database, and synthetic
    /// pages of given ratios
    #[arg(long, num_args = 1..)]
    data: Vec<PathBuf>,
    /// The folder of kinds that `gather` filled. Kinds that codecs may be tuned on and kinds that
    /// are only measured are reported separately; the targets apply to the latter
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    kinds: Option<PathBuf>,
    /// Names of codecs and peers [default: all]
    #[arg(long, value_delimiter = ',')]
    codecs: Vec<String>,
    /// Number of pages measured of each kind, spread evenly over it
    #[arg(long, default_value_t = MEASURED_PAGES, value_parser = crate::count)]
    pages: usize,
    /// Number of rounds; each figure is from the fastest one
    #[arg(long, default_value = "7", value_parser = crate::count)]
    rounds: usize,
    /// Train tables and dictionaries once, on the sample pages of all kinds together, instead of on
    /// each kind's own sample
    #[arg(long, conflicts_with = "kinds")]
    train_together: bool,
    /// Print one JSON object per line on standard output; tables and verdicts go to standard error
    #[arg(long)]
    json: bool,
}

/// Maximum number of sample pages per kind for training tables: 16 MiB.
const SAMPLE_PAGES: usize = 4096;
/// Default number of pages measured per kind: 8 MiB.
const MEASURED_PAGES: usize = 2048;

/// Kinds of a folder that are measured together. Their pages and every subject's objects are in
/// memory: 2 GiB for all subjects.
const KINDS_TOGETHER: usize = 8;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Some(dir) = &args.kinds else {
        let named = if args.data.is_empty() { kinds::first() } else { gather::files(&args.data)? };
        verdict::print(&measure(args, &named)?, true, args.json);
        return Ok(());
    };
    let kinds = kinds::gathered(dir)?;
    for set in [Set::Tuned, Set::Measured] {
        let of_set: Vec<&DataKind> = kinds.iter().filter(|kind| kind.set == set).collect();
        let mut measured = Vec::new();
        for together in of_set.chunks(KINDS_TOGETHER) {
            let named: anyhow::Result<Vec<(String, Vec<u8>)>> =
                together.iter().map(|kind| Ok((format!("{}/{}", set.word(), kind.name), kind.pages(dir)?))).collect();
            measured.extend(measure(args, &named?)?);
        }
        let heading = match set {
            Set::Tuned => "Kinds that codecs may be tuned on",
            Set::Measured => "Kinds that are only measured",
        };
        if args.json {
            eprintln!("\n{heading}");
        } else {
            println!("\n{heading}");
        }
        verdict::print(&measured, set == Set::Measured, args.json);
    }
    Ok(())
}

/// Races all subjects on the named data and returns their results.
fn measure(args: &Args, named: &[(String, Vec<u8>)]) -> anyhow::Result<Vec<Measured>> {
    let corpora: Vec<Corpus> =
        named.iter().map(|(name, bytes)| Corpus::split(name, bytes, SAMPLE_PAGES, args.pages)).collect();
    let together = args.train_together.then(|| corpora.iter().flat_map(|kind| kind.sample.iter().copied()).collect());
    let names = if args.codecs.is_empty() { subject::all_names() } else { args.codecs.clone() };

    let mut races = Vec::new();
    for corpus in &corpora {
        if corpus.pages.is_empty() {
            eprintln!("{}: no page to measure", corpus.name);
            continue;
        }
        let sample = together.as_ref().unwrap_or(&corpus.sample);
        let mut subjects: Vec<Subject> = Vec::new();
        for name in &names {
            subjects.extend(Subject::by_name(name, sample)?);
        }
        races.push(Race::new(corpus, subjects)?);
    }
    for round in 0..args.rounds {
        races.iter_mut().try_for_each(|race| race.round(round))?;
    }
    let mut measured: Vec<Measured> = Vec::new();
    for race in &races {
        for result in race.results() {
            report(args.json, race.corpus.same_pages, &result);
            measured.push(result);
        }
    }
    Ok(measured)
}

fn report(json: bool, same_pages: usize, of: &Measured) {
    let figures = [
        ("pages", of.pages as f64, "pages"),
        ("same_pages", same_pages as f64, "pages"),
        ("compressed_bytes", of.compressed_bytes as f64, "bytes"),
        ("ratio", of.ratio(), "of the pages' bytes"),
        ("compress_mb_s", of.compress_mb_s(), "MB/s"),
        ("decompress_mb_s", of.decompress_mb_s(), "MB/s"),
        ("compress_p50_ns", of.compress_ns.p50 as f64, "ns"),
        ("compress_p99_ns", of.compress_ns.p99 as f64, "ns"),
        ("decompress_p50_ns", of.decompress_ns.p50 as f64, "ns"),
        ("decompress_p99_ns", of.decompress_ns.p99 as f64, "ns"),
    ];
    if json {
        for (metric, value, unit) in figures {
            Figure { bench: "codec", case: &of.case, subject: &of.subject, metric, value, unit }.print_json();
        }
    } else {
        println!(
            "{:33} {:19} {:9} bytes {:.4}  {:7.1} / {:7.1} MB/s  p50 {:6} / {:5}  p99 {:6} / {:6} ns",
            of.case,
            of.subject,
            of.compressed_bytes,
            of.ratio(),
            of.compress_mb_s(),
            of.decompress_mb_s(),
            of.compress_ns.p50,
            of.decompress_ns.p50,
            of.compress_ns.p99,
            of.decompress_ns.p99,
        );
    }
}

//! `pagefold-bench codec`: compressed bytes and speed of every page codec and its peers on the same
//! pages.

pub(crate) mod in_place;
mod measure;
mod peer;
pub(crate) mod sizes;
mod subject;

use std::path::PathBuf;

use measure::Race;
use pagefold_kinds::{self as kinds, Corpus, DataKind, MEASURED_PAGES, Set, files};
use pagefold_report::{Output, Rounds};
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
header of 8 bytes.";

/// Options of `pagefold-bench codec`.
#[derive(clap::Args)]
#[command(after_long_help = METHOD)]
pub(crate) struct Args {
    /// Files whose pages are compressed, each its own kind of data. Without it: this machine's
    /// binaries, text, XML and images, heaps of programs started for it, a database, and synthetic
    /// pages of given ratios
    #[arg(long, num_args = 1..)]
    data: Vec<PathBuf>,
    /// The folder of kinds that `gather` filled. The targets apply to the kinds that are only
    /// measured
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
    /// Print one JSON object per line on standard output; verdicts go to standard error
    #[arg(long)]
    json: bool,
}

/// Kinds of a folder that are measured together. Their pages and every subject's objects are in
/// memory: 2 GiB for all subjects.
const KINDS_TOGETHER: usize = 8;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut output = Output::new("codec", args.json, Rounds::Once);
    let Some(dir) = &args.kinds else {
        let named = if args.data.is_empty() { kinds::first()? } else { files::named(&args.data)? };
        return measure(args, &named, &mut output);
    };
    let kinds = kinds::gathered(dir)?;
    output.judge_only("measured/");
    for set in Set::ALL {
        let of_set: Vec<&DataKind> = kinds.iter().filter(|kind| kind.set == set).collect();
        for together in of_set.chunks(KINDS_TOGETHER) {
            let name = |kind: &DataKind| format!("{}/{}", set.word(), kind.name);
            let named = together.iter().map(|kind| Ok((name(kind), kind.pages(dir)?)));
            measure(args, &named.collect::<anyhow::Result<Vec<_>>>()?, &mut output)?;
        }
    }
    Ok(())
}

/// Races all subjects on the named data and puts their results.
fn measure(args: &Args, named: &[(String, Vec<u8>)], output: &mut Output) -> anyhow::Result<()> {
    let corpora: Vec<Corpus> = named.iter().map(|(name, bytes)| Corpus::split(name, bytes, args.pages)).collect();
    let names = if args.codecs.is_empty() { subject::all_names() } else { args.codecs.clone() };
    let mut races = Vec::new();
    for corpus in &corpora {
        if corpus.pages.is_empty() {
            output.skip(&corpus.name, "no page to measure");
            continue;
        }
        let mut subjects: Vec<Subject> = Vec::new();
        for name in &names {
            subjects.extend(Subject::by_name(name, &corpus.sample)?);
        }
        races.push(Race::new(corpus, subjects)?);
    }
    for round in 0..args.rounds {
        races.iter_mut().try_for_each(|race| race.round(round))?;
    }
    races.iter().for_each(|race| race.put(output));
    Ok(())
}

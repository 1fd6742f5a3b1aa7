//! `pagefold-bench sizes`: compressed sizes of fixed pages for every codec, as a committed table,
//! so that a diff shows a change of ratio.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use libdeflater::Crc;
use pagefold_codec::{PAGE_SIZE, Page};
use pagefold_kinds::{Corpus, DataKind, MEASURED_PAGES, gathered, synthetic};
use pagefold_report::{
    Written,
    sizes::{SUBJECTS, Sizes, plain_table},
};

use super::subject::{self, Subject};

/// Pages of each kind that are compressed, and further pages that train tables.
const PAGES: usize = 128;
const SAMPLE_PAGES: usize = 256;

/// The committed tables.
const FILE: &str = "bench/results/codec-sizes.txt";
const KINDS_FILE: &str = "bench/results/codec-kinds.txt";

/// Options of `pagefold-bench sizes`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The committed table [default: bench/results/codec-sizes.txt, or codec-kinds.txt with --kinds]
    #[arg(long)]
    file: Option<PathBuf>,
    /// The folder of kinds that `gather` filled, instead of synthetic pages. Kinds whose pages differ
    /// from those of the table are named and not compared
    #[arg(long, value_name = "DIR")]
    kinds: Option<PathBuf>,
    /// Write the table; without it, the run fails if the table has changed
    #[arg(long)]
    update: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (file, table) = match &args.kinds {
        Some(dir) => (KINDS_FILE, of_kinds(dir)?),
        None => (FILE, of_synthetic()?),
    };
    let file = args.file.as_deref().unwrap_or(Path::new(file));
    if args.update {
        return Written::Table.write(file, &[], &table);
    }
    let committed = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    if if args.kinds.is_some() { Sizes::differ(&committed, &table) } else { committed != table } {
        print!("{table}");
        bail!("{} says otherwise; pagefold-bench sizes --update rewrites it", file.display());
    }
    Ok(())
}

fn of_kinds(dir: &Path) -> anyhow::Result<String> {
    let mut kinds = gathered(dir)?;
    kinds.sort_by_key(|kind| kind.set);
    let rows = kinds.iter().map(|kind| of_kind(kind, dir)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Sizes::table(&rows))
}

fn of_kind(kind: &DataKind, dir: &Path) -> anyhow::Result<Sizes> {
    let content = kind.pages(dir)?;
    let mut crc = Crc::new();
    crc.update(&content);
    let Corpus { sample, pages, .. } = Corpus::split(&kind.name, &content, MEASURED_PAGES);
    let bytes = |name| {
        let mut subject =
            Subject::by_name(name, &sample)?.with_context(|| format!("this machine does not have {name}"))?;
        Ok(bytes(&mut subject, pages.iter().copied()))
    };
    let bytes = SUBJECTS.into_iter().map(bytes).collect::<anyhow::Result<_>>()?;
    Ok(Sizes { set: kind.set.word(), kind: kind.name.clone(), pages: pages.len(), crc32: crc.sum(), bytes })
}

/// Returns the bytes of pages, of which some do not shrink.
fn bytes<'a>(subject: &mut Subject, pages: impl Iterator<Item = &'a Page>) -> usize {
    let mut out = [0; 2 * PAGE_SIZE];
    pages.map(|page| subject.compress(page, &mut out).unwrap_or(PAGE_SIZE)).sum()
}

fn of_synthetic() -> anyhow::Result<String> {
    let kinds: Vec<(&str, Vec<Page>)> =
        synthetic::KINDS.iter().map(|&(name, make)| (name, synthetic::of_kind(make, 1, PAGES))).collect();
    let sample: Vec<Page> =
        synthetic::KINDS.iter().flat_map(|&(_, make)| synthetic::of_kind(make, 2, SAMPLE_PAGES)).collect();
    let sample: Vec<&Page> = sample.iter().collect();

    let mut rows = Vec::new();
    for name in subject::own_names() {
        let Some(mut subject) = Subject::by_name(&name, &sample)? else { continue };
        rows.push((name, kinds.iter().map(|(_, pages)| bytes(&mut subject, pages.iter())).collect()));
    }
    let what = format!("{PAGES} pages ({} bytes) of each synthetic kind", PAGES * PAGE_SIZE);
    Ok(plain_table(&what, kinds.iter().map(|(name, _)| *name), &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_table_holds() {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(FILE);
        run(&Args { file: Some(file), kinds: None, update: false }).unwrap();
    }
}

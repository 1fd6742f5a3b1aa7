//! `pagefold-bench sizes`: compressed bytes of gathered kinds, as a committed table, so that a diff shows
//! a change of ratio.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use libdeflater::Crc;
use pagefold_codec::PAGE_SIZE;
use pagefold_kinds::{Corpus, DataKind, MEASURED_PAGES, gathered};
use pagefold_report::{
    Written,
    sizes::{SUBJECTS, Sizes},
};

use super::subject::Subject;

/// The committed table.
const FILE: &str = "bench/results/codec-kinds.txt";

/// Options of `pagefold-bench sizes`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of kinds that `gather` filled. Kinds whose pages differ from those of the table are
    /// named and not compared
    #[arg(long, value_name = "DIR")]
    kinds: PathBuf,
    /// The committed table
    #[arg(long, default_value = FILE)]
    file: PathBuf,
    /// Write the table; without it, the run fails if the table has changed
    #[arg(long)]
    update: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut kinds = gathered(&args.kinds)?;
    kinds.sort_by_key(|kind| kind.set);
    let rows = kinds.iter().map(|kind| of_kind(kind, &args.kinds)).collect::<anyhow::Result<Vec<_>>>()?;
    let table = Sizes::table(&rows);
    if args.update {
        return Written::Table.write(&args.file, &[], &table);
    }
    let committed = fs::read_to_string(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    if Sizes::differ(&committed, &table) {
        print!("{table}");
        bail!("{} says otherwise; pagefold-bench sizes --update rewrites it", args.file.display());
    }
    Ok(())
}

fn of_kind(kind: &DataKind, dir: &Path) -> anyhow::Result<Sizes> {
    let content = kind.pages(dir)?;
    let mut crc = Crc::new();
    crc.update(&content);
    let Corpus { sample, pages, .. } = Corpus::split(&kind.name, &content, MEASURED_PAGES);
    let bytes = |name| -> anyhow::Result<usize> {
        let mut subject =
            Subject::by_name(name, &sample)?.with_context(|| format!("this machine does not have {name}"))?;
        let mut out = [0; 2 * PAGE_SIZE];
        Ok(pages.iter().map(|page| subject.compress(page, &mut out).unwrap_or(PAGE_SIZE)).sum())
    };
    let bytes = SUBJECTS.into_iter().map(bytes).collect::<anyhow::Result<_>>()?;
    Ok(Sizes { set: kind.set.word(), kind: kind.name.clone(), pages: pages.len(), crc32: crc.sum(), bytes })
}

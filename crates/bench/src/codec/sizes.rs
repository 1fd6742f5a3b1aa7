//! `pagefold-bench sizes`: compressed sizes of fixed pages for every codec, as a committed table,
//! so that a diff shows a change of ratio.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use pagefold_codec::{PAGE_SIZE, Page};

use super::{
    subject::{self, Subject},
    table,
};
use crate::{kinds::synthetic, written::Written};

/// Pages of each kind that are compressed, and further pages that train tables.
const PAGES: usize = 128;
const SAMPLE_PAGES: usize = 256;

/// Options of `pagefold-bench sizes`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The committed table [default: bench/results/codec-sizes.txt, or
    /// bench/results/codec-kinds.txt with --kinds]
    #[arg(long)]
    file: Option<PathBuf>,
    /// The folder of kinds that `gather` filled, instead of synthetic pages. Kinds whose pages
    /// differ from those of the table are named and not compared
    #[arg(long, value_name = "DIR")]
    kinds: Option<PathBuf>,
    /// Write the table; without it, the run fails if the table has changed
    #[arg(long)]
    update: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let name = if args.kinds.is_some() { "bench/results/codec-kinds.txt" } else { "bench/results/codec-sizes.txt" };
    let file = args.file.as_deref().unwrap_or(Path::new(name));
    let table = match &args.kinds {
        Some(dir) => table::of_kinds(dir)?,
        None => of_synthetic()?,
    };
    if args.update {
        Written::Table.check(file, &[])?;
        return Written::write(file, &table);
    }
    let committed = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let differs = match &args.kinds {
        Some(_) => table::differs(&committed, &table),
        None => committed != table,
    };
    if differs {
        print!("{table}");
        bail!("{} says otherwise; pagefold-bench sizes --update rewrites it", file.display());
    }
    Ok(())
}

fn of_synthetic() -> anyhow::Result<String> {
    let kinds: Vec<(&str, Vec<Page>)> =
        synthetic::KINDS.iter().map(|&(name, make)| (name, synthetic::of_kind(make, 1, PAGES))).collect();
    let sample: Vec<Page> =
        synthetic::KINDS.iter().flat_map(|&(_, make)| synthetic::of_kind(make, 2, SAMPLE_PAGES)).collect();
    let sample: Vec<&Page> = sample.iter().collect();

    let mut text = format!(
        "Compressed bytes of {PAGES} pages ({} bytes) of each synthetic kind, by pagefold-bench sizes.\n\n{:14}",
        PAGES * PAGE_SIZE,
        ""
    );
    for (name, _) in &kinds {
        write!(text, " {name:>9}")?;
    }
    text.push('\n');
    let mut out = [0; 2 * PAGE_SIZE];
    for name in subject::own_names() {
        let Some(mut subject) = Subject::by_name(&name, &sample)? else { continue };
        write!(text, "{name:14}")?;
        for (_, pages) in &kinds {
            let bytes: usize = pages.iter().map(|page| subject.compress(page, &mut out).unwrap_or(PAGE_SIZE)).sum();
            write!(text, " {bytes:>9}")?;
        }
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_table_holds() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/results/codec-sizes.txt");
        run(&Args { file: Some(file.into()), kinds: None, update: false }).unwrap();
    }
}

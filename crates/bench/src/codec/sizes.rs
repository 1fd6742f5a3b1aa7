//! `pagefold-bench sizes`: compressed sizes of fixed pages for every codec, as a committed table,
//! so that a diff shows a change of ratio.

use std::{fmt::Write, fs, path::PathBuf};

use anyhow::{Context, bail};
use pagefold_codec::{PAGE_SIZE, Page};
use pagefold_kinds::synthetic;
use pagefold_report::Written;

use super::subject::{self, Subject};

/// Pages of each kind that are compressed, and further pages that train tables.
const PAGES: usize = 128;
const SAMPLE_PAGES: usize = 256;

/// The committed table.
const FILE: &str = "bench/results/codec-sizes.txt";

/// Options of `pagefold-bench sizes`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The committed table
    #[arg(long, default_value = FILE)]
    file: PathBuf,
    /// Write the table; without it, the run fails if the table has changed
    #[arg(long)]
    update: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (file, table) = (args.file.as_path(), of_synthetic()?);
    if args.update {
        return Written::Table.write(file, &[], &table);
    }
    let committed = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    if committed != table {
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
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(FILE);
        run(&Args { file, update: false }).unwrap();
    }
}

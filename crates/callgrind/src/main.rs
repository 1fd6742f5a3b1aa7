//! `pagefold-callgrind`: counts the instructions that codecs and the store execute for fixed pages,
//! under callgrind, and compares them with committed tables. A busy machine does not change the counts,
//! so this catches slowdowns reliably. `scripts/test` runs it.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the output of a tool for developers")]

mod codecs;
mod store;
mod table;
mod valgrind;

use anyhow::{bail, ensure};
use clap::Parser;

#[derive(Parser)]
#[command(version, about = "Compares counts of instructions for a page with the tables of bench/results")]
struct Args {
    /// Rewrite the tables instead of comparing counts with them
    #[arg(long)]
    update: bool,
    /// Do the counted work: a table, an operation, and a codec
    #[arg(long, hide = true, num_args = 3)]
    work: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match &args.work[..] {
        [] => {}
        [table, operation, codec] if table == codecs::TABLE.name => return codecs::work(operation, codec),
        [table, operation, codec] if table == store::TABLE.name => return store::work(operation, codec),
        other => bail!("no such work: {other:?}"),
    }
    ensure!(!cfg!(debug_assertions), "counts are those of a release build");
    if let Some(why) = valgrind::missing() {
        return table::skip(why);
    }
    let of_codecs = codecs::TABLE.run(args.update, codecs::counts);
    of_codecs.and(store::TABLE.run(args.update, store::counts))
}

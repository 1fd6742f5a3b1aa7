//! Kinds of data: gathered once into a folder and measured from there.
//!
//! `pagefold-bench gather DIR` writes the pages of each kind to `DIR/KIND.pages`, without
//! same-filled pages, so that zeros do not dominate a kind's figures.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the output of a tool for developers")]

mod corpus;
mod even;
pub mod files;
mod follow;
mod found;
mod memory;
mod need;
mod pages;
mod recipe;
mod script;
pub mod synthetic;
pub mod trees;
mod versions;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use pagefold_codec::PAGE_SIZE;

pub use corpus::{Corpus, MEASURED_PAGES};
use follow::follow_all;
pub use pages::{Data, Pages, gather, mixed, page_of};
pub use recipe::Set;
use recipe::{Family, Recipe};
pub use versions::{Content, Versions, is_changed};

/// Maximum pages of one kind: 24 MiB. Half trains tables, and 8 MiB are measured.
const LIMIT_PAGES: usize = 6144;
/// A kind with fewer pages than this (4 MiB) says too little and is left out.
const LEAST_PAGES: usize = 1024;

/// Options of `pagefold-bench gather`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory for the files KIND.pages
    #[arg(required_unless_present = "packages")]
    dir: Option<PathBuf>,
    /// Names of recipes to follow [default: all]; a named recipe is followed again even if its
    /// kinds exist
    names: Vec<String>,
    /// Print the missing Debian packages, one per line, and gather nothing
    #[arg(long)]
    packages: bool,
}

/// One gathered kind of data.
pub struct DataKind {
    /// Its name.
    pub name: String,
    family: Family,
    /// Whether codecs may be tuned on it.
    pub set: Set,
}

/// Gathers kinds.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let recipes = recipe::all()?;
    if args.packages {
        let missing = recipes.iter().flat_map(|recipe| recipe.missing(args.dir.as_deref()));
        let mut packages: Vec<&str> = missing.filter_map(|need| need.package()).collect();
        packages.sort_unstable();
        packages.dedup();
        packages.iter().for_each(|package| println!("{package}"));
        return Ok(());
    }
    let dir = args.dir.as_deref().context("no directory given")?;
    if let Some(name) = args.names.iter().find(|name| recipes.iter().all(|recipe| recipe.name != **name)) {
        let names: Vec<&str> = recipes.iter().map(|recipe| recipe.name.as_str()).collect();
        bail!("unknown recipe '{name}'; known recipes: {}", names.join(", "));
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for recipe in &recipes {
        let named = args.names.contains(&recipe.name);
        let there = recipe.kinds.iter().all(|(kind, _)| file_of(dir, kind).exists());
        if named || (args.names.is_empty() && !there) {
            write(recipe, recipe.set(&recipes), dir)
                .unwrap_or_else(|error| eprintln!("SKIPPED: {}: {error:#}", recipe.name));
        }
    }
    Ok(())
}

/// Follows `recipe` and writes its kinds to `dir`.
fn write(recipe: &Recipe, set: Set, dir: &Path) -> anyhow::Result<()> {
    for (name, pages) in recipe.follow(Some(dir), LIMIT_PAGES)? {
        if pages.len() < LEAST_PAGES * PAGE_SIZE {
            eprintln!("SKIPPED: {name}: only {} KiB of pages", pages.len() >> 10);
            continue;
        }
        // The rename is atomic: a partial file would be taken for a gathered kind.
        let unfinished = dir.join(format!("{name}.unfinished"));
        fs::write(&unfinished, &pages)?;
        fs::rename(&unfinished, file_of(dir, &name))?;
        println!("{:9} {name}: {} pages", set.word(), pages.len() / PAGE_SIZE);
    }
    Ok(())
}

fn file_of(dir: &Path, kind: &str) -> PathBuf {
    dir.join(format!("{kind}.pages"))
}

/// Returns the kinds found in `dir`, in order of family and name, and prints a line that lists the
/// missing ones.
pub fn gathered(dir: &Path) -> anyhow::Result<Vec<DataKind>> {
    let recipes = recipe::all()?;
    let (mut kinds, mut missing) = (Vec::new(), Vec::new());
    for recipe in &recipes {
        for (name, family) in recipe.kinds.clone() {
            if file_of(dir, &name).exists() {
                kinds.push(DataKind { name, family, set: recipe.set(&recipes) });
            } else {
                missing.push(name);
            }
        }
    }
    ensure!(!kinds.is_empty(), "{} has no kinds: run pagefold-bench gather", dir.display());
    if !missing.is_empty() {
        eprintln!("SKIPPED: not in {}: {}", dir.display(), missing.join(", "));
    }
    kinds.sort_by(|a, b| (a.family, &a.name).cmp(&(b.family, &b.name)));
    Ok(kinds)
}

impl DataKind {
    /// Reads its pages, as they were gathered.
    pub fn pages(&self, dir: &Path) -> anyhow::Result<Vec<u8>> {
        let path = file_of(dir, &self.name);
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

/// Gathers from this machine the kinds that codecs were first tuned on. Prints a line for each
/// recipe that cannot be followed.
pub fn first() -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    Ok(follow_all(recipe::all()?.iter().filter(|recipe| recipe.first), LIMIT_PAGES))
}

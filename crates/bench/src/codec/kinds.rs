//! Kinds of data: gathered once into a folder and measured from there.
//!
//! `pagefold-bench gather DIR` writes the pages of each kind to `DIR/KIND.pages`, without
//! same-filled pages, so that zeros do not dominate a kind's figures.

mod even;
mod found;
mod list;
mod memory;
mod recipe;
mod script;
mod split;
pub(super) mod table;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use pagefold_codec::PAGE_SIZE;

pub(crate) use list::{NODE, PYTHON};
pub(super) use recipe::Family;
use recipe::{Recipe, RecipeSource};
pub(super) use split::Set;

use crate::synthetic;

/// Maximum pages of one kind: 24 MiB. Half trains tables, and 8 MiB are measured.
const LIMIT_PAGES: usize = 6144;
/// A kind with fewer pages than this (4 MiB) says too little and is left out.
const LEAST_PAGES: usize = 1024;
/// Pages of each synthetic kind.
const SYNTHETIC_PAGES: usize = 4096;

/// Options of `pagefold-bench gather`.
#[derive(clap::Args)]
pub(crate) struct Args {
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
pub(super) struct DataKind {
    pub(super) name: &'static str,
    pub(super) family: Family,
    pub(super) set: Set,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.packages {
        let mut packages: Vec<&str> = list::RECIPES
            .iter()
            .flat_map(|recipe| recipe.missing(args.dir.as_deref()))
            .flat_map(|need| need.package())
            .collect();
        packages.sort_unstable();
        packages.dedup();
        packages.iter().for_each(|package| println!("{package}"));
        return Ok(());
    }
    let dir = args.dir.as_deref().context("no directory given")?;
    if let Some(name) = args.names.iter().find(|name| list::RECIPES.iter().all(|recipe| recipe.name != **name)) {
        let names: Vec<&str> = list::RECIPES.iter().map(|recipe| recipe.name).collect();
        bail!("unknown recipe '{name}'; known recipes: {}", names.join(", "));
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for recipe in list::RECIPES {
        let named = args.names.iter().any(|name| name == recipe.name);
        let there = recipe.kinds.iter().all(|kind| file_of(dir, kind.name).exists());
        if named || (args.names.is_empty() && !there) {
            gather(recipe, dir).unwrap_or_else(|error| eprintln!("SKIPPED: {}: {error:#}", recipe.name));
        }
    }
    Ok(())
}

/// Follows `recipe` and writes its kinds to `dir`.
fn gather(recipe: &Recipe, dir: &Path) -> anyhow::Result<()> {
    for (name, pages) in recipe.follow(Some(dir), LIMIT_PAGES)? {
        if pages.len() < LEAST_PAGES * PAGE_SIZE {
            eprintln!("SKIPPED: {name}: only {} KiB of pages", pages.len() >> 10);
            continue;
        }
        // The rename is atomic: a partial file would be taken for a gathered kind.
        let unfinished = dir.join(format!("{name}.unfinished"));
        fs::write(&unfinished, &pages)?;
        fs::rename(&unfinished, file_of(dir, name))?;
        println!("{:9} {name}: {} pages", recipe.set().word(), pages.len() / PAGE_SIZE);
    }
    Ok(())
}

fn file_of(dir: &Path, kind: &str) -> PathBuf {
    dir.join(format!("{kind}.pages"))
}

/// Returns the kinds found in `dir`, in order of family and name, and prints a line that lists the
/// missing ones.
pub(super) fn gathered(dir: &Path) -> anyhow::Result<Vec<DataKind>> {
    let (mut kinds, mut missing) = (Vec::new(), Vec::new());
    for recipe in list::RECIPES {
        for kind in recipe.kinds {
            if file_of(dir, kind.name).exists() {
                kinds.push(DataKind { name: kind.name, family: kind.family, set: recipe.set() });
            } else {
                missing.push(kind.name);
            }
        }
    }
    ensure!(!kinds.is_empty(), "{} has no kinds: run pagefold-bench gather", dir.display());
    if !missing.is_empty() {
        eprintln!("SKIPPED: not in {}: {}", dir.display(), missing.join(", "));
    }
    kinds.sort_by_key(|kind| (kind.family, kind.name));
    Ok(kinds)
}

impl DataKind {
    /// Reads its pages, as they were gathered.
    pub(super) fn pages(&self, dir: &Path) -> anyhow::Result<Vec<u8>> {
        let path = file_of(dir, self.name);
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

/// Gathers from this machine the kinds that codecs were first tuned on. Prints a line for each
/// recipe that cannot be followed.
pub(super) fn first() -> Vec<(String, Vec<u8>)> {
    let mut kinds = Vec::new();
    for recipe in list::RECIPES.iter().filter(|recipe| recipe.first) {
        match recipe.follow(None, LIMIT_PAGES) {
            Ok(pages) => kinds.extend(pages.into_iter().map(|(name, pages)| (name.to_owned(), pages))),
            Err(error) => eprintln!("SKIPPED: {}: {error:#}", recipe.name),
        }
    }
    kinds
}

impl Recipe {
    /// Returns the pages of each of its kinds: at most `limit_pages` per kind, spread evenly,
    /// without same-filled pages. `dir` is the folder of kinds, which may contain a Python
    /// environment.
    pub(crate) fn follow(
        &self,
        dir: Option<&Path>,
        limit_pages: usize,
    ) -> anyhow::Result<Vec<(&'static str, Vec<u8>)>> {
        if let Some(need) = self.missing(dir).next() {
            bail!("{}", need.what_to_do());
        }
        match &self.source {
            RecipeSource::Files(wanted) => {
                let pages = found::pages(&wanted.list(), limit_pages)?;
                Ok(self.kinds.iter().map(|kind| (kind.name, pages.clone())).collect())
            }
            RecipeSource::Synthetic(percent) => {
                let pages = synthetic::of_ratio(*percent, SYNTHETIC_PAGES.min(limit_pages));
                Ok(self.kinds.iter().map(|kind| (kind.name, pages.as_flattened().to_vec())).collect())
            }
            RecipeSource::Made(make) => {
                let pages = synthetic::of_kind(*make, 1, SYNTHETIC_PAGES.min(limit_pages));
                Ok(self.kinds.iter().map(|kind| (kind.name, pages.as_flattened().to_vec())).collect())
            }
            RecipeSource::Script(script) => script.run(self.kinds, dir, limit_pages),
        }
    }
}

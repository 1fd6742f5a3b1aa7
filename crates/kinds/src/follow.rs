//! Follows recipes.

use std::path::Path;

use anyhow::bail;

use super::{
    found,
    recipe::{Recipe, Source},
    synthetic,
};

/// Pages of each synthetic kind.
const SYNTHETIC_PAGES: usize = 4096;

/// Follows recipes, and prints a line for each that cannot be followed.
pub(super) fn follow_all<'a>(recipes: impl Iterator<Item = &'a Recipe>, limit_pages: usize) -> Vec<(String, Vec<u8>)> {
    let mut kinds = Vec::new();
    for recipe in recipes {
        match recipe.follow(None, limit_pages) {
            Ok(pages) => kinds.extend(pages),
            Err(error) => eprintln!("SKIPPED: {}: {error:#}", recipe.name),
        }
    }
    kinds
}

impl Recipe {
    /// Returns the pages of each of its kinds: at most `limit_pages` per kind, spread evenly,
    /// without same-filled pages. `dir` is the folder of kinds, which may contain a Python
    /// environment.
    pub(super) fn follow(&self, dir: Option<&Path>, limit_pages: usize) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
        if let Some(need) = self.missing(dir).next() {
            bail!("{}", need.what_to_do());
        }
        let names: Vec<String> = self.kinds.iter().map(|(name, _)| name.clone()).collect();
        let made = SYNTHETIC_PAGES.min(limit_pages);
        let pages = match &self.source {
            Source::Files(wanted) => found::pages(&wanted.list(), limit_pages)?,
            Source::Synthetic(percent) => synthetic::of_ratio(*percent, made).into_flattened(),
            Source::TableSpace => synthetic::of_kind(synthetic::table_space, 1, made).into_flattened(),
            Source::Script(script) => return script.run(&names, dir, limit_pages),
        };
        Ok(names.into_iter().map(|name| (name, pages.clone())).collect())
    }
}

//! How kinds of data are obtained, `data/kinds.json`, and which of them may be inspected while codecs
//! are tuned.
//!
//! In each family, recipes alternate in order of their names: the first is only measured, the
//! second may be inspected, and so on. Recipes that codecs were tuned on before this rule existed
//! may be inspected and do not count. All kinds of a recipe are in its set, because they have
//! content in common.

use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

use super::{found::Wanted, need::Need, script::Script};

/// A group of similar kinds. Both sets contain every family except the synthetic one.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub(super) enum Family {
    /// Memory of programs in languages that manage it, and of servers.
    Heap,
    /// Files and memory of databases.
    Database,
    /// Characters that people or programs read.
    Text,
    /// Programs, libraries, fonts.
    Binary,
    /// Pictures and sound.
    Media,
    /// Columns and arrays of numbers.
    Number,
    /// Data of file systems and virtual machines.
    System,
    /// Pages generated from a seed.
    Synthetic,
}

/// A way to obtain pages of one kind, or of several kinds with content in common.
#[derive(Deserialize)]
pub(super) struct Recipe {
    pub(super) name: String,
    /// Whether codecs were tuned on it before the sets were split.
    #[serde(default)]
    pub(super) first: bool,
    needs: Vec<Need>,
    pub(super) source: Source,
    /// At least one. The first one's family is the recipe's family.
    pub(super) kinds: Vec<(String, Family)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Source {
    Files(Wanted),
    Script(Script),
    /// Pages that LZ4 compresses to this percentage.
    Synthetic(usize),
    /// Pages that imitate those of a database.
    TableSpace,
}

/// Returns all recipes, grouped by family and sorted by name.
pub(super) fn all() -> anyhow::Result<Vec<Recipe>> {
    serde_json::from_str(include_str!("../data/kinds.json")).context("kinds.json")
}

/// Returns the recipes for heaps of a Python and a Node program.
pub(super) fn heaps() -> anyhow::Result<Vec<Recipe>> {
    let mut recipes = all()?;
    recipes.retain(|recipe| recipe.first && recipe.kinds[0].1 == Family::Heap);
    // Cases are named after them in this order.
    recipes.reverse();
    Ok(recipes)
}

/// A kind's purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Set {
    /// May be inspected while codecs are tuned.
    Tuned,
    /// Not inspected while codecs are tuned. The targets apply to these kinds.
    Measured,
}

impl Set {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Tuned, Self::Measured];

    /// Returns its name in figures.
    pub const fn word(self) -> &'static str {
        match self {
            Set::Tuned => "tuned",
            Set::Measured => "measured",
        }
    }
}

impl Recipe {
    /// Returns the prerequisites that this machine lacks.
    pub(super) fn missing(&self, dir: Option<&Path>) -> impl Iterator<Item = &Need> {
        self.needs.iter().filter(move |need| !need.is_met(dir))
    }

    /// Returns the set of the recipe's kinds.
    pub(super) fn set(&self, all: &[Recipe]) -> Set {
        let counts = |other: &&Recipe| other.kinds[0].1 == self.kinds[0].1 && !other.first && other.name < self.name;
        if self.first || all.iter().filter(counts).count() % 2 == 1 { Set::Tuned } else { Set::Measured }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn both_sets_have_every_family_except_the_synthetic_one() {
        let recipes = all().unwrap();
        let families = |set: Set| -> BTreeSet<Family> {
            let of = recipes.iter().filter(|recipe| recipe.set(&recipes) == set);
            of.flat_map(|recipe| recipe.kinds.iter().map(|(_, family)| *family)).collect()
        };
        let mut tuned = families(Set::Tuned);
        assert!(tuned.remove(&Family::Synthetic));
        assert_eq!(tuned, families(Set::Measured));
    }

    #[test]
    fn names_of_recipes_and_of_kinds_are_unique_and_scripts_exist() {
        let recipes = all().unwrap();
        let names: BTreeSet<&str> = recipes.iter().map(|recipe| recipe.name.as_str()).collect();
        assert_eq!(names.len(), recipes.len());
        let kinds: Vec<&str> =
            recipes.iter().flat_map(|recipe| recipe.kinds.iter().map(|(name, _)| name.as_str())).collect();
        assert_eq!(kinds.iter().collect::<BTreeSet<_>>().len(), kinds.len());
        assert_eq!((kinds.len(), heaps().unwrap().len()), (50, 2));
        for recipe in &recipes {
            if let Source::Script(script) = &recipe.source {
                assert!(script.text().is_ok(), "{}", recipe.name);
            }
        }
    }
}

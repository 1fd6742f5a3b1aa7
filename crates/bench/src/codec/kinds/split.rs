//! Which kinds may be inspected while codecs are tuned, and which are only measured.
//!
//! In each family, recipes alternate in order of their names: the first is only measured, the
//! second may be inspected, and so on. Recipes that codecs were tuned on before this rule existed
//! may be inspected and do not count. All kinds of a recipe are in its set, because they have
//! content in common.

use super::{list::RECIPES, recipe::Recipe};

/// A kind's purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::codec) enum Set {
    /// May be inspected while codecs are tuned.
    Tuned,
    /// Not inspected while codecs are tuned. The targets apply to these kinds.
    Measured,
}

impl Set {
    pub(in crate::codec) const fn word(self) -> &'static str {
        match self {
            Set::Tuned => "tuned",
            Set::Measured => "measured",
        }
    }
}

impl Recipe {
    /// Returns the set of the recipe's kinds.
    pub(super) fn set(&self) -> Set {
        let family = |recipe: &Recipe| recipe.kinds[0].family;
        let before = RECIPES
            .iter()
            .filter(|other| family(other) == family(self) && !other.first && other.name < self.name)
            .count();
        if self.first || before % 2 == 1 { Set::Tuned } else { Set::Measured }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{super::recipe::Family, *};

    #[test]
    fn both_sets_have_every_family_but_the_synthetic_one() {
        let families = |set: Set| -> BTreeSet<Family> {
            let of = RECIPES.iter().filter(|recipe| recipe.set() == set);
            of.flat_map(|recipe| recipe.kinds.iter().map(|kind| kind.family)).collect()
        };
        let mut tuned = families(Set::Tuned);
        assert!(tuned.remove(&Family::Synthetic));
        assert_eq!(tuned, families(Set::Measured));
    }

    #[test]
    fn names_of_recipes_and_of_kinds_are_unique() {
        let recipes: BTreeSet<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
        assert_eq!(recipes.len(), RECIPES.len());
        let kinds: Vec<&str> = RECIPES.iter().flat_map(|recipe| recipe.kinds.iter().map(|kind| kind.name)).collect();
        assert_eq!(kinds.iter().collect::<BTreeSet<_>>().len(), kinds.len());
        assert!(kinds.len() >= 25, "{}", kinds.len());
    }
}

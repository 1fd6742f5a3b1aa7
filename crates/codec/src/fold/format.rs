//! The meaning of the numbers in objects.

use super::{
    literals::{PALETTES, Palettes},
    tables::{CLASSES, KINDS, Tokens},
};

/// The meaning of the numbers of tokens and palettes.
pub(super) struct Format {
    /// By [`Kind`](super::tables::Kind).
    pub(super) tokens: [Tokens; KINDS],
    pub(super) palettes: Palettes,
}

/// The format of pages without tables.
pub(super) static FIXED: Format = Format {
    tokens: [Tokens::new(&CLASSES[0]), Tokens::new(&CLASSES[1]), Tokens::new(&CLASSES[2]), Tokens::new(&CLASSES[3])],
    palettes: Palettes::new(PALETTES),
};

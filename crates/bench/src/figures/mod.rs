//! What benches measure: figures, their ratios, and the targets of some.

mod line;
mod output;
mod ratio;
mod record;
mod targets;
mod words;

pub(crate) use line::{Line, geometric_mean, median};
pub(crate) use output::{Output, Rounds};
pub(crate) use ratio::{Measure, Pairs, Ratios, ratios};
pub(crate) use record::{ABOUT, Pick, Record, Spread};
pub(crate) use words::{between, difference, grouped, minutes, plural, range, utc};

//! Figures of benches, and the pages and charts made from them.
//!
//! - [`Output`] takes a bench's figures. It prints lines of JSON, or tables, and which targets the
//!   figures reach.
//! - [`run`] is `pagefold-bench report`: all benches, which take turns, and one page, made of their lines of
//!   JSON alone (docs/report.md).
//!
//! Ratios to peers are computed in one place, of figures of the same turn.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the output of a tool for developers")]

mod cell;
mod charts;
mod command;
mod comparisons;
mod latency;
mod line;
mod machine;
mod output;
mod page;
mod peers;
mod plan;
mod published;
mod ratio;
mod record;
mod run;
pub mod sizes;
mod targets;
pub mod tool;
mod words;
mod written;

pub use command::{Args, commands, run};
pub use latency::Latencies;
pub use line::median;
pub use output::{Output, Rounds};
pub use written::Written;

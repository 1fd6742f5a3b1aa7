//! Reports failures: of a command, and of the command line.

use std::fmt;

use crate::{log, text::message};

/// Returns clap's error in one line, without the hints that clap appends to every error.
pub(crate) fn complaint(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let end = ["\nUsage:", "\nFor more information"].iter().filter_map(|mark| text.find(mark)).min();
    let text = &text[..end.unwrap_or(text.len())];
    let lines = text.strip_prefix("error: ").unwrap_or(text).lines().map(str::trim).filter(|line| !line.is_empty());
    let mut said = String::new();
    for line in lines {
        match line.strip_prefix("tip: ") {
            // It is rarely a value.
            Some(tip) if tip.starts_with("to pass ") => {}
            Some(tip) => said += &format!("; {tip}"),
            None => said += &format!("{}{line}", if said.is_empty() { "" } else { " " }),
        }
    }
    // The standard library's words.
    said.replace("invalid digit found in string", "expected a whole number of at least 0")
}

/// An impossible request on the command line. The exit status is the one that clap uses for an
/// invalid command line.
#[derive(Debug)]
pub(crate) struct Misuse(String);

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// Marks an error as caused by the command line.
pub(crate) fn misuse(error: impl Into<anyhow::Error>) -> anyhow::Error {
    Misuse(message(&error.into())).into()
}

/// Writes a line to standard error.
pub(crate) fn print(text: &str) {
    log::write(log::Level::Error, text);
}

//! Options of `serve` in a configuration file: each has a key with its name.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

use clap::{Arg, ArgAction, Args as _, Command, error::ErrorKind};

use super::{super::args::Args, document::Entry, tables::Tables};
use crate::report::complaint;

/// Options that say what to do with a configuration file, and so cannot be in one.
const NOT_IN_FILE: [&str; 4] = ["config", "check-config", "record", "take-over"];

/// The options of `serve` alone.
pub(super) fn command() -> Command {
    Args::augment_args(Command::new("serve"))
}

/// Returns a word `--KEY=VALUE`.
pub(super) fn word(key: &str, value: &str) -> OsString {
    OsStr::from_bytes(format!("--{key}={value}").as_bytes()).to_owned()
}

/// Returns the options that have keys.
pub(super) fn all(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| {
        let has_key = !arg.is_hide_set() && arg.get_long().is_some_and(|long| !NOT_IN_FILE.contains(&long));
        has_key && matches!(arg.get_action(), ArgAction::Set | ArgAction::SetTrue | ArgAction::Append)
    })
}

/// Returns the option that a key names.
pub(super) fn find<'a>(command: &'a Command, entry: &Entry<'_>) -> anyhow::Result<&'a Arg> {
    all(command).find(|arg| arg.get_long() == Some(entry.key)).ok_or_else(|| {
        let known: Vec<_> = all(command).filter_map(Arg::get_long).chain(Tables::KINDS).collect();
        entry.wrong(format!("unknown key; known keys: {}", known.join(", ")))
    })
}

/// Returns the words that give the option on the command line.
pub(super) fn words(entry: &Entry<'_>, option: &Arg) -> anyhow::Result<Vec<OsString>> {
    let values = match option.get_action() {
        ArgAction::SetTrue => {
            let word = entry.flag()?.then(|| format!("--{}", entry.key).into());
            return Ok(word.into_iter().collect());
        }
        ArgAction::Append => entry.texts()?,
        _ => vec![entry.text()?],
    };
    let words: Vec<_> = values.iter().map(|value| word(entry.key, value)).collect();
    for word in &words {
        // The option alone. Whether it needs others, or excludes them, is checked with all words.
        let alone = command().try_get_matches_from(["serve".into(), word.clone()]);
        if let Err(error) = alone
            && !matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict)
        {
            return Err(entry.wrong(complaint(&error)));
        }
    }
    Ok(words)
}

//! The configuration file of `pagefold serve`. Its options become words of the command line, before
//! the user's, so that both have the same meaning. Its tables describe disks, bases and forks to
//! make at the start.

mod check;
mod document;
mod options;
mod tables;

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

use anyhow::anyhow;
use clap::{ArgMatches, parser::ValueSource};
use pagefold_control::Add;

pub(super) use self::check::check;
pub(crate) use self::tables::AtStart;
use self::{
    document::{Document, Entry},
    options::command,
    tables::{SocketDefaults, Tables},
};
use super::options::parse_base;
use crate::report::{complaint, misuse};

/// Options whose keys a disk on the command line replaces: it is the same disk, or those of `export`.
const DISK_OPTIONS: [&str; 3] = ["size", "name", "export"];

/// Returns the words of a command line with those of the configuration file that it names, and the
/// disks that the file describes. A command line without a file is returned as it is.
pub(crate) fn expand(words: Vec<OsString>) -> anyhow::Result<(Vec<OsString>, AtStart)> {
    let names_file = |word: &OsString| word == "--config" || word.as_bytes().starts_with(b"--config=");
    let is_serve = words.get(1).is_some_and(|word| word == "serve");
    if !is_serve || !words.iter().skip(2).any(names_file) {
        return Ok((words, AtStart::default()));
    }
    // Errors are ignored: an option may need another one that only the file has.
    let given = match command().ignore_errors(true).try_get_matches_from(&words[1..]) {
        Ok(given) => given,
        // Help was asked for.
        Err(_) => return Ok((words, AtStart::default())),
    };
    let Some(path) = given.get_one::<PathBuf>("config") else { return Ok((words, AtStart::default())) };
    let document = Document::read(path)?;
    let (from_file, at_start) = read(&document, &Given(&given))?;
    let all: Vec<_> = words[..2].iter().cloned().chain(from_file).chain(words[2..].iter().cloned()).collect();
    match command().try_get_matches_from(&all[1..]) {
        Err(error) if error.use_stderr() => {
            Err(misuse(anyhow!("{}: together with the command line: {}", document.shown(), complaint(&error))))
        }
        _ => Ok((all, at_start)),
    }
}

/// Returns the words of a file's options, without those that the command line replaces, and the
/// disks that the file describes.
fn read(document: &Document, given: &Given<'_>) -> anyhow::Result<(Vec<OsString>, AtStart)> {
    let command = command();
    let mut words = Vec::new();
    for entry in document.top() {
        if Tables::KINDS.contains(&entry.key) {
            continue;
        }
        let option = options::find(&command, &entry)?;
        let of_option = options::words(&entry, option)?;
        if !given.replaces(entry.key, option.get_id().as_str()) {
            words.extend(of_option);
        }
    }
    // The options are valid.
    let sockets = SocketDefaults { mode: given.or_of("mode", document)?, group: given.or_of("group", document)? };
    let mut at_start = Tables::read(document, &sockets)?;
    at_start.replace(given.has_disks(), given.has("files"), &given.names());
    Ok((words, AtStart(at_start)))
}

/// The options that the command line has.
struct Given<'a>(&'a ArgMatches);

impl Given<'_> {
    fn has(&self, id: &str) -> bool {
        self.0.value_source(id) == Some(ValueSource::CommandLine)
    }

    fn has_disks(&self) -> bool {
        self.has("size") || self.has("export")
    }

    /// Returns the text of an option, or that of its key in the file.
    fn or_of(&self, id: &str, document: &Document) -> anyhow::Result<Option<String>> {
        if self.has(id) {
            let text = self.0.get_raw(id).and_then(|mut values| values.next());
            return Ok(text.and_then(OsStr::to_str).map(str::to_owned));
        }
        document.top().iter().find(|entry| entry.key == id).map(Entry::text).transpose()
    }

    /// Returns the names of disks and bases.
    fn names(&self) -> Vec<String> {
        let disks = self.0.get_many::<Add>("export").into_iter().flatten().map(|disk| disk.name.clone());
        let disk = self.0.get_one::<String>("name").filter(|_| self.has("size")).cloned();
        let files = self.0.get_many::<OsString>("files").into_iter().flatten();
        // A FILE that has no name is refused later.
        let bases = files.filter_map(|file| Some(parse_base(file.clone(), None).ok()?.name));
        disks.chain(disk).chain(bases).collect()
    }

    fn replaces(&self, key: &str, id: &str) -> bool {
        self.has(id) || (DISK_OPTIONS.contains(&key) && self.has_disks())
    }
}

#[cfg(test)]
mod tests;

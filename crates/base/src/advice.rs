//! Commands in messages, which users copy.

use std::{fs, path::Path};

/// The parts of a template: what is before the name of a new file, the end of that name, and the
/// rest. `STEM` stands for the name without its end.
fn parts(template: &str) -> Option<(&str, &str, &str)> {
    let (before, after) = template.split_once("STEM")?;
    let end = after.find(|c: char| c != '.' && !c.is_ascii_alphanumeric()).unwrap_or(after.len());
    let (end, after) = after.split_at(end);
    Some((before, end, after))
}

/// Fills a template in. `FILE` stands for the file at `path`.
pub(crate) fn filled(template: &str, path: &Path) -> String {
    let with_file = |part: &str| part.replace("FILE", plain(path).unwrap_or("FILE"));
    match parts(template) {
        None => with_file(template),
        Some((before, end, after)) => format!("{}{}{}", with_file(before), new_name(path, end), with_file(after)),
    }
}

/// Returns the name of the file that the command of a template creates.
pub(crate) fn created(template: &str, path: &Path) -> Option<String> {
    parts(template).map(|(_, end, _)| new_name(path, end))
}

/// Returns a name with this end that no file has, like that of the file at `path` if possible.
/// Without an end, it is the name of a compressed file's content.
fn new_name(path: &Path, end: &str) -> String {
    let stem = path.with_extension("");
    let extension = path.extension().unwrap_or_default().as_encoded_bytes();
    // For example, `.tgz`.
    let inner = if end.is_empty() && matches!(extension, [b't' | b'T', ..]) { ".tar" } else { "" };
    let similar = plain(&stem).filter(|_| stem != path).map(|stem| format!("{stem}{inner}{end}"));
    let others = (2..).map(|number| format!("NEW-{number}{end}"));
    let mut names = similar.into_iter().chain([format!("NEW{end}")]).chain(others);
    let is_free = |name: &String| Path::new(name) != path && fs::symlink_metadata(name).is_err();
    names.find(is_free).unwrap_or_default()
}

/// Returns a path that a shell takes literally.
fn plain(path: &Path) -> Option<&str> {
    let is_plain = |name: &&str| {
        !name.is_empty()
            && !name.starts_with('-')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-+=,".contains(&b))
    };
    path.to_str().filter(is_plain)
}

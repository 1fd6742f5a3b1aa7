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
    let mut stem = path.with_extension("");
    if !end.is_empty() && stem.extension().is_some_and(|inner| inner.eq_ignore_ascii_case("tar")) {
        stem.set_extension("");
    }
    let extension = path.extension().unwrap_or_default().as_encoded_bytes();
    // For example, `.tgz`.
    let inner = if end.is_empty() && matches!(extension, [b't' | b'T', ..]) { ".tar" } else { "" };
    let similar = plain(&stem).filter(|_| stem != path).map(|stem| format!("{stem}{inner}{end}"));
    let others = (2..).map(|number| format!("NEW-{number}{end}"));
    let mut names = similar.into_iter().chain([format!("NEW{end}")]).chain(others);
    let is_free = |name: &String| Path::new(name) != path && fs::symlink_metadata(name).is_err();
    names.find(is_free).unwrap_or_default()
}

/// Returns the command that copies the file `inside` an image to a new one, `FILE`.
pub(crate) fn copying(image: &Path, inside: &[u8]) -> String {
    let image = pagefold_storage::shown(image);
    let place = str::from_utf8(inside).ok().map(|inside| format!("{image}:/{}", inside.trim_start_matches('/')));
    let place = place.filter(|place| is_literal(place, b":@")).unwrap_or_else(|| "IMAGE:/PATH".to_owned());
    format!("'pagefold cat {place} > FILE'")
}

/// Returns a path that a shell takes literally.
fn plain(path: &Path) -> Option<&str> {
    path.to_str().filter(|path| is_literal(path, b""))
}

/// Returns whether a shell takes a text literally, which may have some `more` characters.
fn is_literal(text: &str, more: &[u8]) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=,".contains(&byte) || more.contains(&byte);
    !text.is_empty() && !text.starts_with('-') && text.bytes().all(is_plain)
}

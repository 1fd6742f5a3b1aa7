//! Files of this machine as data.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Smaller files would share their pages with others. Files larger than [`LARGEST`] are left out.
const SMALLEST: u64 = 4096;
const LARGEST: u64 = 8 << 20;

/// Calls `each` with the regular files at or under `path` and their lengths, in path order, until
/// it returns false. Does not follow links.
pub(super) fn walk(path: &Path, each: &mut impl FnMut(&Path, u64) -> bool) {
    let mut pending = vec![path.to_owned()];
    while let Some(path) = pending.pop() {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() {
            let Ok(entries) = fs::read_dir(&path) else { continue };
            let mut children: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            children.sort_unstable_by(|a, b| b.cmp(a));
            pending.append(&mut children);
        } else if metadata.is_file() && !each(&path, metadata.len()) {
            return;
        }
    }
}

/// Concatenates up to `limit` bytes of the files under `roots` that `wanted` accepts, in path
/// order. Skips files that cannot be read.
pub fn joined(roots: &[&str], limit: usize, wanted: impl Fn(&Path, &[u8]) -> bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for root in roots {
        walk(Path::new(root), &mut |path, len| {
            if bytes.len() < limit
                && (SMALLEST..=LARGEST).contains(&len)
                && let Ok(content) = fs::read(path)
                && wanted(path, &content)
            {
                bytes.extend_from_slice(&content);
            }
            bytes.len() < limit
        });
    }
    bytes
}

/// Whether `content` is text for this bench: UTF-8 with no control characters except line ends,
/// tabs and form feeds.
pub fn is_text(content: &[u8]) -> bool {
    std::str::from_utf8(content)
        .is_ok_and(|text| !text.chars().any(|char| char.is_control() && !matches!(char, '\n' | '\r' | '\t' | '\x0c')))
}

/// Returns the content of each of `paths`, named by its file name, or by its whole path if two
/// files have the same name.
pub fn named(paths: &[PathBuf]) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let short = |path: &Path| path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut kinds = Vec::new();
    for path in paths {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let unique = paths.iter().filter(|other| short(other) == short(path)).count() == 1;
        kinds.push((if unique { short(path) } else { path.display().to_string() }, bytes));
    }
    Ok(kinds)
}
